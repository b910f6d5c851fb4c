"""Dask arrays: the bits of `clrope.rope` on the whole array, however it is cut, and nothing computed too early."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope.errors import ConfigError, DeviceError, ShapeError

da = pytest.importorskip("dask.array", reason="dask is not installed: pip install 'clrope[dask]'")
dask = pytest.importorskip("dask")

from clrope.interop.dask import rope  # noqa: E402

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, ml_dtypes.float8_e4m3fn)
PLAIN = clrope.RopeConfig("neox", n_dims=16)
SECTIONS = clrope.RopeConfig("mrope", n_dims=16, sections=(2, 3, 3, 0))
SCHEDULERS = pytest.mark.parametrize("scheduler", ["synchronous", "threads"])


@pytest.fixture(autouse=True)
def _on_device(request, monkeypatch):
    """Tests that take `device` run there."""
    if "device" in request.fixturenames:
        monkeypatch.setenv("CLROPE_DEVICE", request.getfixturevalue("device").index)


def cut(rng, length):
    """Chunks of an axis, some of them empty."""
    bounds = np.sort(rng.integers(0, length + 1, int(rng.integers(0, 4))))
    return tuple(int(n) for n in np.diff([0, *bounds, length]))


def forms(rng, b, s, sections):
    """Positions of every form for b batches of s tokens."""
    far = 1 << 34
    yield "int", int(rng.integers(0, far))
    yield "negative int", -int(rng.integers(1, 99))
    yield "numpy int", np.uint16(rng.integers(0, 99))
    yield "[S]", rng.integers(0, far, s)
    yield "[S] counting up", np.arange(9, 9 + s, dtype=np.int32)
    yield "[1, S]", rng.integers(0, 99, (1, s))
    yield "list", [int(p) for p in rng.integers(-50, 99, s)]
    if b != s:
        yield "[B]", rng.integers(0, far, b)
    if s > 1:
        yield "[B, 1]", rng.integers(-far, far, (b, 1))
    if sections:
        for rows in (3, 4):
            yield f"[{rows}, S]", rng.integers(0, 99, (rows, s)).astype(np.uint8)
            yield f"[{rows}, B, S]", rng.integers(0, far, (rows, b, s))
            yield f"[{rows}, 1, S]", rng.integers(0, 99, (rows, 1, s))
    else:
        yield "[B, S]", rng.integers(-far, far, (b, s))


def draw(rng, layout, dtype):
    """A NumPy array and the same in chunks."""
    lengths = {"b": int(rng.integers(1, 5)), "s": int(rng.integers(1, 24)), "n": int(rng.integers(1, 6)), "d": 16}
    shape = [lengths[c] for c in layout]
    x = rng.uniform(-1, 1, shape).astype(dtype)
    chunks = tuple((16,) if c == "d" else cut(rng, lengths[c]) for c in layout)
    print(f"{layout=} {shape=} {chunks=}")
    return x, da.from_array(x, chunks=chunks), lengths


def same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


@pytest.mark.one_in(6)
@SCHEDULERS
@pytest.mark.parametrize("config", [PLAIN, SECTIONS], ids=["plain", "sections"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_bits_of_the_whole_array(device, rng, dtype, config, scheduler):
    if np.dtype(dtype) == np.float64 and not device.fp64:
        pytest.skip("the device has no fp64")
    for layout in ("bsnd", "bnsd", "snd", "nbsd"):
        x, lazy, lengths = draw(rng, layout, dtype)
        for name, positions in forms(rng, lengths["b"] if "b" in layout else 1, lengths["s"], config.uses_sections):
            forward = bool(rng.integers(0, 2))
            print(name, f"{forward=}")
            y = rope(lazy, positions, config, forward, layout)
            assert y.chunks == lazy.chunks
            assert y.dtype == y._meta.dtype == x.dtype
            same_bits(y.compute(scheduler=scheduler), clrope.rope(x, positions, config, forward, layout=layout))


@pytest.mark.parametrize("config", [PLAIN, SECTIONS], ids=["plain", "sections"])
def test_positions_may_be_lazy(device, rng, config):
    for _ in range(3):
        x, lazy, lengths = draw(rng, "bsnd", np.float32)
        for name, positions in forms(rng, lengths["b"], lengths["s"], config.uses_sections):
            print(name)
            array = np.asarray(positions)
            given = da.from_array(array, chunks=tuple(cut(rng, n) for n in array.shape))
            same_bits(rope(lazy, given, config).compute(), clrope.rope(x, positions, config))


@pytest.mark.parametrize("config", [PLAIN, SECTIONS], ids=["plain", "sections"])
def test_one_position_beyond_32_bits_changes_the_arithmetic_of_all(device, rng, config):
    x = rng.uniform(-1, 1, (2, 600, 2, 16)).astype(np.float32)
    lazy = da.from_array(x, chunks=(1, 200, 2, 16))
    line = rng.integers(1 << 25, 1 << 31, 600)
    line[-1] = 1 << 40
    first = (1 << 31) - 300
    narrow = clrope.rope(x[:, :200], line[:200], config)
    assert (narrow != clrope.rope(x, line, config)[:, :200]).any(), "the chunk alone has the bits of the whole"
    for positions in (line, first, np.array([1 << 30, first]), -first - 600, np.stack([line] * 3)):
        if np.ndim(positions) == 2 and not config.uses_sections:
            positions = positions[:2]
        want = clrope.rope(x, positions, config)
        same_bits(rope(lazy, positions, config).compute(), want)
        same_bits(rope(lazy, da.from_array(np.asarray(positions)), config).compute(), want)


def test_packed_sequences(device, rng):
    x = rng.uniform(-1, 1, (1, 30, 4, 16)).astype(np.float16)
    each = np.stack([x, -x]).reshape(2, *x.shape[-3:])
    y = rope(da.from_array(each, chunks=(1, 8, 3, 16)), config=PLAIN, offsets=[5, 1 << 33])
    same_bits(y.compute(), clrope.rope(each, config=PLAIN, offsets=[5, 1 << 33]))
    bounds, offsets = [0, 7, 7, 30], [5, 0, 1000]
    y = rope(da.from_array(x, chunks=(1, 8, 3, 16)), config=PLAIN, cu_seqlens=bounds, offsets=offsets)
    same_bits(y.compute(), clrope.rope(x, config=PLAIN, cu_seqlens=bounds, offsets=offsets))


def test_as_many_batches_as_tokens_in_a_chunk(device, rng):
    # Offsets of 3 batches next to 3 tokens: what would be one position a token in a call on the chunk alone.
    x = rng.uniform(-1, 1, (3, 9, 2, 16)).astype(np.float32)
    for config in (PLAIN, SECTIONS):
        got = rope(da.from_array(x, chunks=(3, 3, 1, 16)), np.array([4, 70, 900]), config).compute()
        same_bits(got, clrope.rope(x, np.array([4, 70, 900]), config))


def test_backward_undoes_forward(device, rng):
    x = rng.uniform(-1, 1, (2, 12, 4, 16)).astype(np.float64 if device.fp64 else np.float32)
    y = rope(rope(da.from_array(x, chunks=(1, 5, 2, 16)), 10**6, PLAIN), 10**6, PLAIN, forward=False)
    np.testing.assert_allclose(y.compute(), x, rtol=0, atol=1e-6)


def test_ggml_angles_and_keywords(device, rng):
    x = rng.uniform(-1, 1, (1, 20, 2, 32)).astype(np.float32)
    fields = {"mode": "normal", "freq_base": 5e5, "angles": "ggml"}
    got = rope(da.from_array(x, chunks=(1, 6, 1, 32)), 77, **fields)
    same_bits(got.compute(), clrope.rope(x, 77, **fields))


def computes(block):
    raise AssertionError("a block was computed")


def test_nothing_is_computed_early(rng):
    x = da.zeros((2, 10, 4, 16), chunks=(1, 4, 2, 16), dtype=np.float32).map_blocks(computes, dtype=np.float32)
    where = da.arange(10, chunks=3).map_blocks(computes, dtype=np.int64)
    for positions in (0, np.arange(10), where):
        y = rope(x, positions, PLAIN)
        assert y.shape == x.shape
        with pytest.raises(AssertionError, match="a block was computed"):
            y.compute(scheduler="synchronous")


def test_same_arguments_make_the_same_names_and_the_graph_travels(device, rng):
    x = rng.uniform(-1, 1, (1, 10, 4, 16)).astype(np.float32)
    lazy = da.from_array(x, chunks=(1, 4, 2, 16))
    y = rope(lazy, 3, PLAIN)
    assert y.name == rope(lazy, 3, PLAIN).name != rope(lazy, 4, PLAIN).name
    same_bits(pickle.loads(pickle.dumps(y)).compute(), clrope.rope(x, 3, PLAIN))


def test_divided_heads(device, rng):
    x = rng.uniform(-1, 1, (1, 10, 4, 16)).astype(np.float32)
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    with pytest.raises(ShapeError, match=r"x: got chunks \[8, 8\] along d.*x.rechunk\(\{3: -1\}\)"):
        rope(lazy, 0, PLAIN)
    with pytest.warns(da.core.PerformanceWarning, match=r"x: rechunked along d from \[8, 8\] to \[16\]"):
        y = rope(lazy, 0, PLAIN, rechunk=True)
    assert y.chunks == (*lazy.chunks[:3], (16,))
    same_bits(y.compute(), clrope.rope(x, 0, PLAIN))


def test_chunks_that_are_not_aligned(device, rng):
    # As chunks are after they were sent from one worker to another.
    x = rng.uniform(-1, 1, (1, 10, 4, 16)).astype(np.float32)
    memory = np.zeros(x.nbytes + 1, np.uint8)
    shifted = np.ndarray(x.shape, x.dtype, memory, 1)
    shifted[...] = x
    assert not shifted.flags.aligned
    lazy = da.map_blocks(lambda: shifted, chunks=((1,), (10,), (4,), (16,)), dtype=x.dtype, meta=x[:0])
    same_bits(rope(lazy, 3, PLAIN).compute(scheduler="synchronous"), clrope.rope(x, 3, PLAIN))


X = da.zeros((2, 10, 4, 16), chunks=(1, 4, 2, 16), dtype=np.float32)
UNKNOWN = X[X[:, 0, 0, 0] >= 0]


@pytest.mark.parametrize(
    ("kind", "call", "text"),
    [
        (ShapeError, lambda: rope(np.zeros((1, 2, 2, 16)), 0, PLAIN), "x: got ndarray, a dask.array.Array is needed"),
        (ShapeError, lambda: rope((X, X), 0, PLAIN), "x: got tuple, a dask.array.Array is needed"),
        (ShapeError, lambda: rope(X.astype(int), 0, PLAIN), "x: got dtype int64, allowed are"),
        (ShapeError, lambda: rope(X[0, 0], 0, PLAIN), "x: got rank 2, allowed are"),
        (ShapeError, lambda: rope(UNKNOWN, 0, PLAIN), "x: got chunks of unknown lengths"),
        (ShapeError, lambda: rope(X, None, PLAIN), "positions: not given"),
        (ShapeError, lambda: rope(X, np.arange(9), PLAIN), r"positions: got shape \[9\], allowed here are"),
        (ShapeError, lambda: rope(X, da.arange(9), PLAIN), r"positions: got shape \[9\], allowed here are"),
        (ShapeError, lambda: rope(X, 0.5, PLAIN), "positions: got dtype float64"),
        (ShapeError, lambda: rope(X, da.zeros(10), PLAIN), "positions: got dtype float64"),
        (ShapeError, lambda: rope(X, da.arange(10)[da.arange(10) > 3], PLAIN), "positions: got chunks of unknown"),
        (ShapeError, lambda: rope(X, 2**63 - 5, PLAIN), "positions: offset 9223372036854775803 with 10 tokens goes"),
        (ShapeError, lambda: rope(X, [0, 2**63 - 5], PLAIN), "positions: offset 9223372036854775803 with 10 tokens"),
        (ShapeError, lambda: rope(X, config=PLAIN, cu_seqlens=[0, 10]), "cu_seqlens: got x of 2 batches"),
        (ShapeError, lambda: rope(X, 0, PLAIN, cu_seqlens=[0, 10]), "positions: given together with cu_seqlens"),
        (ShapeError, lambda: rope(X[:1], config=PLAIN, cu_seqlens=da.arange(2)), "cu_seqlens, offsets: got a Dask"),
        (ShapeError, lambda: rope(X, 0, PLAIN, offsets=[0]), "offsets: given together with positions"),
        (ConfigError, lambda: rope(X, 0), "mode: not given"),
        (ConfigError, lambda: rope(X, 0, mode="neox", n_dim=2), "n_dim: no such field"),
        (ConfigError, lambda: rope(X, 0, PLAIN, mode="neox"), "config: given together with mode"),
        (ConfigError, lambda: rope(X, 0, "neox"), "config: got str"),
        (ConfigError, lambda: rope(X, 0, PLAIN, "no"), "forward: got 'no'"),
        (ConfigError, lambda: rope(X, 0, clrope.RopeConfig("neox", n_dims=32)), "n_dims"),
        (ConfigError, lambda: rope(X, 0, PLAIN, device=3), "device: got int, a name is needed"),
        (ShapeError, lambda: rope(X, [[1], [1, 2]], PLAIN), "positions: got list that is no array"),
        (ShapeError, lambda: rope(X, {1, 2}, PLAIN), "positions: got dtype object"),
        (ShapeError, lambda: rope(X, 10**5000, PLAIN), "positions: got an integer of 16610 bits, allowed"),
        (ShapeError, lambda: rope(X, np.ma.masked_array(np.arange(10)), PLAIN), "positions: got a masked array"),
        (ConfigError, lambda: rope(X, 0, PLAIN, rechunk="no"), "rechunk: got 'no' of type str, True or False"),
        (ConfigError, lambda: rope(X, 0, PLAIN, rechunk=np.array([1, 0])), "rechunk: got array"),
    ],
)  # fmt: skip
def test_refused_when_the_graph_is_made(kind, call, text):
    with pytest.raises(kind, match=text):
        call()


def test_values_of_lazy_positions_are_refused_when_computed(device):
    late = da.from_array(np.array([0, 2**63 - 5]), chunks=1)
    with pytest.raises(ShapeError, match="goes beyond 64-bit integers"):
        rope(X, late, PLAIN).compute(scheduler="synchronous")
    with pytest.raises(DeviceError, match="no-such-device"):
        rope(X, 0, PLAIN, device="no-such-device").compute(scheduler="synchronous")


def test_empty_arrays(device):
    for shape in ((0, 4, 2, 16), (1, 0, 2, 16), (1, 4, 0, 16), (1, 4, 2, 0)):
        x = da.zeros(shape, dtype=np.float16)
        assert rope(x, 0, clrope.RopeConfig("neox")).compute().shape == shape


def test_local_cluster_of_processes(device, rng):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install 'clrope[dask]'")
    x = rng.uniform(-1, 1, (2, 40, 4, 16)).astype(ml_dtypes.bfloat16)
    positions = rng.integers(0, 1000, (2, 40))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        y = rope(da.from_array(x, chunks=(1, 10, 2, 16)), positions, PLAIN)
        same_bits(client.compute(y).result(timeout=600), clrope.rope(x, positions, PLAIN))
        kept = client.run(lambda: [d.index for d in __import__("clrope.call.runtime").call.runtime.runtimes.own])
        # Contexts are made in the workers and stay there, one a process.
        assert list(kept.values()) == [[device.index]] * 2
