"""Results made up so that every figure is known."""

import json

from clrope.benchmark import results
from clrope.benchmark.workloads import select


def times(ns):
    return {"min": int(ns * 0.9), "p20": int(ns * 0.95), "median": int(ns), "p80": int(ns * 1.1), "n": 9}


def entry(kind, name, ns, moved, device=None, **more):
    out = {"kind": kind, "name": name, "status": "ok", "bytes": moved, "wall": times(ns), "cpu": times(2 * ns)}
    return out | ({"device": device} if device else {}) | more


#: GB/s of the made-up machine.
CEILING, OWN, PEERS = 50.0, {"pocl": 48.0, "intel": 49.0}, {"ggml": 3.0, "onnxruntime": 10.0, "numba": 30.0,
                                                             "torch_compile": 3.0}  # fmt: skip


def record(workload, own=OWN, peers=PEERS):
    moved = workload.bytes_moved
    entries = []
    if workload.calls == "one-shot":
        ways = [(d, n) for d in own for n in ("numpy new", "numpy out=", "numpy in place")]
        entries = [entry("clrope", name, 1e3 * workload.tensors[0][1] + 5e3, moved, device) for device, name in ways]
        entries.append(entry("host", "memcpy", moved / CEILING, moved))
    for device, rate in own.items() if not entries else ():
        ns = 6000.0 if workload.latency else moved / rate
        entries.append(entry("clrope", "arrays", ns, moved, device, nmse=1e-15, variants=[{}], launches=1))
        if workload.latency:
            entries.append(entry("launch", "raw launch", 5000.0, 0, device))
        copied = 2 * workload.tensor_bytes
        name = "scale" if workload.in_place else "copy"
        entries.append(entry("ceiling", name, copied / CEILING, copied, device, variant=f"{name} vector8 4 KiB"))
        entries.append(entry("ceiling", f"slow {name}", 2 * copied / CEILING, copied, device))
        if workload.host:
            entries += [
                entry("clrope", "numpy out=", 1.05 * ns, moved, device),
                entry("clrope", "numpy new", 2 * ns, moved, device),
            ]
    entries += [entry("peer", name, moved / rate, moved) for name, rate in peers.items()]
    entries.append({"kind": "peer", "name": "torch_eager", "status": "refused", "reason": "not today"})
    base = {"name": workload.name} | workload.to_dict() | {"load": 0.1, "sets": 2, "entries": entries, "seconds": 1.0}
    return json.loads(json.dumps(base))


def made_up(workloads=None, kinds=None, **more):
    chosen = select() if workloads is None else workloads
    devices = {
        label: {"platform": platform, "name": "A CPU", "kind": (kinds or {}).get(label, "cpu"), "driver_version": "1",
                "key": label, "host_unified": True}
        for label, platform in (("pocl", "Portable Computing Language"), ("intel", "Intel(R) OpenCL"))
    }  # fmt: skip
    own = {k: v for k, v in OWN.items() if k in devices}
    processes = []
    for label, seconds in (("pocl", 0.6), ("intel", 0.6)):
        t = times(seconds * 1e9)
        processes.append({"kind": "first call", "device": label, "status": "ok", "whole": t, "inside": t, "imports": t})
        processes.append({"kind": "peak memory", "device": label, "status": "ok", "output_bytes": 64 << 20,
                          "extra_bytes": 70 << 20})  # fmt: skip
    return {
        "schema": results.SCHEMA, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0,
        "options": {"rounds": 9, "calls": 1, "latency_calls": 1, "threads": 2, "seed": 1, "tiny": False},
        "environment": {"cpu": "A CPU", "cpus": 2, "system": "s", "python": "p", "versions": {"clrope": "0"},
                        "kernels": {"a.cl": "0" * 16}, "load_before": 0.0, "load_after": 0.1},
        "devices": devices, "peers": dict.fromkeys(PEERS, "1"),
        "workloads": [record(w, own) for w in chosen], "processes": processes,
    } | more  # fmt: skip
