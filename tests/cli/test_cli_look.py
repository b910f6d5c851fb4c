"""The commands that only look: help, devices, config, explain."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrope
from clrope import DeviceInfo
from clrope.device.info import Health, absent

Call = Callable[..., Any]


def test_version_and_help(call: Call, process: Call) -> None:
    assert call("--version").stdout == f"clrope {clrope.__version__}\n"
    text = call("--help").stdout
    for command in ("devices", "verify", "run", "config", "explain"):
        assert command in text
        assert call(command, "--help").exit_code == 0
    assert call("no-such-command").exit_code == 2
    module = process("--version", code="import runpy; runpy.run_module('clrope', run_name='__main__')")
    assert module.stdout == f"clrope {clrope.__version__}\n"


def test_starting_up_loads_neither_opencl_nor_rich(process: Call) -> None:
    code = (
        "import sys, clrope.cli.main; "
        "print([m for m in ('pyopencl', 'rich', 'torch', 'matplotlib', 'clrope.suite') if m in sys.modules])"
    )
    done = process(code=code)
    assert done.stdout.strip() == "[]", done.stderr


def test_devices_lists_all_with_reasons(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = absent("Some Platform", "Broken GPU", Health("unhealthy", "build", "nothing builds", "another driver"))
    import clrope.cli.devices as command

    found = clrope.devices()
    monkeypatch.setattr(command, "devices", lambda refresh=False: [*found, broken])
    shown = call("devices")
    assert shown.exit_code == 0
    for device in found:
        assert device.name in shown.stdout
    assert "Broken GPU [Some Platform, -]: nothing builds\n  what to do: another driver\n" in shown.stdout
    data = json.loads(call("devices", "--json").stdout)
    assert data["schema"] == "clrope.devices/1"
    assert [d["name"] for d in data["devices"]] == [*(d.name for d in found), "Broken GPU"]
    assert data["devices"][-1]["health"]["reason"] == "nothing builds"
    monkeypatch.setattr(command, "devices", lambda refresh=False: [broken])
    assert call("devices").exit_code == 2
    monkeypatch.setattr(command, "devices", lambda refresh=False: [])
    assert "pip install pocl-binary-distribution" in call("devices").stderr


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


def test_config_shows_the_axes_of_a_grid(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    fields = {"mode": "neox", "pair_axes": [0] * 8 + [1] * 4, "axis_bases": [1e4, 100.0], "coordinate_scale": 2}
    file.write_text(json.dumps(fields), encoding="utf-8")
    data = json.loads(call("config", file, "--json").stdout)
    assert [pair["axis"] for pair in data["pairs"]] == ["0"] * 8 + ["1"] * 4
    assert data["pairs"][8]["omega"] == 0.5
    assert clrope.RopeConfig.from_dict(data["config"]) == clrope.RopeConfig.from_dict(fields)
    assert "axis 0: 8 pairs, axis 1: 4 pairs" in call("config", file).stdout


def test_config_names_options_and_what_it_leaves_out(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e4}
    file.write_text(json.dumps({"model_type": "new", **sizes}), encoding="utf-8")
    for words in (("config", file), ("explain", "--hf", file, "--shape", "1,1,4,64")):
        assert "give --mode neox (rotate_half) or --mode normal (neighbouring pairs)" in call(*words).stderr
    file.write_text(json.dumps({"model_type": "gemma3_text", **sizes}), encoding="utf-8")
    assert "--layer-type: not given" in call("config", file).stderr
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512, "llama_4_scaling_beta": 0.1}
    file.write_text(json.dumps({"model_type": "ministral3", **sizes, "rope_scaling": scaling}), encoding="utf-8")
    note = "llama_4_scaling_beta: 0.1, which scales q by its position, not the angles"
    assert json.loads(call("config", file, "--json").stdout)["notes"] == [note]
    assert f"not in this: {note}" in call("config", file).stdout


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
        (["Qwen/Qwen2.5-7B"], "names on the Hugging Face Hub are not downloaded: give the path of"),
        ([tmp_path / "none.json"], "none.json: cannot be read"),
        (["llama-3.1-8b", "--mode", "gptj"], "mode: got 'gptj'"),
    ):
        done = call("config", *words)
        assert done.exit_code == 2
        assert message in done.stderr
    assert call("config", open_ended, "--head-dim", 16).exit_code == 0
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    assert "an object is needed" in call("config", tmp_path / "list.json").stderr
    (tmp_path / "text.json").write_text("{", encoding="utf-8")
    assert "text.json: not a JSON file" in call("config", tmp_path / "text.json").stderr


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


def test_explain_says_what_would_be_launched(call: Call, device: DeviceInfo) -> None:
    words = ["explain", "--mode", "mrope", "--sections", "8,8,8", "--shape", "2,6,3,64", "--type", "f16"]
    data = json.loads(call(*words, "--device", device.index, "--json").stdout)
    assert data["schema"] == "clrope.explain/1"
    assert data["device"] == str(device)
    assert data["launches"] >= 1
    for kernel in data["kernels"]:
        assert Path(kernel["source"]).is_file()
        assert kernel["kernel"] in Path(kernel["source"]).read_text(encoding="utf-8")
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
