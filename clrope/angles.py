"""Configuration to `AngleTable`: one fraction of a turn per pair and position, held as an integer. No devices.

Every scaling in use is linear in the position, so pair i turns by `p * omega[i]`, and `omega[i] / 2π` can be written as
a binary fraction of a turn. `p * step[i]` in wrapping integer arithmetic is then the phase, with nothing to lose at
large p. The fractions are made here with 60 decimal digits and more, so that every stored bit is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .config import RopeConfig
from .errors import ConfigError

#: 2π to 251 digits (OEIS A019692).
TWO_PI = Decimal(
    "6.2831853071795864769252867665590057683943387987502116419498891846156328125724179972"
    "560696506842341359642961730265646132941876892191011644634507188162569622349005682054"
    "038770422111192892458979098607639288576219513318668922569512964675735663305424038183"
)
_TURN = 1 << 128

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GgmlAngles:
    """What `angles="ggml"` needs on top: ggml's float32 recurrence `theta *= theta_scale`, pair after pair.

    `exponent[i]` counts the multiplications behind pair i, `factor` is freq_factors,
    `mix` is YaRN's `ramp * ext_factor`; all float32 as ggml computes them.
    """

    theta_scale: np.float32
    freq_scale: np.float32
    magnitude: np.float32
    yarn: bool
    exponent: npt.NDArray[np.int32]
    factor: F32
    mix: F32


@dataclass(frozen=True, eq=False)
class AngleTable:
    """Per pair i of a head: how far it turns for each step of its position.

    step:      uint64[pairs], omega[i] / 2π as a fraction of a turn, rounded to the nearest 2**-64.
    step_low:  int64[pairs], what that rounding left, in 2**-128 of a turn (for positions beyond ±2**31 and float64).
    axis:      uint8[pairs], which row of the positions drives the pair (t, h, w, e in section modes; 0 with one row).
    omega:     float64[pairs], radians per position.
    magnitude: factor on cos and sin.
    ggml:      ggml's own recurrence, for `angles="ggml"`.
    """

    step: npt.NDArray[np.uint64]
    step_low: npt.NDArray[np.int64]
    axis: npt.NDArray[np.uint8]
    omega: npt.NDArray[np.float64]
    magnitude: float
    ggml: GgmlAngles

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return int(self.step.shape[0])

    @property
    def turn128(self) -> list[int]:
        """The fractions of a turn per position as integers in units of 2**-128, 0 <= value < 2**128."""
        return [((int(s) << 64) + int(low)) % _TURN for s, low in zip(self.step, self.step_low, strict=True)]


def section_of_pairs(config: RopeConfig, pairs: int) -> tuple[list[int], list[int]]:
    """Return (axis, exponent) of each pair: its position row, and i in `freq_base ** (-2 i / n_dims)`.

    ggml's rule (`ggml_mrope_cache_init`): sections are counted in pairs and wrap; 'mrope' and 'imrope' do not restart
    the exponent, 'vision' restarts an axis' exponent where its section begins. With pair_axes, see `_powers`.
    """
    if config.sections is None:
        return list(config.pair_axes or [0] * pairs), list(range(pairs))
    st, sh, sw, _ = config.sections
    total = sum(config.sections)
    axes: list[int] = []
    exponents: list[int] = []
    begin = [0, 0, 0, 0]
    for i in range(pairs):
        sector = i % total
        if config.mode == "vision":
            # A chain, as in ggml: of several empty sections beginning at one place only the first restarts.
            for axis, start in enumerate((0, st, st + sh, st + sh + sw)):
                if sector == start:
                    begin[axis] = i
                    break
        if config.mode == "imrope":
            axis = sector % 3
            if sector >= 3 * (st, sh, sw)[axis]:
                axis = 3
        else:
            axis = (sector >= st) + (sector >= st + sh) + (sector >= st + sh + sw)
        axes.append(int(axis))
        exponents.append(i - begin[axis])
    return axes, exponents


def yarn_range(config: RopeConfig) -> tuple[float, float]:
    """Return the pair indices (low, high) between which YaRN's ramp falls from 1 to 0 (`ggml_rope_yarn_corr_dims`)."""
    assert config.n_dims is not None
    n_dims, base = config.n_dims, config.freq_base

    def index(rotations: float) -> float:
        if config.n_ctx_orig == 0:
            return -math.copysign(math.inf, math.log(base))
        return n_dims * math.log(config.n_ctx_orig / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = index(config.beta_fast), index(config.beta_slow)
    return (
        max(0.0, math.floor(low) if math.isfinite(low) else low),
        min(n_dims - 1.0, math.ceil(high) if math.isfinite(high) else high),
    )


def _context(config: RopeConfig) -> Context:
    """Return the arithmetic of decimals: 60 digits, and as many as the fastest pair's radians per position may have.

    39 digits of a turn are kept. A configuration within its bounds gives up to 1e180 radians, most give at most 1.
    """
    least = min(1.0, *map(abs, config.freq_factors or (1.0,)))
    fastest = math.log10(max(1.0, config.freq_scale)) + math.log10(1 + abs(config.ext_factor)) - math.log10(least)
    # With 'vision' the exponent of freq_base comes near to -2.
    fastest -= 2 * math.log10(min(1.0, config.freq_base, *(config.axis_bases or ())))
    return Context(prec=60 + math.ceil(fastest), Emax=999999, Emin=-999999)


def yarn_mix(config: RopeConfig, pairs: int) -> list[Decimal]:
    """Return per pair the weight of the extrapolated angle, `ext_factor * ramp` (all 0 without YaRN).

    In decimals: a weight rounded to float64 would be off by 1e-7 radians at position 2**30.
    """
    if config.ext_factor == 0:
        return [Decimal(0)] * pairs
    weight = Decimal(config.ext_factor)
    low, high = yarn_range(config)
    if math.isinf(low):  # freq_base < 1 with n_ctx_orig = 0: every pair is below the ramp
        return [weight] * pairs
    mixes = []
    with localcontext(_context(config)):
        for i in range(pairs):
            if i <= low:
                ramp = Decimal(1)
            elif high <= low:
                ramp = Decimal(0)  # a ramp 0.001 of a pair wide ends before the next pair
            else:
                ramp = 1 - min(Decimal(1), (i - Decimal(low)) / (Decimal(high) - Decimal(low)))
            mixes.append(weight * ramp)
    return mixes


def magnitude_of(config: RopeConfig) -> float:
    """Return the factor on cos and sin: attn_factor, times `1 + 0.1 ln(1/freq_scale)` if ext_factor is not 0."""
    if config.ext_factor == 0:
        return config.attn_factor
    return config.attn_factor * (1.0 + 0.1 * math.log(1.0 / config.freq_scale))


def _powers(config: RopeConfig, exponents: list[int]) -> list[Decimal]:
    """Return the power of the base of each pair."""
    if config.pair_axes is None:
        assert config.n_dims is not None
        ratio = Decimal(config.freq_base) ** (Decimal(-2) / Decimal(config.n_dims))
        powers = [Decimal(1)]
        while len(powers) <= max(exponents):
            powers.append(powers[-1] * ratio)
        return [powers[exponent] for exponent in exponents]
    axes, number = config.pair_axes, config.position_axes
    bases = config.axis_bases or (config.freq_base,) * number
    seen = [0] * number
    found = []
    for i, axis in enumerate(axes):
        j = seen[axis]
        seen[axis] += 1
        numerator, denominator = i, len(axes)
        if config.axis_freqs == "restart":
            numerator, denominator = j, axes.count(axis)
        elif config.axis_freqs == "deal":
            numerator = j * number + axis
        found.append(Decimal(bases[axis]) ** (Decimal(-numerator) / Decimal(denominator)))
    return found


@lru_cache(maxsize=256)
def angle_table(config: RopeConfig) -> AngleTable:
    """Return the table of a configuration whose n_dims is set (`RopeConfig.for_head_dim` sets it).

    Raises `ConfigError` if n_dims is not set or freq_factors are too few.
    """
    if config.n_dims is None:
        raise ConfigError("n_dims: not set; use config.for_head_dim(head_dim) first")
    pairs = config.n_pairs(None)
    axes, exponents = section_of_pairs(config, pairs)
    mixes = yarn_mix(config, pairs)
    factors = config.freq_factors or (1.0,) * pairs
    steps, lows, omegas = [], [], []
    with localcontext(_context(config)):
        scale = Decimal(config.freq_scale)
        for power, mix, factor in zip(_powers(config, exponents), mixes, factors, strict=False):
            blend = scale
            if mix != 0:
                blend = scale * (1 - mix) + mix
            omega = power / Decimal(factor) * blend / config.coordinate_scale
            whole = int((omega / TWO_PI * _TURN).to_integral_value(rounding="ROUND_HALF_EVEN")) % _TURN
            step = ((whole + (1 << 63)) >> 64) % (1 << 64)
            low = whole - (step << 64)
            steps.append(step)
            lows.append((low + (1 << 127)) % _TURN - (1 << 127))
            omegas.append(float(omega))
    # 2**63 itself would not fit: rounding to nearest leaves -2**63 <= low < 2**63.
    table = AngleTable(
        step=np.array(steps, dtype=np.uint64),
        step_low=np.array(lows, dtype=np.int64),
        axis=np.array(axes, dtype=np.uint8),
        omega=np.array(omegas, dtype=np.float64),
        magnitude=magnitude_of(config),
        ggml=_ggml_angles(config, exponents, factors[:pairs]),
    )
    ggml = table.ggml
    for array in (table.step, table.step_low, table.axis, table.omega, ggml.exponent, ggml.factor, ggml.mix):
        array.setflags(write=False)
    return table


def _ggml_mix(config: RopeConfig, pairs: int) -> F32:
    """Return `rope_yarn_ramp(...) * ext_factor`, each operation rounded to float32 as in ggml."""
    if config.ext_factor == 0:
        return np.zeros(pairs, dtype=np.float32)
    low, high = map(np.float32, yarn_range(config))
    one = np.float32(1)
    ramp = (np.arange(pairs, dtype=np.float32) - low) / max(np.float32(0.001), np.float32(high - low))
    mix: F32 = (one - np.clip(ramp, np.float32(0), one)) * np.float32(config.ext_factor)
    return mix


def _ggml_angles(config: RopeConfig, exponents: list[int], factors: tuple[float, ...]) -> GgmlAngles:
    assert config.n_dims is not None
    f32 = np.float32
    with np.errstate(over="ignore", under="ignore"):
        # powf of the C library is correctly rounded but for rare cases: float64, rounded once.
        exponent = f32(-2.0) / f32(config.n_dims)
        theta_scale = f32(float(f32(config.freq_base)) ** float(exponent))
        magnitude = f32(config.attn_factor)
        if config.ext_factor != 0:
            log = f32(math.log(float(f32(1.0) / f32(config.freq_scale))))
            magnitude = f32(magnitude * f32(f32(1.0) + f32(f32(0.1) * log)))
        return GgmlAngles(
            theta_scale=theta_scale,
            freq_scale=f32(config.freq_scale),
            magnitude=magnitude,
            yarn=config.ext_factor != 0,
            exponent=np.array(exponents, dtype=np.int32),
            factor=np.array(factors, dtype=np.float32),
            mix=_ggml_mix(config, len(exponents)),
        )
