"""`PortabilityReport`: sentences, figures and tables, made from files; the page, Markdown and CSV show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..benchmark.report import Table, as_markdown, markdown_heading, tables
from ..errors import ConfigError, RopeError
from ..output_file import write_file
from .charts import Chart
from .page_summary import SummarySentence, remarks, summary_sentences
from .page_tables import (
    PageTable,
    correctness_tables,
    environment_tables,
    latency_tables,
    not_timed_tables,
    portability_tables,
    speed_tables,
    variant_tables,
)
from .platforms import find_bits, find_platforms
from .portability_metric import Measurement, measurements
from .report_figures import (
    bandwidth_chart,
    cascade_chart,
    latency_chart,
    one_shot_charts,
    roofline_chart,
    size_chart,
    summary_chart,
    tuning_chart,
)
from .report_files import ReportInput
from .report_records import every_record, timed_workloads
from .tried_variants import tried_keys


@dataclass(frozen=True)
class ReportSection:
    """A section. short: its title in a list. Without charts and tables, `missing` says which file would fill it."""

    name: str
    short: str
    title: str
    charts: tuple[Chart, ...]
    tables: tuple[PageTable, ...]
    missing: str

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.charts or self.tables)


@dataclass(frozen=True)
class PortabilityReport:
    """All that a report says. picture: the chart at the top."""

    sentences: tuple[SummarySentence, ...]
    remarks: tuple[SummarySentence, ...]
    picture: Chart | None
    sections: tuple[ReportSection, ...]
    measured: tuple[Measurement, ...]
    files: tuple[str, ...]
    days: tuple[str, ...]

    @property
    def wrong(self) -> bool:
        """Whether a result is wrong."""
        return self.sentences[0].tone == "wrong"

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """The titles of what is not shown, each with what would show it."""
        out = [(section.title, section.missing) for section in self.sections if section.empty]
        if not any(table.name == "verification" for table in self.tables):
            out.append(
                ("Verified cases and bits", "`clrope verify --json FILE` verifies results and compares their bits")
            )
        return out

    @property
    def charts(self) -> list[Chart]:
        """All figures."""
        first = [self.picture] if self.picture else []
        return [*first, *(chart for section in self.sections for chart in section.charts)]

    @property
    def one_shot_charts(self) -> list[Chart]:
        """The figures of one-shot calls; raise `ConfigError` if there are none."""
        found = [chart for chart in self.charts if chart.name.startswith("one-shot-")]
        if not found:
            raise ConfigError("figure: the results hold no timed one-shot calls, `clrope bench --workload sizes`")
        return found

    @property
    def tables(self) -> list[PageTable]:
        """All tables."""
        return [table for section in self.sections for table in section.tables]


def make_report(found: ReportInput) -> PortabilityReport:
    """Return the report of what was read."""
    platforms = find_platforms(found)
    work = timed_workloads(found, platforms)
    measured = measurements(found, platforms)
    tried = tried_keys(found)

    def section(
        title: str, charts: Sequence[Chart | None], tables: Sequence[PageTable], missing: str, short: str = ""
    ) -> ReportSection:
        short = short or title
        drawn = tuple(chart for chart in charts if chart is not None)
        return ReportSection(short.lower().replace(" ", "-"), short, title, drawn, tuple(tables), missing)

    sections = [
        section("Bandwidth against the ceiling", [bandwidth_chart(work)], speed_tables(work),
                "`clrope bench --json FILE` measures bandwidth, ceilings and peers", "Bandwidth"),
        section("Roofline", [roofline_chart(work)], [],
                "`clrope bench --workload prefill --json FILE` measures workloads from memory"),
        section("Size sweep", [size_chart(work)], [],
                "`clrope bench --workload 'size-*' --json FILE` measures it", "Sizes"),
        section("Time of calls", [latency_chart(work), *one_shot_charts(every_record(found, platforms))],
                latency_tables(found, platforms, work),
                "`clrope bench --workload decode-1 --workload calls --workload sizes --json FILE` measures calls",
                "Latency"),
        section("Performance portability",
                [cascade_chart(measured, "architectural"), cascade_chart(measured, "application")],
                portability_tables(measured), "`clrope bench --json FILE` on each device measures it", "Portability"),
        section("Variants tried, and why each lost", [tuning_chart(tried)], variant_tables(tried),
                "`clrope tune --json > FILE` tries the variants", "Variants"),
        section("Correctness and bits", [], correctness_tables(found, platforms),
                "no result has a device", "Correctness"),
        section("Environment of each run", [], environment_tables(found),
                "`clrope bench --json FILE` notes the machine", "Environment"),
        section("Not timed", [], not_timed_tables(found, platforms), "every entry was timed, or none was measured"),
    ]  # fmt: skip
    if platforms.wrong:
        # What is wrong is read first.
        sections.sort(key=lambda made: made.name != "correctness")
    picture = summary_chart(work, [p.name for p in platforms.wrong])
    days = sorted({str(result["started"])[:10] for result in found.benches})
    return PortabilityReport(
        tuple(summary_sentences(found, platforms, work, measured, find_bits(found))),
        tuple(remarks(found)),
        picture,
        tuple(sections),
        tuple(measured),
        tuple(found.files),
        tuple(days),
    )


def markdown_text(found: ReportInput, report: PortabilityReport) -> str:
    """Return sentences and tables as Markdown: those of the terminal, and of the page what these do not have."""
    parts = [f"{markdown_heading(found.benches)}\n"] if found.benches else []
    parts += [f"**{s.head}** {as_markdown(s.text)}\n" for s in (*report.sentences, *report.remarks)]
    parts += [table.markdown() for table in tables(found.benches)]
    known = {"portability", "wrong", "failed", "bits", "verification", "workers", "environment"}
    parts += [
        Table(t.title, (*t.columns, "source"), tuple((*row.cells, row.source) for row in t.rows)).markdown()
        for t in report.tables
        if t.name in known
    ]
    return "\n".join(parts)


def write_csv(report: PortabilityReport, where: str) -> list[Path]:
    """Write every table into a file of a folder (which exists, or whose name ends in a slash), else all into one file.

    In one file, tables follow each other, each behind a line with its name and an empty line between. Raises
    `RopeError` if a file cannot be written.
    """
    target = Path(where)
    texts = {table.name: table.csv() for table in report.tables}
    try:
        if target.is_dir() or where.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            made = {target / f"{name}.csv": text for name, text in texts.items()}
        else:
            made = {target: "\n".join(f"# {name}\n{text}" for name, text in texts.items())}
        for path, text in made.items():
            write_file(path, text)
    except OSError as error:
        raise RopeError(f"{error.filename or where}: cannot be written ({error.strerror or error})") from error
    return list(made)
