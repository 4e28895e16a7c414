"""What tasks report while they run, on its way to the server (P59)."""

import asyncio
import sys
import threading

import pytest

from manyhands.client import notes
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
