"""A `Case` with its inputs: run on a device with a poisoned output, compared with the float64 reference."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import api, reference
from ..compare import compare
from ..config import RopeConfig
from ..emulation import emulate_rope
from ..layout import canonical
from ..positions import packed_positions
from ..testing import digest_of, limit_for, nmse, only_rounded
from .case import Case
from .case_memory import Memory
from .case_outcome import CaseOutcome
from .wide_values import pairwise_error

if TYPE_CHECKING:
    from ..device import DeviceInfo


def generator(seed: int, label: str) -> np.random.Generator:
    """Return the random numbers of a case; they do not depend on the other cases."""
    return np.random.default_rng([seed, zlib.crc32(label.encode())])


def draw_positions(case: Case, rng: np.random.Generator) -> Any:
    """Return positions in the case's form and integer type."""
    b, s = case.shape["b"], case.shape["s"]
    rows: tuple[int, ...] = (4,) if case.uses_sections else ()
    if case.pos in ("offset", "back"):
        start = rng.integers(0, case.n_ctx)
        return np.dtype(case.pt).type(start if case.pos == "offset" else -1 - start)
    if case.pos == "packed":
        bounds = np.unique([0, *rng.integers(0, s, 2), s])
        return packed_positions(bounds, s, rng.integers(0, case.n_ctx, bounds.size - 1)).astype(case.pt)
    low, high = {
        "signed": (-case.n_ctx, case.n_ctx), "each": (-case.n_ctx, case.n_ctx), "far": (-(1 << 31), 1 << 31),
        "huge": (-(1 << 63), 1 << 63),
    }.get(case.pos, (0, case.n_ctx))  # fmt: skip
    own = (*rows, b, s)
    shape = {"offsets": (b,), "batch": own, "each": own, "three": (3, s)}.get(case.pos, (*rows, s))
    return rng.integers(low, high, shape).astype(case.pt)


@dataclass(frozen=True)
class CaseLine:
    """A `Case` as a line of a suite."""

    case: Case

    @property
    def label(self) -> str:
        """The case's notation."""
        return str(self.case)

    def prepare(self, seed: int) -> RopeTrial:
        """Draw the inputs and compute the reference."""
        return RopeTrial(self.case, seed)


class RopeTrial:
    """One call of `clrope.rope` on inputs drawn from a seed.

    x (and the memory around it) is as the case says, freq_factors in [0.9, 1.1], positions as the case says.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        rng = generator(seed, str(case))
        self.x = Memory.of_input(case)
        self.x.fill(rng)
        factors = None
        if case.ff:
            count = case.config(None).n_pairs(None)
            factors = tuple(float(f) for f in rng.uniform(0.9, 1.1, count).astype(np.float32))
        self.config: RopeConfig = case.config(factors)
        self.positions = draw_positions(case, rng)
        with np.errstate(invalid="ignore"):  # NaN and infinities of wide values
            self.want: npt.NDArray[np.float64] = flat(
                [reference.rope(x, self.positions, self.config, case.forward, layout=case.lo) for x in self.x.views]
            )
        self.limit = limit_for(case.type, self.want.size, rounding=True)

    @cached_property
    def digest(self) -> str:
        """Digest of the bits of the kernels' arithmetic in NumPy, from the inputs as they are now."""
        with np.errstate(invalid="ignore"):
            return digest_of(
                [emulate_rope(x, self.positions, self.config, self.case.forward, self.case.lo) for x in self.x.views]
            )

    def run(self, device: DeviceInfo) -> CaseOutcome:
        """Run on the device; the inputs are as before afterwards."""
        case = self.case
        if case.type == "f64" and not device.fp64:
            return CaseOutcome("skip", limit=self.limit, detail="the device has no fp64")
        errors = [""]
        try:
            got, errors = self._call(device)
        finally:
            # For the next device.
            if case.inplace or errors:
                self.x.restore()
        return self.check(got, errors)

    def _call(self, device: DeviceInfo) -> tuple[list[npt.NDArray[Any]], list[str]]:
        case, errors = self.case, []
        target = self.x if case.inplace else Memory.of_output(case)
        if not case.inplace:
            target.poison()
        single = len(self.x.views) == 1
        api.rope(
            self.x.views[0] if single else self.x.views, self.positions, self.config, case.forward,
            out=target.views[0] if single else target.views, layout=case.lo, device=device,
        )  # fmt: skip
        got = [np.array(view) for view in target.views]
        counts = {"outside the output": target.stray(), "of the input": 0 if case.inplace else self.x.changed()}
        errors += [f"{count} elements {where} changed" for where, count in counts.items() if count]
        return got, errors

    def check(self, got: list[npt.NDArray[Any]], errors: list[str]) -> CaseOutcome:
        """Compare a result with the reference."""
        error, text = self.error(got, self.want)
        digest = digest_of(got)
        if not error <= self.limit and not self._only_rounded(got, digest):
            errors = [f"limit {self.limit:.0e}", *([text] if text else []), *errors]
        return CaseOutcome("fail" if errors else "ok", error, self.limit, digest, "; ".join(errors))

    def _only_rounded(self, got: list[npt.NDArray[Any]], digest: str) -> bool:
        if self.case.vals != "uniform":
            return False
        return only_rounded(compare(flat(got), self.want), lambda: digest == self.digest)

    def error(self, got: list[npt.NDArray[Any]], want: npt.NDArray[Any]) -> tuple[float, str]:
        """Return the NMSE, or `pairwise_error` of wide values, and for these what is wrong if it is too large."""
        case = self.case
        if case.vals == "uniform":
            return nmse(flat(got), want), ""
        parts = np.split(want, np.cumsum([a.size for a in got])[:-1])
        return pairwise_error(
            [canonical(a, case.lo) for a in got],
            [canonical(part.reshape(a.shape), case.lo) for a, part in zip(got, parts, strict=True)],
            case.type, self.config.for_head_dim(case.shape["d"]),
        )  # fmt: skip


def flat(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return all elements of the arrays in one array."""
    return np.concatenate([np.ravel(a) for a in arrays])
