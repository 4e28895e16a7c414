"""What tasks report while they run, on its way to the server (P59)."""

import asyncio
import concurrent.futures
import sys
import threading

import pytest

from manyhands.client import notes
from manyhands.client.worker import bulletin as module
from manyhands.client.worker.bulletin import Bulletin
from manyhands.client.worker.run import Run

PIECES_COUNT = 20_000


class Stream:
    """Keeps the pieces, and answers at once."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def news(self, items: list) -> "asyncio.Future[None]":
        self.pieces += [item[3] for item in items]
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Turns:
    """A loop whose time is the test's."""

    def __init__(self) -> None:
        self.soon: list = []
        self.later: list = []

    def call_soon_threadsafe(self, function, **_context) -> None:
        self.soon.append(function)

    def call_later(self, wait, function, *args) -> None:
        self.later.append((wait, lambda: function(*args)))

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class SilentStream:
    """Keeps the notes, and answers when the test says so."""

    def __init__(self) -> None:
        self.notes: list[list] = []
        self.answers: list[concurrent.futures.Future] = []

    def news(self, items: list) -> "concurrent.futures.Future[None]":
        self.notes.append(list(items))
        self.answers.append(concurrent.futures.Future())
        return self.answers[-1]


def desk() -> tuple[Turns, SilentStream, Bulletin, Run]:
    loop, stream = Turns(), SilentStream()
    bulletin = Bulletin(loop, stream)  # type: ignore[arg-type]
    given = notes.Job("1", "emit", "token", 1, 0, b"{}", "json")
    return loop, stream, bulletin, Run(given, None, bulletin, 0.0)  # type: ignore[arg-type]


def test_p59_ten_notes_a_second_leave_and_the_last_progress_wins(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    loop, stream, bulletin, run = desk()

    for number in range(1, 301):
        bulletin.progress(run, (number, 300))
        bulletin.emit(run, b"%d" % number) if number % 100 == 0 else None
        loop.run()
        if number % 100 == 0:
            for wait, call in loop.later:
                assert 0 < wait <= 0.1
                now[0] += wait
                call()
            loop.later.clear()

    progress = [item[2] for note in stream.notes for item in note if item[2] is not None]
    pieces = [item[3] for note in stream.notes for item in note if item[3] is not None]
    assert progress == [(1, 300), (100, 300), (200, 300), (300, 300)]
    assert pieces == [b"100", b"200", b"300"]  # none is dropped
    assert now[0] == pytest.approx(100.3)


def test_p59_a_task_that_is_a_mebibyte_ahead_waits_for_the_server():
    loop, stream, bulletin, run = desk()
    has_emitted = threading.Event()

    def emit() -> None:
        bulletin.emit(run, b"x" * 1024 * 1024)
        bulletin.emit(run, b"y")
        has_emitted.set()

    thread = threading.Thread(target=emit)
    thread.start()
    while not (run.words is not None and run.words.unsent > 1024 * 1024):
        assert thread.is_alive()
        thread.join(0.001)
    assert not has_emitted.wait(0.3)
    loop.run()
    bulletin.send(run)
    for answer in stream.answers:
        answer.set_result(None)
    assert has_emitted.wait(60)
    thread.join()
    assert [len(item[3]) for note in stream.notes for item in note] == [1024 * 1024, 1]


@pytest.mark.usefixtures("quick_switches")
def test_p59_no_piece_is_lost_between_the_task_and_the_loop():
    async def main() -> None:
        stream = Stream()
        bulletin = Bulletin(asyncio.get_running_loop(), stream)  # type: ignore[arg-type]
        given = notes.Job("1", "emit", "token", 1, 0, b"{}", "json")
        run = Run(given, None, bulletin, 0.0)  # type: ignore[arg-type]
        expected = [b"%d" % number for number in range(PIECES_COUNT)]

        def emit() -> None:
            for piece in expected:
                bulletin.emit(run, piece)

        thread = threading.Thread(target=emit)
        thread.start()
        while thread.is_alive():
            bulletin.send(run)
            await asyncio.sleep(0)
        bulletin.send(run)
        await asyncio.sleep(0)

        assert stream.pieces == expected
        assert run.words is not None
        assert run.words.unsent == 0

    asyncio.run(main())
