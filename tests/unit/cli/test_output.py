"""Texts and numbers as commands print them."""

import pytest
from msgspec import Raw
from msgspec import json as encoder

from manyhands.cli.content import as_bytes, as_content
from manyhands.cli.output import ago, first_line, plain, plural, readable, span
from manyhands.model.payload import Encoding


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grüße 日本", "grüße 日本"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[2J\x07", "␛[2J␇"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202eb\u2066c", "a\ufffdb\ufffdc"),
    ],
)
def test_nothing_from_outside_can_rewrite_the_screen(text, shown):
    assert plain(text) == shown


def test_lines_of_a_long_text_stay_lines():
    assert readable("a\n\tb\x1b\nc") == "a\n    b␛\nc"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("first\nsecond", "first"),
        ("\n\n  padded\n", "padded"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'a'\n", "KeyError: 'a'"),
    ],
)
def test_an_error_in_one_line_is_the_line_that_tells(text, line):
    assert first_line(text) == line


def test_numbers_and_times_read_as_people_write_them():
    assert (plural(1, "job"), plural(2000, "job")) == ("1 job", "2,000 jobs")
    assert (span(None), span(250), span(200_000)) == ("-", "250ms", "3m20s")
    assert (ago(1_000, 61_000), ago(61_000, 1_000), ago(None, 5)) == ("1m ago", "in 1m", "-")


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"", Encoding.TEXT),
        (b"words", Encoding.TEXT),
        (b"12", Encoding.TEXT),
        (b' {"a": 1.50}\n', Encoding.JSON),
        (b"[1, 2", Encoding.TEXT),
        ("grüße".encode(), Encoding.TEXT),
        (b"\xff\x00", Encoding.BINARY),
    ],
)
def test_bytes_survive_the_way_to_the_server_and_back(data, encoding):
    value, found = as_content(data)

    assert found is encoding
    assert as_bytes(Raw(encoder.encode(value)), found) == data
