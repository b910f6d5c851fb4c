"""torch CPU tensors in and out: the same memory, no copy, bfloat16 included."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import same

import clrope
from clrope import RopeConfig, ShapeError
from clrope.emulation import emulate_rope
from clrope.tables import rotate_plan

torch = pytest.importorskip("torch")
CONFIG = RopeConfig("neox", 12)
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def tensor(x: np.ndarray) -> Any:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def array(x: Any) -> np.ndarray:
    if x.dtype == torch.bfloat16:
        return np.asarray(x.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(x.numpy())


@pytest.mark.parametrize("name", TYPES)
def test_in_and_out(device: clrope.DeviceInfo, name: str, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 5, 3, 16)).astype(TYPES[name])
    positions = rng.integers(0, 9999, (2, 5))
    want = emulate_rope(x, positions, CONFIG)
    given = tensor(x)
    got = clrope.rope(given, torch.from_numpy(positions), CONFIG, device=device.index)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == getattr(torch, name)
    assert same(array(got), want).all()
    out = torch.zeros_like(given)
    assert clrope.rope(given, positions, CONFIG, out=out, device=device.index) is out
    assert same(array(out), want).all()
    pointer = given.data_ptr()
    assert clrope.rope(given, positions, CONFIG, out=given, device=device.index) is given
    assert given.data_ptr() == pointer
    assert same(x, want).all()  # the tensor's memory is x


@pytest.mark.parametrize("name", TYPES)
def test_views(device: clrope.DeviceInfo, name: str, rng: np.random.Generator) -> None:
    parent = rng.uniform(-1, 1, (2, 3, 9, 40)).astype(TYPES[name])
    before = parent.copy()
    view = tensor(parent)[:, :, 2:7, 3:19]  # [B, N, S, D]
    want = emulate_rope(parent[:, :, 2:7, 3:19], 5, CONFIG, layout="bnsd")
    got = clrope.rope(view, 5, CONFIG, layout="bnsd", device=device.index)
    assert same(array(got), want).all()
    assert clrope.rope(view, 5, CONFIG, out=view, layout="bnsd", device=device.index) is view
    before[:, :, 2:7, 3:19] = want
    assert same(parent, before).all()
    assert same(array(clrope.rope(view.transpose(1, 2), 5, CONFIG, device=device.index)),
                emulate_rope(array(view).transpose(0, 2, 1, 3), 5, CONFIG)).all()  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1, 4, 16), (1, 5, 1, 16), (3, 1, 1, 16)])
@pytest.mark.parametrize("odd_first", [True, False])
def test_strides_of_axes_of_length_one(
    device: clrope.DeviceInfo, shape: tuple[int, ...], odd_first: bool, rng: np.random.Generator
) -> None:
    """torch calls a tensor contiguous whatever those are: calls of both kinds are kept as one."""
    config = RopeConfig("neox", 12, freq_base=float(rng.uniform(100, 1e6)))  # of which no call is kept yet
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    strides = [step if length > 1 else 1007 for step, length in zip(tensor(x).stride(), shape, strict=True)]
    odd = tensor(np.empty(4096, np.float32)).as_strided(shape, strides).copy_(tensor(x))
    assert odd.is_contiguous()
    for given in (odd, tensor(x)) if odd_first else (tensor(x), odd):
        got, out = clrope.rope(given, 3, config, device=device.index), torch.full(shape, torch.nan)
        clrope.rope(given, 3, config, out=out, device=device.index)
        for result in (got, out):
            assert same(array(result), emulate_rope(x, 3, config)).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("missing", [1, 4])
def test_a_storage_that_was_shrunk(device: clrope.DeviceInfo, transposed: bool, missing: int) -> None:
    other, x = (torch.rand((1, 5, 3, 16)) for _ in range(2))
    if transposed:
        other, x = other.transpose(1, 2), x.transpose(1, 2)
    clrope.rope(other, 3, CONFIG, device=device.index)  # the call is kept; a view by NumPy would forbid the resizing
    storage = x.untyped_storage()
    storage.resize_(storage.nbytes() - missing)
    with pytest.raises(ShapeError, match=r"x: the tensor's storage of .* bytes does not hold it"):
        clrope.rope(x, 3, CONFIG, device=device.index)


def test_plan_and_tuples(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    q, k = (tensor(rng.uniform(-1, 1, (4, n, 16)).astype(np.float32)) for n in (3, 1))
    plan = clrope.Rope(CONFIG, device.index).plan((q, k), 7)
    for _ in range(2):
        for got, x in zip(plan.run(), (q, k), strict=True):
            assert isinstance(got, torch.Tensor)
            assert same(array(got), emulate_rope(array(x), 7, CONFIG)).all()
        q.mul_(-0.5)


def replace_data(a: Any) -> None:
    a.data = torch.full_like(a, 0.5)


@pytest.mark.parametrize(
    "change",
    [replace_data, lambda a: a.set_(torch.full_like(a, 0.5)), lambda a: a.unsqueeze_(0), lambda a: a.requires_grad_()],
    ids=["data", "set_", "shape", "requires_grad_"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["x", "in place", "out", "cos", "sin"])
def test_a_plan_whose_tensor_was_replaced(
    device: clrope.DeviceInfo, name: str, change: Any, rng: np.random.Generator
) -> None:
    """The plan has the old memory, and says so; a tensor given to `run` is read as it is."""
    x, cos, sin = (tensor(rng.uniform(-1, 1, shape).astype(np.float32)) for shape in ((1, 8, 2, 16), (8, 8), (8, 8)))
    arrays = {"x": x, "cos": cos, "sin": sin, "out": x if name == "in place" else torch.zeros_like(x)}
    plan = rotate_plan(**arrays, device=device.index)
    for _ in range(2):
        plan.run()
    argument = "x" if name == "in place" else name
    change(arrays[argument])
    before = arrays["out"].clone()
    for _ in range(2):
        with pytest.raises(ShapeError, match=f"{argument}: memory, .* of the tensor were replaced"):
            plan.run()
    assert torch.equal(arrays["out"], before)
    if argument == "x" and x.dim() == 4 and not x.requires_grad:
        want = rotate_plan(x.clone(), cos, sin, device=device.index).run()
        assert torch.equal(plan.run(x), want)
    elif argument != "x":
        with pytest.raises(ShapeError, match=f"{argument}: memory, .* of the tensor were replaced"):
            plan.run(torch.zeros_like(x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: torch.zeros(2, 1, 16, requires_grad=True), "x: the tensor requires grad; detach it"),
        (lambda: torch.zeros(2, 1, 16, device="meta"), "x: got a torch tensor on meta, only CPU tensors"),
        (lambda: torch.zeros(2, 1, 16, dtype=torch.int32), "x: got dtype int32"),
        (lambda: torch.zeros(2, 1, 16, dtype=torch.complex64), "x: got dtype complex64"),
        (lambda: torch.zeros(2, 16), "x: got rank 2"),
    ],
)
def test_refusals(given: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        clrope.rope(given(), 0, CONFIG)


def test_numpy_and_torch_mixed(device: clrope.DeviceInfo, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 1, 16)).astype(np.float32)
    out = torch.zeros(2, 1, 16)
    assert clrope.rope(x, 3, CONFIG, out=out, device=device.index) is out
    assert same(array(out), emulate_rope(x, 3, CONFIG)).all()


@pytest.mark.parametrize("way", ["call", "call like one before", "plan", "plan in place of another", "rotate", "mixed"])
def test_a_backward_pass_that_needs_overwritten_values_is_refused(device: clrope.DeviceInfo, way: str) -> None:
    op = clrope.Rope(CONFIG, device.index)
    saved, weight = torch.rand(2, 5, 3, 16), torch.ones(2, 5, 3, 16, requires_grad=True)
    plan = op.plan(saved, 3, out=saved)
    if way == "call like one before":
        op(saved, 3, out=saved)
    elif way == "plan in place of another":
        plan = op.plan(torch.rand(2, 5, 3, 16), 3, out=saved)
        plan.run()
    loss = (saved * weight).sum()
    if way == "rotate":
        clrope.rotate(saved, np.ones((5, 6), np.float32), np.zeros((5, 6), np.float32), out=saved, device=device.index)
    elif way == "mixed":
        op(np.ones((2, 5, 3, 16), np.float32), 3, out=saved)
    elif way.startswith("plan"):
        plan.run()
    else:
        op(saved, 3, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_results_of_inference_mode_are_rotated_in_place(device: clrope.DeviceInfo) -> None:
    with torch.inference_mode():
        x = torch.rand(2, 5, 3, 16)
        want = emulate_rope(array(x), 3, CONFIG)
        clrope.rope(x, 3, CONFIG, out=x, device=device.index)
    assert same(array(x), want).all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("before", [False, True], ids=["first call", "like a call before"])
def test_tensors_that_torch_traces_are_refused(device: clrope.DeviceInfo, before: bool) -> None:
    x = torch.rand(2, 5, 3, 16)
    op = clrope.Rope(CONFIG, device.index)

    def call(a: Any) -> Any:
        return op(a, 3)

    def call_out(a: Any) -> Any:
        return op(x, 3, out=a)

    for again in range(2 if before else 0):
        call(x)
        call_out(torch.rand(2, 5, 3, 16) if again else torch.zeros(2, 5, 3, 16))
    for f in (call, call_out):
        with pytest.raises(ShapeError, match="the tensor has no memory of its own"):
            torch.func.functionalize(f)(torch.rand(2, 5, 3, 16))
        with pytest.raises(ShapeError, match="cannot be read"):
            torch.vmap(f)(torch.rand(4, 2, 5, 3, 16))
        with pytest.raises(ShapeError, match=r"tangent of forward-mode differentiation|cannot be read"):
            torch.func.jvp(f, (torch.rand(2, 5, 3, 16),), (torch.rand(2, 5, 3, 16),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.rand(2, 5, 3, 16), torch.rand(2, 5, 3, 16))
            with pytest.raises(ShapeError, match="tangent of forward-mode differentiation"):
                f(dual)
            assert same(array(call(x)), emulate_rope(array(x), 3, CONFIG)).all()
    with pytest.raises(ShapeError, match="positions: the tensor has no memory of its own"):
        torch.func.functionalize(lambda p: op(x, p))(torch.arange(5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused(device: clrope.DeviceInfo) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(5, 3, 16), torch.zeros(4, 3, 16)])
    with pytest.raises(ShapeError, match="x: Tensor cannot be read"):
        clrope.rope(nested, 3, CONFIG, device=device.index)


def test_a_negative_bfloat16_is_refused() -> None:
    with pytest.raises(ShapeError, match="lazy conjugate or negative bit"):
        clrope.rope(torch._neg_view(torch.zeros(2, 1, 16, dtype=torch.bfloat16)), 0, CONFIG)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_torch_s_default_device(
    device: clrope.DeviceInfo, known: bool, contiguous: bool, large: bool, rng: np.random.Generator
) -> None:
    """Results are on the CPU like their inputs, wherever torch makes other tensors."""
    x = rng.uniform(-1, 1, (2, 6000, 2, 16) if large else (2, 3, 2, 16)).astype(np.float32)
    given = tensor(x) if contiguous else tensor(np.ascontiguousarray(x.swapaxes(0, 3))).transpose(0, 3)
    op = clrope.Rope(CONFIG, device)
    if known:
        op(given, 3)
    with torch.device("meta"):
        got = op(given, 3)
    assert same(array(got), emulate_rope(x, 3, CONFIG)).all()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_results_without_memory(device: clrope.DeviceInfo, known: bool, allowed: bool, large: bool) -> None:
    """Under torch's fake tensors a result has no memory, of which some drivers do not know."""
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    given = torch.ones((1, 20000 if large else 3, 2, 16))
    op = clrope.Rope(CONFIG, device)
    want = op(given, 3) if known else None
    with fake.FakeTensorMode(allow_non_fake_inputs=allowed):
        with pytest.raises(ShapeError, match=r"^x: "):
            op(given, 3)
        with pytest.raises(ShapeError, match=r"^x: "):
            op.plan(given, 3)
    assert want is None or (op(given, 3) == want).all()
