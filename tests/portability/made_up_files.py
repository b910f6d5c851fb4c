"""Files of every kind for reports, made up so that every figure is known."""

from made_up_results import made_up

from clrope.benchmark.workloads import select

#: A few workloads of each kind that a page has a section for.
PATTERNS = ("prefill/f16/n*/*/forward", "decode-1/f32/neox", "size-*", "partial-64of128/f32/neox/out/forward",
            "tokens-*4/f32")  # fmt: skip


def small(**more):
    return made_up(workloads=select(PATTERNS), **more)


def every_field(name):
    """A result of one workload with every field that reports read, also those that may be absent."""
    result = made_up(
        workloads=select([name]), kinds={"pocl": "gpu"}, missing=["prefill/f16/neox/out/forward"], worker="w"
    )
    for device in result["devices"].values():
        device |= {"clpeak_gbs": 30.5, "clpeak": "clpeak 1.1.4"}
    result["processes"].append({"kind": "first call", "device": "pocl", "status": "error", "reason": "no answer"})
    (workload,) = result["workloads"]
    workload["rounds"] = 3
    own = workload["entries"][0]
    own["event"] = own["wall"] | {"turns": [own["wall"]["median"]] * 3}
    workload["entries"] += [
        *(own | {"name": name} for name in ("rope numpy", "plan.run()", "plan.run(positions)")),
        {key: own[key] for key in ("status", "bytes", "wall", "device")} | {"kind": "kernel", "name": "mine"},
        {key: own[key] for key in ("status", "bytes", "wall", "device")} | {"kind": "peer", "name": "torch_eager"},
        {"kind": "clrope", "name": "numpy new", "status": "error", "device": "pocl", "reason": "no memory"},
    ]
    return result


def renamed(result, names):
    """Give devices other labels."""
    result["devices"] = {names.get(label, label): device for label, device in result["devices"].items()}
    for entry in [e for w in result["workloads"] for e in w["entries"]] + result["processes"]:
        if "device" in entry:
            entry["device"] = names.get(entry["device"], entry["device"])
    return result


def spoil(result, device="intel", where=lambda workload: True):
    """Make the results of a device wrong, in the workloads of a condition."""
    for workload in result["workloads"]:
        for number, entry in enumerate(workload["entries"]):
            if (entry["kind"], entry.get("device")) == ("clrope", device) and where(workload):
                workload["entries"][number] = {
                    "kind": "clrope", "name": entry["name"], "status": "wrong", "device": device, "reason": "NMSE 0.5",
                }  # fmt: skip
    return result


def verification(failing=(), differing=(), worker=None):
    """A report of `clrope verify` with the two devices of made-up results."""
    cases = [f"ROPE(type=f32,case={k})" for k in range(3)]
    results = [
        {"suite": "seed", "case": case, "device": name, "status": "fail" if (name, case) in failing else "ok",
         "nmse": 1e-15, "limit": 1e-7, "digest": f"{k:016x}", "detail": "NMSE 0.4" if (name, case) in failing else "",
         "seconds": 0.1}
        for k, case in enumerate(cases) for name in ("pocl", "intel")
    ]  # fmt: skip
    summary = [
        {"device": name, "suite": "seed", "cases": 3, "passed": 3 - sum(f[0] == name for f in failing), "skipped": 0,
         "seconds": 0.3}
        for name in ("pocl", "intel")
    ]  # fmt: skip
    devices = [{"name": name, "asked": False, "problem": "", "device": {"key": name, "name": "A CPU", "kind": "cpu",
                "driver_version": "1"}} for name in ("pocl", "intel")]  # fmt: skip
    return {
        "schema": "clrope.verify/1", "clrope": "0", "seed": 7, "suites": ["seed"], "filter": "", "remarks": {},
        "devices": devices, "summary": summary, "bits": {"compared": 3, "differing": list(differing)},
        "failures": [], "ok": True, "results": results,
    } | ({"worker": worker} if worker else {})  # fmt: skip


def variant(kernel="rows", outcome="slower", gbs=30.0, reason="", **parameters):
    values = {"width": 8, "access": "clang", "store": "plain", "prefetch": 0, "prefetch_kind": "levels",
              "nan": "any", "angles": "cached"} | parameters  # fmt: skip
    return {"variant": {"kernel": kernel, **values}, "outcome": outcome, "reason": reason, "log": "",
            "seconds": None if gbs is None else 0.1 / gbs, "gbs": gbs}  # fmt: skip


def tuning():
    """A report of `clrope tune`: one class of problems, with a tie, slower, wrong and broken variants."""
    results = [
        variant(outcome="ok", gbs=40.0, width=4),
        variant(gbs=40.4, width=16),
        variant(gbs=20.0),
        *(variant(gbs=10.0 + k, prefetch=1024 << k) for k in range(4)),
        variant(outcome="wrong", gbs=None, reason="3 values differ", store="nontemporal"),
        variant(outcome="crash", gbs=None, reason="SIGSEGV", access="builtin"),
    ]
    record = {"dtype": "f32", "pairing": "neox", "in_place": False, "size": "large", "nbytes": 1 << 26, "seed": 1,
              "ceiling_gbs": 50.0, "checked_against": "emulation", "written": 1.0, "winner": results[0]["variant"],
              "results": results}  # fmt: skip
    device = {"device": "Portable Computing Language | A CPU | 1", "index": "0:0", "records": [record], "left": [],
              "errors": []}  # fmt: skip
    return {"schema": "clrope.tune/2", "devices": [device], "not_tuned": []}


def fleet(what="bench", results=None, workers=(), bits=None):
    """A result of a fleet with two workers, of which the second is the first's twin."""
    found = [small() | {"worker": name} for name in ("w1", "w2")] if results is None else results
    known = [{"worker": name, "host": "h", "device": "A CPU", "platform": "p", "status": "ok", "reason": ""}
             for name in ("w1", "w2")]  # fmt: skip
    return {"schema": "clrope.fleet/1", "what": what, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0,
            "workers": [*known, *workers], "bits": bits, "results": found}  # fmt: skip
