"""A cache directory of the test's own."""

from tuning_fixtures import cache, cpu

__all__ = ["cache", "cpu"]
