"""The parent's side of tuning: a child process for each pairing and storage type, and how their exits are read.

A child works through many variants. When it crashes or hangs, the one that it had just begun is to blame, and a new
child goes on with the rest. Nothing that a driver does harms this process. What seems faster than the default is
compared with it again in a fresh child, and replaces it only if it is faster beyond doubt.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from statistics import median
from typing import TYPE_CHECKING, Any

from ..device import child, devices
from ..device.cache import largest_cache, sets_beyond
from ..errors import DeviceError
from ..kernels.problem import Pairing
from ..kernels.variant import STRIDED, Variant, candidates
from ..machine_load import BUSY, OthersLoad
from ..select import database
from ..select.defaults import default_for
from ..select.records import CheckedAgainst, OutcomeKind, SizeClass, TuningKey, TuningRecord, VariantResult
from .winners import TuningReport, decided, with_winner

if TYPE_CHECKING:
    from ..device import DeviceInfo

#: Storage types that are tuned without being asked for.
USUAL_TYPES = ("f32", "f16", "bf16", "f64")
#: Seconds that one variant may take to be built and run once.
VARIANT_LIMIT = 30.0
#: What a size class is measured on; large: many of them in turn, together more than any cache.
NBYTES: Mapping[SizeClass, int] = {"small": 64 << 10, "medium": 4 << 20, "large": 64 << 20}
#: Seconds that one run on the large size shall take at most; slower devices are measured on less.
_LONGEST_RUN = 0.1
#: The fewest sets of buffers for the large size: where in memory they are makes one variant or another up to a tenth
#: faster. And the seconds that filling all sets may take.
_PLACES, _LONGEST_FILL = 8, 1.0
#: Seconds below which a group is not started.
_LEAST_SECONDS = 1.0
#: Share of the time after which what seems faster is compared with the default again.
_SEARCHING = 0.7
#: How many times as fast as the default a variant has to be at least, to replace it; "at least" with this probability.
WORTH, SURE = 1.02, 0.99
#: More times the speed of the fastest copy is no speed but a mistake.
MOST_COPIES = 1.5
#: Variants that hang until no other one is tried after the time is over: the driver may hang at each.
_MOST_HANGING = 2

Progress = Callable[[str, int, int], None]


def all_keys(device: DeviceInfo, types: Sequence[str] = USUAL_TYPES) -> list[TuningKey]:
    """Return everything that can be tuned on a device for some storage types, the likeliest first."""
    pairings: tuple[Pairing, ...] = ("neox", "normal")
    possible = [dtype for dtype in types if device.fp64 or dtype != "f64"]
    return [p for dtype in possible for pairing in pairings for p in database.tuning_keys(dtype, pairing)]


def tune(
    device: DeviceInfo,
    seconds: float = 120.0,
    keys: Sequence[TuningKey] | None = None,
    *,
    progress: Progress | None = None,
    seed: int | None = None,
    variants: Sequence[Variant] | None = None,
    nbytes: Mapping[SizeClass, int] | None = None,
    limit: float = VARIANT_LIMIT,
    sources: Mapping[Variant, str] | None = None,
) -> TuningReport:
    """Try every variant on a device, remember the results, and return them. Later calls use the winners.

    seconds: about how long; keys for which there is no time are left as they were. keys: which ones, default all.
    progress: called with (what is being done, groups done, groups). seed: of the inputs. nbytes: of the tensors that
    the size classes are measured on. limit: seconds for one variant. variants: which ones, default all candidates.
    sources: texts that are built in the place of a variant's own.
    Raises `DeviceError` if the device is not healthy or no child process can be started for it.
    """
    if device.health.status == "unhealthy":
        raise DeviceError(device.describe_problem())
    device.cl_device  # noqa: B018 - raises if there is none in this process

    same = [d for d in devices() if d.key == device.key]
    ordinal = next((n for n, d in enumerate(same) if d.index == device.index), None)
    if ordinal is None:
        raise DeviceError(f"device {device.name!r}: cannot be tuned, a fresh process would not find it")
    groups: dict[tuple[str, Pairing], list[TuningKey]] = {}
    for key in all_keys(device) if keys is None else keys:
        groups.setdefault((key.dtype, key.pairing), []).append(key)
    deadline, others = time.monotonic() + seconds, OthersLoad()
    result = TuningReport(device.key)
    for number, ((dtype, pairing), wanted) in enumerate(groups.items()):
        if progress:
            progress(f"{dtype} {pairing}", number, len(groups))
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            result.left.extend(wanted)
            continue
        group = _Group(
            device, ordinal, dtype, pairing, wanted,
            list(variants or _defaults_first(candidates(device.kind, dtype), device, wanted)),
            sizes={**_sizes(device), **(nbytes or {})}, limit=limit, sources=dict(sources or {}),
            seed=secrets.randbits(32) if seed is None else seed,
        )  # fmt: skip
        # What the earlier groups left over is for the later ones.
        records = group.run(time.monotonic() + left / (len(groups) - number))
        before = {record.key: group.used(record.key) for record in records}
        database.save(device, records)
        result.records.extend(records)
        result.changed.extend(r.key for r in records if r.winner not in (None, before[r.key]))
        result.doubtful.extend(group.doubtful)
        done = [record.key for record in records]
        result.left.extend(p for p in wanted if p not in done)
        result.errors.extend(f"{dtype} {pairing}: {line}" for line in group.errors)
    if progress:
        progress("done", len(groups), len(groups))
    result.busy = others.share()
    return result


def _sizes(device: DeviceInfo) -> dict[SizeClass, int]:
    """Return what to measure on: less on a device that is slow or small."""
    rate = device.health.copy_gbs
    large = NBYTES["large"]
    if rate:
        large = min(large, int(rate * 1e9 * _LONGEST_RUN / 2))
    large = max(NBYTES["small"], min(large, device.max_alloc, device.global_mem // 8))
    return {size: min(nbytes, large) for size, nbytes in NBYTES.items()}


def _sets(device: DeviceInfo, set_bytes: int) -> int:
    """Return how many sets of buffers to use in turn: from memory, unless filling them takes too long or too much."""
    most = device.global_mem // 4
    if device.health.copy_gbs:
        most = min(most, int(device.health.copy_gbs * 1e9 * _LONGEST_FILL))
    return max(1, min(max(_PLACES, sets_beyond(largest_cache(device), set_bytes)), most // set_bytes))


@dataclass
class _Group:
    """The variants for one storage type and pairing on their way through as many children as it takes."""

    device: DeviceInfo
    ordinal: int
    dtype: str
    pairing: Pairing
    keys: list[TuningKey]
    variants: list[Variant]
    sizes: dict[SizeClass, int]
    limit: float
    sources: dict[Variant, str]
    seed: int
    ceiling: bool = True
    checked_against: CheckedAgainst = "emulation"
    errors: list[str] = field(default_factory=list)
    #: What failed, by the variant's number; and what is right.
    failed: dict[int, VariantResult] = field(default_factory=dict)
    right: list[int] = field(default_factory=list)
    timed: dict[TuningKey, dict[str, Any]] = field(default_factory=dict)
    doubtful: list[TuningKey] = field(default_factory=list)

    def run(self, deadline: float) -> list[TuningRecord]:
        """Return a record for every key that was timed, or for all if no variant works."""
        now = time.monotonic()
        self._search(now + _SEARCHING * (deadline - now))
        return self._confirmed(self._records(), deadline)

    def used(self, key: TuningKey) -> Variant:
        """Return what a key uses before its record is saved: a winner that was compared with the default, or that."""
        record = database.known(self.device, key.dtype, key.pairing).record(key)
        earlier = record.winner if record is not None and record.gain is not None else None
        return earlier or default_for(self.device, key)

    def _search(self, deadline: float) -> None:
        """Check and time variants in children until the deadline."""
        while True:
            todo = [n for n in range(len(self.variants)) if n not in self.failed and n not in self.right]
            cases = [p for p in self.keys if p not in self.timed]
            left = deadline - time.monotonic()
            if not cases or (left < _LEAST_SECONDS and self.timed):
                break
            hanging = sum(result.outcome == "timeout" for result in self.failed.values())
            if left < _LEAST_SECONDS and hanging >= _MOST_HANGING:
                self.errors.append(f"ended after {hanging} variants that hang; {len(todo)} were not tried")
                break
            # After crashes the time may be over with nothing measured: then a little more.
            left = max(left, 4 * _LEAST_SECONDS)
            result = child.run(
                self._job(todo, cases, left), module="clrope.tune.worker", limit=2 * left + self.limit + 60
            )
            begun = self._take(result.entries, cases)
            if result.outcome == "ok":
                break
            if not self._blame(result, begun):
                break

    def _job(self, todo: list[int], cases: list[TuningKey], seconds: float) -> dict[str, Any]:
        return {
            "device": self.device.key, "ordinal": self.ordinal, "dtype": self.dtype, "pairing": self.pairing,
            "variants": [v.to_dict() for v in self.variants], "todo": todo, "usable": list(self.right),
            "cases": [self._case(p) for p in cases],
            "seconds": seconds, "limit": self.limit, "seed": self.seed, "ceiling": self.ceiling,
            "checked_against": self.checked_against,
            "sources": {n: self.sources[v] for n, v in enumerate(self.variants) if v in self.sources},
        }  # fmt: skip

    def _confirmed(self, records: list[TuningRecord], deadline: float) -> list[TuningRecord]:
        """Return the records with winners that are faster than the default beyond doubt, compared in a fresh child."""
        numbers = {variant: number for number, variant in enumerate(self.variants) if number in self.right}
        pairs: dict[TuningKey, list[int]] = {}
        for record in records:
            default, used = default_for(self.device, record.key), self.used(record.key)
            best = used if record.winner == default else record.winner
            # A default that fails, or was not among the variants, is no choice.
            if best != default and best in numbers and default in numbers:
                pairs[record.key] = [numbers[default], numbers[best]]
        if not pairs:
            return records
        cases, others = list(pairs), OthersLoad()
        jobs = [{**self._case(key), "pair": pair} for key, pair in pairs.items()]
        left = max(deadline - time.monotonic(), 2 * _LEAST_SECONDS)
        job = {**self._job([], [], left), "cases": jobs}
        result = child.run(job, module="clrope.tune.worker", limit=2 * left + self.limit + 60)
        busy = others.share()
        rounds = {cases[e["case"]]: e["pairs"] for e in result.entries if "case" in e}
        return [
            self._decided(replace(r, busy=busy), pairs[r.key], rounds.get(r.key, []))
            if r.key in pairs else replace(r, busy=busy)
            for r in records
        ]  # fmt: skip

    def _decided(self, record: TuningRecord, pair: list[int], rounds: list[list[float]]) -> TuningRecord:
        """Return the record with a pair's second as the winner, or with what was used before, given paired times."""
        (default, best), (gain, least) = (self.variants[n] for n in pair), gain_of(rounds)
        if record.busy is not None and record.busy > BUSY:
            reason = f"other programs used {record.busy:.0%} of the CPUs"
        elif least is None:
            reason = "there was no time to compare it with the default again"
        elif least > WORTH:
            return replace(record, results=with_winner(record.results, best), gain=gain)
        else:
            reason = f"compared again, it is {gain:.2f} times as fast as the default, {least:.2f} at least"
            self.doubtful.append(record.key)
            return replace(record, results=with_winner(record.results, default, f"in doubt: {reason}"))
        self.doubtful.append(record.key)
        used = self.used(record.key)
        kept = used if used in self.variants and self.variants.index(used) in self.right else default
        earlier = database.known(self.device, self.dtype, self.pairing).record(record.key)
        known = None if kept == default or earlier is None else earlier.gain
        return replace(record, results=with_winner(record.results, kept, f"in doubt: {reason}"), gain=known)

    def _case(self, key: TuningKey) -> dict[str, Any]:
        nbytes = self.sizes[key.size]
        sets = _sets(self.device, nbytes * (1 if key.in_place else 2)) if key.size == "large" else 1
        # Small calls are a decoder's, each at other positions: making a table for it takes longer than the rotation.
        return {"in_place": key.in_place, "nbytes": nbytes, "sets": sets, "no_table": key.size == "small", "pair": []}

    def _take(self, entries: list[dict[str, Any]], cases: list[TuningKey]) -> int | str | None:
        """Take in what a child wrote; returns what it had begun and not ended."""
        begun: int | str | None = None
        for entry in entries:
            if "begin" in entry:
                begun = entry["begin"]
            elif "checked_against" in entry:
                self.checked_against = entry["checked_against"]
            elif "end" in entry:
                begun = None
                number = entry["end"]
                if entry["outcome"]:
                    self._fail(number, entry["outcome"], entry["reason"], entry["log"])
                else:
                    self.right.append(number)
            elif "case" in entry:
                begun = None
                self.timed[cases[entry["case"]]] = entry
                for text, (outcome, reason) in entry["failed"].items():
                    self._fail(int(text), outcome, reason)
        return begun

    def _fail(self, number: int, outcome: OutcomeKind, reason: str, log: str = "") -> None:
        self.failed[number] = VariantResult(self.variants[number], outcome, reason, log)
        if number in self.right:
            self.right.remove(number)

    def _blame(self, result: child.ChildResult, begun: int | str | None) -> bool:
        """Note what a child died of; False if there is no use in another one."""
        if isinstance(begun, int):
            outcome: OutcomeKind = "not_run"
            if result.outcome == "crash":
                outcome = "crash"
            elif result.outcome == "timeout":
                outcome = "timeout"
            self._fail(begun, outcome, result.reason, result.output)
            return True
        if begun == "ceiling" and self.ceiling:
            self.ceiling = False
            self.errors.append(f"the copy kernels, which are only for comparison: {result.reason}")
            return True
        self.errors.append(result.reason)
        return False

    def _records(self) -> list[TuningRecord]:
        records = []
        for key in self.keys:
            entry = self.timed.get(key)
            if entry is None and self.right:
                continue  # no time was left for it
            if entry is None and not self.failed:
                continue
            nbytes = entry["nbytes"] if entry else self.sizes[key.size]
            times = {int(n): s for n, s in entry["seconds"].items()} if entry else {}
            ceiling = entry["ceiling"] if entry else None
            default = default_for(self.device, key)
            tried = [v for n, v in enumerate(self.variants) if n in self.failed or n in self.right]
            if entry is not None and default in self.variants and default not in tried:
                continue  # what won was not compared with what it would replace
            results = []
            for number, variant in enumerate(self.variants):
                if number in self.failed:
                    results.append(self.failed[number])
                elif number in times:
                    rate = round(2 * nbytes / times[number] / 1e9, 3)
                    copies = 0.0 if ceiling is None else ceiling / times[number]
                    doubt = f"{copies:.2f} times as fast as the fastest copy: not to be believed"
                    reason = doubt if copies > MOST_COPIES else ""
                    results.append(VariantResult(variant, "slower", reason, seconds=times[number], gbs=rate))
            if not results:
                continue  # no time was left to check one
            records.append(
                TuningRecord(
                    key, decided(_in_order(results, default), key.size), nbytes,
                    None if ceiling is None else round(2 * nbytes / ceiling / 1e9, 3), self.checked_against, self.seed,
                    time.time(),
                )
            )  # fmt: skip
        return records


def gain_of(rounds: Sequence[Sequence[float]]) -> tuple[float, float | None]:
    """Return how many times as fast as the first of each pair of times the second is: the median, and the least.

    Least: so many times at least, with the probability `SURE`, whatever the distribution; None of too few rounds.
    """
    ratios = sorted(first / second for first, second in rounds)
    if not ratios:
        return 1.0, None
    # At most `below` of the ratios are below the median's true value, by the binomial distribution.
    below, chance = -1, 0.0
    while (chance := chance + comb(len(ratios), below + 1) / 2 ** len(ratios)) <= 1 - SURE:
        below += 1
    return median(ratios), ratios[below] if below >= 0 else None


def _defaults_first(variants: Sequence[Variant], device: DeviceInfo, keys: Sequence[TuningKey]) -> list[Variant]:
    """Return the variants with the defaults of some keys at the beginning: time may be over before all are tried."""
    defaults = {default_for(device, key) for key in keys}
    return sorted(variants, key=lambda variant: variant not in defaults)


def _in_order(results: list[VariantResult], default: Variant) -> list[VariantResult]:
    """Return them in the order in which equals are preferred: the default first, the strided one last."""
    return sorted(results, key=lambda o: (o.variant != default, o.variant == STRIDED))
