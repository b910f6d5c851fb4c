"""Runs of the lab in child processes: crashes, endless loops, build errors and cheats have their verdict by name."""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from helpers import POISON, bits
from lab_kernels import PLAIN, POSITIONS, TABLES, changed

import clrope
from clrope import ConfigError, DeviceInfo, Rope, RopeConfig, UnsupportedError
from clrope.device import child
from clrope.device.child import ChildResult
from clrope.lab import load
from clrope.lab.lab_kernel import load_file
from clrope.lab.lab_run import LabDeviceReport, LabRun
from clrope.lab.lab_trial import LabTrial
from clrope.suite.case import parse_case
from clrope.suite.conformance import short_name

#: Three cases of a suite that the kernels by tables can express, and one that they cannot.
FEW = "type=f32 mode=2 n_dims=64 n_ctx=4096,fs=1.000000,ef=0.000000,af=1.000000,ff=0,v=0,bf=32.000000,pos"
ROTATION = "  y[i] = p * c - q * s;\n  y[j] = p * s + q * c;"
STATE = "// lab: options -cl-std=CL2.0\n__global float kept[1 << 16];\n"
PLACE = "  const int at = (((r * heads + h) * pairs + slot) * 2) % 65536;\n"
#: Cheats with a memory of their own, and what the diagnosis has to say.
CHEATS = {
    "replays": (
        PLACE + "  if (kept[at] == 0 && kept[at + 1] == 0) {\n"
        "    kept[at] = p * c - q * s; kept[at + 1] = p * s + q * c;\n  }\n"
        "  y[i] = kept[at]; y[j] = kept[at + 1];", "a cached answer is replayed"),
    "leaves it to the next call": (
        PLACE + "  y[i] = kept[at]; y[j] = kept[at + 1]; kept[at] = p * c - q * s; kept[at + 1] = p * s + q * c;",
        "the work is left to the next call"),
    "only the first call": (
        PLACE + "  if (kept[at]) return;\n  kept[at] = 1;\n" + ROTATION, "results depend on the call or on poison"),
}  # fmt: skip


def run(path: Path, device: DeviceInfo, **more: object) -> LabDeviceReport:
    made = LabRun(load_file(path), None, ["modes"], text=FEW, **more)  # type: ignore[arg-type]
    (report,) = made.on_devices([device.index]).devices
    return report


def write(folder: Path, source: str) -> Path:
    path = folder / "mine.cl"
    path.write_text(source)
    return path


def test_a_right_kernel(device: DeviceInfo, tmp_path: Path) -> None:
    report = run(write(tmp_path, TABLES), device)
    assert report.ok
    assert report.verdict("modes") == "right"
    assert report.counts("modes")["right"] >= 3
    assert report.first_failure is None


@pytest.mark.parametrize(
    ("edit", "verdict", "said"),
    [
        ("  volatile int k = 1; while (k) { if (k > 5) k = 1; k++; }\n", "loop", "did not end"),
        ("  y[(long)1 << 40] = 1;\n", "crash", "SIG"),
        ("  y[i] = undeclared;\n", "build error", "mine.cl:21"),
        ("  __builtin_trap();\n", "crash", "SIGILL"),
    ],
)
@pytest.mark.one_in(16)
def test_what_ends_badly(device: DeviceInfo, tmp_path: Path, edit: str, verdict: str, said: str) -> None:
    path = write(tmp_path, changed(TABLES, [("  y[i] =", f"{edit}  y[i] =")]))
    # Short only for the kernel that never ends: on a busy machine the others need longer to begin.
    report = run(path, device, silence=8.0 if verdict == "loop" else 120.0, stop_at_first=True)
    assert report.verdict("modes") == verdict
    assert report.first_failure is not None
    assert said in report.first_failure.outcome.detail
    assert not report.ok
    # This process is unharmed.
    x = np.random.default_rng().standard_normal((1, 2, 2, 8)).astype(np.float32)
    assert clrope.compare(clrope.rope(x, 3, mode="neox", device=device), clrope.reference.rope(x, 3, NEOX)).nmse < 1e-12


