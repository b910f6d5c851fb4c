"""Suites and benchmarks on real workers: processes with devices of their own, of which some end or are wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import clrope
from clrope.benchmark.results import schema
from clrope.fleet.fleet_run import connect

reason = "dask is not installed: pip install 'clrope[dask]'"
dask = pytest.importorskip("dask", reason=reason)
da = pytest.importorskip("dask.array", reason=reason)
distributed = pytest.importorskip("distributed", reason=reason)

from fleet_processes import Processes, children, wait_for  # noqa: E402

KEYS = ["schema", "what", "started", "seconds", "workers", "bits", "results"]
WORKER = ["worker", "host", "device", "platform", "status", "reason"]
#: 24 of the suite seed's cases.
SOME = ("--filter", "type=f16 ff=0")
TINY = ("--tiny", "--no-peers", "--rounds", 1, "--workload", "decode-1/f32/neox/out/forward", "--workload",
        "prefill/f16/n*/out/forward")  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert list(found) == KEYS
    assert all(list(w) == WORKER for w in found["workers"])
    return dict(found)


def by_worker(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    out = {w["worker"]: w for w in found["workers"]}
    assert len(out) == len(found["workers"])
    return out


def kill_in_the_middle(cluster: Processes, address: str, pid: int) -> threading.Thread:
    """Kill a process by signal 9 when its worker has begun with a task."""

    def watch() -> None:
        wait_for(lambda: address in cluster.tasks("clrope-verify"), "the task")
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_verify_bench_and_arrays_on_two_devices(cluster, two, call, tmp_path, rng):
    for device in two:
        cluster.add(f"on {device.platform}", device.index)
    names = cluster.names()
    file = tmp_path / "verify.json"
    done = call("verify", "--scheduler", cluster.address, *SOME, "--seed", 5, "--json", file)
    assert done.exit_code == 0, done.output
    found = read(file)
    assert (found["schema"], found["what"]) == ("clrope.fleet/1", "verify")
    workers = by_worker(found)
    assert {a: (w["device"], w["platform"], w["status"]) for a, w in workers.items()} == {
        names[f"on {d.platform}"]: (d.name, d.platform, "ok") for d in two
    }
    assert found["bits"] == {"compared": len(found["results"][0]["results"]), "identical": True, "different": []}
    assert {r["worker"] for r in found["results"]} == set(names.values())
    assert all((r["schema"], r["seed"], r["ok"]) == ("clrope.verify/1", 5, True) for r in found["results"])
    assert "bit-identical: 24/24 cases between 2 devices" in done.stdout
    assert all(address in done.stdout and address in done.stderr for address in names.values())

    file = tmp_path / "bench.json"
    done = call("bench", "--scheduler", cluster.address, *TINY, "--json", file)
    assert done.exit_code == 0, done.output
    found = read(file)
    assert found["bits"] == {"compared": 3, "identical": True, "different": []}
    assert {a: w["status"] for a, w in by_worker(found).items()} == dict.fromkeys(names.values(), "ok")
    for result in found["results"]:
        assert result.pop("worker") in names.values()
        jsonschema.validate(result, schema())
    assert done.stdout.count("prefill/f16/neox/out/forward") == 2

    # Each worker has the context of its own device, made once and kept.
    with distributed.Client(cluster.address, set_as_default=False) as client:
        kept = client.run(lambda: [d.index for d in __import__("clrope.call.runtime").call.runtime.runtimes.own])
        assert kept == {names[f"on {d.platform}"]: [d.index] for d in two}
        from clrope.interop.dask import rope

        x = rng.uniform(-1, 1, (2, 40, 4, 32)).astype(np.float16)
        config = clrope.RopeConfig("neox")
        y = rope(da.from_array(x, chunks=(1, 5, 2, 32)), 1000, config)
        got = client.compute(y).result(timeout=600)
        assert got.tobytes() == clrope.rope(x, 1000, config).tobytes()


def test_a_wrong_worker_is_named(cluster, one, call, tmp_path):
    cluster.add("right", one.index)
    cluster.add("wrong", one.index, "--preload", Path(__file__).with_name("wrong_worker.py"))
    names = cluster.names()
    for words in (("verify", *SOME), ("bench", *TINY)):
        file = tmp_path / f"{words[0]}.json"
        done = call(words[0], "--scheduler", cluster.address, "--json", file, *words[1:])
        assert done.exit_code == 1, done.output
        found = read(file)
        workers = by_worker(found)
        assert workers[names["right"]]["status"] == "ok"
        assert found["bits"]["identical"] is False
        assert len(found["bits"]["different"]) == found["bits"]["compared"]
        assert all(names["wrong"] in line and names["right"] in line for line in found["bits"]["different"])
        assert f"bits differ: {found['bits']['different'][0]}" in done.stdout
        if words[0] == "verify":
            assert workers[names["wrong"]]["status"] == "wrong"
            assert "bits differ" in workers[names["wrong"]]["reason"]
            assert f"FAIL: worker {names['wrong']}" in done.stdout
            # Which of the two is right is known: NumPy agrees with it.
            digests = dict(p.rsplit(" ", 1) for p in found["bits"]["different"][0].rsplit(": ", 1)[1].split(", "))
            right = next(v for k, v in digests.items() if k.startswith(names["right"]))
            assert digests["NumPy"] == right


def test_a_killed_worker_is_replaced_by_one_with_such_a_device(cluster, one, call, tmp_path):
    cluster.add("stays", one.index)
    cluster.add("dies", one.index)
    names = cluster.names()
    killer = kill_in_the_middle(cluster, names["dies"], cluster.workers["dies"].pid)
    file = tmp_path / "verify.json"
    done = call("verify", "--scheduler", cluster.address, "--json", file)
    killer.join()
    assert done.exit_code == 0, done.output
    found = read(file)
    assert [w["worker"] for w in found["workers"]] == [names["stays"]] * 2
    assert [w["status"] for w in found["workers"]] == ["ok", "ok"]
    reasons = [w["reason"] for w in found["workers"] if w["reason"]]
    assert len(reasons) == 1
    assert names["dies"] in reasons[0]
    assert f"worker {names['dies']}" in done.stderr
    assert len(found["results"]) == 2


def test_a_nanny_brings_the_worker_back(cluster, one, call, tmp_path):
    cluster.add("kept", one.index, nanny=True)
    before = cluster.names()["kept"]
    with distributed.Client(cluster.address, set_as_default=False) as client:
        (pid,) = client.run(os.getpid).values()
    assert pid in children(cluster.workers["kept"].pid)
    killer = kill_in_the_middle(cluster, before, pid)
    file = tmp_path / "verify.json"
    done = call("verify", "--scheduler", cluster.address, "--json", file)
    killer.join()
    assert done.exit_code == 0, done.output
    (worker,) = read(file)["workers"]
    assert worker["status"] == "ok"
    assert worker["worker"] != before
    assert before in worker["reason"]


def test_a_killed_worker_without_another_is_missing(cluster, two, call, tmp_path):
    stays, dies = two
    cluster.add("stays", stays.index)
    cluster.add("dies", dies.index)
    names = cluster.names()
    killer = kill_in_the_middle(cluster, names["dies"], cluster.workers["dies"].pid)
    file = tmp_path / "verify.json"
    done = call("verify", "--scheduler", cluster.address, "--json", file)
    killer.join()
    assert done.exit_code == 1, done.output
    found = read(file)
    workers = by_worker(found)
    assert workers[names["stays"]]["status"] == "ok"
    assert {k: workers[names["dies"]][k] for k in ("device", "platform", "status")} == {
        "device": dies.name, "platform": dies.platform, "status": "missing",
    }  # fmt: skip
    assert "no other one has such a device" in workers[names["dies"]]["reason"]
    assert [r["worker"] for r in found["results"]] == [names["stays"]]
    assert found["bits"] is None
    assert f"FAIL: worker {names['dies']}" in done.stdout


def test_a_worker_whose_device_is_not_there(cluster, one, call, tmp_path):
    cluster.add("right", one.index)
    cluster.add("misled", "no-such-device")
    names = cluster.names()
    file = tmp_path / "verify.json"
    done = call("verify", "--scheduler", cluster.address, *SOME, "--json", file)
    assert done.exit_code == 1, done.output
    workers = by_worker(read(file))
    assert workers[names["right"]]["status"] == "ok"
    assert workers[names["misled"]]["status"] == "error"
    assert "CLROPE_DEVICE='no-such-device'" in workers[names["misled"]]["reason"]


def test_the_scheduler_ends_in_the_middle(cluster, one, call, tmp_path):
    cluster.add("worker", one.index)
    names = cluster.names()
    killer = kill_in_the_middle(cluster, names["worker"], cluster.scheduler.pid)
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        done = call("verify", "--scheduler", cluster.address, "--json", tmp_path / "verify.json")
    killer.join()
    assert done.exit_code == 2, done.output
    assert f"--scheduler: {cluster.address} ended before a device had a result" in done.stderr


def test_ctrl_c_keeps_what_has_come(cluster, one, tmp_path):
    cluster.add("first", one.index)
    cluster.add("second", one.index, "--preload", Path(__file__).with_name("waiting_worker.py"))
    names = cluster.names()
    file = tmp_path / "verify.json"
    words = ["verify", "--scheduler", cluster.address, *SOME, "--json", file]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "clrope", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=Path(__file__).parents[2],
    ) as command:  # fmt: skip
        said = []
        for line in command.stderr:
            said.append(line)
            if line.rstrip().endswith(": ok"):
                command.send_signal(signal.SIGINT)
        assert command.wait(600) == 130, said
    assert said[-1] == "clrope: interrupted\n"
    found = read(file)
    status = {w["worker"]: (w["status"], w["reason"]) for w in found["workers"]}
    assert status == {names["first"]: ("ok", ""), names["second"]: ("missing", "interrupted before its end")}
    assert [r["worker"] for r in found["results"]] == [names["first"]]


def test_no_workers_and_no_scheduler(cluster, call):
    done = call("verify", "--scheduler", cluster.address)
    assert done.exit_code == 2
    assert f"--scheduler: {cluster.address} has no workers" in done.stderr
    cluster.end()
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        for words in (("verify",), ("bench", "--tiny")):
            done = call(*words, "--scheduler", cluster.address)
            assert done.exit_code == 2
            assert f"--scheduler: {cluster.address} cannot be reached" in done.stderr
    done = call("verify", "--scheduler", "somewhere")
    assert done.exit_code == 2
    assert "--scheduler: somewhere cannot be reached" in done.stderr


def test_a_caller_with_an_event_loop(cluster):
    """As in a notebook."""

    async def connected():
        with connect(cluster.address) as client:
            return client.scheduler_info()["address"]

    assert asyncio.run(connected()) == cluster.address


@pytest.mark.one_in(4)
@pytest.mark.parametrize("address", ["zzz://x:1", "foo:bar", "", "tls://127.0.0.1:1"])
def test_an_address_that_cannot_be_used_is_one_line(address):
    """In a process of its own: a client that was half made would print a traceback at its end, or never end."""
    words = [sys.executable, "-m", "clrope", "verify", "--scheduler", address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("seed ")]
    assert line.startswith(f"clrope: --scheduler: {address} cannot be reached (")
