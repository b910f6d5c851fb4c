"""vLLM's rotary_embedding against its loops written out in NumPy, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import POISON, bits

import clrope
from clrope import ConfigError, ShapeError, tables
from clrope.call.runtime import runtime_for
from clrope.interop.vllm import rotary_embedding

TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
CACHES = (None, np.float32, np.float16, ml_dtypes.bfloat16)


def rotated(
    x: np.ndarray, positions: np.ndarray, size: int, cache: np.ndarray, is_neox: bool, start: int, inverse: bool
) -> np.ndarray:
    """Return what the operator makes of query or key: one token, head and pair after the other, in float32."""
    y = x.copy().reshape(positions.size, -1, size)
    half = cache.shape[1] // 2
    for token, position in enumerate(positions.reshape(-1)):
        cos, sin = cache[position, :half].astype(np.float32), cache[position, half:].astype(np.float32)
        if inverse:
            sin = -sin
        for head in y[token]:
            for i in range(half):
                a, b = (start + i, start + half + i) if is_neox else (start + 2 * i, start + 2 * i + 1)
                first, second = np.float32(head[a]), np.float32(head[b])
                head[a] = first * cos[i] - second * sin[i]
                head[b] = second * cos[i] + first * sin[i]
    return y.reshape(x.shape)


def as_torch(x: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else (
        torch.from_numpy(x)
    )  # fmt: skip


@pytest.mark.one_in(8)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("is_neox", [True, False])
def test_random_calls(device: clrope.DeviceInfo, rng: np.random.Generator, kind: str, is_neox: bool) -> None:
    """Every type of tensors and cache; q and k apart, or slices of one tensor with other numbers between."""
    for dtype in TYPES:
        for cache_dtype in CACHES:
            heads, kv_heads = ((4, 2), (6, 1), (3, 3))[rng.integers(3)]
            size, tokens = int(rng.choice([16, 24, 64])), ((7,), (2, 3), (1, 1))[rng.integers(3)]
            rot, start = ((size, 0), (8, 0), (8, 4))[rng.integers(3)]
            inverse, with_key, apart = (bool(rng.integers(2)) for _ in range(3))
            columns = (heads + 2 * kv_heads) * size
            qkv = rng.uniform(-1, 1, (*tokens, columns)).astype(dtype)
            cache = rng.uniform(-1, 1, (31, rot)).astype(cache_dtype or dtype)
            positions = rng.integers(0, 31, tokens)
            cuts = slice(0, heads * size), slice(heads * size, (heads + kv_heads) * size)
            want = qkv.copy()
            for cut in cuts[: 1 + with_key]:
                want[..., cut] = rotated(qkv[..., cut], positions, size, cache, is_neox, start, inverse)
            wrap = as_torch if kind == "torch" else np.asarray
            q, k = (wrap(qkv)[..., cut] for cut in cuts)
            if apart:  # [..., heads, head_size]
                q, k = (x.reshape(*tokens, -1, size) for x in (q, k))
            args = wrap(positions), q, k if with_key else None, size, wrap(cache), is_neox, start, inverse
            assert rotary_embedding(*args, device=device.index) is None
            message = (dtype, cache_dtype, heads, kv_heads, size, tokens, rot, start, inverse, with_key, apart)
            assert np.array_equal(bits(qkv), bits(want)), message


def test_q_and_k_in_one_launch(
    device: clrope.DeviceInfo, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as slices of qkv; a second call does not check again whether they share memory."""
    if runtime_for(device.index).host_access == "copied":
        pytest.skip("tensors that are copied to the device are rotated one by one")
    qkv, positions = rng.uniform(-1, 1, (9, 6 * 32)).astype(np.float32), rng.integers(0, 50, 9)
    cache, launches = rng.uniform(-1, 1, (50, 32)).astype(np.float32), []
    real = tables.Call.run
    monkeypatch.setattr(tables.Call, "run", lambda call, *args: launches.append(len(call.steps)) or real(call, *args))
    for _ in range(2):
        want = rotated(qkv[:, :160], positions, 32, cache, True, 0, False)
        rotary_embedding(positions, qkv[:, :128], qkv[:, 128:160], 32, cache, True, device=device.index)
        assert np.array_equal(qkv[:, :160], want)
        monkeypatch.setattr(tables, "_prepare", None)
    assert launches == [1, 1]


