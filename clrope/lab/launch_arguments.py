"""The arguments of a lab kernel for one launch: what their meanings are worth there, in the types that it declares."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import RopeConfig
from ..kernels.launch import BoundNumber, BoundRows, ConstantBytes, LocalBytes
from ..kernels.problem import Problem
from .expressions import Expression
from .meanings import ArrayValue, BoundValue
from .signature import SCALARS, KernelArgument

#: The type of an element in OpenCL C by storage type.
ELEMENTS = {"f32": "float", "f16": "half", "f64": "double", "bf16": "ushort", "f8e4m3": "uchar", "f8e5m2": "uchar"}
#: Types of pointers to elements besides those: bits, or anything.
_BITS = {"f32": ("uint", "int"), "f16": ("ushort", "short"), "f64": ("ulong", "long"), "bf16": ("short",),
         "f8e4m3": ("char",), "f8e5m2": ("char",)}  # fmt: skip
_ANYTHING = ("void",)
_VECTOR = re.compile(r"(char|uchar|short|ushort|int|uint|long|ulong|float|double)(2|3|4|8|16)")
#: The length of a vector at the end of its type's name; pointers to vectors point to elements.
_LENGTH = re.compile(r"(?<=[a-z])(2|3|4|8|16)$")
_MOST_LOCAL_BYTES = 1 << 40


class WrongArgumentError(Exception):
    """An argument's type cannot hold its meaning, for any call. remedy: what to write instead."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


def launch_argument(
    argument: KernelArgument, expression: Expression, values: dict[str, Any], problem: Problem, config: RopeConfig,
    checks_types: bool,
) -> tuple[str, Any] | str:  # fmt: skip
    """Return (name, value) for a `LaunchSpec`, or what the argument cannot express.

    expression: its meaning. values: of names in expressions. checks_types: whether pointers have to have the type
    of the elements. Raises `WrongArgumentError`, `ConfigError`.
    """
    name, kind = argument.name, argument.type
    if argument.space == "local":
        return name, LocalBytes(expression.whole(values, 1, _MOST_LOCAL_BYTES))
    value = expression.value(values)
    if isinstance(value, (BoundValue, ArrayValue)) and argument.pointer != _is_memory(value):
        wanted = "a pointer" if _is_memory(value) else "a number"
        raise WrongArgumentError(f"its meaning is {wanted}", "another type, or another meaning")
    if isinstance(value, BoundValue):
        return _bound(value, argument, problem, config, checks_types)
    if isinstance(value, ArrayValue):
        if kind not in SCALARS:
            raise WrongArgumentError(f"its type {kind!r} is not known", f"`-D{kind}=float`")
        held = _held(value.numbers, kind)
        if held is None:
            return f"{name}, of which {kind} does not hold every number"
        return name, ConstantBytes(held.tobytes(), True)
    vector = _VECTOR.fullmatch(kind)
    if vector and isinstance(value, tuple) and len(value) == int(vector[2]):
        held = _held(value, vector[1])
        if held is not None:
            return name, ConstantBytes(held.tobytes(), False)
    else:
        if argument.pointer or kind not in SCALARS or isinstance(value, (tuple, str)):
            raise WrongArgumentError(f"{kind!r} cannot hold {value!r}", "a type such as int or float")
        held = _held(value, kind)
        if held is not None:
            return name, held[()]
    return f"{name} = {value}, which {kind} does not hold"


def _is_memory(value: BoundValue | ArrayValue) -> bool:
    return isinstance(value, ArrayValue) or not value.name.endswith("_offset")


def _bound(
    value: BoundValue, argument: KernelArgument, problem: Problem, config: RopeConfig, checks_types: bool
) -> tuple[str, Any] | str:
    kind, name = argument.type, value.name
    if name == "positions":
        if kind not in SCALARS or np.dtype(SCALARS[kind]).kind not in "iu":
            raise WrongArgumentError(f"positions are integers, not {kind!r}", "int or long")
        return name, BoundRows(SCALARS[kind], config.position_axes)
    if name.endswith("_offset"):
        if kind not in SCALARS or np.dtype(SCALARS[kind]).kind not in "iu":
            raise WrongArgumentError(f"an offset is an integer, not {kind!r}", "int, long or ulong")
        return name, BoundNumber(SCALARS[kind], value.scale)
    if name in ("cosine", "sine"):
        real = "double" if problem.dtype == "f64" else "float"
        if _LENGTH.sub("", kind) not in (real, *_ANYTHING):
            return f"{problem.dtype}, for which tables are {real} (its {argument.name} is {kind})"
        return name, None
    if checks_types:
        allowed = (ELEMENTS[problem.dtype], *_BITS[problem.dtype], *_ANYTHING)
        if _LENGTH.sub("", kind) not in allowed:
            return f"{problem.dtype} (its {argument.name} is {kind})"
    return name, None


def _held(numbers: Any, kind: str) -> npt.NDArray[Any] | None:
    """Return numbers in a type of OpenCL C; None if it does not hold one: too large, or not whole for an integer."""
    dtype, array = np.dtype(SCALARS[kind]), np.asarray(numbers)
    integral = dtype.kind in "iu"
    if integral:
        fits = (array >= np.iinfo(dtype).min) & (array <= np.iinfo(dtype).max)
    else:
        fits = np.logical_or(np.abs(array) <= float(np.finfo(dtype).max), np.logical_not(np.abs(array) < math.inf))
    if not fits.all():
        return None
    held = array.astype(dtype)
    return None if integral and not (held == array).all() else held
