"""The writer process: writes what arrives to the journal and acknowledges it, then applies many
frames together to the database.

It is a separate process so that a commit never blocks the server's interpreter; and the database
commits in a thread, so that it never delays the journal. It trusts what it is sent, runs until its
parent is gone, and stops at the first error: after a failed sync the state of the disk is unknown,
so nothing more may be called durable.
"""

import contextlib
import gc
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NoReturn

import apsw

from manyhands.store.contract import StoreError
from manyhands.store.records.frames import (
    HEAD_BYTES,
    Answer,
    FrameBuffer,
    Span,
    cut,
    is_kept,
    number_of,
    pack,
)
from manyhands.store.sqlite import opening
from manyhands.store.sqlite.checksums import write_facts
from manyhands.store.sqlite.writer.apply import Applier, Beside, PackedFrame, right_here
from manyhands.store.sqlite.writer.journal import EPOCH_BYTES, Journal, Mark, encode_mark

_READ_BYTES: Final = 1024 * 1024
_CACHE_KIB: Final = 64 * 1024
_BUSY_MS: Final = 5_000
# Frames wait until they are this old, this many bytes, or nothing has arrived for a moment: the
# more are applied together, the fewer rows are written twice, but the longer the commit.
_WINDOW_SECONDS: Final = 0.1
_WINDOW_BYTES: Final = 1024 * 1024
_IDLE_SECONDS: Final = 0.02
_WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
# How long the database is written to before the socket is looked at again: longer the further it is
# behind. Beyond a limit the server has to wait.
_TURN_SECONDS: Final = 0.000_2
_TURN_SECONDS_A_BYTE: Final = 0.001 / (2 * 1024 * 1024)
_BEHIND_BYTES_MAX: Final = 64 * 1024 * 1024
# How many frames of SQLite's log cause a checkpoint when the writer is idle, and in any case. A few
# megabytes take about 3 ms: frequent short checkpoints are better than rare long ones.
_LOG_FRAMES_IDLE: Final = 500
_LOG_FRAMES_MAX: Final = 2_000


