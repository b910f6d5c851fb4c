"""Good files with some bytes changed, good configurations with other values (Hypothesis): read right or a `RopeError`.

What is read without an error must be what another reader of the format reads, or a configuration with finite angles.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from corpus import HF, NUMBERS, OWN, VALUES, YARN, good
from helpers import examples
from hypothesis import example, given
from hypothesis import strategies as st

from clrope import RopeConfig
from clrope.angles import angle_table
from clrope.cli.config_options import _factors, _sections
from clrope.cli.run import _positions
from clrope.errors import RopeError
from clrope.io.files import read_arrays, read_metadata, write_arrays
from clrope.io.json_object import read_json_object

DATA = Path(__file__).parent.parent / "data"
FILES = {suffix: good(suffix, np.random.default_rng(0)) for suffix in (".npy", ".npz", ".safetensors", ".gguf")}
#: config.json of models, as transformers writes them.
MODELS = [json.loads(read_metadata(path)["config"]) for path in sorted(DATA.glob("transformers_*.safetensors"))]
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))

place = st.integers(0, 1 << 16)
edits = st.lists(
    st.tuples(st.just("put"), place, st.binary(min_size=1, max_size=4))
    | st.tuples(st.just("put"), place, st.sampled_from([struct.pack("<Q", n) for n in NUMBERS]))
    | st.tuples(st.just("insert"), place, st.binary(min_size=1, max_size=9))
    | st.tuples(st.just("cut"), place, st.integers(1, 16))
    | st.tuples(st.just("copy"), place, place, st.integers(1, 64))
    | st.tuples(st.just("end"), place),
    min_size=1, max_size=4,
)  # fmt: skip


def edited(data: bytes, changes: list[Any]) -> bytes:
    for kind, where, *rest in changes:
        at = where % (len(data) + 1)
        if kind == "put":
            data = data[:at] + rest[0] + data[at + len(rest[0]) :]
        elif kind == "insert":
            data = data[:at] + rest[0] + data[at:]
        elif kind == "cut":
            data = data[:at] + data[at + rest[0] :]
        elif kind == "copy":
            source = rest[0] % (len(data) + 1)
            data = data[:at] + data[source : source + rest[1]] + data[at:]
        else:
            data = data[:at]
    return data


def read_otherwise(suffix: str, data: bytes) -> dict[str, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if suffix == ".safetensors":
            return safetensors.numpy.load(data)
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        return {"x": loaded} if suffix == ".npy" else dict(loaded)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


def result_of(read: Callable[[], Any]) -> Any:
    """What is read; None if it is refused. Any other error fails the test."""
    try:
        return read()
    except RopeError:
        return None


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@given(changes=edits)
def test_array_files(suffix: str, changes: list[Any], folder: Path) -> None:
    path, data = folder / f"x{suffix}", edited(FILES[suffix], changes)
    path.write_bytes(data)
    result_of(lambda: read_metadata(path))
    arrays = result_of(lambda: read_arrays(path))
    # NumPy and safetensors do not read archives behind other bytes, and float8.
    if (
        arrays is None
        or any(a.dtype in FLOAT8 for a in arrays.values())
        or (suffix == ".npz" and data[:4] != b"PK\3\4")
    ):
        return
    right = read_otherwise(suffix, data)
    assert arrays.keys() == right.keys()
    for name, array in arrays.items():
        want = right[name]
        assert array.shape == want.shape
        assert array.tobytes() == want.astype(want.dtype.newbyteorder("=")).tobytes()


def check(config: RopeConfig | None) -> None:
    """A configuration that was read writes back, and turns by finite angles, or says why it does not fit a head."""
    if config is None:
        return
    assert RopeConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    if (config.n_dims or 0) <= 512:
        whole = result_of(lambda: config.for_head_dim(config.n_offs + (config.n_dims or 128)))
        if whole is not None and whole.n_dims <= 512:
            table = angle_table(whole)
            assert np.isfinite(table.magnitude)
            assert table.pairs == whole.n_pairs(None)


@given(changes=edits)
def test_gguf_files(changes: list[Any], folder: Path) -> None:
    pytest.importorskip("gguf")
    path = folder / "x.gguf"
    path.write_bytes(edited(FILES[".gguf"], changes))
    check(result_of(lambda: RopeConfig.from_gguf(path)))


@given(model=st.sampled_from([HF, *MODELS]), changes=edits)
def test_text_of_hugging_face_configurations(model: dict[str, Any], changes: list[Any], folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(edited(json.dumps(model).encode(), changes))
    check(result_of(lambda: RopeConfig.from_hf(path)))


@given(changes=edits)
def test_text_of_own_configurations(changes: list[Any], folder: Path) -> None:
    path = folder / "own.json"
    path.write_bytes(edited(json.dumps(OWN).encode(), changes))
    check(result_of(lambda: RopeConfig.from_dict(read_json_object(path))))


values = st.sampled_from(VALUES) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def replaced(data: Any, path: list[int], value: Any) -> Any:
    """The same data with the value at a place: path chooses a key or an index at each depth."""
    if not path or not isinstance(data, (dict, list)) or not data:
        return value
    keys = list(data) if isinstance(data, dict) else list(range(len(data)))
    key = keys[path[0] % len(keys)]
    changed = dict(data) if isinstance(data, dict) else list(data)
    changed[key] = replaced(changed[key], path[1:], value)
    return changed


changes_of_values = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=3), values), min_size=1, max_size=3
)


@examples(120)
@given(
    data=st.sampled_from([HF, {**HF, "rope_scaling": YARN}, *MODELS]), changes=changes_of_values,
    seq_len=st.none() | st.integers(), layer_type=st.none() | st.sampled_from(["full_attention", "sliding_attention"]),
)  # fmt: skip
def test_values_of_hugging_face_configurations(
    data: dict[str, Any], changes: Any, seq_len: int | None, layer_type: str | None
) -> None:
    for path, value in changes:
        data = replaced(data, path, value)
    check(result_of(lambda: RopeConfig.from_hf(data, seq_len, layer_type=layer_type)))


@examples(120)
@given(changes=changes_of_values, more=st.dictionaries(st.sampled_from([*OWN, "x"]), values, max_size=2))
def test_values_of_own_configurations(changes: Any, more: dict[str, Any]) -> None:
    data: Any = {**OWN, **more}
    for path, value in changes:
        data = replaced(data, path[:1], value)
    check(result_of(lambda: RopeConfig.from_dict(data)))


# Numbers of a few digits, or too many: between them are ranges that fill the memory.
number = st.from_regex(r"\A-?([0-9]{1,4}|[0-9]{12,25})\Z")
texts = (
    st.text(max_size=30) | st.text(alphabet="0123456789-:,. ex", max_size=20)
    | st.builds("{}:{}".format, number, number) | st.lists(number, max_size=4).map(",".join)
    | st.builds("{}:{}".format, st.sampled_from(["x.npz", "x.npy", "words.npy", "none.npy", ""]), st.text(max_size=3))
    | st.sampled_from(["x.npz", "x.npz:q", "x.npy", "words.npy", "x" * 5000, "x.npz\0"])
)  # fmt: skip


@examples(300)
@given(text=texts)
@example(text="x" * 5000)
@example(text="words.npy")
def test_options_of_the_command_line(text: str, options_folder: Path) -> None:
    positions = result_of(lambda: _positions(text, None, {}, Path("INPUT")))
    if positions is not None and not isinstance(positions, np.ndarray):
        assert positions == int(text)
    result_of(lambda: _sections(text))
    result_of(lambda: _factors(text))


@pytest.fixture(scope="module")
def options_folder(folder: Path) -> Any:
    """The working directory, with files to name in options."""
    write_arrays(folder / "x.npz", {"q": np.arange(4), "k": np.ones((1, 2, 3), np.float16)})
    write_arrays(folder / "x.npy", {"x": np.arange(3)})
    np.save(folder / "words.npy", np.array(["a", "b"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
