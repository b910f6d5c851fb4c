"""`permute_qk`: attention scores stay, and the order is that of the converters."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clrope

MODES = ("normal", "neox")


def scores(
    q: np.ndarray, k: np.ndarray, x: np.ndarray, heads: tuple[int, int], config: clrope.RopeConfig
) -> np.ndarray:
    """q.k of every query head with its key head, for projections q and k of x [S, hidden]."""
    tokens = x.shape[0]
    projected = [(x @ w.T).reshape(tokens, n, -1) for w, n in zip((q, k), heads, strict=True)]
    q_rot, k_rot = (clrope.reference.rope(p, np.arange(tokens) * 7 + 3, config) for p in projected)
    k_rot = np.repeat(k_rot, heads[0] // heads[1], axis=1)
    result: np.ndarray = np.einsum("snd,tnd->nst", q_rot, k_rot)
    return result


@pytest.mark.parametrize("source", MODES)
@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("n_dims", [None, 12])
def test_scores_stay_equal(source: str, key_heads: int, n_dims: int | None, rng: np.random.Generator) -> None:
    target = MODES[1 - MODES.index(source)]
    q, k = rng.standard_normal((6 * 20, 31)), rng.standard_normal((key_heads * 20, 31))
    x = rng.standard_normal((9, 31))
    before, after = (clrope.RopeConfig(mode=mode, n_dims=n_dims) for mode in (source, target))
    heads = (6, key_heads)
    want = scores(q, k, x, heads, before)
    moved = [clrope.permute_qk(w, n, source, target, n_dims=n_dims) for w, n in zip((q, k), heads, strict=True)]
    np.testing.assert_allclose(scores(*moved, x, heads, after), want, rtol=0, atol=1e-11 * abs(want).max())
    assert abs(scores(q, k, x, heads, after) - want).max() > 0.01 * abs(want).max()
    for weight, there, n in zip((q, k), moved, heads, strict=True):
        back = clrope.permute_qk(there, n, target, source, n_dims=n_dims)
        assert np.array_equal(back, weight)
        assert not np.array_equal(there, weight)
        assert np.array_equal(clrope.permute_qk(weight, n, source, source, n_dims=n_dims), weight)


def test_the_order_is_that_of_the_converters(rng: np.random.Generator) -> None:
    """The published formulas: to transformers' halves `view(n, d/2, 2, ...).transpose(1, 2)`, to GGUF the inverse."""
    heads, head_dim, hidden = 3, 10, 7
    weight = rng.standard_normal((heads * head_dim, hidden))
    halves = weight.reshape(heads, head_dim // 2, 2, hidden).swapaxes(1, 2).reshape(weight.shape)
    assert np.array_equal(clrope.permute_qk(weight, heads, "normal", "neox"), halves)
    neighbours = weight.reshape(heads, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(weight.shape)
    assert np.array_equal(clrope.permute_qk(weight, heads, 2, 0), neighbours)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_a_bias_and_every_type(dtype: Any, rng: np.random.Generator) -> None:
    bias = np.arange(4 * 8).astype(dtype)
    moved = clrope.permute_qk(bias, 4, "neox", "normal")
    assert moved.dtype == bias.dtype
    assert moved[:8].astype(int).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert not np.shares_memory(moved, bias)
    transposed = np.asfortranarray(rng.integers(-9, 9, (32, 5)).astype(dtype))
    dense = np.ascontiguousarray(transposed)
    assert np.array_equal(
        clrope.permute_qk(transposed, 4, "neox", "normal"), clrope.permute_qk(dense, 4, "neox", "normal")
    )


def test_torch_tensors_stay_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    weight = rng.standard_normal((4 * 16, 5)).astype(np.float32)
    want = clrope.permute_qk(weight, 4, "normal", "neox", n_dims=8)
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.from_numpy(weight).to(dtype)
        moved = clrope.permute_qk(tensor, 4, "normal", "neox", n_dims=8)
        assert moved.dtype == dtype
        assert torch.equal(moved, torch.from_numpy(want).to(dtype))


def test_a_sparse_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(clrope.ShapeError, match="weight: Tensor cannot be read"):
        clrope.permute_qk(torch.ones(8, 4).to_sparse(), 2, "normal", "neox")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((10, 4)), 3, "normal", "neox"), r"weight: got shape \[10, 4\], .* multiple of n_heads 3"),
        ((np.ones((0, 4)), 3, "normal", "neox"), r"weight: got shape \[0, 4\]"),
        ((np.float32(1.0) * np.ones(()), 1, "normal", "neox"), r"weight: got"),
        (([[1.0, 2.0]], 1, "normal", "neox"), "weight: got list, allowed are NumPy arrays and torch tensors"),
        ((np.ones((9, 4)), 3, "normal", "neox"), "n_dims: got 3, an even number up to head_dim = 3"),
        ((np.ones((8, 4)), 0, "normal", "neox"), "n_heads: got 0"),
        ((np.ones((8, 4)), True, "normal", "neox"), "n_heads: got True"),
        ((np.ones((8, 4)), 10**5000, "normal", "neox"), "n_heads: got an integer of 16610 bits, at most"),
        ((np.ones((8, 4)), [10**5000], "normal", "neox"), "n_heads: got a list that cannot be printed"),
        ((np.ones((8, 4)).view(np.matrix), 2, "normal", "neox"), r"weight: got matrix, .* pass np.asarray\(weight\)"),
        ((np.ones((8, 4)), 2, "mrope", "neox"), "source: got 'mrope'"),
        ((np.ones((8, 4)), 2, "neox", 24), "target: got 'vision'"),
        ((np.ones((8, 4)), 2, "half", "neox"), "mode: got 'half'"),
    ],
)
def test_refusals(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(clrope.RopeError, match=message):
        clrope.permute_qk(*arguments)


@pytest.mark.parametrize("n_dims", [0, 3, 6, 1.5])
def test_a_wrong_n_dims_is_refused(n_dims: Any) -> None:
    with pytest.raises(clrope.ConfigError, match="n_dims: got"):
        clrope.permute_qk(np.ones((8, 4)), 2, "normal", "neox", n_dims=n_dims)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: clrope.permute_qk(np.zeros((8, 2), np.float32), n, "normal", "neox"),
        lambda n: clrope.packed_positions([0, 2, 5], n),
        lambda n: clrope.RopeConfig("neox", n),
        lambda n: clrope.RopeConfig(n),
    ],
)
@pytest.mark.parametrize("number", [np.timedelta64(2, "s"), np.bool_(True), True])
def test_spans_of_time_and_bools_are_no_integers(call, number):
    with pytest.raises(clrope.RopeError, match="got"):
        call(number)
