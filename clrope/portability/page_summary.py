"""What a report says first: which devices, right or not; bit-identical or not; how close to the ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from .page_tables import loads, most_load
from .platforms import BitsFound, Platforms, short_cpu
from .portability_metric import OWN, Measurement, in_common, platforms_of, portability_of
from .report_files import ReportInput
from .report_records import PlatformWorkload

Tone = Literal["good", "wrong", "warn", "plain"]


@dataclass(frozen=True)
class SummarySentence:
    """A sentence with its first words, which are set in bold."""

    head: str
    text: str
    tone: Tone

    def __str__(self) -> str:
        return f"{self.head} {self.text}"


def summary_sentences(
    found: ReportInput,
    platforms: Platforms,
    work: Sequence[PlatformWorkload],
    measured: Sequence[Measurement],
    bits: BitsFound | None,
) -> list[SummarySentence]:
    """Return the three sentences: results, bits, speed."""
    return [_results(found, platforms), _bits(bits), _speed(platforms, work, measured)]


def _results(found: ReportInput, platforms: Platforms) -> SummarySentence:
    known = list(platforms.records.values())
    if not known:
        return SummarySentence("No device:", "the files hold no results of devices.", "plain")
    if platforms.wrong:
        names = listing([p.name for p in platforms.wrong])
        count = sum(len(p.wrong) for p in platforms.wrong)
        others = f" {listing([p.name for p in platforms.right])} gave right results." if platforms.right else ""
        text = f"{names} ({count} {_plural(count, 'result')}). Its speeds are left out, its portability is 0."
        return SummarySentence("Wrong results:", text + others, "wrong")
    machines = dict.fromkeys(short_cpu(p.key.cpu) for p in known if p.key.cpu)
    on = f" on {len(machines)} machines" if len(machines) > 1 else f" on {next(iter(machines))}" if machines else ""
    timed, run = sum(p.timed for p in known), sum(p.run for p in known)
    checked = [
        *([f"{timed:,} timed {_plural(timed, 'entry')}"] if timed else []),
        *([f"{run:,} verified {_plural(run, 'case')}"] if run else []),
    ]
    failed = sum(len(p.failed) for p in known)
    more = f"; {failed} {_plural(failed, 'entry')} failed" if failed else ""
    if not checked:
        return SummarySentence("No right result:", f"{listing([p.name for p in known])}{on}{more}.", "warn")
    head = f"{len(known)} {_plural(len(known), 'platform')}{on}"
    text = f"{head}: {listing([p.name for p in known])}; {' and '.join(checked)} were right{more}."
    return SummarySentence("Right results:", text, "warn" if failed else "good")


def _bits(bits: BitsFound | None) -> SummarySentence:
    if bits is None:
        return SummarySentence(
            "Bits not compared:", "no file of `clrope verify --json`, which compares them, is given.", "plain"
        )
    if bits.different:
        text = f"{len(bits.different)} of {bits.compared:,} compared cases, first {bits.different[0]}."
        return SummarySentence("Bits differ:", text, "wrong")
    who = f" on {listing(bits.names)}" if bits.names else ""
    numpy = ", and as NumPy computes them" if bits.emulated else ""
    return SummarySentence("Bit-identical:", f"all {bits.compared:,} compared cases{who}{numpy}.", "good")


def _speed(platforms: Platforms, work: Sequence[PlatformWorkload], measured: Sequence[Measurement]) -> SummarySentence:
    shares: dict[str, list[float]] = {}
    for w in work:
        share = None if w.record.workload["latency"] else w.record.of_ceiling(w.label)
        if share is not None:
            shares.setdefault(w.platform.name, []).append(share)
    if not shares:
        return SummarySentence("Speed:", "no workload has both a right result and a ceiling.", "plain")
    typical = {name: median(some) for name, some in shares.items()}
    low, high = min(typical, key=typical.__getitem__), max(typical, key=typical.__getitem__)
    text = f"the median workload has {typical[low]:.2f} of the device's own fastest copy"
    if len(typical) > 1:
        between = f"{typical[low]:.2f} ({low}) to {typical[high]:.2f} ({high})"
        text = f"the median workload has {between} of the device's own fastest copy"
    if platforms.wrong:
        text = f"on platforms with right results {text}"
    common = in_common(measured)
    metric = portability_of(common, OWN, "architectural")
    count = len({m.platform for m in common})
    if count > 1 and metric:
        value = median(metric.values())
        problems = len(platforms_of(common))
        text += f"; performance portability {value:.2f} over {count} platforms (median of {problems} problems)"
    return SummarySentence(
        "Close to the ceiling:" if low and typical[low] >= 0.9 else "Against the ceiling:", text + ".", "plain"
    )


def remarks(found: ReportInput) -> list[SummarySentence]:
    """Return what has to be known before any figure is read: unread files, trials, load, missing workers."""
    out = [SummarySentence("Not read:", text, "warn") for text in found.unread]
    if any(result["options"].get("tiny") for result in found.benches):
        out.append(SummarySentence("A trial:", "axes were cut short (--tiny); no speed means anything.", "warn"))
    busy = [r for r in found.benches if max(loads(r), default=0.0) > most_load(r)]
    if busy:
        text = f"{len(busy)} of {len(found.benches)} runs had other work on the machine; see the remarks of the runs."
        out.append(SummarySentence("Loaded:", text, "warn"))
    gone = [w for fleet in found.fleets for w in fleet["workers"] if w["status"] in ("missing", "error")]
    if gone:
        names = listing([f"{w['worker']} ({w.get('reason') or w['status']})" for w in gone])
        out.append(SummarySentence("Missing workers:", f"{names}.", "warn"))
    return out


def listing(names: Sequence[str], most: int = 6) -> str:
    """Return 'a, b and c', of many names the first ones and the number of others."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
