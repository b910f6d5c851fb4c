"""The figures of a report, as charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from ..benchmark.peers import NAMES
from ..benchmark.report import one_shot_name
from .charts import GREY, Chart, ChartAxis, ChartSeries, Mark
from .platforms import short_cpu
from .portability_metric import OWN, Basis, Measurement, cascade, in_common, platforms_of
from .report_records import PlatformWorkload, rate_of
from .tried_variants import TriedKey

#: More marks make a page slow: then quantiles stand for them.
MOST_MARKS = 1000
#: More platforms, or tuning keys, do not fit a figure.
MOST_PLATFORMS, MOST_KEYS = 12, 24
#: Multiplications and additions that rotate a pair.
FLOPS_OF_PAIR = 6


def summary_chart(work: Sequence[PlatformWorkload], wrong: Sequence[str] = ()) -> Chart | None:
    """Return the shares of its ceiling of each platform, and their median; wrong: platforms without marks."""
    shares: dict[str, list[tuple[float, PlatformWorkload]]] = {}
    for one in work:
        share = None if one.record.workload["latency"] else one.record.of_ceiling(one.label)
        if share is not None:
            shares.setdefault(one.platform.name, []).append((share, one))
    if not shares:
        return None
    crowded = sum(map(len, shares.values())) > MOST_MARKS
    few = max(2, min(11, MOST_MARKS // len(shares)))
    series: list[ChartSeries] = []
    for place, (name, some) in enumerate(shares.items()):
        ranked = sorted(some, key=lambda pair: pair[0])
        shown = [ranked[round(k / (few - 1) * (len(ranked) - 1))] for k in range(few)] if crowded else ranked
        specks = tuple(
            Mark(s, place, f"{name}: {w.record.name}: {s:.2f} of the ceiling", w.origin.of(w.own, w.ceiling))
            for s, w in shown
        )
        typical = median(s for s, _ in ranked)
        text = f"{name}: median {typical:.2f} of the ceiling, {ranked[0][0]:.2f} to {ranked[-1][0]:.2f}"
        series += [
            ChartSeries("one workload", place, "speck", specks),
            ChartSeries("median", place, "diamond", (Mark(typical, place, text, f"{len(ranked)} workloads"),)),
        ]
    high = max(1.05, max(s for some in shares.values() for s, _ in some) + 0.02)
    caption = "Bytes a second as a share of the fastest copy of the same device in the same run. 1 is the ceiling."
    caption += (
        f" Of each platform {few} workloads are shown, evenly from the lowest share to the highest." if crowded else ""
    )
    x = ChartAxis("share of the device's own ceiling", low=0.0, high=high)
    y = ChartAxis("", "names", (*shares, *(f"{name}: wrong results" for name in wrong)))
    return Chart("summary", "Share of the ceiling", caption, x, y, tuple(series), limit=1.0, row=34)


def bandwidth_chart(work: Sequence[PlatformWorkload]) -> Chart | None:
    """Return GB/s of prefill by type and pairing (without prefill: of each workload), with ceilings and peers."""
    speed = [w for w in work if not w.record.workload["latency"]]
    chosen = [
        w for w in speed if (w.record.family, w.record.place, w.record.direction) == ("prefill", "out", "forward")
    ]
    name: Callable[[PlatformWorkload], str] = lambda w: f"{w.record.dtype} {w.record.mode}"  # noqa: E731
    if not chosen:
        chosen, name = speed, lambda w: w.record.name
    platforms = _first(dict.fromkeys(w.platform.name for w in chosen))
    groups = list(dict.fromkeys(name(w) for w in chosen))[:MOST_KEYS]
    chosen = [w for w in chosen if w.platform.name in platforms and name(w) in groups]
    if not chosen:
        return None
    series: dict[str, list[Mark]] = {p: [] for p in platforms}
    tops: list[Mark] = []
    peers: list[Mark] = []
    for one in chosen:
        y = groups.index(name(one)) + (platforms.index(one.platform.name) + 0.5) / len(platforms) * 0.8 - 0.4
        rate, top, own = one.record.rate(one.label) or 0.0, one.ceiling, one.own
        share = one.record.of_ceiling(one.label)
        head = f"{one.platform.name}: {one.record.name}"
        of = "" if share is None else f", {share:.2f} of the ceiling"
        series[one.platform.name].append(Mark(rate, y, f"{head}: {rate:.1f} GB/s{of}", one.origin.of(own, top)))
        if top is not None:
            text = f"{head}: ceiling {rate_of(top, one.record):.1f} GB/s, {top.get('variant') or top['name']}"
            tops.append(Mark(rate_of(top, one.record), y, text, one.origin.of(top)))
        fastest = max(one.record.entries("peer"), key=lambda e: rate_of(e, one.record), default=None)
        if fastest is not None:
            value = rate_of(fastest, one.record)
            text = f"{head}: fastest peer, {fastest['name']}, {value:.1f} GB/s"
            peers.append(Mark(value, y, text, one.origin.of(fastest)))
    made = [ChartSeries(p, k, "bar", tuple(marks)) for k, (p, marks) in enumerate(series.items())]
    made.append(ChartSeries("ceiling: the device's fastest copy", GREY, "tick", tuple(tops)))
    if peers:
        made.append(ChartSeries("the fastest peer", GREY, "ring", tuple(peers)))
    what = "prefill, out of place, forward" if chosen[0].record.family == "prefill" else "every workload"
    caption = f"Bytes read and written a second: {what}. More is better. Rotations prefetch and copies do not, so a "
    caption += "rotation can exceed its ceiling."
    return Chart(
        "bandwidth",
        "GB/s by type and pairing",
        caption + _left_out(work, platforms),
        ChartAxis("GB/s"),
        ChartAxis("", "names", tuple(groups)),
        tuple(made),
        row=max(26.0, 13.0 * len(platforms) + 10),
    )


def roofline_chart(work: Sequence[PlatformWorkload]) -> Chart | None:
    """Return operations a second over operations a byte, under each platform's best copy from memory."""
    chosen = [w for w in work if not w.record.workload["latency"] and not w.record.workload["cached"]]
    platforms = _first(dict.fromkeys(w.platform.name for w in chosen))
    points = [(w, flops(w.record.workload)) for w in chosen if w.platform.name in platforms]
    points = [(w, count) for w, count in points if count]
    if not points:
        return None
    spread = [count / w.record.workload["bytes_moved"] for w, count in points]
    low, high = min(spread) / 1.5, max(spread) * 1.5
    series = []
    for k, name in enumerate(platforms):
        here = [(w, count) for w, count in points if w.platform.name == name]
        tops = [(rate_of(w.ceiling, w.record), w) for w, _ in here if w.ceiling is not None]
        if tops:
            rate, best = max(tops, key=lambda pair: pair[0])
            text = f"{name}: at most {rate:.1f} GB/s from memory"
            origin = best.origin.of(best.ceiling)
            ends = tuple(Mark(x, x * rate, text, origin) for x in (low, high))
            series.append(ChartSeries("the platform's fastest copy", k, "dash", ends))
        marks = []
        for w, count in here:
            intensity = count / w.record.workload["bytes_moved"]
            done = count / (w.record.own(w.label) or 1.0)
            text = f"{name}: {w.record.name}: {done:.1f} Gflop/s at {intensity:.2f} flop/byte"
            marks.append(Mark(intensity, done, text, w.origin.of(w.own)))
        series.append(ChartSeries(name, k, "speck", tuple(marks)))
    caption = (
        "Workloads from memory. Six operations rotate a pair; making cos and sin is not counted. The lines are each "
        "platform's fastest copy. There is no compute roof, because none was measured."
    )
    return Chart(
        "roofline",
        "Operations a second over operations a byte",
        caption + _left_out(work, platforms),
        ChartAxis("flop / byte", "log"),
        ChartAxis("Gflop/s", "log"),
        tuple(series),
    )