def test_a_shared_place_is_refused(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Slices that overlap have the shapes and strides of slices that do not."""
    cache, positions = rng.uniform(-1, 1, (4, 8)).astype(np.float32), np.arange(3)
    x = rng.uniform(-1, 1, (3, 40)).astype(np.float32)
    rotary_embedding(positions, x[:, :16], x[:, 16:24], 8, cache, True, device=device.index)
    before = x.copy()
    with pytest.raises(ShapeError, match=r"query, key: .* overlaps"):
        rotary_embedding(positions, x[:, :16], x[:, 8:16], 8, cache, True, device=device.index)
    assert np.array_equal(x, before)


def test_no_tokens(device: clrope.DeviceInfo) -> None:
    empty, cache = np.empty((0, 16), np.float32), np.ones((4, 8), np.float32)
    rotary_embedding(np.empty(0, np.int64), empty, empty, 8, cache, True, device=device.index)


X, CACHE, ROWS = (3, 16), (5, 8), (0, 4, 2)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"positions": [0, 5, 2]}, ShapeError, r"positions: got 5, .* 0 \.\.\. 4"),
    ({"positions": [0, -1, 2]}, ShapeError, "positions: got -1"),
    ({"positions": np.zeros(3)}, ShapeError, "positions: got dtype float64"),
    ({"positions": 0}, ShapeError, "positions: got shape"),
    ({"positions": [0, 1]}, ShapeError, r"query: got shape \[3, 16\]"),
    ({"positions": [[0, 1, 2]]}, ShapeError, r"query: got shape \[3, 16\]"),
    ({"query": np.ones((3, 15), np.float32)}, ShapeError, r"query: got shape \[3, 15\]"),
    ({"query": np.ones((3, 2, 4), np.float32)}, ShapeError, r"query: got shape \[3, 2, 4\]"),
    ({"query": [[1.0] * 16] * 3}, ShapeError, "query: got list"),
    ({"query": np.ones(X, np.int32)}, ShapeError, "key: got dtype float32"),
    ({"key": np.ones((2, 16), np.float32)}, ShapeError, r"key: got shape \[2, 16\]"),
    ({"key": np.ones(X, np.float16)}, ShapeError, "key: got dtype float16"),
    ({"key": np.broadcast_to(np.float32(1), X)}, ShapeError, "query, key: .*read-only"),
    ({"head_size": 0}, ConfigError, "head_size: got 0"),
    ({"head_size": 8.0}, ConfigError, "head_size: got 8.0"),
    ({"head_size": 4}, ShapeError, "cos_sin_cache: got shape"),
    ({"cos_sin_cache": np.ones((5, 7), np.float32)}, ShapeError, "cos_sin_cache: got shape"),
    ({"cos_sin_cache": np.ones((5, 2, 4), np.float32)}, ShapeError, "cos_sin_cache: got shape"),
    ({"cos_sin_cache": np.ones(CACHE, np.float64)}, ShapeError, "cos_sin_cache.*float64"),
    ({"cos_sin_cache": None}, ShapeError, "cos_sin_cache: got NoneType"),
    ({"is_neox": 1}, ConfigError, "is_neox: got 1"),
    ({"inverse": None}, ConfigError, "inverse: got None"),
    ({"rope_dim_offset": 2}, ConfigError, "rope_dim_offset"),
    ({"rope_dim_offset": 1}, ConfigError, "rope_dim_offset: got 1"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(device: clrope.DeviceInfo, change: dict[str, Any], error: type[Exception], message: str) -> None:
    """What is refused leaves query and key as they were."""
    q, k = (np.full(X, POISON, np.float32) for _ in range(2))
    arguments = {
        "positions": np.array(ROWS), "query": q, "key": k, "head_size": 8, "is_neox": True,
        "cos_sin_cache": np.ones(CACHE, np.float32),
    }  # fmt: skip
    rotary_embedding(**arguments, device=device.index)  # it is the change that is refused
    before = q.copy(), k.copy()
    with pytest.raises(error, match=message):
        rotary_embedding(**{**arguments, **change}, device=device.index)
    assert np.array_equal(q, before[0])
    assert np.array_equal(k, before[1])
