"""Conformance suites: cases in ggml's notation, run on devices and checked against the float64 reference."""

from __future__ import annotations

from .case import Case, parse_case
from .conformance import Report, verify
from .registry import suite, suite_names

__all__ = ["Case", "Report", "parse_case", "suite", "suite_names", "verify"]
