"""Discovery of the devices that are really here, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Script = Callable[..., dict[str, Any]]


def test_import_starts_nothing(script: Script) -> None:
    answer = script("show(cl='pyopencl' in sys.modules, jobs=jobs)")
    assert answer == {"cl": False, "jobs": []}


@pytest.mark.one_in(4)
def test_a_healthy_device_and_what_is_known_of_it(script: Script, warm: Path) -> None:
    got = script("show(devices=listing(), chosen=D.device().index, again=D.device('auto').index)", warm)
    assert got["chosen"] == got["again"]
    chosen = next(d for d in got["devices"] if d["index"] == got["chosen"])
    assert chosen["health"]["status"] == "ok"
    rate = chosen["health"]["copy_gbs"]
    assert rate is None or rate > 0, "none where memory was short"
    assert chosen["platform"] != "Oclgrind"
    assert chosen["kind"] in ("cpu", "gpu", "accelerator")
    assert chosen["extensions"]
    assert chosen["opencl_version"].startswith("OpenCL ")
    for name in ("compute_units", "local_mem", "global_mem", "max_alloc", "max_work_group_size"):
        assert chosen[name] > 0
    assert chosen["preferred_widths"]["float"] >= 1
    for name in ("loader", "icd"):
        assert os.path.exists(chosen[name]), name
    indices = [d["index"] for d in got["devices"] if d["index"] != "-"]
    assert indices == sorted(set(indices))


@pytest.mark.one_in(8)
def test_the_second_process_probes_nothing(script: Script, warm: Path) -> None:
    script("listing(); show()", warm)
    assert script("listing(); show(jobs=jobs)", warm)["jobs"] == []
    got = script("listing(); D.devices(); n = len(jobs); D.devices(refresh=True); show(n=n, jobs=jobs)", warm)
    assert got["n"] == 0
    assert "enumerate" in got["jobs"]
    assert "probe" in got["jobs"]


def test_the_environment_is_as_it_was(script: Script, warm: Path) -> None:
    got = script(
        "import pyopencl; before = dict(os.environ); listing(); "
        "show(same=before == dict(os.environ))", warm,
    )  # fmt: skip
    assert got["same"]


def test_queues(script: Script, warm: Path) -> None:
    got = script(
        """
import threading
import numpy as np
import pyopencl as cl
info = D.device()
queues = []
threads = [threading.Thread(target=lambda: queues.append(R.queue_for(info))) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
queue = R.queue_for(info)
x = np.arange(10, dtype=np.int32); y = np.zeros_like(x)
buffer = cl.Buffer(R.context_for(info), cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
cl.enqueue_copy(queue, y, buffer)
own = cl.Context([info.cl_device]); own_queue = cl.CommandQueue(own)
show(
    one=all(q is queue for q in queues), n=len(queues), copied=bool((x == y).all()),
    in_order=not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE,
    context=R.context_for(info) == queue.context,
    own_queue=R.queue_for(own_queue) is own_queue, own=R.context_for(own) is own,
    own_context=R.context_for(own_queue) == own, in_own=R.queue_for(own).context == own,
    twice=R.queue_for(own) is R.queue_for(own),
    infos=[D.device(o) == info for o in (info, info.cl_device, own, own_queue)],
)
""",
        warm,
    )
    assert got.pop("n") == 8
    assert got.pop("infos") == [True] * 4
    assert all(got.values()), got


def test_a_callers_queue_needs_no_discovery(script: Script, warm: Path) -> None:
    text = """
import pyopencl as cl
queue = cl.CommandQueue(cl.Context([next(d for p in cl.get_platforms() for d in p.get_devices())]))
info = D.device(queue)
show(jobs=jobs, index=info.index, same=info.cl_device == queue.device, queue=R.queue_for(queue) is queue)
"""
    got = script(text, warm)
    assert got["same"]
    assert got["queue"]
    assert got["index"] == "0:0"


def test_a_forked_child_gets_an_error(script: Script, warm: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    text = """
import warnings; warnings.simplefilter("ignore")
info = D.device()
read, write = os.pipe()
pid = os.fork()
if not pid:
    try:
        R.queue_for(info)
        os.write(write, b"worked")
    except Exception as error:
        os.write(write, f"{type(error).__name__}: {error}".encode())
    os._exit(0)
os.waitpid(pid, 0)
show(said=os.read(read, 1000).decode())
"""
    said = script(text, warm)["said"]
    assert said.startswith("DeviceError")
    assert "spawn" in said


@pytest.mark.one_in(16)
def test_two_processes_at_once(script: Script, cache: Path) -> None:
    text = """
import subprocess
me = [sys.executable, "-c", "import clrope; print(len([d for d in clrope.devices() if d.health.ok]))"]
both = [subprocess.Popen(me, stdout=subprocess.PIPE, text=True) for _ in range(2)]
show(n=[int(p.communicate()[0]) for p in both])
"""
    got = script(text)
    assert got["n"][0] == got["n"][1] >= 1


@pytest.mark.one_in(8)
def test_a_spoiled_cache_is_no_error(script: Script, warm: Path, tmp_path: Path) -> None:
    script("listing(); show()", warm)
    for path in warm.glob("*.json"):
        (tmp_path / "spoiled").mkdir(exist_ok=True)
        (tmp_path / "spoiled" / path.name).write_text(path.read_text()[:-20])
    got = script("show(devices=listing(), jobs=jobs)", tmp_path / "spoiled")
    assert any(d["health"]["status"] == "ok" for d in got["devices"])
    assert "probe" in got["jobs"]
