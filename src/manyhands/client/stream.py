"""The stream as a client sees it: numbered notes, their answers, and connections that come back.

A note that was not answered when a connection broke is sent again on the next one, in order.
Everything that is sent this way may be carried out twice without harm: submits are known by their
ids, reports by the tokens of their leases.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from secrets import SystemRandom
from typing import Final, Protocol

from msgspec import MsgspecError, Raw

from manyhands.client import notes
from manyhands.client.address import Place, why_not
from manyhands.client.errors import Refused, refusal
from manyhands.client.link import Link, LinkLostError
from manyhands.client.notes import Answer, Greeting, Held, Limits, Note
from manyhands.protocols.native import stream_codec as wire

VERSION: Final = 1
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 5.0
_GREETING_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_ARRAY_HEAD_BYTES: Final = 5  # of a message
_random: Final = SystemRandom().random
_log: Final = logging.getLogger("manyhands")


class Listener(Protocol):
    """What is built on a stream."""

    def held(self) -> list[Held]:
        """The leases to name in the next ``hello``."""

    def greeted(self, greeting: Greeting) -> None:
        """A connection is there. Notes sent from here go before those that are sent again."""

    def resumed(self) -> None:
        """Unanswered notes were sent again."""

    def receive(self, note: Note) -> None:
        """A note other than an answer."""

    def lost(self, why: str) -> None:
        """The connection is gone, or one could not be made; another one is on its way if one is
        needed.
        """

    def refused(self, error: Exception) -> None:
        """The server refuses this client, or cannot be started: nothing will change by itself.
        Unanswered notes are kept, for a time when it does not, unless ``fail_pending`` is called.
        """

    def is_busy(self) -> bool:
        """Whether a lost connection is needed again, although no answer is pending."""


class Pending:
    """A note whose answer is pending."""

    __slots__ = ("data", "future", "was_repeated", "was_sent")

    def __init__(self, data: bytes, future: "asyncio.Future[Raw]") -> None:
        self.data = data
        self.future = future
        self.was_sent = False
        self.was_repeated = False  # an earlier answer may have been lost


class Stream:
    """A stream in the running loop, opened at first use."""

    def __init__(
        self,
        places: Sequence[Place],
        listener: Listener,
        *,
        token: str | None = None,
        worker: str | None = None,
        program: str | None = None,
    ) -> None:
        self.limits = Limits()
        self.problem = ", ".join(place.name for place in places)  # and why there is no connection
        self._loop = asyncio.get_running_loop()
        self._places = itertools.cycle(places)
        self._listener = listener
        self._token = token
        self._worker = worker
        self._program = program or notes.program_name()
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._outbox: deque[bytes] = deque()
        self._is_flush_due = False
        self._link: Link | None = None
        self._socket: socket.socket | None = None
        self._greeting: asyncio.Future[Raw] | None = None
        self._task: asyncio.Task[None] | None = None
        self._needed = asyncio.Event()
        self._is_closed = False
        self.was_open = False  # whether there ever was a connection
        self._heard_at = self._loop.time()  # on the connections before this one

    def __repr__(self) -> str:
        return f"<Stream {'open' if self.is_open else 'not open'}>"

    @property
    def is_open(self) -> bool:
        """Whether notes leave at once."""
        return self._link is not None

    @property
    def silence(self) -> float:
        """How many seconds ago the server last showed a sign of life."""
        heard_at = self._heard_at if self._link is None else self._link.received_at
        return max(0.0, self._loop.time() - heard_at)

    @property
    def unanswered_count(self) -> int:
        """Notes whose answers are pending."""
        return len(self._pending)

    # Sending.

    def open(self) -> None:
        """Connects, if that has not been done yet."""
        if self._is_closed:
            raise Refused("closed", "this client is closed; make another one")
        self._needed.set()
        if self._task is None:
            self._task = self._loop.create_task(self._keep_open())

    def ask(self, kind: int, *fields: object) -> Pending:
        """Sends a note, now or when there is a connection. The answer completes its future: the
        result, still encoded, or ``Refused``. Cancelling the future withdraws the note.
        """
        number = next(self._numbers)
        future: asyncio.Future[Raw] = self._loop.create_future()
        pending = Pending(notes.write_note(kind, number, *fields), future)
        self._pending[number] = pending
        future.add_done_callback(lambda done: self._withdraw(number, done))
        if self._link is not None:
            self._send(pending)
        else:
            self.open()
        return pending

    def _send(self, pending: Pending) -> None:
        if len(pending.data) > self.limits.message_bytes - _ARRAY_HEAD_BYTES:
            # The server would close the connection, again and again.
            size, most = len(pending.data), self.limits.message_bytes
            sentence = f"{size} bytes are more than the {most} of a message; send less at once"
            pending.future.set_exception(Refused("payload_too_large", sentence))
            return
        pending.was_repeated = pending.was_sent
        pending.was_sent = True
        self._put(pending.data)

    def tell(self, kind: int, *fields: object) -> bool:
        """Sends a note that needs no answer; returns False if there is no connection."""
        if self._link is None:
            return False
        self._put(notes.write_note(kind, 0, *fields))
        return True

    def _withdraw(self, number: int, future: "asyncio.Future[Raw]") -> None:
        """Also after an answer, which has done so itself."""
        del future
        self._pending.pop(number, None)

    def _put(self, data: bytes) -> None:
        self._outbox.append(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """All notes of a turn leave in one message, or in as few as the server's bound allows."""
        self._is_flush_due = False
        link = self._link
        while link is not None and self._outbox and not link.is_paused:
            batch: list[bytes] = []
            size = _ARRAY_HEAD_BYTES
            while self._outbox:
                size += len(self._outbox[0])
                if batch and size > self.limits.message_bytes:
                    break
                batch.append(self._outbox.popleft())
            link.send(wire.write_message(batch))

    # Connecting.

    async def _keep_open(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            await self._needed.wait()
            place = next(self._places)
            try:
                link = await self._connect(place)
            except Refused as error:
                self.problem = f"{place.name}: {error}"
                self._listener.refused(error)
            except ssl.SSLCertVerificationError as error:
                self.problem = f"{place.name}: {why_not(error)}"
                self._listener.refused(Refused("untrusted_certificate", self.problem))
            except (OSError, LinkLostError, wire.MalformedError, MsgspecError) as error:
                self.problem = f"{place.name}: {why_not(error)}"
                _log.debug("no connection to %s", self.problem)
                self._listener.lost(self.problem)
            except RuntimeError as error:  # an embedded server that cannot be started
                self.problem = f"{place.name}: {error}"
                self._listener.refused(error)
            else:
                pause = _PAUSE_SECONDS
                why = await link.lost
                self.problem = f"{place.name}: {why}"
                self._forget_link()
                _log.debug("lost the connection to %s", self.problem)
                self._listener.lost(self.problem)
            if not (self._pending or self._listener.is_busy()):
                self._needed.clear()
            await asyncio.sleep(pause * _random())
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    async def _connect(self, place: Place) -> Link:
        """A link that has been greeted, with all that was unanswered sent again."""
        token = self._token if self._token is not None else place.token
        _, link, self._socket = await place.connect(lambda: Link(place, token, self._receive))
        assert isinstance(link, Link)
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                await link.opened
                greeting = await self._greet(link)
        except BaseException as error:
            link.abort(str(error))
            self._socket = None
            raise
        self.limits = greeting.limits
        self._link = link
        self.was_open = True
        link.resumed = self._flush
        self._outbox.clear()
        self._listener.greeted(greeting)
        for pending in tuple(self._pending.values()):
            self._send(pending)
        self._listener.resumed()
        return link

    async def _greet(self, link: Link) -> Greeting:
        number = next(self._numbers)
        hello = notes.write_note(
            wire.HELLO, number, VERSION, self._program, self._worker, self._listener.held()
        )
        self._greeting = self._loop.create_future()
        self._pending[number] = Pending(hello, self._greeting)
        link.send(wire.write_message([hello]))
        try:
            await asyncio.wait((self._greeting, link.lost), return_when=asyncio.FIRST_COMPLETED)
            if not self._greeting.done():
                raise LinkLostError(link.lost.result())
            return notes.read_greeting(self._greeting.result())
        finally:
            self._greeting.cancel()
            self._pending.pop(number, None)

    def _forget_link(self) -> None:
        if self._link is not None:
            self._heard_at = self._link.received_at
        self._link = self._socket = None
        self._outbox.clear()

    def fail_pending(self, error: Exception) -> None:
        """Gives everybody who waits for an answer an error instead."""
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.future.done():
                each.future.set_exception(error)
                each.future.exception()  # seen: its caller may have the error another way

    # Receiving.

    def _receive(self, message: bytes) -> None:
        for note in notes.read_notes(message):
            if isinstance(note, Answer):
                self._on_answer(note)
            else:
                self._listener.receive(note)

    def _on_answer(self, answer: Answer) -> None:
        pending = self._pending.pop(answer.number, None)
        if pending is None:
            if answer.error is not None:
                _log.warning("the server refused a note: %s (%s)", answer.error[1], answer.error[0])
            return
        if pending.future.done():
            return
        if answer.error is not None:
            pending.future.set_exception(refusal(*answer.error))
        else:
            pending.future.set_result(answer.result)

    # The end.

    async def close(self) -> None:
        """Closes. Notes that are still unanswered fail."""
        self._is_closed = True
        self.fail_pending(Refused("closed", "this client was closed"))
        task, self._task = self._task, None
        if self._link is not None:
            link = self._link
            self._flush()
            link.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await asyncio.shield(link.lost)
            link.abort("closed")
            self._forget_link()
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def abandon(self) -> None:
        """After a fork, in the child: closes the copy of the socket, and leaves the connection
        to the parent.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it was closed before the fork
                socket.close(self._socket.detach())
