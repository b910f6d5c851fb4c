"""Judgements, tables and the figure, from results made up so that every figure is known."""

import json
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrope import ConfigError
from clrope.benchmark import report, results, samples, targets
from clrope.benchmark.results import Record
from clrope.benchmark.workloads import WORKLOADS, select


def times(ns):
    return {"min": int(ns * 0.9), "p20": int(ns * 0.95), "median": int(ns), "p80": int(ns * 1.1), "n": 9}


def entry(kind, name, ns, moved, device=None, **more):
    out = {"kind": kind, "name": name, "status": "ok", "bytes": moved, "wall": times(ns), "cpu": times(2 * ns)}
    return out | ({"device": device} if device else {}) | more


#: GB/s of the made-up machine.
CEILING, OWN, PEERS = 50.0, {"pocl": 48.0, "intel": 49.0}, {"ggml": 3.0, "onnxruntime": 10.0, "numba": 30.0,
                                                             "torch_compile": 3.0}  # fmt: skip


def record(workload, own=OWN, peers=PEERS):
    moved = workload.bytes_moved
    entries = []
    for device, rate in own.items():
        ns = 6000.0 if workload.latency else moved / rate
        entries.append(entry("clrope", "arrays", ns, moved, device, nmse=1e-15, variants=[{}], launches=1))
        if workload.latency:
            entries.append(entry("launch", "raw launch", 5000.0, 0, device))
        copied = 2 * workload.tensor_bytes
        name = "scale" if workload.in_place else "copy"
        entries.append(entry("ceiling", name, copied / CEILING, copied, device, spelling=f"{name} vector8 4 KiB"))
        entries.append(entry("ceiling", f"slow {name}", 2 * copied / CEILING, copied, device))
        if workload.host:
            entries += [
                entry("clrope", "numpy out=", 1.05 * ns, moved, device),
                entry("clrope", "numpy new", 2 * ns, moved, device),
            ]
    entries += [entry("peer", name, moved / rate, moved) for name, rate in peers.items()]
    entries.append({"kind": "peer", "name": "torch_eager", "status": "refused", "reason": "not today"})
    base = {"name": workload.name} | workload.to_dict() | {"load": 0.1, "sets": 2, "entries": entries, "seconds": 1.0}
    return json.loads(json.dumps(base))


def made_up(workloads=None, kinds=None, **more):
    chosen = select(["targets"]) if workloads is None else workloads
    devices = {
        label: {"platform": platform, "name": "A CPU", "kind": (kinds or {}).get(label, "cpu"), "driver_version": "1",
                "key": label, "host_unified": True}
        for label, platform in (("pocl", "Portable Computing Language"), ("intel", "Intel(R) OpenCL"))
    }  # fmt: skip
    own = {k: v for k, v in OWN.items() if k in devices}
    processes = []
    for label, seconds in (("pocl", 0.6), ("intel", 0.6)):
        t = times(seconds * 1e9)
        processes.append({"kind": "first call", "device": label, "status": "ok", "whole": t, "inside": t, "imports": t})
        processes.append({"kind": "peak memory", "device": label, "status": "ok", "output_bytes": 64 << 20,
                          "extra_bytes": 70 << 20})  # fmt: skip
    return {
        "schema": results.SCHEMA, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0,
        "options": {"rounds": 9, "calls": 1, "latency_calls": 1, "threads": 2, "seed": 1, "tiny": False},
        "environment": {"cpu": "A CPU", "cpus": 2, "system": "s", "python": "p", "versions": {"clrope": "0"},
                        "kernels": {"a.cl": "0" * 16}, "load_before": 0.0, "load_after": 0.1},
        "devices": devices, "peers": dict.fromkeys(PEERS, "1"),
        "workloads": [record(w, own) for w in chosen], "processes": processes,
    } | more  # fmt: skip


def rows(result, text):
    found = [row for row in targets.judge([result]) if text in row.claim]
    assert found
    return found


def test_the_made_up_result_is_one():
    pytest.importorskip("jsonschema").validate(made_up(), results.schema())


