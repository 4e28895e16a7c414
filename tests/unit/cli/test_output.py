"""Texts and numbers as commands print them."""

import pytest
from msgspec import Raw
from msgspec import json as encoder

from manyhands.cli.content import as_bytes, as_content
from manyhands.cli.output import Column, ago, fitted, plain, plural, readable, span
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


COLUMNS = (
    Column("QUEUE", folds=True),
    Column("READY", right=True),
    Column("ADDRESS", spare=2),
    Column("DONE", spare=1),
    Column("ID"),
)
ROW = ("a-rather-long-name-of-a-queue", "12", "127.0.0.1", "1,000", "0123456789ab")


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        (200, {0: 29, 1: 5, 2: 9, 3: 5, 4: 12}),
        (60, {0: 21, 1: 5, 2: 9, 3: 5, 4: 12}),  # a name is cut first
        (54, {0: 26, 1: 5, 3: 5, 4: 12}),  # then columns are left out
        (40, {0: 19, 1: 5, 4: 12}),
        (30, {0: 10, 1: 4, 4: 12}),  # then headings are cut, and names by more
        (10, {0: 8, 1: 4, 4: 12}),  # what identifies a row stays whole, and so do values
    ],
)
def test_a_table_gets_narrower_without_cutting_an_id(room, widths):
    assert fitted(COLUMNS, [ROW], room) == widths


def test_wide_characters_take_the_room_of_two():
    assert fitted((Column("ID"),), [("日本",)], 80) == {0: 4}


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
