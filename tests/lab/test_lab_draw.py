"""Cases drawn for a kernel: what they cover, and wrong kernels that only they find."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from itertools import combinations
from pathlib import Path

import pytest
from lab_kernels import POSITIONS, TABLES, changed

from clrope import ConfigError, DeviceInfo
from clrope.lab.lab_draw import MOST_ELEMENTS, draw
from clrope.lab.lab_kernel import LabFile, load_file
from clrope.lab.lab_run import LabRun
from clrope.lab.lab_trial import LabTrial
from clrope.suite.case import Case, parse_case
from clrope.suite.rope_trial import CaseLine

pytestmark = pytest.mark.usefixtures("signatures_in_this_process")

SEED = 1
#: The kernel of `clrope lab --new`, with the arguments that mistakes depend on.
PLAIN = changed(
    resources.files("clrope.lab").joinpath("templates", "simple.cl").read_text(encoding="utf-8"),
    [("KERNEL", "mine"), ("// lab: global_size", "// lab: batches = batch\n// lab: global_size"),
     ("const int direction)",
      "const int direction,\n    const int heads, const int head_dim, const int in_place, const int batches)")],
)  # fmt: skip
#: Exact angles from positions.
STEPS = """\
__kernel void mine(__global const float *x, __global float *y, __global const int *positions,
                   __global const ulong *step, const float magnitude, const int heads, const int head_dim,
                   const int n_dims, const float direction, const int neox) {
  const int slot = get_global_id(0), h = get_global_id(1), r = get_global_id(2), pairs = n_dims / 2;
  x += ((long)r * heads + h) * head_dim;
  y += ((long)r * heads + h) * head_dim;
  if (slot >= pairs) {
    y[slot + pairs] = x[slot + pairs];
    return;
  }
  const long position = positions[r];
  const float turn = (float)(long)((ulong)position * step[slot]) * 0x1p-63f;
  const float c = cospi(turn) * magnitude, s = sinpi(turn) * magnitude * direction;
  const int i = neox ? slot : 2 * slot, j = neox ? slot + pairs : 2 * slot + 1;
  const float p = x[i], q = x[j];
  y[i] = p * c - q * s;
  y[j] = p * s + q * c;
}
"""
STORE = "  STORE(a * c - b * s,"
#: (kernel, text, what it is replaced by): each is right but where two features meet. None leaves its buffers, as these
#: tests run in one process.
WRONG = {
    "offset of y without one of x": (PLAIN, "y += y_offset", "y += (x_offset ? y_offset : 0)"),
    "n_offs of NORMAL pairs": (PLAIN, "first = n_offs + 2 * slot", "first = 2 * slot"),
    "backward in place": (PLAIN, "* direction", "* (in_place ? 1 : direction)"),
    "elements that are copied with a stride": (
        PLAIN, "LOAD(x + copied * x_element)", "LOAD(x + copied * (n_offs ? 1 : x_element))"),
    "stride of batches of one token": (PLAIN, "batch * x_batch", "batch * (tokens == 1 ? 0 : x_batch)"),
    "positions of batches with many heads": (PLAIN, "batch * row_stride", "(heads > 8 ? 0 : batch * row_stride)"),
    "odd head_dim in float16": (
        PLAIN, STORE, f"#ifdef STORAGE_F16\n  if (head_dim % 2 && slot == 0) return;\n#endif\n{STORE}"),
    "long heads": (PLAIN, STORE, f"  if (head_dim > 256 && !in_place && slot > 0) return;\n{STORE}"),
    "33 heads": (PLAIN, STORE, f"  if (heads % 8 == 1 && head > 0 && head == heads - 1) return;\n{STORE}"),
    "41 tokens of several batches": (
        PLAIN, STORE, f"  if (tokens % 8 == 1 && token > 0 && batch == 1 && token == tokens - 1) return;\n{STORE}"),
    "float64 in float32": (PLAIN, "STORE(a * c - b * s,", "STORE((float)(a * c - b * s),"),
    "negative strides of heads": (PLAIN, "head * x_head;", "head * max(x_head, 0L);"),
    "subnormals with a stride": (
        PLAIN, "STORE(a * c - b * s,", "STORE(x_element != 1 && fabs(a * c - b * s) < 6e-5f ? 0 : a * c - b * s,"),
    "odd pairs in place": (PLAIN, STORE, f"  if (in_place && pairs % 2 && slot == pairs - 1) return;\n{STORE}"),
    "writes between heads": (
        PLAIN, STORE, f"  if (head + 1 < heads && y_head > 0) STORE(b, y + head_dim * y_element);\n{STORE}"),
    "pairs that are not a multiple of 8": (PLAIN, STORE, f"  if (pairs > 8 && slot >= pairs / 8 * 8) return;\n{STORE}"),
    "reads behind the tables": (PLAIN, "= cos_table[at]", "= cos_table[at] + 0 * cos_table[at + 1]"),
    "unsigned positions": (POSITIONS, "(float)position", "(float)(uint)position"),
    "freq_scale without YaRN": (POSITIONS, "theta *= freq_scale;", "if (ext_factor != 0) theta *= freq_scale;"),
    "attn_factor with YaRN": (POSITIONS, "magnitude *= 1.0f", "magnitude = 1.0f"),
    "late factors": (POSITIONS, "/ freq_factors[slot]", "/ (slot > 32 ? 1.0f : freq_factors[slot])"),
    "freq_base backward": (POSITIONS, "pow(freq_base", "pow(direction < 0 ? 10000.0f : freq_base"),
    "positions of one head": (POSITIONS, "positions[r]", "positions[heads == 1 ? 0 : r]"),
    "positions in float32": (STEPS, "(ulong)position", "(ulong)(long)(float)position"),
    "positions in 16 bits": (STEPS, "(ulong)position", "(ulong)(long)(short)position"),
}  # fmt: skip


def write(folder: Path, source: str) -> LabFile:
    path = folder / "mine.cl"
    path.write_text(source)
    return load_file(path)


@lru_cache
def drawn(source: str, folder: Path) -> tuple[list[Case], list[Case]]:
    """Return the small and the large cases for a kernel, drawn once; a mistake inside of it does not change them."""
    return draw(write(folder, source), SEED)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawn")


@pytest.mark.one_in(50)
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_are_wrong_where_two_features_meet(
    device: DeviceInfo, tmp_path: Path, folder: Path, name: str
) -> None:
    source, before, after = WRONG[name]
    cases, _ = drawn(source, folder)
    kernel = write(tmp_path, changed(source, [(before, after)])).kernel_object()
    assert any(LabTrial(case, SEED, kernel).run_kernel(device).status == "wrong" for case in cases)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("source", [PLAIN, POSITIONS, STEPS], ids=["tables", "positions", "steps"])
def test_right_kernels(device: DeviceInfo, tmp_path: Path, folder: Path, source: str) -> None:
    kernel = write(tmp_path, source).kernel_object()
    for case in drawn(source, folder)[0][::8]:
        outcome = LabTrial(case, SEED, kernel).run_kernel(device)
        assert outcome.status == "right", (case, outcome)


def features(case: Case) -> set[str]:
    """Return what a case has, as a reader of its line would say it."""
    d, n, s, b = case.ne_a
    assert case.xs is not None
    x, y = case.xs, case.ys or case.xs
    axes = {"element": d, "head": n, "token": s, "batch": b}
    dense = dict(zip(axes, (1, d, n * d, s * n * d), strict=True))
    found = {f"type {case.type}", "neox" if case.mode else "normal", f"forward {case.forward}", f"values {case.vals}"}
    found.add("in place" if case.inplace else "out of place")
    for at, axis in enumerate(axes):
        found |= {f"x {axis}"} if x[at] != dense[axis] else set()
        found |= {f"y {axis}"} if y[at] != dense[axis] and not case.inplace else set()
    found |= {"odd head"} if d % 2 else set()
    found |= {"partial" if case.n_dims < d - 1 else "whole", "tail first" if case.n_offs else "head first"}
    found.add("pairs of 8" if case.n_dims % 16 == 0 else "odd pairs")
    found |= {f"x at {case.xo > 0}"} | (set() if case.inplace else {f"y at {case.yo > 0}"})
    found |= {"own positions"} if case.pos in ("batch", "each", "offsets") and b > 1 else set()
    return found


@pytest.mark.one_in(4)
def test_every_pair_of_features_is_drawn(folder: Path) -> None:
    cases, _ = drawn(PLAIN, folder)
    assert all(case.ne_a[0] * case.ne_a[1] * case.ne_a[2] * case.ne_a[3] <= MOST_ELEMENTS for case in cases)
    seen = {frozenset(pair) for case in cases for pair in combinations(sorted(features(case)), 2)}
    known = sorted(set().union(*map(features, cases)))
    assert len(known) > 25
    missing = [sorted(pair) for pair in map(frozenset, combinations(known, 2)) if pair not in seen]
    alternatives = [{"neox", "normal"}, {"in place", "out of place"}, {"partial", "whole"}, {"pairs of 8", "odd pairs"},
                    {"tail first", "head first"}, {"whole", "tail first"}]  # fmt: skip
    words = ("type", "forward", "values", "x at", "y at")
    for one, two in missing:
        alike = any(one.startswith(word) and two.startswith(word) for word in words)
        assert alike or {one, two} in alternatives or "in place" in (one, two), (one, two)
        if "in place" in (one, two) and {one, two} not in alternatives:
            assert (one + two).replace("in place", "").startswith("y ")


@pytest.mark.one_in(8)
def test_a_seed_decides_what_is_drawn(tmp_path: Path, folder: Path) -> None:
    small, large = drawn(STEPS, folder)
    assert draw(write(tmp_path, STEPS), SEED) == (small, large)
    assert draw(write(tmp_path, STEPS), SEED + 1)[0] != small
    assert all(parse_case(str(case)) == case for case in small)
    assert any(case.ne_a[2] * case.ne_a[3] > 65536 for case in large)
    assert any(case.ne_a[0] * case.ne_a[1] * case.ne_a[2] * case.ne_a[3] > 1 << 24 for case in large)


@pytest.mark.one_in(2)
def test_the_package_itself_on_drawn_cases(device: DeviceInfo, folder: Path) -> None:
    """Their lines mean the same for `clrope verify`."""
    for case in drawn(PLAIN, folder)[0][::12]:
        outcome = CaseLine(case).prepare(SEED).run(device)
        assert outcome.status == "ok", (str(case), outcome)


@pytest.mark.one_in(4)
def test_a_drawn_case_is_repeated_by_its_line(device: DeviceInfo, tmp_path: Path) -> None:
    file = write(tmp_path, changed(TABLES, [("b * y_batch", "b * x_batch")]))
    report = LabRun(file, suites=["drawn"], seed=SEED, stop_at_first=True).on_devices([device.index])
    assert report.verdict == "NOT RIGHT"
    first = report.devices[0].first_failure
    assert first is not None
    assert first.suite == "drawn"
    again = LabRun(file, seed=SEED, text=first.case).on_devices([device.index]).devices[0]
    assert [(r.case, r.outcome) for r in again.results] == [(first.case, first.outcome)]


def test_what_was_not_varied_is_named(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    path = write(tmp_path, changed(TABLES, [("__kernel", "// lab: requires heads == 4\n__kernel")])).path
    line = "ROPE(type=f32,ne_a=[16,4,3,2],n_dims=12,mode=2,n_ctx=99,fs=1,ef=0,af=1,ff=0,v=0)"
    with pytest.raises(SystemExit) as ended:
        check_kernel(str(path), device=[device.index], text=line, json_file=str(tmp_path / "report.json"))
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "NOT SHOWN: " in out
    assert "n_dims had 1 of 3 values" in out
    assert "0 of 0 published cases and 1 drawn cases" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["ok"]) == ("NOT SHOWN", False)
    assert report["coverage"]["missing"]["tokens"] == [1, 3]
    assert report["coverage"]["pinned"]["heads"] == [4]


@pytest.mark.one_in(12)
def test_what_is_pinned_is_said(device: DeviceInfo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clrope.cli.lab_command import check_kernel

    path = write(tmp_path, changed(STEPS, [("__kernel", "// lab: requires heads == 4\n__kernel")])).path
    check_kernel(str(path), device=[device.index], suite=["drawn"])
    out = capsys.readouterr().out
    assert "checked only where it requires: heads == 4" in out
    assert "pinned by that: heads = 4" in out
    assert "\nRIGHT: 0 of 0 published cases and " in out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("xs=[1,16,64,128]", "xs: .* no elements overlap"),
        ("ys=[0,16,64,192]", "ys: .* no elements overlap"),
        ("ys=[1,16,64,192],inplace=1", "ys, yo: given together with inplace=1"),
        ("xs=[1,16,64,192],v=3", "xs: given together with v=3"),
        ("xo=-2", "xo: got -2, allowed are -1 to"),
    ],
)
def test_memory_that_no_case_can_have(fields: str, says: str) -> None:
    line = f"ROPE(type=f32,ne_a=[16,4,3,2],n_dims=12,mode=2,n_ctx=99,fs=1,ef=0,af=1,ff=0,v=0,{fields})"
    with pytest.raises(ConfigError, match=says):
        parse_case(line.replace("v=0,", "") if "v=3" in fields else line)