def test_against_the_ceiling():
    for text, count in (("f32 neox, out of place", 2), ("bf16 normal, in place", 2), ("q and k", 2), ("imrope", 2)):
        found = rows(made_up(), text)
        assert len(found) == count
        for row in found:
            assert row.figure == pytest.approx(OWN[row.device] / CEILING, rel=1e-3)
            assert row.met
    partial = rows(made_up(), "partial 64 of 128")
    # In place half of each row moves, in half the time: the same bytes a second.
    assert [row.met for row in partial] == [True, True, None] * 2
    assert [row.cases for row in partial] == [6, 6, 0] * 2


def test_partial_rotations_are_judged_by_parts_of_rows_too():
    result = made_up()
    for w in result["workloads"]:
        if w["name"].startswith("partial-20of80") and "/in/" in w["name"]:
            moved = w["bytes_moved"]
            w["entries"].append(entry("ceiling", "windows", moved / 100.0, moved, "pocl"))
    found = {row.device: row for row in rows(result, "partial 20 of 80, in place, of scaling the same parts")}
    assert found["pocl"].figure == pytest.approx(0.48, rel=1e-3)
    assert found["pocl"].bound is None
    assert not found["pocl"].met
    beside = {row.device: row.bound for row in rows(result, "partial 20 of 80, in place, of the ceiling")}
    assert beside == {"pocl": pytest.approx(100 / CEILING, rel=1e-3), "intel": None}
    assert found["intel"].met is None
    # That it is fast does not make it the ceiling of others.
    assert rows(result, "partial 20 of 80, in place, of the ceiling")[0].figure == pytest.approx(0.96, rel=1e-3)


def test_below_the_ceiling():
    result = made_up()
    slow = next(w for w in result["workloads"] if w["name"] == "prefill/f16/neox/out/forward")
    own = next(e for e in slow["entries"] if e["kind"] == "clrope" and e["device"] == "intel")
    own["wall"] = times(own["wall"]["median"] * 1.2)
    found = {row.device: row for row in rows(result, "prefill f16 neox, out of place")}
    assert (found["pocl"].met, found["intel"].met) == (True, False)
    assert found["intel"].figure == pytest.approx(49 / 50 / 1.2, rel=1e-3)
    assert found["intel"].at == "prefill/f16/neox/out/forward"
    assert found["intel"].verdict == "NOT MET"


def test_against_peers_the_better_device_counts():
    found = {(row.claim, row.limit): row for row in rows(made_up(), "faster than")}
    neox = found["prefill f16 neox, faster than ggml", "≥ 15"]
    assert neox.device == "intel"
    assert neox.figure == pytest.approx(49 / 3, rel=1e-3)
    assert neox.met
    numba = found["prefill f32 normal and neox, faster than numba", "≥ 1.3"]
    assert numba.figure == pytest.approx(49 / 30, rel=1e-3)
    assert len(found) == len(targets.PEER_TARGETS)


def test_the_worse_pairing_counts():
    result = made_up()
    for w in result["workloads"]:
        if w["name"] == "prefill/f32/normal/out/forward":
            for e in w["entries"]:
                if e["name"] == "onnxruntime":
                    e["wall"] = times(e["wall"]["median"] / 4)
    (row,) = rows(result, "prefill f32 normal and neox, faster than onnxruntime")
    assert row.figure == pytest.approx(49 / 40, rel=1e-3)
    assert not row.met


def test_latency_and_host_and_processes():
    result = made_up()
    decode = rows(result, "decode of ")
    assert [row.figure for row in decode] == [pytest.approx(1.2)] * 4
    copied = [next(w for w in WORKLOADS if w.family == family).bytes_moved for family in ("decode-1", "decode-64")]
    # The first of equally bad ones is the one in float32.
    assert [row.bound for row in decode] == [pytest.approx(n / CEILING / 5000, rel=1e-3) for n in copied for _ in "12"]
    assert [row.met for row in rows(result, "result array given")] == [True, True]
    assert [row.met for row in rows(result, "new result array")] == [False, False]
    assert [(row.device, row.met) for row in rows(result, "first call")] == [("pocl", False), ("intel", True)]
    memory = rows(result, "peak host memory")
    assert [row.figure for row in memory] == [6.0, 6.0]
    assert all(row.met for row in memory)


