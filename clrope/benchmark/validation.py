"""Checks of a result before it is timed: some tokens against the float64 reference, all tokens by their norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..compare import compare
from ..testing import PEER_LIMITS
from .buffers import UNCHANGED, Change, Inputs
from .entry import WrongResultError

#: Elements to compare with the reference.
SAMPLED = 250_000
#: Largest relative error of a head's squared norm, by rounding.
NORMS = {"f32": 1e-3, "f16": 1e-2, "bf16": 4e-2}


class ResultCheck:
    """The right values of one workload."""

    def __init__(self, inputs: Inputs, seed: int) -> None:
        workload = inputs.workload
        self._dtype = workload.dtype
        batch, seq = workload.tensors[0][:2]
        per_token = batch * max(n * d for _, _, n, d in workload.tensors)
        count = max(1, min(seq, SAMPLED // per_token))
        drawn = np.random.default_rng(seed).choice(seq, count, replace=False)
        # Errors of chunks show at the ends.
        self._tokens = np.unique(np.append(drawn, [0, seq - 1]))
        self._inputs = inputs
        self._want = self._wants(0)
        self._shapes = [x.shape for x in inputs.tensors]
        self._norms = [_norms(x) for x in inputs.tensors]

    def _wants(self, start: int) -> list[npt.NDArray[np.float64]]:
        """Return the right values of the sampled tokens, at positions that are moved by `start`."""
        workload, tokens = self._inputs.workload, self._tokens
        positions = workload.position_array(start)[..., tokens]
        return [
            reference.rope(x[:, tokens], positions, workload.config, workload.forward) for x in self._inputs.tensors
        ]

    def __call__(self, got: Sequence[npt.NDArray[Any]], change: Change = UNCHANGED) -> float:
        """Return the NMSE of the tensors, made of changed inputs and positions; raise `WrongResultError`."""
        worst = 0.0
        wants = [change.of(want) for want in (self._wants(change.start) if change.start else self._want)]
        all_norms = [Change(heads=change.heads).of(norms) for norms in self._norms]
        for number, (y, want, norms) in enumerate(zip(got, wants, all_norms, strict=True)):
            if y.shape != self._shapes[number]:
                raise WrongResultError(f"tensor {number} has shape {list(y.shape)}, not {list(self._shapes[number])}")
            found = compare(np.ascontiguousarray(y[:, self._tokens]), want)
            if not found.nmse <= PEER_LIMITS[self._dtype]:
                raise WrongResultError(f"tensor {number}, sampled tokens: {found}")
            with np.errstate(all="ignore"):
                off = np.abs(_norms(y) / norms - 1)
            if not off.max() <= NORMS[self._dtype]:
                first = [int(i) for i in np.unravel_index(int(np.argmax(~(off <= NORMS[self._dtype]))), off.shape)]
                raise WrongResultError(f"tensor {number}: the norm of head {first} (batch, token, head) has changed")
            worst = max(worst, found.nmse)
        return worst


def _norms(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the sum of squares of every head, which a rotation keeps. In parts, to save memory."""
    out = np.empty(x.shape[:3], np.float32)
    for b in range(x.shape[0]):
        for s in range(0, x.shape[1], 256):
            part = x[b, s : s + 256].astype(np.float32)
            with np.errstate(all="ignore"):
                np.einsum("snd,snd->sn", part, part, out=out[b, s : s + 256])
    return out
