"""What a worker says to a server that cannot take it for now (P35)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from manyhands.client import worker_stream
from manyhands.client.address import places
from manyhands.client.errors import Refused
from manyhands.client.worker.voucher import Overseer
from manyhands.client.worker_stream import WorkerStream
from tests.unit.client.fake_server import ANSWER, HELLO, fake_server

WORK, DEPART, LOOK = 3, 7, 9
DONE = [(str(number), "token", b"1", "json") for number in range(3)]
FAILED = [("3", "token", "code", "message", b"", True, None)]
AWAY = ["unavailable", "no server decides about jobs at present"]


class Scripted:
    """Answers the notes of a kind one after the other as a test says, then with success."""

    def __init__(self, kind: int, *answers: tuple[object, object]) -> None:
        self.kind = kind
        self.answers = list(answers)
        self.notes: list[list[Any]] = []

    def __call__(self, note: list[Any]) -> list[Any] | None:
        if not note[1]:
            return None
        error, result = None, []
        if note[0] == self.kind:
            self.notes.append(note[2:])
            if self.answers:
                error, result = self.answers.pop(0)
        return [ANSWER, note[1], error, result]


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(worker_stream, "AGAIN_SECONDS", 0.001)


def talk(
    answer: Scripted, ask: Callable[[WorkerStream], Coroutine[Any, Any, None]], *statuses: int
) -> list[list[Any]]:
    """The greetings that the server heard, after it had answered the first connections with these
    statuses.
    """
    with fake_server() as server:
        server.answer = answer
        server.statuses = list(statuses)

        async def main() -> None:
            stream = WorkerStream(places(server.url), Overseer(), name="worker")
            stream.open()
            async with asyncio.timeout(90):
                await ask(stream)
                await stream.close()

        asyncio.run(main())
        assert not server.statuses
        return server.notes(HELLO)


def test_p35_a_report_that_is_refused_for_now_is_sent_again():
    """Item by item; what is refused for good is named by its place in the report."""
    gone = ["done", 0, "lease_lost", "the lease is gone"]
    answer = Scripted(
        WORK,
        (None, [["done", 1, *AWAY], ["done", 2, "store_failed", "x"], ["failed", 0, *AWAY], gone]),
        (None, [["done", 0, *AWAY]]),
    )

    async def ask(stream: WorkerStream) -> None:
        refused = await stream.report(done=DONE, failed=FAILED)
        assert [(each.list, each.index, each.code) for each in refused] == [
            ("done", 0, "lease_lost")
        ]

    talk(answer, ask)

    assert [[[item[0] for item in each] for each in note[:2]] for note in answer.notes] == [
        [["0", "1", "2"], ["3"]],
        [["1", "2"], ["3"]],
        [["1"], []],
    ]


def test_p35_a_refusal_of_what_was_sent_before_counts_for_completions_only():
    """A failure whose first answer was unsure may have been written down: its lease is gone."""
    answer = Scripted(
        WORK,
        (None, [["done", 2, *AWAY], ["failed", 0, *AWAY]]),
        (None, [["done", 0, "lease_lost", "x"], ["failed", 0, "lease_lost", "x"]]),
    )

    async def ask(stream: WorkerStream) -> None:
        refused = await stream.report(done=DONE, failed=FAILED)
        assert [(each.list, each.index) for each in refused] == [("done", 2)]

    talk(answer, ask)


def test_p28_what_waits_to_be_reported_again_is_still_held(monkeypatch):
    monkeypatch.setattr(worker_stream, "AGAIN_SECONDS", 3600.0)
    answer = Scripted(WORK, (AWAY, None))

    async def ask(stream: WorkerStream) -> None:
        reported = stream.report(done=DONE[:1])
        await stream.depart("another")  # answers come in order
        assert not reported.done()
        assert stream.held() == [("0", "token")]
        reported.cancel()
        await asyncio.sleep(0)
        assert stream.held() == []

    talk(answer, ask)


def test_p49_an_end_that_cannot_be_reported_now_is_reported_later():
    """Else what a dead child had fetched ahead would be charged when its leases run out."""
    answer = Scripted(DEPART, (AWAY, None), (AWAY, None))

    async def ask(stream: WorkerStream) -> None:
        await stream.depart("child", "it was killed", [("0", "token")])

    talk(answer, ask)

    assert answer.notes == [["child", "it was killed", [["0", "token"]]]] * 3


def test_p19_outputs_that_cannot_be_read_now_are_asked_for_again():
    """They are not gone: their job is neither failed nor charged."""
    view = ["0", "completed", b"7", "json", None, None]
    answer = Scripted(LOOK, (None, []), (AWAY, None), (None, [view]))

    async def ask(stream: WorkerStream) -> None:
        assert [view.id for view in await stream.look(["0"])] == ["0"]

    talk(answer, ask)

    assert len(answer.notes) == 3


def test_p35_reports_are_kept_while_the_server_refuses_the_worker():
    """As for a token that is being changed; and the leases are named when it is let in."""
    answer = Scripted(WORK)

    async def ask(stream: WorkerStream) -> None:
        assert await stream.report(done=DONE[:1]) == []

    [hello] = talk(answer, ask, 401, 403, 401)

    assert [note[0] for note in answer.notes] == [[["0", "token", b"1", "json"]]]
    assert ["0", "token"] in hello[5]


def test_a_report_to_a_closed_stream_is_an_error():
    async def ask(stream: WorkerStream) -> None:
        await stream.close()
        with pytest.raises(Refused, match="closed"):
            await stream.report(done=DONE)

    talk(Scripted(WORK), ask)
