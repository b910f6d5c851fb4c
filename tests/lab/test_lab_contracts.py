"""What a kernel file says of itself: its signature, directives, expressions, and contracts in files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_kernels import GGML, POSITIONS, TABLES, changed

import clrope
from clrope import ConfigError, DeviceInfo, Rope, RopeConfig
from clrope.lab import Contract, load
from clrope.lab.contracts import BY_NAME
from clrope.lab.expressions import Expression
from clrope.lab.lab_kernel import load_file
from clrope.lab.meanings import MEANINGS

pytestmark = pytest.mark.usefixtures("signatures_in_this_process")

NEOX = RopeConfig("neox", n_dims=32, freq_base=1e4)

#: The same operation with names of other projects.
FOREIGN = """\
#define FLOATS __global const float *
__kernel void turn(__global float *t_out, FLOATS t_in, FLOATS freqs_cos, FLOATS freqs_sin,
                   unsigned int seq_len, unsigned int nhead, unsigned int dhead, unsigned int half_) {
  uint i = get_global_id(0), h = get_global_id(1), r = get_global_id(2);
  ulong at = ((ulong)r * nhead + h) * dhead;
  if (i >= half_) return;
  float c = freqs_cos[r * half_ + i], s = freqs_sin[r * half_ + i], p = t_in[at + i], q = t_in[at + i + half_];
  t_out[at + i] = p * c - q * s;
  t_out[at + i + half_] = p * s + q * c;
}
"""


def write(folder: Path, source: str, name: str = "mine.cl") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def rotates(path: Path, device: DeviceInfo, contract: object = None, config: RopeConfig = NEOX) -> None:
    """Rotate fresh numbers by the kernel and compare with the reference."""
    x = np.random.default_rng().uniform(-1, 1, (2, 5, 3, 32)).astype(np.float32)
    out = np.full_like(x, np.nan)
    Rope(config, device, kernel=load(path, contract))(x, 7, out=out)  # type: ignore[arg-type]
    assert clrope.compare(out, clrope.reference.rope(x, 7, config)).nmse < 1e-12


def test_tables_by_position(device: DeviceInfo, tmp_path: Path) -> None:
    """A kernel that finds rows of its tables by `pos_ids`, as InfiniOp's do."""
    source = changed(FOREIGN, [("FLOATS freqs_sin,", "FLOATS freqs_sin, __global const uint *pos_ids,")])
    source = source.replace("[r * half_ + i]", "[pos_ids[r] * half_ + i]")
    rotates(write(tmp_path, "// lab: requires neox\n" + source), device, "cos-sin-tables")


def test_a_file_that_is_included(device: DeviceInfo, tmp_path: Path) -> None:
    """It is looked for next to the kernel's file, and what it says now counts."""
    source = '// lab: requires neox\n#include "minus.h"\n' + changed(FOREIGN, [("p * c - q * s", "p * c MINUS q * s")])
    path = write(tmp_path, source)
    write(tmp_path, "#define MINUS +\n", "minus.h")
    with pytest.raises(AssertionError):
        rotates(path, device, "cos-sin-tables")
    write(tmp_path, "#define MINUS -\n", "minus.h")
    rotates(path, device, "cos-sin-tables")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("pointer", ["float4", "float8"])
def test_pointers_to_vectors(device: DeviceInfo, tmp_path: Path, pointer: str) -> None:
    arguments = f"__global {pointer} *out, __global const {pointer} *in"
    inside = "  __global float *t_out = (__global float *)out; FLOATS t_in = (FLOATS)in;\n"
    edits = [("__global float *t_out, FLOATS t_in", arguments), ("  uint i =", f"{inside}  uint i =")]
    source = "// lab: requires neox\n" + changed(FOREIGN, edits)
    rotates(write(tmp_path, source), device, "cos-sin-tables")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", ["normal", "neox"])
