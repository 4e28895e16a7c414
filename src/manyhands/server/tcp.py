"""TCP connections: bytes to a session and back, one write a connection and turn, bounded."""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import structlog

from manyhands.config import Address
from manyhands.model.commands import Command
from manyhands.model.events import Signal
from manyhands.model.job import Job
from manyhands.protocols.session import QueueSummary, Settle
from manyhands.server.waiters import Sleeper

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.tcp")

# What may wait to be read by a peer that does not read. A few of the largest packets fit.
OUTPUT_BYTES_MAX: Final = 256 * 1024 * 1024
# Above this nothing more is read from the peer until it has taken what it was given.
_OUTPUT_BYTES_HIGH: Final = 1024 * 1024
# How long a drain waits for peers to take what they were sent.
_DRAIN_SECONDS: Final = 1.0
# How long a peer that is being closed may take to read what it was told.
_LINGER_SECONDS: Final = 10.0
_HANDSHAKE_SECONDS: Final = 10.0  # of TLS
_BACKLOG: Final = 4096  # peers that are not accepted yet
CONNECTIONS_COUNT_MAX: Final = 100_000


class Session(Protocol):
    """What a listener needs of a protocol's session."""

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""

    def ended(self) -> None:
        """The peer has nothing more to say: close when it has been answered."""

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone; ``blameless``: by no fault of the peer's."""

    def hear(self, signal: Signal) -> None:
        """News of a job that somebody here waits for, or held."""

    def is_overwhelmed(self) -> bool:
        """Too many answers are outstanding to read further requests."""


