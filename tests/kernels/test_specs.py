"""Launches: the arguments have the kernels' own names and types, and work is divided as it should be."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import clrope
from clrope import RopeConfig
from clrope.angles import angle_table
from clrope.call.runtime import queue_for
from clrope.device.probe import BASIC, source
from clrope.emulation import emulate_cos_sin, emulate_rope
from clrope.errors import ConfigError
from clrope.kernels import rows, table_kernels
from clrope.kernels.build import build
from clrope.kernels.division import MOST_ROUNDS, within_rounds
from clrope.kernels.launch import NO_BUFFER, Launch, LaunchSpec, LocalBytes
from clrope.kernels.problem import AngleForm, PairLayout, Problem
from clrope.kernels.variant import STRIDED, Variant, candidates
from clrope.layout import DTYPES, Shape4, TensorView

EXACT = AngleForm(exact=True)
FUSED = Variant(width=4, angles="fused")


def problem(shape: Shape4 = (1, 5, 3, 64), mode: Any = "neox", dtype: str = "f32", **changes: Any) -> Problem:
    view = TensorView.dense(shape, dtype)
    pairs = PairLayout.of_config(RopeConfig(mode, min(shape[3], 2048)), shape[3])
    return replace(Problem(shape, dtype, view.strides, view.strides, pairs, angles=EXACT), **changes)


def parameters_of(spec: LaunchSpec) -> list[tuple[str, str]]:
    """(type, name) of the kernel's parameters, read from its text with the macros that its options select."""
    text = re.sub(r"//[^\n]*", "", spec.text).replace("\\\n", " ")
    strides = ", ".join(f"const long \\2_{part}" for part in ("offset", "batch", "token", "head"))
    text = re.sub(r"TENSOR\(([^,()]+), (\w+)\)", rf"__global \1 *\2, {strides}", text)
    counting, fused = "-DCOUNTING" in spec.options, "-DFUSED=1" in spec.options
    inside = text.partition(f"void {spec.function}(")[2].partition(")")[0]
    table = "POSITIONS, const int rows, __global const ulong *step, __global const long *step_low, "
    table += "__global const uchar *axis, const real magnitude"
    cached = "__global const real *cosine, const long cosine_offset, __global const real *sine, "
    cached += "const long sine_offset, const long first_row, const long table_row"
    inside = re.sub(r"\bANGLES\b", table if fused else cached, inside)
    inside = inside.replace("POSITIONS", "const long positions" if counting else "__global const long *positions")
    found = []
    for part in inside.split(","):
        kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", part, re.S).groups()  # type: ignore[union-attr]
        found.append((" ".join(kind.split()), name))
    return found


SPECS: dict[str, Any] = {
    "rows": lambda d: Variant().spec(problem(), d),
    "rows of two": lambda d: Variant().spec(problem(), d, problem((1, 5, 1, 64))),
    "rows fused": lambda d: FUSED.spec(problem(), d),
    "rows counting": lambda d: FUSED.spec(problem(angles=AngleForm(exact=True, counting=True)), d),
    "rows with a caller's tables": lambda d: Variant().spec(problem(angles=AngleForm(table_row=40)), d),
    "lanes": lambda d: Variant("lanes").spec(problem(), d),
    "lanes of two": lambda d: Variant("lanes", angles="cached").spec(problem(), d, problem((1, 5, 1, 64))),
    "strided": lambda d: STRIDED.spec(problem(), d),
    "cos_sin": lambda d: table_kernels.exact_tables(32, 5, "f32", AngleForm(counting=True), d),
    "cos_sin of several axes": lambda d: table_kernels.exact_tables(32, 5, "f32", AngleForm(one_axis=False), d),
    "cos_sin_ggml": lambda d: table_kernels.ggml_tables(32, 5, "f32", AngleForm(), d, 0.9, 1.0, 1.0, True),
    "gather": lambda d: table_kernels.gathered_tables(32, 5, "f16", "f32", d),
}


@pytest.mark.parametrize("which", SPECS)
def test_arguments_have_the_kernels_names_and_types(cpu: clrope.DeviceInfo, which: str) -> None:
    spec: LaunchSpec = SPECS[which](cpu)
    wanted = parameters_of(spec)
    assert [name for name, _ in spec.arguments] == [name for _, name in wanted]
    types = {"const int": np.int32, "const long": np.int64, "const float": np.float32, "const real": np.float32}
    for (name, value), (kind, _) in zip(spec.arguments, wanted, strict=True):
        if kind.startswith("__local"):
            assert isinstance(value, LocalBytes), name
        elif kind.startswith("__global"):
            assert value is None or value is NO_BUFFER, name
        else:
            assert value is None or type(value) is types[kind], (name, kind)


