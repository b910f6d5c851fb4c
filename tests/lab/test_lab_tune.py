"""`clrope tune --kernel`: combinations that are wrong, or end badly, are not chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_kernels import TABLES, changed

from clrope import ConfigError, DeviceInfo
from clrope.cli.bench import bench
from clrope.cli.tune import tune_devices
from clrope.lab.lab_kernel import load_file
from clrope.lab.lab_tune import BATCH, CUT, FINALISTS, TriedSetting, _batch_size, _finalists, tune_file

WORKLOADS = ("decode-64/f32/neox/out/forward", "prefill/f16/neox/out/forward")
#: Two of six combinations are right.
PARAMETERS = """\
// lab: tune WRONG = 0, 1
// lab: tune END = 0, 1, 2
#if END == 1
#define STEP __builtin_trap();
#elif END == 2
#define STEP undeclared;
#else
#define STEP
#endif
"""


def write(folder: Path, text: str = PARAMETERS) -> Path:
    path = folder / "mine.cl"
    path.write_text(
        text + changed(TABLES, [("  y[i] = p * c - q * s;", "  STEP\n  y[i] = p * c - (WRONG ? -q : q) * s;")])
    )
    return path


@pytest.mark.one_in(16)
def test_combinations(device: DeviceInfo, tmp_path: Path) -> None:
    (report,) = tune_file(load_file(write(tmp_path)), None, [device.index], workloads=WORKLOADS, tiny=True)
    assert (report.problem, report.left) == ("", [])
    failed = {t.name: t.failed for t in report.tried}
    assert next(iter(failed)) == "WRONG=0 END=0"
    assert len(failed) == 6
    assert failed["WRONG=0 END=0"] == ""
    assert failed["WRONG=1 END=0"].startswith("wrong: ")
    for wrong in (0, 1):
        assert "SIGILL" in failed[f"WRONG={wrong} END=1"]
        assert failed[f"WRONG={wrong} END=2"].startswith("error: BuildError")
    best = report.best
    assert best is report.tried[0]
    assert list(best.shares) == list(best.gbs) == [WORKLOADS[0]]
    assert best.refused == [WORKLOADS[1]]
    assert best.speed > 0


@pytest.mark.one_in(16)
def test_what_there_is_no_time_for_is_said(device: DeviceInfo, tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text("// lab: tune WIDTH = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\n" + TABLES)
    file = load_file(path)
    (report,) = tune_file(file, None, [device.index], workloads=WORKLOADS[:1], budget=0, tiny=True)
    assert report.tried[0].name == "WIDTH=1"
    assert len(report.left) == 8
    assert sorted(report.left + [t.name for t in report.tried]) == sorted(f"WIDTH={n + 1}" for n in range(10))


def test_the_next_batch_leaves_time_to_measure_the_best_again() -> None:
    assert _batch_size(1e9, 1.0, 0, 2) == BATCH
    assert _batch_size(0.0, 1.0, 0, 2) == 0
    assert _batch_size(9.9, 1.0, 0, 2) == 0, "one more, and three three times over"
    assert _batch_size(10.0, 1.0, 0, 2) == 1
    assert _batch_size(23.0, 1.0, 0, FINALISTS) == 2
    assert _batch_size(25.0, 1.0, 1, FINALISTS) == 0, "and a copy four times over"
    assert _batch_size(27.0, 1.0, 1, FINALISTS) == 2
    assert _batch_size(-5.0, 1.0, 0, 20) == 0


def tried(name: str, *shares: float) -> TriedSetting:
    return TriedSetting(name, {}, dict(zip("abc", shares, strict=False)))


def test_the_fastest_and_the_default_are_measured_again() -> None:
    slow, fast = tried("default", 0.3), [tried(f"k{n}", 0.9 - n / 100) for n in range(FINALISTS + 2)]
    wrong = tried("wrong", 2.0)
    wrong.failed = "wrong: values"
    some = [slow, *reversed(fast), wrong, tried("none"), tried("far", 0.9 / CUT - 0.01)]
    assert [t.name for t in _finalists(some)] == ["default", *(f"k{n}" for n in range(FINALISTS))]
    assert _finalists([wrong]) == []
    # A mean over fewer workloads is another mean.
    part, whole = tried("part", 0.9), tried("whole", 0.5, 0.5)
    part.refused = ["b"]
    assert _finalists([part, whole]) == [whole]
    assert part.failed == "cannot express b"


@pytest.mark.one_in(12)
def test_the_command(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cl"
    path.write_text(
        "// lab: tune GROUP = 1, 2\n// lab: local_size 1, 1, GROUP\n// lab: requires rows % GROUP == 0\n" + TABLES
    )
    tune_devices(names=[device.index], kernel=str(path), workload=[WORKLOADS[0]], quiet=True, seed=1)
    out = capsys.readouterr().out
    assert "fastest: GROUP=" in out
    assert "--option=-DGROUP=" in out
    assert "measured again, side by side" in out
    tune_devices(names=[device.index], kernel=str(path), workload=[WORKLOADS[0]], quiet=True, seed=1, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "clrope.lab.tune/1"
    assert {t["setting"]["GROUP"] for t in report["devices"][0]["tried"]} == {1, 2}


def test_refusals_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.cl"
    path.write_text(TABLES)
    with pytest.raises(ConfigError, match="has no tunable parameter; add a line `// lab: tune WIDTH = 4, 8`"):
        tune_devices(kernel=str(path))
    with pytest.raises(ConfigError, match="--workload: given without --kernel"):
        tune_devices(workload=[WORKLOADS[0]])


@pytest.mark.one_in(12)
def test_a_kernel_file_in_the_benchmark(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong, ends = (tmp_path / f"{name}.cl" for name in ("right", "wrong", "ends"))
    right.write_text(TABLES)
    wrong.write_text(changed(TABLES, [("p * c - q * s", "p * c")]))
    ends.write_text(changed(TABLES, [("  y[i] =", "  __builtin_trap();\n  y[i] =")]))
    more = {"device": [device.index], "workload": [WORKLOADS[0]], "rounds": 1, "no_peers": True, "quiet": True}
    with pytest.raises(SystemExit) as ended:
        bench(kernel=[str(right), str(wrong)], tiny=True, **more)  # type: ignore[arg-type]
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "Kernel files" in out
    for words in ("right.cl", "wrong.cl", "tensor 0, sampled tokens"):
        assert words in out
    from clrope.errors import DeviceError

    with pytest.raises(DeviceError, match=r"--kernel: ends\.cl on .*SIGILL"):
        bench(kernel=[str(ends)], tiny=True, **more)  # type: ignore[arg-type]
