"""What is read in a kernel's text itself: words, and lines for messages. All else the compiler says."""

from __future__ import annotations

import re

# Each takes time by the length of a text, whatever it is: what does not end goes up to the end of the line or text.
_LITERAL = r'"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?'
_COMMENT = re.compile(rf"({_LITERAL})|//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)", re.DOTALL)


def without_comments(source: str) -> str:
    """Return the text with every comment replaced by blanks, so that lines keep their numbers."""
    return _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), source)


def line_of(function: str, source: str) -> int:
    """Return the line in which a function's name is first followed by a bracket, 0 if it is in none."""
    match = re.search(rf"\b{re.escape(function)}\s*\(", text := without_comments(source))
    return text.count("\n", 0, match.start()) + 1 if match else 0
