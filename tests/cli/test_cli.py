"""The commands: what they print where, and how they end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import clrope
from clrope import DeviceInfo
from clrope.cli.main import app
from clrope.device.info import Health, absent
from clrope.io.arrays import read_arrays, read_metadata, write_arrays
from clrope.program.source import kernel_folder
from clrope.suite import runner

DATA = Path(__file__).parent.parent / "data"
ROOT = Path(__file__).parent.parent.parent
FEW = "type=f16 ne_a=[128,32,2,1] fs=1.0 ef=0.0 v=0"

Call = Callable[..., Any]


@pytest.fixture
def call() -> Call:
    """Run a command line in this process; returns exit_code, stdout, stderr."""

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)

    return run


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("ROPE", "VALUES"))]


def process(*words: str, code: str = "from clrope.cli.main import main; main()", **env: str) -> Any:
    """Run a command line in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": path, **env},
    )  # fmt: skip


def test_version_and_help(call: Call) -> None:
    assert call("--version").stdout == f"clrope {clrope.__version__}\n"
    text = call("--help").stdout
    for command in ("devices", "verify", "run", "config", "explain"):
        assert command in text
        assert call(command, "--help").exit_code == 0
    assert call("no-such-command").exit_code == 2
    module = subprocess.run(
        [sys.executable, "-m", "clrope", "--version"], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert module.stdout == f"clrope {clrope.__version__}\n"


def test_starting_up_loads_neither_opencl_nor_rich() -> None:
    code = (
        "import sys, clrope.cli.main; "
        "print([m for m in ('pyopencl', 'rich', 'torch', 'matplotlib', 'clrope.suite') if m in sys.modules])"
    )
    done = process(code=code)
    assert done.stdout.strip() == "[]", done.stderr


# devices


def test_devices_lists_all_with_reasons(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = absent("Some Platform", "Broken GPU", Health("unhealthy", "build", "nothing builds", "another driver"))
    # `clrope.device` is the function; the module goes by the same name.
    room = sys.modules["clrope.device"]
    found = clrope.devices()
    monkeypatch.setattr(room, "devices", lambda refresh=False: [*found, broken])
    shown = call("devices")
    assert shown.exit_code == 0
    for device in found:
        assert device.name in shown.stdout
    assert "Broken GPU [Some Platform, -]: nothing builds\n  what to do: another driver\n" in shown.stdout
    data = json.loads(call("devices", "--json").stdout)
    assert data["schema"] == "clrope.devices/1"
    assert [d["name"] for d in data["devices"]] == [*(d.name for d in found), "Broken GPU"]
    assert data["devices"][-1]["health"]["reason"] == "nothing builds"
    monkeypatch.setattr(room, "devices", lambda refresh=False: [broken])
    assert call("devices").exit_code == 1
    monkeypatch.setattr(room, "devices", lambda refresh=False: [])
    assert "pip install pocl-binary-distribution" in call("devices").stdout


# verify


def test_verify_prints_a_line_for_each_case_and_device(call: Call, devices: tuple[DeviceInfo, ...]) -> None:
    done = call("verify", "--filter", FEW)
    assert done.exit_code == 0, done.stdout
    lines = lines_of(done.stdout)
    assert len(lines) == 4 * len(devices)
    assert all(line.endswith(": OK") for line in lines)
    grid = (ROOT / "clrope" / "suite" / "seed_grid.txt").read_text(encoding="utf-8")
    assert all(line.split(" # ")[0] in grid for line in lines)
    assert done.stdout.count("4/4") == len(devices) + 1
    assert f"bit-identical: 4/4 cases between {', '.join(runner.short_name(d) for d in devices)}, NumPy" in done.stdout
    assert done.stdout.startswith("seed ")
    assert "ROPE" not in done.stderr


def test_verify_repeats_by_seed_and_writes_json(call: Call, device: DeviceInfo, tmp_path: Path) -> None:
    reports = []
    for name in ("one.json", "two.json"):
        done = call("verify", "--device", device.index, "--filter", FEW, "--seed", 11, "--json", tmp_path / name)
        assert done.exit_code == 0
        assert len(lines_of(done.stdout)) == 4
        reports.append(json.loads((tmp_path / name).read_text(encoding="utf-8")))
    first, second = reports
    assert first["seed"] == 11
    assert first["schema"] == "clrope.verify/1"
    assert [r["digest"] for r in first["results"]] == [r["digest"] for r in second["results"]]
    assert all(0 < r["nmse"] < r["limit"] == 6e-8 for r in first["results"])
    only = call("verify", "--device", device.index, "--filter", FEW, "--seed", 11, "--json", "-")
    assert [r["digest"] for r in json.loads(only.stdout)["results"]] == [r["digest"] for r in first["results"]]
    bad = call("verify", "--device", device.index, "--filter", FEW, "--json", tmp_path / "no" / "such.json")
    assert bad.exit_code == 2
    assert "cannot be written" in bad.stderr


def test_verify_several_suites(call: Call, device: DeviceInfo) -> None:
    done = call(
        "verify", "--device", device.index, "--suite", "types", "--suite", "seed", "--filter", "type=bf16 still"
    )
    assert done.exit_code == 0
    assert len(lines_of(done.stdout)) == 4
    assert "4/4" in done.stdout
    bad = call("verify", "--suite", "sead")
    assert bad.exit_code == 2
    assert bad.stderr.startswith("clrope: suite: got 'sead', allowed are seed")


def test_verify_ends_with_1_for_a_device_that_cannot_be_used(call: Call, device: DeviceInfo) -> None:
    done = call("verify", "--device", device.index, "--device", "nonesuch", "--filter", FEW)
    assert done.exit_code == 1
    assert len(lines_of(done.stdout)) == 4
    assert "FAIL: device nonesuch: device 'nonesuch': no OpenCL device matches" in done.stdout
    assert call("verify", "--device", device.index, "--filter", "nothing like it").exit_code == 1


@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        # Rotated the other way.
        ("phase.clh", "*sine = (quadrant & 2u) ? -sn : sn;", "*sine = (quadrant & 2u) ? sn : -sn;", ": FAIL, NMSE 1."),
        # A coefficient with a digit less: right by its error, but not in its bits.
        ("phase.clh", "-19.739208f", "-19.73921f", "FAIL: 4 cases differ in their bits"),
        # It does not build.
        ("storage.clh", "//", "no OpenCL C //", "kernel build failed on "),
    ],
)
def test_verify_ends_with_1_for_a_wrong_kernel(
    file: str, right: str, wrong: str, message: str, device: DeviceInfo, tmp_path: Path
) -> None:
    folder = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), folder)
    text = (folder / file).read_text(encoding="utf-8")
    assert right in text
    (folder / file).write_text(text.replace(right, wrong, 1), encoding="utf-8")
    code = (
        "import pathlib; from clrope.program import source; "
        f"source.kernel_folder = lambda: pathlib.Path({str(folder)!r}); from clrope.cli.main import main; main()"
    )
    kind = "f32" if "coefficient" in message or "bits" in message else "f16"
    words = (
        "verify",
        "--device",
        device.index,
        "--filter",
        FEW.replace("f16", kind),
        "--json",
        str(tmp_path / "r.json"),
    )
    done = process(*words, code=code, PYOPENCL_NO_CACHE="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert not report["ok"]
    assert len(report["results"]) == 4


# run


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Path, Path]:
    """A file of q and k with what a model made of them, and the model's config.json."""
    source = DATA / "transformers_llama.safetensors"
    config = tmp_path / "config.json"
    config.write_text(read_metadata(source)["config"], encoding="utf-8")
    return source, config


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("transformers_*.safetensors")))
def test_run_makes_of_a_models_tensors_what_the_model_made(name: str, call: Call, tmp_path: Path) -> None:
    source, output, config = DATA / name, tmp_path / "out.safetensors", tmp_path / "config.json"
    config.write_text(read_metadata(source)["config"], encoding="utf-8")
    done = call(
        "run", source, "-o", output, "--hf", config, "--tensor", "q", "--tensor", "k", "--positions-tensor",
        "positions", "--check",
    )  # fmt: skip
    assert done.exit_code == 0, done.stdout + done.stderr
    assert done.stdout.count(" OK") == 2
    theirs, ours = read_arrays(source), read_arrays(output)
    assert list(ours) == [n for n in theirs if n in ("q", "k")]
    # transformers computes angles in float32, which shows where positions are large (batch 1 of some files).
    near, far = {"float32": (1e-12, 3e-6), "float16": (2e-7, 2e-7), "bfloat16": (6e-6, 6e-6)}[str(theirs["q"].dtype)]
    for tensor in ("q", "k"):
        assert ours[tensor].dtype == theirs[tensor].dtype
        want = theirs[f"{tensor}_rot"].astype(np.float64)
        for batch, limit in ((slice(0, 1), near), (slice(None), far)):
            assert clrope.compare(ours[tensor][batch], want[batch]).nmse < limit
        assert clrope.compare(ours[tensor], theirs[tensor].astype(np.float64)).nmse > 1e-3