@pytest.mark.parametrize(
    "more", [{}, {"n_dims": 16, "n_offs": 8, "freq_factors": tuple(range(1, 9))}], ids=["", "more"]
)
def test_arguments_of_llama_cpp(device: DeviceInfo, tmp_path: Path, mode: str, more: dict[str, Any]) -> None:
    config = RopeConfig(mode=mode, freq_scale=0.5, attn_factor=1.25, **more)  # type: ignore[arg-type]
    kernel = load(write(tmp_path, GGML), "ggml-opencl")
    rng = np.random.default_rng()
    parent = rng.uniform(-1, 1, (3, 6, 5, 32)).astype(np.float32)
    for x in (parent, parent[1:, ::2, 1:4]):  # of a view the offset and the strides are told
        out = np.full_like(x, np.nan)
        Rope(config, device, kernel=kernel)(x, 7, out=out)
        assert clrope.compare(out, clrope.reference.rope(x, 7, config)).nmse < 1e-10
    with pytest.raises(clrope.UnsupportedError, match="the inverse rotation"):
        Rope(config, device, kernel=kernel)(parent, 7, forward=False)


def test_axes_and_units_need_tables(device: DeviceInfo, tmp_path: Path) -> None:
    """A kernel that computes angles itself would take one axis and whole positions; one with tables gets them right."""
    x = np.random.default_rng().uniform(-1, 1, (2, 5, 3, 32)).astype(np.float32)
    for config in (RopeConfig("neox", pair_axes=(0, 1) * 8), RopeConfig("neox", 32, coordinate_scale=2)):
        positions = np.random.default_rng().integers(0, 99, (config.position_axes, 5))
        for source in (GGML, POSITIONS):
            kernel = load(write(tmp_path, source), "ggml-opencl" if source == GGML else None)
            with pytest.raises(clrope.UnsupportedError, match="pair_axes or coordinate_scale, without tables"):
                Rope(config, device, kernel=kernel)(x, positions)
        got = Rope(config, device, kernel=load(write(tmp_path, TABLES)))(x, positions, out=np.full_like(x, np.nan))
        assert clrope.compare(got, clrope.reference.rope(x, positions, config)).nmse < 1e-12


# -- signatures --------------------------------------------------------------------------------------------------------


BEGIN = "const float direction) {"
WRONG = {
    "an unknown name": (
        TABLES, [("const int heads", "const int hedas"), ("h * x_head", "h")],
        "unknown argument 'hedas' (contract 'clrope')",
        ["found:    mine.cl:2: rope(global float *x", "// lab: hedas = heads"]),
    "no output": (
        TABLES, [("__global float *y,", ""), (BEGIN, f"{BEGIN}\n__global float *y = 0;")], "rope takes no y",
        ["found:", "`// lab: dst = y`"]),
    "no angles": (
        TABLES, [("__global const float *cos_table, __global const float *sin_table,", ""),
                 (BEGIN, f"{BEGIN}\n__global const float *cos_table = 0, *sin_table = 0;")],
        "rope takes neither tables nor positions", ["give it cos_table and sin_table"]),
    "no pairing": (
        TABLES, [("#ifdef NEOX", "#if 1")], "nothing tells rope which elements form a pair", ["requires neox"]),
    "an unknown directive": (
        "// lab: warp 32\n" + TABLES, [], "got the line `// lab: warp 32`", ["allowed are kernel"]),
    "a parameter without values": ("// lab: tune WIDTH = \n" + TABLES, [], "got the line `// lab: tune WIDTH =`", []),
    "an unknown contract": ("// lab: contract mine\n" + TABLES, [], "contract: got 'mine'", ["ggml-opencl"]),
    "several kernels": (
        TABLES + "__kernel void other(__global float *x) {}\n", [], "has 2 kernels, rope, other",
        ["// lab: kernel rope"]),
}  # fmt: skip


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_signature_says_what_was_found_and_what_is_known(tmp_path: Path, name: str) -> None:
    source, edits, begin, parts = WRONG[name]
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, changed(source, edits)))
    assert begin in str(raised.value)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([("const int heads", "__global int *heads")], "cannot hold 3"),
        (
            [("const long x_offset", "const float x_offset"), ("x += x_offset", "x += (long)x_offset")],
            "an offset is an integer, not 'float'",
        ),
        (
            [
                ("__global const float *cos_table", "const float cos_table"),
                ("cos_table[r * pairs + slot]", "cos_table"),
            ],
            "its meaning is a pointer",
        ),
    ],
)
def test_types_that_do_not_fit_a_meaning(
    device: DeviceInfo, tmp_path: Path, edits: list[tuple[str, str]], says: str
) -> None:
    op = Rope(NEOX, device, kernel=load(write(tmp_path, changed(TABLES, edits))))
    with pytest.raises(ConfigError, match=says):
        op(np.ones((1, 2, 3, 32), np.float32), 0)


