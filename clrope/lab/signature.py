"""The kernels of an OpenCL C text and their arguments, read without a compiler.

Comments are removed, and object-like macros (of the text and of `-D` options) are replaced in the arguments' types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ConfigError

# Each takes time by the length of a text, whatever it is: a comment that does not end goes up to the end.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[ \t]+([\w*]+(?:[ \t]+[\w*]+)*))?[ \t\r]*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_KERNEL = re.compile(r"\b(?:__kernel|kernel)\s+(?:void\s+)?(?:__kernel\s+)?(?:void\s+)?(\w+)\s*\(([^()]*)\)")
_SPACES = {"global": "global", "__global": "global", "local": "local", "__local": "local",
           "constant": "constant", "__constant": "constant"}  # fmt: skip
_WORDS_DROPPED = {"const", "restrict", "__restrict", "volatile", "private", "__private", "struct",
                  "__read_only", "__write_only", "read_only", "write_only"}  # fmt: skip
_NAMES = {"unsigned": "uint", "signed": "int", "signed int": "int", "unsigned int": "uint", "unsigned char": "uchar",
          "signed char": "char", "unsigned short": "ushort", "unsigned long": "ulong", "long int": "long",
          "long long": "long", "unsigned long long": "ulong", "uint32_t": "uint", "int32_t": "int"}  # fmt: skip


@dataclass(frozen=True)
class KernelArgument:
    """One argument: name, type without address space and qualifiers, and for pointers the space."""

    name: str
    type: str
    pointer: bool
    space: str = ""

    def __str__(self) -> str:
        star = " *" if self.pointer else " "
        return f"{self.space + ' ' if self.space else ''}{self.type}{star}{self.name}"


@dataclass(frozen=True)
class KernelSignature:
    """A kernel function, its arguments in order, and the line that it begins in."""

    name: str
    arguments: tuple[KernelArgument, ...]
    line: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


def without_comments(source: str) -> str:
    """Return the text with every comment replaced by blanks, so that lines keep their numbers."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def macros(source: str, options: Iterable[str]) -> dict[str, str]:
    """Return the object-like macros of a text and of `-D` options that stand for words, such as types."""
    found: dict[str, str] = dict(_DEFINE.findall(without_comments(source)))
    for option in options:
        if option.startswith("-D"):
            name, _, words = option[2:].partition("=")
            found[name] = words.strip()
    return found


def numbers_of_macros(source: str, options: Iterable[str]) -> dict[str, int]:
    """Return the macros that are decimal numbers; an option comes before the text's own `#define`."""
    return {
        name: int(words) for name, words in macros(source, options).items() if words.isdecimal() and len(words) < 20
    }


@lru_cache(maxsize=64)
def signatures(source: str, options: tuple[str, ...] = ()) -> tuple[KernelSignature, ...]:
    """Return the kernels of a text in order.

    Raises `ConfigError` for a kernel that is defined twice with other arguments, and for arguments that cannot be read.
    """
    known = macros(source, options)
    text = _ATTRIBUTE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), without_comments(source))
    found: dict[str, KernelSignature] = {}
    line, counted = 1, 0
    for match in _KERNEL.finditer(text):
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        inside = match[2].strip()
        listed = [] if inside in ("", "void") else inside.split(",")
        made = KernelSignature(match[1], tuple(_argument(part, known, match[1], line) for part in listed), line)
        before = found.get(made.name)
        if before is not None and before.arguments != made.arguments:
            raise ConfigError(
                f"kernel: {made.name} is defined in lines {before.line} and {line} with different arguments; "
                "leave one, or choose by a macro of a kernel's own name"
            )
        found[made.name] = made
    return tuple(found.values())


def _argument(text: str, known: Mapping[str, str], kernel: str, line: int) -> KernelArgument:
    words = re.findall(r"\w+|\*|\S", text)
    replaced: list[str] = []
    for word in words[:-1]:
        for _ in range(8):  # a macro may stand for another one
            if word not in known:
                break
            word = known[word]
        replaced += re.findall(r"\w+|\*|\S", word)
    name = words[-1] if words else ""
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or not replaced or any(not re.fullmatch(r"\w+|\*", w) for w in replaced):
        raise ConfigError(f"kernel: argument {text.strip()!r} of {kernel} (line {line}) cannot be read")
    space = next((_SPACES[word] for word in replaced if word in _SPACES), "")
    kept = [word for word in replaced if word not in _SPACES and word not in _WORDS_DROPPED and word != "*"]
    kind = " ".join(kept)
    return KernelArgument(name, _NAMES.get(kind, kind), "*" in replaced, space)
