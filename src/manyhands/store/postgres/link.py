"""The server's end of the connection to the applier. It never blocks."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from manyhands.store.contract import StoreFailedError, StoreFencedError
from manyhands.store.postgres.append import FENCED, Record
from manyhands.store.postgres.applier import Begin, decode_applied, encode
from manyhands.store.records.frames import FrameBuffer, pack_body

APPLIER_COMMAND: Final = (sys.executable, "-P", "-m", "manyhands.store.postgres.applier")
_READ_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_STOP_SECONDS: Final = 20.0  # a last window, on a slow database
_END_SECONDS: Final = 5.0
_BUFFERS_MAX: Final = 256


class ApplierLink:
    """The applier process, and the socket to it."""

    def __init__(
        self, begin: Begin, poll: select.epoll, command: Sequence[str] = APPLIER_COMMAND
    ) -> None:
        ours, theirs = socket.socketpair()
        self._hurry, hurry = socket.socketpair()
        with theirs, hurry:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            self._hurry.settimeout(0)
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, str(theirs.fileno()), str(hurry.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), hurry.fileno()),
                start_new_session=True,  # Ctrl-C in the server's terminal is not for it
            )
        ours.settimeout(0)
        self._socket = ours
        self._poll = poll
        self._writes = False
        self._unsent: deque[memoryview] = deque()
        self._buffer = FrameBuffer()
        self._failure: StoreFailedError | None = None
        self._stop_seconds = _STOP_SECONDS
        self.record = 0  # the last one that is applied
        self.batch = 0
        poll.register(ours, select.EPOLLIN)
        self._unsent.append(memoryview(pack_body(0, encode(begin))))
        self.send_more()

    def send(self, record: Record) -> None:
        """Sends a durable record to be applied."""
        self._unsent.append(memoryview(pack_body(record.number, record.body)))
        self.send_more()

    def send_more(self) -> None:
        """Sends what is waiting, as far as there is room."""
        unsent = self._unsent
        try:
            while unsent:
                count = self._socket.sendmsg(tuple(islice(unsent, _BUFFERS_MAX)))
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.popleft())
                if count:
                    unsent[0] = unsent[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()  # it is gone; `receive` says why
        if self._writes is not bool(unsent):
            self._writes = bool(unsent)
            mask = select.EPOLLIN | (select.EPOLLOUT if unsent else 0)
            self._poll.modify(self._socket, mask)

    def receive(self) -> None:
        """Takes answers. Raises StoreFailedError if the applier has failed."""
        if self._failure is not None:
            raise self._failure
        if self._unsent:
            self.send_more()
        try:
            while chunk := self._socket.recv(_READ_BYTES):
                data, spans = self._buffer.feed(chunk)
                for _, start, end in spans:
                    answer = decode_applied(data[start:end])
                    if answer.fenced:
                        self._fail(StoreFencedError(FENCED))
                    if answer.failure:
                        self._fail(StoreFailedError(f"the tables: {answer.failure}"))
                    self.record = max(self.record, answer.record)
                    self.batch = max(self.batch, answer.batch)
                if len(chunk) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        self._fail(StoreFailedError(f"the process that applies the journal {self._await_exit()}"))

    def _fail(self, failure: StoreFailedError) -> None:
        self._failure = failure
        raise failure

    def _await_exit(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "hung up and did not end"
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def hurry(self) -> None:
        """Asks the applier to apply at once, because a reader waits. Any thread may call this."""
        with contextlib.suppress(OSError):  # enough requests are queued, or it is gone
            self._hurry.send(b"!")

    def has_failed(self) -> bool:
        """Whether nothing more is applied."""
        return self._failure is not None

    def expect_no_answer(self) -> None:
        """The database has not answered for long, so ``close`` will wait less than usual."""
        self._stop_seconds = _END_SECONDS

    def close(self) -> bool:
        """Lets the applier finish what it was sent, and exit. Returns whether all is applied."""
        known = self._failure is not None
        self._socket.settimeout(self._stop_seconds)
        with contextlib.suppress(OSError):
            for rest in self._unsent:
                self._socket.sendall(rest)
        self._unsent.clear()
        self._socket.close()
        self._hurry.close()
        try:
            code = self._process.wait(_END_SECONDS if known else self._stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return code == 0 and not known

    def give_up(self) -> None:
        """The journal has failed: what is not applied, the next start applies."""
        self._failure = self._failure or StoreFailedError("the journal has failed")
        self._process.kill()

    def abandon(self) -> None:
        """Ends the applier at once."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._hurry.close()