def test_run_reports_as_json(call: Call, llama: tuple[Path, Path], tmp_path: Path, device: DeviceInfo) -> None:
    source, config = llama
    words = [
        "run",
        source,
        "-o",
        tmp_path / "o.npz",
        "--hf",
        config,
        "--tensor",
        "q",
        "--device",
        device.index,
        "--json",
    ]
    data = json.loads(call(*words).stdout)
    assert (data["schema"], data["ok"], data["forward"]) == ("clrope.run/1", True, True)
    assert data["device"]["key"] == device.key
    assert data["config"]["mode"] == "neox"
    (tensor,) = data["tensors"]
    assert (tensor["tensor"], tensor["nmse"], tensor["ok"]) == ("q", None, None)
    assert tensor["seconds"] > 0
    (tensor,) = json.loads(call(*words, "--check").stdout)["tensors"]
    assert tensor["ok"] is True
    assert 0 < tensor["nmse"] <= tensor["limit"]


def test_run_check_fails_with_1(call: Call, llama: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    from clrope import reference

    real = reference.rope
    monkeypatch.setattr(reference, "rope", lambda *a, **k: real(*a, **k) * 1.01)
    source, config = llama
    words = ["run", source, "-o", tmp_path / "o.npz", "--hf", config, "--tensor", "q", "--check"]
    done = call(*words)
    assert done.exit_code == 1
    assert "FAIL: q: NMSE 9.8" in done.stdout
    data = json.loads(call(*words, "--json").stdout)
    assert data["ok"] is False


def test_run_positions_in_every_form_and_back(call: Call, tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 5, 3, 8)).astype(np.float32)
    source = tmp_path / "x.npy"
    write_arrays(source, {"x": x})
    write_arrays(tmp_path / "p.npz", {"ids": np.arange(7, 12), "other": np.zeros(3)})
    write_arrays(tmp_path / "p.npy", {"x": np.arange(7, 12, dtype=np.uint8)})
    want = clrope.reference.rope(x, 7, clrope.RopeConfig("normal", freq_base=500.0))
    forms = ["7", "7:12", "7,8,9,10,11", f"{tmp_path / 'p.npz'}:ids", tmp_path / "p.npy"]
    for form in forms:
        output = tmp_path / "y.npy"
        done = call("run", source, "-o", output, "--mode", "0", "--freq-base", 500, "--positions", form)
        assert done.exit_code == 0, done.stderr
        got = read_arrays(output)["x"]
        assert clrope.compare(got, want).nmse < 1e-12, form
        output.unlink()
    output = tmp_path / "y.npz"
    call("run", source, "-o", output, "--mode", "normal", "--freq-base", 500, "--positions", 7)
    back = tmp_path / "z.npy"
    done = call("run", output, "-o", back, "--mode", "normal", "--freq-base", 500, "--positions", 7, "--backward")
    assert done.exit_code == 0
    assert clrope.compare(read_arrays(back)["x"], x.astype(np.float64)).nmse < 1e-12


