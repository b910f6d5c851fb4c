"""`clrope run`: real files, every flag, every refusal."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clrope
from clrope import DeviceInfo
from clrope.io import files
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


@pytest.mark.one_in(6)
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


#: Positions in every form for 3 batches of 13 tokens.
FORMS: dict[str, Any] = {
    "number": 7,
    "tokens": np.arange(13, dtype=np.uint8) * 3,
    "beyond 32 bits": (1 << 31) - 12,
    "one is beyond 32 bits": np.where(np.arange(13) == 9, 1 << 40, np.arange(13) + (1 << 30)),
    "a number for each batch": np.array([5, -2, 1 << 33]),
    "batches": np.arange(39).reshape(3, 13) * 7,
    "axes": np.arange(39, dtype=np.int32).reshape(3, 13),
    "axes of batches": np.arange(156).reshape(4, 3, 13),
    "axes of one batch": np.arange(52).reshape(4, 1, 13),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("layout", "order", "source", "output", "dtype"),
    [
        ("bsnd", "C", "npy", "npy", np.float32),
        ("bnsd", "C", "safetensors", "safetensors", ml_dtypes.bfloat16),
        ("bsnd", "F", "npy", "safetensors", np.float16),
        ("dsbn", "C", "npy", "npz", ml_dtypes.bfloat16),
        ("bnsd", "F", "npz", "npy", np.float32),
    ],
)
@pytest.mark.one_in(20)
def test_run_in_parts_as_in_one_call(
    form: str, layout: str, order: Any, source: str, output: str, dtype: Any, call: Call, tmp_path: Path,
    rng: np.random.Generator, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lengths = {"b": 3, "s": 13, "n": 5, "d": 64}
    x = rng.standard_normal([lengths[axis] for axis in layout]).astype(dtype)
    stored = np.asarray(x, order=order)
    raw = stored.view("V2") if dtype is ml_dtypes.bfloat16 else stored
    if source == "npy":
        np.save(tmp_path / "x.npy", raw)
    elif source == "npz":
        np.savez_compressed(tmp_path / "x.npz", x=raw)
    else:
        write_arrays(tmp_path / "x.safetensors", {"x": x})
    np.save(tmp_path / "p.npy", FORMS[form])
    words = ["--positions", FORMS[form] if isinstance(FORMS[form], int) else tmp_path / "p.npy", "--layout", layout]
    fields: dict[str, Any] = {"mode": "neox"}
    if "axes" in form:
        fields = {"mode": "mrope", "sections": (8, 12, 12)}
        words += ["--sections", "8,12,12"]
    monkeypatch.setattr(files, "PART", 4 * 5 * 64)
    done = call(
        "run", tmp_path / f"x.{source}", "-o", tmp_path / f"y.{output}", "--mode", fields["mode"], *words, "--check",
        "--device", device.index, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stdout + done.stderr
    (tensor,) = json.loads(done.stdout)["tensors"]
    # 4 tokens of a batch at a time; 1 of each batch where the elements of a head are outermost.
    assert tensor["launches"] == (12 if (layout, order) in (("bsnd", "C"), ("bnsd", "C"), ("bnsd", "F")) else 13)
    want = clrope.rope(x, FORMS[form], layout=layout, device=device, **fields)
    got = read_arrays(tmp_path / f"y.{output}")["x"]
    assert got.dtype == want.dtype
    assert np.array_equal(bits(got), bits(want))


def test_run_cuts_what_one_token_is_too_large_for(
    call: Call, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, and heads; and tensors that are only kept, of any rank."""
    q, k = rng.standard_normal((5, 2, 3, 8)).astype(np.float32), rng.standard_normal((3, 9, 4)).astype(np.float16)
    others = {
        "m": np.arange(60.0).reshape(4, 15).T,
        "n": np.arange(40),
        "flag": np.array(True),
        "none": np.ones((0, 3)),
    }
    monkeypatch.setattr(files, "PART", 17)
    for suffix in ("npz", "safetensors"):
        source, output = tmp_path / f"x.{suffix}", tmp_path / f"y.{suffix}"
        write_arrays(source, {"q": q, **others, "k": k, "empty": np.zeros((2, 0, 3, 8), np.float32)})
        done = call("run", source, "-o", output, "--mode", "normal", "--keep", "--positions", 3, "--check")
        assert done.exit_code == 0, done.stdout + done.stderr
        got = read_arrays(output)
        assert got.keys() == read_arrays(source).keys()
        for name, x in (("q", q), ("k", k)):
            assert np.array_equal(got[name], clrope.rope(x, 3, mode="normal"))
        for name, x in others.items():
            assert (got[name].dtype, got[name].tolist()) == (x.dtype, x.tolist())


