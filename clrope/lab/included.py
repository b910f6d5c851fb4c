"""The files that a kernel file includes, and those that they include: where a change of a kernel may be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from ..bounded_read import read_bounded
from .source_text import without_comments

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^"<>\n]+)[">]', re.MULTILINE)
#: Bytes read of a file, and files: a link to its own folder has names without an end.
_LARGEST_FILE = 4 << 20
_MOST = 200


def included_files(path: Path, source: str, options: Iterable[str] = ()) -> list[Path]:
    """Return where a compiler looks for the files that the text of a kernel file includes, and for theirs.

    It looks in the folder of the file that includes, in the kernel's, and in those of `-I`. Places without a file are
    in the list, too: one may come. Names that macros make are not found.
    """
    folders = [path.parent, *_folders(options)]
    found: dict[str, Path] = {}
    texts = [(path.parent, source)]
    while texts:
        own, text = texts.pop()
        for name in _INCLUDE.findall(without_comments(text)):
            for folder in dict.fromkeys([own, *folders]):
                place = Path(os.path.normpath(folder / name))
                if str(place) in found or len(found) == _MOST:
                    continue
                found[str(place)] = place
                try:
                    texts.append(
                        (place.parent, read_bounded(place, _LARGEST_FILE, pipes=False).decode(errors="replace"))
                    )
                except (OSError, ValueError):  # ValueError: a null byte in its name
                    continue
    return list(found.values())


def _folders(options: Iterable[str]) -> list[Path]:
    words = " ".join(options).split()
    named = [word[2:] or after for word, after in pairwise([*words, ""]) if word.startswith("-I")]
    return [Path(name) for name in named if name]
