"""Lines `// lab: ...` in a kernel file, which add to its contract."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError, naming_file
from .contract import Contract, ParameterValue
from .contracts import BY_NAME

_PARAMETER = re.compile(r"([A-Za-z_]\w*)\s*=\s*([\w.+-]+(?:\s*,\s*[\w.+-]+)*)", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"(local\s+)?(\w+)\s*=(?!=)\s*(.+)")
_DIRECTIVE = re.compile(r"^[ \t]*//[ \t]*lab:([^\n]*)$", re.MULTILINE)
#: Characters of such a line.
_LONGEST_LINE = 10_000


def with_directives(contract: Contract | None, source: str, path: Path) -> tuple[Contract, str]:
    """Return the contract with the lines `// lab: ...` of a file applied, and the kernel's name if they have one."""
    kernel, lines = "", [line for text in _DIRECTIVE.findall(source) if (line := text.strip(" \t\r"))]
    seen: set[str] = set()
    for line in lines:
        if len(line) > _LONGEST_LINE:
            raise ConfigError(f"{path}: a line `// lab: ...` has {len(line)} characters, at most {_LONGEST_LINE}")
        subject = _subject(line)
        if subject in seen:
            raise ConfigError(f"{path}: two lines `// lab: ...` say {subject!r}, one is needed")
        seen |= {subject} if subject else set()
        if line.startswith("contract "):
            name = line.split(None, 1)[1]
            if name not in BY_NAME:
                raise ConfigError(f"{path}: contract: got {name!r}, allowed are {', '.join(BY_NAME)}")
            contract = contract or BY_NAME[name]
    contract = contract or BY_NAME["clrope"]
    arguments, local, parameters = dict(contract.arguments), dict(contract.local), dict(contract.parameters)
    requires, options, sizes = [*contract.requires], [*contract.options], {}
    for line in lines:
        word, _, rest = line.partition(" ")
        assignment = _ASSIGNMENT.fullmatch(line)
        if word == "contract" and rest:
            continue
        if word == "kernel" and rest:
            kernel = rest.strip()
        elif word in ("global_size", "local_size") and rest:
            sizes[word] = tuple(part.strip() for part in _split(rest))
        elif word == "requires" and rest:
            requires += [(test, f"calls without {test}") for test in _split(rest)]
        elif word == "tune" and (parameter := _parameter(rest)):
            parameters[parameter[0]] = parameter[1]
        elif word == "options" and rest:
            options += _words(rest, path)
        elif assignment and assignment[1]:
            local[assignment[2]] = assignment[3]
        elif assignment:
            arguments[assignment[2]] = assignment[3]
        else:
            raise ConfigError(
                f"{path}: got the line `// lab: {line}`, allowed are kernel, contract, global_size, local_size, "
                "requires, options, `tune NAME = VALUE, VALUE, ...`, `local NAME = BYTES` and `NAME = EXPRESSION`"
            )
    with naming_file(path):
        made = replace(
            contract, arguments=arguments, local=local, parameters=parameters, requires=tuple(requires),
            options=tuple(options), **sizes,
        )  # fmt: skip
    return made, kernel


def _parameter(text: str) -> tuple[str, tuple[ParameterValue, ...]] | None:
    """Return name and values of `NAME = VALUE, VALUE, ...`, None for another text."""
    match = _PARAMETER.fullmatch(text.strip())
    return (match[1], tuple(map(parameter_value, match[2].replace(",", " ").split()))) if match else None


def parameter_value(text: str) -> ParameterValue:
    """Return a tunable parameter's value: a number if the text is one in C, too."""
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else math.inf
    return number if math.isfinite(number) else text


def _subject(line: str) -> str:
    """Return what only one line may say; '' for lines that add up, and for those that are refused."""
    word, _, rest = line.partition(" ")
    if word in ("contract", "kernel", "global_size", "local_size") and rest and not rest.lstrip().startswith("="):
        return word
    if word == "tune" and (parameter := _parameter(rest)):
        return f"tune {parameter[0]}"
    assignment = _ASSIGNMENT.fullmatch(line)
    return f"{assignment[1] or ''}{assignment[2]} =" if assignment else ""


def _words(text: str, path: Path) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{path}: options: got {text!r}, words as in a shell are needed ({error})") from error


def _split(text: str) -> list[str]:
    """Return parts between commas that are outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([(),])", text):
        depth += (piece == "(") - (piece == ")")
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]
