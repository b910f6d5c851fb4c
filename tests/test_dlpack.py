"""Arrays that are known by `__dlpack__` and `__dlpack_device__` alone, in and out, without a copy."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import POISON, bits, same

import clrope
from clrope import RopeConfig, ShapeError
from clrope.emulation import emulate_rope

CONFIG = RopeConfig("neox", 12)
WRITABLE_EXPORTS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class Exporter:
    """An array of a library that is not known: of a NumPy array or a torch tensor it shows nothing but DLPack.

    legacy: as exporters before DLPack 1.0, which take no version. device: what it claims to be on.
    """

    def __init__(self, array: Any, legacy: bool = False, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.legacy, self.device = array, legacy, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        assert self.device == (1, 0), "memory that cannot be read was asked for"
        if self.legacy and options:
            raise TypeError("no such arguments")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("legacy", [False, True])
def test_input(device: clrope.DeviceInfo, rng: np.random.Generator, dtype: Any, legacy: bool) -> None:
    if dtype == np.float64 and not device.fp64:
        pytest.skip("no float64")
    x = rng.uniform(-1, 1, (2, 3, 9, 20)).astype(dtype)
    view = x[:, :, 1:6, 2:18]
    before = x.copy()
    got = clrope.rope(Exporter(view, legacy), 5, CONFIG, layout="bnsd", device=device.index)
    assert type(got) is np.ndarray
    assert same(got, emulate_rope(view, 5, CONFIG, layout="bnsd")).all()
    assert np.array_equal(bits(x), bits(before))


@pytest.mark.skipif(not WRITABLE_EXPORTS, reason="NumPy takes all exported memory as read-only before 2.1")
def test_output(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    """Out of place, in place by the same and by another object, several arrays, a plan."""
    q, k = (rng.uniform(-1, 1, (5, n, 16)).astype(np.float32) for n in (3, 1))
    want, want_k = emulate_rope(q, 7, CONFIG), emulate_rope(k, 7, CONFIG)
    target = np.full_like(q, POISON)
    out = Exporter(target)
    assert clrope.rope(Exporter(q), 7, CONFIG, out=out, device=device.index) is out
    assert same(target, want).all()
    x, y = Exporter(q.copy()), Exporter(k.copy())
    assert clrope.rope((x, y), 7, CONFIG, out=(x, Exporter(y.array)), device=device.index)[0] is x
    assert same(x.array, want).all()
    assert same(y.array, want_k).all()
    target[...] = POISON
    op = clrope.Rope(CONFIG, device=device.index)
    assert op.plan(Exporter(q), 7, out=out).run() is out
    assert same(target, want).all()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_refuses(device: clrope.DeviceInfo, rng: np.random.Generator, name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.uniform(-1, 1, (5, 3, 16)).astype(np.float32)).to(getattr(torch, name))
    kind = np.dtype(getattr(ml_dtypes, name))
    numbers = x.view(torch.int16 if kind.itemsize == 2 else torch.int8).numpy().view(kind)
    want = emulate_rope(numbers, 7, CONFIG)
    got = clrope.rope(Exporter(x), 7, CONFIG, device=device.index)
    assert got.dtype == kind
    assert same(got, want).all()
    if WRITABLE_EXPORTS:
        out = Exporter(x)
        assert clrope.rope(out, 7, CONFIG, out=out, device=device.index) is out
        assert same(numbers, want).all()


def test_refused(device: clrope.DeviceInfo) -> None:
    x = np.full((5, 3, 16), POISON, np.float32)
    constant = x.copy()
    constant.flags.writeable = False

    class NoCapsule(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            return 5

    for given, message in (
        (Exporter(x, device=(2, 1)), r"^x: got Exporter on DLPack device 2:1, only memory of the CPU"),
        (Exporter(x.astype(np.int32)), "^x: got dtype int32"),
        (NoCapsule(x), "^x: the memory of NoCapsule cannot be read"),
    ):
        with pytest.raises(ShapeError, match=message):
            clrope.rope(given, 7, CONFIG, device=device.index)
    for out, message in (
        (Exporter(x, device=(2, 1)), "^out: got Exporter on DLPack device 2:1"),
        (Exporter(constant), "^out: the array is read-only"),
        (Exporter(x, legacy=True), "^out: the array is read-only"),
    ):
        with pytest.raises(ShapeError, match=message):
            clrope.rope(np.ones_like(x), 7, CONFIG, out=out, device=device.index)
    assert (x == POISON).all()
    assert (constant == POISON).all()
    assert clrope.rope(Exporter(constant), 7, CONFIG, device=device.index).shape == x.shape or not WRITABLE_EXPORTS


def test_memory_is_given_back(device: clrope.DeviceInfo) -> None:
    """Nothing holds the exporter's memory after the call."""

    class Array(np.ndarray):
        pass

    x = np.ones((5, 3, 16), np.float32).view(Array)
    gone = weakref.ref(x)
    clrope.rope(Exporter(x), 7, CONFIG, device=device.index)
    del x
    gc.collect()
    assert gone() is None
