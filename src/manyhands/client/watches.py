"""Jobs whose ends and news are awaited over one stream. All of this runs in the home loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from manyhands.client.errors import Refused, Unavailable
from manyhands.client.home import Settle
from manyhands.client.notes import Heard, View
from manyhands.client.stream import Stream
from manyhands.protocols.native import stream_codec as wire

_SLICE_COUNT: Final = 500


class Reader(Protocol):
    """Whom news of a job are for."""

    def hear(self, note: Heard | View | Exception) -> None:
        """News, the end, or why there is none."""

    def restart(self) -> None:
        """News start again, with the pieces that are kept."""


class Watches:
    """Who waits for what. The stream is opened when somebody does."""

    def __init__(self, open_stream: Callable[[], Stream], timeout: Callable[[], float]) -> None:
        self._open_stream = open_stream
        self._timeout = timeout
        self._stream: Stream | None = None
        self._awaited: dict[str, list[Settle]] = {}
        self._readers: dict[str, list[Reader]] = {}
        self._asked: set[str] = set()  # those the server was asked for on this connection
        self._unasked: deque[str] = deque()  # requests for them are still to be sent
        self._is_asking_due = False
        self._away_timer: asyncio.TimerHandle | None = None

    def is_busy(self) -> bool:
        """Whether anybody waits."""
        return bool(self._awaited or self._readers)

    # Ends.

    def await_end(self, job_id: str, settle: Settle) -> None:
        """Waits for a job's end: the result is its ``View``."""
        settles = self._awaited.get(job_id)
        if settles is not None:
            settles.append(settle)
            return
        try:
            stream = self._stream = self._open_stream()
        except Refused as error:
            settle(None, error)
            return
        self._awaited[job_id] = [settle]
        if not stream.is_open:
            stream.open()
            self.expect_server()
            return
        self._unasked.append(job_id)
        self._ask_soon()

    def forget_end(self, job_id: str, settle: Settle) -> None:
        """Waits no longer."""
        settles = self._awaited.get(job_id, [])
        if settle in settles:
            settles.remove(settle)
            if not settles:
                del self._awaited[job_id]
                if job_id in self._asked and job_id not in self._readers:
                    self._watch([job_id], on=False)

    def ended(self, view: View) -> None:
        """A job has ended."""
        self._asked.discard(view.id)
        if self._unasked:
            self._ask_soon()
        for reader in self._readers.pop(view.id, ()):
            reader.hear(view)
        for settle in self._awaited.pop(view.id, ()):
            settle(view, None)

    def _ask_soon(self) -> None:
        if not self._is_asking_due:
            self._is_asking_due = True
            asyncio.get_running_loop().call_soon(self._ask_for_new_ones)

    def _ask_for_new_ones(self) -> None:
        """Asks for as many ends as the server allows; for the others when some have arrived."""
        self._is_asking_due = False
        if self._stream is None or not self._stream.is_open:
            return
        room = self._stream.limits.watches - len(self._asked)
        while self._unasked and room > 0:
            count = min(len(self._unasked), _SLICE_COUNT, room)
            ids = [self._unasked.popleft() for _ in range(count)]
            self._watch([each for each in ids if each in self._awaited])
            room -= count

    def _watch(self, ids: Sequence[str], *, on: bool = True, with_news: bool = False) -> None:
        if self._stream is not None and ids:
            self._stream.tell(wire.WATCH, ids, on, with_news)
            if on:
                self._asked.update(ids)
            else:
                self._asked.difference_update(ids)

    # News.

    def listen(self, job_id: str, reader: Reader) -> None:
        """P38: news of a job, until its end."""
        try:
            stream = self._stream = self._open_stream()
        except Refused as error:
            reader.hear(error)
            return
        others = self._readers.setdefault(job_id, [])
        for other in others:
            other.restart()  # they get the kept pieces once more
        others.append(reader)
        if stream.is_open:
            if job_id in self._asked:
                self._watch([job_id], on=False)
            self._watch([job_id], with_news=True)
        else:
            stream.open()
            self.expect_server()

    def stop_listening(self, job_id: str, reader: Reader) -> None:
        """No more news."""
        readers = self._readers.get(job_id, [])
        if reader in readers:
            readers.remove(reader)
            if not readers:
                del self._readers[job_id]
                self._watch([job_id], on=False)
                if job_id in self._awaited:
                    self._watch([job_id])

    def heard(self, note: Heard) -> None:
        """News of a job."""
        for reader in self._readers.get(note.id, ()):
            reader.hear(note)

    # Connections.

    def renew(self) -> None:
        """P35: on a new connection, everything is asked for again."""
        if self._away_timer is not None:
            self._away_timer.cancel()
            self._away_timer = None
        self._asked.clear()
        for job_id, readers in self._readers.items():
            for reader in readers:
                reader.restart()
            self._watch([job_id], with_news=True)
        self._unasked = deque(job_id for job_id in self._awaited if job_id not in self._readers)
        self._ask_for_new_ones()

    def expect_server(self) -> None:
        """Nobody is left waiting for a server that does not come back."""
        if self.is_busy() and self._away_timer is None:
            loop = asyncio.get_running_loop()
            self._away_timer = loop.call_later(self._timeout(), self._give_up)

    def _give_up(self) -> None:
        self._away_timer = None
        if self._stream is None or self._stream.is_open:
            return
        sentence = (
            f"no connection for {self._timeout():g} s to {self._stream.problem}; "
            "ask for the result again later"
        )
        self.fail_all(lambda job_id: Unavailable(sentence, ids=(job_id,)))

    def fail_all(self, error_of: Callable[[str], Exception]) -> None:
        """Everybody gets an error."""
        awaited, self._awaited = self._awaited, {}
        for job_id, settles in awaited.items():
            for settle in settles:
                settle(None, error_of(job_id))
        news, self._readers = self._readers, {}
        for job_id, readers in news.items():
            for reader in readers:
                reader.hear(error_of(job_id))