def test_what_is_bound(cpu: clrope.DeviceInfo) -> None:
    one = ("x", "x_offset", "y", "y_offset")
    two = ("x2", "x2_offset", "y2", "y2_offset")
    made = ("positions", "rows", "step", "step_low", "axis", "magnitude")
    assert SPECS["rows"](cpu).bound_names == (*one, "cosine", "sine")
    assert SPECS["rows of two"](cpu).bound_names == (*one, *two, "cosine", "sine")
    assert SPECS["rows counting"](cpu).bound_names == (*one, *made)
    assert SPECS["strided"](cpu).bound_names == (*one, "cosine", "sine")
    assert SPECS["cos_sin"](cpu).bound_names == (made[0], *made[2:], "cosine", "sine")
    assert SPECS["cos_sin_ggml"](cpu).bound_names == (
        "positions", "exponent", "factor", "mix", "axis", "cosine", "sine",
    )  # fmt: skip
    assert "width" not in SPECS["gather"](cpu).bound_names
    assert len(SPECS["gather"](cpu).bound_names) == 18


@pytest.mark.parametrize("which", SPECS)
def test_calls_alike_share_a_spec(cpu: clrope.DeviceInfo, which: str) -> None:
    assert SPECS[which](cpu) is SPECS[which](cpu)


def test_options_say_where_the_angles_come_from(cpu: clrope.DeviceInfo) -> None:
    counting = AngleForm(exact=True, counting=True)
    assert {"-DFUSED=1", "-DCOUNTING", "-DONE_AXIS"} <= set(FUSED.spec(problem(angles=counting), cpu).options)
    assert "-DFUSED=0" in Variant().spec(problem(angles=counting), cpu).options
    assert "-DCOUNTING" not in Variant().spec(problem(angles=counting), cpu).options
    assert "-DWIDE_PHASE" in FUSED.spec(problem(dtype="f64"), cpu).options
    assert "-DWIDE_PHASE" not in FUSED.spec(problem(), cpu).options
    assert "-DONE_AXIS" not in FUSED.spec(problem(angles=replace(EXACT, one_axis=False)), cpu).options
    # The lower bits of the steps are needed for double, and leave no vectors.
    assert table_kernels.exact_tables(32, 5, "f64", AngleForm(), cpu).options == (
        "-DW=1", "-DSTORAGE_F64", "-DBITS=ulong", "-DREAL_F64", "-DONE_AXIS", "-DWIDE_PHASE",
    )  # fmt: skip
    known = replace(cpu, platform="Intel(R) OpenCL", kind="cpu")
    assert {"-DW=8", "-DCLANG_VECTORS"} <= set(table_kernels.exact_tables(32, 5, "f32", AngleForm(), known).options)
    for pairs, form, device in (
        (36, AngleForm(), known),
        (32, AngleForm(wide=True), known),
        (32, AngleForm(), replace(known, platform="Something New")),
    ):
        other = table_kernels.exact_tables(pairs, 5, "f32", form, device)
        assert "-DW=1" in other.options
        assert "-DCLANG_VECTORS" not in other.options


@pytest.mark.parametrize("pairing", ["normal", "neox"])
def test_options_are_names_and_numbers(cpu: clrope.DeviceInfo, pairing: Any) -> None:
    """Nothing else reaches a compiler, whatever a configuration, a file or a tuning record holds."""
    seen = set()
    for dtype in DTYPES:
        for kind in ("cpu", "gpu"):
            for variant in candidates(kind, dtype):
                given = problem(mode=pairing, dtype=dtype)
                seen.update(variant.fit(given).spec(given, cpu).options)
    assert len(seen) > 20
    types = "int|long|uchar|ushort|uint|ulong"
    allowed = rf"-cl-std=CL[0-9.]+|-D[A-Z][A-Z0-9_]*(=([0-9]+|{types}))?"
    assert not [o for o in seen if not re.fullmatch(allowed, o)]
    for damage in ({"width": "4 -cl-fast-relaxed-math"}, {"store": "plain -DX"}, {"width": 4.5}, {"kernel": "../x"}):
        with pytest.raises(ConfigError):
            Variant(**damage)  # type: ignore[arg-type]


