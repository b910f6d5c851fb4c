"""The page: one HTML file that needs no network, from Jinja2 templates."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .. import __version__
from ..bounded_read import first_bytes
from ..errors import ConfigError
from ..output_file import write_file
from .chart_svg import drawn
from .charts import COLOURS
from .portability_report import PortabilityReport, make_report
from .report_files import ReportInput

#: Bytes of a page, from which on tables are cut, to not less than so many rows.
LARGEST_PAGE = 1_900_000
FEWEST_ROWS = 50


def write_page(found: ReportInput, where: str | Path) -> Path:
    """Write the page of what was read; return its path.

    Raises `ConfigError` without Jinja2, or if nothing was read; `RopeError` if the file cannot be written.
    """
    if found.empty:
        raise ConfigError("--html: no file was read, there is nothing to show")
    path = Path(where)
    text = page_text(make_report(found))
    write_file(path, text)
    return path


def is_page(path: Path) -> bool:
    """Whether a file is a page of this package, and may be written again."""
    try:
        return b'<meta name="generator" content="clrope' in first_bytes(path, 4096)
    except OSError:
        return False


def page_text(report: PortabilityReport) -> str:
    """Return the page of a report as text."""
    try:
        jinja2: Any = importlib.import_module("jinja2")
    except ImportError as error:
        raise ConfigError("--html: Jinja2 is needed, `pip install 'clrope[report]'`") from error
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    page = templates.get_template("page.html")
    most = max((len(table.rows) for table in report.tables), default=0)
    while True:
        text: str = page.render(report=report, drawn=drawn, colours=COLOURS, version=__version__, most_rows=most) + "\n"
        if len(text.encode()) < LARGEST_PAGE or most <= FEWEST_ROWS:
            return text
        # The longest tables are cut first.
        most = max(FEWEST_ROWS, int(most * min(0.7, LARGEST_PAGE / len(text.encode()))))
