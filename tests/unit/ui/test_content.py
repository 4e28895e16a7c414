"""Bytes of others are shown exactly, or cut with a word about it, and never as markup."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.payload import Encoding
from manyhands.ui import words
from manyhands.ui.content import content, hexadecimal
from manyhands.ui.tree import BYTES_MAX, tree

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def test_json_is_shown_as_a_tree_first_and_as_text_and_digits_too():
    shown = content(b'{"a": [1, 2]}', Encoding.JSON, "")

    assert (shown.view, shown.views) == ("tree", ("tree", "text", "hex"))
    assert content(b'{"a": [1, 2]}', Encoding.JSON, "text").shown == '{"a": [1, 2]}'
    assert content(b'{"a": [1, 2]}', Encoding.JSON, "nonsense").view == "tree"


def test_numbers_keep_their_digits_however_many():
    shown = str(tree(b"[123456789012345678901234567890, 0.10, 1E400, -0.0]"))

    for digits in ("123456789012345678901234567890", "0.10", "1E400", "-0.0"):
        assert f">{digits}<" in shown


def test_keys_and_strings_are_never_markup():
    shown = str(tree(json.dumps({"<b>": "</span><script>\u202e"}).encode()))

    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert "&lt;script&gt;" in shown
    assert "U+202E" in shown


def test_what_is_no_json_is_shown_as_text():
    for data in (b"{", b"[1,", b"{} {}", b'{"a": nope}', b"[" * 100_000):
        shown = content(data, Encoding.JSON, "")
        assert shown.view == "text"


def test_a_large_document_shows_a_part_and_says_how_much_is_left():
    shown = str(tree(json.dumps([{"i": number} for number in range(5_000)]).encode()))

    assert "5,000 items" in shown
    assert "more, in the whole" in shown
    assert len(shown) < 100_000
    assert tree(b"[" + b"1," * BYTES_MAX + b"1]") is None


def test_a_document_of_great_depth_is_cut():
    shown = str(tree(b"[" * 100 + b"]" * 100))

    assert "not shown here" in shown


def test_a_long_string_is_cut_with_the_number_of_what_is_left():
    assert "8,000 more characters" in str(tree(json.dumps("x" * 10_000).encode()))


@given(JSON)
def test_any_json_has_a_tree_with_as_many_ends_as_beginnings(value):
    shown = str(tree(json.dumps(value).encode()))

    for tag in ("details", "ul", "li", "div", "span"):
        assert shown.count(f"<{tag}") == shown.count(f"</{tag}>")


def test_text_is_cut_at_a_whole_character_and_says_so():
    data = "ü".encode() * 40_000
    shown = content(b"x" + data, Encoding.TEXT, "text")

    assert shown.view == "text"
    assert shown.cut_at is not None
    assert not shown.exact
    assert "\ufffd" not in shown.shown


def test_only_text_that_is_shown_as_it_is_may_be_copied():
    assert content(b"plain\n\ttext", Encoding.TEXT, "").exact
    assert not content("a\u202eb".encode(), Encoding.TEXT, "").exact


def test_bytes_that_are_no_text_are_shown_as_digits():
    shown = content(bytes(range(256)), Encoding.BINARY, "text")

    assert (shown.view, shown.views) == ("hex", ("hex",))
    assert shown.shown.startswith("00000000  00 01 02 03 04 05 06 07  08 09")
    assert hexadecimal(b"A<\x00").split() == ["00000000", "41", "3c", "00", "A<·"]


@given(st.text())
def test_nothing_in_a_shown_text_is_hidden(text):
    shown = words.visible(text)

    hidden = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
    assert not [char for char in shown if unicodedata.category(char) in hidden]
