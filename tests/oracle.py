"""RoPE once more, for the tests alone: ggml's rules as its C code walks through them, angles by mpmath, no clrope.

Follows `ggml_compute_forward_rope`, `ggml_mrope_cache_init`, `rope_yarn`, `ggml_rope_yarn_corr_dims` of ggml with real
numbers in place of floats, and in `ggml_theta` with numbers of 24 bits. Slow; meant for small tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np

DIGITS = 60
MODES = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
LIMITS = {"f32": 1e-12, "f16": 6e-8, "bf16": 4e-6, "f64": 1e-20}


def frequencies(fields: Mapping[str, Any], head_dim: int, digits: int = DIGITS) -> tuple[list[Any], list[str], Any]:
    """Return per pair (radians per position, the row 't', 'h', 'w' or 'e' that drives it), and the magnitude."""
    with mpmath.workdps(digits):
        mode = MODES[fields["mode"]]
        vision = mode == MODES["vision"]
        n_dims = fields.get("n_dims") or (head_dim // 2 if vision else head_dim - fields.get("n_offs", 0))
        base = mpmath.mpf(fields.get("freq_base", 10000.0))
        freq_scale = mpmath.mpf(fields.get("freq_scale", 1.0))
        ext_factor = mpmath.mpf(fields.get("ext_factor", 0.0))
        factors = fields.get("freq_factors")
        low, high = corr_dims(fields, n_dims, base)
        magnitude = mpmath.mpf(fields.get("attn_factor", 1.0))
        if ext_factor != 0:
            magnitude *= 1 + mpmath.log(1 / freq_scale) / 10
        theta_scale = base ** (-mpmath.mpf(2) / n_dims)
        powers = {"t": 0, "h": 0, "w": 0, "e": 0}
        omegas, drivers = [], []
        for i, (driver, restarted) in enumerate(sectors(fields, head_dim // 2 if vision else n_dims // 2)):
            powers |= dict.fromkeys(restarted, 0)
            extrapolated = theta_scale ** powers[driver]
            if factors is not None:
                extrapolated /= mpmath.mpf(factors[i])
            theta = freq_scale * extrapolated
            if ext_factor != 0:
                ramp = (mpmath.mpf(i) - low) / max(mpmath.mpf("0.001"), high - low)
                mix = (1 - min(mpmath.mpf(1), max(mpmath.mpf(0), ramp))) * ext_factor
                theta = theta * (1 - mix) + extrapolated * mix
            omegas.append(theta)
            drivers.append(driver)
            powers = {k: n + 1 for k, n in powers.items()}
        return omegas, drivers, magnitude


def sectors(fields: Mapping[str, Any], pairs: int) -> list[tuple[str, str]]:
    """Return per pair the row that drives it, and the row whose powers begin again there ('' for none)."""
    mode = MODES[fields["mode"]]
    sections = list(fields.get("sections") or [])
    sections += [0] * (4 - len(sections))
    out = []
    for i in range(pairs):
        driver, restarted = "t", ""
        if mode & 8:
            sector = i % sum(sections)
            driver = driver_of(mode, sector, sections)
            if mode == MODES["vision"]:
                if sector == 0:
                    restarted = "t"
                elif sector == sections[0]:
                    restarted = "h"
                elif sector == sections[0] + sections[1]:
                    restarted = "w"
                elif sector == sections[0] + sections[1] + sections[2]:
                    restarted = "e"
        out.append((driver, restarted))
    return out


def driver_of(mode: int, sector: int, sections: list[int]) -> str:
    t, h, w, _ = sections
    if mode == MODES["imrope"]:
        if sector % 3 == 1 and sector < 3 * h:
            return "h"
        if sector % 3 == 2 and sector < 3 * w:
            return "w"
        if sector % 3 == 0 and sector < 3 * t:
            return "t"
        return "e"
    if t <= sector < t + h:
        return "h"
    if t + h <= sector < t + h + w:
        return "w"
    if sector >= t + h + w:
        return "e"
    return "t"


def corr_dims(fields: Mapping[str, Any], n_dims: int, base: Any) -> tuple[Any, Any]:
    if fields.get("ext_factor", 0.0) == 0:
        return mpmath.mpf(0), mpmath.mpf(0)
    context = fields.get("n_ctx_orig", 0)

    def dim(rotations: float) -> Any:
        if context == 0:
            return mpmath.mpf("-inf") if base > 1 else mpmath.mpf("inf")
        return n_dims * mpmath.log(context / (rotations * 2 * mpmath.pi)) / (2 * mpmath.log(base))

    begin, end = dim(fields.get("beta_fast", 32.0)), dim(fields.get("beta_slow", 1.0))
    begin = mpmath.floor(begin) if mpmath.isfinite(begin) else begin
    end = mpmath.ceil(end) if mpmath.isfinite(end) else end
    return max(mpmath.mpf(0), begin), min(mpmath.mpf(n_dims - 1), end)


def ggml_theta(rows: np.ndarray, fields: Mapping[str, Any], head_dim: int) -> tuple[np.ndarray, float]:
    """Return ggml's own angles, float32 [R, pairs], for integer rows [4, R] (t, h, w, e), and its magnitude.

    Each operation is rounded to 24 bits; of the blend's multiplication and addition compilers make one operation.
    """
    vision = fields["mode"] == "vision"
    n_dims = fields.get("n_dims") or (head_dim // 2 if vision else head_dim - fields.get("n_offs", 0))
    pairs = head_dim // 2 if vision else n_dims // 2
    with mpmath.workprec(24):

        def real(value: Any) -> Any:
            return +mpmath.mpf(value)

        one = mpmath.mpf(1)
        base, exponent = real(fields.get("freq_base", 10000.0)), mpmath.mpf(-2) / n_dims
        freq_scale = real(fields.get("freq_scale", 1.0))
        ext_factor = real(fields.get("ext_factor", 0.0))
        factors = list(map(real, fields.get("freq_factors") or [1.0] * pairs))
        inverse = one / freq_scale
        with mpmath.workdps(DIGITS):  # powf and logf are rounded once, mpmath's of 24 bits may be off by one
            low, high = corr_dims(fields, n_dims, mpmath.mpf(fields.get("freq_base", 10000.0)))
            theta_scale, log = base**exponent, mpmath.log(inverse)
        theta_scale = real(theta_scale)
        magnitude = real(fields.get("attn_factor", 1.0))
        if ext_factor != 0:
            magnitude *= one + real(0.1) * real(log)
        out = np.empty((rows.shape[1], pairs), np.float32)
        for r in range(rows.shape[1]):
            begin = {row: +mpmath.mpf(int(p)) for row, p in zip("thwe", rows[:, r], strict=True)}
            theta = dict(begin)
            for i, (driver, restarted) in enumerate(sectors(fields, pairs)):
                theta |= {row: begin[row] for row in restarted}
                extrapolated = theta[driver] / factors[i]
                angle = freq_scale * extrapolated
                if ext_factor != 0:
                    ramp = (i - low) / max(real(0.001), high - low)
                    mix = (one - min(one, max(mpmath.mpf(0), ramp))) * ext_factor
                    angle = mpmath.fmul(angle, one - mix, exact=True) + extrapolated * mix
                out[r, i] = float(angle)
                theta = {row: value * theta_scale for row, value in theta.items()}
    return out, float(magnitude)


def cos_sin(rows: np.ndarray, fields: Mapping[str, Any], head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 cos and sin [R, pairs], times the magnitude, for integer rows [4, R] (t, h, w, e)."""
    omegas, drivers, magnitude = frequencies(fields, head_dim)
    shape = (rows.shape[1], len(omegas))
    cosine, sine = np.empty(shape), np.empty(shape)
    with mpmath.workdps(DIGITS):
        for i, (omega, driver) in enumerate(zip(omegas, drivers, strict=True)):
            for r in range(rows.shape[1]):
                theta = omega * int(rows["thwe".index(driver), r])
                cosine[r, i] = float(mpmath.cos(theta) * magnitude)
                sine[r, i] = float(mpmath.sin(theta) * magnitude)
    return cosine, sine


