"""A kernel cannot get a figure without its work: cheats fail in the timed calls, and impossible speeds are refused."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from lab_kernels import TABLES, changed

from clrope import DeviceInfo
from clrope.benchmark.audit import BEYOND, clocks_disagree, too_fast
from clrope.benchmark.buffers import DeviceSets, make_inputs
from clrope.benchmark.entry import BenchmarkEntry, WrongResultError, calibrate, rounds
from clrope.benchmark.measure import open_bench
from clrope.benchmark.subject import on_device
from clrope.benchmark.validation import ResultCheck
from clrope.benchmark.workloads import select
from clrope.device import child
from clrope.device.child import ChildResult
from clrope.lab import load
from clrope.lab.lab_bench import OUR_PLAIN, bench_kernels, names_of
from clrope.lab.lab_kernel import load_file

ROTATION = "  y[i] = p * c - q * s;\n  y[j] = p * s + q * c;"
STATE = "// lab: options -cl-std=CL2.0\n__global float kept[1 << 16];\n__global int calls;\n"
PLACE = "  const int at = (((r * heads + h) * pairs + slot) * 2) % 65536;\n"
#: Counts calls: the first work-item of each call does.
COUNT = "  if (slot + h + r == 0) atomic_inc((volatile __global int *)&calls);\n"
WORKLOADS = ("prefill/f32/neox/out/forward", "prefill/f32/normal/in/forward", "decode-64/f32/neox/out/forward")

#: Each passes a check of the first calls.
CHEATS = {
    "computes only in the first calls": COUNT + "  if (calls > 40) return;\n" + ROTATION,
    "computes only in every second call after the first ones": (
        COUNT + "  if (calls > 40 && calls % 2) return;\n" + ROTATION
    ),
    "replays cached answers after the first calls": (
        COUNT + PLACE + "  if (calls <= 40) { kept[at] = p * c - q * s; kept[at + 1] = p * s + q * c; }\n"
        "  y[i] = kept[at]; y[j] = kept[at + 1];"
    ),
    "computes only where it sees poison": (
        "  if (isnan(y[i]) || as_uint(y[i]) == 0x5A5A5A5Au) {\n" + ROTATION + "\n  }"
    ),
    "changes its input after the first calls": (
        COUNT + ROTATION + "\n  if (calls > 40) ((__global float *)x)[i] = 0.5f;"
    ),
    "writes behind its output after the first calls": (
        COUNT + ROTATION + "\n  if (calls > 40 && slot + h + r == 0)\n"
        "    y[(long)get_global_size(1) * get_global_size(2) * head_dim + 3] = 1.0f;"
    ),
    "keeps the cos and sin of the first calls": (
        COUNT + "  const int pl = (r * pairs + slot) % 32768 * 2;\n"
        "  if (calls <= 40) { kept[pl] = c; kept[pl + 1] = s; }\n"
        "  y[i] = p * kept[pl] - q * kept[pl + 1];\n  y[j] = p * kept[pl + 1] + q * kept[pl];"
    ),
    "leaves the work to the next call": (
        COUNT + PLACE + "  if (calls <= 40) {\n" + ROTATION + "\n  } else {\n"
        "  y[i] = kept[at]; y[j] = kept[at + 1]; kept[at] = p * c - q * s; kept[at + 1] = p * s + q * c;\n  }"
    ),
    "computes a pair only where its first value of the output is wrong": (
        "  if (y[i] == p * c - q * s) return;\n" + ROTATION
    ),
    "computes only where its input differs from the one before": (
        COUNT + PLACE + "  if (calls > 40 && kept[at] == p && kept[at + 1] == q) return;\n"
        "  kept[at] = p; kept[at + 1] = q;\n" + ROTATION
    ),
    "leaves out one head in every seventh call": (
        COUNT + "  if (calls > 40 && calls % 7 == 3 && h == 1) return;\n" + ROTATION
    ),
}  # fmt: skip


def timed(device: DeviceInfo, path: Path, name: str, audited: bool = True) -> BenchmarkEntry:
    """Time a kernel file on a small workload as the benchmark does, without ceilings."""
    seed = secrets.randbits(32)
    (workload,) = (w.tiny() for w in select([name]))
    bench = open_bench(device, "device")
    inputs = make_inputs(workload, seed)
    sets = DeviceSets(bench.profiled, device, inputs)
    entry = on_device(sets, bench.profiled, ResultCheck(inputs, seed), "device", load(path), "mine", seed)
    entry.cursor = sets.cursor
    entry.audit = entry.audit if audited else None
    entry.nmse = entry.check()
    calibrate(entry, 30)
    rounds([entry], 6, seed)
    return entry


def write(folder: Path, body: str) -> Path:
    path = folder / "mine.cl"
    path.write_text(STATE + changed(TABLES, [(ROTATION, body)]))
    return path


@pytest.mark.one_in(6)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_right_kernel_has_times(device: DeviceInfo, tmp_path: Path, workload: str) -> None:
    entry = timed(device, write(tmp_path, COUNT + ROTATION), workload)
    assert entry.problem == ""
    assert len(entry.wall) >= 6
    assert entry.nmse is not None
    assert entry.nmse < 1e-12


@pytest.mark.one_in(44)
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_fail_in_timed_calls(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    # In place there is no output of its own.
    names = WORKLOADS[:1] if any(word in name for word in ("poison", "input", "output is")) else WORKLOADS[:2]
    for workload in names:
        entry = timed(device, write(tmp_path, CHEATS[name]), workload)
        assert entry.problem.startswith("a timed call"), (workload, entry.problem)
        assert ("changes its input" in name) == ("of its input" in entry.problem)
        assert ("behind" in name) == ("behind its buffers" in entry.problem)
        if "cos and sin" in name:
            assert entry.problem.startswith("a timed call, with an input and positions of its own: ")


def test_a_kernel_that_is_wrong_at_once_is_not_timed(device: DeviceInfo, tmp_path: Path) -> None:
    with pytest.raises(WrongResultError):
        timed(device, write(tmp_path, "  y[i] = p * c + q * s;\n  y[j] = p * s + q * c;"), WORKLOADS[0])


def made_up(kind: str, nanoseconds: int, moved: int = 1 << 20, device: str = "intel") -> BenchmarkEntry:
    entry = BenchmarkEntry(kind, kind, lambda i: None, lambda: None, bytes=moved, device=device)  # type: ignore[arg-type]
    entry.wall = [nanoseconds, nanoseconds + 2, nanoseconds * 40]
    return entry


def test_names_are_text(tmp_path: Path) -> None:
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "k\udcff.cl"
        try:
            path.write_text("kernel void k(global float *x) {}")
        except OSError:
            pytest.skip("this file system takes text only")
        files.append(load_file(str(path)))
    assert names_of(files) == [r"k\xff.cl", r"k\xff.cl (2)"]


def test_speeds_beyond_the_memory_are_refused() -> None:
    copy, slow_copy = made_up("ceiling", 100_000), made_up("ceiling", 300_000)
    elsewhere = made_up("ceiling", 10_000, device="gpu")
    others = [copy, slow_copy, elsewhere]
    fine = made_up("kernel", int(100_000 / BEYOND * 1.01))
    assert too_fast(fine, [*others, fine]) == ""
    fast = made_up("kernel", int(100_000 / BEYOND * 0.98))
    assert too_fast(fast, [*others, fast]).startswith("faster than the memory: 16 GB/s, where the best copy")
    assert too_fast(fast, [elsewhere, fast]) == ""
    copy.wall.pop()
    assert too_fast(fast, [copy, fast]) == "", "two copies say little on a busy machine"
    launch = made_up("launch", 5_000, 0)
    assert too_fast(made_up("kernel", 2_000, 64), [launch]).startswith("faster than an empty launch: 2 us")
    assert too_fast(made_up("kernel", 4_000, 64), [launch]) == ""
    launch.wall = [4_000, 70_000, 70_000]  # a busy machine, where a thread's waking takes long in whole turns
    assert too_fast(made_up("kernel", 25_000, 64), [launch]) == ""
    assert too_fast(BenchmarkEntry("kernel", "k", lambda i: None, lambda: None), []) == ""


def test_event_times_are_compared_with_the_calls() -> None:
    def with_events(kind: str, events: int, wall: int = 5_000_000) -> BenchmarkEntry:
        entry = made_up(kind, wall)
        entry.event = [events, events + 2, events * 3]
        return entry

    copies = [with_events("ceiling", 3_000_000), with_events("ceiling", 1_500_000)]
    assert clocks_disagree(with_events("kernel", 2_000_000), copies) == ""
    assert clocks_disagree(with_events("kernel", 1_100_000), copies) == ""
    early = clocks_disagree(with_events("kernel", 900_000), copies)
    assert early.startswith("events of 900 us in calls of 5000 us: they end before the work, at 1.17 GB/s")
    assert clocks_disagree(with_events("kernel", 900_000), []) == ""
    assert "clock cannot be right" in clocks_disagree(with_events("kernel", 6_100_000), copies)
    assert clocks_disagree(made_up("kernel", 5_000_000), copies) == ""


@pytest.mark.one_in(24)
def test_the_command(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    right = write(tmp_path, ROTATION)
    other = tmp_path / "other.cl"
    other.write_text(TABLES.replace("p * c - q * s", "p * c"))
    with pytest.raises(SystemExit) as ended:
        check_kernel(
            str(right), device=[device.index], bench=True, against=[str(other)], workload=[WORKLOADS[2]], rounds=2,
            json_file=str(tmp_path / "speed.json"), quiet=True, seed=1,
        )  # fmt: skip
    assert ended.value.code == 1
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "speed.json").read_text())
    assert report["schema"] == "clrope.lab.bench/1"
    (record,) = report["devices"][0]["workloads"]
    found = {e["name"]: e["status"] for e in record["entries"]}
    assert (found["mine.cl"], found["other.cl"], found["arrays"], found[OUR_PLAIN]) == ("ok", "wrong", "ok", "ok")
    assert "other.cl, decode-64/f32/neox/out/forward: tensor 0, sampled tokens" in out
    for word in ("Speed on", "of the best copy", "copy: ", "mine.cl", "right", "wrong"):
        assert word in out


@pytest.mark.one_in(6)
def test_a_kernel_that_never_ends_is_stopped_and_the_other_one_measured(device: DeviceInfo, tmp_path: Path) -> None:
    endless, right = tmp_path / "endless.cl", write(tmp_path, ROTATION)
    endless.write_text(changed(TABLES, [(ROTATION, "  while (x[0] < 1e30f) y[0] += 1e-3f;")]))
    files = [load_file(endless), load_file(right)]
    (report,) = bench_kernels(
        files, [None, None], [device.index], workloads=[WORKLOADS[2]], rounds=1, silence=25, tiny=True
    )
    assert list(report.ended) == ["endless.cl"]
    assert report.ended["endless.cl"].startswith("the kernel did not end")
    assert not report.ok
    (record,) = report.workloads
    assert {e["name"] for e in record["entries"] if e["kind"] == "kernel"} == {"mine.cl", OUR_PLAIN}


@pytest.mark.parametrize("silences", [1, 2])
def test_a_silence_that_is_no_kernels_fault(
    device: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silences: int
) -> None:
    """A busy machine may not answer in time: the child is run again, once, and no kernel is blamed."""
    answers = [ChildResult("timeout", reason="no answer in 60 s", stage=f"checking {OUR_PLAIN} on decode")] * silences
    answers.append(ChildResult("ok"))
    monkeypatch.setattr(child, "run", lambda *given, **more: answers.pop(0))
    (report,) = bench_kernels([load_file(write(tmp_path, ROTATION))], [None], [device.index])
    assert report.ended == {}
    assert report.problem == ("" if silences == 1 else "no answer in 60 s")


@pytest.mark.one_in(8)
@pytest.mark.parametrize("workload", ["prefill-fresh/f32/neox/out/forward", WORKLOADS[2]])
def test_every_timed_call_has_to_write_its_output(device: DeviceInfo, tmp_path: Path, workload: str) -> None:
    """Without audited calls, too: by damaged outputs alone, at new positions in each call and with a single set."""
    path = write(tmp_path, COUNT + "  if (calls > 40 && calls % 5 == 1 && slot == 3) return;\n" + ROTATION)
    entry = timed(device, path, workload, audited=False)
    assert entry.problem.startswith("a timed call, whose output was damaged before it: ")
    right = timed(device, write(tmp_path, COUNT + ROTATION), workload, audited=False)
    assert right.problem == ""