NEOX = RopeConfig("neox")


@pytest.mark.parametrize("silences", [1, 2])
def test_a_silence_before_the_first_case(
    device: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silences: int
) -> None:
    """No kernel has run, so none is called endless; the child is started again, once, with more patience."""
    reason = "no answer in 6 s while looking for the device"
    answers = [ChildResult("timeout", reason=reason, stage="looking for the device")] * silences
    answers.append(ChildResult("ok"))
    patience = []

    def answer(*given: object, silence: float, **more: object) -> ChildResult:
        patience.append(silence)
        return answers.pop(0)

    path = write(tmp_path, TABLES)
    load(path)  # in a child, too, which is not started again for the same text
    monkeypatch.setattr(child, "run", answer)
    report = run(path, device, silence=6.0)
    assert patience[0] == 6
    assert patience[1] > 30
    if silences == 1:
        assert report.results == []
    else:
        assert report.verdict("modes") == "driver error"
        assert report.first_failure is not None
        assert report.first_failure.outcome.detail == reason


def test_a_kernel_that_aborts(device: DeviceInfo, tmp_path: Path) -> None:
    """Intel's runtime finds the C library's `abort`, which ends the process; others do not build the kernel."""
    path = write(tmp_path, "void abort(void);\n" + changed(TABLES, [("  y[i] =", "  abort();\n  y[i] =")]))
    report = run(path, device, stop_at_first=True)
    assert not report.ok
    assert report.first_failure is not None
    said = {"crash": "SIGABRT", "build error": "abort"}[report.verdict("modes")]
    assert said in report.first_failure.outcome.detail


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_with_a_memory(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    body, said = CHEATS[name]
    path = write(tmp_path, STATE + changed(TABLES, [(ROTATION, body)]))
    outcome = LabTrial(parse_case(PLAIN), secrets.randbits(32), load(path)).run_kernel(device)
    assert outcome.status == "wrong"
    assert said in outcome.diagnosis[0], outcome


def test_a_write_after_the_event(device: DeviceInfo, tmp_path: Path) -> None:
    """Every call gives right values, and each changes the result of the call before it."""
    state = "// lab: options -cl-std=CL2.0\n__global float *__global earlier;\n"
    body = (
        ROTATION
        + "\n  if (slot + h + r == 0) {\n    if (earlier && earlier != y) earlier[1] = 0.25f;\n    earlier = y;\n  }"
    )
    path = write(tmp_path, state + changed(TABLES, [(ROTATION, body)]))
    outcome = LabTrial(parse_case(PLAIN), secrets.randbits(32), load(path)).run_kernel(device)
    assert outcome.status == "wrong"
    assert outcome.diagnosis[0].startswith("the first call's result changed after its event"), outcome


def test_results_that_depend_on_the_call_count(device: DeviceInfo, tmp_path: Path) -> None:
    """Within the limit, but of other bits: the third call differs from the first."""
    body = (
        "  if (slot + h + r == 0) kept[0] += 1;\n" + ROTATION + "\n  if (kept[0] >= 3) y[i] *= 1.0f + 6e-8f * (i == 0);"
    )
    path = write(tmp_path, STATE + changed(TABLES, [(ROTATION, body)]))
    outcome = LabTrial(parse_case(PLAIN), secrets.randbits(32), load(path)).run_kernel(device)
    assert (outcome.status, outcome.place) == ("wrong", None)
    assert "depend on call count" in outcome.diagnosis[0]


@pytest.mark.parametrize("mode", ["neox", "normal"])
@pytest.mark.parametrize("source", [TABLES, POSITIONS], ids=["tables", "positions"])
def test_rope_with_a_kernel(
    device: DeviceInfo, tmp_path: Path, source: str, mode: str, rng: np.random.Generator
) -> None:
    kernel = load(write(tmp_path, source))
    config = RopeConfig(mode, n_dims=24, freq_base=5e5)  # type: ignore[arg-type]
    op = Rope(config, device, kernel=kernel)
    x = rng.uniform(-1, 1, (2, 5, 3, 40)).astype(np.float32)
    before = x.copy()
    for positions in (11, rng.integers(0, 999, 5), rng.integers(0, 999, (2, 5))):
        out = np.empty_like(x)
        bits(out)[...] = POISON
        assert op(x, positions, out=out) is out
        want = clrope.reference.rope(x, positions, config)
        assert clrope.compare(out, want).nmse < 1e-7
        assert clrope.compare(op(x, positions), want).nmse < 1e-7
    assert (x == before).all()
    plan = op.plan(x, 3)
    assert [str(v) for v in plan.variants] == ["lab:mine"]
    assert clrope.compare(plan.run(positions=8), clrope.reference.rope(x, 8, config)).nmse < 1e-7
    with pytest.raises(UnsupportedError, match="cannot express f16"):
        op(x.astype(np.float16), 1)


def test_a_strided_host_array_is_copied_for_a_kernel_without_strides(
    device: DeviceInfo, tmp_path: Path, rng: np.random.Generator
) -> None:
    op = Rope(NEOX, device, kernel=load(write(tmp_path, POSITIONS)))
    x = rng.uniform(-1, 1, (5, 6, 32)).astype(np.float32)[::2, 1:4]
    assert clrope.compare(op(x, 9), clrope.reference.rope(x, 9, NEOX)).nmse < 1e-7


def test_kernel_and_variant_exclude_each_other(tmp_path: Path) -> None:
    kernel = load(write(tmp_path, TABLES))
    with pytest.raises(ConfigError, match="kernel: given together with variant"):
        Rope(NEOX, kernel=kernel, variant=clrope.kernels.variant.STRIDED)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="kernel: got str"):
        Rope(NEOX, kernel="mine.cl")  # type: ignore[arg-type]


