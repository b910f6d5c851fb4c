"""Arithmetic over named values, for contracts: `tokens * heads`, `freq_factors if has_factors else x`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

_MOST_CHARACTERS = 500
_MOST_EXPONENT = 64
#: Bits of an integer on the way: a power of powers would take minutes.
_MOST_BITS = 4096

_TWO: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ONE: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > _MOST_EXPONENT:
        raise ValueError(f"an exponent of {exponent}, at most {_MOST_EXPONENT} is allowed")
    return base**exponent


def _of_two(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if isinstance(left, str) or isinstance(right, str):  # repeated, or formatted, it could fill the memory
        raise TypeError("a text can be compared only")
    result = operation(left, right)
    if isinstance(result, complex):
        raise ValueError("its result is not a real number")
    if isinstance(result, int) and result.bit_length() > _MOST_BITS:
        raise ValueError(f"an integer of {result.bit_length()} bits, at most {_MOST_BITS} are allowed")
    return result


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


#: Functions that an expression may call.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "int": int, "ceil_div": ceil_div}


class Expression:
    """A parsed expression; `names`: the values that it reads. Raises `ConfigError` for anything but arithmetic."""

    def __init__(self, text: str, where: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"{where}: got {text!r}, the text of an expression is needed")
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"{where}: got {len(text)} characters, at most {_MOST_CHARACTERS} are allowed")
        self.text, self._where = text.strip(), where
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ConfigError(f"{where}: got {text!r}, an expression such as 'tokens * heads' is needed") from None
        self.names = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS
        )

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def value(self, known: Mapping[str, Any]) -> Any:
        """Return the value; raises `ConfigError` for unknown names and for operations that fail."""
        try:
            return self._value(self._tree, known)
        except ConfigError:
            raise
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self._where}: {self.text!r} has no value ({error})") from error

    def whole(self, known: Mapping[str, Any], least: int, most: int) -> int:
        """Return the value, an integer from least to most; raises `ConfigError` for any other."""
        value = self.value(known)
        if not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{self._where}: {self.text!r} is {value!r} for this call, a whole number from {least} to {most} is "
                "needed"
            )
        return int(value)

    def _value(self, node: ast.AST, known: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in known:
                raise ConfigError(f"{self._where}: {node.id!r} in {self.text!r} is unknown; known are {_listed(known)}")
            return known[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _TWO:
            return _of_two(_TWO[type(node.op)], self._value(node.left, known), self._value(node.right, known))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            return _of_two(_power, self._value(node.left, known), self._value(node.right, known))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _ONE:
            return _ONE[type(node.op)](self._value(node.operand, known))
        if isinstance(node, ast.BoolOp):
            wanted = isinstance(node.op, ast.Or)
            return next((v for part in node.values if bool(v := self._value(part, known)) is wanted), not wanted)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TWO:
            return _TWO[type(node.ops[0])](self._value(node.left, known), self._value(node.comparators[0], known))
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._value(node.test, known) else node.orelse, known)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            function = FUNCTIONS.get(node.func.id)
            if function is not None:
                return function(*(self._value(argument, known) for argument in node.args))
        raise ConfigError(
            f"{self._where}: got {self.text!r}, allowed are numbers, names, + - * / // % **, comparisons, and, or, "
            f"not, 'a if c else b', {', '.join(FUNCTIONS)}"
        )


def _listed(known: Mapping[str, Any]) -> str:
    return ", ".join(sorted(known))
