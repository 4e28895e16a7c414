"""The server's end of the way to the writer: it never blocks, and it never guesses.

A batch is durable when its number came back; somewhat later it can be read from the file. If the
writer fails or is gone, that is said, once and for all.
"""

import contextlib
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from manyhands.store.frames import FrameBuffer, decode_answer
from manyhands.store.store import StoreError, StoreFailedError

WRITER_COMMAND: Final = (sys.executable, "-P", "-m", "manyhands.store.writer")

_READ_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 4 * 1024 * 1024  # most batches go in one piece, where the system allows it
_STOP_SECONDS: Final = 60.0  # a last commit and a checkpoint on a slow disk


class WriterLink:
    """The writer's process, and the socket to it."""

    def __init__(
        self, command: Sequence[str], file: Path, lock_descriptor: int, *, check: bool
    ) -> None:
        ours, theirs = socket.socketpair()
        self._hurry, hurry = socket.socketpair()
        with theirs, hurry:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            self._socket = ours
            self._hurry.settimeout(0)
            how = "check" if check else "trust"
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, str(theirs.fileno()), str(file), how, str(hurry.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # It keeps the lock: nobody may open the directory before it has finished.
                pass_fds=(theirs.fileno(), hurry.fileno(), lock_descriptor),
                start_new_session=True,  # keys pressed in the server's terminal are not for it
            )
        self._unsent: deque[memoryview] = deque()
        self._buffer = FrameBuffer()
        self._committed = 0
        self.applied = 0  # the number of the last batch that can be read from the file
        self._opened = False
        self._failure: str | None = None

    def wait_until_open(self) -> None:
        """Until the writer has looked at the file. Raises StoreError with what it found."""
        while not self._opened and self._failure is None:
            select.select([self._socket], [], [])
            self._receive()
        if self._failure is not None:
            raise StoreError(self._failure)
        self._socket.settimeout(0)

    def fileno(self) -> int:
        """Readable when an answer came."""
        return self._socket.fileno()

    def has_unsent(self) -> bool:
        """Something waits for room."""
        return bool(self._unsent)

    def send(self, packed: bytearray) -> None:
        """Send a packed frame, or as much of it as there is room for."""
        self._unsent.append(memoryview(packed))
        self.send_more()

    def send_more(self) -> None:
        """Send what waits, as far as there is room for it."""
        unsent = self._unsent
        try:
            while unsent:
                count = self._socket.send(unsent[0])
                if count < len(unsent[0]):
                    unsent[0] = unsent[0][count:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            # It is gone. What it said before, and why it went, is told by `committed`.
            unsent.clear()

    def committed(self) -> int:
        """The number of the last durable batch. Raises StoreFailedError when none can follow."""
        before = self._committed
        if self._failure is None:
            self._receive()
        # What was made durable before a failure is told first.
        if self._failure is not None and self._committed == before:
            raise StoreFailedError(f"the store cannot be written: {self._failure}")
        return self._committed

    def hurry(self) -> None:
        """Somebody waits until he can read what is durable. Any thread may say so."""
        with contextlib.suppress(OSError):  # it has been told often enough, or is gone
            self._hurry.send(b"!")

    def has_failed(self) -> bool:
        """Nothing can follow what was committed."""
        return self._failure is not None

    def _receive(self) -> None:
        try:
            while chunk := self._socket.recv(_READ_BYTES):
                data, spans = self._buffer.feed(chunk)
                for _, start, end in spans:
                    answer = decode_answer(data[start:end])
                    if answer.failure:
                        self._failure = answer.failure
                        return
                    self._opened = True
                    self._committed = max(self._committed, answer.number)
                    self.applied = max(self.applied, answer.applied)
                if len(chunk) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        self._failure = f"the process that writes it ended {how}"

    def abandon(self) -> None:
        """The file is not to be touched: the writer, which has only looked at it, ends here."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._hurry.close()

    def close(self) -> None:
        """The writer finishes what it has been sent, and ends."""
        self._socket.close()
        self._hurry.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