def flops(workload: dict[str, Any]) -> int:
    """Return the operations that rotate the tensors of a workload, 0 if its configuration does not say."""
    total = 0
    for shape in workload["tensors"]:
        n_dims = workload["config"].get("n_dims") or shape[3]
        if not isinstance(n_dims, int) or n_dims < 2:
            return 0
        # In this mode pairs are n_dims apart and span the head.
        pairs = n_dims if workload["config"].get("mode") == "vision" else n_dims // 2
        total += math.prod(shape[:3]) * pairs * FLOPS_OF_PAIR
    return total


def size_chart(work: Sequence[PlatformWorkload]) -> Chart | None:
    """Return GB/s over the size of the tensor, with the ceilings."""
    chosen = sorted((w for w in work if w.record.family.startswith("size-")), key=_bytes)
    platforms = _first(dict.fromkeys(w.platform.name for w in work if w in chosen))
    series = []
    for k, name in enumerate(platforms):
        own, tops = [], []
        for w in chosen:
            if w.platform.name != name:
                continue
            size, rate = _bytes(w), w.record.rate(w.label) or 0.0
            share = w.record.of_ceiling(w.label)
            of = "" if share is None else f", {share:.2f} of the ceiling"
            own.append(
                Mark(size, rate, f"{name}: {w.record.family}: {rate:.1f} GB/s{of}", w.origin.of(w.own, w.ceiling))
            )
            if (top := w.ceiling) is not None:
                text = f"{name}: {w.record.family}: ceiling {rate_of(top, w.record):.1f} GB/s"
                tops.append(Mark(size, rate_of(top, w.record), text, w.origin.of(top)))
        series += [ChartSeries(name, k, "line", tuple(own)), ChartSeries("ceiling", k, "dash", tuple(tops))]
    series = [s for s in series if s.marks]
    if not series:
        return None
    caption = (
        "f32, neox, out of place. Small tensors stay in caches, where the time of a launch counts; large ones are in "
        "memory."
    )
    return Chart(
        "sizes",
        "GB/s over the size of the tensor",
        caption,
        ChartAxis("bytes of the tensor", "log", unit="bytes"),
        ChartAxis("GB/s"),
        tuple(series),
    )