def test_run_shows_the_parts(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    bars: list[Progress] = []
    real = Progress.__init__
    monkeypatch.setattr(
        Progress, "__init__", lambda bar, *columns, **more: bars.append(bar) or real(bar, *columns, **more)
    )  # type: ignore[func-returns-value]
    write_arrays(tmp_path / "x.npz", {"q": np.ones((1, 10, 2, 8), np.float32), "k": np.ones(16)})
    monkeypatch.setattr(files, "PART", 3 * 16)
    assert call("run", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--mode", "neox", "--keep").exit_code == 0
    ((task,),) = (bar.tasks for bar in bars)
    assert (task.completed, task.total, task.description) == (5, 5, "k")


def test_run_check_of_parts_is_of_the_whole(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clrope import reference

    x = np.ones((2, 10, 2, 8), np.float32)
    x[:, :6] = 0  # no rounding
    write_arrays(tmp_path / "x.npy", {"x": x})
    real = reference.rope

    def wrong(part: np.ndarray, positions: Any, *more: Any, **fields: Any) -> np.ndarray:
        """Another element for the token at position 6 of each batch."""
        want = real(part, positions, *more, **fields)
        want[:, [p == 6 for p in range(positions, positions + part.shape[1])], 1, 5] += 1
        return want

    monkeypatch.setattr(reference, "rope", wrong)
    words = ["run", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--mode", "neox", "--check", "--json"]
    whole, parts = (
        (monkeypatch.setattr(files, "PART", part), json.loads(call(*words).stdout)["tensors"][0])[1]
        for part in (1 << 20, 4 * 16)
    )
    assert (whole["ok"], parts["ok"], parts["differing"]) == (False, False, 0)
    assert parts["nmse"] == pytest.approx(whole["nmse"])
    assert parts["limit"] == whole["limit"]
    assert "first difference at [0, 6, " in parts["comparison"]
    cut = re.compile("NMSE [^,]*")
    assert cut.sub("", parts["comparison"]) == cut.sub("", whole["comparison"])


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_run_onto_its_input(suffix: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng().standard_normal((1, 10, 2, 8)).astype(np.float32)
    path = tmp_path / f"x.{suffix}"
    write_arrays(path, {"x": x})
    monkeypatch.setattr(files, "PART", 3 * 16)
    assert call("run", path, "-o", path, "--mode", "neox", "--positions", 5).exit_code == 0
    assert np.array_equal(read_arrays(path)["x"], clrope.rope(x, 5, mode="neox"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_run_that_ends_early_leaves_the_old_file(
    suffix: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third part meets a full disk, Ctrl-C, and an input that somebody else cuts off."""
    source, output = tmp_path / "x.npy", tmp_path / f"y.{suffix}"
    real = clrope.Rope.plan

    def run(event: Callable[[], object]) -> Any:
        parts: list[Any] = []

        def plan(*given: Any, **more: Any) -> Any:
            parts.append(given)
            if len(parts) == 3:
                event()
            return real(*given, **more)

        write_arrays(source, {"x": np.ones((1, 8000, 2, 8), np.float32)})
        output.write_bytes(b"old")
        monkeypatch.setattr(clrope.Rope, "plan", plan)
        done = call("run", source, "-o", output, "--mode", "neox")
        assert sorted(tmp_path.iterdir()) == [source, output]
        assert output.read_bytes() == b"old"
        return done.exit_code, done.stderr

    def full_disk() -> None:
        raise OSError(28, "No space left on device")

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "PART", 1000 * 16)
    assert run(full_disk) == (2, f"clrope: {output}: cannot be written (No space left on device)\n")
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command leaves the next Ctrl-C to the system
    assert run(ctrl_c) == (130, "clrope: interrupted\n")
    code, message = run(lambda: os.truncate(source, 200_000))
    assert (code, message) == (
        2, f"clrope: {source}: not a readable .npy file (it became shorter while it was read)\n"
    )  # fmt: skip


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
    assert "holds no floating tensor of rank 3 or 4; there are a (float32 [4]), b (int32 [2, 2, 2, 2])" in done.stderr
