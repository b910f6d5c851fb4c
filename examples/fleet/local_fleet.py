"""A fleet on this machine: two worker processes compare their bits, then rotate a Dask array by its chunks.

On a real fleet the workers are elsewhere, and each is told a device of its own by CLROPE_DEVICE; see docs/fleet.md.
"""

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import clrope
from clrope.fleet import VerifyTask, run_fleet
from clrope.interop.dask import rope


def main() -> None:
    """Run both on a cluster that is reachable from this machine only."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        result = run_fleet(cluster.scheduler_address, VerifyTask(("seed",), seed=7, text="type=f16 mode=2 ff=0 ef=0.0"))
        for worker in result.workers:
            print(f"{worker.worker}: {worker.device}: {worker.status}")
        if result.bits is not None:
            print(f"{result.bits.compared} cases compared, bit-identical: {result.bits.identical}")
        assert result.ok, result.failures

        x = np.random.default_rng(0).uniform(-1, 1, (4, 512, 8, 64)).astype(np.float16)
        config = clrope.RopeConfig("neox", freq_base=5e5)
        y = rope(da.from_array(x, chunks=(1, 128, 8, 64)), 1000, config)  # lazy: 16 chunks, nothing computed yet
        with Client(cluster) as client:
            got = client.compute(y).result()
    print(f"{y.npartitions} chunks: NMSE {clrope.compare(got, clrope.reference.rope(x, 1000, config)).nmse:.3g}")


if __name__ == "__main__":  # the workers are spawned, and import this file
    main()
