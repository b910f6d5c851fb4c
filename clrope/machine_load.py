"""How busy other programs keep the CPUs that this process may use: on a busy machine no figure is to be trusted."""

from __future__ import annotations

import os
from pathlib import Path

#: The share of the CPUs' time from which on a machine counts as busy.
BUSY = 0.15
_STAT = Path("/proc/stat")
#: Of a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Then guests, which are in user.
_FIELDS, _IDLE = 8, (3, 4)


class OthersLoad:
    """What others use from its making on: all but this process and its children that have ended."""

    def __init__(self) -> None:
        self._begin = _sample()

    def share(self) -> float | None:
        """Return the share of the CPUs' time that others used, 0 to 1; None where the system does not tell."""
        now = _sample()
        if now is None or self._begin is None or now[1] <= self._begin[1]:
            return None
        busy, total, own = (b - a for a, b in zip(self._begin, now, strict=True))
        return round(min(1.0, max(0.0, (busy - own) / total)), 3)


def load_text(share: float | None) -> str:
    """Return a sentence on a share, with a warning where it is too large; '' for None."""
    if share is None:
        return ""
    text = f"other programs used {share:.0%} of the CPUs during the run"
    return f"{text}: a BUSY machine, the figures are not to be trusted" if share > BUSY else text


def _sample() -> tuple[float, float, float] | None:
    """Return seconds of the usable CPUs: busy, busy and idle; and of this process."""
    try:
        usable = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        lines = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
        tick = os.sysconf("SC_CLK_TCK")
        times = [[int(text) / tick for text in line[1 : 1 + _FIELDS]] for line in lines if line and line[0] in usable]
    except (AttributeError, OSError, ValueError):
        return None
    total = sum(map(sum, times))
    own = os.times()
    return total - sum(line[k] for line in times for k in _IDLE if k < len(line)), total, sum(own[:4])
