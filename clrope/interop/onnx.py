"""RoPE as ONNX defines it: RotaryEmbedding of opset 23 and of com.microsoft, and a `Backend` for models of them.

Sources: the operator's schema (https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html) and ONNX Runtime's
`docs/ContribOperators.md#com.microsoft.RotaryEmbedding`; where the latter is silent, what its CPU provider does.
The onnx package is needed by `Backend` only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import integer
from ..arrays import is_opencl_array
from ..device import device as select_device
from ..device import devices
from ..errors import ConfigError, DeviceError, ShapeError, reading, shown
from ..integers import is_integer
from ..layout import dtype_name
from ..positions import integers
from ..tables import rotate

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

#: Both operators' T: float, float16, bfloat16.
_TYPES = ("f32", "f16", "bf16")


def rotary_embedding(
    X: Any,
    cos_cache: Any,
    sin_cache: Any,
    position_ids: Any = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    device: Any = None,
) -> Any:
    """Return Y of RotaryEmbedding, opset 23, as a new array of X's shape and dtype.

    X:                    [batch, num_heads, sequence, head_size], or [batch, sequence, hidden_size] with num_heads;
                          float32, float16 or bfloat16, a NumPy or PyOpenCL array.
    cos_cache, sin_cache: [max_position_id_plus_1, R / 2] with position_ids, [batch, sequence, R / 2] without;
                          of X's dtype. R is rotary_embedding_dim, or head_size where that is 0.
    position_ids:         [batch, sequence], 0 <= id <= max_position_id.
    interleaved:          1: pairs (2i, 2i + 1); 0: pairs (i, i + R / 2).
    num_heads:            needed for 3-D X, not looked at for 4-D.
    device:               as for `clrope.rope`; not an attribute of the operator.

    Raises `ShapeError`, `ConfigError` (both `ValueError`), `DeviceError`, `BuildError`.
    """
    x, batch, seq = _input(X, "X")
    num_heads = integer("num_heads", num_heads, 0)
    if len(x.shape) == 3 and not num_heads:
        raise ShapeError(f"num_heads: got 0, it must be given for 3-D X, which has shape {list(x.shape)}")
    heads, layout = _split(x, "X", num_heads)
    rotated = _rotated(rotary_embedding_dim, heads.shape[3])
    cos, sin = _caches(cos_cache, sin_cache, x)
    if position_ids is None:
        _check_caches(cos, sin, [batch, seq, rotated // 2], "without position_ids")
        return _rotate(heads, cos, sin, None, interleaved, layout, device, rotated, x.shape)
    _check_caches(cos, sin, [None, rotated // 2], "with position_ids")
    ids = integers(position_ids, "position_ids")
    if ids.shape != (batch, seq):
        raise ShapeError(f"position_ids: got shape {list(ids.shape)}, [batch, sequence] = [{batch}, {seq}] needed")
    _check_range(ids, 0, cos.shape[0])
    return _rotate(heads, cos, sin, ids, interleaved, layout, device, rotated, x.shape)


def rotary_embedding_ms(
    input: Any,
    position_ids: Any,
    cos_cache: Any,
    sin_cache: Any,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    device: Any = None,
) -> Any:
    """Return the output of com.microsoft.RotaryEmbedding as a new array of the input's shape and dtype.

    input:                [batch, sequence, hidden_size] or [batch, num_heads, sequence, head_size]; float32, float16 or
                          bfloat16, a NumPy or PyOpenCL array.
    position_ids:         [1] or []: the position of every batch's first token; or [batch, sequence].
    cos_cache, sin_cache: [max_sequence_length, R / 2], of the input's dtype. R is rotary_embedding_dim, or head_size
                          where that is 0.
    interleaved:          1: pairs (2i, 2i + 1); 0: pairs (i, i + R / 2).
    is_packed_batching:   1 allows more tokens than the caches have rows: a batch of packed sequences. Nothing else.
    num_heads:            for 3-D input; 0: it follows from R where rotary_embedding_dim is 0.
    scale:                an attribute of the schema that ONNX Runtime reads and does not use: it changes nothing here
                          either. Scaling positions is up to the maker of the caches.
    device:               as for `clrope.rope`; not an attribute of the operator.

    Raises `ShapeError`, `ConfigError` (both `ValueError`), `DeviceError`, `BuildError`.
    """
    x, batch, seq = _input(input, "input")
    cos, sin = _caches(cos_cache, sin_cache, x)
    _flag("is_packed_batching", is_packed_batching)
    _check_finite("scale", scale)
    num_heads = integer("num_heads", num_heads, 0)
    rotary_embedding_dim = integer("rotary_embedding_dim", rotary_embedding_dim, 0)
    if len(x.shape) == 3 and not num_heads:
        if rotary_embedding_dim:
            raise ShapeError(
                f"num_heads: got 0, it must be given with rotary_embedding_dim ({rotary_embedding_dim}) for 3-D input"
            )
        if len(cos.shape) == 2 and cos.shape[1]:
            num_heads = max(1, x.shape[2] // (2 * cos.shape[1]))
    heads, layout = _split(x, "input", num_heads)
    rotated = _rotated(rotary_embedding_dim, heads.shape[3])
    _check_caches(cos, sin, [None, rotated // 2], "")
    if seq > cos.shape[0] and not is_packed_batching:
        raise ShapeError(
            f"cos_cache: got {cos.shape[0]} rows for a sequence of {seq}; as many are needed unless is_packed_batching"
        )
    ids: Any = integers(position_ids, "position_ids")
    if ids.shape in ((), (1,)):
        _check_range(ids, max(0, seq - 1), cos.shape[0])
        ids = int(ids.reshape(-1)[0])
    elif ids.shape == (batch, seq):
        _check_range(ids, 0, cos.shape[0])
    else:
        raise ShapeError(
            f"position_ids: got shape {list(ids.shape)}, [1] or [batch, sequence] = [{batch}, {seq}] is needed"
        )
    return _rotate(heads, cos, sin, ids, interleaved, layout, device, rotated, x.shape)


class Backend:
    """A backend for the onnx package (`onnx.backend.base.Backend`), of models that hold nothing but RotaryEmbedding.

    Devices: 'CPU' is the device that `clrope.device()` chooses, its tensors in host memory; 'OPENCL:<selector>' any
    that `clrope.device` takes.
    """

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of the model is one of the two operators."""
        opsets = _opsets(_checked(model))
        try:
            for node in model.graph.node:
                _operator(node, opsets)
        except ConfigError:
            return False
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a healthy OpenCL device of that name."""
        try:
            selector = _selector(device)
            return any(d.health.ok for d in devices()) if selector is None else select_device(selector).health.ok
        except DeviceError:
            return False

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Check a model and return what runs it.

        Raises `ConfigError` naming the operator that is not supported, `DeviceError`, and what `onnx.checker` raises.
        """
        import onnx

        onnx.checker.check_model(_checked(model))
        return BackendRep(model, _selector(device))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node on inputs in its order (None for one that is left out). opset_version: 23 if not given.

        Raises `ShapeError` for another number of inputs than the operator takes, and as the operators do.
        """
        from onnx import NodeProto

        if not isinstance(node, NodeProto):
            raise ConfigError(f"node: got {type(node).__name__}, an onnx.NodeProto is needed")
        version = integer("opset_version", kwargs.get("opset_version", 23), 1)
        run = _operator(node, {"": version, "com.microsoft": 1})
        values = _listed(inputs)
        least, names = _input_names(run)
        if not least <= len(values) <= len(names):
            raise ShapeError(f"inputs: got {len(values)}, {node.op_type} takes {', '.join(names)}")
        return (run(*values, device=_selector(device)),)


class BackendRep:
    """A checked model: `run(inputs)` as often as wanted."""

    def __init__(self, model: ModelProto, selector: str | None) -> None:
        from onnx import numpy_helper

        opsets = _opsets(model)
        graph = model.graph
        self._selector = selector
        self._constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._inputs = [i.name for i in graph.input if i.name not in self._constants]
        self._outputs = [o.name for o in graph.output]
        self._steps = [(_operator(node, opsets), list(node.input), node.output[0]) for node in graph.node]
        known = {"", *self._constants, *self._inputs}
        for _, sources, target in self._steps:
            _check_names(sources, known)
            known.add(target)
        _check_names(self._outputs, known)
        if selector is not None:
            select_device(selector)

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> tuple[Any, ...]:
        """Return the graph's outputs for its inputs, given in its order or by name; errors as of the operators."""
        inputs = inputs if isinstance(inputs, Mapping) else _listed(inputs)
        given = inputs if isinstance(inputs, Mapping) else dict(zip(self._inputs, inputs, strict=False))
        missing = [name for name in self._inputs if name not in given]
        unknown = [name for name in given if name not in self._inputs]
        if missing or unknown or len(inputs) != len(self._inputs):
            raise ShapeError(f"inputs: got {len(inputs)}, the model takes {', '.join(self._inputs)}")
        values: dict[str, Any] = {"": None, **self._constants, **given}
        for run, sources, target in self._steps:
            values[target] = run(*[values[name] for name in sources], device=self._selector)
        return tuple(values[name] for name in self._outputs)


