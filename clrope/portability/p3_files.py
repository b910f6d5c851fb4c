"""CSV files for analyses of performance portability: problem, platform, application, figure of merit, efficiencies."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import RopeError
from ..output_file import write_file
from .portability_metric import Measurement, efficiencies

#: The first four are those of the p3-analysis library; `fom` is seconds of a call: less is better.
COLUMNS = ("problem", "platform", "application", "fom", "arch eff", "app eff")


def p3_csv(found: Sequence[Measurement]) -> dict[str, str]:
    """Return the text of a CSV file for each problem, by the problem's name; without a time, fom is empty."""
    arch, app = efficiencies(found, "architectural"), efficiencies(found, "application")
    texts: dict[str, io.StringIO] = {}
    for m in found:
        key = m.problem, m.platform, m.application
        if m.problem not in texts:
            texts[m.problem] = io.StringIO()
            csv.writer(texts[m.problem], lineterminator="\n").writerow(COLUMNS)
        fom = "" if m.seconds is None else repr(m.seconds)
        shares = ("" if share is None else f"{share:.6f}" for share in (arch.get(key), app.get(key)))
        csv.writer(texts[m.problem], lineterminator="\n").writerow([*key, fom, *shares])
    return {problem: text.getvalue() for problem, text in texts.items()}


def write_p3(found: Sequence[Measurement], folder: str) -> list[Path]:
    """Write a file for each problem into a folder, which is made; return the paths. Raises `RopeError`."""
    made = []
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for problem, text in p3_csv(found).items():
            path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', problem)}.csv"
            write_file(path, text)
            made.append(path)
    except OSError as error:
        raise RopeError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
    return made