# -- expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tokens * heads + 1", 31), ("-tokens", -5), ("2 ** 10 // 3 % 7", 2**10 // 3 % 7), ("ceil_div(tokens, 2)", 3),
        ("heads if tokens > 4 else tokens", 6), ("not neox or tokens == 5", True), ("neox and heads", True),
        ("min(64, max(heads, tokens))", 6), ("dtype == 'f16'", True), ("int(tokens / 2)", 2),
    ],
)  # fmt: skip
def test_expressions(text: str, value: object) -> None:
    made = Expression(text, "here")
    known = {"tokens": 5, "heads": 6, "neox": 1, "dtype": "f16"}
    assert made.value(known) == value
    assert made.names <= set(known)


@pytest.mark.parametrize(
    "text",
    ["", "tokens *", "__import__('os')", "tokens.real", "[1]", "tokens[0]", "lambda: 1", "f(1)", "1 // 0", "9 ** 999",
     "nowhere", "'a' * 2 - 1", "1 < 2 < 3", "min()", "(" * 300 + ")" * 300, "1 + " * 400 + "1",
     "(-8) ** 0.5", "min(1, tokens, key=3)",
     "'x' * 10 ** 9", "10 ** 9 * 'x'", "'%900000000d' % tokens",
     "(2 ** 64) ** 64", "((((2 ** 64) ** 64) ** 64) ** 64) ** 64"],
)  # fmt: skip
def test_expressions_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: "):
        Expression(text, "here").value({"tokens": 5})


def test_an_expression_has_to_be_a_text() -> None:
    with pytest.raises(ConfigError, match="here: got 3, the text of an expression is needed"):
        Expression(3, "here")  # type: ignore[arg-type]


# -- directives --------------------------------------------------------------------------------------------------------


def test_directives(device: DeviceInfo, tmp_path: Path) -> None:
    source = TABLES.replace("const int heads", "const int how_many, __local float *spare")
    source = source.replace("const float direction", "int turn").replace("* direction", "* turn")
    source = source.replace("int slot =", "int slot = DELTA +")
    source += "__kernel void other(__global float *x) {}\n"
    lines = (
        "// lab: kernel rope\n// lab: how_many = heads\n// lab: turn = direction\n// lab: local spare = 4 * head_dim\n"
        "// lab: global_size ceil_div(slots, 8) * 8 , heads, batch * tokens\n// lab: local_size 8, 1, 1\n"
        "// lab: requires slots % 8 == 0\n// lab: options -DDELTA=0\n"
    )
    path = write(tmp_path, lines + source)
    file = load_file(path)
    assert file.contract.local_size == ("8", "1", "1")
    assert file.contract.options == ("-DDELTA=0",)
    rotates(path, device)
    with pytest.raises(clrope.UnsupportedError, match=r"cannot express calls without slots % 8 == 0"):
        Rope(RopeConfig("neox", n_dims=16), device, kernel=load(path))(np.ones((1, 1, 3, 20), np.float32), 0)


# -- contracts ---------------------------------------------------------------------------------------------------------


def test_names_of_other_projects(device: DeviceInfo, tmp_path: Path) -> None:
    source = "// lab: requires neox\n// lab: requires n_dims == head_dim\n" + FOREIGN
    rotates(write(tmp_path, source), device, "cos-sin-tables")
    with pytest.raises(ConfigError, match=r"unknown arguments 't_out', 't_in', .* \(contract 'clrope'\)"):
        load(write(tmp_path, source))


