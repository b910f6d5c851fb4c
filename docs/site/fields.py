"""Griffe extension: aligned fields of a docstring (`name:   text`) become a list, which Markdown would run together."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^([A-Za-z_][\w, ]*):\s+(\S.*)$")


def listed(text: str) -> str:
    """Return a docstring whose paragraphs of fields are Markdown lists, and whose shapes are no links."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text)).replace("][", "]\\[")


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if not lines or not (first := _FIELD.match(lines[0])) or text.startswith(("Raises", "Source")):
        return text
    names = first.group(1).split(",")
    fields = [line for line in lines if _FIELD.match(line)]
    # One name with a colon and a text over several lines is a sentence.
    if any(" " in name.strip() for name in names) or (len(fields) == 1 and len(lines) > 1 and lines[1][:1] != " "):
        return text
    out: list[str] = []
    plain = False
    for line in lines:
        field = _FIELD.match(line)
        if field and not any(" " in name.strip() for name in field.group(1).split(",")):
            title = ", ".join(f"`{name.strip()}`" for name in field.group(1).split(","))
            out.append(f"- {title}: {field.group(2)}")
        elif line.startswith(" ") and not plain:
            out[-1] += " " + line.strip()
        else:
            # The sentence behind the last field.
            out += [line] if plain else ["", line]
            plain = True
    return "\n".join(out)


class Fields(griffe.Extension):
    """Changes the docstring of every object."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
