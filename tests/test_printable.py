"""Escapes of characters that cannot be shown."""

import sys
import unicodedata
from xml.etree import ElementTree

import pytest

from clrope.printable import message_text, of_name, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Intel(R) Xeon(R) µ × é 漢 😀", "Intel(R) Xeon(R) µ × é 漢 😀"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\0b\rc\x7fd\x9be", r"a\x00b\rc\x7fd\x9be"),
        ("name\udcff\ud800", r"name\udcff\ud800"),
        (r"\x1b is no escape", r"\x1b is no escape"),
    ],
)
def test_what_cannot_be_shown_is_an_escape(text, shown):
    assert printable(text) == shown


def test_bytes_of_a_name_that_are_no_text():
    assert of_name("k\udcff.cl") == r"k\xff.cl"
    assert of_name("漢 \\xff") == "漢 \\xff"


def test_newlines_in_lines():
    assert one_line("a\n  b\r\n\x1b") == r"a\n  b\r\n\x1b"
    assert message_text("a\n  b\nc\n d\x1b") == "a\n  b" + r"\nc\n d\x1b"


@pytest.mark.one_in(8)
def test_every_character_is_shown_or_escaped():
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        hidden = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
        assert printable(character) == (repr(character)[1:-1] if hidden or number in (0xFFFE, 0xFFFF) else character)


@pytest.mark.one_in(8)
def test_xml_takes_every_character():
    text = "".join(c for n in range(0x110000) if (c := printable(chr(n))) not in "&<")
    assert ElementTree.fromstring(f"<a>{text}</a>").text == text
