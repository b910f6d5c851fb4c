"""The five lines at the end of a run, and how tables say that a run was interrupted."""

from made_up_results import CEILING, OWN, PEERS, made_up

from clrope.benchmark.closing import closing_lines
from clrope.benchmark.report import heading, tables
from clrope.benchmark.workloads import select

NAMES = ["devices", "results", "of the ceiling", "against peers", "kept in"]


def lines_of(result, **more):
    lines = closing_lines(result, **more)
    assert [name for name, _ in lines] == NAMES
    assert all("\n" not in text for _, text in lines)
    return dict(lines)


def test_five_lines():
    result = made_up(
        workloads=select(
            ["prefill/f16/neox/out/forward", "prefill/f32/neox/out/forward", "decode-1/f32/neox/out/forward"]
        )
    )
    lines = lines_of(result, kept="r.json")
    assert lines["devices"] == "pocl = A CPU; intel = A CPU"
    best = max(PEERS, key=PEERS.get)
    timed = sum(e["kind"] == "clrope" for w in result["workloads"] for e in w["entries"])
    assert lines["results"] == f"right, each of {timed} checked against the float64 reference"
    shares = ", ".join(f"{label} {OWN[label] / CEILING:.2f}" for label in ("pocl", "intel"))
    worst = min(OWN["pocl"], OWN["intel"]) / CEILING
    assert lines["of the ceiling"].startswith(f"{shares} (median); worst {worst:.2f}, pocl in prefill/")
    ratios = ", ".join(f"{label} {OWN[label] / PEERS[best]:.2f}" for label in ("pocl", "intel"))
    least = OWN["pocl"] / PEERS[best]
    among = "the fastest of " + ", ".join(PEERS)
    want = f"{ratios} times as fast as {among} (median); worst {least:.2f}, pocl next to {best}"
    assert lines["against peers"] == want
    assert lines["kept in"] == "r.json; to look at them: clrope report r.json"
    assert lines_of(result, kept="r.json", page="r.html")["kept in"] == "r.json; page: r.html"
    assert "--json" in lines_of(result)["kept in"]


def test_wrong_results_come_first():
    result = made_up(workloads=select(["prefill/f32/neox/out/forward"]))
    entries = result["workloads"][0]["entries"]
    entries[0] = {"kind": "clrope", "name": "arrays", "status": "wrong", "reason": "NMSE 0.5", "device": "pocl"}
    name = result["workloads"][0]["name"]
    lines = lines_of(result)
    assert lines["results"] == f"WRONG: arrays on pocl in {name}"
    assert "pocl" not in lines["of the ceiling"]
    entries[0] |= {"status": "error"}
    assert lines_of(result)["results"] == f"FAILED: arrays on pocl in {name}"
    # That a peer does not take a workload, or fails, is no failure of this package; wrong results are told.
    entries[0] = {"kind": "peer", "name": "numba", "status": "error", "reason": "x"}
    assert lines_of(result)["results"].startswith("right, ")
    entries[0] |= {"status": "wrong"}
    assert lines_of(result)["results"].startswith("WRONG: numba in ")


def test_what_is_missing_is_told():
    result = made_up(workloads=select(["prefill/f32/neox/out/forward"]), missing=["a", "b", "c", "d", "e"])
    assert lines_of(result)["results"].endswith("; MISSING, the run was interrupted: a, b, c and 2 more")
    assert heading([result]).endswith("; INTERRUPTED, 5 missing: a, b, c, d, e")
    assert "INTERRUPTED" not in heading([made_up(workloads=[])])


def test_runs_without_bandwidth_peers_or_meaning():
    decode = made_up(workloads=select(["decode-1/f32/neox/out/forward"]))
    assert lines_of(decode)["of the ceiling"] == "no workload of bytes a second was timed next to a copy"
    assert lines_of(decode)["against peers"] == "no peer was timed in a workload of bytes a second"
    alone = made_up(workloads=[], peers={"ggml": None})
    assert lines_of(alone)["against peers"] == "no peer was timed"
    assert lines_of(alone)["results"] == "nothing was timed"
    tiny = made_up(workloads=[])
    tiny["options"]["tiny"] = True
    assert lines_of(tiny)["of the ceiling"].startswith("--tiny, so no figure means anything")


def test_an_independent_ceiling_is_a_table_of_its_own():
    result = made_up(workloads=select(["prefill/f32/neox/out/forward"]))
    assert "Independent ceilings" not in [table.title for table in tables([result])]
    result["devices"]["pocl"] |= {"clpeak_gbs": 61.25, "clpeak": "1.1.2"}
    result["devices"]["intel"] |= {"clpeak_gbs": None, "clpeak": "not installed"}
    (table,) = (table for table in tables([result]) if table.title == "Independent ceilings")
    assert table.rows == (("pocl", "61.2", "1.1.2", f"{CEILING:.3g}"),)


def test_a_single_peer_is_named_and_a_busy_machine_told():
    result = made_up(workloads=select(["prefill/f32/neox/out/forward"]))
    (workload,) = result["workloads"]
    workload["entries"] = [e for e in workload["entries"] if e["kind"] != "peer" or e["name"] == "ggml"]
    result["environment"]["busy"] = 0.04
    assert " times as fast as ggml (median); worst " in lines_of(result)["against peers"]
    assert heading([result]).count("other programs used 4% of the CPUs during the run;") == 1
    result["environment"]["busy"] = 0.6
    assert closing_lines(result)[5:] == [
        (
            "machine",
            "other programs used 60% of the CPUs during the run: a BUSY machine, the figures are not to be trusted",
        )
    ]
    (table,) = (table for table in tables([result]) if table.title == "Bytes read and written a second")
    assert "medians of the ratios within each round" in table.note
    assert table.note in table.markdown().replace("\\", "")
