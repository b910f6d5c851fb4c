"""Arrays whose own code fails: the error names the argument and keeps the cause; what is no error passes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clrope
from clrope import ConfigError, Rope, RopeConfig, RopeError, ShapeError

NEOX = RopeConfig("neox")
X = np.ones((2, 3, 2, 8), np.float32)
TABLE = np.ones((3, 4), np.float32)
HOOKS = ("__array_interface__", "__array__", "__dlpack__", "__cuda_array_interface__", "shape", "dtype", "__iter__")
PROPERTIES = ("__array_interface__", "__cuda_array_interface__", "shape", "dtype")


def failing(hook: str, error: BaseException) -> Any:
    """Return an object of which one hook fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    others = {"__dlpack_device__": lambda _: (1, 0)} if hook == "__dlpack__" else {}
    return type("Failing", (), {hook: property(fail) if hook in PROPERTIES else fail, **others})()


class FailingArray(np.ndarray):
    """A NumPy array that does not say its shape."""

    error: BaseException

    def __array_finalize__(self, parent: Any) -> None:
        self.error = getattr(parent, "error", KeyError())

    @property
    def shape(self) -> Any:
        raise self.error


def failing_array(error: BaseException) -> Any:
    array = X.view(FailingArray)
    array.error = error
    return array


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "x": ("x", lambda a: clrope.rope(a, 0, NEOX)),
    "one of x": ("x", lambda a: clrope.rope((X, a), 0, NEOX)),
    "x of packed sequences": ("x", lambda a: clrope.rope(a, config=NEOX, cu_seqlens=[0, 3])),
    "x of a plan": ("x", lambda a: Rope(NEOX).plan(a, 0)),
    "x of a rotation": ("x", lambda a: clrope.rotate(a, TABLE, TABLE)),
    "x of the reference": ("x", lambda a: clrope.reference.rope(a, 0, NEOX)),
    "out": ("out", lambda a: clrope.rope(X, 0, NEOX, out=a)),
    "outputs": ("out", lambda a: clrope.rope((X, X), 0, NEOX, out=a)),
    "positions": ("positions", lambda a: clrope.rope(X, a, NEOX)),
    "positions of tables": ("positions", lambda a: Rope(NEOX).cos_sin(a, head_dim=8)),
    "positions of a rotation": ("positions", lambda a: clrope.rotate(X, TABLE, TABLE, a)),
    "cu_seqlens": ("cu_seqlens", lambda a: clrope.rope(X[:1], config=NEOX, cu_seqlens=a)),
    "offsets": ("offsets", lambda a: clrope.rope(X[:1], config=NEOX, cu_seqlens=[0, 3], offsets=a)),
    "cos": ("cos", lambda a: clrope.rotate(X, a, TABLE)),
    "sin": ("sin", lambda a: clrope.rotate(X, TABLE, a)),
    "freq_factors": ("freq_factors", lambda a: clrope.rope(X, 0, mode="neox", freq_factors=a)),
    "sections": ("sections", lambda a: RopeConfig("mrope", sections=a)),
    "got": ("got", lambda a: clrope.compare(a, X)),
    "want": ("(got|want)", lambda a: clrope.compare(X, a)),
}
#: What certainly asks for a hook.
ASKS = {
    ("x", "__array_interface__"), ("x", "__dlpack__"), ("one of x", "__array_interface__"), ("outputs", "__iter__"),
    ("out", "__array_interface__"), ("positions", "__array__"), ("cu_seqlens", "__array__"), ("offsets", "__array__"),
    ("cos", "shape"), ("sin", "shape"), ("freq_factors", "__iter__"), ("sections", "__iter__"), ("got", "__array__"),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("devices")


def causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", CALLS)
def test_an_error_names_the_argument(name: str, hook: str) -> None:
    argument, call = CALLS[name]
    cause = LookupError("inside")
    with pytest.raises(RopeError) as caught:
        call(failing(hook, cause))
    assert type(caught.value) is (ConfigError if argument in ("freq_factors", "sections") else ShapeError)
    assert re.match(rf"{argument}\b", str(caught.value)), caught.value
    if (name, hook) in ASKS:
        assert str(caught.value).startswith(f"{argument}: Failing cannot be read: LookupError: inside")
        assert causes(caught.value)[-1] is cause


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(("name", "hook"), sorted(ASKS))
def test_what_is_no_error_of_the_array_passes(name: str, hook: str, kind: type[BaseException]) -> None:
    error = kind()
    with pytest.raises(kind) as caught:
        CALLS[name][1](failing(hook, error))
    assert caught.value is error


@pytest.mark.parametrize(
    "name", [n for n in CALLS if n.startswith(("x", "out", "cos", "sin")) and n != "x of the reference"]
)
def test_numpy_arrays_that_fail(name: str) -> None:
    argument, call = CALLS[name]
    cause = LookupError("inside")
    with pytest.raises(ShapeError) as caught:
        call(failing_array(cause))
    assert str(caught.value).startswith(f"{argument}: FailingArray cannot be read: LookupError: inside")
    assert causes(caught.value)[-1] is cause


@pytest.mark.parametrize("name", CALLS)
def test_tensors_that_fail(name: str) -> None:
    torch = pytest.importorskip("torch")

    class Failing(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise LookupError("inside")

    argument, call = CALLS[name]
    tensor = torch.zeros(2, 3, 2, 8).as_subclass(Failing)
    with pytest.raises(RopeError) as caught:
        call(tensor)
    assert re.match(rf"{argument}\b", str(caught.value)), caught.value


def test_tensors_that_require_grad_are_no_positions() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ShapeError, match=r"positions: Tensor cannot be read: RuntimeError: .*grad"):
        clrope.rope(X, torch.zeros(3, requires_grad=True), NEOX)


class Number(int):
    """An integer that fails when it is asked for."""

    def __int__(self) -> int:
        raise LookupError("inside")

    __float__ = __int__  # type: ignore[assignment]


@pytest.mark.parametrize("field", ["n_dims", "freq_base", "n_ctx_orig", "freq_factors"])
def test_numbers_that_fail(field: str) -> None:
    value: Any = [Number(2)] if field == "freq_factors" else Number(2)
    with pytest.raises(ConfigError, match=rf"^{field}.*: Number cannot be read: LookupError: inside") as caught:
        RopeConfig("neox", **{field: value})
    assert isinstance(caught.value.__cause__, LookupError)


def test_sequences_without_an_end() -> None:
    with pytest.raises(ConfigError, match="freq_factors: got more than 8192 numbers"):
        RopeConfig("neox", freq_factors=itertools.count(1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"out: int cannot be read: TypeError"):
        clrope.rope((X, X), 0, NEOX, out=5)


def test_a_shape_that_cannot_be_a_key() -> None:
    class Odd:
        shape = ([2], 3)

    with pytest.raises(ShapeError, match="x: got Odd, allowed are"):
        clrope.rope(Odd(), 0, NEOX)


def test_an_output_without_a_shape() -> None:
    """The message has the shape of its memory."""

    class Bare:
        def __init__(self, array: Any) -> None:
            self.__array_interface__ = array.__array_interface__
            self.kept = array

    with pytest.raises(ShapeError, match=r"out: got shape \[2, 3, 2, 6\], x has \[2, 3, 2, 8\]"):
        clrope.rope(X, 0, NEOX, out=Bare(np.zeros((2, 3, 2, 6), np.float32)))
    got = clrope.rope(Bare(X), 0, NEOX)
    assert got.tobytes() == clrope.rope(X, 0, NEOX).tobytes()
