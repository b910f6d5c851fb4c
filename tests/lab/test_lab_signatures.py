"""Kernels as people write them: what the compiler says of their arguments is what counts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from lab_kernels import TABLES, changed

import clrope
from clrope import BuildError, ConfigError, DeviceError, DeviceInfo, Rope, RopeConfig
from clrope.device import child
from clrope.device.child import ChildResult
from clrope.lab import load
from clrope.lab.lab_kernel import load_file

START = "// lab: requires neox\n// lab: requires n_dims == head_dim\n// lab: global_size pairs, heads, batch * tokens\n"
FLOATS = "__global const float *x, __global float *y, __global const float *cos_table, __global const float *sin_table"
NUMBERS = "int head_dim, int pairs"
BODY = """{
  int k = get_global_id(0), row = get_global_id(2);
  long at = ((long)row * get_global_size(1) + get_global_id(1)) * head_dim + k;
  float c = cos_table[row * pairs + k], s = sin_table[row * pairs + k], p = x[at], q = x[at + pairs];
  y[at] = p * c - q * s;
  y[at + pairs] = p * s + q * c;
}
"""
PLAIN = f"{START}__kernel void turn({FLOATS}, {NUMBERS}) {BODY}"
OF_STRUCTS = re.sub(r"\b([xy]\[[^]]*\])", r"\1.value", BODY)
#: Right kernels by what is unusual in them.
RIGHT = {
    "typedefs": (
        f"{START}typedef float real;\ntypedef __global const real *input;\ntypedef int number;\n__kernel void turn("
        f"input x, __global real *y, input cos_table, input sin_table, number head_dim, number pairs) {BODY}"
    ),
    "structs": (
        f"{START}typedef struct {{ float value; }} one;\nstruct two {{ float value; }};\n__kernel void turn("
        f"{FLOATS.replace('const float *x', 'const one *x').replace('float *y', 'struct two *y')}, {NUMBERS})"
        f" {OF_STRUCTS}"
    ),
    "qualifiers": (
        f"{START}kernel void turn(const global float *restrict const x, global float\t* __restrict__ const y,\n"
        f"  global const float volatile *cos_table, constant float *restrict sin_table, const unsigned head_dim,"
        f" short const pairs) {BODY}"
    ),
    "arrays": PLAIN.replace("*x", "x[]").replace("*y", "y[]"),
    "continued lines of Windows": "\ufeff" + PLAIN.replace(", __", ", \\\n__").replace("\n", "\r\n"),
    "a choice among arguments": PLAIN.replace(
        "int head_dim,", "\n#ifdef OTHER\n int other,\n#elif 1\n int head_dim,\n#endif\n"
    ),
    "macros": (
        f"{START}#define KERNEL __kernel void\n#define NAME turn\n#define IN(name) __global const float *name\n"
        f"#define TABLES_OF(a, b) IN(a), IN(b)\n#define NUMBERS {NUMBERS}\n"
        f"KERNEL NAME(IN(x), __global float *y, TABLES_OF(cos_table, sin_table), NUMBERS) {BODY}"
    ),
    "kernels that are none": (
        "#if 0\n__kernel void old(__global float *q) {}\n#endif\n"
        '__constant char text[] = "__kernel void fake(__global float *q) { /*";\n'
        f"// __kernel void remark(int a) {{}} \\\n still a remark: turn(\n/* turn( */\n{PLAIN}"
    ),
    "attributes": (
        f"{START}__attribute__((reqd_work_group_size(1, 1, 1))) __kernel __attribute__((vec_type_hint(float4)))\n"
        f"void turn({FLOATS}, {NUMBERS}, __attribute__((unused)) int tokens) {BODY}"
    ),
    "a second kernel": f"// lab: kernel turn\n__kernel void fill(__global float *q) {{ *q = 1; }}\n{PLAIN}",
    "remarks among arguments": PLAIN.replace("*x,", "*x, // the input, \u00e9 ??/ )\n /* ) int none, */"),
    "an enumeration": (
        f"{START}// lab: kind = 1\nenum kind {{ NONE, SOME }};\n"
        f"__kernel void turn({FLOATS}, enum kind kind, {NUMBERS}) {BODY.replace('p = x', 'p = kind * x')}"
    ),
    "a prototype and a helper": (
        f"float turn_one(float a);\nfloat turn_one(float a) {{ return a; }}\n"
        f"__kernel void turn({FLOATS}, {NUMBERS});\n{PLAIN.replace('= p * s', '= turn_one(p) * s')}"
    ),
    "a type T": PLAIN.replace("__kernel", "typedef float T;\n__kernel").replace("const float *x", "const T *x"),
    "an argument T": f"// lab: T = pairs\n{PLAIN.replace('int pairs', 'int T').replace('pairs', 'T', 0)}".replace(
        BODY, BODY.replace("pairs", "T")
    ),
    "pointers to vectors": (
        f"{START}typedef float4 floats;\ntypedef struct {{ float2 both[2]; }} four;\n"
        f"__kernel void turn({FLOATS.replace('const float *x', 'const floats *x4').replace('float *y', 'four *y4')},"
        f" {NUMBERS}) {BODY}".replace("{\n  int k", "{\n  __global const float *x = (__global const float *)x4;\n"
                                      "  __global float *y = (__global float *)y4;\n  int k")
        .replace(START, f"{START}// lab: x4 = x\n// lab: y4 = y\n")
    ),
    "numbers of macros": (
        f"{START.replace('pairs, heads', 'ceil_div(pairs, STEP) * WHOLE // 3, heads')}"
        "#define WHOLE 3\n#define BASE 2\n#if BASE > 4\n#define STEP 64\n#else\n#define STEP (1 << BASE >> 2)\n#endif\n"
        f"{PLAIN.removeprefix(START)}"
    ),
}  # fmt: skip


def write(folder: Path, source: str, name: str = "mine.cl") -> Path:
    path = folder / name
    path.write_bytes(source.encode())
    return path


def check_rotation(device: DeviceInfo, path: Path) -> None:
    """Rotate fresh numbers on the device, which also reads the signature, and compare with the reference."""
    config = RopeConfig("neox")
    x = np.random.default_rng().uniform(-1, 1, (2, 3, 2, 16)).astype(np.float32)
    file = load_file(path, device=device)
    file.check()
    out = Rope(config, device, kernel=file.kernel_object())(x, 5)
    assert clrope.compare(out, clrope.reference.rope(x, 5, config)).nmse < 1e-12
    with pytest.raises(clrope.UnsupportedError, match=r"f64 \(its x4? is float|no fp64"):
        Rope(config, device, kernel=file.kernel_object())(x.astype(np.float64), 5)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", RIGHT)
def test_kernels_as_people_write_them(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    check_rotation(device, write(tmp_path, RIGHT[name]))


def test_arguments_in_a_file_that_is_included(device: DeviceInfo, tmp_path: Path) -> None:
    write(tmp_path, f"{FLOATS},\n{NUMBERS}", "arguments.h")
    path = write(tmp_path, PLAIN.replace(f"{FLOATS}, {NUMBERS}", '\n# include "arguments.h"\n'))
    check_rotation(device, path)
    assert [a.name for a in load_file(path).check().arguments][-2:] == ["head_dim", "pairs"]


def test_structs_of_halves_are_for_halves(device: DeviceInfo, tmp_path: Path) -> None:
    """What a struct consists of decides which storage types a kernel can have."""
    structs = "typedef struct { ushort4 v; } bits;\ntypedef struct { struct { double d; } v[2]; } doubles;\n"
    source = PLAIN.replace("__kernel", structs + "__kernel").replace(BODY, "{}")
    path = write(tmp_path, source.replace("const float *x", "const bits *x").replace("float *y", "doubles *y"))
    signature = load_file(path, device=device).check()
    assert [a.type for a in signature.arguments[:2]] == ["short4", "double2"]
    assert str(signature).startswith("turn(global bits *x, global doubles *y, global float *cos_table")


# -- messages ----------------------------------------------------------------------------------------------------------


def test_all_unknown_arguments_are_named_at_once(tmp_path: Path) -> None:
    arguments = "__global float *in, __global float *res, __global float *cos, __global float *sinetable,"
    more = "__global int *pos, int d, int nhead, int T1, __local float *kept, __global float *Xs"
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, f"\n__kernel void turn({arguments}\n {more}) {{}}"))
    first, found, known, do, *lines = str(raised.value).splitlines()
    names = ["in", "res", "cos", "sinetable", "pos", "d", "nhead", "T1", "kept", "Xs"]
    assert first == f"kernel: unknown arguments {', '.join(map(repr, names))} (contract 'clrope')"
    assert found.startswith("  found:    mine.cl:2: turn(global float *in, ")
    assert known.startswith("  known:    x, y, ")
    assert do == "  what to do: add to the file, with the right meanings:"
    meanings = ["x", "y", "cos_table", "sin_table", "row_numbers", "head_dim", "heads", "EXPRESSION", "BYTES"]
    want = [f"// lab: {'local ' if n == 'kept' else ''}{n} = {m}" for n, m in zip(names, meanings, strict=False)]
    assert [line.strip() for line in lines][:-1] == want


def test_the_lines_of_a_message_can_be_pasted(device: DeviceInfo, tmp_path: Path) -> None:
    source = PLAIN
    for old, new in (("*x", "*src"), ("*y", "*dst"), (" x[", " src["), (" y[", " dst["), ("head_dim", "hd")):
        source = source.replace(old, new).replace("n_dims == hd", "n_dims == head_dim")
    path = write(tmp_path, source)
    with pytest.raises(ConfigError, match="unknown arguments 'src', 'dst', 'hd'") as raised:
        load_file(path, device=device).check()
    lines = [line for line in str(raised.value).splitlines() if "// lab:" in line]
    check = load_file(write(tmp_path, "\n".join([*lines, source])), device=device)
    check.check()
    x = np.random.default_rng().uniform(-1, 1, (1, 3, 2, 16)).astype(np.float32)
    out = Rope(RopeConfig("neox"), device, kernel=check.kernel_object())(x, 5)
    assert clrope.compare(out, clrope.reference.rope(x, 5, RopeConfig("neox"))).nmse < 1e-12


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([("float *y", "short *y")], r"f32 \(its y is short\)"),
        ([("__global float *y", "float y"), (BODY, "{}")], r"argument 'float y': its meaning is a pointer"),
        ([("__global float *y", "__global float *x2"), (BODY, "{}")], "unknown argument 'x2'"),
        ([(START, START + "// lab: y = x\n")], "turn takes no y\n(.|\n)*`// lab: dst = y`"),
        ([("int pairs", "float4 pairs"), (BODY, "{}")], r"argument 'float4 pairs': 'float4' cannot hold 8"),
    ],
)
def test_messages_name_the_argument_that_is_wrong(
    device: DeviceInfo, tmp_path: Path, edits: list[tuple[str, str]], says: str
) -> None:
    file = load_file(write(tmp_path, changed(PLAIN, edits)), device=device)

    def use() -> None:
        file.check()
        Rope(RopeConfig("neox"), device, kernel=file.kernel_object())(np.ones((1, 3, 2, 16), np.float32), 0)

    with pytest.raises((ConfigError, clrope.UnsupportedError), match=says):
        use()


def test_a_file_that_does_not_build(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as raised:
        load(write(tmp_path, PLAIN.replace("float c =", "float c +")), options=["-DOTHER"])
    error = raised.value
    assert error.device
    assert "-DOTHER" in error.options
    assert "mine.cl:" in error.log
    assert "float c +" in Path(error.source_path).read_text()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("void helper(int a) {}", "has no __kernel function"),
        (f"{TABLES}__kernel void other(__global float *x) {{}}\n", "has 2 kernels, "),
        (f"// lab: kernel none\n{PLAIN}", "has no kernel 'none', only turn"),
    ],
)
def test_files_without_the_one_kernel(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, text))


def test_a_compiler_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device reads the signature; if each crashes, one error says it."""
    answers = [ChildResult("crash", reason="the driver crashed with SIGSEGV while building the program")]
    real = child.run
    monkeypatch.setattr(child, "run", lambda *a, **k: answers.pop() if answers else real(*a, **k))
    file = load_file(write(tmp_path, PLAIN), selectors=["pocl", "pocl"])
    assert file.check().name == "turn"
    answers += [ChildResult("timeout", reason="no answer in 60 s while building the program")] * 9
    with pytest.raises(DeviceError, match=r"its arguments cannot be read: .*no answer in 60 s while building"):
        load(write(tmp_path, "//\n" + PLAIN))