class Writer:
    """The only connection that writes, and its journal."""

    def __init__(self, file: Path, *, check: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE
        self.connection = apsw.Connection(str(file), flags=flags, statementcachesize=64)
        self.connection.set_busy_timeout(_BUSY_MS)  # a search may still read at the end
        # Checkpoints are explicit, never a side effect of closing.
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._directory = file.parent
        self.beside: Beside = right_here  # how slow work is run
        self._journal: Journal | None = None
        self._applier: Applier | None = None
        self._unapplied: list[PackedFrame] = []  # durable, and to be applied
        self._log_frames = 0
        self._log_frames_seen = 0  # at the last checkpoint
        self.unapplied_bytes = 0
        self.durable = 0  # numbers of frames
        self.applied = 0
        if check:
            opening.check(self.connection, file)
        self.connection.pragma("synchronous", "FULL")
        self.connection.pragma("cache_size", -_CACHE_KIB)
        # Also turns off the automatic checkpoint, which would run inside a commit.
        self.connection.set_wal_hook(self._count_frames)

    def _count_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._log_frames:
            self._log_frames_seen = 0  # the log was restarted
        self._log_frames = frames
        return apsw.SQLITE_OK

    def _begin(self) -> Journal:
        """Begins an epoch, which is stored in the database before the first record. Not before the
        first frame: until then the server may still find that the file must not be changed.
        """
        epoch = secrets.token_bytes(EPOCH_BYTES)
        mark = encode_mark(Mark(epoch.hex())).decode()
        write_facts(self.connection, journal=mark)
        self._applier = Applier(self.connection, epoch.hex(), self.beside)
        self._journal = Journal(self._directory, epoch)
        return self._journal

    def keep(self, body: bytes, spans: Sequence[Span]) -> bool:
        """Makes frames durable together; the first ones may be those that the server has made
        durable itself. Returns whether there were others, which have to be acknowledged.
        """
        self._check_numbers(spans)
        journal = self._journal
        view = memoryview(body)
        written = 0
        for span in spans:
            if not is_kept(span):
                break
            assert journal is not None
            _, start, end = span
            journal.pass_over(number_of(span), HEAD_BYTES + end - start)
            written += 1
        if written < len(spans):
            first, start, _ = spans[written]
            try:
                journal = journal or self._begin()
                journal.append(first, spans[-1][0], view[start - HEAD_BYTES :])
            except OSError as error:
                raise StoreError(f"its journal failed: {error.strerror}") from error
        self._take(view, spans)
        return written < len(spans)

    def _check_numbers(self, spans: Sequence[Span]) -> None:
        """Raises StoreError if a batch is missing, because the next one would hide the loss."""
        for number, span in enumerate(spans, self.durable + 1):
            if number_of(span) != number:
                raise StoreError(
                    f"batch {number} did not reach the process that writes, but batch "
                    f"{number_of(span)} did; nothing was written of that"
                )

    def _take(self, body: memoryview, spans: Sequence[Span]) -> None:
        """Queues durable frames to be applied."""
        self._unapplied += [(number_of(span), body[span[1] : span[2]]) for span in spans]
        self.unapplied_bytes += sum(end - start for _, start, end in spans)
        self.durable = number_of(spans[-1])

    def keep_unsent(self) -> None:
        """Takes frames that the server wrote to the journal but could not send before it died."""
        while self._journal is not None and (body := self._journal.unsent(self.durable + 1)):
            self._journal.pass_over(self.durable + 1, len(body))
            self._take(memoryview(body), cut(body)[0])

    def answer(self) -> Answer:
        """The progress to report."""
        if self._journal is None:
            return Answer(self.durable, applied=self.applied)
        segment, offset = self._journal.place
        return Answer(
            self.durable,
            applied=self.applied,
            epoch=self._journal.epoch,
            segment=segment,
            offset=offset,
        )

    def apply(self) -> Iterator[None]:
        """Applies durable frames, up to one window of them, in steps between which more may be
        kept.
        """
        frames = []
        weight = 0
        for frame in self._unapplied:
            frames.append(frame)
            weight += len(frame[1])
            if weight >= _WINDOW_BYTES_MAX:
                break
        del self._unapplied[: len(frames)]
        self.unapplied_bytes -= weight
        assert self._applier is not None
        assert self._journal is not None
        yield from self._applier.apply(frames)
        self.applied = frames[-1][0]
        self._journal.release(self.applied)

    def tidy(self, *, idle: bool) -> None:
        """Checkpoints the log between commits if it has grown, without waiting for readers. SQLite
        restarts the log once no reader uses it.
        """
        grown = self._log_frames - self._log_frames_seen
        if grown >= (_LOG_FRAMES_IDLE if idle else _LOG_FRAMES_MAX):
            passive = apsw.SQLITE_CHECKPOINT_PASSIVE
            with contextlib.suppress(apsw.BusyError):  # another program does the same, or did
                self.beside(lambda: self.connection.wal_checkpoint(mode=passive))
            self._log_frames_seen = self._log_frames

    def close(self) -> None:
        """Leaves neither log nor journal behind, so that the next start knows that the stop was
        clean.
        """
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self.connection.close()
        if self._journal is not None:
            self._journal.close()


class _Service:
    """Alternates between the socket, which has precedence, and the database."""

    def __init__(self, link: socket.socket, hurry: socket.socket, writer: Writer) -> None:
        self._link = link
        self._hurry = hurry
        self._writer = writer
        self._buffer = FrameBuffer()
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll_all = select.poll()
        self._poll_all.register(link, select.POLLIN)
        self._poll_all.register(hurry, select.POLLIN)
        self._ended = False
        self._oldest_at = 0.0  # arrival of the oldest frame that is not applied
        self._hurried_to = 0  # a reader waits for the frames up to this number
        self._helper = ThreadPoolExecutor(1)
        self._finished = os.eventfd(0, os.EFD_CLOEXEC)  # readable when the helper is idle again
        self._poll_helper = select.poll()
        self._poll_helper.register(self._finished, select.POLLIN)
        self._poll_link = select.poll()
        self._poll_link.register(self._finished, select.POLLIN)
        self._poll_link.register(link, select.POLLIN)
        writer.beside = self._beside

    def run(self) -> None:
        """Runs until the other end is closed."""
        writer = self._writer
        while not self._ended:
            waits = writer.applied < writer.durable
            ready = dict(self._poll_all.poll(self._patience_ms() if waits else None))
            if self._link.fileno() in ready:
                self._take_in()
            if self._hurry.fileno() in ready:
                self._be_hurried()
            if writer.applied < writer.durable and (
                writer.applied < self._hurried_to
                or not ready
                or writer.unapplied_bytes >= _WINDOW_BYTES
                or time.perf_counter() - self._oldest_at >= _WINDOW_SECONDS
            ):
                self._apply()
                writer.tidy(idle=not self._poll.poll(0))
        writer.keep_unsent()
        while writer.applied < writer.durable:
            self._apply()
        writer.close()

    def _patience_ms(self) -> float:
        left = self._oldest_at + _WINDOW_SECONDS - time.perf_counter()
        return max(0.0, min(left, _IDLE_SECONDS)) * 1000

    def _be_hurried(self) -> None:
        """Notes that a reader waits for what is durable but not applied."""
        self._hurried_to = self._writer.durable
        if not self._hurry.recv(_READ_BYTES):
            self._poll_all.unregister(self._hurry)  # the server ended; the link reports it

    def _take_in(self) -> None:
        try:
            chunk = self._link.recv(_READ_BYTES)
        except ConnectionResetError:  # the same, if the server had unread answers
            chunk = b""
        if not chunk:
            self._ended = True
            return
        body, spans = self._buffer.feed(chunk)
        if spans:
            writer = self._writer
            if not writer.unapplied_bytes:  # otherwise an older frame is already there
                self._oldest_at = time.perf_counter()
            if writer.keep(body, spans):
                self._answer()

    def _apply(self) -> None:
        """Applies frames in turn with the socket: what arrives meanwhile is kept and
        acknowledged.
        """
        writer, now = self._writer, time.perf_counter
        turn_until = now() + _TURN_SECONDS
        for _ in writer.apply():
            if now() < turn_until or self._ended or writer.unapplied_bytes >= _BEHIND_BYTES_MAX:
                continue
            if self._poll.poll(0):
                self._take_in()
            turn_until = now() + _TURN_SECONDS + _TURN_SECONDS_A_BYTE * writer.unapplied_bytes
        self._answer()

    def _beside(self, work: Callable[[], object]) -> None:
        """Runs slow work in the helper thread; what arrives meanwhile is kept and acknowledged."""
        link, writer = self._link.fileno(), self._writer
        future = self._helper.submit(work)
        future.add_done_callback(lambda _: os.eventfd_write(self._finished, 1))
        while not future.done():
            reads = not self._ended and writer.unapplied_bytes < _BEHIND_BYTES_MAX
            ready = dict((self._poll_link if reads else self._poll_helper).poll())
            if reads and link in ready:
                self._take_in()
        os.eventfd_read(self._finished)
        future.result()

    def _answer(self) -> None:
        # The server may be gone; reading finds out, once everything it sent has been read.
        with contextlib.suppress(ConnectionError):
            self._link.sendall(pack(self._writer.answer()))


def serve(link: socket.socket, hurry: socket.socket, file: Path, *, check: bool) -> None:
    """Writes until the other end is closed."""
    try:
        writer = Writer(file, check=check)
        link.sendall(pack(Answer(0)))
        _Service(link, hurry, writer).run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone, and there was nothing to write
    except StoreError as error:
        _fail(link, str(error))
    except Exception as error:  # noqa: BLE001 - any error ends the process
        _fail(link, f"{type(error).__name__}: {error}")


def _fail(link: socket.socket, text: str) -> NoReturn:
    """Reports an error and exits at once: nothing may touch the database any more, not even closing
    it.
    """
    with contextlib.suppress(OSError):  # the parent may be gone as well
        link.sendall(pack(Answer(0, text)))
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """FD FILE check|trust FD: the socket to the server, the database, how to begin, and the socket
    on which the server says that a reader waits.
    """
    # The server decides when to stop, even if a signal goes to all its processes.
    for number in (
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        *(signal.SIGUSR1, signal.SIGUSR2),
    ):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing here creates cycles
    descriptor, file, how, hurry = arguments
    serve(
        socket.socket(fileno=int(descriptor)),
        socket.socket(fileno=int(hurry)),
        Path(file),
        check=how == "check",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
