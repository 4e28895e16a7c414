"""A worker's stream: queues, credit, jobs, and reports on them.

    stream = WorkerStream(places(url), worker, name="host-1a2b")
    stream.want(["mail"])
    stream.give(slots=8, ahead=32)                 # then worker.take(jobs) is called
    refused = await stream.report(done=[(*job.held, b"42", "json")])

All methods are called in the loop in which the stream was made, and return at once; futures are
for those who need the answer. Leases are not bound to a connection: when it breaks, the stream
reconnects, names what the worker holds, sends the last ``want`` and all unanswered reports again,
and calls ``worker.resumed()``. Credit does not survive: the worker gives it anew there. What the
server refuses for now, because it is full, cannot decide or does not want this worker, is sent
again, too.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Raw

from manyhands.client import notes
from manyhands.client.address import Place
from manyhands.client.errors import AGAIN_SECONDS, AGAIN_SECONDS_MAX, PASSING, Refused
from manyhands.client.notes import Closing, Greeting, Held, Job, Jobs, Note, Notice, View
from manyhands.client.report import Report
from manyhands.client.stream import Pending, Stream
from manyhands.protocols.native import stream_codec as wire

Done = tuple[str, str, bytes | None, str]  # id, token, result, encoding
# id, token, code, message, details, retry, delay in ms
Failed = tuple[str, str, str, str, bytes, bool, int | None]
# id, token, progress (done, all, seconds left), partial result, line of the log, whether it warns
Piece = tuple[str, str, tuple[int, ...] | None, bytes | None, str | None, bool]
T = TypeVar("T")
GONE: Final = "gone"  # why a lease was lost while there was no connection


class Worker(Protocol):
    """What a stream of work is for."""

    def take(self, jobs: list[Job]) -> None:
        """Work arrived. Each job takes one of the slots that were given, else one of ahead."""

    def notified(self, job_id: str, lease_number: int, why: str) -> None:
        """A lease is gone: ``cancelled``, ``moved``, ``expired``, ``cutoff``, ``gone``. Reports on
        it will be refused.
        """

    def resumed(self) -> None:
        """There is a connection, the first or another one: give all the credit anew."""

    def lost(self, why: str) -> None:
        """The connection is gone, or one could not be made. Leases and unanswered reports stay."""

    def closing(self, seconds: float) -> None:
        """The server is about to stop: no more work comes until the next ``resumed``."""

    def refused(self, error: Refused) -> None:
        """The server refuses this worker, as for a wrong token. The stream keeps trying."""


class WorkerStream:
    """The stream of one worker, or of a supervisor (without a name)."""

    def __init__(
        self,
        places: Sequence[Place],
        worker: Worker,
        *,
        name: str | None,
        token: str | None = None,
        program: str | None = None,
    ) -> None:
        self._worker = worker
        self._want: tuple[object, ...] | None = None
        self._leases: dict[str, Job] = {}
        self._reported: dict[int, list[Held]] = {}  # leases in unanswered reports, by their number
        self._report_numbers = itertools.count()
        self._stream = Stream(places, self, token=token, worker=name, program=program)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._stream.is_open

    @property
    def was_open(self) -> bool:
        """Whether there ever was a connection: before it, nothing is held."""
        return self._stream.was_open

    @property
    def problem(self) -> str:
        """Why there is no connection."""
        return self._stream.problem

    @property
    def silence(self) -> float:
        """How many seconds ago the server last showed a sign of life."""
        return self._stream.silence

    @property
    def limits(self) -> notes.Limits:
        """Bounds of the server."""
        return self._stream.limits

    @property
    def leases(self) -> dict[str, Job]:
        """The jobs this worker holds and has not reported on, by their ids."""
        return self._leases

    @property
    def unanswered_count(self) -> int:
        """Notes whose answers are pending."""
        return self._stream.unanswered_count

    def open(self) -> None:
        """Connects, and stays connected until ``close``."""
        self._stream.open()

    async def close(self) -> None:
        """Closes the connection. Leases stay with the worker: ``depart`` gives them back."""
        await self._stream.close()

    # Sending.

    def want(
        self,
        queues: Iterable[str],
        order: str = "priority_in_turns",
        term_ms: int | None = None,
    ) -> None:
        """Sets the queues to take work from, replacing the last ones. Credit starts at 0."""
        self._want = (list(queues), order, term_ms)
        if not self._stream.tell(wire.WANT, *self._want):
            self._stream.open()

    def give(self, slots: int, ahead: int = 0) -> None:
        """Adds credit. Without a connection it is dropped: ``resumed`` is the time to give it."""
        self._stream.tell(wire.WORK, (), (), (), (), (slots, ahead))

    def report(
        self,
        done: Sequence[Done] = (),
        failed: Sequence[Failed] = (),
        released: Sequence[Held] = (),
        renewed: Sequence[Held] = (),
    ) -> "asyncio.Future[list[notes.Refused]]":
        """Reports on at most ``limits.items`` jobs. The future gives those refused for good, when
        the others are on disk; it fails with ``Refused`` if the whole note was refused.
        """
        number = next(self._report_numbers)
        ended = [(each[0], each[1]) for group in (done, failed, released) for each in group]
        self._reported[number] = ended
        leases = self._leases
        for job_id, token in ended:
            lease = leases.get(job_id)
            if lease is not None and lease.token == token:
                del leases[job_id]
        report = Report(done, failed, released, renewed)
        answered = self._insist(lambda: self._stream.ask(wire.WORK, *report.lists), report.read)
        answered.add_done_callback(lambda _: self._reported.pop(number))
        return answered

    def news(self, pieces: Sequence[Piece]) -> "asyncio.Future[Raw]":
        """Progress, pieces of results and lines of logs. Sent again if a connection breaks, so that
        a piece may arrive twice, but is not lost.
        """
        asked = self._stream.ask(wire.NEWS, list(pieces))
        asked.future.add_done_callback(_ignore)
        return asked.future

    def vouch(self, workers: Sequence[str]) -> None:
        """Says that these workers are alive: renews leases that are past a third of their term."""
        if not self._stream.tell(wire.VOUCH, list(workers)):
            self._stream.open()

    def depart(
        self, worker: str, reason: str = "", running: Sequence[Held] = ()
    ) -> "asyncio.Future[None]":
        """Says that a worker leaves, or is dead. Jobs in ``running`` fail with ``worker_died`` and
        the reason; all others that it holds go back uncharged.
        """
        fields = (worker, reason, list(running))
        return self._insist(lambda: self._stream.ask(wire.DEPART, *fields), _read_nothing)

    def look(self, ids: Sequence[str]) -> "asyncio.Future[list[View]]":
        """Shows jobs, at most ``limits.items``. The list is shorter if results are large."""

        def read(asked: Pending) -> list[View]:
            views = notes.read_views(asked.future.result())
            if ids and not views:
                raise Refused("unavailable", "the records cannot be read now")
            return views

        return self._insist(lambda: self._stream.ask(wire.LOOK, list(ids)), read)

    def _insist(
        self, ask: Callable[[], Pending], read: Callable[[Pending], T]
    ) -> "asyncio.Future[T]":
        """Asks, and again for as long as the answer is a refusal that passes."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()
        pause = AGAIN_SECONDS

        def begin() -> None:
            if answered.done():
                return
            try:
                asked = ask()
            except Refused as error:  # closed meanwhile
                answered.set_exception(error)
            else:
                asked.future.add_done_callback(lambda _: hear(asked))

        def hear(asked: Pending) -> None:
            nonlocal pause
            if answered.done():
                return
            try:
                answered.set_result(read(asked))
            except asyncio.CancelledError:
                answered.cancel()
            except Refused as error:
                if error.code not in PASSING:
                    answered.set_exception(error)
                    return
                loop.call_later(pause, begin)
                pause = min(pause * 2, AGAIN_SECONDS_MAX)

        begin()
        return answered

    # The stream's side.

    def held(self) -> list[Held]:
        """P28: what this worker holds, with reports that have no answer yet."""
        held = dict(itertools.chain.from_iterable(self._reported.values()))
        held.update(job.held for job in self._leases.values())
        return list(held.items())

    def greeted(self, greeting: Greeting) -> None:
        """A connection."""
        for job_id in greeting.gone:
            lease = self._leases.pop(job_id, None)
            if lease is not None:
                self._worker.notified(job_id, lease.lease_number, GONE)
        if self._want is not None:
            self._stream.tell(wire.WANT, *self._want)

    def resumed(self) -> None:
        """Reports were sent again."""
        self._worker.resumed()

    def lost(self, why: str) -> None:
        """The connection is gone."""
        self._worker.lost(why)

    def refused(self, error: Exception) -> None:
        """No connection will do, for now."""
        if not isinstance(error, Refused):
            error = Refused("unavailable", str(error))
        self._worker.refused(error)

    def is_busy(self) -> bool:
        """A worker is always connected."""
        return True

    def receive(self, note: Note) -> None:
        """A note of the server."""
        match note:
            case Jobs():
                for job in note.jobs:
                    self._leases[job.id] = job
                self._worker.take(note.jobs)
            case Notice():
                lease = self._leases.get(note.id)
                if lease is not None and lease.lease_number == note.lease_number:
                    del self._leases[note.id]
                self._worker.notified(note.id, note.lease_number, note.why)
            case Closing():
                self._worker.closing(note.seconds)
            case _:
                pass


def _read_nothing(asked: Pending) -> None:
    asked.future.result()


def _ignore(asked: "asyncio.Future[Raw]") -> None:
    """News is not worth an error."""
    if not asked.cancelled():
        asked.exception()
