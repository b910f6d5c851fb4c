"""`rms_norm`: an RMS norm without a rotation, by the kernels that do both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .call.events import check_events, opencl_errors
from .call.prepare import CheckedCall, inputs_of, outputs_of
from .call.sources import COUNTING, ConfigAngles, Positions
from .config import RopeConfig
from .errors import ConfigError
from .kernels.problem import PairLayout
from .norm import check_shapes, checked_norms
from .operation import Rope

if TYPE_CHECKING:
    import pyopencl

#: A configuration of which no pair is used.
_UNUSED = RopeConfig("neox", 2)


def rms_norm(
    x: Any,
    norm: Any,
    out: Any = None,
    layout: str = "bsnd",
    device: Any = None,
    *,
    wait_for: Sequence[pyopencl.Event] | None = None,
) -> Any:
    """Return x / sqrt(mean(x²) + eps) · (weight + weight_offset), an array of the same kind, shape and dtype.

    x, out, layout, device, wait_for: as for `clrope.rope`. norm: a `clrope.Norm`, whose `order` has no meaning here;
    for a tuple x a tuple with one for each array.

    For a norm next to a rotation give `norm` to `clrope.rope`, which reads and writes the heads once. Raises
    `ConfigError`, `ShapeError`, `DeviceError`, `BuildError` before anything is launched.
    """
    waits = () if wait_for is None else check_events(wait_for)
    op = Rope(_UNUSED, device)
    inputs, several = inputs_of(x, layout)
    norms = checked_norms(norm, x)
    if not norms or None in norms:
        raise ConfigError("norm: got None, a clrope.Norm is needed for each array")
    shapes = [o.view.shape for o in inputs]
    check_shapes(norms, shapes)
    outputs = outputs_of(inputs, out, not several, layout)
    pairs = [PairLayout.none(shape[3]) for shape in shapes]
    checked = CheckedCall(
        inputs, outputs, [], Positions(COUNTING, 0), pairs, ConfigAngles(_UNUSED), True, several, None, "auto", norms,
        op.target_of,
    )  # fmt: skip
    with opencl_errors(op.device_name):
        return checked.run(waits)
