"""The suite 'interop': every adapter of `clrope.interop` with fresh random calls, one file a peer.

A peer is a file `<peer>_cases.py` here with `lines()`, which yields its `Line`s, and `NEEDS`, the package that its
adapter (or some of its lines) needs, '' for none. A line names the call; the seed draws the rest.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Protocol, cast

from ...registry import suite
from .line import Line, missing


class InteropPeer(Protocol):
    """A peer's file."""

    NEEDS: str
    lines: Callable[[], Iterable[Line]]


@lru_cache(maxsize=1)
def peers() -> dict[str, InteropPeer]:
    """Return the files of all peers by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.endswith("_cases"))
    return {n.removesuffix("_cases"): cast(InteropPeer, importlib.import_module(f"{__name__}.{n}")) for n in names}


def remark() -> str:
    """Name the adapters, and each skipped adapter with the reason."""
    texts = ["adapters: " + ", ".join(peers())]
    for name, peer in peers().items():
        needed = {line.needs for line in peer.lines()}
        if missing(peer.NEEDS):
            texts.append(f"SKIPPED: {name}{'' if needed == {peer.NEEDS} else ' (in part)'}: {missing(peer.NEEDS)}")
    return "; ".join(texts)


@suite("interop", remark)
def interop() -> Iterator[Line]:
    """The adapters of ggml, InfiniOp, Ascend, ONNX and torch with fresh random calls."""
    for peer in peers().values():
        yield from peer.lines()
