"""What can be copied and pickled, also to a process of its own, and what refuses to be."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from helpers import same

import clrope
from clrope import BuildError, DeviceError, DeviceInfo, Rope, RopeConfig, RopeError, ShapeError
from clrope.emulation import emulate_rope
from clrope.interop.infiniop import InfiniOpError, Status
from clrope.kernels.variant import Variant

NEOX = RopeConfig("neox", 12)
X = np.linspace(-1, 1, 5 * 3 * 16, dtype=np.float32).reshape(1, 5, 3, 16)


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIES: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": by_pickle}
each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


class OwnError(ShapeError):
    """A user's, whose constructor takes something else."""

    def __init__(self, number: int, *, name: str) -> None:
        super().__init__(f"{name}: {number}")
        self.number = number


def errors() -> list[RopeError]:
    plain = [kind("x: got 1") for kind in vars(clrope.errors).values()
             if isinstance(kind, type) and issubclass(kind, RopeError) and kind is not BuildError]  # fmt: skip
    assert len(plain) > 5
    return [
        *plain, BuildError("a device", ["-DA=1"], "a log", Path("source.cl")), OwnError(3, name="x"),
        InfiniOpError(Status.BAD_PARAM, "x: got 2"),
    ]  # fmt: skip


@each_copy
@pytest.mark.parametrize("error", errors(), ids=lambda e: type(e).__name__)
def test_errors(error: RopeError, copied: Callable[[Any], Any]) -> None:
    got = copied(error)
    assert type(got) is type(error)
    assert got is not error
    assert (str(got), got.args, vars(got)) == (str(error), error.args, vars(error))


@each_copy
def test_configurations_and_variants(copied: Callable[[Any], Any]) -> None:
    for value in (
        RopeConfig.preset("llama-3.1-8b"), RopeConfig("mrope", sections=(1, 2, 3)), Variant("strided"),
        Variant("rows", width=2, folder="elsewhere"),
    ):  # fmt: skip
        got = copied(value)
        assert got == value
        assert hash(got) == hash(value)
        assert repr(got) == repr(value)


@each_copy
def test_devices(device: DeviceInfo, copied: Callable[[Any], Any]) -> None:
    got = copied(device)
    assert got == device
    assert got.to_dict() == device.to_dict()
    assert got.cl_device == device.cl_device
    assert clrope.device(got) == device
    assert copied(got).cl_device == device.cl_device


def test_a_device_that_is_not_there(device: DeviceInfo) -> None:
    elsewhere = replace(by_pickle(device), name="of another machine")
    for use in (lambda: elsewhere.cl_device, lambda: clrope.device(elsewhere), lambda: Rope(NEOX, elsewhere)(X, 0)):
        with pytest.raises(DeviceError, match=r"device of another machine.* chosen in another process .*; found: "):
            use()


@each_copy
def test_operations(device: DeviceInfo, copied: Callable[[Any], Any]) -> None:
    variant = Variant("strided")
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context)
    for selector in (device, device.index, device.cl_device, queue):
        op = Rope(NEOX, selector, variant=variant)
        for _ in range(2):  # before its first use and after it
            got = copied(op)
            assert got is not op
            assert (got.config, got.variant, got.device) == (NEOX, variant, device)
            assert same(got(X, 7), emulate_rope(X, 7, NEOX)).all()
            assert op.device == device
    assert copied(Rope(NEOX)).device == clrope.device()


@each_copy
def test_operations_of_own_kernels(device: DeviceInfo, copied: Callable[[Any], Any]) -> None:
    kernel = clrope.lab.load(Path(clrope.__file__).parent / "lab/templates/simple.cl")
    for _ in range(2):
        op = Rope(RopeConfig("neox"), device.index, kernel=kernel)
        assert clrope.compare(copied(op)(X, 7), emulate_rope(X, 7, RopeConfig("neox"))).nmse < 1e-12
        kernel = copied(kernel)


def test_an_operation_copied_keeps_the_queue(device: DeviceInfo) -> None:
    context = cl.Context([device.cl_device])
    queue = cl.CommandQueue(context)
    for copied in (copy.copy, copy.deepcopy):
        assert copied(Rope(NEOX, queue)).plan(X, 0).queue == queue


@each_copy
def test_a_plan_refuses(device: DeviceInfo, copied: Callable[[Any], Any]) -> None:
    for x in (X, X[:0]):
        plan = Rope(NEOX, device.index).plan(x, 0)
        with pytest.raises(RopeError, match=r"plan: .* can be neither copied nor pickled") as refused:
            copied(plan)
        assert isinstance(refused.value, TypeError)


def rotated(op: Rope) -> np.ndarray:
    return op(X, 7)


def raising(error: RopeError) -> None:
    raise error


def test_another_process(device: DeviceInfo) -> None:
    elsewhere = Rope(NEOX, replace(device, name="of another machine", _cl=None))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert same(pool.submit(rotated, Rope(NEOX, device)).result(), emulate_rope(X, 7, NEOX)).all()
        with pytest.raises(DeviceError, match="chosen in another process"):
            pool.submit(rotated, elsewhere).result()
        for error in errors()[-3:]:
            with pytest.raises(type(error)) as caught:
                pool.submit(raising, error).result()
            assert str(caught.value) == str(error)
