"""The torch adapter against float64 formulas written here, and against torch's own checks of an operator."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import clrope  # noqa: E402
import clrope.call.runner  # noqa: E402
from clrope.errors import ConfigError, DeviceError, ShapeError  # noqa: E402
from clrope.interop.torch import RoPE, _check_memory  # noqa: E402

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
LIMITS = {torch.float32: 1e-12, torch.float16: 6e-8, torch.bfloat16: 4e-6, torch.float64: 1e-20}
ROPE = torch.ops.clrope.rope.default
ATTRIBUTES = {"scale": 1.5, "base": 100.0, "dims": None, "interleaved": False}


@pytest.fixture(autouse=True)
def _on_device(request, monkeypatch):
    """Tests that take `device` run there; `torch.empty` gives NaN, so that what no kernel wrote is seen."""
    if "device" in request.fixturenames:
        monkeypatch.setenv("CLROPE_DEVICE", request.getfixturevalue("device").index)
    torch.use_deterministic_algorithms(True)
    assert torch.isnan(torch.empty(3)).all(), "torch.empty is not poisoned"
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def gen(rng):
    return torch.Generator().manual_seed(int(rng.integers(1 << 62)))


def rand(gen, *shape, dtype=torch.float32, grad=False):
    return (torch.rand(*shape, generator=gen, dtype=torch.float64) * 2 - 1).to(dtype).requires_grad_(grad)


def expected(x, cos, sin, n, interleaved):
    """Rotate by tables of any broadcastable shape, in float64 and with torch alone (so it can be differentiated)."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    a, b = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    u, v = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((u, v), -1).flatten(-2) if interleaved else torch.cat((u, v), -1)
    return torch.cat((turned, x[..., n:]), -1)


