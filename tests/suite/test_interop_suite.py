"""The suite 'interop': its adapters pass, whatever is wrong fails, its formulas and its memory are right themselves."""

from __future__ import annotations

import importlib.util
import itertools
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

import clrope.interop
from clrope import DeviceInfo
from clrope.call.memory import host_view
from clrope.call.runner import Runner
from clrope.layout import DTYPES
from clrope.suite import suite_names, verify
from clrope.suite.grids import interop
from clrope.suite.grids.interop import ggml_cases, infiniop_cases
from clrope.suite.grids.interop.block import Block
from clrope.suite.grids.interop.formula import turned
from clrope.suite.grids.interop.torch_cases import promoted
from clrope.testing import GUARD, limit_for

#: A handful of each peer: all of what the call can look like, each form once (n=1 draws the same again).
SAMPLES = [
    "op=rope_multi_inplace n=0", "op=rope_ext_back n=0", "op=rope_set_rows a=f16", "INFINIOP( type=bf16 rank=4",
    "INFINIOP( inplace=1 GPT_NEOX rank=3", "ASCEND( rotary_mode=quarter", "ASCEND( type=f16 r=NNND",
    "ONNX( type=f16 rank=3 n=0", "com.microsoft [1] rank=3 n=0", "ONNX_BACKEND( type=bf16", "TORCH( from=broadcast",
    "TORCH( from=ids", "TORCH_BACKWARD(", "TORCH( input=bf16",
]  # fmt: skip
#: A few cases that represent all where a fault is injected.
FEW = ["op=rope_ext, nb", "op=rope_set_rows type=f32", "INFINIOP( GPT_J rank=3", "ASCEND( r=N1ND", "ONNX( n=1 type=f32"]


def has(text: str) -> bool:
    """Whether the package that the sample needs is there."""
    needs = "torch" if "TORCH" in text else "onnx" if "BACKEND" in text else ""
    return not needs or importlib.util.find_spec(needs) is not None


@pytest.mark.one_in(32)
@pytest.mark.parametrize("text", SAMPLES)
def test_adapters_pass_on_every_device(text: str, devices: tuple[DeviceInfo, ...], seed: int) -> None:
    print(f"seed {seed}")
    report = verify(["interop"], [d.index for d in devices], seed=seed, text=text)
    assert len(report.results) >= 4 * len(devices)
    bad = [r.line for r in report.results if r.outcome.status != ("ok" if has(text) else "skip")]
    assert not bad, bad[:3]
    assert not report.differing
    if has(text) and len(devices) > 1:
        assert report.shared == len(report.results) // len(devices)


def test_every_adapter_has_its_lines() -> None:
    assert "interop" in suite_names()
    # That of Dask has no rules of its own: its tests compare it with `clrope.rope` by bits. Models of transformers and
    # vLLM's operator have tests of their own, too.
    others = {"dask", "rotary_functions", "rotary_modules", "torch_rotate", "transformers", "vllm"}
    adapters = {m.name for m in pkgutil.iter_modules(clrope.interop.__path__)} - others
    assert list(interop.peers()) == sorted(adapters)
    labels = [line.label for line in interop.interop.cases()]
    assert len(set(labels)) == len(labels)
    assert labels == [line.label for line in interop.interop.cases()]
    # The summary sorts results by this.
    assert all(f"type={line.kind}," in line.label for line in interop.interop.cases())
    for name in interop.peers():
        assert sum(label.startswith(name.upper()) for label in labels) >= 60, name


Run = Callable[..., Any]


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Any]], object] | None) -> None:
    """Let every call on host arrays change its results after it has run; None: it does not run at all."""
    bind, run = Runner.bind, Runner.run_on_host

    def binding(runner: Runner, memories: Any) -> None:
        bind(runner, memories)
        runner.seen = memories  # type: ignore[attr-defined]

    def running(runner: Runner, keep: Any) -> None:
        if change is None:
            return
        run(runner, keep)
        outs = [(runner.seen[2 * k + (not p.in_place)], p.y) for k, p in enumerate(runner.call.parts)]  # type: ignore[attr-defined]
        change([host_view(memory.svm_ptr, y).view(DTYPES[y.dtype]) for memory, y in outs if y.size])

    monkeypatch.setattr(Runner, "bind", binding)
    monkeypatch.setattr(Runner, "run_on_host", running)


def _negated(outputs: list[Any]) -> None:
    for host in outputs:
        np.negative(host, out=host)


