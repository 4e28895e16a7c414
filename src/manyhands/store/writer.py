"""The process that writes: what has arrived goes into the journal and is answered; behind that,
many frames together, it goes into the database.

It is a process of its own so that a commit never holds the server's interpreter; and commits of
the database are a thread's, so that they never hold up the journal. It trusts what
it is sent, goes on until its parent is gone, and stops at the first error: after a failed sync
nobody knows what the disk holds, so nothing more may be called durable.
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

from manyhands.store import opening
from manyhands.store.applying import Applier, Beside, PackedFrame, right_here
from manyhands.store.frames import (
    HEAD_BYTES,
    Answer,
    FrameBuffer,
    Span,
    cut,
    is_kept,
    number_of,
    pack,
)
from manyhands.store.journal import EPOCH_BYTES, Journal, Mark, encode_mark
from manyhands.store.store import StoreError

_READ_BYTES: Final = 1024 * 1024
_CACHE_KIB: Final = 64 * 1024
_BUSY_MS: Final = 5_000
# Frames wait until they are this old, this many bytes, or nothing has come for a moment: the more
# are applied together, the fewer rows are written twice, but the longer is the commit.
_WINDOW_SECONDS: Final = 0.1
_WINDOW_BYTES: Final = 1024 * 1024
_IDLE_SECONDS: Final = 0.02
_WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
# So long is the database written to before the link is looked at again. The further it is behind,
# the longer; and beyond a bound the server has to wait.
_TURN_SECONDS: Final = 0.000_2
_TURN_SECONDS_A_BYTE: Final = 0.001 / (2 * 1024 * 1024)
_BEHIND_BYTES_MAX: Final = 64 * 1024 * 1024
# Frames in the log from which it is copied into the file when nothing waits, or in any case. A
# few megabytes take about 3 ms: rather often and short than rarely and long.
_LOG_FRAMES_IDLE: Final = 500
_LOG_FRAMES_MAX: Final = 2_000


class Writer:
    """The one connection that writes, and the journal before it."""

    def __init__(self, file: Path, *, check: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE
        self.connection = apsw.Connection(str(file), flags=flags, statementcachesize=64)
        self.connection.set_busy_timeout(_BUSY_MS)  # a search may still be at it at the end
        # The log is copied into the file when we say so: never by chance, on the way out.
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._directory = file.parent
        self.beside: Beside = right_here  # how what takes a while is done
        self._journal: Journal | None = None
        self._applier: Applier | None = None
        self._unapplied: list[PackedFrame] = []  # durable, and to be applied
        self._log_frames = 0
        self._log_frames_seen = 0  # when it was last copied
        self.unapplied_bytes = 0
        self.durable = 0  # numbers of frames
        self.applied = 0
        if check:
            opening.check(self.connection, file)
        self.connection.pragma("synchronous", "FULL")
        self.connection.pragma("cache_size", -_CACHE_KIB)
        # Also switches the automatic checkpoint off, which would run inside of a commit.
        self.connection.set_wal_hook(self._count_frames)

    def _count_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._log_frames:
            self._log_frames_seen = 0  # the log was started anew
        self._log_frames = frames
        return apsw.SQLITE_OK

    def _begin(self) -> Journal:
        """A new epoch, known to the database before anything is written in it. Only now, with
        the first frame: before that the server may still find that the file is not to be touched.
        """
        epoch = secrets.token_bytes(EPOCH_BYTES)
        mark = encode_mark(Mark(epoch.hex())).decode()
        self.connection.execute("INSERT OR REPLACE INTO facts VALUES('journal', ?)", (mark,))
        self._applier = Applier(self.connection, epoch.hex(), self.beside)
        self._journal = Journal(self._directory, epoch)
        return self._journal

    def keep(self, body: bytes, spans: Sequence[Span]) -> bool:
        """Make frames durable together, those first that the server has made durable itself.
        Gives whether there were others: these are to be answered.
        """
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

    def _take(self, body: memoryview, spans: Sequence[Span]) -> None:
        """They are durable, and to be applied."""
        self._unapplied += [(number_of(span), body[span[1] : span[2]]) for span in spans]
        self.unapplied_bytes += sum(end - start for _, start, end in spans)
        self.durable = number_of(spans[-1])

    def keep_unheard(self) -> None:
        """The server is gone: what it made durable, perhaps, and could not send any more."""
        while self._journal is not None and (body := self._journal.unheard(self.durable + 1)):
            self._journal.pass_over(self.durable + 1, len(body))
            self._take(memoryview(body), cut(body)[0])

    def answer(self) -> Answer:
        """How far it has come."""
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
        """Have in the database what is durable now, or as much of it as makes a window, in steps
        between which more may be kept.
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
        """Between commits: copy the log into the file if it has grown, without waiting for
        readers. The log starts anew once nobody looks at it any more.
        """
        grown = self._log_frames - self._log_frames_seen
        if grown >= (_LOG_FRAMES_IDLE if idle else _LOG_FRAMES_MAX):
            passive = apsw.SQLITE_CHECKPOINT_PASSIVE
            with contextlib.suppress(apsw.BusyError):  # another program does the same, or did
                self.beside(lambda: self.connection.wal_checkpoint(mode=passive))
            self._log_frames_seen = self._log_frames

    def close(self) -> None:
        """A clean stop leaves neither log nor journal behind: that is how the next start knows."""
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self.connection.close()
        if self._journal is not None:
            self._journal.close()


