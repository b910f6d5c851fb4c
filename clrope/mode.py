"""The modes of RoPE: which elements form a pair and which row of positions drives it, by name and by ggml's integer."""

from __future__ import annotations

from typing import Literal

from .errors import ConfigError, reading, shown
from .integers import is_integer

Mode = Literal["normal", "neox", "mrope", "imrope", "vision"]

#: Mode name to ggml's integer (GGML_ROPE_TYPE_*; 0 is called NORMAL).
GGML_MODES: dict[str, int] = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
_MODE_OF_GGML = {v: k for k, v in GGML_MODES.items()}
#: Modes whose positions have one row an axis (t, h, w, e) and whose pairs are divided into sections.
SECTION_MODES = frozenset({"mrope", "imrope", "vision"})
#: Names that other projects give to the two pairings; used in error messages only, a guess is never taken.
_OTHER_NAMES = {
    "norm": "normal", "interleaved": "normal", "interleave": "normal", "gptj": "normal", "gpt_j": "normal",
    "gpt-j": "normal", "traditional": "normal", "half": "neox", "gptneox": "neox", "gpt_neox": "neox",
    "gpt-neox": "neox", "rotate_half": "neox", "m-rope": "mrope", "multi": "mrope",
}  # fmt: skip


def parse_mode(mode: object) -> Mode:
    """Return the mode's name for a name or one of ggml's integers (0, 2, 8, 24, 40); raise `ConfigError` otherwise."""
    if isinstance(mode, str):
        if mode in GGML_MODES:
            return mode  # type: ignore[return-value]
        hint = _OTHER_NAMES.get(mode.lower())
        hint = f"; what others call {mode!r} is {hint!r} here" if hint else ""
        raise ConfigError(f"mode: got {shown(mode)}, allowed are {modes_text()}{hint}")
    if is_integer(mode):
        with reading("mode", mode, ConfigError):
            number = int(mode)
        if number in _MODE_OF_GGML:
            return _MODE_OF_GGML[number]  # type: ignore[return-value]
        raise ConfigError(f"mode: got {shown(number)}, allowed are {modes_text()}")
    raise ConfigError(f"mode: got {shown(mode)} of type {type(mode).__name__}, allowed are {modes_text()}")


def modes_text() -> str:
    """Return every allowed mode, for messages."""
    return ", ".join(f"{name!r} (ggml {number})" for name, number in GGML_MODES.items())
