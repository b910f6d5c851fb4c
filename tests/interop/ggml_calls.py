"""Random calls of ggml's rope for the tests of its adapter, and what the formulas give for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle

import clrope
from clrope.interop import ggml

MODES = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
DTYPES = {"f16": np.float16, "f32": np.float32}
#: The float arguments that leave the angle as it is.
PLAIN = {"n_ctx_orig": 0, "freq_base": 1e4, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0, "beta_fast": 32.0,
         "beta_slow": 1.0}  # fmt: skip


@dataclass(eq=False)
class Call:
    """One call of ggml's rope: what a suite needs to make it here and in ggml."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    n_dims: int
    mode: int
    sections: tuple[int, int, int, int] | None
    floats: dict[str, Any]
    n_offs: int = 0
    forward: bool = True

    def fields(self) -> dict[str, Any]:
        """The oracle's configuration: parameters as float32, as a C call takes them."""
        name = {number: name for name, number in MODES.items()}[self.mode]
        rounded = {k: v if k == "n_ctx_orig" else float(np.float32(v)) for k, v in self.floats.items()}
        factors = None if self.c is None else [float(f) for f in self.c]
        return {"mode": name, "n_dims": self.n_dims, "freq_factors": factors, "sections": self.sections or (0, 0, 0, 0),
                "n_offs": self.n_offs, **rounded}  # fmt: skip

    def positions(self) -> np.ndarray:
        return self.b.reshape(4, -1) if self.mode & 8 else self.b

    def want(self) -> np.ndarray:
        """What the formulas give in float64; a missing leading axis is one of length 1."""
        a = self.a.reshape((1,) * (4 - self.a.ndim) + self.a.shape)
        return oracle.rope(a, self.positions(), self.fields(), self.forward).reshape(self.a.shape)

    def run(self, a: Any = None, *, inplace: bool = False, **options: Any) -> Any:
        """Call the function that fits, with `a` in place of the call's own."""
        kind = ("multi" if self.sections else "ext") + ("_inplace" if inplace else "" if self.forward else "_back")
        multi = {"sections": self.sections} if self.sections else {}
        given = {"b": self.b, "c": self.c, "n_dims": self.n_dims, "mode": self.mode, **multi, **self.floats}
        if self.n_offs:
            options["n_offs"] = self.n_offs
        function = getattr(ggml, f"rope_{kind}")
        return function(self.a if a is None else a, **given, **options)

    def __str__(self) -> str:
        return (
            f"mode {self.mode} {self.a.dtype}{list(self.a.shape)} n_dims {self.n_dims} n_offs {self.n_offs} sections "
            f"{self.sections} forward {self.forward} c {self.c is not None} {self.floats} b {self.b.tolist()}"
        )


def calls(
    rng: np.random.Generator, count: int, *, highest: int = 512, offsets: bool = True, largest: int = 16
) -> Iterator[Call]:
    """Yield random calls of all modes, for this file and for any suite; `largest` bounds the quarters of a head."""
    for _ in range(count):
        mode = int(rng.choice(list(MODES.values())))
        head_dim = 4 * int(rng.integers(2, largest + 1))
        n_dims = head_dim // 2 if mode == 24 else 2 * int(rng.integers(1, head_dim // 2 + 1))
        n_offs = 2 * int(rng.integers(0, (head_dim - n_dims) // 2 + 1)) if offsets and mode != 24 else 0
        pairs = n_dims if mode == 24 else n_dims // 2
        sections = None
        if mode & 8:
            counts = rng.integers(0, max(2, pairs // 2), 4)
            counts[rng.integers(0, 3)] += 1
            sections = tuple(int(n) for n in counts)
        shape = [int(n) for n in (rng.integers(1, 4), rng.integers(1, 8), rng.integers(1, 5), head_dim)]
        if rng.random() < 0.3:
            shape = shape[int(rng.integers(1, 4)) :]
        seq = shape[-3] if len(shape) > 2 else 1
        low = -highest if rng.random() < 0.2 else 0
        b = rng.integers(low, highest, seq * (4 if mode & 8 else 1), dtype=np.int32)
        yarn = bool(rng.random() < 0.5)
        floats = {
            "n_ctx_orig": int(rng.choice([512, 4096, 32768])) if yarn else 0,
            "freq_base": float(rng.choice([1e4, 5e5, 1e6 + 0.1])),
            "freq_scale": float(rng.uniform(0.1, 1.5)),
            "ext_factor": float(rng.uniform(0.1, 1)) if yarn else 0.0,
            "attn_factor": float(rng.uniform(0.7, 1.5)),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
        c = rng.uniform(0.9, 1.1, pairs).astype(np.float32) if rng.random() < 0.4 else None
        a = rng.uniform(-1, 1, shape).astype(rng.choice(list(DTYPES.values())))
        yield Call(a, b, c, n_dims, mode, sections, floats, n_offs, bool(rng.random() < 0.7))


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return clrope.compare(got, want).nmse


def limit(a: np.ndarray) -> float:
    """The error allowed; the limits are means, of few elements all may be rounded badly."""
    return oracle.LIMITS["f16" if a.dtype == np.float16 else "f32"] * (1 if a.size >= 4096 else 5)


def set_rows(call: Call, dst: Any, rows: Any, **options: Any) -> Any:
    return ggml.rope_set_rows(
        dst, call.a, call.b, call.c, rows, call.n_dims, call.mode, sections=call.sections, n_offs=call.n_offs,
        **call.floats, **options,
    )  # fmt: skip
