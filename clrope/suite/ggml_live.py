"""ggml as a second reference: a case on the CPU through `ggml-python`, where it is installed.

ggml gets a copy of the case's memory: the same parent, view, positions and frequency factors.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import RopeConfig
from ..layout import TensorView
from ..testing import nmse
from .case import Case
from .case_outcome import CaseOutcome, nmse_text
from .rope_trial import RopeTrial, flat

#: The limit of ggml's own tests. The error of its float32 angles is 1e-10 at the positions of the suite.
LIMIT = 1e-7


@lru_cache(maxsize=1)
def module() -> Any:
    """Return the module `ggml`, or None if `ggml-python` is not installed or does not load."""
    try:
        import ggml
    except (ImportError, OSError, RuntimeError):
        return None
    return ggml


def remark() -> str:
    """Return which references there are."""
    if module() is None:
        return "checked against the float64 reference; `pip install ggml-python` adds ggml itself"
    from importlib.metadata import version

    return f"checked against the float64 reference, and live by ggml (ggml-python {version('ggml-python')})"


def can_compute(case: Case) -> bool:
    """Whether ggml (as packaged) can compute the case."""
    return module() is not None and case.n_offs == 0 and case.type in ("f32", "f16") and case.v <= 2


class LiveTrial(RopeTrial):
    """A trial with ggml's result as a second reference."""

    def __init__(self, case: Case, seed: int) -> None:
        super().__init__(case, seed)
        self.live: npt.NDArray[np.float64] | None = None
        if can_compute(case):
            answer = compute(case, self.x.views[0], self.positions, self.config)
            self.live = flat([answer]).astype(np.float64)

    def check(self, got: list[npt.NDArray[Any]], errors: list[str]) -> CaseOutcome:
        """Compare with ggml's result, then with the reference."""
        if self.live is not None:
            error = nmse(flat(got), self.live)
            if not error <= LIMIT:
                errors = [f"NMSE {nmse_text(error)} against ggml", *errors]
        return super().check(got, errors)


def compute(case: Case, x: npt.NDArray[Any], positions: Any, config: RopeConfig) -> npt.NDArray[Any]:
    """Return ggml's result, of x's shape and dtype.

    x: [B, S, N, D], a view with any strides that ggml allows (dense last axis). positions: [S], or [4, S].
    """
    g = module()
    view = TensorView.of_array(x)
    ne, nb, _ = view.to_ggml()
    kind = g.GGML_TYPE_F16 if case.type == "f16" else g.GGML_TYPE_F32
    parent = np.lib.stride_tricks.as_strided(x, (view.span[1],), (view.itemsize,), writeable=False)
    rows = np.ascontiguousarray(positions, dtype=np.int32).ravel()
    memory = (parent.nbytes + view.nbytes) * 2 + rows.nbytes + (1 << 20)
    context = g.ggml_init(g.ggml_init_params(mem_size=memory, mem_buffer=None, no_alloc=False))
    if not context:
        raise MemoryError(f"ggml could not allocate {memory} bytes")
    try:
        whole = _tensor(g, context, kind, np.ascontiguousarray(parent))
        a = g.ggml_view_4d(context, whole, *ne, *nb[1:], 0)
        b = _tensor(g, context, g.GGML_TYPE_I32, rows)
        c = None
        if config.freq_factors is not None:
            c = _tensor(g, context, g.GGML_TYPE_F32, np.array(config.freq_factors, dtype=np.float32))
        ending = ("_inplace" if case.inplace else "") if case.forward else "_back"
        operator = getattr(g, f"ggml_rope_{'ext' if config.sections is None else 'multi'}{ending}")
        sections = () if config.sections is None else ((ctypes.c_int * 4)(*config.sections),)
        out = operator(
            context, a, b, c, config.n_dims, *sections, config.ggml_mode, config.n_ctx_orig, config.freq_base,
            config.freq_scale, config.ext_factor, config.attn_factor, config.beta_fast, config.beta_slow,
        )  # fmt: skip
        graph = g.ggml_new_graph(context)
        g.ggml_build_forward_expand(graph, out)
        if g.ggml_graph_compute_with_ctx(context, graph, 2) != 0:
            raise RuntimeError("ggml reported a failure")
        return _read(out.contents, x)
    finally:
        g.ggml_free(context)


def _tensor(g: Any, context: Any, kind: int, data: npt.NDArray[Any]) -> Any:
    tensor = g.ggml_new_tensor_1d(context, kind, data.size)
    ctypes.memmove(tensor.contents.data, data.ctypes.data, data.nbytes)
    return tensor


def _read(tensor: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy a tensor, which may be a view, out of its context."""
    strides = [int(tensor.nb[i]) for i in range(4)][::-1]
    span = sum(step * (n - 1) for step, n in zip(strides, like.shape, strict=True)) + like.itemsize
    raw = np.frombuffer(ctypes.string_at(tensor.data, span), dtype=like.dtype)
    return np.array(np.lib.stride_tricks.as_strided(raw, like.shape, strides))
