"""The ONNX adapter against onnx's own node tests, ONNX Runtime, and float64 formulas written here."""

from __future__ import annotations

import unittest
import warnings
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from clrope.errors import ConfigError, DeviceError, ShapeError
from clrope.interop.onnx import Backend, rotary_embedding, rotary_embedding_ms

DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
LIMITS = {"f32": 1e-12, "f16": 6e-8, "bf16": 4e-6}
BOTH = pytest.mark.parametrize("interleaved", [0, 1], ids=["halves", "neighbours"])
TYPES = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(autouse=True)
def _on_device(request, monkeypatch):
    """Tests that take `device` run there."""
    if "device" in request.fixturenames:
        monkeypatch.setenv("CLROPE_DEVICE", request.getfixturevalue("device").index)


def expected(x, cos, sin, interleaved, rotated):
    """x [b, n, s, h] by cos and sin [b, s, rotated / 2], in float64."""
    out = x.astype(np.float64)
    cos, sin = (t.astype(np.float64)[:, None] for t in (cos, sin))
    first, second = (np.arange(0, rotated, 2), np.arange(1, rotated, 2))
    if not interleaved:
        first, second = np.arange(rotated // 2), np.arange(rotated // 2, rotated)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def close(got, want, x, dtype):
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    nmse = float(((got.astype(np.float64) - want) ** 2).sum() / (want**2).sum())
    assert nmse <= LIMITS[dtype], f"NMSE {nmse:.3g}, {LIMITS[dtype]:.3g} is allowed"


def uniform(rng, *shape, dtype="f32"):
    return rng.uniform(-1, 1, shape).astype(DTYPES[dtype])


def to_3d(x):
    b, n, s, h = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(b, s, n * h)


def draw(rng, dtype):
    """A case: x [b, n, s, h], caches with more rows than needed, ids, rotary_embedding_dim and what it means."""
    b, n, s = (int(k) for k in rng.integers(1, 6, 3))
    # Enough elements that the mean of their roundings is one.
    h = 2 * int(rng.integers(1, 40)) + 64 * (dtype != "f32")
    n, s = n + 4 * (dtype != "f32"), s + 4 * (dtype != "f32")
    rotary_embedding_dim = 0 if rng.random() < 0.5 else 2 * int(rng.integers(1, h // 2 + 1))
    rotated = rotary_embedding_dim or h
    rows = s + int(rng.integers(0, 50))
    x = uniform(rng, b, n, s, h, dtype=dtype)
    cos, sin = (uniform(rng, rows, rotated // 2, dtype=dtype) for _ in range(2))
    ids = rng.integers(0, rows, (b, s))
    print(f"{b=} {n=} {s=} {h=} {rotary_embedding_dim=} {rows=}")
    return x, cos, sin, ids, rotary_embedding_dim, rotated


@pytest.mark.one_in(8)
@BOTH
@TYPES
def test_opset_23(device, rng, dtype, interleaved):
    for _ in range(4):
        x, cos, sin, ids, dim, rotated = draw(rng, dtype)
        want = expected(x, cos[ids], sin[ids], interleaved, rotated)
        given = {"interleaved": interleaved, "rotary_embedding_dim": dim}
        close(rotary_embedding(x, cos, sin, ids, **given), want, x, dtype)
        close(rotary_embedding(x, cos[ids], sin[ids], **given), want, x, dtype)
        flat = to_3d(x)
        before = flat.copy()
        for tables in ((cos, sin, ids), (cos[ids], sin[ids])):
            got = rotary_embedding(flat, *tables, num_heads=x.shape[1], **given)
            close(got, to_3d(want), flat, dtype)
        assert np.array_equal(flat.view(np.uint8), before.view(np.uint8))


@pytest.mark.one_in(8)
@BOTH
@TYPES
def test_com_microsoft(device, rng, dtype, interleaved):
    for _ in range(4):
        x, cos, sin, ids, dim, rotated = draw(rng, dtype)
        b, n, s, _ = x.shape
        first = int(rng.integers(0, cos.shape[0] - s + 1))
        offset = np.broadcast_to(np.arange(first, first + s), (b, s))
        given = {"interleaved": interleaved, "rotary_embedding_dim": dim}
        for positions, rows in ((ids, ids), (np.array([first]), offset), (np.array(first), offset)):
            want = expected(x, cos[rows], sin[rows], interleaved, rotated)
            close(rotary_embedding_ms(x, positions, cos, sin, **given), want, x, dtype)
            close(
                rotary_embedding_ms(to_3d(x), positions, cos, sin, num_heads=n, **given), to_3d(want), to_3d(x), dtype
            )
            if not dim:
                close(rotary_embedding_ms(to_3d(x), positions, cos, sin, **given), to_3d(want), to_3d(x), dtype)
        # More tokens than rows: packed sequences.
        if s > 1:
            few = ids % (s - 1)
            want = expected(x, cos[few], sin[few], interleaved, rotated)
            tables = (cos[: s - 1], sin[: s - 1])
            close(rotary_embedding_ms(x, few, *tables, is_packed_batching=1, **given), want, x, dtype)


def test_memory_in_any_order(device, rng):
    """A transposed input, a 3-D slice of a fused projection, and caches that are slices of one table."""
    x = uniform(rng, 2, 6, 4, 16).transpose(0, 2, 1, 3)
    both = uniform(rng, 9, 16)
    cos, sin, ids = both[:, :8], both[:, 8:], rng.integers(0, 9, (2, 6))
    want = expected(x, cos[ids], sin[ids], 0, 16)
    close(rotary_embedding(x, cos, sin, ids), want, x, "f32")
    fused = uniform(rng, 2, 6, 3 * 64)
    q = fused[..., 64:128]
    heads = q.reshape(2, 6, 4, 16).transpose(0, 2, 1, 3)
    close(rotary_embedding(q, cos, sin, ids, num_heads=4), to_3d(expected(heads, cos[ids], sin[ids], 0, 16)), q, "f32")


def test_opencl_arrays(device, rng):
    import pyopencl.array as cla

    from clrope.call.runtime import queue_for

    queue = queue_for(device)
    x, cos, sin, ids, dim, rotated = draw(rng, "f32")
    on_device = [cla.to_device(queue, a) for a in (to_3d(x), cos, sin)]
    got = rotary_embedding(*on_device, ids, num_heads=x.shape[1], rotary_embedding_dim=dim, device=queue)
    assert isinstance(got, cla.Array)
    close(got.get(), to_3d(expected(x, cos[ids], sin[ids], 0, rotated)), to_3d(x), "f32")


def test_empty_tensors():
    tables = np.ones((5, 4), np.float32), np.ones((5, 4), np.float32)
    for shape in [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8)]:
        ids = np.zeros((shape[0], shape[2]), np.int64)
        assert rotary_embedding(np.ones(shape, np.float32), *tables, ids).shape == shape
        assert rotary_embedding_ms(np.ones(shape, np.float32), ids, *tables).shape == shape


# ---- ONNX Runtime -----------------------------------------------------------------------------------------------


def model_of(domain, values, **attributes):
    """A model of one node, whose inputs are `values` in order (None: left out)."""
    from onnx import TensorProto, helper

    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
             np.dtype(np.int64): TensorProto.INT64, DTYPES["bf16"]: TensorProto.BFLOAT16}  # fmt: skip
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(values)]
    node = helper.make_node("RotaryEmbedding", names, ["y"], domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, types[v.dtype], v.shape)
        for name, v in zip(names, values, strict=True)
        if v is not None
    ]
    output = helper.make_tensor_value_info("y", types[values[0].dtype], values[0].shape)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "rope", inputs, [output])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_ort(model, values):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"i{k}": v for k, v in enumerate(values) if v is not None})[0]


