"""`RopeConfig`: what to compute, with ggml's names; frozen, hashable, JSON both ways. No devices, no arrays."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from .arguments import integer, sequence
from .bounded_read import path_argument
from .errors import ConfigError, naming_file, shown, unreadable
from .io import gguf, hf, presets
from .io.config_values import LEAST_REAL, MOST_DIMS, MOST_REAL
from .mode import GGML_MODES, SECTION_MODES, Mode, modes_text, parse_mode

__all__ = ["GGML_MODES", "SECTION_MODES", "Angles", "AxisFreqs", "Mode", "RopeConfig", "parse_mode"]

Angles = Literal["exact", "ggml"]
AxisFreqs = Literal["restart", "continue", "deal"]
_GRID_FIELDS = ("pair_axes", "axis_freqs", "axis_bases", "coordinate_scale")
#: Most axes of a grid, and most units of a coordinate.
MOST_AXES, MOST_SCALE = 8, 1 << 30


def _real(name: str, value: object, most: float = MOST_REAL) -> float:
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, Real):
        raise ConfigError(f"{name}: got {shown(value)} of type {type(value).__name__}, a real number is needed")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except MemoryError:
        raise
    except Exception as error:
        raise ConfigError(unreadable(name, value, error)) from error
    if not abs(number) <= most:
        raise ConfigError(f"{name}: got {number}, it must be finite and at most {most}")
    return number + 0.0  # -0.0 is equal to 0.0: configurations that are equal have equal results


def _positive(name: str, value: object) -> float:
    number = _real(name, value)
    if number <= 0:
        raise ConfigError(f"{name}: got {number}, it must be greater than 0")
    if number < LEAST_REAL:
        raise ConfigError(f"{name}: got {number}, it must be at least {LEAST_REAL}")
    return number


@dataclass(frozen=True)
class RopeConfig:
    """What to compute. Names, defaults and meaning are those of `ggml_rope_ext` / `ggml_rope_multi`.

    mode:         'normal', 'neox', 'mrope', 'imrope', 'vision', or ggml's integer 0, 2, 8, 40, 24. No default, because
                  a wrong pairing gives fluent garbage.
    n_dims:       rotated elements of each head (even); the rest is copied. None: the whole head (half of it for
                  'vision', where ggml's n_dims counts pairs). At most head_dim, which is checked when a tensor comes.
    freq_base:    base of the geometric series of frequencies, `omega[i] = freq_base ** (-2 i / n_dims)`.
    freq_scale:   factor on the angle (linear scaling by 1/factor), the interpolated side of YaRN.
    ext_factor:   0: no YaRN. Otherwise weight of YaRN's ramp between interpolated and extrapolated angles; then the
                  magnitude also gets the factor `1 + 0.1 ln(1/freq_scale)`.
    attn_factor:  factor on cos and sin (never on the part that is not rotated).
    beta_fast, beta_slow: rotations over `n_ctx_orig` positions at which the ramp begins and ends.
    n_ctx_orig:   context length the model was trained with; used by YaRN only.
    freq_factors: None, or one divisor of the angle per pair.
    sections:     pairs driven by the position rows t, h, w, e (section modes only; three numbers mean e = 0).
    n_offs:       even offset of the rotated window in the head (not for 'vision').
    angles:       'exact' (64-bit phases) or 'ggml' (its repeated float32 multiplication, bit for bit).
    pair_axes:    None, or for each pair the axis 0, 1, … of a grid whose row of positions drives it, such as
                  `(0,) * 16 + (1,) * 16` (in blocks) or `(0, 1) * 16` (in turns). Modes 'normal' and 'neox', exact
                  angles, no YaRN; n_dims is twice the number of pairs; 2 to 8 axes; positions have a row per axis.
    axis_freqs:   with pair_axes: the exponent of the base, -j / n for pair j of the n of its axis ('restart'); -i / P
                  for pair i of all P ('continue'); or -(j A + a) / P for pair j of axis a of A, all with as many pairs
                  ('deal': the frequencies of the whole head are dealt out to the axes).
    axis_bases:   with pair_axes: None (freq_base for all), or the base of each axis.
    coordinate_scale: positions are integers in units of 1 / coordinate_scale; `clrope.scaled_positions` makes them.

    Raises `ConfigError` naming the field, what came and what is allowed.
    """

    mode: Mode
    n_dims: int | None = None
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0
    freq_factors: tuple[float, ...] | None = None
    sections: tuple[int, int, int, int] | None = None
    n_offs: int = 0
    angles: Angles = "exact"
    pair_axes: tuple[int, ...] | None = None
    axis_freqs: AxisFreqs = "restart"
    axis_bases: tuple[float, ...] | None = None
    coordinate_scale: int = 1

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:  # frozen dataclass
            object.__setattr__(self, name, value)

        put("mode", parse_mode(self.mode))
        if self.n_dims is not None:
            put("n_dims", integer("n_dims", self.n_dims, 2, MOST_DIMS))
            if self.n_dims % 2:
                raise ConfigError(f"n_dims: got {self.n_dims}, it must be even (elements are rotated in pairs)")
        put("freq_base", _positive("freq_base", self.freq_base))
        put("freq_scale", _positive("freq_scale", self.freq_scale))
        put("ext_factor", _real("ext_factor", self.ext_factor))
        put("attn_factor", _real("attn_factor", self.attn_factor))
        put("beta_fast", _real("beta_fast", self.beta_fast))
        put("beta_slow", _real("beta_slow", self.beta_slow))
        put("n_ctx_orig", integer("n_ctx_orig", self.n_ctx_orig, 0))
        if self.ext_factor != 0:
            # ggml answers these with non-finite angles.
            put("beta_fast", _positive("beta_fast (with ext_factor other than 0)", self.beta_fast))
            put("beta_slow", _positive("beta_slow (with ext_factor other than 0)", self.beta_slow))
            if self.freq_base == 1:
                raise ConfigError("freq_base: got 1.0, YaRN's ramp (ext_factor other than 0) is undefined there")
        put("coordinate_scale", integer("coordinate_scale", self.coordinate_scale, 1, MOST_SCALE))
        self._check_axes()
        if self.freq_factors is not None:
            given = sequence("freq_factors", self.freq_factors, MOST_DIMS)
            # A pair that shall not rotate has the largest factor that there is.
            factors = tuple(_real(f"freq_factors[{i}]", f, sys.float_info.max) for i, f in enumerate(given))
            for i, factor in enumerate(factors):
                if abs(factor) < LEAST_REAL:
                    raise ConfigError(f"freq_factors[{i}]: got {factor:g}, angles are divided by it")
            put("freq_factors", factors)
            if self.n_dims is not None:
                self._check_factor_count(self.n_pairs(None))
        put("n_offs", integer("n_offs", self.n_offs, 0))
        if self.n_offs % 2:
            raise ConfigError(f"n_offs: got {self.n_offs}, it must be even")
        if self.n_offs and self.mode == "vision":
            raise ConfigError(f"n_offs: got {self.n_offs}, mode 'vision' rotates the whole head and allows only 0")
        self._check_sections()
        if not isinstance(self.angles, str) or self.angles not in get_args(Angles):
            raise ConfigError(f"angles: got {shown(self.angles)}, allowed are 'exact', 'ggml'")
        if self.angles == "ggml" and (self.pair_axes is not None or self.coordinate_scale != 1):
            raise ConfigError("angles: got 'ggml', which has no pair_axes and no coordinate_scale; 'exact' is allowed")

    def __repr__(self) -> str:
        # Fields of grids are in it where they say something: they came later, and digests are made of the text.
        given = [(f, getattr(self, f.name)) for f in fields(self)]
        shown = [f"{f.name}={value!r}" for f, value in given if f.name not in _GRID_FIELDS or value != f.default]
        return f"RopeConfig({', '.join(shown)})"

    def __hash__(self) -> int:
        # Asked at every call; the fields take ten times as long, freq_factors more.
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(getattr(self, field.name) for field in fields(self)))
            object.__setattr__(self, "_hash", known)
        return known

    def __getstate__(self) -> dict[str, Any]:
        # Texts have other hashes in other processes.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _check_sections(self) -> None:
        if self.sections is None:
            if self.mode in SECTION_MODES:
                raise ConfigError(f"sections: mode {self.mode!r} needs them, (t, h, w) or (t, h, w, e) counts of pairs")
            return
        counts = [integer(f"sections[{i}]", s, 0) for i, s in enumerate(sequence("sections", self.sections, MOST_DIMS))]
        if len(counts) not in (3, 4):
            raise ConfigError(f"sections: got {len(counts)} numbers, allowed are 3 (t, h, w) or 4 (t, h, w, e)")
        counts += [0] * (4 - len(counts))
        if self.mode not in SECTION_MODES:
            if any(counts):
                raise ConfigError(f"sections: got {tuple(counts)}, mode {self.mode!r} has no sections")
            object.__setattr__(self, "sections", None)
            return
        if not any(counts[:3]):
            raise ConfigError(f"sections: got {tuple(counts)}, one of t, h, w must be greater than 0")
        object.__setattr__(self, "sections", tuple(counts))

    def _check_axes(self) -> None:
        if not isinstance(self.axis_freqs, str) or self.axis_freqs not in get_args(AxisFreqs):
            allowed = ", ".join(map(repr, get_args(AxisFreqs)))
            raise ConfigError(f"axis_freqs: got {shown(self.axis_freqs)}, allowed are {allowed}")
        if self.pair_axes is None:
            for name, plain in (("axis_freqs", "restart"), ("axis_bases", None)):
                if getattr(self, name) != plain:
                    raise ConfigError(f"{name}: given without pair_axes, which says what axis drives a pair")
            return
        if self.mode in SECTION_MODES:
            raise ConfigError(f"pair_axes: mode {self.mode!r} has sections, allowed are modes 'normal', 'neox'")
        if self.ext_factor != 0:
            raise ConfigError("ext_factor: YaRN has no ramp for pair_axes, 0 is needed")
        given = sequence("pair_axes", self.pair_axes, MOST_DIMS // 2)
        axes = tuple(integer(f"pair_axes[{i}]", axis, 0, MOST_AXES - 1) for i, axis in enumerate(given))
        number = 1 + max(axes, default=0)
        if number < 2:
            raise ConfigError("pair_axes: got fewer than two axes; without it one position drives all pairs")
        counts = [axes.count(axis) for axis in range(number)]
        if 0 in counts:
            raise ConfigError(f"pair_axes: got {number} axes, of which axis {counts.index(0)} drives no pair")
        if self.axis_freqs == "deal" and len(set(counts)) > 1:
            raise ConfigError(f"axis_freqs: got 'deal' for axes of {counts} pairs, as many of each are needed")
        if self.n_dims not in (None, 2 * len(axes)):
            raise ConfigError(f"n_dims: got {self.n_dims}, pair_axes has {len(axes)} pairs, 2 elements each")
        object.__setattr__(self, "pair_axes", axes)
        object.__setattr__(self, "n_dims", 2 * len(axes))
        if self.axis_bases is not None:
            bases = sequence("axis_bases", self.axis_bases, MOST_AXES)
            if len(bases) != number:
                raise ConfigError(f"axis_bases: got {len(bases)} numbers, one per axis is needed: {number}")
            checked = tuple(_positive(f"axis_bases[{i}]", base) for i, base in enumerate(bases))
            object.__setattr__(self, "axis_bases", checked)

    def _check_factor_count(self, pairs: int) -> None:
        if self.freq_factors is not None and len(self.freq_factors) < pairs:
            raise ConfigError(f"freq_factors: got {len(self.freq_factors)}, one per pair is needed: {pairs}")

    @property
    def ggml_mode(self) -> int:
        """The mode as ggml's integer."""
        return GGML_MODES[self.mode]

    @cached_property
    def position_axes(self) -> int:
        """Number of rows of positions: 4 (t, h, w, e) in section modes, one per axis of a grid, else 1."""
        return 4 if self.mode in SECTION_MODES else 1 if self.pair_axes is None else 1 + max(self.pair_axes)

    @property
    def uses_sections(self) -> bool:
        """Whether positions have one row per axis."""
        return self.position_axes > 1

    def n_pairs(self, head_dim: int | None) -> int:
        """Number of rotated pairs of one head of `head_dim` elements (None allowed if n_dims is set)."""
        n_dims = self.n_dims
        if n_dims is None:
            if head_dim is None:
                raise ConfigError("n_dims: not set, and no tensor or head_dim given to take it from")
            n_dims = integer("head_dim", head_dim, 0)
            n_dims = n_dims // 2 if self.mode == "vision" else n_dims
        return n_dims if self.mode == "vision" else n_dims // 2

    def for_head_dim(self, head_dim: int) -> RopeConfig:
        """Return this configuration with n_dims filled in and checked against a head of `head_dim` elements."""
        return _for_head_dim(self, integer("head_dim", head_dim, 0))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of every field; `from_dict` reads it back to an equal configuration."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            out[field.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RopeConfig:
        """Build a configuration from `to_dict`'s form; unknown or missing keys raise `ConfigError`."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"config: got {type(data).__name__}, a mapping of field names is needed")
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(data) - set(known), key=str)
        if unknown:
            raise ConfigError(f"config: unknown key {unknown[0]!r}, known are {', '.join(known)}")
        if "mode" not in data:
            raise ConfigError(f"mode: missing, it has no default; allowed are {modes_text()}")
        return cls(**data)

    @classmethod
    def from_hf(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | Any,
        seq_len: int | None = None,
        *,
        layer_type: str | None = None,
        mode: str | int | None = None,
    ) -> RopeConfig:
        """Read a Hugging Face configuration.

        source:     path of a `config.json`, of a folder holding one, its content as a dictionary, or an object with a
                    method `to_dict`, such as a configuration of transformers.
        seq_len:    length that will be run (positions used, the last one + 1); needed by 'dynamic' and 'longrope'.
        layer_type: 'full_attention', 'sliding_attention', … where a model has one RoPE per layer type; required then.
        mode:       the pairing, overriding what is known of the model type; needed where nothing is known.

        `n_dims` of the result is the number of rotated elements. For multi-head latent attention (DeepSeek, MiniCPM3)
        that is `qk_rope_head_dim`: give that slice of q and k. What is not understood is refused by `ConfigError` with
        the key's name; `docs/configs.md` lists what is.
        """
        no_file = isinstance(source, Mapping) or hasattr(source, "to_dict")
        with nullcontext() if no_file else naming_file(path_argument("source", source)):
            return cls(**hf.fields_from_hf(source, seq_len, layer_type=layer_type, mode=mode))

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: str | int | None = None,
        seq_len: int | None = None,
        layer_type: str | None = None,
    ) -> RopeConfig:
        """Read a GGUF model file.

        mode:       the pairing, overriding what is known of the architecture; needed where nothing is known.
        seq_len:    context length that will be run; needed by files with long and short factors (Phi-3, MiniCPM).
        layer_type: 'full_attention' or 'sliding_attention'; needed where the two have different RoPE (Gemma 3,
                    OLMo 3).
        """
        with naming_file(path_argument("path", path)):
            return cls(**gguf.fields_from_gguf(path, mode=mode, seq_len=seq_len, layer_type=layer_type))

    @classmethod
    def preset(cls, name: str) -> RopeConfig:
        """Return the configuration of a well-known model; `clrope.io.presets.names()` lists them."""
        return cls(**presets.preset_fields(name))


@lru_cache(maxsize=256)
def _for_head_dim(given: RopeConfig, head_dim: int) -> RopeConfig:
    n_dims = given.n_dims
    if given.mode == "vision":
        if head_dim % 4 or head_dim < 4:
            raise ConfigError(f"head_dim: got {head_dim}, mode 'vision' needs a positive multiple of 4")
        if n_dims is not None and n_dims != head_dim // 2:
            raise ConfigError(
                f"n_dims: got {n_dims}, mode 'vision' needs head_dim / 2 = {head_dim // 2} (the whole head)"
            )
        config = replace(given, n_dims=head_dim // 2)
    elif n_dims is None:
        left = head_dim - given.n_offs
        if left % 2 or left < 2:
            raise ConfigError(f"n_dims: not given, and head_dim - n_offs = {left} is not a positive even number")
        config = replace(given, n_dims=left)
    else:
        config = given
        if given.n_offs + n_dims > head_dim:
            what = f"n_offs + n_dims: got {given.n_offs} + {n_dims}" if given.n_offs else f"n_dims: got {n_dims}"
            raise ConfigError(f"{what}, at most head_dim = {head_dim} is allowed")
    config._check_factor_count(config.n_pairs(head_dim))
    return config