def latency_chart(work: Sequence[PlatformWorkload]) -> Chart | None:
    """Return the time of a decode step's call, with an empty launch and the fastest peer."""
    chosen = [w for w in work if w.record.workload["latency"]]
    platforms = list(dict.fromkeys(w.platform.name for w in chosen))
    rows = list(dict.fromkeys((w.platform.name, w.record.family) for w in chosen))[:MOST_KEYS]
    own: dict[str, list[Mark]] = {}
    launches: list[Mark] = []
    peers: list[Mark] = []
    for w in chosen:
        if (w.platform.name, w.record.family) not in rows or w.own is None:
            continue
        y = rows.index((w.platform.name, w.record.family))
        head, taken = f"{w.platform.name}: {w.record.name}", w.record.time(w.own) / 1e3
        own.setdefault(w.platform.name, []).append(Mark(taken, y, f"{head}: {taken:.3g} µs a call", w.origin.of(w.own)))
        if (launch := w.record.first("launch", "raw launch", w.label)) is not None:
            value = w.record.time(launch) / 1e3
            launches.append(Mark(value, y, f"{head}: an empty launch {value:.3g} µs", w.origin.of(launch)))
        if (fastest := min(w.record.entries("peer"), key=w.record.time, default=None)) is not None:
            value = w.record.time(fastest) / 1e3
            text = f"{head}: fastest peer, {fastest['name']}, {value:.3g} µs"
            peers.append(Mark(value, y, text, w.origin.of(fastest)))
    if not own:
        return None
    series = [ChartSeries("an empty launch", GREY, "tick", tuple(launches))]
    series += [ChartSeries("the fastest peer", GREY, "ring", tuple(peers))]
    series += [ChartSeries("clrope", platforms.index(name), "dot", tuple(marks)) for name, marks in own.items()]
    caption = "Time of a call that rotates one token of each sequence, by type and pairing. Less is better."
    return Chart(
        "latency",
        "Time of a call",
        caption,
        ChartAxis("µs a call", "log"),
        ChartAxis("", "names", tuple(f"{name} · {family}" for name, family in rows)),
        tuple(s for s in series if s.marks),
        row=30,
    )


def one_shot_charts(every: Iterable[PlatformWorkload]) -> list[Chart]:
    """Return the time of one-shot calls over the number of tokens, a chart for each type, a line for each entry."""
    chosen = [w for w in every if w.record.one_shot and w.platform.right]
    platforms = _first(dict.fromkeys(w.platform.name for w in chosen))
    # One machine's devices are told apart by their labels.
    machines = len({w.platform.name for w in chosen}) > len({w.label for w in chosen})
    lines: dict[str, dict[tuple[str, str], dict[int, Mark]]] = {}
    for w in chosen:
        for entry in w.record.workload["entries"]:
            own, tokens = "device" in entry, int(w.record.workload["tensors"][0][1])
            if entry["status"] != "ok" or entry.get("device", w.label) != w.label or w.platform.name not in platforms:
                continue
            where = w.platform.name if machines else w.label
            name, taken = one_shot_name(entry, where), w.record.undisturbed(entry) / 1e3
            if machines and not own:
                name += f", {short_cpu(w.platform.key.cpu)}"
            name = f"clrope {name}" if own else name
            mark = Mark(tokens, taken, f"{name}: {w.record.name}: {taken:.3g} µs", w.origin.of(entry))
            line = lines.setdefault(w.record.dtype, {}).setdefault((entry["kind"], name), {})
            line[tokens] = min(line.get(tokens, mark), mark, key=lambda m: m.y)
    order = {"clrope": 0, "peer": 1, "host": 2}
    charts = []
    for dtype, found in lines.items():
        ranked = sorted(found.items(), key=lambda line: order.get(line[0][0], 0))
        series = tuple(
            ChartSeries(name, GREY if kind == "host" else k, "line" if kind == "clrope" else "dash",
                        tuple(mark for _, mark in sorted(marks.items())))
            for k, ((kind, name), marks) in enumerate(ranked)
        )  # fmt: skip
        caption = (
            "q of 32 heads and k of 8, of 128 elements, neox. Every call has a new position, for which torch makes "
            "cos and sin. memcpy copies both by numpy.copyto. Medians of each entry's fastest turn; of peers the "
            "faster of all threads and one. Less is better."
        )
        cpus = ", ".join(dict.fromkeys(short_cpu(w.platform.key.cpu) for w in chosen))
        x, y = ChartAxis("tokens", "log", unit="count"), ChartAxis("µs a call", "log")
        charts.append(
            Chart(f"one-shot-{dtype}", f"One-shot calls on NumPy arrays, {dtype}: {cpus}", caption, x, y, series)
        )
    return charts


