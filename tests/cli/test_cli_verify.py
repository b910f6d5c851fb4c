"""`clrope verify`: what it prints where, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process

from clrope import DeviceInfo
from clrope.kernels.source import kernel_folder
from clrope.suite import conformance, rope_trial
from clrope.suite.fuzz import draw

ROOT = Path(__file__).parent.parent.parent
FEW = "type=f16 ne_a=[128,32,2,1] fs=1.0 ef=0.0 v=0"

Call = Callable[..., Any]


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("ROPE", "VALUES"))]


def test_verify_prints_a_line_for_each_case_and_device(call: Call, devices: tuple[DeviceInfo, ...]) -> None:
    done = call("verify", "--filter", FEW)
    assert done.exit_code == 0, done.stdout
    lines = lines_of(done.stdout)
    assert len(lines) == 4 * len(devices)
    assert all(line.endswith(": OK") for line in lines)
    grid = (ROOT / "clrope" / "suite" / "seed_grid.txt").read_text(encoding="utf-8")
    assert all(line.split(" # ")[0] in grid for line in lines)
    assert done.stdout.count("4/4") == len(devices) + 1
    assert (
        f"bit-identical: 4/4 cases between {', '.join(conformance.short_name(d) for d in devices)}, NumPy"
        in done.stdout
    )
    assert done.stdout.startswith("seed ")
    assert "ROPE" not in done.stderr


def test_verify_repeats_by_seed_and_writes_json(call: Call, device: DeviceInfo, tmp_path: Path) -> None:
    reports = []
    for name in ("one.json", "two.json"):
        done = call("verify", "--device", device.index, "--filter", FEW, "--seed", 11, "--json", tmp_path / name)
        assert done.exit_code == 0
        assert len(lines_of(done.stdout)) == 4
        reports.append(json.loads((tmp_path / name).read_text(encoding="utf-8")))
    first, second = reports
    assert first["seed"] == 11
    assert first["schema"] == "clrope.verify/1"
    assert [r["digest"] for r in first["results"]] == [r["digest"] for r in second["results"]]
    assert all(0 < r["nmse"] < r["limit"] == 6e-8 for r in first["results"])
    only = call("verify", "--device", device.index, "--filter", FEW, "--seed", 11, "--json", "-")
    assert [r["digest"] for r in json.loads(only.stdout)["results"]] == [r["digest"] for r in first["results"]]
    bad = call("verify", "--device", device.index, "--filter", FEW, "--json", tmp_path / "no" / "such.json")
    assert bad.exit_code == 2
    assert "cannot be written" in bad.stderr


def test_verify_several_suites(call: Call, device: DeviceInfo) -> None:
    done = call(
        "verify", "--device", device.index, "--suite", "types", "--suite", "seed", "--filter", "type=bf16 still"
    )
    assert done.exit_code == 0
    assert len(lines_of(done.stdout)) == 4
    assert "4/4" in done.stdout
    bad = call("verify", "--suite", "sead")
    assert bad.exit_code == 2
    assert bad.stderr.startswith("clrope: suite: got 'sead', allowed are seed")


@pytest.mark.one_in(6)
@pytest.mark.parametrize("words", [["--quiet"], ["--json", "-"], []])
def test_the_seed_is_told_before_a_driver_crashes(device: DeviceInfo, words: list[str]) -> None:
    crash = "from clrope.suite.fuzz import FuzzTrial; FuzzTrial.run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    code = f"import os, signal; {crash}\nfrom clrope.cli.main import main; main()"
    done = in_process("verify", "--fuzz", 2, "--device", device.index, *words, code=code)
    assert done.returncode == -9, done.stderr
    if words:
        said = re.fullmatch(
            r"clrope: seed (\d+); clrope verify --fuzz 2 --seed (\d+) runs these cases again\n", done.stderr
        )
        assert said, done.stderr
        assert said[1] == said[2]
        assert done.stdout == ""
    else:
        assert re.match(r"seed \d+; suites: fuzz\n", done.stdout)


def test_fuzz_is_quiet_and_writes_json(call: Call, devices: tuple[DeviceInfo, ...], seed: int, tmp_path: Path) -> None:
    done = call("verify", "--fuzz", 4, "--seed", seed, "--json", tmp_path / "report.json")
    assert done.exit_code == 0, done.stdout
    assert lines_of(done.stdout) == []
    assert "fuzz: 4 random cases" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (report["schema"], report["seed"], report["suites"]) == ("clrope.verify/1", seed, ["fuzz"])
    assert len(report["results"]) == 4 * len(devices)
    assert [row["device"] for row in report["summary"]] == [conformance.short_name(d) for d in devices]
    assert report["results"][0]["case"].split(" # ")[1].startswith(f"clrope verify --fuzz 1 --seed {seed}")
    for more in (("--suite", "seed"), ("--filter", "f16")):
        bad = call("verify", "--fuzz", 4, *more)
        assert bad.exit_code == 2
        assert bad.stderr.startswith(f"clrope: --fuzz: given together with {more[0]}, which chooses other cases")
    assert call("verify", "--fuzz", 0).exit_code == 2
    assert call("verify", "--fuzz", 1, "--device", "nonesuch").exit_code == 2


def test_a_wrong_fuzz_case_is_repeated_by_its_command(
    call: Call, device: DeviceInfo, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rope_trial.emulate_rope
    monkeypatch.setattr(rope_trial, "emulate_rope", lambda x, *rest, **more: -real(x, *rest, **more))
    first = next(s for s in count(seed) if draw(s).case.type != "f64" and not draw(s).refusal)
    done = call("verify", "--device", device.index, "--fuzz", 3, "--seed", first)
    assert done.exit_code == 1
    lines = lines_of(done.stdout)
    assert lines
    assert all(": FAIL, NMSE " in line and "the bits are not NumPy's" in line for line in lines)
    command = re.search(r"# clrope (verify --fuzz 1 --seed \d+)(, by the variant of \w+ tensors)? #", lines[-1])
    assert command is not None
    again = call(*command[1].split(), "--device", device.index)
    assert again.exit_code == 1
    assert lines_of(again.stdout) == lines[-1:]
    monkeypatch.undo()
    assert call(*command[1].split(), "--device", device.index).exit_code == 0


def test_verify_ends_with_2_for_a_device_that_cannot_be_used(call: Call, device: DeviceInfo) -> None:
    done = call("verify", "--device", device.index, "--device", "nonesuch", "--filter", FEW)
    assert done.exit_code == 2
    assert len(lines_of(done.stdout)) == 4
    assert "FAIL: device nonesuch: device 'nonesuch': no OpenCL device matches" in done.stdout
    assert call("verify", "--device", device.index, "--filter", "nothing like it").exit_code == 2


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        # Rotated the other way.
        (
            "angles.clh",
            "*sine = (quadrant & 2) != 0 ? -sn : sn;",
            "*sine = (quadrant & 2) != 0 ? sn : -sn;",
            ": FAIL, NMSE 1.",
        ),
        # A coefficient with a digit less: right by its error, but not in its bits.
        ("angles.clh", "-19.739208f", "-19.73921f", "FAIL: 4 cases differ in their bits"),
        # It does not build.
        ("storage.clh", "//", "no OpenCL C //", "kernel build failed on "),
    ],
)
def test_verify_ends_with_1_for_a_wrong_kernel(
    file: str, right: str, wrong: str, message: str, device: DeviceInfo, tmp_path: Path, process: Call
) -> None:
    folder = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), folder)
    text = (folder / file).read_text(encoding="utf-8")
    assert right in text
    (folder / file).write_text(text.replace(right, wrong, 1), encoding="utf-8")
    code = (
        "import pathlib; from clrope.kernels import source; "
        f"source.kernel_folder = lambda: pathlib.Path({str(folder)!r}); from clrope.cli.main import main; main()"
    )
    kind = "f32" if "coefficient" in message or "bits" in message else "f16"
    words = (
        "verify",
        "--device",
        device.index,
        "--filter",
        FEW.replace("f16", kind),
        "--json",
        str(tmp_path / "r.json"),
    )
    done = process(*words, code=code, PYOPENCL_NO_CACHE="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert not report["ok"]
    assert len(report["results"]) == 4