def same_as_ort(got, want, dtype):
    # float16 is computed in float32 or in float16 steps there, as the CPU has it: up to two roundings more.
    tolerance = {"f32": 1e-6, "f16": 3e-3}[dtype]
    assert got.dtype == want.dtype
    assert np.abs(got.astype(np.float64) - want).max() <= tolerance


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_opset_23_as_onnx_runtime(device, rng, dtype, interleaved):
    pytest.importorskip("onnx")
    for _ in range(4):
        x, cos, sin, ids, dim, _ = draw(rng, dtype)
        heads = x.shape[1]
        for values in ((x, cos, sin, ids), (x, cos[ids], sin[ids]), (to_3d(x), cos, sin, ids)):
            attributes = {"interleaved": interleaved, "rotary_embedding_dim": dim, "num_heads": heads}
            model = model_of("", values, **attributes)
            want = run_ort(model, values)
            same_as_ort(rotary_embedding(*values, **attributes), want, dtype)
            assert np.array_equal(Backend.run_model(model, list(values))[0], rotary_embedding(*values, **attributes))


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_com_microsoft_as_onnx_runtime(device, rng, dtype, interleaved):
    pytest.importorskip("onnx")
    for _ in range(4):
        x, cos, sin, ids, dim, _ = draw(rng, dtype)
        offset = np.array([int(rng.integers(0, cos.shape[0] - x.shape[2] + 1))])
        few = ids % max(1, x.shape[2] - 1)
        rows = int(few.max()) + 1
        for attributes, values in (
            ({}, (x, ids, cos, sin)),
            ({}, (x, offset, cos, sin)),
            ({}, (to_3d(x), offset, cos, sin)),
            ({"scale": 2.5}, (x, ids, cos, sin)),
            ({"is_packed_batching": 1}, (x, few, cos[:rows].copy(), sin[:rows].copy())),
        ):
            given = {**attributes, "interleaved": interleaved, "rotary_embedding_dim": dim, "num_heads": x.shape[1]}
            model = model_of("com.microsoft", values, **given)
            want = run_ort(model, values)
            same_as_ort(rotary_embedding_ms(*values, **given), want, dtype)
            assert np.array_equal(Backend.run_model(model, list(values))[0], rotary_embedding_ms(*values, **given))


