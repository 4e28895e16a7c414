"""The server's end of the way to the writer: it never blocks, and it never guesses.

A batch is durable when its number came back; somewhat later it can be read from the file. If the
writer fails or is gone, that is said, once and for all.

A small batch that is all there is may be made durable right here, without the way there and back,
as long as that takes no time worth mentioning.
"""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from manyhands.store.frames import FrameBuffer, decode_answer, mark_kept
from manyhands.store.journal import Place, Tip
from manyhands.store.store import StoreError, StoreFailedError

WRITER_COMMAND: Final = (sys.executable, "-P", "-m", "manyhands.store.writer")

_READ_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 4 * 1024 * 1024  # most batches go in one piece, where the system allows it
_STOP_SECONDS: Final = 60.0  # a last commit and a checkpoint on a slow disk
# To hear how it ended, from one that has hung up already: the server stands still meanwhile.
_END_SECONDS: Final = 5.0
# What is larger is for the writer: the server does not stand still for it.
_KEPT_BYTES_MAX: Final = 64 * 1024
# The server stands still while it syncs. On a disk that is slow at it, on the average of some ten
# times, it does so for no more than this share of the time.
_SYNC_SECONDS_MAX: Final = 0.001
_SYNC_SHARE: Final = 0.01
_SYNC_WEIGHT: Final = 0.1  # of the last time
# So much counts of one at most: a disk is not slow because it stumbled once.
_SYNC_SECONDS_COUNTED: Final = 0.005
_BUFFERS_MAX: Final = 256  # that the system takes in one call


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
        self._tip = Tip(file.parent)
        self._sync_after = 0.0  # not before this moment by ourselves
        self._sync_seconds = 0.0  # what it takes, on the average
        self._sent = 0  # the number of the last batch
        self._committed = 0
        self._told = 0  # what was last answered
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

    def send(self, packed: bytearray, number: int, *, at_once: bool) -> bool:
        """Send a packed batch, or as much of it as there is room for. ``at_once``: it may be made
        durable right here, if that is quickly done. Gives whether it was; then there is no hurry,
        and it is sent by ``send_more``, together with others.
        """
        at_once = at_once and self._may_keep(packed)
        if at_once:
            self._keep(packed, number)
        self._sent = number
        self._unsent.append(memoryview(packed))
        if not at_once:
            self.send_more()
        return at_once

    def _may_keep(self, packed: bytearray) -> bool:
        return (
            self._committed == self._sent  # so the writer has nothing to write
            and self._failure is None
            and len(packed) <= _KEPT_BYTES_MAX
            and self._tip.has_room(len(packed))
            and time.perf_counter() >= self._sync_after
        )

    def _keep(self, packed: bytearray, number: int) -> None:
        """Into the journal; the writer only has to apply it."""
        began = time.perf_counter()
        try:
            self._tip.append(number, packed)
        except OSError as error:
            self._failure = f"its journal failed: {error.strerror}"
            raise StoreFailedError(f"the store cannot be written: {self._failure}") from error
        took = time.perf_counter() - began
        counted = min(took, _SYNC_SECONDS_COUNTED)
        self._sync_seconds += _SYNC_WEIGHT * (counted - self._sync_seconds)
        if self._sync_seconds > _SYNC_SECONDS_MAX:
            self._sync_after = began + took / _SYNC_SHARE
        self._committed = number
        mark_kept(packed)

    def send_more(self) -> None:
        """Send what waits, as far as there is room for it."""
        unsent = self._unsent
        try:
            while unsent:
                count = self._socket.sendmsg(tuple(islice(unsent, _BUFFERS_MAX)))
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.popleft())
                if count:
                    unsent[0] = unsent[0][count:]
        except BlockingIOError:
            return
        except OSError:
            # It is gone. What it said before, and why it went, is told by `committed`.
            unsent.clear()

    def committed(self) -> int:
        """The number of the last durable batch. Raises StoreFailedError when none can follow."""
        before = self._told
        if self._failure is None and self._committed == before:
            self._receive()
        self._told = self._committed
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
                    # An earlier number: it does not know yet what we have written since.
                    if answer.segment and answer.number == self._sent:
                        self._tip.move(answer.epoch, Place(answer.segment, answer.offset))
                if len(chunk) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        self._failure = f"the process that writes it {self._hear_of_its_end()}"

    def _hear_of_its_end(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # so that nobody waits for it later
            return "hung up and did not end"
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def give_up(self, why: str) -> None:
        """Nothing more is to be written, not even what was made durable: the writer ends here."""
        self._failure = self._failure or why
        self._process.kill()

    def abandon(self) -> None:
        """The file is not to be touched: the writer, which has only looked at it, ends here."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._hurry.close()
        self._tip.close()

    def close(self) -> None:
        """The writer finishes what it has been sent, and ends."""
        self._socket.settimeout(_STOP_SECONDS)
        with contextlib.suppress(OSError):  # it is gone; the next start sees to the rest
            for rest in self._unsent:
                self._socket.sendall(rest)
        self._socket.close()
        self._hurry.close()
        self._tip.close()
        try:
            self._process.wait(_STOP_SECONDS if self._failure is None else _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Stuck in the system, perhaps. It keeps the lock: that is for the next start.
                self._process.wait(_END_SECONDS)
