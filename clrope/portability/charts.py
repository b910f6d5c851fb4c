"""`Chart`: what a figure shows, without how it is drawn. A page and image files are made of the same charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log", "names"]
#: bar: from zero; tick: a limit; line and dash: joined by a line; speck: one of many.
Shape = Literal["dot", "ring", "tick", "bar", "diamond", "line", "dash", "speck"]
#: Colours on white and on black, told apart by the colour-blind, each with a contrast of 3 and more.
COLOURS = (
    ("#1d5fa8", "#6cb0ff"), ("#c2500a", "#ff9d4d"), ("#0c7a6d", "#35d0ba"), ("#a1195f", "#ff7ab8"),
    ("#5b3fc0", "#b39dff"), ("#4f7a0c", "#a8d84f"), ("#96690a", "#f2c14b"), ("#3f5c77", "#9db8cf"),
)  # fmt: skip
#: The colour of limits and competitors.
GREY = -1


@dataclass(frozen=True)
class Mark:
    """A point of a chart. text: what it says, with its numbers; origin: file, workload and entry."""

    x: float
    y: float
    text: str
    origin: str = ""


@dataclass(frozen=True)
class ChartSeries:
    """Marks of one meaning. colour: an index into `COLOURS`, again from its start, or `GREY`."""

    name: str
    colour: int
    shape: Shape
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class ChartAxis:
    """An axis. names: of the places 0, 1, ... of a scale of names, '' for none. low, high: None: by the marks."""

    label: str
    scale: Scale = "linear"
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    unit: Literal["", "bytes", "count"] = ""  # a logarithmic axis of bytes or counts has ticks at powers of 2


@dataclass(frozen=True)
class Chart:
    """A figure. Names are on the y axis only.

    name:   of its files. title: what it shows; caption: how to read it.
    limit:  an x with a line from top to bottom. row: the height of a place on an axis of names, in points.
    """

    name: str
    title: str
    caption: str
    x: ChartAxis
    y: ChartAxis
    series: tuple[ChartSeries, ...]
    limit: float | None = None
    row: float = 26.0

    @property
    def marks(self) -> list[Mark]:
        """All marks."""
        return [mark for series in self.series for mark in series.marks]


@dataclass(frozen=True)
class AxisRange:
    """The range of an axis, with its ticks as (value, text)."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Return where a value is, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def range_of(axis: ChartAxis, values: Sequence[float], zero: bool = False) -> AxisRange:
    """Return the range that shows all values. zero: it begins at 0."""
    if axis.scale == "names":
        count = len(axis.names)
        return AxisRange(-0.5, max(count, 1) - 0.5, False, tuple((float(k), n) for k, n in enumerate(axis.names) if n))
    low = axis.low if axis.low is not None else min(values, default=1.0)
    high = axis.high if axis.high is not None else max(values, default=1.0)
    if axis.scale == "log":
        return _log_range(axis, low, high)
    if axis.unit == "count":
        every = max(1, math.ceil(high / 12))
        return AxisRange(0.75, high + 0.25, False, tuple((float(k), str(k)) for k in range(1, int(high) + 1, every)))
    low = min(low, 0.0) if zero or axis.low is None else low
    high = high if high > low else low + 1
    step = _nice((high - low) / 6)
    top = high if axis.high is not None else step * math.ceil(high / step - 1e-9)
    count = math.floor((top - low) / step + 1e-9)
    return AxisRange(low, top, False, tuple((low + k * step, _short(low + k * step)) for k in range(count + 1)))


def _log_range(axis: ChartAxis, low: float, high: float) -> AxisRange:
    if axis.unit:
        first, last = math.floor(math.log2(low) + 1e-9), math.ceil(math.log2(high) - 1e-9)
        last = max(last, first + 1)
        step = max(1, math.ceil((last - first) / 7))
        text = size_text if axis.unit == "bytes" else "{:,}".format
        ticks = [(2.0**k, text(2**k)) for k in range(first, last + 1, step)]
        return AxisRange(2.0**first, 2.0**last, True, tuple(ticks))
    low, high = low / 1.15, high * 1.15
    found = [m * 10.0**k for k in range(-9, 13) for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    if len(found) > 8:
        found = [v for v in found if math.log10(v) % 1 < 1e-6 or math.log10(v) % 1 > 1 - 1e-6]
    return AxisRange(low, high, True, tuple((v, _short(v)) for v in found))


def size_text(count: int) -> str:
    """Return a number of bytes that is a power of 2, such as '64 KiB'."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >> shift:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def _nice(step: float) -> float:
    """Return the next larger 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
