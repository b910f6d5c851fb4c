"""The torch adapter against the module it stands in for, `coreai_torch.composite_ops.RoPE`, where that is installed."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer = pytest.importorskip("coreai_torch.composite_ops")

from clrope.interop.torch import RoPE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def gen(device, rng, monkeypatch):
    monkeypatch.setenv("CLROPE_DEVICE", device.index)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN: what no kernel wrote is seen
    yield torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("dims", [None, 8, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
def test_same_as_coreai(gen, dims, interleaved, dtype):
    def rand(*shape):
        return (torch.rand(*shape, generator=gen) * 2 - 1).to(dtype)

    x = rand(2, 3, 5, 24)
    n = min(dims or 24, 24)
    freqs = torch.rand(n // 2, generator=gen)
    ids = torch.randint(0, 300, (2, 5), generator=gen)
    cos, sin = rand(5, n // 2), rand(2, 1, 5, n // 2)
    # There cos and sin made from positions are rounded to the type of the input, the products and the sum too.
    tolerance = {torch.float32: 2e-4, torch.float16: 6e-3, torch.bfloat16: 5e-2}[dtype]
    for scale, given in [
        (1.0, {}),
        (0.3, {"offset": torch.tensor([7, 300])}),
        (0.3, {"offset": torch.tensor([7, 300]), "freqs": freqs}),
        (1.0, {"position_ids": ids}),
        (1.0, {"position_ids": ids, "freqs": freqs}),
        (2.0, {"cos": cos, "sin": sin, "position_ids": ids, "freqs": freqs}),
    ]:
        want = peer.RoPE(scale, 500.0, dims, interleaved)(x, **given)
        got = RoPE(scale, 500.0, dims, interleaved)(x, **given)
        assert got.dtype == want.dtype
        assert (got - want).abs().max() <= tolerance, (scale, list(given))


def test_scale_with_position_ids_differs_as_documented(gen):
    """Its page says that position_ids are taken as they are, its code scales them; docs/interop-torch.md says how."""
    x, ids = torch.rand(2, 3, 5, 8, generator=gen), torch.randint(0, 300, (2, 5), generator=gen)
    freqs = torch.tensor([1.0, 0.1, 0.01, 0.001])
    want = peer.RoPE(0.3)(x, position_ids=ids)
    assert (RoPE()(x, position_ids=ids, freqs=0.3 * freqs) - want).abs().max() <= 2e-4
    assert torch.equal(RoPE(0.3)(x, position_ids=ids), RoPE(1.0)(x, position_ids=ids))