def test_a_contract_of_the_user_s(device: DeviceInfo, tmp_path: Path) -> None:
    mine = Contract(
        "mine", "as our runtime calls it",
        {"t_out": "y", "t_in": "x", "freqs_cos": "cos_table", "freqs_sin": "sin_table", "seq_len": "tokens",
         "nhead": "heads", "dhead": "head_dim", "half_": "pairs"},
        requires=(("neox == 1", "NORMAL pairs"), ("n_dims == head_dim", "heads rotated in part")), own_words=False,
    )  # fmt: skip
    rotates(write(tmp_path, FOREIGN), device, mine)


#: A value for each field of a `Contract` or argument of `load` that is of another type, or that no kernel can have.
WRONG_FIELDS: list[tuple[str, Any, str]] = [
    ("name", 5, "name: got 5, a str is needed"),
    ("summary", b"x", "summary: got b'x', a str is needed"),
    ("arguments", [("x", "x")], "arguments: got [('x', 'x')], a dict from str to str is needed"),
    ("arguments", {"x": 1}, "arguments: got {'x': 1}, a dict from str to str is needed"),
    ("function", None, "function: got None, a str is needed"),
    ("function", "{foo}", "function: got '{foo}', allowed in braces are {dtype}, {pairing}, {ggml_kind}"),
    ("global_size", "64", "global_size: got '64', a tuple of one to three str is needed"),
    ("global_size", 64, "global_size: got 64, a tuple of one to three str is needed"),
    ("global_size", (), "global_size: got (), a tuple of one to three str is needed"),
    ("global_size", ("1",) * 4, "global_size: got ('1', '1', '1', '1'), a tuple of one to three str is needed"),
    ("local_size", (64,), "local_size: got (64,), a tuple of str is needed"),
    ("local_size", ("1",), "local_size: got 1 expressions, as many as of global_size (3) are needed, or none"),
    ("requires", ("forward",), "requires: got ('forward',), a tuple of pairs (expression, what to say) of str is"),
    ("requires", (("forward",),), "requires: got (('forward',),), a tuple of pairs"),
    ("local", None, "local: got None, a dict from str to str is needed"),
    *(
        ("parameters", wrong, f"parameters: got {wrong}, a dict from macros' names to tuples of one or more int, float")
        for wrong in (("P",), {"P": ()}, {"P": 1}, {"P": (True,)}, {"P": (b"x",)}, {"a b": (1,)}, {5: (1,)})
    ),
    ("parameters", {"P": (10**5000,)}, "parameters: got dict with an integer beyond float64, a dict from"),
    ("options", "-DX=1", "options: got '-DX=1', a tuple of str is needed"),
    ("own_words", 1, "own_words: got 1, a bool is needed"),
    ("shared_rows", "no", "shared_rows: got 'no', a bool is needed"),
    ("checks_types", None, "checks_types: got None, a bool is needed"),
]


@pytest.mark.parametrize(("field", "value", "says"), WRONG_FIELDS)
def test_a_contract_with_a_wrong_field(field: str, value: Any, says: str) -> None:
    given: dict[str, Any] = {"name": "mine", "summary": "as our runtime calls it", field: value}
    with pytest.raises(ConfigError) as raised:
        Contract(**given)
    assert str(raised.value).startswith(says)


def test_lists_in_a_contract(device: DeviceInfo, tmp_path: Path) -> None:
    sizes: Any = ["slots", "heads", "batch * tokens"]
    rotates(write(tmp_path, TABLES), device, Contract("mine", "x", global_size=sizes, parameters={"P": (1, 2.5, "a")}))


class BytesPath:
    """A path of bytes."""

    def __fspath__(self) -> bytes:
        return b"x.toml"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(
            ({"options": wrong}, f"options: got {wrong!r}, a list or tuple of str is needed")
            for wrong in (5, None, "-DX=1", [5], [b"-DX"])
        ),
        *(
            ({"options": [wrong]}, f"options: got {wrong!r}, a text in UTF-8 without a null character is needed")
            for wrong in ("\udcff", "-DX\0=1")
        ),
        *(
            ({"kernel": wrong}, f"kernel: got {wrong!r}, the name of a function is needed")
            for wrong in (5, None, ["k"])
        ),
        *(({"contract": wrong}, f"contract: got {wrong!r}, allowed are clrope, ") for wrong in (5, b"x.toml", ["x"])),
        ({"contract": BytesPath()}, "contract: got b'x.toml', allowed are clrope, "),
        ({"contract": Contract("m", "s", options=("\udcff",))}, "options: got '\\udcff', a text in UTF-8"),
        ({"contract": Contract("m", "s", parameters={"P": ("\0",)})}, "options: got '-DP=\\x00', a text in UTF-8"),
    ],
)
def test_arguments_of_load_of_a_wrong_type(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, TABLES), **given)
    assert str(raised.value).startswith(says)


