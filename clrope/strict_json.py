"""JSON from outside: no name twice, no half characters, no more values than its length suggests, no huge numbers."""

from __future__ import annotations

import json
import re
from typing import Any

#: Values of any text. A short text of brackets would otherwise become hundreds of times its length in memory.
_MOST_VALUES = 1 << 19
#: Beyond, a value takes this many bytes of text or more: numbers of results take ten to twenty.
_LEAST_BYTES = 6
#: Digits of an integer: more are beyond float64, where msgspec before 0.22 ends in a `SystemError`.
_MOST_DIGITS = 308
_LONG_INTEGER = re.compile(rf"(?<![0-9])[0-9]{{{_MOST_DIGITS + 1}}}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(data: bytes | str, *, constants: bool = True) -> Any:
    """Return what a JSON text in UTF-8 stands for. Raises `ValueError` or `RecursionError` for any other text.

    constants: whether NaN and Infinity are numbers, as Python writes them.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    most = max(_MOST_VALUES, len(text) // _LEAST_BYTES)
    if len(text) > _MOST_VALUES and text.count("[") + text.count("{") + text.count(",") > most:
        raise ValueError(f"it has more than {most} values")
    found = json.loads(
        text, object_pairs_hook=_object, parse_constant=None if constants else _no_number,
        parse_int=_integer if _LONG_INTEGER.search(text) else None,
    )  # fmt: skip
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text in it has half of a pair of surrogates, which is no character") from None
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"got {text}, numbers are finite")


def _integer(text: str) -> int:
    digits = len(text.lstrip("-"))
    if digits > _MOST_DIGITS:
        raise ValueError(f"a number in it has {digits} digits, at most {_MOST_DIGITS} are allowed")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for name, _ in pairs:
            if name not in found:
                raise ValueError(f"the key {name[:80]!r} is there twice")
            del found[name]
    return found