def test_cost_against_bytes():
    assert rows(made_up(), "straight line")[0].figure == pytest.approx(0, abs=1e-3)
    points = [(float(n), 1000 + n / 50, str(n)) for n in (4 << 20, 16 << 20, 64 << 20, 1 << 30)]
    assert targets.off_line(points)[0] == pytest.approx(0, abs=1e-9)
    points[1] = (points[1][0], points[1][1] * 1.5, "bent")
    distance, name = targets.off_line(points)
    assert name == "bent"
    assert 0.1 < distance < 0.5
    assert targets.off_line(points[:2]) is None


def test_a_machine_that_changes_between_sizes_bends_no_line():
    result = made_up()
    chosen = [w for w in result["workloads"] if w["name"].startswith("size-") and w["tensor_bytes"] >= 4 << 20]
    for e in chosen[1]["entries"]:
        if "wall" in e:
            e["wall"] = times(e["wall"]["median"] * 1.8)
    for row in rows(result, "straight line"):
        assert row.figure == pytest.approx(0, abs=1e-3)
        assert row.of_minima == pytest.approx(0, abs=1e-3)
        assert row.bound > 0.2
    for e in chosen[1]["entries"]:
        if e["kind"] == "clrope":
            e["wall"] = times(e["wall"]["median"] * 1.5)
    assert all(row.met is False and row.figure > 0.2 for row in rows(result, "straight line"))


def test_small_sizes_do_not_count():
    result = made_up()
    for w in result["workloads"]:
        if w["tensor_bytes"] < 4 << 20:
            for e in w["entries"]:
                if "wall" in e:
                    e["wall"] = times(e["wall"]["median"] * 9)
    assert all(row.met for row in rows(result, "straight line"))


def test_gpus_are_judged_by_event_times():
    result = made_up(kinds={"pocl": "gpu"})
    for w in result["workloads"]:
        for e in w["entries"]:
            if e.get("device") == "pocl":
                e["event"] = times(e["wall"]["median"] / 10)
                e["wall"] = times(10**9)
    # The time of a call is waited for there, too.
    assert [row.figure for row in rows(result, "decode of") if row.device == "pocl"] == [1.0, 1.0]
    (row,) = rows(result, "GPU")
    assert row.device == "pocl"
    assert row.figure == pytest.approx(48 / 50, rel=1e-3)
    assert row.met


def test_what_was_not_measured_is_not_met():
    result = made_up(workloads=select(["prefill/f32/neox/out/forward"]), processes=[])
    found = targets.judge([result])
    assert {row.verdict for row in found} == {"met", "not measured", "NOT MET"}
    assert all(row.figure is None for row in found if row.met is None)


def test_tiny_runs_are_not_judged():
    result = made_up()
    result["options"]["tiny"] = True
    assert all(row.met is None for row in targets.judge([result]))


def test_files_of_single_devices_are_judged_together():
    whole = made_up()
    parts = [results.of_device(whole, label) for label in whole["devices"]]
    assert sorted(map(str, targets.judge(parts))) == sorted(map(str, targets.judge([whole])))


def test_summary_has_a_column_a_device():
    table = report.summary_table(targets.judge([made_up()]))
    assert table.columns[2:] == ("#pocl", "#intel")
    calls = [row[1:] for row in table.rows if row[0] == "first call in a new process"]
    assert calls == [("≤ 0.5", "**0.60 s**", ""), ("≤ 1", "", "0.60 s")]
    peers = [row[2:] for row in table.rows if "faster than" in row[0]]
    assert len(peers) == len(targets.PEER_TARGETS)
    assert all(sum(cell != "" for cell in row) == 1 for row in peers)


def test_what_mere_moving_has_stands_beside():
    result = made_up()
    (row,) = rows(result, "f32 neox, faster than ggml")
    assert row.bound == pytest.approx(row.figure * CEILING / OWN[row.device], rel=1e-2)


def test_documented_table_is_that_of_the_kept_results():
    root = Path(__file__).parents[2]
    kept = [results.read(path) for path in sorted(root.glob("bench/results/*/*.json"))]
    text = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    machines = targets.by_machine(kept)
    assert machines
    for cpu, found in machines.items():
        assert report.machine_section(cpu, targets.judge(found)) in text, "python bench/targets.py --write"


