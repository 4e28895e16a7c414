"""TCP listeners and connections: bytes to a session and back, one write per connection and turn of
the loop, with bounds on what a peer makes the server hold.
"""

import asyncio
import contextlib
import math
import os
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from manyhands.access.credentials import Certificate, Credentials
from manyhands.access.gate import NOBODY, Guard
from manyhands.access.logins import Failure, Then
from manyhands.config import Address
from manyhands.dispatch.budget import GRANT_BYTES
from manyhands.dispatch.session import Ask, QueueSummary, Settle, Shortcut
from manyhands.dispatch.sleepers import Sleeper
from manyhands.loggers import get_logger
from manyhands.model.commands import Command, LookByKey
from manyhands.model.events import Signal
from manyhands.model.job import Holder, Job
from manyhands.model.limits import TURN_BYTES_OWED_MAX
from manyhands.model.replies import Refusal, Reply
from manyhands.model.roles import ANYBODY, Caller
from manyhands.net.backplane import Backplane
from manyhands.net.peer_certificate import certificate_of, has_expired
from manyhands.observe.incidents import is_debugging
from manyhands.observe.repeats import Repeats

_log = get_logger("manyhands.tcp")

# How much may wait for a peer that does not read. A few of the largest packets fit.
OUTPUT_BYTES_MAX: Final = 256 * 1024 * 1024
# Above this nothing more is read from the peer until it has read its answers.
_OUTPUT_BYTES_HIGH: Final = 1024 * 1024
# How long a drain waits for peers to read what they were sent.
_DRAIN_SECONDS: Final = 1.0
# How long a peer may take to read the last answer before its connection is closed.
LINGER_SECONDS: Final = 10.0
# More than any request may have: a peer that sends this much does not look for an answer.
_DROPPED_BYTES_MAX: Final = 256 * 1024 * 1024
BACKLOG: Final = 4096  # peers that are not accepted yet
CONNECTIONS_COUNT_MAX: Final = 100_000


class Session(Protocol):
    """What a listener needs from a protocol's session."""

    def receive(self, data: bytes) -> None:
        """Takes bytes that arrived."""

    def ended(self) -> None:
        """The peer sends nothing more: closes the connection once everything is answered."""

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone; ``blameless`` if the peer is not at fault."""

    def notify(self, signal: Signal) -> None:
        """Takes a signal about a job that this connection waits for or held."""

    def is_overwhelmed(self) -> bool:
        """Whether too many answers are outstanding to read further requests."""

    def held_bytes(self) -> int:
        """Bytes of a message that is incomplete or has to wait."""


def raise_open_files_limit() -> None:
    """Raises the limit on open files to the maximum, because every connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cannot_listen(name: str, flag: str, address: Address, error: OSError) -> OSError:
    """The same error as a sentence that says what to do."""
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return OSError(
        f"{name} cannot listen on {address}: {reason}; {flag} HOST:PORT takes another address, "
        f"{flag} off starts without it."
    )