#: The operators by domain, each with its first opset; their attributes are the keywords of the function.
_OPERATORS: dict[str, tuple[int, Callable[..., Any]]] = {
    "": (23, rotary_embedding),
    "com.microsoft": (1, rotary_embedding_ms),
}


def _operator(node: NodeProto, opsets: Mapping[str, int]) -> Callable[..., Any]:
    """Return the function of a node with its attributes set; `ConfigError` for what is not supported."""
    from onnx import helper

    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    except ValueError as error:  # a reference in a function
        raise ConfigError(f"model: an attribute of {node.op_type} cannot be read: {error}") from error
    if node.op_type == "RotaryEmbedding" and domain in _OPERATORS:
        first, run = _OPERATORS[domain]
        known = [p.name for p in signature(run).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "device"]
        if opsets.get(domain, 0) >= first and attributes.keys() <= set(known):
            least, names = _input_names(run)
            # onnx's checker does not know the operator of com.microsoft.
            if not least <= len(node.input) <= len(names) or len(node.output) != 1:
                raise ConfigError(
                    f"model: got {len(node.input)} inputs and {len(node.output)} outputs of RotaryEmbedding; allowed "
                    f"are the inputs {', '.join(names)} and one output"
                )
            return partial(run, **attributes)
    raise ConfigError(
        f"model: got operator {node.domain or 'ai.onnx'}.{node.op_type} with attributes "
        f"{', '.join(attributes) or 'none'}; allowed are ai.onnx.RotaryEmbedding from opset 23 on and "
        "com.microsoft.RotaryEmbedding, with their own attributes"
    )


