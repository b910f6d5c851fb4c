"""Charts as image files, by matplotlib."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, RopeError
from ..output_file import write_file
from ..printable import printable
from .charts import COLOURS, GREY, Chart, ChartSeries, range_of

FORMATS = ("svg", "png")
#: Text of files is drawn as it is: in matplotlib's own setting, what stands between two $ is TeX.
AS_TEXT = {"text.parse_math": False}
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
    pyplot = _pyplot("--figures")
    made = []
    # Names of a fixed salt, and text as text.
    with pyplot.rc_context({"svg.hashsalt": "clrope", "svg.fonttype": "none", **AS_TEXT}):
        for chart in charts:
            figure = _figure(pyplot, [chart])
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


def write_figure(charts: Sequence[Chart], where: str | Path) -> None:
    """Write charts side by side, with one legend, into an image of the type in the name.

    Raises `ConfigError` without matplotlib, `RopeError` if the file cannot be written.
    """
    pyplot = _pyplot("--figure")
    drawn = io.BytesIO()
    with pyplot.rc_context(AS_TEXT):
        figure = _figure(pyplot, charts)
        try:
            figure.savefig(drawn, format=Path(where).suffix[1:] or None, dpi=150)
        except ValueError as error:
            raise RopeError(f"{where}: cannot be written ({error})") from error
        finally:
            pyplot.close(figure)
    write_file(where, drawn.getvalue())


def _pyplot(option: str) -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError(f"{option}: matplotlib is needed, `pip install 'clrope[report]'`") from error


def _figure(pyplot: Any, charts: Sequence[Chart]) -> Any:
    named = charts[0].y.scale == "names"
    height = 1.6 + len(charts[0].y.names) * charts[0].row / 72 if named else 5.0
    # White behind it, so that it is readable on light and dark pages.
    figure, places = pyplot.subplots(
        1, len(charts), figsize=(10 if len(charts) == 1 else 6 * len(charts), height), facecolor="white",
        layout="constrained", squeeze=False,
    )  # fmt: skip
    handles: dict[str, Any] = {}
    for axes, chart in zip(places[0], charts, strict=True):
        handles = _draw_chart(pyplot, axes, chart, named) | handles
    more: dict[str, Any] = {"handles": list(handles.values()), "labels": ["-"] * len(handles), "frameon": False}
    if len(charts) == 1:
        below = (0, -0.16 if not named else -0.9 / height)
        legend = axes.legend(fontsize=8, loc="upper left", ncols=3, bbox_to_anchor=below, **more)
    else:
        legend = figure.legend(fontsize=9, loc="outside lower center", ncols=5, **more)
    # matplotlib itself leaves out names that begin with '_'.
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set_text(printable(name))
    return figure


def _draw_chart(pyplot: Any, axes: Any, chart: Chart, named: bool) -> dict[str, Any]:
    """Draw a chart; return what stands for its series in a legend, by their names."""
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
    return handles


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
