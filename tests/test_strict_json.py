"""JSON from outside: repeated keys, and texts that would fill the memory."""

import json

import pytest

from clrope.lab import contract_files
from clrope.strict_json import _LONG_INTEGER, parse_json


@pytest.mark.parametrize("value", [{}, [], {"a": {"b": [1, 2.5, None, True, "é"]}}, [{"a": 1}, {"a": 2}], "x", 7])
def test_what_json_writes_is_read(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '[{"b": {"x": 0, "a": 1, "y": 2, "a": 1}}]', '{"\\u0061": 1, "a": 1}']
)
def test_a_key_that_is_there_twice_is_named(text):
    with pytest.raises(ValueError, match="the key 'a' is there twice"):
        parse_json(text)


@pytest.mark.parametrize("piece", ["[],", "{},", "1,", '"",'])
def test_a_text_of_many_values_is_refused_before_they_are_made(piece):
    with pytest.raises(ValueError, match="more than 524288 values"):
        parse_json("[" + piece * 600_000 + "1]")


def test_numbers_as_results_have_them_are_no_such_text():
    text = json.dumps([float(n) + 0.125 for n in range(700_000)])
    assert len(parse_json(text)) == 700_000


def test_constants():
    assert parse_json("[Infinity]") == [float("inf")]
    with pytest.raises(ValueError, match="got NaN, numbers are finite"):
        parse_json("[NaN]", constants=False)


@pytest.mark.parametrize("text", [r'["\ud800"]', r'{"\uDC00": 1}', r'{"a": {"b": ["x\udfffy"]}}'])
def test_half_of_a_pair_of_surrogates(text):
    with pytest.raises(ValueError, match="half of a pair of surrogates"):
        parse_json(text)


def test_whole_pairs_of_surrogates():
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize("text", ["9" * 309, "-" + "9" * 309, '{"a": [1, ' + "1" + "0" * 400 + "]}"])
def test_integers_beyond_float64_are_refused(text):
    with pytest.raises(ValueError, match=r"a number in it has \d+ digits, at most 308 are allowed"):
        parse_json(text)


def test_long_integers_and_texts_of_digits():
    assert parse_json("-" + "9" * 308) == -(10**308 - 1)
    assert parse_json(json.dumps(["9" * 400, 1, -5])) == ["9" * 400, 1, -5]


@pytest.mark.parametrize("pattern", [_LONG_INTEGER, contract_files._LONG_INTEGER])
def test_digits_are_looked_at_once(pattern):
    assert pattern.match("1" * 400)
    assert not pattern.match("1" * 400, 1)  # nor from each digit again, where a text of digits is too short