TOML = """\
name = "ours"
kernel = "turn"
global_size = ["ceil_div(pairs, 4) * 4", "heads", "batch * tokens"]
local_size = ["4", "1", "1"]
requires = ["neox", "n_dims == head_dim"]
[arguments]
t_out = "y"
t_in = "x"
freqs_cos = "cos_table"
freqs_sin = "sin_table"
seq_len = "tokens"
nhead = "heads"
dhead = "head_dim"
half_ = "pairs"
"""


def test_a_contract_in_toml(device: DeviceInfo, tmp_path: Path) -> None:
    path = write(tmp_path, FOREIGN)
    rotates(path, device, write(tmp_path, TOML, "ours.toml"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TOML.replace('half_ = "pairs"', ""), "unknown argument 'half_' (contract 'ours'"),
        (TOML.replace('"pairs"', '"pears"'), "'pears' in 'pears' is unknown; known are"),
        (TOML.replace("requires", "require"), "ours.toml: is no contract (.*require"),
        (TOML.replace('name = "ours"', "name = 3"), "ours.toml: is no contract (.*name"),
        ("[arguments", "ours.toml: is no contract ("),
        ("\xff" * 9, "ours.toml: is no contract ("),
    ],
)
def test_errors_of_a_toml_file_name_what_does_not_match(
    device: DeviceInfo, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "ours.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        rotates(write(tmp_path, FOREIGN), device, path)


NAMES = ["{foo}", "{", "}", "{0}", "{dtype:999999999}", "{dtype.__class__}", "{{dtype}}", "{d{dtype}type}"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TOML + "[parameters]\nW = []", "parameters: got {'W': ()}, a dict from macros' names"),
        (TOML.replace('["4", "1", "1"]', '["4"]'), "local_size: got 1 expressions, as many as of global_size (3)"),
        *((TOML.replace("turn", name), f"kernel: got '{name}', allowed in braces are {{dtype}}, ") for name in NAMES),
    ],
)
def test_fields_of_a_toml_file_that_no_contract_has(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text, "ours.toml")
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, FOREIGN), path)
    assert str(raised.value).startswith(f"{path}: {says}")


def test_placeholders_of_a_kernel_s_name(device: DeviceInfo, tmp_path: Path) -> None:
    source = changed(FOREIGN, [("turn(", "turn_f32_neox_neox(")])
    path = write(tmp_path, TOML.replace('"turn"', '"turn_{dtype}_{pairing}_{ggml_kind}"'), "ours.toml")
    rotates(write(tmp_path, source), device, path)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("global_size -1", ConfigError, "mine.cl: global_size: '-1' is -1 for this call, a whole number from 1 to"),
        ("global_size 2 ** 64", ConfigError, "is 18446744073709551616 for this call"),
        ("global_size 2 ** 30, 2 ** 30", ConfigError, "global_size: got (1073741824, 1073741824) for this call"),
        ("local_size x, 1, 1", ConfigError, "mine.cl: local_size: 'x' is "),
        ("local kept = 0", ConfigError, "mine.cl: local kept: '0' is 0 for this call"),
        ("local kept = 1e400", ConfigError, "mine.cl: local kept: '1e400' is inf for this call"),
        ("half_ = 1e400", clrope.UnsupportedError, "half_ = inf, which uint does not hold"),
        ("half_ = 1.5", clrope.UnsupportedError, "half_ = 1.5, which uint does not hold"),
        ("half_ = -1", clrope.UnsupportedError, "half_ = -1, which uint does not hold"),
        ("factor = 1e39", clrope.UnsupportedError, "factor = 1e+39, which float does not hold"),
        ("factor = 2 ** 64 ** 2", ConfigError, "has no value"),
        ("factor = 2 ** 60 * 2 ** 60 * 2 ** 60", clrope.UnsupportedError, "which float does not hold"),
    ],
)
def test_numbers_that_no_launch_can_have(
    device: DeviceInfo, tmp_path: Path, line: str, error: type[Exception], says: str
) -> None:
    source = changed(FOREIGN, [("unsigned int half_)", "unsigned int half_, float factor, __local float *kept)")])
    lines = "".join(
        f"// lab: {one}\n"
        for one in ("requires neox", "factor = 1", "local kept = 4", line)
        if one == line or one.partition(" =")[0] != line.partition(" =")[0]
    )
    op = Rope(NEOX, device, kernel=load(write(tmp_path, lines + source), "cos-sin-tables"))
    with pytest.raises(error, match=re.escape(says)):
        op(np.ones((1, 2, 3, 32), np.float32), 0)