class TcpListener:
    """Accepts connections and creates a session for each."""

    def __init__(
        self,
        backplane: Backplane,
        address: Address | None,
        name: str,
        make_session: Callable[["Connection"], Session],
    ) -> None:
        self.backplane = backplane
        self.name = name
        self.make_session = make_session
        self.connections: dict[Connection, None] = {}
        self.accepted_count = 0
        self.address = address
        self.is_debugging = is_debugging()
        self._listening: asyncio.Server | None = None
        self._unsent: list[Connection] = []
        self._empty: asyncio.Event | None = None
        self.is_silent = False  # the store failed: new connections get no answer
        self.repeats = Repeats(_log)
        self.loop = asyncio.get_running_loop()

    async def start(self) -> str | None:
        """Binds and listens; returns the bound address, or None if there is none to listen on
        because all peers come by other ways. Raises OSError with a sentence.
        """
        if self.address is not None:
            try:
                await self._listen(self.address)
            except OSError as error:
                flag = f"--{self.name.partition(' ')[0]}"
                raise cannot_listen(self.name, flag, self.address, error) from None
        self.backplane.condition.on_failure.append(self.fall_silent)
        self.backplane.logins.callers.subscribe(self._dismiss)
        return None if self.address is None else str(self.bound())

    async def _listen(self, address: Address) -> None:
        host, port = address.host, address.port
        where: dict[str, Any] = {"host": host, "port": port}
        if host == "::" and socket.has_dualstack_ipv6():
            # IPv4 addresses too, which asyncio would leave out.
            where = {
                "sock": socket.create_server(
                    (host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
                )
            }
        self._listening = await self.loop.create_server(
            self.make_connection,
            **where,
            backlog=BACKLOG,
        )

    async def take(self, peer: socket.socket) -> None:
        """Serves a connected socket, as if it had been accepted."""
        await self.loop.connect_accepted_socket(self.make_connection, peer)

    def bound(self) -> Address:
        """The address to connect to."""
        assert self._listening is not None
        host, port = self._listening.sockets[0].getsockname()[:2]
        return Address(host, port)

    def stop_listening(self) -> None:
        """Accepts no more connections."""
        if self._listening is not None:
            self._listening.close()

    def make_connection(self) -> "Connection":
        """Creates a connection that was accepted."""
        return Connection(self)

    async def drain(self) -> None:
        self.stop_listening()
        idle = asyncio.Event()
        self.backplane.dispatcher.when_idle(idle.set)
        if self.backplane.condition.failure is None:
            await idle.wait()
        for connection in list(self.connections):
            connection.hang_up()
        # Peers get what was written; the drain does not wait for those that do not read.
        if self.connections:
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), _DRAIN_SECONDS)
        for connection in list(self.connections):
            connection.abort()

    def fall_silent(self) -> None:
        """The store failed: disconnects all peers without an answer, because no answer would make
        all of them retry. A broken connection does.
        """
        self.is_silent = True
        for connection in list(self.connections):
            connection.break_off()

    def _dismiss(self) -> None:
        """Callers have changed: those that are gone are disconnected."""
        callers = self.backplane.logins.callers
        for connection in list(self.connections):
            caller = connection.caller
            if caller is not None and not callers.knows(caller):
                connection.give_up("its caller was removed, or has other credentials now")

    def forget(self, connection: "Connection") -> None:
        """Called when a connection is gone."""
        self.connections.pop(connection, None)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def flush_later(self, connection: "Connection") -> None:
        """Writes at the end of this turn, together with everything else."""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - a bug must not affect other peers
                _log.exception("internal error", listener=self.name, peer=connection.address)
                connection.abort()


# Identifies the peer for the protocol of this name, and calls back.
Login = Callable[[str, Then], None]


class Debtor(Protocol):
    """Counts the bytes of payloads and results in its answers so far."""

    owed_bytes: int


