"""The applier: a process of its own that takes durable records and writes them to the tables, many
together.

It works behind the journal, so no answer waits for it. It trusts what it is sent, waits out a
database that is away, and ends with its parent, once everything it was sent is applied. It also
ends, and says so, when the tables are no longer where it left them: another server has taken over.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import psycopg
from msgspec import Struct

from manyhands.config.database import DatabaseAddress
from manyhands.store.contract import StoreError, StoreFencedError
from manyhands.store.postgres.sessions import (
    REST_SECONDS,
    REST_SECONDS_MAX,
    UNDEFINED_TABLE,
    RefusedError,
    connect,
    int8,
    read_int8,
    run,
)
from manyhands.store.postgres.windows import Progress, Windows
from manyhands.store.records.frames import FrameBuffer, pack_body

_READ_BYTES: Final = 1024 * 1024
# A window is closed when it is this old, this large, or nothing has arrived for a moment.
_IDLE_SECONDS: Final = 0.02
_WINDOW_BYTES: Final = 1024 * 1024
_WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
_TIDY_SECONDS: Final = 1.0  # between removals of applied records from the journal


class Begin(Struct, frozen=True):
    """The first message: where the tables are. Not an argument, because a password may be in it."""

    address: DatabaseAddress
    tenure: int
    incarnation: str
    window_seconds: float = 0.1


class Applied(Struct, frozen=True, array_like=True):
    """An answer: the last record and the last batch that can be read. With a failure, the last."""

    record: int
    batch: int
    failure: str = ""
    fenced: bool = False


decode_applied = msgspec.msgpack.Decoder(Applied).decode
decode_begin = msgspec.msgpack.Decoder(Begin).decode
encode = msgspec.msgpack.Encoder().encode


class Applier:
    """Takes records from the server and writes them."""

    def __init__(self, link: socket.socket, hurry: socket.socket, server: int) -> None:
        self._link = link
        self._hurry = hurry
        self._buffer = FrameBuffer()
        self._begin: Begin | None = None
        self._server = server  # its process id
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._windows: Windows | None = None
        self._gathered: deque[tuple[int, bytes]] = deque()
        self._gathered_bytes = 0
        self._oldest_at = 0.0
        self._hurried = False
        self._ended = False
        self._progress = Progress()
        self._tidied = 0
        self._tidied_at = 0.0
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll.register(hurry, select.POLLIN)

    def run(self) -> None:
        """Runs until the other end is closed and everything is applied."""
        while not self._ended:
            ready = dict(self._poll.poll(self._patience_ms()))
            if self._link.fileno() in ready:
                self._take_in()
            if self._hurry.fileno() in ready:
                self._be_hurried()
            if self._gathered and (
                self._hurried
                or not ready
                or self._gathered_bytes >= _WINDOW_BYTES
                or self._is_old()
            ):
                self._apply()
            self._tidy()
        while self._gathered and self._apply():
            pass
        self._tidy(at_last=True)

    def _is_old(self) -> bool:
        assert self._begin is not None
        return time.perf_counter() - self._oldest_at >= self._begin.window_seconds

    def _patience_ms(self) -> float | None:
        if not self._gathered:
            return _TIDY_SECONDS * 1000 if self._tidied < self._progress.applied else None
        assert self._begin is not None
        left = self._oldest_at + self._begin.window_seconds - time.perf_counter()
        return max(0.0, min(left, _IDLE_SECONDS)) * 1000

    def _be_hurried(self) -> None:
        self._hurried = True
        if not self._hurry.recv(_READ_BYTES):
            self._poll.unregister(self._hurry)  # the server ended; the link reports it

    def _take_in(self) -> None:
        try:
            chunk = self._link.recv(_READ_BYTES)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self._ended = True
            return
        body, spans = self._buffer.feed(chunk)
        for number, start, end in spans:
            if self._begin is None:
                self._begin = decode_begin(body[start:end])
                continue
            if not self._gathered:
                self._oldest_at = time.perf_counter()
            self._gathered.append((number, body[start:end]))
            self._gathered_bytes += end - start

    def _apply(self) -> bool:
        """Applies a window of what waits, however long the database is away; without the server, it
        waits for nothing.
        """
        bodies: list[bytes] = []
        weight = 0
        for _, body in self._gathered:
            bodies.append(body)
            weight += len(body)
            if weight >= _WINDOW_BYTES_MAX:
                break
        first = self._gathered[0][0]
        last = first + len(bodies) - 1
        pause = REST_SECONDS
        while True:
            try:
                self._write(bodies, first, last)
                break
            except (RefusedError, psycopg.OperationalError) as error:
                if isinstance(error, RefusedError) and not (
                    error.passes or error.code == UNDEFINED_TABLE
                ):
                    raise StoreError(
                        f"the tables refused what is in the journal: {error}"
                    ) from None
                self._hang_up()
                if os.getppid() != self._server:
                    return False  # the journal has it, and nobody can tell this process to stop
                time.sleep(pause)
                pause = min(2 * pause, REST_SECONDS_MAX)
        for _ in bodies:
            self._gathered.popleft()
        self._gathered_bytes -= weight
        if not self._gathered:
            self._hurried = False
        self._answer()
        return True

    def _write(self, bodies: list[bytes], first: int, last: int) -> None:
        """Writes records, or what is missing of them: a commit may have succeeded without an
        answer, and a standby that was promoted may be behind.
        """
        if self._windows is None:
            self._connect(first)
        assert self._windows is not None
        found = self._progress
        if found.applied >= last:
            return
        if found.applied + 1 >= first:
            bodies = bodies[found.applied + 1 - first :]
        self._progress = self._windows.apply(bodies, found.applied)

    def _connect(self, first: int) -> None:
        assert self._begin is not None
        self._connection = connect(self._begin.address)
        begin = self._begin
        windows = Windows(
            self._connection.pgconn, begin.address.schema, begin.tenure, begin.incarnation
        )
        found = windows.progress()
        if found.applied + 1 < first:
            found = self._catch_up(windows, found, first)
        self._progress = found
        self._windows = windows

    def _catch_up(self, windows: Windows, found: Progress, first: int) -> Progress:
        """The tables have gone back: applies again what the journal holds, once the server has
        written again what it lacked.
        """
        assert self._connection is not None
        assert self._begin is not None
        statement = (
            f"SELECT record, body FROM {self._begin.address.schema}.journal WHERE tenure = $1"
            " AND record > $2 AND record < $3 AND kind = 0 ORDER BY record"
        ).encode()
        values = [int8(self._begin.tenure), int8(found.applied), int8(first)]
        result = run(self._connection.pgconn, statement, values)
        numbers = [read_int8(result.get_value(row, 0)) for row in range(result.ntuples)]
        if numbers != list(range(found.applied + 1, first)):
            raise RefusedError("", "the journal is not complete yet")
        bodies = [result.get_value(row, 1) or b"" for row in range(result.ntuples)]
        return windows.apply(bodies, found.applied)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._windows = None

    def _tidy(self, *, at_last: bool = False) -> None:
        """Removes applied records from the journal, now and then. Nobody reads them, so it does not
        matter if that fails.
        """
        now = time.perf_counter()
        if self._tidied == self._progress.applied or self._connection is None:
            return
        if now - self._tidied_at < _TIDY_SECONDS and not at_last:
            return
        assert self._begin is not None
        statement = (
            f"DELETE FROM {self._begin.address.schema}.journal WHERE tenure = $1"
            " AND record <= $2 AND kind = 0"
        ).encode()
        self._tidied_at = now
        try:
            values = [int8(self._begin.tenure), int8(self._progress.applied)]
            run(self._connection.pgconn, statement, values)
            self._tidied = self._progress.applied
        except RefusedError:
            self._hang_up()

    def _answer(self) -> None:
        # The server may be gone; reading finds out, once everything it sent has been read.
        with contextlib.suppress(ConnectionError):
            message = Applied(self._progress.applied, self._progress.batch)
            self._link.sendall(pack_body(self._progress.batch, encode(message)))


def serve(link: socket.socket, hurry: socket.socket, server: int) -> int:
    """Applies until the other end is closed; returns the exit code."""
    failure: str
    fenced = False
    try:
        Applier(link, hurry, server).run()
    except StoreFencedError as error:
        failure, fenced = str(error), True
    except StoreError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001 - any error ends the process
        failure = f"{type(error).__name__}: {error}"
    else:
        return 0
    with contextlib.suppress(OSError):  # the parent may be gone as well
        link.sendall(pack_body(0, encode(Applied(0, 0, failure, fenced))))
    return 1


def main(arguments: Sequence[str]) -> None:
    """FD FD PID: the socket to the server, the one on which it says that a reader waits, and its
    process id: the server may be gone before this process can ask for its parent.
    """
    # The server decides when to stop, even if a signal goes to all its processes.
    for number in (
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        *(signal.SIGUSR1, signal.SIGUSR2),
    ):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing here creates cycles
    *descriptors, server = map(int, arguments)
    link, hurry = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    os._exit(serve(link, hurry, server))


if __name__ == "__main__":
    main(sys.argv[1:])
