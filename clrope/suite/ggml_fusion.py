"""ggml's RMS_NORM_MUL_ROPE and ROPE_SET_ROWS: the parameters of its tests/test-backend-ops.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import api, kv_write, reference
from ..config import RopeConfig, parse_mode
from ..emulation import emulate_rope
from ..kv_cache import RowCache, write_rows
from ..layout import DTYPES
from ..norm import Norm
from ..norm_emulation import emulate_rms_norm
from .call_trial import CallTrial
from .case import Case
from .rope_trial import draw_positions, generator

if TYPE_CHECKING:
    from ..device import DeviceInfo

Array = npt.NDArray[Any]
#: [D, N, S]; ggml's list has the last one twice.
_LENGTHS = (
    (768, 1, 1), (768, 3, 1), (768, 3, 5), (128, 32, 2), (128, 4, 2), (128, 32, 50), (128, 4, 50), (8192, 2, 2),
)  # fmt: skip
EPS = float(np.float32(1e-6))


@dataclass(frozen=True)
class GgmlNormLine:
    """A norm, its weight and a rotation.

    multi_add: x is a sum of three tensors. set_rows: the result becomes rows of a float16 cache. broadcast: one weight
    [D], not one for each head and token.
    """

    ne: tuple[int, int, int]
    multi_add: bool
    set_rows: bool
    broadcast: bool
    mode: int

    @property
    def label(self) -> str:
        """The case in ggml's notation, with its type."""
        return (
            f"RMS_NORM_MUL_ROPE(type=f32,ne=[{','.join(map(str, self.ne))},1],eps=0.000001,"
            f"multi_add={int(self.multi_add)},set_rows={int(self.set_rows)},broadcast={int(self.broadcast)},"
            f"mode={self.mode})"
        )

    def prepare(self, seed: int) -> GgmlNormTrial:
        """Draw the inputs and compute the references."""
        return GgmlNormTrial(self, seed)


class GgmlNormTrial(CallTrial):
    """A case with its inputs. parts: the tensors whose sum is x; weight: [D], or as x; rows: of the tokens."""

    def __init__(self, line: GgmlNormLine, seed: int) -> None:
        rng = generator(seed, line.label)
        head_dim, heads, tokens = line.ne
        shape = (1, tokens, heads, head_dim)
        self.parts = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(3 if line.multi_add else 1)]
        # Of the three, ggml takes the second for the weight.
        drawn = rng.uniform(-1, 1, head_dim if line.broadcast else shape).astype(np.float32)
        self.weight: Array = self.parts[1] if line.multi_add and not line.broadcast else drawn
        self.rows = rng.permutation(tokens)
        config, positions = RopeConfig(parse_mode(line.mode), head_dim), rng.permutation(tokens).astype(np.int32)
        x = sum(self.parts[1:], self.parts[0])
        plain = Norm(np.ones(head_dim, np.float32), EPS)
        # A product with 1 is exact: with the weight after it, the bits are those of one product.
        want = reference.rope(reference.rms_norm(x, plain) * self.weight, positions, config)
        right = emulate_rope(emulate_rms_norm(x, plain) * self.weight, positions, config)
        norms = [Norm(row, EPS) for row in self.weight.reshape(-1, head_dim)]

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            if line.broadcast:
                _call(x, positions, config, norms, out, self.rows, device)
                return
            for token, head in np.ndindex(tokens, heads):  # each with a weight of its own
                own = (slice(None), slice(token, token + 1), slice(head, head + 1))
                _call(
                    [a[own] for a in x], positions[own[1]], config, [norms[token * heads + head]],
                    [a[own] if j == 0 else a[:, :, own[2]] for j, a in enumerate(out)], self.rows[own[1]], device,
                )  # fmt: skip

        if not line.set_rows:
            super().__init__(run, [x], positions, config, [want], [right])
            return
        super().__init__(run, [x, x], positions, config, **_rows(rng, want, right, self.rows, tokens, "f16"))


def _call(
    x: Sequence[Array], positions: Array, config: RopeConfig, norms: Sequence[Norm], out: Sequence[Array],
    rows: Array, device: DeviceInfo,
) -> None:  # fmt: skip
    """Rotate x, with its norm if there is one; the second of two into rows of a cache."""
    if len(x) == 1:
        api.rope(x[0], positions, config, out=out[0], device=device, norm=norms[0])
        return
    cache = RowCache(out[1][0], None, rows)
    kv_write.rope_cache(
        x[0], x[1], None, positions, config, cache, (norms[0], norms[0]) if norms else None, out=out[0], device=device
    )


def _rows(rng: np.random.Generator, want: Array, right: Array, rows: Array, total: int, kind: str) -> dict[str, Any]:
    """Return the references of q's result, and of the same values in rows of a cache of so many rows."""
    before = rng.uniform(-1, 1, (1, total, *right.shape[2:])).astype(DTYPES[kind])
    after = [before.astype(np.float64), before.copy()]
    for cache, written in zip(after, (want, right), strict=True):
        write_rows(cache, rows, written[0])
    return {"want": [want, after[0]], "right": [right, after[1]], "before": [before]}


@dataclass(frozen=True)
class GgmlRowsLine:
    """A rotation whose result becomes rows of a cache of `type`. ne_a: [D, N, S, 3]: of a cache with 3 S rows."""

    type: str
    ne_a: tuple[int, int, int, int]
    mode: int

    @property
    def label(self) -> str:
        """The case in ggml's notation."""
        lengths = ",".join(map(str, self.ne_a))
        return f"ROPE_SET_ROWS(type={self.type},type_idx=i64,ne_a=[{lengths}],mode={self.mode})"

    def prepare(self, seed: int) -> GgmlRowsTrial:
        """Draw the inputs and compute the references."""
        return GgmlRowsTrial(self, seed)


class GgmlRowsTrial(CallTrial):
    """A case with its inputs. rows: of the tokens."""

    def __init__(self, line: GgmlRowsLine, seed: int) -> None:
        rng = generator(seed, line.label)
        head_dim, heads, tokens, more = line.ne_a
        scales = (1.4245, 0.7465, 1.4245) if line.mode & 8 else (1.0, 0.0, 1.0)
        case = Case("f32", (head_dim, heads, tokens, 1), head_dim, line.mode, 512, *scales, False, 0)
        config, positions = case.config(None), draw_positions(case, rng)
        x = rng.uniform(-1, 1, (1, tokens, heads, head_dim)).astype(np.float32)
        self.rows = rng.permutation(tokens)
        want, right = reference.rope(x, positions, config), emulate_rope(x, positions, config)

        def run(x: Sequence[Array], out: Sequence[Array], device: DeviceInfo) -> None:
            _call(x, positions, config, (), out, self.rows, device)

        both = _rows(rng, want, right, self.rows, tokens * more, line.type)
        super().__init__(run, [x, x], positions, config, **both)


def ggml_fusion_lines() -> Iterator[GgmlNormLine | GgmlRowsLine]:
    """Yield both grids."""
    flags = (False, True)
    for multi_add, set_rows, broadcast, mode, ne in product(flags, flags, flags, (0, 2), _LENGTHS):
        yield GgmlNormLine(ne, multi_add, set_rows, broadcast, mode)
    for mode, kind, tokens, more in product((0, 2, 8, 24), ("f16", "f32"), (1, 8, 512), (1, 3)):
        yield GgmlRowsLine(kind, (128, 32, tokens, more), mode)