class Connection(asyncio.Protocol):
    """One connection. It is the ``Peer`` of its session."""

    # How many bytes are handled before other connections get their turn. Requests may be a few
    # bytes each, and a peer that sends very many at once must not keep the others waiting.
    turn_bytes = 32 * 1024

    def __init__(self, listener: TcpListener) -> None:
        backplane = listener.backplane
        self.connection = backplane.ids.connection()
        self.number = int(self.connection.rpartition("/")[2])
        self.address = ""
        self.listener = listener
        self._dispatcher = backplane.dispatcher
        self.debtor: Debtor = backplane.dispatcher
        self.ask: Ask = backplane.dispatcher.ask
        self.shortcut: Shortcut = backplane.dispatcher
        self.caller: Caller | None = ANYBODY  # None: not identified
        self.guard: Guard | None = None  # what its commands have to pass
        self.token = backplane.ids.token
        self._ids = backplane.ids
        self._budget = backplane.budget
        self._credit_bytes = 0  # that may arrive before the next check for room
        self.waits_for_room = False
        self.held_bytes = 0
        self.granted_at = -math.inf
        self._clock = backplane.dispatcher.clock
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self.is_secure = False  # the peer speaks TLS
        self.certificate: Certificate | None = None  # that it has shown
        self._session: Session | None = None
        self.output: list[bytes] = []  # since the last write; if not empty, a write is due
        self._unread = b""  # arrived, and waits for the next turn
        self._undone = False  # messages that the session kept wait as well
        self._going_on = False  # that turn is scheduled
        self._receiving = False
        self._logins: deque[tuple[Login, Callable[[Caller | Failure], None]]] = deque()
        self._logging_in = False
        self._awaiting = False  # large answers are outstanding: no more requests are read
        self._closing = False
        self._ended = False  # the peer closed its half
        self._lingering: asyncio.TimerHandle | None = None
        self._dropped_bytes = 0  # of what the peer sent after the last answer
        self._signal_bytes = 0  # of signals since the last write, at least
        self._is_large = False  # so is what is to be written
        self._blameless = False
        self._reading_paused = False
        self.writing_paused = False  # the peer does not read
        self._sleeper: Sleeper | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass
        self._transport = transport
        listener = self.listener
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        listener.accepted_count += 1
        if (
            len(listener.connections) >= CONNECTIONS_COUNT_MAX
            or self._dispatcher.draining
            or listener.is_silent
        ):
            transport.abort()
            return
        self.is_secure = transport.get_extra_info("ssl_object") is not None
        if self.is_secure:
            verified = transport.get_extra_info("peercert")
            if has_expired(verified, self._clock.now()):
                why = "the peer's certificate has expired since it was accepted"
                listener.repeats.warn("a TLS session ended", self.address, why=why)
                transport.abort()
                return
            self.certificate = certificate_of(verified)
        raw = self._socket = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        transport.set_write_buffer_limits(high=_OUTPUT_BYTES_HIGH)
        listener.connections[self] = None
        if listener.backplane.logins.callers.asks_everyone:
            self.take_caller(listener.backplane.logins.callers.identify(self.credentials()))
        if listener.is_debugging:
            _log.debug("connected", listener=listener.name, peer=self.address, number=self.number)
        self.take_session(listener.make_session(self))

    def _acknowledge(self) -> None:
        """Acknowledges a large piece at once. Libraries with small send buffers, such as
        libgearman, send nothing more until then, and the system would take 40 ms: a minute for a
        large result.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def credentials(self) -> Credentials:
        """What the connection itself shows of its peer."""
        return Credentials(address=self.address, certificate=self.certificate)

    def take_caller(self, caller: Caller | None, protocol: str | None = None) -> None:
        """From now on, commands are those of this caller; the protocol is that of the listener,
        unless another one is spoken on its connection.
        """
        listener = self.listener
        protocol = protocol or listener.name
        self.caller = caller
        self.guard = listener.backplane.gate.guard(caller, self.address, protocol)
        self.ask = self._dispatcher.ask if self.guard is None else self.guard.ask
        self.shortcut = self._dispatcher if self.guard is None else self.guard

    def log_in(self, token: str, then: Callable[[bool], None]) -> None:
        """Makes the peer the caller whose token this is, if it is one, and calls back."""

        def settle(found: Caller | Failure) -> None:
            if type(found) is Caller:
                self.take_caller(found)
            then(type(found) is Caller)

        shown = Credentials(address=self.address, token=token)
        self.await_login(partial(self.listener.backplane.logins.identify, shown), settle)

    def await_login(self, login: Login, settle: Callable[[Caller | Failure], None]) -> None:
        """Begins a login once the earlier ones of this connection are settled. Nothing is read
        meanwhile.
        """
        self._logins.append((login, settle))
        self._log_in_next()

    def _log_in_next(self) -> None:
        if self._logins and not self._logging_in and self._transport is not None:
            login, settle = self._logins.popleft()
            self._logging_in = True
            login(self.listener.name, partial(self._settle_login, settle))
            if self._logging_in:
                self.pause_reading()

    def _settle_login(
        self, settle: Callable[[Caller | Failure], None], found: Caller | Failure
    ) -> None:
        self._logging_in = False
        if self._transport is None:
            return
        settle(found)
        if self._logins:
            self.listener.loop.call_soon(self._log_in_next)
        else:
            self.resume_reading()

    def may_use(self, queue: str) -> bool:
        """Whether the peer may use this queue."""
        return self.guard is None or self.guard.caller.may_use(queue)

    def sees(self, job: Job) -> bool:
        """Whether the peer may look at this job."""
        return self.guard is None or self.guard.sees(job)

    def refusal_to_look(self) -> Refusal | None:
        """Why the peer may not list queues and workers, or None."""
        return None if self.guard is None else self.guard.refusal_to_look()

    def refusal_to_work(self, queue: str) -> Refusal | None:
        """Why the peer may not offer to work on a queue, or None."""
        return None if self.guard is None else self.guard.refusal_to_work(queue)

    def take_session(self, session: Session) -> None:
        """Makes this session serve the peer."""
        self._session = session
        self._dispatcher.on_signal[self.connection] = self._notify

    def _notify(self, signal: Signal) -> None:
        """Passes on a signal. One connection may wait many times for one large result, so the bytes
        of signals are bounded too.
        """
        job = signal.job
        failure = job.failure
        self._signal_bytes += (
            len(signal.payload)
            + (0 if job.result is None else len(job.result))
            + (0 if failure is None else len(failure.payload))
        )
        session = self._session
        if session is None or self._closing:
            return
        if self._signal_bytes > OUTPUT_BYTES_MAX:
            self.give_up("it does not read its answers")
        else:
            session.notify(signal)

    def receive_first(self, protocol: object) -> asyncio.Transport:
        """Makes asyncio call this protocol first, which passes on what it does not handle. It may
        write by itself while there is no output here.
        """
        transport = self._transport
        assert transport is not None  # called only while data is received
        transport.set_protocol(cast(asyncio.BaseProtocol, protocol))
        return transport

    def is_at_rest(self) -> bool:
        """Whether the next bytes can be handled at once."""
        return not (self._closing or self._unread or self._undone)

    def data_received(self, data: bytes) -> None:
        session = self._session
        if session is None or self._closing:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > _DROPPED_BYTES_MAX:
                self.abort()
            return
        self._credit_bytes -= len(data)
        if self._unread or self._undone:
            self._unread += data
            return
        turn_bytes = self.turn_bytes
        if len(data) > turn_bytes:
            self._unread = data[turn_bytes:]
            data = data[:turn_bytes]
            self._acknowledge()
        self._receiving = True
        owed_before = self._dispatcher.owed_bytes
        try:
            session.receive(data)
        except Exception:  # noqa: BLE001
            # A bug: this peer is disconnected and its jobs go back; others are unharmed.
            _log.exception("internal error", listener=self.listener.name, peer=self.address)
            self._closing = self._blameless = True
        finally:
            self._receiving = False
        if self._dispatcher.owed_bytes - owed_before > TURN_BYTES_OWED_MAX:
            self.await_answers()
        if self._credit_bytes < 0 or self.held_bytes:
            self._look_for_room()
        if self._closing:
            self.close()
        elif self._unread or self._undone:
            self.pause_reading()
            self.resume_reading()
        elif session.is_overwhelmed():
            self.pause_reading()

    def _look_for_room(self) -> None:
        session = self._session
        if session is None or self._closing:
            return
        self._budget.note_held(self, session.held_bytes() + len(self._unread))
        if self._credit_bytes < 0 and not self.waits_for_room:
            if self._budget.may_read(self):
                self._credit_bytes = GRANT_BYTES
            else:
                self.waits_for_room = True
                self.pause_reading()

    def go_on(self, count: int) -> None:
        """There is room for this many more bytes."""
        self.waits_for_room = False
        self._credit_bytes = count
        self.resume_reading()

    def current_session(self) -> Session | None:
        """The session that serves the peer, or None once the connection is closing."""
        return None if self._closing else self._session

    def is_read_from(self) -> bool:
        """Whether the peer is being read from."""
        return not self._reading_paused

    def received_mark(self) -> object:
        """A value that changes whenever the peer has sent something."""
        return self.granted_at, self._credit_bytes

    def give_back(self, data: bytes) -> None:
        """Returns received bytes, to be handled in a later turn by the session of that time."""
        self._unread = data + self._unread
        self.pause_reading()
        self.resume_reading()

    def await_answers(self) -> None:
        """Stops reading until the requests so far are answered."""
        if not self._awaiting and not self._closing:
            self._awaiting = True
            self.pause_reading()
            # A query for nothing: its reply comes after all earlier ones.
            self._dispatcher.ask(LookByKey(b"", ""), self._answered)

    def _answered(self, _reply: Reply) -> None:
        self._awaiting = False
        self.resume_reading()

    def _read_on(self) -> None:
        self._going_on = False
        if self._session is not None and self._may_read():
            unread, self._unread, self._undone = self._unread, b"", False
            self._credit_bytes += len(unread)  # counted when it arrived
            self.data_received(unread)
            self.resume_reading()

    def eof_received(self) -> bool:
        self._ended = True
        if self._session is None or self._closing:
            return False
        self._session.ended()
        # The session closes it once everything is answered; over TLS it ends at once.
        return not self.is_secure

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._budget.note_behind(self)
        self.pause_reading()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._budget.note_caught_up(self)
        self.resume_reading()

    def pause_reading(self) -> None:
        """Pauses until `resume_reading` finds no reason against reading."""
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _may_read(self) -> bool:
        """Whether there is room, the peer reads its answers, and not too many are outstanding."""
        session = self._session
        return not (
            self._closing
            or self.writing_paused
            or self._awaiting
            or self._logging_in
            or self._logins
            or self.waits_for_room
            or (session is not None and session.is_overwhelmed())
        )

    def resume_reading(self) -> None:
        """Resumes unless there is still a reason against it."""
        if not self._reading_paused or self._transport is None or not self._may_read():
            return
        if self._unread or self._undone:
            if not self._going_on:
                self._going_on = True
                self.listener.loop.call_soon(self._read_on)
            return
        self._reading_paused = False
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.stay_awake()
        self.listener.forget(self)
        if self.held_bytes or self.waits_for_room or self.writing_paused:
            self._budget.forget(self)
        if self.listener.is_debugging:
            name = self.listener.name
            _log.debug("disconnected", listener=name, peer=self.address, number=self.number)
        self._dispatcher.on_signal.pop(self.connection, None)
        if self._lingering is not None:
            self._lingering.cancel()
        session, self._session, self._transport = self._session, None, None
        if session is not None:
            session.lost(blameless=self._blameless)
        self.output.clear()

    # Called by the session.

    def send(self, data: bytes) -> None:
        output = self.output
        if not output:
            self.listener.flush_later(self)
        output.append(data)

    def send_large(self, data: bytes) -> None:
        """Like ``send``, for data too large to copy, and at once, so that it is known how much the
        peer has read.
        """
        self.send(data)
        self._is_large = True
        self.flush()

    def send_alone(self, data: bytes) -> None:
        """Sends data when nothing else is outstanding, so there is nothing to combine it with."""
        transport = self._transport
        if self.output or self._reading_paused or self._closing or transport is None:
            self.send(data)
        else:
            transport.write(data)

    def come_back(self) -> None:
        self._undone = True

    @property
    def owed_bytes(self) -> int:
        return self._dispatcher.owed_bytes

    def flush(self) -> None:
        """Writes everything since the last time, in one write."""
        self._signal_bytes = 0
        output = self.output
        transport = self._transport
        if not output or transport is None:
            return
        if self._lingering is not None:
            output.clear()  # the last answer was sent
            return
        if transport.is_closing():
            return  # nothing arrives any more: the session learns it from `lost`
        if self._is_large:
            self._is_large = False
            for data in output:  # not joined: that would be another copy
                transport.write(data)
        else:
            transport.write(b"".join(output))
        output.clear()
        if self._reading_paused:  # as it is, above all, when the peer does not read
            waiting = transport.get_write_buffer_size()
            if waiting > OUTPUT_BYTES_MAX:
                self.give_up("it does not read its answers")
            else:
                self.resume_reading()

    def unread_bytes(self) -> int:
        """Bytes that were written and that the peer has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether nothing that is sent now can arrive."""
        transport = self._transport
        return self._closing or transport is None or transport.is_closing()

    def give_up(self, reason: str) -> None:
        """Disconnects a peer that makes the server hold too much, or for too long."""
        _log.warning(
            "a connection was closed",
            listener=self.listener.name,
            peer=self.address,
            reason=reason,
            unread_bytes=self.unread_bytes(),
            held_bytes=self.held_bytes,
        )
        self._closing = True
        self.output.clear()
        self.abort()

    def close(self) -> None:
        self._closing = True
        self._unread, self._undone = b"", False  # no session reads it any more
        if self._receiving:
            return  # closes once everything that arrived was handled
        self.flush()
        transport = self._transport
        if transport is None or transport.is_closing() or self._lingering is not None:
            return
        if self._ended or not transport.can_write_eof():  # TLS has no half-close
            transport.close()
            return
        # What the peer still sends is read and dropped until it hangs up: closing with unread bytes
        # would reset the connection, and the peer might never read the reason.
        self._lingering = self.listener.loop.call_later(LINGER_SECONDS, self.abort)
        transport.write_eof()
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def hang_up(self) -> None:
        """Closes the connection because the server stops; the peer is not at fault."""
        self._closing = self._blameless = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection without waiting for unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def break_off(self) -> None:
        """Stops reading and writing at once."""
        transport = self._transport
        if transport is not None:
            self._closing = self._blameless = True
            self._transport = None
            transport.abort()

    def operate(self, command: Command, settle: Settle) -> None:
        listener = self.listener
        guard = self.guard
        listener.backplane.audit.ask(
            command,
            settle,
            self.address,
            listener.name,
            f"{listener.name} admin",
            self.caller or NOBODY,
            None if guard is None else guard.ask_recorded,
        )

    def now(self) -> int:
        return self._clock.now()

    def job_id(self) -> str:
        return self._ids.job_id(self._clock.now())

    def has_work(self, queues: Sequence[str]) -> bool:
        return self._dispatcher.has_work(self._allowed(queues))

    def sleep(
        self, queues: Iterable[str], wake: Callable[[], None], holder: Holder, hands: int = 1
    ) -> None:
        self.stay_awake()
        self._sleeper = Sleeper(self._allowed(queues), lambda _queue: wake(), holder, hands)
        self._dispatcher.sleepers.sleep(self._sleeper)

    def _allowed(self, queues: Iterable[str]) -> Sequence[str]:
        """Those that the peer may work on: who may not claim is not woken in place of others."""
        guard = self.guard
        return tuple(queues) if guard is None else tuple(filter(guard.may_work, queues))

    def stay_awake(self) -> None:
        if self._sleeper is not None:
            self._dispatcher.sleepers.leave(self._sleeper)
            self._sleeper = None

    def is_asleep(self) -> bool:
        return self._sleeper is not None and self._sleeper.asleep

    def queues(self) -> Sequence[QueueSummary]:
        live = self._dispatcher.store.live
        return [
            QueueSummary(name, queue.counts, queue.ready_by_priority(), queue.queue.paused)
            for name, queue in sorted(live.queues.items())
            if self.may_use(name)
        ]

    def unfinished_jobs(self, count_max: int) -> Sequence[Job]:
        jobs = []
        for job in self._dispatcher.store.live.live_jobs():
            if job.finished_at is None and (self.guard is None or self.guard.sees(job)):
                jobs.append(job)
                if len(jobs) == count_max:
                    break
        return jobs