class _Service:
    """Turns between the link, which comes first, and the database."""

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
        self._oldest_at = 0.0  # when the first of the frames came that are not applied
        self._hurried_to = 0  # up to this number somebody waits for them
        self._helper = ThreadPoolExecutor(1)
        self._finished = os.eventfd(0, os.EFD_CLOEXEC)  # readable when the helper has
        self._poll_helper = select.poll()
        self._poll_helper.register(self._finished, select.POLLIN)
        self._poll_link = select.poll()
        self._poll_link.register(self._finished, select.POLLIN)
        self._poll_link.register(link, select.POLLIN)
        writer.beside = self._beside

    def run(self) -> None:
        """Until the other end is closed."""
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
        writer.keep_unheard()
        while writer.applied < writer.durable:
            self._apply()
        writer.close()

    def _patience_ms(self) -> float:
        left = self._oldest_at + _WINDOW_SECONDS - time.perf_counter()
        return max(0.0, min(left, _IDLE_SECONDS)) * 1000

    def _be_hurried(self) -> None:
        """Somebody waits for what is durable and not applied yet."""
        self._hurried_to = self._writer.durable
        if not self._hurry.recv(_READ_BYTES):
            self._poll_all.unregister(self._hurry)  # the end: the link tells it too

    def _take_in(self) -> None:
        try:
            chunk = self._link.recv(_READ_BYTES)
        except ConnectionResetError:  # the same, by somebody who had not read all answers
            chunk = b""
        if not chunk:
            self._ended = True
            return
        body, spans = self._buffer.feed(chunk)
        if spans:
            writer = self._writer
            if not writer.unapplied_bytes:  # else those that are there came earlier
                self._oldest_at = time.perf_counter()
            if writer.keep(body, spans):
                self._answer()

    def _apply(self) -> None:
        """In turns with the link: what arrives meanwhile is kept and answered."""
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
        """The disk takes its time with this: what arrives meanwhile is kept and answered."""
        link, writer = self._link.fileno(), self._writer
        future = self._helper.submit(work)
        future.add_done_callback(lambda _: os.eventfd_write(self._finished, 1))
        while not future.done():
            hears = not self._ended and writer.unapplied_bytes < _BEHIND_BYTES_MAX
            ready = dict((self._poll_link if hears else self._poll_helper).poll())
            if hears and link in ready:
                self._take_in()
        os.eventfd_read(self._finished)
        future.result()

    def _answer(self) -> None:
        # Nobody may be there to hear it: reading tells, once all that was sent has been read.
        with contextlib.suppress(ConnectionError):
            self._link.sendall(pack(self._writer.answer()))


def serve(link: socket.socket, hurry: socket.socket, file: Path, *, check: bool) -> None:
    """Write until the other end is closed."""
    try:
        writer = Writer(file, check=check)
        link.sendall(pack(Answer(0)))
        _Service(link, hurry, writer).run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone, before there was anything to write
    except StoreError as error:
        _fail(link, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the end
        _fail(link, f"{type(error).__name__}: {error}")


def _fail(link: socket.socket, text: str) -> NoReturn:
    """Tell, and go straight out: nothing may touch the database any more, not even to close it."""
    with contextlib.suppress(OSError):  # the parent may be gone as well
        link.sendall(pack(Answer(0, text)))
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """FD FILE check|trust FD: the socket to the server, the database, how to begin, and where the
    server says that it waits for what is not in the database yet.
    """
    # The server decides when to stop, also when a signal goes to all processes at once.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing in here makes cycles
    descriptor, file, how, hurry = arguments
    serve(
        socket.socket(fileno=int(descriptor)),
        socket.socket(fileno=int(hurry)),
        Path(file),
        check=how == "check",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
