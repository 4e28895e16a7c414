"""The server's end of the connection to the writer. It never blocks.

A batch is durable when its number has come back; a little later it can be read from the file. If
the writer fails or dies, the link has failed for good.

If the writer is idle, a small batch may be made durable right here, without the round trip, as long
as syncing takes no noticeable time.
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

from manyhands.store.contract import StoreError, StoreFailedError
from manyhands.store.records.frames import FrameBuffer, decode_answer, mark_kept
from manyhands.store.sqlite.writer.journal import Place, Tip

WRITER_COMMAND: Final = (sys.executable, "-P", "-m", "manyhands.store.sqlite.writer.process")

_READ_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 4 * 1024 * 1024  # most batches are sent in one piece, if the system allows
_STOP_SECONDS: Final = 20.0  # a last commit and a checkpoint on a slow disk
# The server stands still while it waits for the exit of a writer that has closed its end.
_END_SECONDS: Final = 5.0
# Larger batches are left to the writer, so that the server does not stand still.
_KEPT_BYTES_MAX: Final = 64 * 1024
# The server stands still while it syncs. If its recent syncs took longer than this on average, it
# spends no more than this share of the time on them.
_SYNC_SECONDS_MAX: Final = 0.001
_SYNC_SHARE: Final = 0.01
_SYNC_WEIGHT: Final = 0.1  # of the latest sync in the average
# A single sync counts at most this much: one slow sync does not make a disk slow.
_SYNC_SECONDS_COUNTED: Final = 0.005
# A sync this long is no accident. After it the writer syncs, until the standstill is no more than
# the same share of the time and the writer's disk has answered quickly.
_STANDSTILL_SECONDS: Final = 0.1
_QUICK_SECONDS: Final = 0.02
_BUFFERS_MAX: Final = 256  # buffers per system call


class WriterLink:
    """The writer process, and the socket to it."""

    def __init__(
        self, command: Sequence[str], file: Path, lock_descriptors: Sequence[int], *, check: bool
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
                # It inherits the lock: no server may open the directory before it has finished.
                pass_fds=(theirs.fileno(), hurry.fileno(), *lock_descriptors),
                start_new_session=True,  # Ctrl-C in the server's terminal is not for it
            )
        self._unsent: deque[memoryview] = deque()
        self._buffer = FrameBuffer()
        self._tip = Tip(file.parent)
        self._sync_after = 0.0  # no sync by the server before this time
        self._sync_seconds = 0.0  # the moving average of a sync
        self._is_distrusted = False  # a sync on this disk made the server stand still
        self._sent_at = 0.0  # when the last batch since then was sent
        self._sent = 0  # the number of the last batch
        self._committed = 0
        self._reported = 0  # the number last returned by `committed`
        self.applied = 0  # the number of the last batch that can be read from the file
        self._opened = False
        self._failure: str | None = None
        self._stop_seconds = _STOP_SECONDS

    def wait_until_open(self) -> None:
        """Waits until the writer has checked the file. Raises StoreError with what it found."""
        while not self._opened and self._failure is None:
            select.select([self._socket], [], [])
            self._receive()
        if self._failure is not None:
            raise StoreError(self._failure)
        self._socket.settimeout(0)

    def fileno(self) -> int:
        """Becomes readable when an answer has arrived."""
        return self._socket.fileno()

    def has_unsent(self) -> bool:
        """Whether something waits for room in the socket."""
        return bool(self._unsent)

    def send(self, packed: bytearray, number: int, *, at_once: bool) -> bool:
        """Sends a packed batch, as far as there is room. With ``at_once`` it may be made durable
        right here, if that is quick. Returns whether it was; then sending is not urgent, and is
        left to ``send_more``.
        """
        at_once = at_once and self._may_keep(packed)
        if at_once:
            self._keep(packed, number)
        elif self._is_distrusted:
            self._sent_at = time.perf_counter()
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
            and not self._is_distrusted
            and time.perf_counter() >= self._sync_after
        )

    def _keep(self, packed: bytearray, number: int) -> None:
        """Writes a batch to the journal, so that the writer only has to apply it."""
        began = time.perf_counter()
        try:
            self._tip.append(number, packed)
        except OSError as error:
            self._failure = f"its journal failed: {error.strerror}"
            raise StoreFailedError(f"the store cannot be written: {self._failure}") from error
        took = time.perf_counter() - began
        if took >= _STANDSTILL_SECONDS:
            self._is_distrusted = True
            self._sync_after = began + took / _SYNC_SHARE
        counted = min(took, _SYNC_SECONDS_COUNTED)
        self._sync_seconds += _SYNC_WEIGHT * (counted - self._sync_seconds)
        if self._sync_seconds > _SYNC_SECONDS_MAX:
            self._sync_after = began + took / _SYNC_SHARE
        self._committed = number
        mark_kept(packed)

    def _notice_answer(self) -> None:
        """Trusts the disk again if the last batch was durable quickly and the pause is over."""
        now = time.perf_counter()
        if now - self._sent_at < _QUICK_SECONDS and now >= self._sync_after:
            self._is_distrusted = False

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
            return
        except OSError:
            # The writer is gone. `committed` reports its last answers, and why it ended.
            unsent.clear()

    def committed(self) -> int:
        """The number of the last durable batch. Raises StoreFailedError if no further one can
        follow.
        """
        before = self._reported
        if self._failure is None and self._committed == before:
            self._receive()
        self._reported = self._committed
        # What became durable before a failure is reported first.
        if self._failure is not None and self._committed == before:
            raise StoreFailedError(f"the store cannot be written: {self._failure}")
        return self._committed

    def hurry(self) -> None:
        """Asks the writer to apply what is durable, because a reader waits for it. Any thread may
        call this.
        """
        with contextlib.suppress(OSError):  # enough requests are queued, or it is gone
            self._hurry.send(b"!")

    def has_failed(self) -> bool:
        """Whether no further batch can become durable."""
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
                    if self._is_distrusted and self._committed < answer.number == self._sent:
                        self._notice_answer()
                    self._committed = max(self._committed, answer.number)
                    self.applied = max(self.applied, answer.applied)
                    # With an earlier number, it does not cover what was written here since.
                    if answer.segment and answer.number == self._sent:
                        self._tip.move(answer.epoch, Place(answer.segment, answer.offset))
                if len(chunk) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        self._failure = f"the process that writes it {self._await_exit()}"

    def _await_exit(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # so that closing does not wait for it
            return "hung up and did not end"
        return _ended_with(code)

    def give_up(self, why: str) -> None:
        """Ends the writer at once; not even durable batches are applied."""
        self._failure = self._failure or why
        self._process.kill()

    def abandon(self) -> None:
        """Ends the writer before it has changed the file."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._hurry.close()
        self._tip.close()

    def expect_no_answer(self) -> None:
        """The disk has not answered for long, so ``close`` will wait less than usual."""
        self._stop_seconds = _END_SECONDS

    def close(self) -> str | None:
        """Lets the writer finish what it was sent, and exit. Returns how it ended, if that was an
        error not known before.
        """
        known = self._failure is not None
        self._socket.settimeout(self._stop_seconds)
        with contextlib.suppress(OSError):  # it is gone; the next start does the rest
            for rest in self._unsent:
                self._socket.sendall(rest)
        self._socket.close()
        self._hurry.close()
        self._tip.close()
        seconds = _END_SECONDS if known else self._stop_seconds
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Perhaps stuck in a system call. It keeps the lock, which the next start will
                # report.
                self._process.wait(_END_SECONDS)
            how = f"did not end within {seconds:.0f} s, and was killed"
        else:
            if code == 0:
                return None
            how = _ended_with(code)
        if known:
            return None
        return f"the process that writes it {how}; what was acknowledged is in its journal"


def _ended_with(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
