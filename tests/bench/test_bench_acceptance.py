"""Acceptance of made-up results."""

import json

import pytest
from made_up_results import CEILING, OWN, PEERS, entry, made_up, times
from tools import acceptance, store

from clrope.benchmark import results
from clrope.benchmark.workloads import WORKLOADS, select


def rows(result, text):
    found = [row for row in acceptance.check([result]) if text in row.claim]
    assert found
    return found


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


def test_partial_rotations_are_checked_by_parts_of_rows_too():
    result = made_up()
    for w in result["workloads"]:
        if w["name"].startswith("partial-20of80") and "/in/" in w["name"]:
            moved = w["bytes_moved"]
            w["entries"].append(entry("ceiling", "windows", moved / 100.0, moved, "pocl"))
    found = {row.device: row for row in rows(result, "partial 20 of 80, in place, of scaling the same parts")}
    assert found["pocl"].figure == pytest.approx(0.48, rel=1e-3)
    assert found["pocl"].bound is None
    assert not found["pocl"].met
    next_to = {row.device: row.bound for row in rows(result, "partial 20 of 80, in place, of the ceiling")}
    assert next_to == {"pocl": pytest.approx(100 / CEILING, rel=1e-3), "intel": None}
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
    assert found["intel"].status == "NOT MET"


def test_against_peers_the_better_device_counts():
    found = {(row.claim, row.limit): row for row in rows(made_up(), "faster than")}
    neox = found["prefill f16 neox, faster than ggml", "≥ 15"]
    assert neox.device == "intel"
    assert neox.figure == pytest.approx(49 / 3, rel=1e-3)
    assert neox.met
    numba = found["prefill f32 normal and neox, faster than numba", "≥ 1.3"]
    assert numba.figure == pytest.approx(49 / 30, rel=1e-3)
    assert len(found) == len(acceptance.PEER_TARGETS)


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
    assert acceptance.off_line(points)[0] == pytest.approx(0, abs=1e-9)
    points[1] = (points[1][0], points[1][1] * 1.5, "bent")
    distance, name = acceptance.off_line(points)
    assert name == "bent"
    assert 0.1 < distance < 0.5
    assert acceptance.off_line(points[:2]) is None


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


def test_gpus_are_checked_by_event_times():
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
    found = acceptance.check([result])
    assert {row.status for row in found} == {"met", "not measured", "NOT MET"}
    assert all(row.figure is None for row in found if row.met is None)


def test_tiny_runs_are_not_checked():
    result = made_up()
    result["options"]["tiny"] = True
    assert all(row.met is None for row in acceptance.check([result]))


def test_files_of_single_devices_are_checked_together():
    whole = made_up()
    parts = [store.of_device(whole, label) for label in whole["devices"]]
    assert sorted(map(str, acceptance.check(parts))) == sorted(map(str, acceptance.check([whole])))


def test_figures_have_a_column_per_device():
    table = acceptance.figures_table(acceptance.check([made_up()]))
    assert table.columns[1:] == ("#pocl", "#intel")
    calls = [row[1:] for row in table.rows if row[0] == "first call in a new process"]
    assert calls == [("0.60 s", "0.60 s")]
    peers = [row[1:] for row in table.rows if "faster than" in row[0]]
    assert len(peers) == len(acceptance.PEER_TARGETS)
    assert all(sum(cell != "" for cell in row) == 1 for row in peers)


def test_what_mere_moving_has_is_told():
    result = made_up()
    (row,) = rows(result, "f32 neox, faster than ggml")
    assert row.bound == pytest.approx(row.figure * CEILING / OWN[row.device], rel=1e-2)


def test_machines_are_checked_apart():
    old, new = made_up(), made_up()
    old["environment"]["cpu"], old["started"] = "Old One", "2026-01-01T00:00:00+00:00"
    new["environment"]["cpu"], new["started"] = "New One", "2026-02-01T00:00:00+00:00"
    again = old | {"started": "2025-01-01T00:00:00+00:00"}
    assert acceptance.by_machine([again, old, new]) == {"New One": [new], "Old One": [again, old]}
    for w in new["workloads"]:
        for e in w["entries"]:
            if e["kind"] == "clrope":
                e["wall"] = times(e["wall"]["median"] * 2)
    checked = acceptance.check([old, new])
    assert [row.machine for row in checked] == ["New One"] * (len(checked) // 2) + ["Old One"] * (len(checked) // 2)
    assert [row.figure for row in checked if row.machine == "Old One"] == [r.figure for r in acceptance.check([old])]
    slow, fast = ([row for row in checked if "bf16 neox, in place" in row.claim][k] for k in (0, 2))
    assert slow.figure == pytest.approx(fast.figure / 2, rel=1e-3)
    devices = {line[1] for line in acceptance.target_table(checked).rows}
    assert {"pocl, New One", "pocl, Old One"} < devices
    assert {line[1] for line in acceptance.target_table(acceptance.check([old])).rows} <= {"pocl", "intel", "best"}


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
    table = acceptance.target_table(acceptance.check([result]))
    row = next(r for r in table.rows if r[:2] == (found["pocl"].claim, "pocl"))
    assert dict(zip(table.columns, row, strict=True))["#±"] == f"{found['pocl'].error:.2f}"
    pytest.importorskip("jsonschema").validate(result, results.schema())


def test_call_limits():
    comparison = {c.name for c in results.CALL_COMPARISONS}
    assert {name for name, *_ in acceptance.CALL_LIMITS} == comparison
    step = select(["calls/f16/neox"])[0]
    entries = [
        entry("clrope", name, ns, 1, device)
        for device, own in (("pocl", 900.0), ("intel", 450.0))
        for name, ns in (("rope numpy", own), ("plan.run()", 100.0), ("numpy plan.run()", own - 320))
    ]
    entries += [entry("launch", "raw launch", 80.0, 1, device) for device in ("pocl", "intel")]
    entries.append(entry("peer", "torch_eager", 1000.0, 1))
    made = {"name": step.name} | step.to_dict() | {"load": 0.1, "sets": 1, "entries": entries, "seconds": 1.0}
    result = made_up(workloads=[]) | {"workloads": [made]}
    found = {(row.claim, row.device): row for row in acceptance.check([result]) if "step" in row.claim}
    assert len(found) == 2 * (len(acceptance.CALL_LIMITS) - 1)
    eager = "decode step: one-shot on NumPy / torch eager"
    assert found[eager, "pocl"].limit == "≤ 1.5"
    assert found[eager, "intel"].limit == "≤ 0.5"
    assert (found[eager, "pocl"].met, found[eager, "intel"].met) == (True, True)
    raw = found["decode step: plan.run() / raw launch", "intel"]
    assert (raw.figure, raw.met) == (1.25, False)
    longer = found["decode step: one-shot on NumPy - plan.run(), a call", "intel"]
    assert (longer.figure, longer.unit, longer.met) == (pytest.approx(0.01), "µs", True)
    assert found["decode step: one-shot on OpenCL arrays / ggml graph", "pocl"].met is None


def test_calls_are_in_no_other_row():
    result = made_up(workloads=select(["calls/f16/neox"]), processes=[])
    assert {row.claim for row in acceptance.check([result]) if row.met is not None} == set()
