"""`clrope run`: real files, every flag, every refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope import DeviceInfo
from clrope.io.files import read_arrays, read_metadata, write_arrays
from clrope.testing import bits

DATA = Path(__file__).parent.parent / "data"

Call = Callable[..., Any]


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


HARD = {
    "two halves": lambda rng: rng.standard_normal((1, 1, 1, 2)).astype(np.float16),
    "one pair of halves, often": lambda rng: np.full((1, 40, 60, 2), 0.8052, np.float16),
    "subnormal halves": lambda rng: (rng.standard_normal((1, 64, 4, 64)) * 1e-6).astype(np.float16),
    "halves about the least normal one": lambda rng: (rng.standard_normal((1, 64, 4, 64)) * 7e-5).astype(np.float16),
    "subnormal bfloat16": lambda rng: (rng.standard_normal((1, 16, 4, 64)) * 1e-39).astype(ml_dtypes.bfloat16),
    "subnormal float8": lambda rng: (rng.standard_normal((1, 16, 4, 64)) * 1e-5).astype(ml_dtypes.float8_e5m2),
    "two float8": lambda rng: rng.standard_normal((1, 1, 1, 2)).astype(ml_dtypes.float8_e4m3fn),
    "subnormal floats": lambda rng: (rng.standard_normal((1, 64, 2, 64)) * 1e-42).astype(np.float32),
    "the least floats": lambda rng: np.full((1, 8, 2, 64), 1e-45, np.float32),
    "large doubles": lambda rng: rng.standard_normal((1, 4, 2, 8)) * 1e200,
    "small doubles": lambda rng: rng.standard_normal((1, 4, 2, 8)) * 1e-200,
    "subnormal doubles": lambda rng: rng.standard_normal((1, 4, 2, 8)) * 1e-318,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", HARD)
def test_run_check_at_any_magnitude(
    kind: str, call: Call, tmp_path: Path, rng: np.random.Generator, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    import clrope.cli.run as module

    x = HARD[kind](rng)
    if x.dtype == np.float64 and not device.fp64:
        pytest.skip("the device has no fp64")
    write_arrays(tmp_path / "x.safetensors", {"x": x})
    words = ["run", tmp_path / "x.safetensors", "-o", tmp_path / "y.safetensors", "--mode", "neox", "--positions", 5]
    words += ["--check", "--device", device.index]
    done = call(*words)
    assert done.exit_code == 0, done.stdout
    assert json.loads(call(*words, "--json").stdout)["ok"] is True
    real = module.Rope

    class Wrong:
        """A rotation of which the result is replaced."""

        def __init__(self, config: clrope.RopeConfig, device: Any) -> None:
            self._op, self.config = real(config, device), config

        def plan(self, *given: Any, **rest: Any) -> Any:
            self.launches = 1
            self._plan = self._op.plan(*given, **rest)
            return self

        def run(self) -> np.ndarray:
            return np.asarray(replacements[0](self._plan.run()), dtype=x.dtype)

    monkeypatch.setattr(module, "Rope", Wrong)

    def one_off(y: np.ndarray) -> np.ndarray:
        off = y.copy()
        bits(off)[...] ^= 1
        return off

    replacements = [lambda y: x, lambda y: 0 * y, lambda y: -y, one_off, lambda y: np.full_like(y, np.nan)]
    while replacements:
        done = call(*words)
        assert done.exit_code == 1, done.stdout
        assert "FAIL: x: NMSE" in done.stdout
        del replacements[0]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16])
def test_run_check_sees_one_wrong_element(
    dtype: Any, call: Call, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    import clrope.cli.run as module

    x = rng.standard_normal((1, 256, 8, 128)).astype(dtype)
    write_arrays(tmp_path / "x.safetensors", {"x": x})
    real = module.Rope

    class OneMissing(real):  # type: ignore[misc, valid-type]
        def plan(self, *given: Any, **rest: Any) -> Any:
            plan = super().plan(*given, **rest)
            run = plan.run

            def cut() -> np.ndarray:
                y = np.array(run())
                y.flat[int(rng.integers(y.size))] *= -1
                return y

            monkeypatch.setattr(type(plan), "run", lambda self: cut())
            return plan

    words = ["run", tmp_path / "x.safetensors", "-o", tmp_path / "y.safetensors", "--mode", "neox", "--check"]
    assert call(*words).exit_code == 0
    monkeypatch.setattr(module, "Rope", OneMissing)
    done = call(*words)
    assert done.exit_code == 1, done.stdout
    assert re.search(r"FAIL: x: NMSE .*; 1 of 262144 values have other bits than the kernels' arithmetic", done.stdout)


def test_run_check_of_infinities(call: Call, tmp_path: Path, rng: np.random.Generator) -> None:
    """Pairs that stand still: an infinite element times their sine, 0, is NaN; the exact sine is 1e-28."""
    x = rng.standard_normal((1, 3, 2, 8)).astype(np.float32)
    x[0, 1, 0, 2] = np.inf
    write_arrays(tmp_path / "x.npy", {"x": x})
    words = ["run", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--mode", "neox", "--positions", 100, "--check"]
    words += ["--freq-factors", "1,1,1e30,1e30"]
    done = call(*words)
    assert done.exit_code == 0, done.stdout
    assert np.isnan(read_arrays(tmp_path / "y.npy")["x"]).sum() >= 1


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
        (["--mode", "neox", "--device", "nonesuch"], 2, "device 'nonesuch': no OpenCL device matches"),
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
