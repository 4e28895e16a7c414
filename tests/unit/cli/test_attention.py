"""What needs a person: the server's notes, with a command that helps."""

import pytest

from manyhands.cli.attention import gathered, note_of


def a_note(what: str, about: str = "q", *, count: int = 1, retrying: int = 0, group=None, job=None):
    return {
        "level": "bad",
        "what": what,
        "about": about,
        "detail": "a sentence",
        "count": count,
        "retrying": retrying,
        "group": group,
        "job": job,
    }


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (a_note("paused", "it's"), "manyhands queue resume 'it'\"'\"'s'"),
        (a_note("no workers"), "manyhands work q --command …"),
        (a_note("slow"), "manyhands queue show q"),
        (a_note("attempts fail"), "manyhands failures --queue q"),
        (a_note("expired leases", "w 1"), "manyhands expire --worker 'w 1'"),
        (a_note("failing", "boom", group="5f0c"), "manyhands retry --failure 5f0c"),
        (a_note("failing", "boom", retrying=1, group="5f0c"), "manyhands jobs is:retrying"),
        (a_note("limit full"), "manyhands limit list"),
        (a_note("queue full"), "manyhands queue show q"),
        (a_note("held for long", "w 1", job="feed01"), "manyhands expire feed01"),
        (a_note("stuck", job="feed01"), "manyhands retry feed01"),
        (a_note("stuck", "a b"), "manyhands jobs state:blocked queue:'a b'"),
        (a_note("relay", ""), "manyhands doctor"),
        (a_note("disk full", ""), "manyhands doctor"),
    ],
)
def test_each_note_has_a_command_that_helps(found, remedy):
    note = note_of(found)

    assert note.remedy == remedy
    assert (note.level, note.what, note.detail) == ("bad", found["what"], "a sentence")


def test_many_notes_of_one_kind_do_not_hide_another():
    found = [note_of(a_note("slow", f"q{number}")) for number in range(9)]
    found.append(note_of(a_note("paused")))

    shown = gathered(found)

    assert [note.what for note in shown] == ["slow"] * 6 + ["paused"]
    assert shown[5].about == "4 more"


def test_where_there_is_little_room_each_kind_of_note_gets_some_of_it():
    found = [note_of(a_note("failing", f"e{number}")) for number in range(9)]
    found += [note_of(a_note("no workers", f"q{number}")) for number in range(2)]
    found.append(note_of(a_note("paused")))

    shown = [(note.what, note.about) for note in gathered(found, 6)]

    assert shown == [
        ("failing", "e0"),
        ("failing", "8 more"),
        ("no workers", "q0"),
        ("no workers", "q1"),
        ("paused", "q"),
    ]
