"""`--resume` with a file whose fields have other types: refused by name."""

import copy
import json

import pytest
from made_up_results import made_up

from clrope import ConfigError
from clrope.benchmark.resume import read_unfinished
from clrope.benchmark.workloads import select

NAME = "decode-1/f32/neox/out/forward"
OTHER = "size-64KiB/f32/neox/out/forward"


@pytest.fixture(scope="module")
def result():
    """A result of one workload, of which another is missing."""
    return json.loads(json.dumps(made_up(workloads=select([NAME])) | {"missing": [OTHER]}))


def write(tmp_path, result, place, value):
    damaged = copy.deepcopy(result)
    *outer, last = place
    inner = damaged
    for key in outer:
        inner = inner[key]
    inner[last] = value
    path = tmp_path / "result.json"
    path.write_text(json.dumps(damaged))
    return str(path)


def test_an_undamaged_file(result, tmp_path):
    path = write(tmp_path, result, ["missing"], [OTHER])
    assert [w.name for w in read_unfinished(path).workloads] == [NAME, OTHER]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["missing"], 5, "Expected `array`, got `int` - at `$.missing`"),
        (["missing"], [OTHER, 5], "Expected `str`, got `int` - at `$.missing[1]`"),
        (["options", "rounds"], "9", "Expected `int`, got `str` - at `$.options.rounds`"),
        (["options", "rounds"], None, "Expected `int`, got `null` - at `$.options.rounds`"),
        (["options", "threads"], 0, "Expected `int` >= 1 - at `$.options.threads`"),
        (["options", "tiny"], 1, "Expected `bool`, got `int` - at `$.options.tiny`"),
        (["options"], [], "Expected `object`, got `array` - at `$.options`"),
        (["peers"], [], "Expected `object`, got `array` - at `$.peers`"),
        (["processes"], {}, "Expected `array`, got `object` - at `$.processes`"),
        (["devices"], [], "Expected `object`, got `array` - at `$.devices`"),
        (["environment", "kernels"], "x", "Expected `object`, got `str` - at `$.environment.kernels`"),
        (["workloads", 0, "name"], [], "Expected `str`, got `array` - at `$.workloads[0].name`"),
    ],
)
def test_a_field_of_another_type(place, value, message, result, tmp_path):
    path = write(tmp_path, result, place, value)
    with pytest.raises(ConfigError) as caught:
        read_unfinished(path)
    assert str(caught.value) == f"--resume: {path} is no such result: {message}"
