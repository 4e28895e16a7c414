"""News between the client's thread and its readers."""

import pytest

from manyhands.client.errors import Unavailable
from manyhands.client.handle import News, _Box
from manyhands.client.notes import Heard, View


def test_p38_a_slow_reader_misses_progress_and_nothing_else():
    box = _Box(lambda: None)
    for number in range(1, 4):
        box.hear(Heard(24, "1", [number, 9, None]))
        box.hear(Heard(24, "1", None, b"piece %d" % number))
    box.hear(View("1", "completed"))

    assert box.take() == [
        *(News(partial=b"piece %d" % number) for number in range(1, 4)),
        News((3, 9)),
        News(state="completed"),
    ]
    assert box.is_over


def test_p38_an_error_behind_a_piece_is_raised_after_it():
    """The reader is woken for it again: it would wait for ever."""
    wakes: list[int] = []
    box = _Box(lambda: wakes.append(1))
    box.hear(Heard(24, "1", None, b"piece"))
    box.hear(Unavailable("gone"))
    wakes.clear()

    assert [news.partial for news in box.take()] == [b"piece"]
    assert wakes
    with pytest.raises(Unavailable, match="gone"):
        box.take()