def angles(positions, n, base=1e4, freqs=None):
    if freqs is None:
        freqs = base ** (-torch.arange(n // 2, dtype=torch.float64) / (n // 2))
    theta = positions.double()[..., None] * freqs.double()
    return theta.cos(), theta.sin()


def per_batch(positions, rank):
    """[batch, seq] to [batch, 1, ..., seq]."""
    return positions.reshape(positions.shape[0], *[1] * (rank - 3), positions.shape[1])


def close(got, want, dtype):
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert got.is_contiguous()
    assert not got.isnan().any(), f"{int(got.isnan().sum())} elements were not written"
    error = (got.double() - want).abs()
    # Half a unit of the result's last place, and what float32 arithmetic leaves where terms cancel. For float64: what
    # the angles here, float64 products up to 4e4, are off by themselves.
    slack = 3e-11 if dtype == torch.float64 else 1e-6
    worst = float((error - torch.finfo(dtype).eps / 2 * want.abs()).max())
    assert worst <= slack, f"an element is off by {worst:.3g} more than its rounding"
    if want.numel() >= 2000 or dtype in (torch.float32, torch.float64):  # else too few for a mean of roundings
        nmse = float((error**2).sum() / (want**2).sum())
        assert nmse <= LIMITS[dtype], f"NMSE {nmse:.3g}, {LIMITS[dtype]:.3g} is allowed"


def strided(x, rng):
    """The same values in another order of memory, as attention code produces it."""
    order = rng.permutation(x.dim()).tolist()
    return x.permute(order).contiguous().permute(np.argsort(order).tolist())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_random_cases(device, rng, gen, dtype, interleaved):
    for case in range(12):
        rank = int(rng.integers(3, 7))
        shape = [*rng.integers(1, 4, rank - 2).tolist(), int(rng.integers(1, 8)), 2 * int(rng.integers(1, 12))]
        if case == 0:
            rank, shape = 4, [2, 8, 33, 80]
        batch, seq, embed = shape[0], shape[-2], shape[-1]
        dims = None if rng.random() < 0.4 else 2 * int(rng.integers(1, 14))
        n = embed if dims is None else min(dims, embed)
        scale = float(rng.choice([1.0, 0.0, -1.0, 0.3, 2.5, 1 / 3]))
        base = float(rng.choice([1e4, 5e5, 10.0, 0.5]))
        freqs = rand(gen, n // 2) * 3 if rng.random() < 0.3 else None
        x = strided(rand(gen, *shape, dtype=dtype), rng)
        module = RoPE(scale, base, dims, interleaved)
        source = str(rng.choice(["nothing", "int", "offset", "offsets", "ids", "ids per batch", "ids in full"]))
        print(f"{shape=} {dims=} {scale=} {base=} {freqs=} {source=} strides={x.stride()}")
        where, arguments = torch.arange(seq), {}
        if source == "int":
            arguments = {"offset": int(rng.integers(-100, 5000))}
            where = where + arguments["offset"]
        elif source == "offset":
            arguments = {"offset": torch.tensor(int(rng.integers(5000)), dtype=torch.int32)}
            where = where + arguments["offset"]
        elif source == "offsets":
            starts = torch.from_numpy(rng.integers(-5000, 5000, batch))
            arguments = {"offset": starts if rng.random() < 0.5 else starts[:, None]}
            where = per_batch(where + starts[:, None], rank)
        elif source == "ids":
            where = torch.from_numpy(rng.integers(0, 200, seq)).to(torch.uint8)
            arguments = {"position_ids": where}
        elif source == "ids per batch":
            where = torch.from_numpy(rng.integers(-3000, 3000, (batch, seq)))
            arguments, where = {"position_ids": where}, per_batch(where, rank)
        elif source == "ids in full":
            full = [n if rng.random() < 0.5 else 1 for n in shape[:-1]]
            where = torch.from_numpy(rng.integers(-3000, 3000, full))
            arguments = {"position_ids": where}
        if not source.startswith("ids"):
            where = where.double() * scale
        want = expected(x, *angles(where, n, base, freqs), n, interleaved)
        before = x.clone()
        close(module(x, freqs=freqs, **arguments), want, dtype)
        assert torch.equal(x, before)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_tables_that_broadcast(device, rng, gen, dtype, interleaved):
    x = strided(rand(gen, 2, 3, 4, 5, 12, dtype=dtype), rng)
    module = RoPE(dims=8, interleaved=interleaved)
    shapes = [
        (4,), (5, 4), (1, 4), (5, 1), (1,), (4, 5, 4), (4, 1, 4), (1, 1, 5, 4), (3, 1, 5, 4), (3, 4, 5, 4),
        (2, 1, 1, 5, 4), (2, 1, 4, 5, 4), (2, 3, 4, 5, 4), (2, 3, 1, 1, 1),
    ]  # fmt: skip
    for cos_shape, sin_shape in [*zip(shapes, shapes, strict=True), *zip(shapes, reversed(shapes), strict=True)]:
        cos, sin = rand(gen, *cos_shape, dtype=dtype), rand(gen, *sin_shape, dtype=dtype)
        print(cos_shape, sin_shape)
        close(module(x, cos, sin), expected(x, cos, sin, 8, interleaved), dtype)


def test_dtype_is_promoted_from_input_cos_and_sin(device, gen):
    for a, b, c in itertools.product(DTYPES.values(), repeat=3):
        x, cos, sin = rand(gen, 2, 2, 3, 8, dtype=a), rand(gen, 3, 4, dtype=b), rand(gen, 2, 1, 1, 4, dtype=c)
        want = torch.promote_types(torch.promote_types(a, b), c)
        print(a, b, c)
        close(RoPE()(x, cos, sin), expected(x, cos, sin, 8, False), want)


def test_tables_go_before_positions_before_offset(device, gen):
    x, cos, sin = rand(gen, 2, 3, 5, 8), rand(gen, 5, 4), rand(gen, 5, 4)
    ids, freqs = torch.tensor([7, 1, 0, 3, 3]), torch.rand(4, generator=gen)
    module = RoPE(scale=2.0)
    assert torch.equal(module(x, cos, sin, ids, freqs, torch.tensor(9)), module(x, cos, sin))
    assert torch.equal(module(x, None, None, ids, freqs, 9), module(x, position_ids=ids, freqs=freqs))
    assert not torch.equal(module(x, offset=9), module(x))
    assert torch.equal(module(x, offset=9), module(x, offset=torch.tensor([[9], [9]])))
    # A tensor wins over the int.
    attributes = {**ATTRIBUTES, "start": 5}
    assert torch.equal(
        ROPE(x, None, None, None, None, torch.tensor([9]), **attributes),
        ROPE(x, None, None, None, None, torch.tensor([9]), **ATTRIBUTES),
    )


def test_positions_are_exact_however_large(device, rng, gen):
    mpmath = pytest.importorskip("mpmath")
    scale, base = 0.3, 1e4
    x = rand(gen, 1, 6, 16)
    first = int(rng.integers(2**30, 2**31))
    print("offset", first)
    with mpmath.workdps(50):
        theta = [
            [(first + s) * mpmath.mpf(scale) * mpmath.mpf(base) ** (-mpmath.mpf(i) / 8) for i in range(8)]
            for s in range(6)
        ]
        cos, sin = (torch.tensor([[float(f(t)) for t in row] for row in theta], dtype=torch.float64)
                    for f in (mpmath.cos, mpmath.sin))  # fmt: skip
    close(RoPE(scale, base)(x, offset=first), expected(x, cos, sin, 16, False), torch.float32)


def test_given_frequencies_are_as_right_as_float64_products(device):
    mpmath = pytest.importorskip("mpmath")
    for dtype, position in itertools.product((torch.float32, torch.float64), (10**6, 10**9, 2**40)):
        freqs = torch.tensor([0.3, 0.1, -0.7, 1 / 3], dtype=dtype)
        x = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0], dtype=torch.float64).reshape(1, 1, 8)
        if not clrope.device(device.index).fp64:
            x = x.float()
        got = RoPE()(x, freqs=freqs, position_ids=torch.tensor([position]))[0, 0].double()
        with mpmath.workdps(60):
            angles = [mpmath.mpf(f) * position for f in freqs.double().tolist()]
            want = torch.tensor([float(f(a)) for f in (mpmath.cos, mpmath.sin) for a in angles], dtype=torch.float64)
        off = 2**-53 * position * freqs.double().abs().repeat(2) + (1e-15 if x.dtype == torch.float64 else 1e-6)
        assert ((got - want).abs() <= off).all(), (dtype, position)


def test_positions_of_length_1_broadcast(device, gen):
    """`[1]` and `[batch, 1]`, as in the peer."""
    x = rand(gen, 2, 3, 4, 8)
    for given, full in (([5], [5] * 4), ([[5], [6]], [[5] * 4, [6] * 4]), ([[7, 1, 2, 3]], [7, 1, 2, 3])):
        got = RoPE()(x, position_ids=torch.tensor(given))
        assert torch.equal(got, RoPE()(x, position_ids=torch.tensor(full)))


def test_fx_traces_the_module(device, gen):
    x = rand(gen, 2, 3, 4, 8)
    assert torch.equal(torch.fx.symbolic_trace(RoPE())(x), RoPE()(x))


def test_frequencies_of_any_sign_and_size(device, gen):
    x = rand(gen, 2, 2, 4, 10)
    freqs = torch.tensor([0.0, -0.0, 5e-324, -0.5, 40.0], dtype=torch.float64)
    got = RoPE(interleaved=True)(x, freqs=freqs, offset=1000)
    # Without an angle nothing turns: the same bits.
    assert torch.equal(got[..., :6], x[..., :6])
    where = torch.arange(1000, 1004)
    close(got, expected(x, *angles(where, 10, freqs=freqs), 10, True), torch.float32)
    assert torch.equal(RoPE(scale=0.0, base=3.0)(x, offset=7), x)
    assert torch.equal(RoPE(scale=0.0)(x, freqs=freqs, offset=7), x)


def test_empty_tensors(gen):
    for shape in [(0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 0, 8)]:
        x = rand(gen, *shape)
        assert RoPE()(x).shape == x.shape
        assert RoPE()(x, rand(gen, shape[2], 4), rand(gen, shape[2], 4)).shape == x.shape


def test_lazy_negative_is_resolved(device, gen):
    x = torch.complex(rand(gen, 2, 3, 4, 8), rand(gen, 2, 3, 4, 8)).conj().imag
    assert x.is_neg()
    assert torch.equal(RoPE()(x, offset=3), RoPE()(x.clone(), offset=3))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_memory_is_used_in_place(device, gen, monkeypatch, dtype):
    """What OpenCL gets are the addresses of the tensors, the whole parent's for a slice of it."""
    if not device.host_unified:
        pytest.skip("the device has memory of its own")
    bound = []
    real = clrope.call.runner.Runner.bind

    def recording(runner, memories):
        bound.append([m.svm_ptr for m in memories])
        return real(runner, memories)

    monkeypatch.setattr(clrope.call.runner.Runner, "bind", recording)
    parent = rand(gen, 2, 5, 9, 8, dtype=dtype)
    for x in (parent[:, :, 3:6], parent[:, :, 3:6].transpose(1, 2)):
        for tables in ((), (torch.ones(x.shape[2], 4, dtype=dtype), torch.zeros(x.shape[2], 4, dtype=dtype))):
            bound.clear()
            y = RoPE()(x.requires_grad_(), *tables)
            assert [sides[:2] for sides in bound] == [[x.data_ptr(), y.data_ptr()]]
            x = x.detach()


def test_all_devices_give_the_same_bits(devices, gen, monkeypatch):
    for dtype in DTYPES.values():
        x = rand(gen, 2, 3, 40, 24, dtype=dtype)
        results = []
        for d in devices:
            if dtype == torch.float64 and not d.fp64:
                continue
            monkeypatch.setenv("CLROPE_DEVICE", d.index)
            results.append(RoPE(scale=0.7, dims=16)(x, offset=123456))
        assert all(torch.equal(r, results[0]) for r in results) or dtype == torch.float64


def inputs_given(gen, grad=True):
    """The operator's arguments in each of their forms."""

    def x(dtype=torch.float32):
        return rand(gen, 2, 3, 5, 8, dtype=dtype, grad=grad)

    freqs = torch.rand(4, generator=gen).requires_grad_(grad)
    return {
        "input": (x(),),
        "offset": (x(), None, None, None, None, torch.tensor([3, 4])),
        "position_ids": (x(), None, None, torch.arange(5)),
        "position_ids, freqs": (x(torch.bfloat16), None, None, torch.arange(10).view(2, 5), freqs),
        "cos, sin": (x(), rand(gen, 5, 4, grad=grad), rand(gen, 5, 4, grad=grad)),
        "wider tables": (x(torch.float16), rand(gen, 2, 3, 5, 4), rand(gen, 4, grad=grad)),
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["input", "offset", "position_ids", "position_ids, freqs", "cos, sin", "wider tables"])
def test_opcheck(gen, form):
    arguments = inputs_given(gen)[form]
    for attributes in (ATTRIBUTES, {"scale": 0.5, "base": 10.0, "dims": 6, "interleaved": True}):
        if attributes["dims"] and "freqs" in form:
            arguments = (*arguments[:4], arguments[4].detach()[:3].requires_grad_())
        if attributes["dims"] and "sin" in form:
            arguments = (arguments[0], *(t.detach()[:, :3].clone().requires_grad_() for t in arguments[1:]))
        if attributes["dims"] and "tables" in form:
            arguments = (arguments[0], arguments[1][..., :3], arguments[2].detach()[:3])
        report = torch.library.opcheck(ROPE, arguments, attributes)
        assert set(report.values()) == {"SUCCESS"}, report


@pytest.mark.one_in(8)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("dims", [None, 4])
def test_gradcheck(device, gen, dims, interleaved):
    """Derivatives by tables element by element, others and second ones along random directions (torch's fast mode)."""
    f64 = {"dtype": torch.float64, "grad": True}
    module = RoPE(1.7, 50.0, dims, interleaved)
    x = rand(gen, 2, 2, 2, 6, **f64)
    n = dims or 6
    freqs = rand(gen, n // 2, **f64)
    for shape in [(2, 2, 2, n // 2), (2, n // 2), (2, 1, 1)]:
        cos, sin = rand(gen, *shape, **f64), rand(gen, *shape, **f64)
        assert torch.autograd.gradcheck(module, (x, cos, sin))
        assert torch.autograd.gradgradcheck(module, (x, cos, sin), fast_mode=True)
    for given in [{}, {"offset": 2}, {"offset": torch.tensor([[1], [5]])}, {"position_ids": torch.tensor([2, 0])},
                  {"position_ids": torch.tensor([[2, 0], [4, 9]])}]:  # fmt: skip
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda x, f, given=given: module(x, freqs=f, **given), (x, freqs), fast_mode=True)
    assert torch.autograd.gradcheck(module, (x,))


def test_gradients_of_half_types(device, gen):
    """Against torch's own differentiation of the formula; sums over many tokens are made in float32."""
    for x_dtype, table_dtype in [(torch.float16, torch.float16), (torch.bfloat16, torch.float32)]:
        x = rand(gen, 2, 4, 64, 8, dtype=x_dtype, grad=True)
        cos, sin = rand(gen, 4, dtype=table_dtype, grad=True), rand(gen, 64, 4, dtype=table_dtype, grad=True)
        y = RoPE()(x, cos, sin)
        # Gradients of float64 tensors: torch would round those of half types, and two roundings may differ by a unit.
        exact = [source.detach().double().requires_grad_() for source in (x, cos, sin)]
        weight = rand(gen, *y.shape, dtype=y.dtype)
        got = torch.autograd.grad(y, (x, cos, sin), weight)
        right = torch.autograd.grad(expected(*exact, 8, False), exact, weight.double())
        for a, b, source in zip(got, right, (x, cos, sin), strict=True):
            assert a.dtype == source.dtype
            assert a.shape == source.shape
            assert not a.isnan().any()
            rounding = torch.finfo(source.dtype).eps / 2 * b.double().abs()
            # 3e-5: what a sum of 512 products in float32 may be off by.
            assert ((a.double() - b.double()).abs() - rounding).max() <= 3e-5


def nodes(graph):
    return [node for node in graph.nodes if node.op == "call_function"]


# What torch warns of in its own exporter is not ours.
@pytest.mark.one_in(10)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", ["input", "offset", "position_ids", "position_ids, freqs", "cos, sin"])
def test_export_keeps_one_node(device, gen, form, strict):
    given = inputs_given(gen, grad=False)[form]
    names = ["input", "cos", "sin", "position_ids", "freqs", "offset"]
    arguments = {name: t for name, t in zip(names, given, strict=False) if t is not None}
    module = RoPE(scale=0.5, base=300.0, interleaved=True)
    batch, seq = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=1, max=4096)
    dynamic = {
        "input": {0: batch, 2: seq}, "cos": {0: seq}, "sin": {0: seq}, "freqs": {}, "offset": {0: batch},
        "position_ids": {0: seq} if form == "position_ids" else {0: batch, 1: seq},
    }  # fmt: skip
    program = torch.export.export(
        module, (), arguments, dynamic_shapes={name: dynamic[name] for name in arguments}, strict=strict
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, program.run_decompositions(), torch.export.load(file)):
        (node,) = nodes(exported.graph)
        assert node.target is ROPE
        # In older exporters (torch 2.6) inputs stand among the keywords, those not given as None.
        attributes = {k: v for k, v in node.kwargs.items() if k not in names}
        assert attributes == {"scale": 0.5, "base": 300.0, "dims": None, "interleaved": True}
        assert [n.name for n in node.all_input_nodes] == list(arguments)
        assert torch.equal(exported.module()(**arguments), module(**arguments))
        longer = {"input": rand(gen, 3, 3, 7, 8, dtype=arguments["input"].dtype)}
        if "offset" in arguments:
            longer["offset"] = torch.tensor([1, 2, 3])
        if form == "position_ids":
            longer["position_ids"] = torch.arange(7)
        if form == "position_ids, freqs":
            longer |= {"position_ids": torch.arange(21).view(3, 7), "freqs": arguments["freqs"]}
        if "cos" in arguments:
            longer |= {"cos": rand(gen, 7, 4), "sin": rand(gen, 7, 4)}
        assert torch.equal(exported.module()(**longer), module(**longer))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_compile_keeps_one_node(device, gen):
    module, graphs = RoPE(scale=0.5, dims=4), []

    def backend(graph, example_inputs):
        graphs.append(nodes(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    x = rand(gen, 2, 3, 5, 8)
    for given in [{}, {"offset": 3}, {"offset": 4}, {"offset": 5}, {"position_ids": torch.arange(5)}]:
        assert torch.equal(compiled(x, **given), module(x, **given))
    # The int offset becomes a symbol, so that decoding does not compile again for each token.
    assert len(graphs) == 4
    for graph in graphs:
        assert [str(node.target) for node in graph] == ["clrope.rope"]
        attributes = {"scale": 0.5, "base": 1e4, "dims": 4, "interleaved": False}
        assert {k: v for k, v in graph[0].kwargs.items() if k != "start"} == attributes
    torch._dynamo.reset()
    trained = torch.compile(module, fullgraph=True, backend="aot_eager")
    cos, sin = rand(gen, 5, 2, grad=True), rand(gen, 5, 2, grad=True)
    x.requires_grad_()
    weight = rand(gen, 2, 3, 5, 8)
    got = torch.autograd.grad(trained(x, cos, sin), (x, cos, sin), weight)
    want = torch.autograd.grad(module(x, cos, sin), (x, cos, sin), weight)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


X = torch.ones(2, 3, 5, 8)
REFUSED = [
    (ShapeError, "input: got shape .*rank 3", lambda: RoPE()(X[0, 0])),
    (ShapeError, "input: got embed 7, it must be even", lambda: RoPE()(X[..., :7])),
    (ShapeError, "input: got embed 7", lambda: RoPE(dims=8)(X[..., :7])),
    (ShapeError, "input: got torch.int32, allowed are float16", lambda: RoPE()(X.int())),
    (ShapeError, "input: got torch.complex64", lambda: RoPE()(X.to(torch.complex64))),
    (ShapeError, "sin: not given", lambda: RoPE()(X, cos=X[0, 0, :, :4])),
    (ShapeError, "cos: not given", lambda: RoPE()(X, sin=X[0, 0, :, :4])),
    (ShapeError, "cos: got torch.int64", lambda: RoPE()(X, X[0, 0, :, :4].long(), X[0, 0, :, :4])),
    (ShapeError, r"cos: got shape \[5, 8\], .*broadcastable to \[2, 3, 5, 4\]", lambda: RoPE()(X, X[0, 0], X[0, 0])),
    (ShapeError, r"sin: got shape \[4, 4\]", lambda: RoPE()(X, X[0, 0, :, :4], X[0, 0, :4, :4])),
    (ShapeError, r"sin: got shape \[1, 2, 3, 5, 4\]", lambda: RoPE()(X, X[..., :4], X[None, ..., :4])),
    (ShapeError, "position_ids: got torch.float32, integers", lambda: RoPE()(X, position_ids=X[0, 0, :, 0])),
    (ShapeError, "position_ids: got torch.bool", lambda: RoPE()(X, position_ids=X[0, 0, :, 0].bool())),
    (ShapeError, r"position_ids: got shape \[4\]", lambda: RoPE()(X, position_ids=torch.arange(4))),
    (ShapeError, r"position_ids: got shape \[3, 5\]", lambda: RoPE()(X, position_ids=torch.arange(15).view(3, 5))),
    (ShapeError, r"position_ids: got shape \[\], allowed", lambda: RoPE()(X, position_ids=torch.tensor(3))),
    (ShapeError, "position_ids: got 18446744073709551615", lambda: RoPE()(
        X, position_ids=torch.from_numpy(np.full(5, 2**64 - 1, np.uint64)))),
    (ShapeError, r"offset: got shape \[3\], allowed are \[\], \[1\], \[2\], \[2, 1\]", lambda: RoPE()(
        X, offset=torch.arange(3))),
    (ShapeError, "offset: got torch.float32", lambda: RoPE()(X, offset=torch.tensor(1.0))),
    (ShapeError, "offset: got 1.5 of type float", lambda: RoPE()(X, offset=1.5)),
    (ShapeError, "offset: got True of type bool", lambda: RoPE()(X, offset=True)),
    (ShapeError, r"offset: got 9223372036854775807, .*2\*\*63", lambda: RoPE()(X, offset=2**63 - 1)),
    (ShapeError, r"freqs: got shape \[3\], .*\[4\]", lambda: RoPE()(X, freqs=torch.ones(3))),
    (ShapeError, "freqs: got torch.int64", lambda: RoPE()(X, freqs=torch.arange(4))),
    (ShapeError, r"^offset: got 9223372036854775808, allowed are", lambda: RoPE()(X, offset=2**63)),
    (ShapeError, r"^offset: got -9223372036854775809, allowed are", lambda: RoPE()(X, offset=-(2**63) - 1)),
    (ShapeError, r"^offset: got an integer of 16610 bits", lambda: RoPE()(X, offset=10**5000)),
    (ShapeError, r"^offset: got a list that cannot be printed", lambda: RoPE()(X, offset=[10**5000])),
    *((ShapeError, rf"^{name}: got {type(given).__name__}, a torch tensor is needed",
       lambda name=name, given=given: RoPE()(**{"input": X, name: given}))
      for name in ("input", "cos", "sin", "position_ids", "freqs")
      for given in ([1.0, 2.0, 3.0, 4.0], np.ones((2, 3, 5, 4), np.float32), 3, "a", {1}, True)),
    (ShapeError, r"^input: got NoneType, a torch tensor is needed", lambda: RoPE()(None)),
    (ConfigError, r"^freqs\[1\]: got 1e\+300, it must be finite and at most", lambda: RoPE()(
        X, freqs=torch.tensor([1.0, 1e300, 1.0, 1.0], dtype=torch.float64))),
    (ConfigError, r"^base: got 1e\+300", lambda: RoPE(base=1e300)(X)),
    (ConfigError, r"^base: got 1e-300", lambda: RoPE(base=1e-300)(X)),
    (ConfigError, r"^scale: got 1e\+300", lambda: RoPE(scale=-1e300)(X)),
    (ConfigError, r"^scale: got 1e-300", lambda: RoPE(scale=1e-300)(X)),
    (ConfigError, r"^scale: got an integer of 16610 bits, it must be finite", lambda: RoPE(scale=10**5000)),
    (ConfigError, r"^base: got an integer of 1329 bits, it must be finite", lambda: RoPE(base=10**400)),
    (ConfigError, r"^base: got a list that cannot be printed", lambda: RoPE(base=[10**5000])),
    (ConfigError, r"^dims: got 9223372036854775808, at most", lambda: RoPE(dims=2**63)),
    (ConfigError, r"^dims: got an integer of 16611 bits, it must be even", lambda: RoPE(dims=10**5000 * 2 + 1)),
    (ConfigError, r"^dims: got 16384, at most 8192", lambda: RoPE()(torch.ones(1, 2, 16384))),
    (ConfigError, r"^dims: got 16384, at most 8192", lambda: RoPE()(
        torch.ones(1, 2, 16384), torch.ones(2, 8192), torch.ones(2, 8192))),
    (ConfigError, r"freqs\[2\]: got nan", lambda: RoPE()(X, freqs=torch.tensor([1.0, 1.0, float("nan"), 1.0]))),
    (ConfigError, "dims: got 3, it must be even", lambda: RoPE(dims=3)),
    (ConfigError, "dims: got 0", lambda: RoPE(dims=0)),
    (ConfigError, "dims: got 4.0 of type float", lambda: RoPE(dims=4.0)),
    (ConfigError, "base: got -1.0", lambda: RoPE(base=-1)),
    (ConfigError, "base: got nan", lambda: RoPE(base=float("nan"))),
    (ConfigError, "scale: got inf", lambda: RoPE(scale=float("inf"))),
    (ConfigError, "scale: got '1' of type str", lambda: RoPE(scale="1")),
    (ConfigError, "interleaved: got 'yes'", lambda: RoPE(interleaved="yes")),
    (ShapeError, "input: got layout torch.sparse_coo", lambda: RoPE()(X.to_sparse())),
    (DeviceError, "freqs: got a tensor on meta; only CPU tensors", lambda: _check_memory(
        "freqs", torch.ones(4, device="meta"))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


CONFIGS = {
    "factors": clrope.RopeConfig.preset("llama-3.1-8b"),
    "YaRN": clrope.RopeConfig("normal", 32, freq_scale=0.25, ext_factor=1.0, n_ctx_orig=4096),
    "window": clrope.RopeConfig("neox", 32, n_offs=8, freq_scale=0.5),
    "ggml": clrope.RopeConfig("neox", angles="ggml", attn_factor=1.5),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_module_of_a_configuration(device, gen, config):
    """It has the bits of `clrope.rope`, gradients, and copies of its own."""
    module = RoPE.from_config(config)
    assert module.config == config
    x = rand(gen, 2, 3, 5, 128, grad=True)
    for given, positions in (
        ({}, 0),
        ({"offset": 7}, 7),
        ({"offset": torch.tensor([3, 900])}, [[3], [900]]),
        ({"position_ids": torch.tensor([9, -1, 4, 0, 2])}, [9, -1, 4, 0, 2]),
    ):
        y = module(x, **given)
        assert torch.equal(y.detach(), clrope.rope(x.detach(), positions, config, layout="bnsd"))
        g = rand(gen, *y.shape)
        (gradient,) = torch.autograd.grad(y, x, g)
        assert torch.equal(gradient, clrope.rope(g, positions, config, forward=False, layout="bhsd"))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.config == config
        assert torch.equal(other(x), module(x))
    exported = torch.export.export(module, (x.detach(),))
    assert torch.equal(exported.module()(x.detach()), module(x))
    with pytest.raises(ShapeError, match="freqs: given to a module made from a configuration"):
        module(x, freqs=torch.ones(64))
    with pytest.raises(ShapeError, match="cos, sin: given to a module made from a configuration"):
        module(x, torch.ones(5, 64), torch.ones(5, 64))


def test_configurations_without_a_module(device):
    assert RoPE().config is None
    with pytest.raises(ConfigError, match="config: got dict, a RopeConfig is needed"):
        RoPE.from_config({"mode": "neox"})
    with pytest.raises(ConfigError, match="mode: got 'mrope', allowed are 'normal', 'neox'"):
        RoPE.from_config(clrope.RopeConfig("mrope", sections=(1, 1, 1)))
    with pytest.raises(ConfigError, match="n_dims: got 256, at most head_dim = 128"):
        RoPE.from_config(clrope.RopeConfig("neox", 256))(torch.ones(1, 1, 2, 128))


def test_a_module_with_an_operation_is_copied(device):
    """And one with a plan, which would share its arrays, is not."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = clrope.Rope(clrope.RopeConfig("neox"), device.index)
            self.weight = torch.nn.Parameter(torch.ones(3))

    x, module = torch.ones(1, 2, 3, 16), Attention()
    for _ in range(2):
        other = copy.deepcopy(module)
        assert other.rope is not module.rope
        assert torch.equal(other.rope(x, 5), module.rope(x, 5))
    module.plan = module.rope.plan(x, 0)
    with pytest.raises(clrope.RopeError, match="plan: it is bound to its arrays"):
        copy.deepcopy(module)


def test_refused_while_exporting(gen):
    """The fake implementation refuses as well, before anything runs."""
    with pytest.raises(Exception, match="freqs: got shape"):
        torch.export.export(RoPE(), (X,), {"freqs": torch.ones(3)})


def test_clrope_alone_does_not_import_torch():
    code = "import sys, clrope, clrope.interop; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_is_refused(device):
    x = torch.rand(2, 3, 5, 16)
    with pytest.raises(ConfigError, match="no rule for forward-mode differentiation"):
        torch.func.jvp(RoPE(), (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ConfigError, match="forward-mode"):
        RoPE()(torch.autograd.forward_ad.make_dual(x, x))
    assert RoPE()(x).shape == x.shape


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_gives_what_a_loop_gives(device):
    x, positions = torch.rand(4, 2, 3, 5, 16), torch.randint(0, 99, (4, 5))
    got = torch.vmap(lambda a, p: RoPE(base=100.0)(a, position_ids=p))(x, positions)
    assert torch.equal(
        got, torch.stack([RoPE(base=100.0)(a, position_ids=p) for a, p in zip(x, positions, strict=True)])
    )
