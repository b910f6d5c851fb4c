"""Lines `// lab: ...` in a kernel file, which add to its contract."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError
from .contract import Contract, ParameterValue
from .contracts import BY_NAME

_PARAMETER = re.compile(r"(\w+)\s*=\s*([\w.+-]+(?:\s*,\s*[\w.+-]+)*)")
_ASSIGNMENT = re.compile(r"(local\s+)?(\w+)\s*=(?!=)\s*(.+)")
_DIRECTIVE = re.compile(r"^[ \t]*//[ \t]*lab:[ \t]*(.+?)[ \t]*$", re.MULTILINE)


def with_directives(contract: Contract | None, source: str, path: Path) -> tuple[Contract, str]:
    """Return the contract with the lines `// lab: ...` of a file applied, and the kernel's name if they have one."""
    kernel, lines = "", _DIRECTIVE.findall(source)
    for line in lines:
        if line.startswith("contract ") and contract is None:
            name = line.split(None, 1)[1]
            if name not in BY_NAME:
                raise ConfigError(f"{path}: contract: got {name!r}, allowed are {', '.join(BY_NAME)}")
            contract = BY_NAME[name]
    contract = contract or BY_NAME["clrope"]
    for line in lines:
        word, _, rest = line.partition(" ")
        assignment = _ASSIGNMENT.fullmatch(line)
        if word == "contract":
            continue
        if word == "kernel" and rest:
            kernel = rest.strip()
        elif word in ("global_size", "local_size") and rest:
            contract = replace(contract, **{word: tuple(part.strip() for part in _split(rest))})
        elif word == "requires" and rest:
            contract = replace(
                contract, requires=(*contract.requires, *((t, f"calls without {t}") for t in _split(rest)))
            )
        elif word == "tune" and (parameter := _parameter(rest)):
            contract = replace(contract, parameters={**contract.parameters, parameter[0]: parameter[1]})
        elif word == "options" and rest:
            contract = replace(contract, options=(*contract.options, *shlex.split(rest)))
        elif assignment and assignment[1]:
            contract = replace(contract, local={**contract.local, assignment[2]: assignment[3]})
        elif assignment:
            contract = replace(contract, arguments={**contract.arguments, assignment[2]: assignment[3]})
        else:
            raise ConfigError(
                f"{path}: got the line `// lab: {line}`, allowed are kernel, contract, global_size, local_size, "
                "requires, options, `tune NAME = VALUE, VALUE, ...`, `local NAME = BYTES` and `NAME = EXPRESSION`"
            )
    return contract, kernel


def _parameter(text: str) -> tuple[str, tuple[ParameterValue, ...]] | None:
    """Return name and values of `NAME = VALUE, VALUE, ...`, None for another text."""
    match = _PARAMETER.fullmatch(text.strip())
    return (match[1], tuple(map(parameter_value, match[2].replace(",", " ").split()))) if match else None


def parameter_value(text: str) -> ParameterValue:
    """Return a tunable parameter's value: a number if the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _split(text: str) -> list[str]:
    """Return parts between commas that are outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]
