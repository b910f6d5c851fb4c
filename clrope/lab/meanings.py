"""What a kernel's arguments can mean: the values that a contract's expressions are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..angles import angle_table, magnitude_of
from ..config import RopeConfig
from ..mode import GGML_MODES

if TYPE_CHECKING:
    from ..kernels.problem import Problem


@dataclass(frozen=True)
class BoundValue:
    """A value that is bound for each call: memory x, y, cosine, sine, positions; numbers x_offset, y_offset.

    scale: of numbers, for offsets in bytes.
    """

    name: str
    scale: int = 1


@dataclass(frozen=True, eq=False)
class ArrayValue:
    """Numbers of the configuration, given as a read-only buffer of the argument's type; made when they are needed."""

    make: Callable[[], npt.NDArray[Any]]

    @property
    def numbers(self) -> npt.NDArray[Any]:
        """The numbers."""
        return self.make()


#: Each name that an expression may use, and what it is. Strides are in elements.
MEANINGS: dict[str, str] = {
    "x": "the input", "y": "the output", "xy": "input and output of a call in place",
    "x_offset": "where x begins in its buffer, in elements", "y_offset": "where y begins in its buffer, in elements",
    "x_offset_bytes": "the same in bytes", "y_offset_bytes": "the same in bytes",
    "x_batch": "stride of x", "x_token": "stride of x", "x_head": "stride of x", "x_element": "stride of x",
    "y_batch": "stride of y", "y_token": "stride of y", "y_head": "stride of y", "y_element": "stride of y",
    "batch": "batches", "tokens": "tokens of a batch", "heads": "heads", "head_dim": "elements of a head",
    "itemsize": "bytes of an element", "dtype": "storage type: 'f32', 'f16', ...",
    "n_dims": "rotated elements of a head", "pairs": "rotated pairs, n_dims / 2",
    "slots": "pairs and copied elements of a head: head_dim - pairs", "n_offs": "where the rotated elements begin",
    "rows": "rows of tables and positions", "row_stride": "rows from one batch to the next, 0 if batches share them",
    "cos_table": "cos, float [rows, pairs], times the magnitude", "sin_table": "sin, likewise",
    "positions": "positions, integers [rows] ([4, rows] in section modes)",
    "row_numbers": "0, 1, ... rows - 1: for kernels that find rows of their tables by positions",
    "neox": "1 if pair i is (i, i + pairs)", "normal": "1 if pair i is (2 i, 2 i + 1)", "mode": "ggml's number",
    "forward": "1, or 0 for the inverse rotation", "direction": "1, or -1 for the inverse rotation: factor of sin",
    "in_place": "1 if y is x", "freq_base": "base", "freq_scale": "factor on angles",
    "ext_factor": "weight of YaRN's ramp", "attn_factor": "factor on cos and sin, without YaRN's",
    "magnitude": "factor on cos and sin, with YaRN's", "beta_fast": "YaRN", "beta_slow": "YaRN", "n_ctx_orig": "YaRN",
    "theta_scale": "freq_base ** (-2 / n_dims)", "has_factors": "1 if there are freq_factors",
    "freq_factors": "divisor of each pair's angle, 1 without factors", "omega": "radians for each position, by pair",
    "step": "fraction of a turn for each position, in 2**-64, of each pair (ulong)",
    "sections": "int4, pairs driven by rows t, h, w, e", "uses_sections": "1 in section modes",
    "config_n_dims": "n_dims of the configuration; half of the rotated elements in mode vision",
}  # fmt: skip

#: Those that an argument takes as a pointer.
POINTERS = frozenset(
    ("x", "y", "xy", "cos_table", "sin_table", "positions", "row_numbers", "freq_factors", "omega", "step")
)


def values_of(problem: Problem, config: RopeConfig, repeats: int) -> dict[str, Any]:
    """Return the value of each name in `MEANINGS` for a problem; config has n_dims set.

    repeats: how often rows of tables or positions are repeated.
    """
    batch, tokens, heads, head_dim = problem.shape
    pairs = problem.pairs.pairs
    rows = tokens if problem.row_stride == 0 else (batch - 1) * problem.row_stride + tokens
    values: dict[str, Any] = {
        "x": BoundValue("x"), "y": BoundValue("y"), "xy": BoundValue("x"),
        "x_offset": BoundValue("x_offset"), "y_offset": BoundValue("y_offset"),
        "x_offset_bytes": BoundValue("x_offset", problem.itemsize),
        "y_offset_bytes": BoundValue("y_offset", problem.itemsize),
        "cos_table": BoundValue("cosine"), "sin_table": BoundValue("sine"), "positions": BoundValue("positions"),
        "row_numbers": ArrayValue(lambda: np.arange(rows * repeats)),
        "batch": batch, "tokens": tokens, "heads": heads, "head_dim": head_dim,
        "itemsize": problem.itemsize, "dtype": problem.dtype,
        "n_dims": 2 * pairs, "pairs": pairs, "slots": head_dim - pairs, "n_offs": problem.pairs.window,
        "rows": rows * repeats, "row_stride": problem.row_stride,
        "neox": int(config.mode != "normal"), "normal": int(config.mode == "normal"), "mode": GGML_MODES[config.mode],
        "forward": int(problem.forward), "direction": 1 if problem.forward else -1, "in_place": int(problem.in_place),
        "freq_base": config.freq_base, "freq_scale": config.freq_scale, "ext_factor": config.ext_factor,
        "attn_factor": config.attn_factor, "magnitude": magnitude_of(config), "beta_fast": config.beta_fast,
        "beta_slow": config.beta_slow, "n_ctx_orig": config.n_ctx_orig,
        "theta_scale": config.freq_base ** (-2 / (config.n_dims or 2)),
        "has_factors": int(config.freq_factors is not None),
        "freq_factors": ArrayValue(lambda: np.array((config.freq_factors or (1.0,) * pairs)[:pairs])),
        "omega": ArrayValue(lambda: angle_table(config).omega), "step": ArrayValue(lambda: angle_table(config).step),
        "sections": config.sections or (0, 0, 0, 0), "uses_sections": int(config.uses_sections),
        "config_n_dims": config.n_dims,
    }  # fmt: skip
    for name, strides in (("x", problem.x_strides), ("y", problem.y_strides)):
        values |= {f"{name}_{axis}": s for axis, s in zip(("batch", "token", "head", "element"), strides, strict=True)}
    return values