def cascade_chart(measured: Sequence[Measurement], basis: Basis) -> Chart | None:
    """Return the efficiency cascade of each application, with the portability of the platforms so far."""
    common = in_common(measured)
    series: list[ChartSeries] = []
    most = 0
    for k, application in enumerate(applications(common)):
        solved = solved_by(common, application)
        steps = cascade([m for m in common if m.problem in solved], application, basis)
        if not steps or steps[0][1] == 0:
            continue
        origin = f"median over {len(solved)} of {len(platforms_of(common))} problems"
        of = "architectural" if basis == "architectural" else "application"
        shares, means = [], []
        for n, (platform, share, mean) in enumerate(steps, 1):
            shares.append(Mark(n, share, f"{application} on {platform}: {of} efficiency {share:.2f}", origin))
            means.append(Mark(n, mean, f"{application}: portability {mean:.2f} over the best {n}", origin))
        most = max(most, len(steps))
        colour = 0 if application == OWN else k
        series += [
            ChartSeries(application, colour, "line", tuple(shares)),
            ChartSeries("portability of this platform and all better ones", colour, "dash", tuple(means)),
        ]
    if not series:
        return None
    against = "the platform's best copy" if basis == "architectural" else "the fastest application on the platform"
    caption = f"Efficiency is the share of the speed of {against}. The best platforms of each application come first."
    return Chart(
        f"cascade-{basis}",
        f"Efficiency cascade, {basis} efficiency",
        caption,
        ChartAxis("number of platforms", unit="count", low=1, high=most),
        ChartAxis("efficiency", low=0.0, high=1.05),
        tuple(series),
    )


def applications(measured: Sequence[Measurement]) -> list[str]:
    """Return the applications: this package, kernels of users, peers in their order."""
    found = dict.fromkeys(m.application for m in measured)
    return sorted(found, key=lambda name: (name != OWN, NAMES.index(name) if name in NAMES else -1))


def solved_by(measured: Sequence[Measurement], application: str) -> set[str]:
    """Return the problems that an application has at all: right or wrong, on any platform."""
    return {m.problem for m in measured if m.application == application}


def tuning_chart(tried: Sequence[TriedKey]) -> Chart | None:
    """Return the speed of every variant tried, as a share of the fastest of its key."""
    rows = sorted((t for t in tried if t.best), key=lambda t: t.size != "large")[:MOST_KEYS]
    if not rows:
        return None
    most = max(1, MOST_MARKS // 2 // len(rows))
    specks: list[Mark] = []
    winners: list[Mark] = []
    drawn = count = 0
    for place, key in enumerate(rows):
        timed = [(v, v.gbs) for v in key.variants if v.gbs and not v.broken]
        best = key.best or 1.0
        marks = [
            Mark(rate / best, place, f"{v.name}: {rate:.3g} GB/s, {rate / best:.2f} of the fastest", key.origin)
            for v, rate in timed
        ]
        winners += [mark for mark, (v, _) in zip(marks, timed, strict=True) if v.chosen]
        shown = marks[:: math.ceil(len(marks) / most)]
        count, drawn = count + len(marks), drawn + len(shown)
        specks += shown
    caption = "Speed of each variant as a share of the fastest for the same class of problems."
    if drawn < count:
        caption += f" Of {count} variants, {drawn} are drawn."
    if len(rows) < len(tried):
        caption += f" The first {len(rows)} of {len(tried)} classes."
    series = (ChartSeries("a variant", 7, "speck", tuple(specks)), ChartSeries("chosen", 0, "diamond", tuple(winners)))
    return Chart(
        "variants",
        "Speed of the variants",
        caption,
        ChartAxis("share of the fastest", low=0.0, high=1.05),
        ChartAxis("", "names", tuple(key.name for key in rows)),
        series,
        limit=1.0,
        row=24,
    )


def _first(names: Sequence[str] | dict[str, None]) -> list[str]:
    return list(names)[:MOST_PLATFORMS]


def _left_out(work: Sequence[PlatformWorkload], shown: Sequence[str]) -> str:
    names = dict.fromkeys(w.platform.name for w in work)
    return f" The first {len(shown)} of {len(names)} platforms; the table has all." if len(names) > len(shown) else ""


def _bytes(one: PlatformWorkload) -> int:
    return int(one.record.workload["tensor_bytes"])
