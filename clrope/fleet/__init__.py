"""Many devices at once: suites and benchmarks on the workers of a Dask cluster, and what a fleet of N would take.

Importing this needs no package of Dask; `run_fleet` needs the extra `dask`.
"""

from .fleet_projection import FleetProjection, projection
from .fleet_result import FleetBits, FleetResult, WorkerResult, read_fleet
from .fleet_run import run_fleet
from .fleet_task import BenchTask, VerifyTask

__all__ = [
    "BenchTask", "FleetBits", "FleetProjection", "FleetResult", "VerifyTask", "WorkerResult", "projection",
    "read_fleet", "run_fleet",
]  # fmt: skip