def _one_value(outputs: list[Any]) -> None:
    outputs[-1][(-1,) * 4] += outputs[-1].dtype.type(0.5)


def _one_bit(outputs: list[Any]) -> None:
    bits = outputs[0].view(f"u{outputs[0].itemsize}")
    bits[(0,) * 4] ^= bits.dtype.type(1)  # NumPy 1 has no uint64 ^ int


@pytest.mark.one_in(64)
@pytest.mark.parametrize("wrong", [None, _negated, _one_value])
@pytest.mark.parametrize("text", [*FEW, "TORCH( from=tables", "TORCH_BACKWARD( type=f32", "ONNX_BACKEND( type=f32"])
def test_whatever_is_wrong_fails(
    wrong: Callable[[list[Any]], object] | None,
    text: str,
    device: DeviceInfo,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    if not has(text):
        pytest.skip("its package is not installed")
    spoil(monkeypatch, wrong)
    report = verify(["interop"], [device.index], seed=seed, text=text)
    assert report.results
    passed = [r.line for r in report.results if r.outcome.status != "fail"]
    assert not passed, f"seed {seed}: {passed[0]}"
    # What the line leaves open is told.
    assert all("[" in r.outcome.detail for r in report.results)
    assert not report.ok


@pytest.mark.one_in(12)
@pytest.mark.parametrize("text", [*FEW, "TORCH( from=tables"])
def test_one_bit_apart_is_found(text: str, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    if not has(text):
        pytest.skip("its package is not installed")
    spoil(monkeypatch, _one_bit)
    report = verify(["interop"], [device.index], seed=seed, text=text)
    assert report.results
    assert {line.split(": ")[1] for line in report.differing} == {r.case for r in report.results}
    assert not report.ok


@pytest.mark.one_in(8)
def test_bytes_around_are_watched(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    real = infiniop_cases.RoPEDescriptor.run

    def careless(self: Any, y: Any, x: Any, *rest: Any) -> Any:
        real(self, y, x, *rest)
        right = y.copy()
        np.frombuffer(y.base, np.uint8)[...] ^= 1
        y[...] = right
        return y

    monkeypatch.setattr(infiniop_cases.RoPEDescriptor, "run", careless)
    report = verify(["interop"], [device.index], seed=seed, text="INFINIOP( type=f32")
    texts = [r.outcome.text for r in report.results]
    assert any("bytes outside y changed" in text for text in texts)
    assert all(text == "OK" or "bytes outside y changed" in text for text in texts)

    def spoiling(self: Any, y: Any, x: Any, *rest: Any) -> Any:
        real(self, y, x, *rest)
        x[...] += 1
        return y

    monkeypatch.setattr(infiniop_cases.RoPEDescriptor, "run", spoiling)
    report = verify(["interop"], [device.index], seed=seed, text="INFINIOP( type=f32 inplace=0")
    assert all("bytes of x changed" in r.outcome.text for r in report.results)
    # The next device gets the inputs as they were.
    monkeypatch.setattr(infiniop_cases.RoPEDescriptor, "run", real)
    call = infiniop_cases.draw(np.random.default_rng(seed), "f32", infiniop_cases.Algo.GPT_J, 4, True, "int8", True)
    first, second = (call.apply(device)[0] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.one_in(32)
def test_every_peer_runs_on_the_device_that_is_checked(
    devices: tuple[DeviceInfo, ...], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    real, used = Runner.place, []

    def recording(runner: Runner, value: Any) -> None:
        used.append(runner.call.state.queue.device)
        real(runner, value)

    monkeypatch.setattr(Runner, "place", recording)
    few = [
        "op=rope_ext, nb n=0",
        "op=rope_set_rows type=f32",
        "INFINIOP( GPT_J rank=3 type=f16",
        "ASCEND( r=N1ND type=f16",
    ]
    few += ["ONNX( n=1 type=f32 interleaved=0", "ONNX_BACKEND( type=f32 interleaved=1", "TORCH( type=f16 from=ids"]
    for text in (*few, "TORCH( type=f16 from=tables"):
        for device in devices if has(text) else ():
            used.clear()
            assert verify(["interop"], [device.index], seed=seed, text=text).ok
            assert used
            assert set(used) == {device.cl_device}, f"{device}: {text}"


@pytest.mark.parametrize(("package", "text", "part"), [("torch", "TORCH", ""), ("onnx", "ONNX_BACKEND", " (in part)")])
@pytest.mark.one_in(4)
def test_a_peer_that_is_not_installed_is_named(
    package: str, text: str, part: str, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else real(name, *a))
    why = f"the package {package} is not installed (pip install {package})"
    report = verify(["interop"], [device.index], seed=seed, text=text)
    assert len(report.results) > 10
    assert {r.outcome.text for r in report.results} == {f"SKIP, {why}"}
    assert f"SKIPPED: {package}{part}: {why}" in report.remarks["interop"]
    assert report.failures == ["every case was skipped, nothing was verified"]
    assert verify(["interop"], [device.index], seed=seed, text="op=rope_set_rows mode=8").ok


def test_without_fp64_float64_is_skipped(device: DeviceInfo, seed: int) -> None:
    from dataclasses import replace

    (line,) = [n for n in interop.interop.cases() if n.label.startswith("ASCEND(type=f64,rotary_mode=half,r=111D")]
    assert line.prepare(seed).run(replace(device, fp64=False)).text == "SKIP, the device has no fp64"


@pytest.mark.one_in(12)
def test_the_same_seed_gives_the_same_inputs_alone_or_among_others(device: DeviceInfo) -> None:
    alone = verify(["interop"], [device.index], seed=5, text="ONNX( ai.onnx type=f16 n=1 rank=4 none interleaved=1")
    among = verify(["interop"], [device.index], seed=5, text="ONNX( type=f16 n=1")
    other = verify(["interop"], [device.index], seed=6, text="ONNX( ai.onnx type=f16 n=1 rank=4 none interleaved=1")
    ((one,), (another,)) = alone.results, other.results
    assert {r.case: r.outcome.digest for r in among.results}[one.case] == one.outcome.digest != another.outcome.digest


def test_formulas_of_ggml_against_sixty_digits(rng: np.random.Generator) -> None:
    for mode in 8 * list(ggml_cases.MODES.values()):
        call = ggml_cases.draw(rng, mode)
        right = oracle.rope(call.with_four_axes(), call.positions(), call.fields(), call.forward)
        got = call.want().reshape(right.shape)
        assert float(((got - right) ** 2).sum()) <= 1e-22 * float((right**2).sum()), call


@pytest.mark.parametrize("neighbours", [False, True])
def test_the_formula_is_a_complex_product(neighbours: bool, rng: np.random.Generator) -> None:
    x, theta = rng.uniform(-1, 1, (3, 5, 14)), rng.uniform(-4, 4, (5, 6))
    z = x[..., 0:12:2] + 1j * x[..., 1:12:2] if neighbours else x[..., :6] + 1j * x[..., 6:12]
    z = z * np.exp(1j * theta)
    want = np.stack([z.real, z.imag], -1) if neighbours else np.concatenate([z.real, z.imag], -1)
    got = turned(x, np.cos(theta), np.sin(theta), neighbours, np.float64)
    assert np.allclose(got[..., :12], want.reshape(3, 5, 12), rtol=0, atol=1e-15)
    assert np.array_equal(got[..., 12:], x[..., 12:])


def test_promotion_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    for a, b, c in itertools.product(types, repeat=3):
        wanted = torch.promote_types(torch.promote_types(types[a], types[b]), types[c])
        assert types[promoted(a, b, c)] == wanted, (a, b, c)


def test_blocks(rng: np.random.Generator) -> None:
    for _ in range(50):
        shape = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(1, 5))))
        kind = str(rng.choice(list(DTYPES)))
        block = Block.drawn(rng, shape, DTYPES[kind])
        assert np.isnan(block.view.astype(np.float64)).all(), "not poisoned"
        before = block.copy()
        block.view.view(f"u{block.view.itemsize}")[...] = 0
        # Each element has bytes of its own, and those alone have changed.
        assert block.changed(before) == block.view.nbytes
        assert block.changed(before, around=True) == 0
        assert before.changed(before.copy()) == 0
        if block.memory.size > block.view.nbytes:
            outside = np.flatnonzero(block.memory)
            block.memory[rng.choice(outside)] = 0
            assert block.changed(before, around=True) == 1
        dense = Block.of(block.view)
        assert np.array_equal(dense.view, block.view)
        assert dense.memory.size == dense.view.nbytes + 2 * GUARD * dense.view.itemsize


def test_limits_of_few_elements() -> None:
    for kind, limits in (("f16", [2.0**-22, 1e-7, 6e-8]), ("f32", [1e-12] * 3)):
        assert [limit_for(kind, count, rounding=True) for count in (100, 600, 5000)] == limits