def test_run_layout_fields_and_config_file(call: Call, tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (3, 2, 5, 16)).astype(np.float16)
    write_arrays(tmp_path / "x.npz", {"a": x, "b": np.arange(4), "c": x[0, 0, 0]})
    fields = clrope.RopeConfig(
        "mrope", n_dims=12, freq_base=700.0, freq_scale=0.5, ext_factor=0.5, attn_factor=1.25, beta_fast=16.0,
        beta_slow=2.0, n_ctx_orig=128, sections=(2, 1, 3), n_offs=2, freq_factors=(1, 2, 3, 4, 5, 6), angles="ggml",
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields.to_dict() | {"n_offs": 0}), encoding="utf-8")
    write_arrays(tmp_path / "factors.npy", {"x": np.arange(1.0, 7.0)})
    flags = (
        "--mode mrope --n-dims 12 --freq-base 700 --freq-scale 0.5 --ext-factor 0.5 --attn-factor 1.25 --beta-fast 16 "
        f"--beta-slow 2 --n-ctx-orig 128 --sections 2,1,3 --freq-factors {tmp_path / 'factors.npy'} --angles ggml"
    ).split()
    want = clrope.reference.rope(x, 9, fields, layout="bnsd")
    for source in (flags, ["--config", tmp_path / "config.json"]):
        output = tmp_path / "y.npz"
        words = ["--n-offs", 2, "--layout", "bnsd", "--positions", 9, "--check"]
        done = call("run", tmp_path / "x.npz", "-o", output, *source, *words, "--keep")
        assert done.exit_code == 0, done.stdout + done.stderr
        got = read_arrays(output)
        assert list(got) == ["a", "b", "c"]
        assert clrope.compare(got["a"], want).nmse < 1e-7
        assert (got["b"] == np.arange(4)).all()
        call("run", tmp_path / "x.npz", "-o", output, *source, *words)
        assert list(read_arrays(output)) == ["a"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "--mode: not given"),
        (["--mode", "gptj"], 2, "mode: got 'gptj', allowed are .* is 'normal' here"),
        (["--mode", "3"], 2, "mode: got 3"),
        (["--mode", "neox", "--n-dims", "3"], 2, "n_dims: got 3, it must be even"),
        (["--mode", "neox", "--n-dims", "66"], 2, "tensor 'k' of .*n_dims: got 66, at most head_dim = 64"),
        (["--mode", "neox", "--preset", "llama-3.1-8b", "--gguf", "x.gguf"], 2, "given together with --gguf"),
        (["--mode", "neox", "--seq-len", "5"], 2, "--seq-len: has a meaning with --gguf and --hf only"),
        (["--preset", "lama"], 2, "preset: got 'lama'"),
        (["--config", "nowhere.json"], 2, "nowhere.json: cannot be read"),
        (["--mode", "neox", "--sections", "1,x"], 2, "sections: got '1,x'"),
        (["--mode", "neox", "--tensor", "v"], 2, "--tensor: .* has no 'v'; there are positions, k"),
        (["--mode", "neox", "--positions", "5:5"], 2, "--positions: got '5:5'.* must not be empty"),
        (["--mode", "neox", "--positions", "0,1,2"], 2, r"tensor 'k' of .*positions: got shape \[3\]"),
        (["--mode", "neox", "--positions", "7", "--positions-tensor", "positions"], 2, "one of them is needed"),
        (["--mode", "neox", "--positions-tensor", "nowhere"], 2, "--positions-tensor: .* has no 'nowhere'"),
        (["--mode", "neox", "--positions", "{source}"], 2, "holds 5 arrays, name one as FILE:NAME"),
        (["--mode", "neox", "--positions", "nowhere.npy"], 2, "nowhere.npy: cannot be read"),
        (["--mode", "neox", "--positions-tensor", "q"], 2, "positions: got dtype float32"),
        (["--mode", "neox", "--layout", "abcd"], 2, "layout: got 'abcd'"),
        (["--mode", "neox", "--device", "nonesuch"], 1, "device 'nonesuch': no OpenCL device matches"),
        (["--mode", "neox", "-o", "out.txt"], 2, "out.txt: suffix '.txt' is not one of"),
        (["--mode", "neox", "--tensor", "q", "--tensor", "k", "-o", "{tmp}/o.npy"], 2, "holds one array, got 2"),
        (["--no-such-option"], 2, "No such option"),
    ],
)
def test_run_refuses_in_one_message(
    words: list[str], code: int, message: str, call: Call, llama: tuple[Path, Path], tmp_path: Path
) -> None:
    source, _ = llama
    output = tmp_path / "o.safetensors"
    filled = [w.format(source=source, tmp=tmp_path) for w in words]
    done = call("run", source, "-o", output, *filled)
    assert done.exit_code == code
    assert re.search(message, done.stderr), done.stderr
    assert done.stdout == ""
    assert not output.exists()
    assert not list(tmp_path.glob("*.np*"))