def test_machines_are_judged_apart():
    old, new = made_up(), made_up()
    old["environment"]["cpu"], old["started"] = "Old One", "2026-01-01T00:00:00+00:00"
    new["environment"]["cpu"], new["started"] = "New One", "2026-02-01T00:00:00+00:00"
    again = old | {"started": "2025-01-01T00:00:00+00:00"}
    assert targets.by_machine([again, old, new]) == {"New One": [new], "Old One": [again, old]}
    for w in new["workloads"]:
        for e in w["entries"]:
            if e["kind"] == "clrope":
                e["wall"] = times(e["wall"]["median"] * 2)
    judged = targets.judge([old, new])
    assert [row.machine for row in judged] == ["New One"] * (len(judged) // 2) + ["Old One"] * (len(judged) // 2)
    assert [row.figure for row in judged if row.machine == "Old One"] == [r.figure for r in targets.judge([old])]
    slow, fast = ([row for row in judged if "bf16 neox, in place" in row.claim][k] for k in (0, 2))
    assert slow.figure == pytest.approx(fast.figure / 2, rel=1e-3)
    devices = {line[1] for line in report.target_table(judged).rows}
    assert {"pocl, New One", "pocl, Old One"} < devices
    assert {line[1] for line in report.target_table(targets.judge([old])).rows} <= {"pocl", "intel", "best"}


def test_ratios_are_taken_within_a_round():
    """On a machine that is half as fast in some rounds, also against who is in a few of them only."""
    result = made_up()
    result["options"]["rounds"] = 9
    chosen = next(w for w in result["workloads"] if w["name"] == "prefill/f32/neox/out/forward")
    pace = [1, 1, 1, 1, 2, 2, 2, 2, 2]
    few = [k for k in range(9) if samples.in_round(k, 3, 9)]
    for e in chosen["entries"]:
        if e["kind"] in ("clrope", "ceiling", "peer") and e["status"] == "ok":
            at = few if e["kind"] == "peer" else range(9)
            e["wall"]["turns"] = [e["wall"]["median"] * pace[k] for k in at]
            if e["kind"] == "ceiling":
                # What was in between when the pace changed.
                e["wall"]["turns"][4] /= 2
            e["wall"] |= {"median": statistics.median(e["wall"]["turns"]), "min": e["wall"]["median"]}
    assert len(few) == 3
    one = Record(result, chosen)
    for device in one.devices:
        assert one.of_ceiling(device) == pytest.approx(OWN[device] / CEILING, rel=1e-3)
        assert one.against("ggml", device) == pytest.approx(OWN[device] / PEERS["ggml"], rel=1e-3)
        assert one.error_of_ceiling(device) < 0.2


def test_record():
    one = Record(made_up(), record(next(w for w in WORKLOADS if w.name == "prefill/f32/neox/out/forward")))
    assert one.devices == ["pocl", "intel"]
    assert one.rate("pocl") == pytest.approx(48, rel=1e-3)
    assert one.ceiling("pocl")["name"] == "copy"
    assert one.against("ggml", "pocl") == pytest.approx(16, rel=1e-3)
    assert one.against("torch_eager", "pocl") is None
    assert one.of_ceiling("pocl", "min") == pytest.approx(0.96, rel=1e-3)


def test_of_several_records_of_a_workload_the_middle_one_counts():
    result = made_up()
    chosen = next(w for w in result["workloads"] if w["name"] == "prefill/f32/neox/out/forward")
    for factor in (0.7, 1.2):
        other = json.loads(json.dumps(chosen))
        for e in other["entries"]:
            if e["kind"] == "clrope":
                e["wall"] = times(e["wall"]["median"] * factor)
        result["workloads"].append(other)
        found = rows(result, "f32 neox, out of place")
        assert [row.figure for row in found] == [pytest.approx(OWN[row.device] / CEILING, rel=1e-3) for row in found]
        assert [row.cases for row in found] == [1, 1]
    slower = rows(result, "prefill f32 neox, faster than ggml")[0]
    assert slower.figure == pytest.approx(OWN["intel"] / PEERS["ggml"], rel=1e-3)


def test_how_sure_a_share_is():
    result = made_up()
    chosen = next(w for w in result["workloads"] if w["name"] == "prefill/f32/neox/out/forward")
    assert all(row.error is None for row in rows(result, "f32 neox, out of place")), "no turns were kept"
    for e in chosen["entries"]:
        if e.get("device") == "pocl" and e["kind"] in ("clrope", "ceiling"):
            middle = e["wall"]["median"]
            factors = (0.9, 1.1, 1.0, 0.95, 1.05, 1.0, 1.0, 0.98, 1.02)
            e["wall"]["turns"] = [round(middle * f) for f in factors[:: 1 if e["kind"] == "clrope" else -1]]
    found = {row.device: row for row in rows(result, "f32 neox, out of place")}
    assert found["intel"].error is None
    assert 0.005 < found["pocl"].error < 0.05
    table = report.target_table(targets.judge([result]))
    row = next(r for r in table.rows if r[:2] == (found["pocl"].claim, "pocl"))
    assert dict(zip(table.columns, row, strict=True))["#±"] == f"{found['pocl'].error:.2f}"
    pytest.importorskip("jsonschema").validate(result, results.schema())


def test_tables():
    made = {table.title: table for table in report.tables([made_up()])}
    assert set(made) == {"Bytes read and written a second", "Time of a call", "NumPy arrays, times of device-resident",
                         "Processes", "Not timed"}  # fmt: skip
    speed = made["Bytes read and written a second"]
    row = next(r for r in speed.rows if r[:2] == ("prefill/f16/neox/out/forward", "intel"))
    cells = dict(zip(speed.columns, row, strict=True))
    assert cells["#GB/s"] == "49"
    assert cells["#of it"] == "0.98"
    assert cells["ceiling"] == "copy vector8 4 KiB"
    assert cells["#× ggml"] == "16.3"
    assert all(len(r) == len(t.columns) for t in made.values() for r in t.rows)
    (left_out,) = made["Not timed"].rows
    assert left_out[:3] == ("torch_eager", "refused", "not today")
    text = speed.markdown()
    assert text.splitlines()[2].startswith("| workload | device | GB/s |")
    assert all(line.count("|") == text.splitlines()[2].count("|") for line in text.splitlines()[3:])


def test_heading_warns_of_tiny_runs():
    result = made_up()
    assert "TINY" not in report.heading([result])
    result["options"]["tiny"] = True
    assert "TINY: no figure means anything" in report.heading([result])


def test_figure(tmp_path):
    pytest.importorskip("matplotlib")
    from clrope.benchmark.figure import draw

    path = tmp_path / "f.png"
    draw([made_up()], path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000
    with pytest.raises(ConfigError, match="figure: the results hold no workload prefill"):
        draw([made_up(workloads=select(["decode-1"]))], path)


def invoke(*arguments):
    from clrope.cli.main import app

    return CliRunner().invoke(app, list(arguments))


def test_command_report(tmp_path):
    path, markdown = tmp_path / "r.json", tmp_path / "r.md"
    results.write(made_up(), path)
    done = invoke("report", str(path), "--markdown", str(markdown))
    assert done.exit_code == 0, done.output
    assert "prefill/f16/neox/out/forward" in done.stdout
    judged = invoke("report", str(path), "--targets")
    assert judged.exit_code == 1
    assert "NOT MET" in judged.stdout
    assert "| prefill/f16/neox/out/forward | pocl | 48 |" in markdown.read_text()
    rows = json.loads(invoke("report", str(path), "--json").stdout)
    assert len(rows) == len(targets.judge([made_up()]))
    missing = invoke("report", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "cannot be read" in missing.output


def test_command_bench(device, tmp_path):
    listed = invoke("bench", "--list", "--workload", "vision")
    assert listed.exit_code == 0
    assert sum(line.startswith(" vision/") for line in listed.stdout.splitlines()) == 12
    path = tmp_path / "r.json"
    done = invoke("bench", "--tiny", "--rounds", "1", "--device", device.index, "--workload",
                  "decode-1/f32/neox/out/forward", "--peer", "numpy", "--json", str(path))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "decode-1/f32/neox/out/forward" in done.stdout
    read = results.read(path)
    assert [w["name"] for w in read["workloads"]] == ["decode-1/f32/neox/out/forward"]
    assert read["options"]["tiny"]
    refused = invoke("bench", "--workload", "nonsense")
    assert refused.exit_code == 2
    assert "workload: got 'nonsense'" in refused.output
