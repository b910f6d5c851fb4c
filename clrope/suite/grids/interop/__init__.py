"""The suite 'interop': every adapter of `clrope.interop` with fresh random calls, one file a peer.

A peer is a file `<peer>_cases.py` here with `lines()`, which yields its `Line`s, and `NEEDS`, the package without
which its adapter (or some of its lines) cannot run, '' if there is none. A line says what is called; the seed draws
the rest.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol, cast

from ...registry import suite
from .line import Line, missing

#: How the name of a peer's file ends.
_ENDING = "_cases"


class InteropPeer(Protocol):
    """A peer's file."""

    NEEDS: str

    def lines(self) -> Iterator[Line]:
        """Yield the lines, always the same ones in the same order."""


@lru_cache(maxsize=1)
def peers() -> dict[str, InteropPeer]:
    """Return the files of all peers by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.endswith(_ENDING))
    modules = (cast(InteropPeer, importlib.import_module(f"{__name__}.{name}")) for name in names)
    return dict(zip((name.removesuffix(_ENDING) for name in names), modules, strict=True))


def remark() -> str:
    """Name the adapters, and those that are left out with the reason."""
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
