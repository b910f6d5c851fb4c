"""Charts as image files, by matplotlib."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..benchmark.figure import AS_TEXT, add_legend
from ..errors import ConfigError, RopeError
from ..output_file import write_file
from ..printable import printable
from .charts import COLOURS, GREY, Chart, ChartSeries, range_of

FORMATS = ("svg", "png")
_INK, _LIMIT = "#1c2733", "#5d6b78"
_MARKERS = {"speck": "o", "dot": "o", "ring": "o", "diamond": "D", "line": "o", "dash": ".", "tick": "|"}
#: For a file that is the same each time.
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}


def write_figures(charts: Sequence[Chart], folder: str | Path) -> list[Path]:
    """Write SVG and PNG of each chart into a folder, which is made; return the paths.

    Raises `ConfigError` without matplotlib or without a chart, `RopeError` if a file cannot be written.
    """
    if not charts:
        raise ConfigError("--figures: the files hold nothing to draw")
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError("--figures: matplotlib is needed, `pip install 'clrope[report]'`") from error
    made = []
    # Names of a fixed salt, and text as text.
    with matplotlib.rc_context({"svg.hashsalt": "clrope", "svg.fonttype": "none", **AS_TEXT}):
        for chart in charts:
            figure = _figure(pyplot, chart)
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                for kind in FORMATS:
                    path = Path(folder) / f"{chart.name}.{kind}"
                    drawn = io.BytesIO()
                    figure.savefig(drawn, format=kind, dpi=150, metadata=_METADATA[kind])
                    write_file(path, drawn.getvalue())
                    made.append(path)
            except OSError as error:
                raise RopeError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
            finally:
                pyplot.close(figure)
    return made


def _figure(pyplot: Any, chart: Chart) -> Any:
    named = chart.y.scale == "names"
    height = 1.6 + len(chart.y.names) * chart.row / 72 if named else 5.0
    # White behind it, so that it is readable on light and dark pages.
    figure, axes = pyplot.subplots(figsize=(10, height), facecolor="white", layout="constrained")
    for axis, name, along in ((chart.x, "x", [m.x for m in chart.marks]), (chart.y, "y", [m.y for m in chart.marks])):
        seen = range_of(axis, along, zero=True)
        getattr(axes, f"set_{name}scale")("log" if seen.log else "linear")
        getattr(axes, f"set_{name}lim")(seen.low, seen.high)
        getattr(axes, f"set_{name}ticks")([v for v, _ in seen.ticks], [printable(text) for _, text in seen.ticks])
        getattr(axes, f"{name}axis").set_minor_locator(pyplot.NullLocator())
        getattr(axes, f"set_{name}label")(axis.label)
    if named:
        axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.grid(axis="x" if named else "both", color="#e3e7eb", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(chart.title, loc="left", fontsize=12, color=_INK)
    if chart.limit is not None:
        axes.axvline(chart.limit, color=_LIMIT, linewidth=1, linestyle=(0, (4, 3)))
    handles: dict[str, Any] = {}
    bar = 0.72 / max(1, sum(series.shape == "bar" for series in chart.series))
    for series in chart.series:
        handles.setdefault(series.name, _draw(axes, series, bar))
    add_legend(axes, handles, fontsize=8, frameon=False, loc="upper left", ncols=3,
               bbox_to_anchor=(0, -0.16 if not named else -0.9 / height))  # fmt: skip
    return figure


def _draw(axes: Any, series: ChartSeries, bar: float) -> Any:
    """Draw the marks; return what stands for them in a legend."""
    colour = _LIMIT if series.colour == GREY else COLOURS[series.colour % len(COLOURS)][0]
    x, y = [m.x for m in series.marks], [m.y for m in series.marks]
    if series.shape == "bar":
        return axes.barh(y, x, height=bar, color=colour)
    if series.shape in ("line", "dash"):
        style = "--" if series.shape == "dash" else "-"
        return axes.plot(x, y, style, color=colour, marker=_MARKERS[series.shape], markersize=4, linewidth=1.4)[0]
    size = {"speck": 20, "tick": 130, "diamond": 60}.get(series.shape, 28)
    more: dict[str, Any] = {"facecolors": colour, "edgecolors": "white", "linewidths": 0.6}
    if series.shape == "ring":
        more = {"facecolors": "white", "edgecolors": colour, "linewidths": 1.5}
    elif series.shape == "tick":
        more = {"color": _INK, "linewidths": 1.8}
    alpha = 0.6 if series.shape == "speck" else 1.0
    return axes.scatter(x, y, s=size, marker=_MARKERS[series.shape], zorder=4, alpha=alpha, **more)