@pytest.mark.parametrize(
    ("argument", "config", "says"),
    [
        ("__global const int *omega", NEOX, "omega, of which int does not hold every number"),
        ("__global const uchar *omega", NEOX, "omega, of which uchar does not hold every number"),
        (
            "char4 sections",
            RopeConfig("mrope", 600, sections=(200, 50, 50, 0)),
            "sections = (200, 50, 50, 0), which char4",
        ),
    ],
)
def test_numbers_that_a_type_does_not_hold(
    device: DeviceInfo, tmp_path: Path, argument: str, config: RopeConfig, says: str
) -> None:
    """They were cut, or ended in NumPy's own error."""
    source = f"""__kernel void mine(__global const float *x, __global float *y, __global const int *positions,
                                {argument}) {{
    #ifdef NEOX
    #endif
        y[get_global_id(0)] = x[get_global_id(0)] + positions[0];
    }}"""
    op = Rope(config, device, kernel=load(write(tmp_path, source)))
    with pytest.raises(clrope.UnsupportedError, match=re.escape(says)):
        op(np.ones((1, 2, 3, config.n_dims or 32), np.float32), 0)


def test_an_infinite_number_for_a_float(device: DeviceInfo, tmp_path: Path) -> None:
    source = changed(
        FOREIGN,
        [("unsigned int half_)", "unsigned int half_, float most)"), ("p * s + q * c", "min(p * s + q * c, most)")],
    )
    rotates(write(tmp_path, "// lab: requires neox\n// lab: most = 1e400\n" + source), device, "cos-sin-tables")


def test_parameters_with_too_many_combinations(tmp_path: Path) -> None:
    lines = "".join(f"// lab: tune P{k} = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\n" for k in range(20))
    file = load_file(write(tmp_path, "// lab: requires neox\n" + lines + FOREIGN), "cos-sin-tables")
    with pytest.raises(ConfigError, match=f"20 tunable parameters have {10**20} combinations of values, at most"):
        file.settings()


@pytest.mark.parametrize("name", ["W -DX", "W=1", "9W", "", "W\n"])
def test_a_parameter_s_name_is_a_macro_s(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, TOML + f"[parameters]\n{json.dumps(name)} = [1]\n", "ours.toml")
    with pytest.raises(ConfigError, match=r"ours\.toml: is no contract \("):
        load_file(write(tmp_path, FOREIGN), path)


def t1(**more: object) -> str:
    """Return a Kernel Tuner T1 description of `FOREIGN` with a tunable work-group size."""
    scalars = ["seq_len", "nhead", "dhead", "half_"]
    arguments = [{"Name": name, "Type": "uint32", "MemoryType": "Scalar"} for name in scalars]
    specification = {
        "Language": "OpenCL", "KernelName": "turn", "KernelFile": "mine.cl",
        "GlobalSize": {"X": "ceil_div(pairs, block) * block", "Y": "heads", "Z": "batch * tokens"},
        "LocalSize": {"X": "block", "Y": "1", "Z": "1"}, "CompilerOptions": ["-cl-mad-enable"], "Arguments": arguments,
        **more,
    }  # fmt: skip
    return json.dumps(
        {"ConfigurationSpace": {"TuningParameters": [{"Name": "block", "Type": "int", "Values": "[8, 16]"}]},
         "KernelSpecification": specification}
    )  # fmt: skip


