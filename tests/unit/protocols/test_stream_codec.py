"""Notes of the stream: bytes to values and back, whatever comes."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.native import stream_codec as wire

PAGE = (Path(__file__).parents[3] / "docs" / "protocols" / "stream.md").read_text("utf-8")
SHOWN = {
    name: bytes.fromhex(digits)
    for name, digits in re.findall(r"^(\w[\w ]*\w) {2,}((?:[0-9a-f]{2} ?)+)$", PAGE, re.MULTILINE)
}


def notes(message: bytes) -> list[wire.Note]:
    return [wire.read_note(raw) for raw in wire.read_message(message)]


def test_st5_the_bytes_of_the_page_are_the_notes_that_they_are_said_to_be():
    assert notes(SHOWN["hello"]) == [wire.Hello(1, 1, 1, "demo", "w1", [])]
    [submit] = notes(SHOWN["submit"])
    assert isinstance(submit, wire.Submit)
    [item] = submit.items
    assert (item.id, item.queue, item.payload, item.encoding) == (
        "0f",
        "mail",
        b'{"to":"ada"}',
        "json",
    )
    assert msgspec.msgpack.decode(item.options) == {"priority": 5}
    assert (submit.all_or_nothing, submit.watch) == (False, True)
    assert notes(SHOWN["want and work"]) == [
        wire.Want(5, 3, ["mail"]),
        wire.Work(3, 4, credit=wire.Credit(1, 0)),
    ]
    assert SHOWN["two answers"] == wire.write_message(
        [wire.answer(3, None), wire.answer(4, None, [])]
    )


def test_st5_every_kind_of_the_page_is_known_and_no_other():
    kinds = {
        int(kind): name for kind, name in re.findall(r"^\| (\d+) \| (\w+) \|", PAGE, re.MULTILINE)
    }

    for kind, name in kinds.items():
        assert getattr(wire, name.upper()) == kind
    for kind in range(30):
        raw = msgspec.Raw(msgspec.msgpack.encode([kind, 7]))
        if kinds.get(kind) is None or kind >= wire.ANSWER:
            with pytest.raises(wire.BadNoteError) as found:
                wire.read_note(raw)
            assert (found.value.number, found.value.code) == (7, "unknown_kind")


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_a_message_has_any_number_of_notes(count):
    message = wire.write_message([b"\xc0"] * count)

    assert msgspec.msgpack.decode(message) == [None] * count


def outcome(raw: msgspec.Raw) -> wire.Note | wire.BadNoteError | None:
    """A note, or why it is none; None: not even its number can be read."""
    try:
        return wire.read_note(raw)
    except wire.BadNoteError as error:
        return error
    except wire.MalformedError:
        return None


@given(st.binary(max_size=200))
def test_whatever_bytes_arrive_they_are_notes_or_refused(data):
    try:
        found = wire.read_message(data)
    except wire.MalformedError:
        found = []

    for note in map(outcome, found):
        assert note is None or note.number >= 0


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.integers(0, 12), st.integers(0, 2**32), st.lists(_VALUES, max_size=6))
def test_whatever_a_note_holds_it_is_read_or_refused_with_its_number(kind, number, fields):
    note = outcome(msgspec.Raw(msgspec.msgpack.encode([kind, number, *fields])))

    assert note is not None
    assert note.number == number
    assert note.sentence if isinstance(note, wire.BadNoteError) else note.kind == kind


def test_a_note_that_is_nested_too_deeply_is_refused():
    deep = b"\x91" * 100_000 + b"\xc0"

    with pytest.raises(wire.MalformedError):
        wire.read_message(b"\x91\x93\x02\x01" + deep)
