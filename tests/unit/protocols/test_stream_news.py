"""News of watched jobs: in order, once each, and never queued for a peer that does not read."""

from types import SimpleNamespace

import msgspec
import pytest

from manyhands.model.job import Job, Progress, State
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_news import News

JOB = Job(job_id="ab", queue="q", state=State.LEASED)


def piece(number: int, *, warning: bool = False) -> SimpleNamespace:
    return SimpleNamespace(number=number, payload=b"%d" % number, warning=warning, is_log=False)


class Followed:
    """A stream that follows one job. Pieces are loaded when a test says so."""

    def __init__(self) -> None:
        self.said: list[list] = []
        self.ended: list[str] = []
        self.loads: list = []
        self.socket = SimpleNamespace(is_behind=False)
        hub = SimpleNamespace(
            follow=lambda _watcher, _job_id: None,
            pieces=lambda _job_id, found: self.loads.append(found),
        )
        self.news = News(self.socket, hub, None, self._say, self.ended.append)
        self.news.follow("ab")

    def _say(self, note: bytes) -> None:
        self.said.append(msgspec.msgpack.decode(note))

    def load(self, *pieces, progress: Progress | None = None) -> None:
        self.loads.pop(0)(pieces, progress)

    def hear(self, *pieces, progress: Progress | None = None) -> None:
        self.news.hear(msgspec.structs.replace(JOB, progress=progress), pieces)

    def pieces(self) -> list[bytes]:
        return [note[3] for note in self.said if note[3] is not None]

    def progress(self) -> list[list]:
        return [note[2] for note in self.said if note[2] is not None]


@pytest.fixture
def followed():
    return Followed()


def test_st23_kept_pieces_come_first_then_progress_then_new_pieces(followed):
    followed.load(piece(1), piece(2, warning=True), progress=Progress(1, 3, 20))
    followed.hear(piece(3), progress=Progress(2, 3))

    assert followed.said == [
        [wire.HEARD, "ab", None, b"1", False],
        [wire.HEARD, "ab", None, b"2", True],
        [wire.HEARD, "ab", [1, 3, 20], None, False],
        [wire.HEARD, "ab", None, b"3", False],
        [wire.HEARD, "ab", [2, 3, None], None, False],
    ]


def test_st23_a_piece_that_is_sent_while_others_are_loaded_is_reported_once(followed):
    followed.hear(piece(2))
    followed.load(piece(1))
    followed.load(piece(1), piece(2))
    followed.hear(piece(3))

    assert followed.pieces() == [b"1", b"2", b"3"]


def test_st23_unchanged_progress_is_not_repeated(followed):
    followed.load(progress=Progress(1, 2))
    followed.hear(piece(1), progress=Progress(1, 2))

    assert followed.progress() == [[1, 2, None]]


def test_st23_a_slow_reader_misses_progress_and_no_piece(followed):
    followed.load()
    followed.socket.is_behind = True
    followed.hear(progress=Progress(1, 3))
    followed.hear(piece(1), progress=Progress(2, 3))
    assert not followed.said
    assert not followed.loads

    followed.socket.is_behind = False
    followed.news.go_on()
    followed.load(piece(1), progress=Progress(3, 3))

    assert (followed.pieces(), followed.progress()) == ([b"1"], [[3, 3, None]])


def test_st23_the_end_waits_for_pieces_that_are_loaded(followed):
    assert not followed.news.ends("ab")
    assert not followed.ended

    followed.load(piece(1))

    assert (followed.pieces(), followed.ended) == ([b"1"], ["ab"])


def test_st23_the_end_of_a_slow_reader_waits_for_its_pieces(followed):
    followed.load()
    followed.socket.is_behind = True
    followed.hear(piece(1))
    assert not followed.news.ends("ab")

    followed.socket.is_behind = False
    followed.news.go_on()
    followed.load(piece(1))

    assert (followed.pieces(), followed.ended) == ([b"1"], ["ab"])


def test_st23_the_end_is_shown_at_once_when_all_pieces_were(followed):
    followed.load(piece(1))

    assert followed.news.ends("ab")


def test_st23_a_reader_that_falls_behind_while_pieces_are_sent_gets_the_rest_later(followed):
    say = followed.news._say

    def say_and_fall_behind(note: bytes) -> None:
        say(note)
        followed.socket.is_behind = True

    followed.news._say = say_and_fall_behind
    followed.load(piece(1), piece(2))
    assert followed.pieces() == [b"1"]

    followed.news._say = say
    followed.socket.is_behind = False
    followed.news.go_on()
    followed.load(piece(1), piece(2))

    assert followed.pieces() == [b"1", b"2"]


def test_st23_nothing_is_reported_of_a_job_that_is_no_longer_watched(followed):
    followed.news.forget("ab")
    followed.load(piece(1))
    followed.hear(piece(2))

    assert not followed.said
