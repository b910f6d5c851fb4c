"""The artifact of a run: its checksums, its samples, its commands, and nothing private."""

import getpass
import json
import lzma
import os
import shutil
import socket
import subprocess

import pytest

from clrope import ConfigError
from clrope.benchmark import results
from clrope.benchmark.artifact import check_folder, installed_packages, write_artifact
from clrope.benchmark.environment import machine_state
from clrope.benchmark.measure import Options, run
from clrope.benchmark.workloads import select
from clrope.errors import RopeError

COMMAND = ["clrope", "bench", "--workload", "a b", "--kernel", "kernels/mine.cl"]


@pytest.fixture(scope="module")
def artifact(device, seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifact") / "made"
    options = Options(rounds=1, calls=1, latency_calls=2, tiny=True, with_peers=False, seed=seed, samples=True)
    result = run(select(["decode-1/f32/neox/out/forward"]), [device], options)
    made = write_artifact(result, str(folder), COMMAND, {"mine.cl": "__kernel void mine() {}\n"})
    return folder, result, made


@pytest.mark.one_in(8)
def test_the_checksums_are_those_that_sha256sum_takes(artifact):
    folder, _, made = artifact
    program = shutil.which("sha256sum")
    if program is None:
        pytest.skip("sha256sum is not installed")
    done = subprocess.run([program, "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(made) - 1
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert there == {line.partition(":")[0] for line in done.stdout.splitlines()} | {"SHA256SUMS"}
    (folder / "results.json").write_text((folder / "results.json").read_text() + " ")
    changed = subprocess.run([program, "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False)
    assert changed.returncode == 1


def test_every_sample_is_there(artifact):
    folder, result, _ = artifact
    (samples,) = json.loads(lzma.decompress((folder / "samples.json.xz").read_bytes()))
    assert samples == json.loads(json.dumps(result))
    (figures,) = results.read_all(folder / "results.json")
    for full, small in zip(result["workloads"], figures["workloads"], strict=True):
        for one, other in zip(full["entries"], small["entries"], strict=True):
            assert len(one["wall"]["samples"]) == one["wall"]["n"]
            want = json.loads(json.dumps(one))
            for clock in ("wall", "cpu", "event"):
                want.get(clock, {}).pop("samples", None)
            assert other == want


def test_what_a_reader_needs_is_in_the_text(artifact, device):
    folder, _, _ = artifact
    text = (folder / "README.md").read_text()
    for heading in ("Contents", "Build", "Run", "Read", "Hardware", "Software", "State of the machine"):
        assert f"\n## {heading}\n" in text
    assert "clrope bench --workload 'a b' --kernel kernels/mine.cl --json new-results.json" in text
    assert device.driver_version in text
    assert "| numpy | " in text
    assert "governors" in text
    script = (folder / "run.sh").read_text()
    assert "--workload 'a b'" in script
    assert os.access(folder / "run.sh", os.X_OK)
    assert subprocess.run(["sh", "-n", str(folder / "run.sh")], check=False).returncode == 0
    requirements = (folder / "requirements.txt").read_text().splitlines()
    assert any(line.startswith("pyopencl==") for line in requirements)
    assert not any("+" in line for line in requirements)


def test_nothing_private_is_told(artifact):
    folder, _, made = artifact
    host, user = socket.gethostname(), getpass.getuser()
    for path in made:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
        assert os.path.expanduser("~") + "/" not in text, path.name
        assert os.getcwd() not in text, path.name
        assert str(folder) not in text, path.name
        assert host not in text or len(host) < 4, path.name
        assert user not in text or len(user) < 5, path.name


def test_folders_that_are_refused(tmp_path):
    check_folder(str(tmp_path / "new"))
    check_folder(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_folder(str(tmp_path))
    with pytest.raises(ConfigError, match="exists and is no folder"):
        check_folder(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="x cannot be read"):
        check_folder("x" * 5000)


def test_a_folder_that_cannot_be_made(artifact, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RopeError, match="cannot be written"):
        write_artifact(artifact[1], str(tmp_path / "file" / "x"), COMMAND)


def test_packages_are_those_that_run():
    packages = installed_packages()
    assert {"clrope", "numpy", "pyopencl", "rich"} <= set(packages)
    assert not {"pytest", "ruff", "mypy", "mkdocs-material"} & set(packages)
    assert list(packages) == sorted(packages)


def test_the_state_of_a_machine(tmp_path):
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/devices/system/node/node0/cpulist": "0\n",
        "sys/devices/system/node/node1/cpulist": "1\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "proc/sys/vm/swappiness": "60\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = machine_state(tmp_path)
    assert found["governors"] == ["performance", "powersave"]
    assert found["boost"] is False
    assert found["smt"] is True
    assert found["numa_nodes"] == 2
    assert found["cpu_quota"] == 1.5
    assert found["swappiness"] == "60"
    assert found["clock_source"] is None
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir()
    (tmp_path / "sys/devices/system/cpu/cpufreq/boost").write_text("1\n")
    found = machine_state(tmp_path)
    assert found["cpu_quota"] is None
    assert found["boost"] is True
    assert set(machine_state(tmp_path / "empty").values()) == {None}