#: The path or the address of llama.cpp's file.
ROPE_CL = os.environ.get("CLROPE_TEST_GGML_ROPE_CL", "")


@pytest.fixture
def rope_cl(tmp_path: Path) -> Path:
    if not ROPE_CL:
        pytest.skip("CLROPE_TEST_GGML_ROPE_CL is not set: the path or the https address of llama.cpp's rope.cl")
    if not ROPE_CL.startswith("https://"):
        return Path(ROPE_CL)
    try:
        with urllib.request.urlopen(ROPE_CL, timeout=30) as answer:
            text = answer.read()
    except OSError as error:
        pytest.skip(f"{ROPE_CL} cannot be fetched: {error}")
    path = tmp_path / "rope.cl"
    path.write_bytes(text)
    return path


def test_ggml_rope_cl(device: DeviceInfo, rope_cl: Path) -> None:
    if "cl_khr_fp16" not in device.cl_device.extensions:
        pytest.skip(f"{device.name} has no cl_khr_fp16, which rope.cl needs")
    file = load_file(rope_cl, "ggml-opencl", options=["-cl-std=CL2.0", "-Wno-incompatible-pointer-types"])
    (report,) = LabRun(file, "ggml-opencl").on_devices([device.index]).devices
    assert report.verdict("seed") == "right"
    assert report.counts("modes")["right"] > 90
    failed = [r for r in report.results if r.outcome.status == "wrong"]
    drifting = [r for r in failed if "angle drift" in r.outcome.diagnosis[0]]
    assert any("pos=far" in r.case for r in drifting)
    # Its vision kernel drives pairs by two of the four sections.
    assert {r.case for r in failed} - {r.case for r in drifting} <= {r.case for r in failed if "mode=24" in r.case}