def rows_of(positions: Any, fields: Mapping[str, Any], batch: int, seq: int) -> np.ndarray:
    """Return int64 [B, 4, S]: t, h, w, e of every token, for every form of positions that clrope documents."""
    given = np.asarray(positions).astype(object)  # Python integers: nothing overflows
    out = np.empty((batch, 4, seq), dtype=object)
    sections = MODES[fields["mode"]] & 8
    for b in range(batch):
        for s in range(seq):
            if given.ndim == 0:
                token = [given.item() + s]
            elif given.ndim == 1:
                token = [given[s]] if given.shape[0] == seq else [given[b] + s]
            elif given.ndim == 2:
                if sections and given.shape[0] in (3, 4):
                    token = list(given[:, s])
                else:
                    token = [given[b if given.shape[0] > 1 else 0, s]]
            else:
                token = list(given[:, b if given.shape[1] > 1 else 0, s])
            if len(token) == 1:
                token = token * 4
            elif len(token) == 3:
                token = [*token, token[0]]
            out[b, :, s] = token
    return out


def rope(
    x: np.ndarray, positions: Any, fields: Mapping[str, Any], forward: bool = True, layout: str = "bsnd"
) -> np.ndarray:
    """Rotate x in float64 and return a new float64 array of its shape and axes."""
    letters = layout.replace("b", "") if x.ndim == 3 else layout
    wide = x.astype(np.float64)
    if x.ndim == 3:
        wide, letters = wide[None], "b" + letters
    order = [letters.index(c) for c in "bsnd"]
    source = np.ascontiguousarray(wide.transpose(order))
    result = source.copy()
    batch, seq, _, head_dim = source.shape
    for b, rows in enumerate(rows_of(positions, fields, batch, seq)):
        cosine, sine = cos_sin(rows, fields, head_dim)
        if not forward:
            sine = -sine
        pairs, offset = cosine.shape[1], fields.get("n_offs", 0)
        for i in range(pairs):
            first = offset + (2 * i if fields["mode"] == "normal" else i)
            second = first + (1 if fields["mode"] == "normal" else pairs)
            c, s = cosine[:, i, None], sine[:, i, None]
            result[b, :, :, first] = source[b, :, :, first] * c - source[b, :, :, second] * s
            result[b, :, :, second] = source[b, :, :, first] * s + source[b, :, :, second] * c
    back = result.transpose(np.argsort(order))
    return back[0] if x.ndim == 3 else back