# ---- the onnx package -------------------------------------------------------------------------------------------


@pytest.mark.one_in(6)
def test_onnx_node_tests(device):
    """All of onnx's node tests of the operator but those whose function body is written out in other operators."""
    pytest.importorskip(
        "onnx", minversion="1.19.1", reason="before, three of the node tests had caches of a wrong width"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the tests of other operators divides by zero on purpose
        import onnx.backend.test

        runner = onnx.backend.test.BackendTest(Backend, __name__)
    runner.include("^test_rotary_embedding").exclude("_expanded")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(runner.test_cases["OnnxBackendNodeModelTest"])
    tests, result = set(suite), unittest.TestResult()
    suite.run(result)
    assert not result.failures, result.failures[0][1]
    assert not result.errors, result.errors[0][1]
    # Not by `testsRun`: Python 3.12.1 leaves skipped tests out of it.
    assert len(tests - {test for test, _ in result.skipped}) >= 8


def test_backend_runs_graphs_nodes_and_initializers(device, rng):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    x, cos, sin, ids = uniform(rng, 2, 3, 4, 8), uniform(rng, 9, 4), uniform(rng, 9, 4), rng.integers(0, 9, (2, 4))
    nodes = [
        helper.make_node("RotaryEmbedding", ["x", "cos", "sin", "ids"], ["middle"]),
        helper.make_node("RotaryEmbedding", ["middle", "ids", "cos", "sin"], ["y"], domain="com.microsoft"),
    ]
    graph = helper.make_graph(
        nodes, "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
         helper.make_tensor_value_info("ids", TensorProto.INT64, ids.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape),
         helper.make_tensor_value_info("middle", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(cos, "cos"), numpy_helper.from_array(sin, "sin")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert Backend.is_compatible(model)
    middle = rotary_embedding(x, cos, sin, ids)
    y = rotary_embedding(middle, cos, sin, ids)
    prepared = Backend.prepare(model, f"OPENCL:{device.index}")
    for outputs in (prepared.run([x, ids]), prepared.run({"ids": ids, "x": x})):
        assert np.array_equal(outputs[0], y)
        assert np.array_equal(outputs[1], middle)
    assert np.array_equal(Backend.run_node(nodes[0], [x, cos, sin, ids], opset_version=23)[0], middle)
    with pytest.raises(ShapeError, match="inputs: got 1, the model takes x, ids"):
        prepared.run([x])
    with pytest.raises(ConfigError, match=r"ai\.onnx\.Relu"):
        Backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    relu = helper.make_node("Relu", ["x"], ["middle"])
    del graph.node[0]
    graph.node.insert(0, relu)
    other = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert not Backend.is_compatible(other)
    with pytest.raises(ConfigError, match=r"model: got operator ai\.onnx\.Relu .*allowed are ai.onnx.RotaryEmbedding"):
        Backend.prepare(other)
    with pytest.raises(DeviceError, match="device: got 'CUDA', allowed are 'CPU'"):
        Backend.prepare(model, "CUDA")
    assert [Backend.supports_device(d) for d in ("CPU", "OPENCL", "CUDA", "OPENCL:none such")] == [
        True, True, False, False,
    ]  # fmt: skip
    with pytest.raises(onnx.checker.ValidationError):
        Backend.prepare(onnx.ModelProto())


def test_backend_names_what_it_is_not_given():
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    node = helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"])
    given = [X4, T3, T3]
    takes = "X, cos_cache, sin_cache, position_ids"
    for inputs in ([], given[:2], [*given, IDS, IDS]):
        with pytest.raises(ShapeError, match=f"^inputs: got {len(inputs)}, RotaryEmbedding takes {takes}$"):
            Backend.run_node(node, inputs)
    for inputs in (None, 5, "abc", {"x": X4}, {1, 2, 3}, np.ones((3, 2, 4, 8), np.float32)):
        with pytest.raises(ShapeError, match=f"^inputs: got {type(inputs).__name__}, a list of arrays is needed"):
            Backend.run_node(node, inputs)
    for version in ("x", None, 23.0, True, [23], 10**5000, 0):
        with pytest.raises(ConfigError, match=r"^opset_version: got"):
            Backend.run_node(node, given, opset_version=version)
    for device in (3, None, ["CPU"], b"CPU", 10**5000):
        with pytest.raises(DeviceError, match=r"^device: got .*, allowed are 'CPU'"):
            Backend.run_node(node, given, device=device)
        assert not Backend.supports_device(device)
    with pytest.raises(ConfigError, match=r"^node: got NoneType, an onnx.NodeProto is needed"):
        Backend.run_node(None, given)
    for call in (Backend.prepare, Backend.is_compatible, partial(Backend.run_model, inputs=given)):
        for model in (None, b"", node):
            with pytest.raises(ConfigError, match=r"^model: got .*, an onnx.ModelProto is needed"):
                call(model)
    unread = onnx.NodeProto()
    unread.CopyFrom(node)
    unread.attribute.add(name="interleaved", ref_attr_name="given", type=onnx.AttributeProto.INT)
    with pytest.raises(ConfigError, match=r"^model: an attribute of RotaryEmbedding cannot be read"):
        Backend.run_node(unread, given)

    def model(names, outputs, made):
        node = helper.make_node("RotaryEmbedding", names, made, domain="com.microsoft")
        values = {"x": X4, "ids": IDS, "cos": T, "sin": T}
        infos = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name == "ids" else TensorProto.FLOAT, values[name].shape
            )
            for name in values
        ]
        y = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X4.shape) for name in outputs]
        graph = helper.make_graph([node], "g", infos, y)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    names = ["x", "ids", "cos", "sin"]
    prepared = Backend.prepare(model(names, ["y"], ["y"]))
    for inputs in (None, 5, np.ones((4, 2)), {1, 2, 3, 4}):
        with pytest.raises(ShapeError, match=f"^inputs: got {type(inputs).__name__}, a list of arrays is needed"):
            prepared.run(inputs)
    # onnx's checker does not know this operator.
    for few, made in ((names[:2], ["y"]), ([*names, "x"], ["y"]), (names, ["y", "z"])):
        with pytest.raises(ConfigError, match=r"^model: got \d inputs and \d outputs .*input, position_ids, cos_cache"):
            Backend.prepare(model(few, ["y"], made))
    sparse = model(names, ["y"], ["y"])
    del sparse.graph.input[2]
    values = helper.make_tensor("cos", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [0])
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, T.shape))
    with pytest.raises(ConfigError, match=r"^model: 'cos' is made by no node, initializer or input"):
        Backend.prepare(sparse)