def test_run_refuses_an_input_that_is_none(call: Call, tmp_path: Path) -> None:
    done = call("run", tmp_path / "no.npy", "-o", tmp_path / "o.npy", "--mode", "neox")
    assert done.exit_code == 2
    assert "no.npy: cannot be read" in done.stderr
    write_arrays(tmp_path / "flat.npz", {"a": np.zeros(4, np.float32), "b": np.zeros((2, 2, 2, 2), np.int32)})
    done = call("run", tmp_path / "flat.npz", "-o", tmp_path / "o.npy", "--mode", "neox")
    assert done.exit_code == 2
    assert "holds no floating tensor of rank 3 or 4; there are a, b" in done.stderr


# config


def test_config_of_every_kind_of_source(call: Call, llama: tuple[Path, Path], tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"mode": 0, "n_dims": 8, "freq_base": 100.0}), encoding="utf-8")
    for source, kind, pairs in (
        ("llama-3.1-8b", "preset", 64),
        (llama[1], "Hugging Face", 32),
        (llama[1].parent, "Hugging Face", 32),
        (own, "fields of RopeConfig", 4),
    ):
        data = json.loads(call("config", source, "--json").stdout)
        assert (data["schema"], data["kind"], len(data["pairs"])) == ("clrope.config/1", kind, pairs)
        shown = call("config", source)
        assert shown.exit_code == 0
        assert f"({kind})" in shown.stdout
        assert len([line for line in shown.stdout.splitlines() if line.strip()[:1].isdigit()]) == pairs
    assert [p["wavelength"] for p in data["pairs"]] == pytest.approx([2 * np.pi * 100 ** (i / 4) for i in range(4)])
    assert [(p["first"], p["second"]) for p in data["pairs"]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert data["magnitude"] == 1.0
    assert clrope.RopeConfig.from_dict(data["config"]) == clrope.RopeConfig("normal", n_dims=8, freq_base=100.0)


def test_config_of_a_gguf_file(call: Call, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    writer.add_rope_dimension_count(64)
    writer.add_rope_freq_base(5e5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = json.loads(call("config", path, "--json").stdout)
    assert data["kind"] == "GGUF"
    assert (data["config"]["mode"], data["config"]["n_dims"], data["config"]["freq_base"]) == ("normal", 64, 5e5)


def test_config_refuses_by_name(call: Call, tmp_path: Path) -> None:
    open_ended = tmp_path / "open.json"
    open_ended.write_text('{"mode": "neox"}', encoding="utf-8")
    for words, message in (
        ([open_ended], "--head-dim: needed"),
        (["no-such-preset"], "preset: got 'no-such-preset'"),
        ([tmp_path / "none.json"], "none.json: cannot be read"),
        (["llama-3.1-8b", "--mode", "gptj"], "mode: got 'gptj'"),
    ):
        done = call("config", *words)
        assert done.exit_code == 2
        assert message in done.stderr
    assert call("config", open_ended, "--head-dim", 16).exit_code == 0
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    assert "an object of field names is needed" in call("config", tmp_path / "list.json").stderr
    (tmp_path / "text.json").write_text("{", encoding="utf-8")
    assert "text.json: not JSON" in call("config", tmp_path / "text.json").stderr


def test_config_plots_or_says_what_is_missing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plot.png"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        patch.setitem(sys.modules, "matplotlib.figure", None)
        done = call("config", "llama-3.1-8b", "--plot", file)
    assert done.exit_code == 2
    assert "matplotlib is not installed; `pip install matplotlib`" in done.stderr
    assert not file.exists()
    pytest.importorskip("matplotlib")
    done = call("config", "llama-3.1-8b", "--plot", file)
    assert done.exit_code == 0, done.stderr
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {file}" in done.stdout
    assert "cannot be drawn" in call("config", "llama-3.1-8b", "--plot", tmp_path / "plot.nonesuch").stderr


# explain


def test_explain_says_what_would_be_launched(call: Call, device: DeviceInfo) -> None:
    words = ["explain", "--mode", "mrope", "--sections", "8,8,8", "--shape", "2,6,3,64", "--type", "f16"]
    data = json.loads(call(*words, "--device", device.index, "--json").stdout)
    assert data["schema"] == "clrope.explain/1"
    assert data["device"] == str(device)
    assert data["launches"] >= 1
    for kernel in data["kernels"]:
        assert Path(kernel["source"]).is_file()
        assert kernel["kernel"] in Path(kernel["source"]).read_text(encoding="utf-8") + "rope_rotate_neox"
        assert "-DSTORAGE_F16" in kernel["options"]
    assert sum(k["launches"] for k in data["kernels"]) == data["launches"]
    shown = call(*words, "--device", device.index)
    assert shown.exit_code == 0
    assert data["kernels"][0]["source"] in shown.stdout
    for bad, message in (("2,6", "--shape: got '2,6'"), ("a,b,c,d", "--shape: got 'a,b,c,d'")):
        done = call(*words[:-4], "--shape", bad)
        assert done.exit_code == 2
        assert message in done.stderr
    assert "--type: got 'q4'" in call(*words[:-1], "q4").stderr
