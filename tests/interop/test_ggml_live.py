"""The adapter compared with ggml itself, the CPU code behind ggml-python; skipped where that is not installed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ggml_calls import DTYPES, PLAIN, Call, calls, nmse, set_rows
from helpers import bits

import clrope
from clrope.interop import ggml
from clrope.suite.ggml_fusion import EPS, GgmlNormLine, GgmlNormTrial, GgmlRowsLine, GgmlRowsTrial, ggml_fusion_lines


class Live:
    """The same call in ggml's own CPU code, by ggml-python."""

    def __init__(self) -> None:
        self.g: Any = pytest.importorskip("ggml")
        self.ctx = self.g.ggml_init(self.g.ggml_init_params(mem_size=256 << 20, mem_buffer=None, no_alloc=False))
        self.types = {np.dtype(np.float16): self.g.GGML_TYPE_F16, np.dtype(np.float32): self.g.GGML_TYPE_F32,
                      np.dtype(np.int32): self.g.GGML_TYPE_I32, np.dtype(np.int64): self.g.GGML_TYPE_I64}  # fmt: skip

    def close(self) -> None:
        self.g.ggml_free(self.ctx)

    def memory(self, tensor: Any, count: int, dtype: Any) -> np.ndarray:
        """The first elements of a tensor's memory, dense."""
        pointer = ctypes.cast(self.g.ggml_get_data(tensor), ctypes.POINTER(ctypes.c_uint8))
        return np.ctypeslib.as_array(pointer, (count * np.dtype(dtype).itemsize,)).view(dtype)

    def tensor(self, array: np.ndarray) -> Any:
        ne = [*array.shape[::-1], 1, 1, 1][:4]
        made = self.g.ggml_new_tensor_4d(self.ctx, self.types[array.dtype], *ne)
        self.memory(made, array.size, array.dtype)[...] = array.reshape(-1)
        return made

    def node(self, call: Call, a: Any, inplace: bool = False) -> Any:
        kind = ("multi" if call.sections else "ext") + ("_inplace" if inplace else "" if call.forward else "_back")
        sections = [(ctypes.c_int * 4)(*call.sections)] if call.sections else []
        c = None if call.c is None else self.tensor(call.c)
        function = getattr(self.g, f"ggml_rope_{kind}")
        return function(
            self.ctx, a, self.tensor(call.b), c, call.n_dims, *sections, call.mode, *call.floats.values()
        )  # fmt: skip

    def compute(self, node: Any) -> None:
        graph = self.g.ggml_new_graph(self.ctx)
        self.g.ggml_build_forward_expand(graph, node)
        assert self.g.ggml_graph_compute_with_ctx(self.ctx, graph, 1) == 0

    def run(self, call: Call, inplace: bool = False) -> np.ndarray:
        node = self.node(call, self.tensor(call.a), inplace)
        self.compute(node)
        return self.memory(node, call.a.size, call.a.dtype).reshape(call.a.shape).copy()


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


def few(a: np.ndarray) -> int:
    """Factor on a limit: among few halves, one on the edge of a tie that falls to the other side counts much."""
    return 20 if a.dtype == np.float16 and a.size < 4096 else 1


@pytest.mark.one_in(2)
def test_live_exact_angles(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live) -> None:
    """ggml's own limit, at the positions of its own tests."""
    for call in calls(rng, 30, offsets=False, largest=32):
        assert nmse(call.run(device=device.index), live.run(call)) <= 1e-7 * few(call.a), call


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "allowed"), [("f32", 1e-9), ("f16", 1e-8)])
def test_live_ggml_angles(
    device: clrope.DeviceInfo, rng: np.random.Generator, live: Live, dtype: str, allowed: float
) -> None:
    for call in calls(rng, 30, highest=131072, offsets=False, largest=32):
        call.a = call.a.astype(DTYPES[dtype])
        got = call.run(angles="ggml", device=device.index)
        assert nmse(got, live.run(call, inplace=call.forward)) <= allowed * few(call.a), call


def test_live_views(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live) -> None:
    """A window of a parent, with the same ne, nb and view_offs in both, in place: equal inside, untouched outside."""
    for call in calls(rng, 30, offsets=False):
        if call.a.ndim < 4 or not call.forward:
            continue
        dtype, item = call.a.dtype, call.a.dtype.itemsize
        batch, seq, heads, head_dim = call.a.shape
        parent = rng.uniform(-1, 1, (batch, seq, heads + 2, head_dim + 8)).astype(dtype)
        theirs = live.tensor(parent)
        nb, offset = [int(n) for n in theirs.contents.nb], (head_dim + 8 + 3) * item
        ne = [head_dim, heads, seq, batch]
        view = live.g.ggml_view_4d(live.ctx, theirs, *ne, *nb[1:], offset)
        live.compute(live.node(call, view, inplace=True))
        mine = parent.copy()
        call.run(ggml.Tensor(mine, ggml.GGML_TYPES.get("f16" if item == 2 else "f32", -1), ne, nb, offset),
                 inplace=True, angles="ggml", device=device.index)  # fmt: skip
        want = live.memory(theirs, parent.size, dtype).reshape(parent.shape)
        assert nmse(mine, want) <= (1e-9 if item == 4 else 1e-8) * few(call.a), call
        outside = np.ones(parent.shape, dtype=bool)
        outside[:, :, 1 : heads + 1, 3 : head_dim + 3] = False
        assert np.array_equal(bits(mine)[outside], bits(parent)[outside]), call