@pytest.mark.one_in(8)
def test_the_command(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    path = write(tmp_path, changed(TABLES, [("#ifdef NEOX", "#ifndef NEOX")]))
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(path), device=[device.index], suite=["modes"], text=FEW)
    assert ended.value.code == 1
    out = capsys.readouterr().out
    for part in ("wrong", "diagnosis: pairs swapped", "(b, s, n, d) =", "NOT RIGHT", short_name(device), "--seed"):
        assert part in out
    # Three right cases of one shape show little.
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(write(tmp_path, TABLES)), device=[device.index], suite=["modes"], text=FEW, json_file="-")
    assert ended.value.code == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "clrope.lab/1"
    assert (report["ok"], report["verdict"]) == (False, "NOT SHOWN")
    assert report["coverage"]["missing"]["tokens"] == [1, 3]
    assert report["devices"][0]["verdicts"] == {"modes": "right"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"counts": True, "races": True}, "--races: given together with --counts; each is a run of its own"),
        ({"bench": True, "watching": True}, "--watch: given together with --bench; each is"),
        ({"rounds": 9}, "--rounds: given without --bench"),
        ({"races": True, "suite": ["seed"]}, "--suite: given together with --races, which does not use it"),
        ({"npu": "edge", "text": "f32"}, "--filter: given together with --npu, which"),
        ({"counts": True, "device": ["pocl"]}, "--device: given together with --counts, which"),
    ],
)
def test_options_that_exclude_each_other(tmp_path: Path, given: dict[str, object], says: str) -> None:
    from clrope.cli.lab_command import check_kernel

    with pytest.raises(ConfigError, match=says):
        check_kernel(str(write(tmp_path, TABLES)), **given)  # type: ignore[arg-type]


SINE = "sin_table[at] * direction;"
FIRST = "STORE(a * c - b * s,"
#: Changes of the kernel that `clrope lab --new` writes, each wrong only where short, dense and plain tensors do not
#: show it, and the case of the suite `modes` that does. "nothing" is the kernel as it is.
HIDDEN = {
    "nothing": ("", "", "lo=nsbd"),
    "tokens from 2**16 on": (SINE, f"token > 65535 ? 0 : {SINE}", "ne_a=[4,1,70000,1]"),
    "heads from 256 on": (SINE, f"head > 255 ? 0 : {SINE}", "ne_a=[8,300,3,2]"),
    "batches from 256 on": (SINE, f"batch > 255 ? 0 : {SINE}", "ne_a=[16,1,3,270]"),
    "stride of an element of x": (" * x_element", "", "v=4 mode=0 o=1"),
    "stride of an element of y": (" * y_element", "", "v=4 mode=2 o=1"),
    "stride of a head of y": ("head * y_head", "head * x_head", "lo=sbnd"),
    "stride of a batch of y": ("batch * y_batch", "batch * tokens * y_token", "lo=dnsb mode=0"),
    "clamps": (FIRST, "STORE(clamp(a * c - b * s, (REAL)-100, (REAL)100),", "vals=wide type=f32 mode=0"),
    "hides NaN": (FIRST, "STORE(isnan(a * c - b * s) ? 0 : a * c - b * s,", "vals=wide type=f16 mode=2"),
    "flushes halves": (FIRST, "STORE(fabs(a * c - b * s) < 6e-5f ? 0 : a * c - b * s,", "vals=wide type=f16 mode=0"),
    "loses -0": ("STORE(LOAD(x + copied", "STORE(0.0f + LOAD(x + copied", "vals=wide type=f32"),
}  # fmt: skip


@pytest.mark.one_in(48)
@pytest.mark.parametrize("name", HIDDEN)
def test_kernels_that_are_wrong_in_rare_places(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    plain = resources.files("clrope.lab").joinpath("templates", "simple.cl").read_text(encoding="utf-8")
    plain = plain.replace("KERNEL", "mine")
    before, after, where = HIDDEN[name]
    assert before in plain
    path = write(tmp_path, plain.replace(before, after) if before else plain)
    (report,) = LabRun(load_file(path), None, ["modes"], text=where).on_devices([device.index]).devices
    assert report.verdict("modes") == ("wrong" if before else "right"), report.first_failure