# Shape, which tokens, and whether a launch takes the batches for one: with positions of their own, with shared ones.
BATCHES = {
    "one token each": ((6, 1, 3, 16), slice(None), True, True),
    "contiguous": ((3, 4, 3, 16), slice(None), True, False),
    "tokens left out behind each": ((3, 4, 3, 16), slice(2), False, False),
    "one of the tokens of each": ((6, 4, 3, 16), slice(1, 2), True, False),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("which", BATCHES)
def test_batches_are_further_tokens_or_heads(cpu: clrope.DeviceInfo, several: bool, which: str) -> None:
    shape, tokens, own, shared = BATCHES[which]
    view = TensorView.dense(shape, "f32").part(slice(None), tokens)
    small = TensorView.dense((*view.shape[:2], 1, 16), "f32")
    for row_stride, joined in ((view.shape[1], own), (0, shared)):
        both = [problem(v.shape, x_strides=v.strides, row_stride=row_stride) for v in (view, small)]
        spec = Variant().spec(both[0], cpu, both[1] if several else None)
        assert (spec.global_size[2] == 1) == joined
        assert dict(spec.arguments)["heads2"] == (several and (6 if joined and not row_stride else 1))


@pytest.mark.parametrize("shared", [False, True])
def test_little_work_is_few_items(cpu: clrope.DeviceInfo, shared: bool) -> None:
    items = []
    for batches in (1, 8, 64, 1024):
        at = problem((batches, 1, 32, 128), row_stride=0 if shared else 1)
        items.append(int(np.prod(Variant().spec(at, cpu).global_size)))
    assert items[0] == 1
    assert items == sorted(items)
    assert items[2] <= max(16, 4 * cpu.compute_units)
    assert items[3] >= min(1024, 4 * cpu.compute_units)


def run(device: clrope.DeviceInfo, spec: LaunchSpec, bound: dict[str, Any]) -> None:
    queue = queue_for(device)
    launch = Launch(build(queue.context, device.cl_device, spec.text, spec.options), spec)
    assert set(spec.bound_names) <= set(bound)
    launch.bind(bound)
    launch.enqueue(queue)
    queue.finish()


def buffer(device: clrope.DeviceInfo, array: np.ndarray[Any, Any]) -> cl.Buffer:
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(queue_for(device).context, flags, hostbuf=np.ascontiguousarray(array))


def read(device: clrope.DeviceInfo, source: cl.Buffer, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty_like(like)
    cl.enqueue_copy(queue_for(device), out, source)
    return out


def steps_of(device: clrope.DeviceInfo, config: RopeConfig) -> dict[str, Any]:
    table = angle_table(config)
    arrays = {"step": table.step, "step_low": table.step_low, "axis": table.axis}
    return {name: buffer(device, array) for name, array in arrays.items()}


@pytest.mark.one_in(10)
@pytest.mark.parametrize("start", [0, -3, 2**40 + 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_that_count(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: str, start: int) -> None:
    """The first position is a number, nothing is uploaded: in a fused rotation and in tables."""
    if dtype == "f64" and not device.fp64:
        pytest.skip("no fp64")
    config, real = RopeConfig("neox", 64, attn_factor=0.7), np.float64 if dtype == "f64" else np.float32
    x = rng.standard_normal((1, 5, 3, 64)).astype(DTYPES[dtype])
    form = AngleForm(exact=True, counting=True, wide=abs(start) > 2**31)
    at = problem(dtype=dtype, angles=form)
    magnitude, positions = real(angle_table(config).magnitude), np.int64(start)
    table = {**steps_of(device, config), "positions": positions, "magnitude": magnitude}
    source, result = buffer(device, x), buffer(device, np.full_like(x, 9))
    zero = np.int64(0)
    bound = {"x": source, "x_offset": zero, "y": result, "y_offset": zero, "rows": np.int32(5), **table}
    run(device, FUSED.spec(at, device), bound)
    want = emulate_rope(x, np.arange(start, start + 5), config)
    assert read(device, result, x).tobytes() == want.tobytes()
    name: Any = "f64" if dtype == "f64" else "f32"
    wanted = emulate_cos_sin(np.arange(start, start + 5), config, real=name)
    tables = [buffer(device, np.zeros_like(part)) for part in wanted]
    spec = table_kernels.exact_tables(32, 5, name, form, device)
    run(device, spec, {**table, "cosine": tables[0], "sine": tables[1]})
    for got, part in zip(tables, wanted, strict=True):
        np.testing.assert_array_equal(read(device, got, part), part)


def test_ggml_positions_that_count(device: clrope.DeviceInfo) -> None:
    config = RopeConfig("neox", 64, angles="ggml", ext_factor=1.0, n_ctx_orig=64, freq_scale=0.5)
    table = angle_table(config)
    g = table.ggml
    spec = table_kernels.ggml_tables(
        32, 5, "f32", AngleForm(counting=True), device, g.theta_scale, g.freq_scale, g.magnitude, g.yarn
    )
    wanted = emulate_cos_sin(np.arange(7, 12), config)
    tables = [buffer(device, np.zeros_like(part)) for part in wanted]
    arrays = {"exponent": g.exponent, "factor": g.factor, "mix": g.mix, "axis": table.axis}
    bound = {name: buffer(device, array) for name, array in arrays.items()}
    run(device, spec, {**bound, "positions": np.int64(7), "cosine": tables[0], "sine": tables[1]})
    for got, part in zip(tables, wanted, strict=True):
        np.testing.assert_array_equal(read(device, got, part), part)


def test_another_text(device: clrope.DeviceInfo) -> None:
    text = "__kernel void twice(__global float *x, const float by) { x[get_global_id(0)] *= by; }"
    spec = LaunchSpec("none.cl", "twice", (), (4,), None, (("x", None), ("by", np.float32(2))), text)
    x = np.arange(4, dtype=np.float32)
    memory = buffer(device, x)
    run(device, spec, {"x": memory})
    np.testing.assert_array_equal(read(device, memory, x), 2 * x)


def argument(spec: LaunchSpec, name: str) -> int:
    return int(next(value for key, value in spec.arguments if key == name))


def test_no_work_item_makes_more_rounds_than_the_probe_tries(cpu: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Of many short heads and of heads longer than any model's; and still every head is rotated."""
    device = replace(cpu, compute_units=2)
    capped = 0
    for _ in range(300):
        dtype, mode = str(rng.choice(["f32", "f16", "f8e4m3"])), str(rng.choice(["normal", "neox"]))
        tokens, heads = (int(n) for n in 2 ** rng.integers(0, 14, 2))
        tried = candidates("cpu", dtype)
        one = problem((1, tokens, heads, 2 * int(2 ** rng.integers(1, 19))), mode, dtype)
        variant = [*tried, Variant(width=2)][rng.integers(len(tried) + 1)].fit(one)
        spec = variant.spec(one, device)
        if variant.kernel == "strided":
            items = argument(spec, "slots_per_item")
            assert items <= MOST_ROUNDS // 2
            assert spec.global_size[0] * items >= argument(spec, "slots")
            continue
        if variant.kernel != "rows":
            continue
        per_item = argument(spec, "heads_per_item")
        assert spec.global_size[1] * per_item >= heads
        head, token = rows._rounds(one, variant.parameters)
        at_once = argument(spec, "tokens_per_item")
        assert spec.global_size[0] * at_once >= tokens
        rounds = at_once * (token + per_item * head)
        assert rounds <= MOST_ROUNDS
        capped += rounds + at_once * head > MOST_ROUNDS
    assert capped > 3
    assert f"{MOST_ROUNDS}u" in source(BASIC)


def test_heads_and_tokens_within_the_rounds(rng: np.random.Generator) -> None:
    assert MOST_ROUNDS < 65535, "llvmpipe ends loops there, and says nothing"
    assert within_rounds(7, 5, MOST_ROUNDS + 1) == (1, 1)
    for _ in range(500):
        wanted, tokens, head, token = (int(n) for n in np.exp(rng.uniform(0, 10, 4)))
        heads, at_once = within_rounds(wanted, tokens, head, token)
        assert 1 <= heads <= wanted
        assert 1 <= at_once <= tokens
        if head + token <= MOST_ROUNDS:
            assert at_once * (token + heads * head) <= MOST_ROUNDS
            # No more would do.
            assert heads == wanted or token + (heads + 1) * head > MOST_ROUNDS
            assert at_once == tokens or (at_once + 1) * (token + heads * head) > MOST_ROUNDS


def test_a_head_of_too_many_rounds_is_rotated_by_strided(cpu: clrope.DeviceInfo) -> None:
    longest = problem((1, 1, 1, 1 << 18))
    assert str(Variant(width=2).unsupported(longest)) == (
        f"a head of 262144 elements takes 131618 rounds of loops, a work-item makes at most {MOST_ROUNDS}"
    )
    assert Variant(width=2).fit(longest) == STRIDED
    assert Variant(width=8).fit(longest) == Variant(width=8)