def test_a_description_by_kernel_tuner(device: DeviceInfo, tmp_path: Path) -> None:
    write(tmp_path, "// lab: requires neox\n// lab: requires n_dims == head_dim\n" + FOREIGN)
    path = write(tmp_path, t1(), "turn.json")
    file = load_file(path)
    assert file.path == tmp_path / "mine.cl"
    assert file.build_options("f32", "neox")[:2] == ("-cl-mad-enable", "-Dblock=8")
    assert file.settings() == [{"block": 8}, {"block": 16}]
    other = file.with_setting({"block": 16})
    assert (other.chosen, other.options) == ({"block": 16}, ("-Dblock=16",))
    assert file.contract.local_size == ("block", "1", "1")
    rotates(path, device)
    # In work-groups, as CUDA counts.
    groups = {"X": "ceil_div(pairs, block)", "Y": "heads", "Z": "batch * tokens"}
    rotates(write(tmp_path, t1(GlobalSize=groups, GlobalSizeType="CUDA"), "cuda.json"), device)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (t1(Language="CUDA"), "turn.json: Language: got 'CUDA', 'OpenCL' is needed"),
        (t1(KernelFile=""), "names no KernelFile"),
        (t1(KernelName=3), "is no contract"),
        (t1(KernelName="{0}"), "turn.json: KernelName: got '{0}', allowed in braces are {dtype}, {pairing}"),
        (t1(KernelFile="none.cl"), "none.cl: cannot be read as a kernel file"),
        (t1().replace('"[8, 16]"', f'"[{10**400}]"'), "a number in it has 401 digits, at most 308 are allowed"),
        (t1().replace('"[8, 16]"', '"[]"'), "turn.json: TuningParameters: block has neither Default nor Values"),
        ("{}", "is no contract"),
        ("[" * 100_000, "is no contract"),
    ],
)
def test_errors_of_a_description(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path, FOREIGN)
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(write(tmp_path, text, "turn.json"))


@pytest.mark.parametrize("name", ["a\nb.cl", 'a"b.cl', "a\\b.cl", "\udcff.cl", "é 1.cl"])
def test_a_file_of_any_name(device: DeviceInfo, tmp_path: Path, name: str) -> None:
    try:
        path = write(tmp_path, TABLES, name)
    except (OSError, UnicodeError):
        pytest.skip("the file system has no such names")
    rotates(path, device)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.cl: cannot be read as a kernel file \(No such file"):
        load(tmp_path / "none.cl")
    with pytest.raises(ConfigError, match="contract: got 'nothing', allowed are clrope, cos-sin-tables, ggml-opencl"):
        load(write(tmp_path, TABLES), "nothing")
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read as a contract"):
        load(write(tmp_path, TABLES), tmp_path / "none.toml")
    large = tmp_path / "large.cl"
    with large.open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(ConfigError, match=r"large\.cl: cannot be read .*\(it has more than 4194304 bytes\)"):
        load(large)


def test_every_expression_of_the_contracts_is_known() -> None:
    for contract in BY_NAME.values():
        assert contract.summary
        for name, text in contract.arguments.items():
            assert Expression(text, name).names <= set(MEANINGS) | set(contract.parameters), name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("source", [TABLES, POSITIONS], ids=["tables", "positions"])
def test_a_macro_for_the_storage_type(device: DeviceInfo, tmp_path: Path, source: str) -> None:
    """`T` stands for the element's type, here of double; tables are double then, too."""
    if not device.fp64:
        pytest.skip(f"{device.name} has no double")
    for old in ("float *x", "float *y"):
        source = source.replace(old, old.replace("float", "T"))
    source = source.replace("float *cos", "REAL *cos").replace("float *sin", "REAL *sin")
    path = write(tmp_path, source)
    x = np.random.default_rng().uniform(-1, 1, (1, 4, 2, 32))
    out = Rope(NEOX, device, kernel=load(path))(x, 3)
    assert out.dtype == np.float64
    assert clrope.compare(out, clrope.reference.rope(x, 3, NEOX)).nmse < 1e-7
