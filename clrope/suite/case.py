"""`Case`: one RoPE call in the notation of ggml's test-backend-ops, `ROPE(type=f32,ne_a=[128,32,2,1],...)`.

The ten fields of the published grid are always written. Fields that this project adds are written where they differ
from their default: the text of a case from the grid is the line of the grid.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

import msgspec

from ..config import SECTION_MODES, Angles, RopeConfig, parse_mode
from ..errors import ConfigError
from ..layout import DTYPES
from .wide_values import WIDE_TYPES

#: How positions are drawn. 'far': all of ±2**31; 'huge': all 64-bit integers; 'offset': one int; 'back': one int below
#: 0; 'offsets': [B]; 'batch': [B, S]; 'each': [B, S], of both signs; 'three': [3, S]; 'packed': sequences along S, each
#: counting up from its offset.
POSITIONS = ("random", "signed", "offset", "back", "offsets", "batch", "each", "three", "packed", "far", "huge")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: Layouts of x in memory; see `Case.v`.
VIEWS = range(7)
#: How x is drawn. 'uniform': in [-1, 1]; 'wide': of all magnitudes, with NaN, infinities and signed zeros.
VALUES = ("uniform", "wide")

_OPS = {"ROPE": True, "ROPE_BACK": False}
_TEXT = re.compile(r"\s*(\w+)\(([^()#\n]*)\)\s*(?:#.*)?")
#: A comma outside brackets separates two fields. A list is short: to look further takes the square of a text of commas.
_COMMA = re.compile(r",(?![^\[]{0,200}\])")


@dataclass(frozen=True)
class Case:
    """One call.

    type:   'f32', 'f16', 'bf16', 'f64'.
    ne_a:   ggml's lengths [D, N, S, B].
    n_dims: as in ggml's test_rope: rotated elements; in mode 24 (vision) twice RopeConfig's n_dims.
    mode:   ggml's integer.
    n_ctx:  positions are below it; 1 to 2**63.
    fs, ef, af: freq_scale, ext_factor, attn_factor.
    ff:     whether freq_factors are used, uniform in [0.9, 1.1].
    v:      layout of x in memory: 0 dense, 1 a corner of a larger tensor, 2 the second half of each head's memory
            (0 to 2 as in ggml), 3 q and k of a fused QKV tensor in one call, 4 every other element backwards,
            5 every third element, the other axes backwards, 6 steps and gaps of each axis drawn from the case's text.
    inplace: whether the output is the input.
    n_offs, base, n_ctx_orig, bf (beta_fast), bs (beta_slow): as in RopeConfig; bf and bs are 1 as in test_rope.
    sections: None: the sections of test_rope.
    lo:     order of the axes in memory, letters b, s, n, d (without b: rank 3).
    o:      0: the output is dense; 1: it is laid out as x is.
    pos:    one of `POSITIONS`; pt: their integer type.
    angles: 'exact' or 'ggml'.
    vals:   one of `VALUES`.
    xs, ys: strides of x and of the output in elements, in the order of ne_a, of either sign; v and o do not count then.
    xo, yo: elements of the buffer before x and before the output; -1 leaves them open.
    forward: False is written as ROPE_BACK.
    """

    type: str
    ne_a: tuple[int, int, int, int]
    n_dims: int
    mode: int
    n_ctx: int
    fs: float
    ef: float
    af: float
    ff: bool
    v: int
    inplace: bool = False
    n_offs: int = 0
    base: float = 10000.0
    n_ctx_orig: int = 0
    bf: float = 1.0
    bs: float = 1.0
    sections: tuple[int, int, int, int] | None = None
    lo: str = "bsnd"
    o: int = 0
    pos: str = "random"
    pt: str = "int32"
    angles: Angles = "exact"
    vals: str = "uniform"
    xs: tuple[int, int, int, int] | None = None
    ys: tuple[int, int, int, int] | None = None
    xo: int = -1
    yo: int = -1
    forward: bool = True

    def __post_init__(self) -> None:
        if self.type not in DTYPES:
            raise ConfigError(f"type: got {self.type!r}, allowed are {', '.join(DTYPES)}")
        if len(self.ne_a) != 4 or min(self.ne_a) < 1:
            raise ConfigError(f"ne_a: got {list(self.ne_a)}, 4 lengths of at least 1 are needed")
        parse_mode(self.mode)
        if not 1 <= self.n_ctx <= 1 << 63:
            raise ConfigError(f"n_ctx: got {self.n_ctx}, 1 to 2**63 is needed, as positions are below it")
        for name, value, allowed in (
            ("pos", self.pos, POSITIONS), ("pt", self.pt, INTEGERS), ("v", self.v, VIEWS), ("o", self.o, range(2)),
            ("vals", self.vals, VALUES),
        ):  # fmt: skip
            if value not in allowed:
                raise ConfigError(f"{name}: got {value!r}, allowed are {', '.join(map(str, allowed))}")
        if self.vals == "wide" and self.type not in WIDE_TYPES:
            raise ConfigError(f"vals: got 'wide' with type {self.type}, allowed with it are {', '.join(WIDE_TYPES)}")
        if self.sections is not None and len(self.sections) != 4:
            raise ConfigError(f"sections: got {list(self.sections)}, 4 counts are needed")
        self._check_memory()
        if sorted(self.lo) not in (sorted("bsnd"), sorted("snd")) or ("b" not in self.lo and self.ne_a[3] != 1):
            raise ConfigError(f"lo: got {self.lo!r}, allowed is any order of b, s, n, d; without b for one batch only")

    def _check_memory(self) -> None:
        for name, strides in (("xs", self.xs), ("ys", self.ys)):
            if strides is not None and (len(strides) != 4 or _overlap(self.ne_a, strides)):
                raise ConfigError(f"{name}: got {list(strides)}, 4 strides are needed with which no elements overlap")
        if self.xs is not None and self.v == 3:
            raise ConfigError("xs: given together with v=3, whose tensors have places of their own")
        for name, first in (("xo", self.xo), ("yo", self.yo)):
            if not -1 <= first <= 1 << 20:
                raise ConfigError(f"{name}: got {first}, allowed are -1 to 2**20 elements")
        if self.inplace and (self.ys is not None or self.yo != -1):
            raise ConfigError("ys, yo: given together with inplace=1, where the output is the input")

    @property
    def shape(self) -> dict[str, int]:
        """Lengths by axis."""
        return dict(zip("dnsb", self.ne_a, strict=True))

    @property
    def uses_sections(self) -> bool:
        """Whether positions have rows t, h, w, e."""
        return parse_mode(self.mode) in SECTION_MODES

    def config(self, freq_factors: tuple[float, ...] | None) -> RopeConfig:
        """Return the configuration; freq_factors as drawn for this case (None without `ff`)."""
        vision = parse_mode(self.mode) == "vision"
        sections = self.sections
        if sections is None and self.uses_sections:
            # test_rope's: an image's two axes for vision, three equal parts (of n_dims, not of the pairs) otherwise.
            part = self.n_dims // (4 if vision else 3)
            sections = (part, part, 0, 0) if vision else (part, part, part, 0)
        return RopeConfig(
            mode=parse_mode(self.mode), n_dims=self.n_dims // 2 if vision else self.n_dims, freq_base=self.base,
            freq_scale=self.fs, ext_factor=self.ef, attn_factor=self.af, beta_fast=self.bf, beta_slow=self.bs,
            n_ctx_orig=self.n_ctx_orig, freq_factors=freq_factors, sections=sections, n_offs=self.n_offs,
            angles=self.angles,
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [
            f"{f.name}={_text(getattr(self, f.name))}"
            for f in fields(self)
            if f.name != "forward" and (f.default is MISSING or getattr(self, f.name) != f.default)
        ]
        return f"{'ROPE' if self.forward else 'ROPE_BACK'}({','.join(parts)})"


def parse_case(text: str) -> Case:
    """Read a case from its notation; text after a `#` is a remark.

    Raises `ConfigError` with the text for unknown operations, unknown or missing fields and malformed values.
    """
    match = _TEXT.fullmatch(text)
    if match is None or match[1] not in _OPS:
        raise ConfigError(
            f"case: got {text.strip()!r}, the form is ROPE(type=f32,ne_a=[128,32,2,1],...) or ROPE_BACK(...)"
        )
    known, hints = {f.name: f for f in fields(Case) if f.name != "forward"}, get_type_hints(Case)
    values: dict[str, Any] = {"forward": _OPS[match[1]]}
    for part in _COMMA.split(match[2]):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in known or name in values:
            raise ConfigError(
                f"case: {part.strip()!r} in {text.strip()!r}, each of {', '.join(known)} can be given once"
            )
        kind = str(known[name].type)
        try:
            values[name] = (
                value if kind in ("str", "Angles") else msgspec.json.decode(value, type=hints[name], strict=False)
            )
        except msgspec.MsgspecError as error:
            allowed = {"bool": "0 or 1", "int": "an integer", "float": "a number"}.get(kind, "4 integers in brackets")
            raise ConfigError(f"case: {part.strip()!r} in {text.strip()!r}, allowed is {allowed}") from error
    missing = [n for n, f in known.items() if f.default is MISSING and n not in values]
    if missing:
        raise ConfigError(f"case: {text.strip()!r} has no {', '.join(missing)}")
    return Case(**values)


def _overlap(lengths: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements may have one place: each stride has to pass all that the smaller ones reach."""
    reach = 0
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, lengths, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (length - 1)
    return False


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        short = f"{value:.6f}"
        return short if float(short) == value else repr(value)
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value)