def raise_open_files_limit() -> None:
    """Every connection takes a file: have as many as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class TcpListener:
    """Accepts connections and gives each a session."""

    def __init__(
        self,
        server: "Server",
        address: Address,
        name: str,
        make_session: Callable[["Connection"], Session],
    ) -> None:
        self.server = server
        self.name = name
        self.make_session = make_session
        self.connections: dict[Connection, None] = {}
        self.accepted_count = 0
        self._address = address
        self._listening: asyncio.Server | None = None
        self._unsent: list[Connection] = []
        self._empty: asyncio.Event | None = None
        self.tls: ssl.SSLContext | None = None
        self.loop = asyncio.get_running_loop()

    async def start(self) -> str:
        raise_open_files_limit()
        host, port = self._address.host, self._address.port
        where: dict[str, Any] = {"host": host, "port": port}
        if host == "::" and socket.has_dualstack_ipv6():
            # All addresses: those of IPv4, too, which asyncio by itself would leave out.
            where = {
                "sock": socket.create_server(
                    (host, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
                )
            }
        self._listening = await self.loop.create_server(
            self.make_connection,
            **where,
            backlog=_BACKLOG,
            ssl=self.tls,
            ssl_handshake_timeout=None if self.tls is None else _HANDSHAKE_SECONDS,
        )
        host, port = self._listening.sockets[0].getsockname()[:2]
        return str(Address(host, port))

    def make_connection(self) -> "Connection":
        """A connection that was accepted."""
        return Connection(self)

    async def drain(self) -> None:
        assert self._listening is not None
        self._listening.close()
        idle = asyncio.Event()
        self.server.dispatcher.when_idle(idle.set)
        if self.server.failure is None:
            await idle.wait()
        for connection in list(self.connections):
            connection.hang_up()
        # The peers get what was written; whoever does not read is not waited for.
        if self.connections:
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), _DRAIN_SECONDS)
        for connection in list(self.connections):
            connection.abort()

    def forget(self, connection: "Connection") -> None:
        """It is gone."""
        self.connections.pop(connection, None)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def flush_later(self, connection: "Connection") -> None:
        """Write at the end of this turn, together with what else is said in it."""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - a defect of ours: that peer is let go, others go on
                _log.exception("internal error", listener=self.name, peer=connection.address)
                connection.abort()


class Connection(asyncio.Protocol):
    """One peer. It is the ``Peer`` of its session."""

    # What of its bytes is looked at before others get their turn. Requests may be a few bytes
    # each, and whoever sends a great many of them at once must not keep everybody else waiting.
    turn_bytes = 32 * 1024

    def __init__(self, listener: TcpListener) -> None:
        server = listener.server
        self.connection = server.ids.connection()
        self.number = int(self.connection.rpartition("/")[2])
        self.address = ""
        self.listener = listener
        self._dispatcher = server.dispatcher
        self.ask = server.dispatcher.ask
        self.token = server.ids.token
        self._ids = server.ids
        self._clock = server.clock
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self.output: list[bytes] = []  # since the last write; if there is any, the next is due
        self._unread = b""  # came, and waits for our next turn
        self._undone = False  # so does something that the session has kept
        self._going_on = False  # that turn is on its way
        self._receiving = False
        self._closing = False
        self._ended = False  # the peer closed its half
        self._lingering: asyncio.TimerHandle | None = None
        self._told_bytes = 0  # news since the last write, at least
        self._blameless = False
        self._reading_paused = False
        self.writing_paused = False  # the peer does not read
        self._sleeper: Sleeper | None = None

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass
        self._transport = transport
        listener = self.listener
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        listener.accepted_count += 1
        if len(listener.connections) >= CONNECTIONS_COUNT_MAX or self._dispatcher.draining:
            transport.abort()
            return
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        transport.set_write_buffer_limits(high=_OUTPUT_BYTES_HIGH)
        listener.connections[self] = None
        self.take_session(listener.make_session(self))

    def take_session(self, session: Session) -> None:
        """From now on this session speaks with the peer."""
        self._session = session
        self._dispatcher.on_signal[self.connection] = self._hear

    def _hear(self, signal: Signal) -> None:
        """One connection may wait many times for one large result: that is bounded, too."""
        job = signal.job
        failure = job.failure
        self._told_bytes += (
            len(signal.payload)
            + (0 if job.result is None else len(job.result))
            + (0 if failure is None else len(failure.payload))
        )
        session = self._session
        if session is None or self._closing:
            return
        if self._told_bytes > OUTPUT_BYTES_MAX:
            self._give_up(self._told_bytes)
        else:
            session.hear(signal)

    def hear_first(self, protocol: object) -> asyncio.Transport:
        """From now on what asyncio says goes to this one, which passes on what is for us. It may
        write by itself while we have no output.
        """
        transport = self._transport
        assert transport is not None  # this is called while something is received
        transport.set_protocol(cast(asyncio.BaseProtocol, protocol))
        return transport

    def is_at_rest(self) -> bool:
        """Whether what comes next may be heard at once."""
        return not (self._closing or self._unread or self._undone)

    def data_received(self, data: bytes) -> None:
        session = self._session
        if session is None or self._closing:
            return
        if self._unread or self._undone:
            self._unread += data
            return
        if len(data) > self.turn_bytes:
            self._unread = data[self.turn_bytes :]
            data = data[: self.turn_bytes]
        self._receiving = True
        try:
            session.receive(data)
        except Exception:  # noqa: BLE001
            # A defect of ours: this peer is let go, its jobs go back, others are unharmed.
            _log.exception("internal error", listener=self.listener.name, peer=self.address)
            self._closing = self._blameless = True
        finally:
            self._receiving = False
        if self._closing:
            self.close()
        elif self._unread or self._undone:
            self.pause_reading()
            self.resume_reading()
        elif session.is_overwhelmed():
            self.pause_reading()

    def _read_on(self) -> None:
        self._going_on = False
        if self._session is not None and self._may_read():
            unread, self._unread, self._undone = self._unread, b"", False
            self.data_received(unread)
            self.resume_reading()

    def eof_received(self) -> bool:
        self._ended = True
        if self._session is None or self._closing:
            return False
        self._session.ended()
        # Closed by the session, once everything is answered; over TLS it ends at once.
        return self.listener.tls is None

    def pause_writing(self) -> None:
        self.writing_paused = True
        self.pause_reading()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self.resume_reading()

    def pause_reading(self) -> None:
        """Until `resume_reading` finds that nothing stands against it."""
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _may_read(self) -> bool:
        """Whether the peer takes its answers, and is not owed too many."""
        session = self._session
        return not (
            self._closing
            or self.writing_paused
            or (session is not None and session.is_overwhelmed())
        )

    def resume_reading(self) -> None:
        """If nothing stands against it any more."""
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
        self._dispatcher.on_signal.pop(self.connection, None)
        if self._lingering is not None:
            self._lingering.cancel()
        session, self._session, self._transport = self._session, None, None
        if session is not None:
            session.lost(blameless=self._blameless)
        self.output.clear()

    # The session's side.

    def send(self, data: bytes) -> None:
        output = self.output
        if not output:
            self.listener.flush_later(self)
        output.append(data)

    def come_back(self) -> None:
        self._undone = True

    def flush(self) -> None:
        """Everything that was said since the last time, in one write."""
        self._told_bytes = 0
        output = self.output
        transport = self._transport
        if not output or transport is None:
            return
        if self._lingering is not None:
            output.clear()  # the last word has been said
            return
        transport.write(b"".join(output))
        output.clear()
        if self._reading_paused:  # as it is, above all, while the peer does not read
            waiting = transport.get_write_buffer_size()
            if waiting > OUTPUT_BYTES_MAX:
                self._give_up(waiting)
            else:
                self.resume_reading()

    def unread_bytes(self) -> int:
        """What was written and the peer has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _give_up(self, unread_bytes: int) -> None:
        _log.warning("peer does not read; closed", peer=self.address, unread_bytes=unread_bytes)
        self._closing = True
        self.output.clear()
        self.abort()

    def close(self) -> None:
        self._closing = True
        self._unread, self._undone = b"", False  # nobody looks at it any more
        if self._receiving:
            return  # done when everything that arrived has been looked at
        self.flush()
        transport = self._transport
        if transport is None or transport.is_closing() or self._lingering is not None:
            return
        if self._ended or not transport.can_write_eof():  # over TLS there are no half-closes
            transport.close()
            return
        # What the peer still sends is read and dropped until it hangs up: closing on unread
        # bytes would reset the connection, and the peer might never read why.
        self._lingering = self.listener.loop.call_later(_LINGER_SECONDS, self.abort)
        transport.write_eof()
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def hang_up(self) -> None:
        """The server leaves. It is not the peer's fault."""
        self._closing = self._blameless = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Without waiting for what was sent."""
        if self._transport is not None:
            self._transport.abort()

    def operate(self, command: Command, settle: Settle) -> None:
        listener = self.listener
        listener.server.audit.ask(command, settle, self.address, f"{listener.name} admin")

    def now(self) -> int:
        return self._clock.now()

    def job_id(self) -> str:
        return self._ids.job_id(self._clock.now())

    def has_work(self, queues: Sequence[str]) -> bool:
        return self._dispatcher.has_work(queues)

    def sleep(self, queues: Iterable[str], wake: Callable[[], None]) -> None:
        self.stay_awake()
        self._sleeper = Sleeper(queues, lambda _queue: wake())
        self._dispatcher.waiters.sleep(self._sleeper)

    def stay_awake(self) -> None:
        if self._sleeper is not None:
            self._dispatcher.waiters.leave(self._sleeper)
            self._sleeper = None

    def is_asleep(self) -> bool:
        return self._sleeper is not None and self._sleeper.asleep

    def queues(self) -> Sequence[QueueSummary]:
        index = self._dispatcher.store.index
        return [
            QueueSummary(name, queue.counts, queue.ready.count_by_priority(), queue.queue.paused)
            for name, queue in sorted(index.queues.items())
        ]

    def unfinished_jobs(self, count_max: int) -> Sequence[Job]:
        jobs = []
        for job in self._dispatcher.store.index.jobs.values():
            if job.finished_at is None:
                jobs.append(job)
                if len(jobs) == count_max:
                    break
        return jobs
