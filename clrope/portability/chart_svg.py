"""Charts as inline SVG: the geometry; `templates/chart.svg` writes it. Colours are variables of the page's themes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .charts import GREY, Chart, ChartSeries, Mark, Shape, range_of

WIDTH = 880.0
#: Points of a character of the labels, about.
_CHARACTER = 6.6
_HEIGHT = 320.0
_RIGHT, _TOP, _BOTTOM = 18.0, 14.0, 46.0
#: Lines and limits are drawn first, so that marks are on top of them.
_ORDER: tuple[Shape, ...] = ("bar", "dash", "line", "tick", "speck", "ring", "dot", "diamond")


@dataclass(frozen=True)
class DrawnMark:
    """A mark in points of the figure. d: the path of a shape that is no circle, '' for a circle of `radius`."""

    mark: Mark
    x: float
    y: float
    d: str = ""
    radius: float = 0.0


@dataclass(frozen=True)
class DrawnSeries:
    """A series with its path through the marks ('' if they are not joined) and its classes for colour and shape."""

    classes: str
    path: str
    marks: tuple[DrawnMark, ...]


@dataclass(frozen=True)
class DrawnTick:
    """A tick with its text, in points."""

    at: float
    text: str


@dataclass(frozen=True)
class LegendRow:
    """A line of the legend: classes for colour and shape, and the name."""

    classes: str
    name: str


@dataclass(frozen=True)
class DrawnChart:
    """A chart in points."""

    chart: Chart
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[DrawnTick, ...]
    y_ticks: tuple[DrawnTick, ...]
    bands: tuple[float, ...]
    limit: float | None
    series: tuple[DrawnSeries, ...]
    legend: tuple[LegendRow, ...]


def drawn(chart: Chart) -> DrawnChart:
    """Return the geometry of a chart."""
    x = range_of(chart.x, [m.x for m in chart.marks], zero=True)
    y = range_of(chart.y, [m.y for m in chart.marks], zero=True)
    named = chart.y.scale == "names"
    longest = max((len(text) for _, text in y.ticks), default=0)
    left = (longest * _CHARACTER if named else longest * _CHARACTER + 24) + 14
    bottom = _TOP + (len(chart.y.names) * chart.row if named else _HEIGHT)
    right = WIDTH - _RIGHT

    def place(mark: Mark) -> tuple[float, float]:
        down = y.share(mark.y) if named else 1 - y.share(mark.y)
        return _round(left + x.share(mark.x) * (right - left)), _round(_TOP + down * (bottom - _TOP))

    series = [
        DrawnSeries(
            classes_of(s),
            _path([place(m) for m in s.marks]) if s.shape in ("line", "dash") else "",
            tuple(_drawn_mark(s.shape, m, place(m), left, named, chart.row) for m in s.marks),
        )
        for s in sorted(chart.series, key=lambda s: _ORDER.index(s.shape))
    ]
    rows = [_TOP + k * chart.row for k in range(1, len(chart.y.names))] if named else []
    return DrawnChart(
        chart, WIDTH, bottom + _BOTTOM, _round(left), right, _TOP, bottom,
        tuple(DrawnTick(_round(left + x.share(v) * (right - left)), text) for v, text in x.ticks),
        tuple(DrawnTick(place(Mark(x.low, v, ""))[1], text) for v, text in y.ticks),
        tuple(map(_round, rows)), None if chart.limit is None else place(Mark(chart.limit, y.low, ""))[0],
        tuple(series), tuple(legend(chart.series)),
    )  # fmt: skip


def classes_of(series: ChartSeries) -> str:
    """Return the classes of a series."""
    return f"{colour_class(series.colour)} {series.shape}"


def colour_class(colour: int) -> str:
    """Return the class of a colour."""
    return "grey" if colour == GREY else f"c{colour % 8}"


def legend(series: Iterable[ChartSeries]) -> list[LegendRow]:
    """Return a line for each name; one of several colours is shown without one."""
    found: dict[str, list[ChartSeries]] = {}
    for s in series:
        found.setdefault(s.name, []).append(s)
    rows = []
    for name, same in found.items():
        one = len({s.colour for s in same}) == 1
        # A line with points stands for its points, too.
        shape = next((s.shape for s in same if s.shape != "dash"), same[0].shape)
        rows.append(LegendRow(f"{colour_class(same[0].colour) if one else 'ink'} {shape}", name))
    return rows


def _drawn_mark(shape: Shape, mark: Mark, at: tuple[float, float], left: float, named: bool, row: float) -> DrawnMark:
    x, y = at
    if shape == "bar":
        thick = 9.0
        return DrawnMark(
            mark, x, y, f"M{_round(left)} {_round(y - thick / 2)}H{x}V{_round(y + thick / 2)}H{_round(left)}Z"
        )
    if shape == "tick":
        half = 6.5 if row < 30 or not named else 8.0
        return DrawnMark(mark, x, y, f"M{x} {_round(y - half)}V{_round(y + half)}")
    if shape == "diamond":
        return DrawnMark(
            mark, x, y, f"M{x} {_round(y - 7)}L{_round(x + 6)} {y}L{x} {_round(y + 7)}L{_round(x - 6)} {y}Z"
        )
    return DrawnMark(mark, x, y, "", {"speck": 4.0, "ring": 4.0, "dot": 4.5, "line": 3.6, "dash": 2.2}[shape])


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points) if len(points) > 1 else ""


def _round(value: float) -> float:
    return round(value, 1)