@pytest.mark.parametrize("to", DTYPES)
def test_live_rows(device: clrope.DeviceInfo, rng: np.random.Generator, live: Live, to: str) -> None:
    for call in calls(rng, 40, offsets=False):
        if call.a.ndim != 3 or not call.forward:
            continue
        call.a = call.a.astype(np.float32)  # ggml_set_rows of older versions takes no other
        seq, heads, head_dim = call.a.shape
        dst = rng.uniform(-1, 1, (seq + 4, heads * head_dim)).astype(DTYPES[to])
        rows = rng.permutation(seq + 4)[:seq].astype(np.int64)
        theirs = live.tensor(dst)
        rotated = live.node(call, live.tensor(call.a))
        flat = live.g.ggml_view_2d(live.ctx, rotated, heads * head_dim, seq, rotated.contents.nb[2], 0)
        live.compute(live.g.ggml_set_rows(live.ctx, theirs, flat, live.tensor(rows)))
        want = live.memory(theirs, dst.size, dst.dtype).reshape(dst.shape)
        set_rows(call, dst, rows, angles="ggml", device=device.index)
        assert nmse(dst, want) <= (1e-9 if to == "f32" else 1e-8) * few(dst), call


@pytest.mark.parametrize("line", list(ggml_fusion_lines()), ids=lambda line: line.label)
@pytest.mark.one_in(16)
def test_live_fusion(device: clrope.DeviceInfo, line: GgmlNormLine | GgmlRowsLine, live: Live, seed: int) -> None:
    """ggml's own cases and limit of a norm with a rotation after it, and of rows of a cache after it."""
    trial = line.prepare(seed)
    got, errors = trial.results(device)
    assert not errors
    node = norm_and_rope(live, trial) if isinstance(trial, GgmlNormTrial) else rotated(live, trial)
    want = live.memory(node, got[0].size, np.float32)
    live.compute(node)
    assert nmse(got[0].reshape(-1), want) <= 1e-7
    if len(got) > 1:
        want = stored(live, node, trial, got[1])
        assert nmse(got[1].reshape(want.shape), want) <= 1e-7


def norm_and_rope(live: Live, trial: GgmlNormTrial) -> Any:
    """ggml's graph: sums, rms_norm, mul, rope."""
    g, ctx = live.g, live.ctx
    first, *others = (live.tensor(part) for part in trial.parts)
    for other in others:
        first = g.ggml_add(ctx, first, other)
    normed = g.ggml_mul(ctx, g.ggml_rms_norm(ctx, first, EPS), live.tensor(trial.weight))
    return g.ggml_rope(ctx, normed, live.tensor(trial.positions), trial.config.n_dims, trial.config.ggml_mode)


def rotated(live: Live, trial: GgmlRowsTrial) -> Any:
    config = trial.config
    floats = {name: getattr(config, name) for name in PLAIN}
    call = Call(trial.x[0], trial.positions.reshape(-1), None, config.n_dims, config.ggml_mode, config.sections, floats)
    return live.node(call, live.tensor(trial.x[0]))


def stored(live: Live, node: Any, trial: GgmlNormTrial | GgmlRowsTrial, cache: np.ndarray) -> np.ndarray:
    """What set_rows makes of the cache; rows that it does not write are taken from it."""
    _, tokens, heads, head_dim = trial.x[0].shape
    theirs = live.tensor(cache.reshape(-1, heads * head_dim))
    live.memory(theirs, cache.size, cache.dtype).reshape(-1, heads * head_dim)[trial.rows] = 9
    flat = live.g.ggml_view_2d(live.ctx, node, heads * head_dim, tokens, node.contents.nb[2], 0)
    live.compute(live.g.ggml_set_rows(live.ctx, theirs, flat, live.tensor(trial.rows)))
    return live.memory(theirs, cache.size, cache.dtype).reshape(-1, heads * head_dim).copy()


def test_live_op_params(rng: np.random.Generator, live: Live) -> None:
    for call in calls(rng, 30, offsets=False):
        node = live.node(call, live.tensor(call.a))
        words = np.array(node.contents.op_params[:16], np.int32)
        made = ggml.OpParams(call.n_dims, call.mode, **call.floats, sections=call.sections or (0, 0, 0, 0))
        assert made.encode().tolist() == words.tolist(), call
        assert ggml.OpParams.decode(words) == made, call