def _input_names(run: Callable[..., Any]) -> tuple[int, list[str]]:
    """Return how many inputs an operator needs, and the names of all that it takes."""
    given = [p for p in signature(run).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return sum(p.default is p.empty for p in given), [p.name for p in given]


def _listed(inputs: Any) -> list[Any]:
    """Return a sequence of inputs as a list. The planes of one array are not taken for inputs."""
    if isinstance(inputs, (str, bytes, Set, Mapping, np.ndarray)) or not isinstance(inputs, Iterable):
        raise ShapeError(f"inputs: got {type(inputs).__name__}, a list of arrays is needed")
    return list(inputs)


def _check_names(names: Sequence[str], known: Set[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"model: {name!r} is made by no node, initializer or input before it is used")


def _checked(model: Any) -> ModelProto:
    from onnx import ModelProto

    if not isinstance(model, ModelProto):
        raise ConfigError(f"model: got {type(model).__name__}, an onnx.ModelProto is needed")
    return model


def _opsets(model: ModelProto) -> dict[str, int]:
    return {"" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in model.opset_import}


def _selector(device: str) -> str | None:
    if isinstance(device, str):
        kind, _, rest = device.partition(":")
        if kind.upper() == "CPU":
            return None
        if kind.upper() == "OPENCL":
            return rest or None
    raise DeviceError(f"device: got {shown(device)}, allowed are 'CPU', 'OPENCL', 'OPENCL:<selector>'")


def _array(value: Any, name: str) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise ShapeError(f"{name}: got a masked array, whose mask would be ignored; pass its `data`")
    with reading(name, value):  # a ragged list, for one
        return value if is_opencl_array(value) else np.asarray(value)


def _input(value: Any, name: str) -> tuple[Any, int, int]:
    """Return the array, and its batch and sequence lengths."""
    x = _array(value, name)
    if len(x.shape) not in (3, 4):
        raise ShapeError(
            f"{name}: got shape {list(x.shape)}, allowed are [batch, sequence, hidden_size] and "
            "[batch, num_heads, sequence, head_size]"
        )
    if x.dtype == np.float64 or dtype_name(x.dtype, name) not in _TYPES:
        raise ShapeError(f"{name}: got dtype {x.dtype}, allowed are float32, float16, bfloat16")
    return x, int(x.shape[0]), int(x.shape[-2])


def _split(x: Any, name: str, num_heads: int) -> tuple[Any, str]:
    """Return the input with an axis of heads, as a view, and its layout."""
    if len(x.shape) == 4:
        return x, "bnsd"
    batch, seq, hidden = x.shape
    if not num_heads or hidden % num_heads:
        raise ShapeError(f"{name}: got hidden_size {hidden}, which {num_heads} heads do not divide")
    with reading(name, x):  # PyOpenCL does not cut an axis of every strided array
        return x.reshape(batch, seq, num_heads, hidden // num_heads), "bsnd"


def _rotated(rotary_embedding_dim: int, head_size: int) -> int:
    """Return how many elements of a head rotate."""
    dim = integer("rotary_embedding_dim", rotary_embedding_dim, 0)
    if dim % 2 or dim > head_size:
        allowed = f"0 and even numbers up to head_size {head_size}"
        raise ConfigError(f"rotary_embedding_dim: got {dim}, allowed are {allowed}")
    if not dim and head_size % 2:
        raise ShapeError(f"head_size: got {head_size}, it must be even")
    return dim or head_size


def _caches(cos_cache: Any, sin_cache: Any, x: Any) -> list[Any]:
    tables = [_array(cos_cache, "cos_cache"), _array(sin_cache, "sin_cache")]
    for name, table in zip(("cos_cache", "sin_cache"), tables, strict=True):
        if table.dtype != x.dtype:
            raise ShapeError(f"{name}: got dtype {table.dtype}, the input's {x.dtype} is needed")
    return tables


def _check_caches(cos: Any, sin: Any, shape: list[int | None], when: str) -> None:
    names = ["max_position", "R / 2"] if len(shape) == 2 else ["batch", "sequence", "R / 2"]
    wanted = ", ".join(name if n is None else f"{name} = {n}" for name, n in zip(names, shape, strict=True))
    for name, table in (("cos_cache", cos), ("sin_cache", sin)):
        got = table.shape
        if len(got) != len(shape) or any(n is not None and n != g for n, g in zip(shape, got, strict=True)):
            raise ShapeError(f"{name}: got shape {list(got)}, [{wanted}] is needed {when}".rstrip())
    if cos.shape != sin.shape:
        raise ShapeError(f"sin_cache: got shape {list(sin.shape)}, cos_cache has {list(cos.shape)}")


def _check_range(ids: Any, above: int, rows: int) -> None:
    """Check that the caches have rows for all ids, and for `id + above`."""
    ends = (int(ids.min()), int(ids.max()) + above) if ids.size else ()
    for bad in (row for row in ends if not 0 <= row < rows):
        raise ShapeError(f"position_ids: position {bad} is needed, cos_cache and sin_cache have rows 0 ... {rows - 1}")


def _flag(name: str, value: object) -> bool:
    if not (isinstance(value, bool) or is_integer(value)) or value not in (0, 1):
        raise ConfigError(f"{name}: got {shown(value)}, allowed are 0 and 1")
    return bool(value)


def _check_finite(name: str, value: object) -> None:
    finite = False
    if isinstance(value, Real) and not isinstance(value, (bool, np.timedelta64)):
        with contextlib.suppress(OverflowError):  # an integer beyond float64
            finite = math.isfinite(value)
    if not finite:
        raise ConfigError(f"{name}: got {shown(value)}, a finite number is needed")


def _rotate(
    heads: Any, cos: Any, sin: Any, ids: Any, interleaved: int, layout: str, device: Any, rotated: int, shape: Any
) -> Any:
    mode = "normal" if _flag("interleaved", interleaved) else "neox"
    if 0 in shape:
        return heads.reshape(shape).copy()
    return rotate(heads, cos, sin, ids, mode, None, layout, device, n_dims=rotated).reshape(shape)