# ---- refusals ---------------------------------------------------------------------------------------------------

X4, X3 = np.ones((2, 3, 4, 8), np.float32), np.ones((2, 4, 24), np.float32)
T, T3 = np.ones((9, 4), np.float32), np.ones((2, 4, 4), np.float32)
IDS = np.zeros((2, 4), np.int64)
REFUSED = [
    (ShapeError, r"X: got shape \[4, 8\]", lambda: rotary_embedding(X4[0, 0], T, T, IDS)),
    (ShapeError, "X: got dtype float64", lambda: rotary_embedding(X4.astype(float), T, T, IDS)),
    (ShapeError, "X: got dtype int32", lambda: rotary_embedding(X4.astype(np.int32), T, T, IDS)),
    (ShapeError, "cos_cache: got dtype float16, the input's float32", lambda: rotary_embedding(
        X4, T.astype(np.float16), T, IDS)),
    (ShapeError, "sin_cache: got dtype float16", lambda: rotary_embedding(X4, T, T.astype(np.float16), IDS)),
    (ShapeError, "num_heads: got 0, it must be given for 3-D X", lambda: rotary_embedding(X3, T, T, IDS)),
    (ShapeError, "hidden_size 24, which 5 heads do not divide", lambda: rotary_embedding(X3, T, T, IDS, num_heads=5)),
    (ConfigError, "num_heads: got -1", lambda: rotary_embedding(X3, T, T, IDS, num_heads=-1)),
    (ShapeError, "head_size: got 7, it must be even", lambda: rotary_embedding(X4[..., :7], T, T, IDS)),
    (ConfigError, "rotary_embedding_dim: got 10, .*head_size 8", lambda: rotary_embedding(
        X4, T, T, IDS, rotary_embedding_dim=10)),
    (ConfigError, "rotary_embedding_dim: got 5", lambda: rotary_embedding(X4, T, T, IDS, rotary_embedding_dim=5)),
    (ConfigError, "rotary_embedding_dim: got -2", lambda: rotary_embedding(X4, T, T, IDS, rotary_embedding_dim=-2)),
    (ConfigError, "rotary_embedding_dim: got 4.0", lambda: rotary_embedding(X4, T, T, IDS, rotary_embedding_dim=4.0)),
    (ConfigError, "interleaved: got 2", lambda: rotary_embedding(X4, T, T, IDS, interleaved=2)),
    (ShapeError, r"cos_cache: got shape \[9, 4\], \[max_position, R / 2 = 2\]", lambda: rotary_embedding(
        X4, T, T, IDS, rotary_embedding_dim=4)),
    (ShapeError, r"cos_cache: got shape \[9, 8\]", lambda: rotary_embedding(X4, np.tile(T, 2), T, IDS)),
    (ShapeError, r"sin_cache: got shape \[8, 4\], cos_cache has \[9, 4\]", lambda: rotary_embedding(X4, T, T[1:], IDS)),
    (ShapeError, r"cos_cache: got shape \[9, 4\], .* without position_ids", lambda: rotary_embedding(X4, T, T)),
    (ShapeError, r"cos_cache: got shape \[2, 4, 4\], .* with position_ids", lambda: rotary_embedding(X4, T3, T3, IDS)),
    (ShapeError, r"cos_cache: got shape \[1, 4, 4\]", lambda: rotary_embedding(X4, T3[:1], T3[:1])),
    (ShapeError, r"position_ids: got shape \[1, 4\]", lambda: rotary_embedding(X4, T, T, IDS[:1])),
    (ShapeError, r"position_ids: got shape \[1\]", lambda: rotary_embedding(X4, T, T, np.array([1]))),
    (ShapeError, "position_ids: got dtype float64", lambda: rotary_embedding(X4, T, T, IDS * 1.0)),
    (ShapeError, "position_ids: position 9 .*rows 0 ... 8", lambda: rotary_embedding(X4, T, T, IDS + 9)),
    (ShapeError, "position_ids: position -1 ", lambda: rotary_embedding(X4, T, T, IDS - 1)),
    (ShapeError, "position_ids: position 9 ", lambda: rotary_embedding_ms(X4, np.array([6]), T, T)),
    (ShapeError, "position_ids: position -1 ", lambda: rotary_embedding_ms(X4, np.array([-1]), T, T)),
    (ShapeError, r"position_ids: got shape \[2\], \[1\] or", lambda: rotary_embedding_ms(X4, np.array([1, 2]), T, T)),
    (ShapeError, "cos_cache: got 3 rows for a sequence of 4", lambda: rotary_embedding_ms(X4, IDS, T[:3], T[:3])),
    (ShapeError, "num_heads: got 0, .*rotary_embedding_dim", lambda: rotary_embedding_ms(
        X3, IDS, T[:, :2], T[:, :2], rotary_embedding_dim=4)),
    (ShapeError, "hidden_size 24", lambda: rotary_embedding_ms(X3, IDS, T[:, :1], T[:, :1], num_heads=7)),
    (ConfigError, "scale: got nan", lambda: rotary_embedding_ms(X4, IDS, T, T, scale=float("nan"))),
    *((ConfigError, r"^scale: got", lambda given=given: rotary_embedding_ms(X4, IDS, T, T, scale=given))
      for given in (10**400, -(10**5000), True, "1", None, [1.0], 1j, np.complex64(1), np.timedelta64(1, "s"))),
    *((ConfigError, rf"^{name}: got", lambda given=given, call=call, name=name: call(**{name: given}))
      for given in (np.array([4, 4]), None, "4", True, 4.0, [4], 10**5000, [10**5000], np.timedelta64(4, "s"))
      for name in ("num_heads", "rotary_embedding_dim")
      for call in (partial(rotary_embedding, X4, T, T, IDS), partial(rotary_embedding_ms, X4, IDS, T, T))),
    (ConfigError, "interleaved: got array", lambda: rotary_embedding(X4, T, T, IDS, interleaved=np.array([1, 0]))),
    *((ShapeError, r"^position_ids: got", lambda given=given, call=call: call(given))
      for given in ([[1], [1, 2]], {1, 2}, b"12", [[2**70] * 4] * 2, np.ma.masked_array(IDS), [["a"] * 4] * 2)
      for call in (partial(rotary_embedding, X4, T, T), lambda ids: rotary_embedding_ms(X4, ids, T, T))),
    (ShapeError, r"^X: list cannot be read", lambda: rotary_embedding([[1.0], [1.0, 2.0]], T, T, IDS)),
    (ShapeError, r"^X: got a masked array", lambda: rotary_embedding(np.ma.masked_array(X4), T, T, IDS)),
    (ShapeError, r"^input: list cannot be read", lambda: rotary_embedding_ms([[1.0], [1.0, 2.0]], IDS, T, T)),
    (ShapeError, r"^cos_cache: list cannot be read", lambda: rotary_embedding(X4, [[1.0], [1.0, 2.0]], T, IDS)),
    (ShapeError, r"^sin_cache: got a masked", lambda: rotary_embedding_ms(X4, IDS, T, np.ma.masked_array(T))),
    (ConfigError, "is_packed_batching: got 3", lambda: rotary_embedding_ms(X4, IDS, T, T, is_packed_batching=3)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()
