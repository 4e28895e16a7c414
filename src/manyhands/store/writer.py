"""The process that writes: one transaction for whatever batches have arrived, one answer.

It is a process of its own so that a commit never holds the server's interpreter. It trusts what
it is sent, goes on until its parent is gone, and stops at the first error: after a failed sync
nobody knows what the disk holds, so nothing more may be called durable.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import apsw

from manyhands.store import opening
from manyhands.store.frames import Answer, FrameBuffer, ReceivedFrame, decode_frame, pack
from manyhands.store.store import StoreError

_READ_BYTES: Final = 1024 * 1024
_CACHE_KIB: Final = 64 * 1024
_BUSY_MS: Final = 5_000
# Frames in the log from which it is copied into the file when nothing waits, or in any case. A
# thousand pages take about 3 ms: rather often and short than rarely and long.
_LOG_FRAMES_IDLE: Final = 1_000
_LOG_FRAMES_MAX: Final = 4_000

# The order in which a frame is made true: what is dropped may be written again in the same batch.
_STATEMENTS: Final[tuple[tuple[str, str], ...]] = (
    ("dropped_jobs", "DELETE FROM jobs WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM tags WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM partials WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM payloads WHERE serial = ?"),
    ("dropped_jobs", "DELETE FROM failures WHERE serial = ?"),
    ("dropped_results", "UPDATE jobs SET result = NULL, result_until = NULL WHERE serial = ?"),
    ("terms", "INSERT INTO terms VALUES(?, ?)"),
    ("replaced", "DELETE FROM jobs WHERE serial = ?"),
    ("replaced", "DELETE FROM tags WHERE serial = ?"),
    ("replaced", "DELETE FROM payloads WHERE serial = ?"),
    ("inserted", "INSERT INTO jobs VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
    ("payloads", "INSERT INTO payloads VALUES(?, ?)"),
    (
        "updated",
        "UPDATE jobs SET queue = ?2, state = ?3, finished_at = ?4, result_until = ?5,"
        " record = ?6, result = ?7 WHERE serial = ?1",
    ),
    ("mended", "DELETE FROM failures WHERE serial = ?"),
    ("failures", "INSERT OR REPLACE INTO failures VALUES(?, ?, ?, ?, ?)"),
    ("failure_groups", "INSERT OR IGNORE INTO failure_groups VALUES(?, ?, ?)"),
    ("tagged", "INSERT INTO tags VALUES(?, ?)"),
    ("events", "INSERT INTO events VALUES(?, ?)"),
    ("queues", "INSERT OR REPLACE INTO queues VALUES(?, ?)"),
    ("removed_queues", "DELETE FROM queues WHERE name = ?"),
    ("limits", "INSERT OR REPLACE INTO limits VALUES(?, ?)"),
    ("removed_limits", "DELETE FROM limits WHERE name = ?"),
    ("schedules", "INSERT OR REPLACE INTO schedules VALUES(?, ?)"),
    ("removed_schedules", "DELETE FROM schedules WHERE name = ?"),
    ("cursors", "INSERT OR REPLACE INTO cursors VALUES(?, ?)"),
    ("removed_cursors", "DELETE FROM cursors WHERE name = ?"),
    ("bulks", "INSERT OR REPLACE INTO bulks VALUES(?, ?)"),
    ("removed_bulks", "DELETE FROM bulks WHERE name = ?"),
    ("audit", "INSERT OR REPLACE INTO audit VALUES(?, ?)"),
    ("audit_dropped_to", "DELETE FROM audit WHERE seq <= ?"),
    ("samples", "INSERT OR REPLACE INTO history VALUES(?, ?, ?, ?)"),
    ("dropped_samples", "DELETE FROM history WHERE step_ms = ? AND at < ?"),
    ("dropped_terms", "DELETE FROM terms WHERE terms_id = ?"),
    (
        "dropped_groups",
        "DELETE FROM failure_groups WHERE NOT EXISTS"
        " (SELECT 1 FROM failures WHERE failures.group_id = failure_groups.group_id)",
    ),
)


class Writer:
    """The one connection that writes."""

    def __init__(self, file: Path, *, check: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE
        self.connection = apsw.Connection(str(file), flags=flags, statementcachesize=64)
        self.connection.set_busy_timeout(_BUSY_MS)  # a search may still be at it at the end
        # The log is copied into the file when we say so: never by chance, on the way out.
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._log_frames = 0
        self._log_frames_seen = 0  # when it was last copied
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

    def commit(self, frames: Sequence[ReceivedFrame]) -> int:
        """Make batches durable together; gives the number of the last."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        for frame in frames:
            self._apply(frame)
        connection.execute(
            "INSERT OR REPLACE INTO facts VALUES('counters', ?)", (frames[-1].counters,)
        )
        connection.execute("COMMIT")
        return frames[-1].number

    def _apply(self, frame: ReceivedFrame) -> None:
        connection = self.connection
        for field, statement in _STATEMENTS:
            rows = getattr(frame, field)
            if rows:
                connection.executemany(statement, rows)
        for serial, number, oldest, at, warning, payload in frame.partials:
            # Numbers start anew when a job is put to work again: later ones are from before.
            connection.execute(
                "DELETE FROM partials WHERE serial = ? AND (number >= ? OR number < ?)",
                (serial, number, oldest),
            )
            connection.execute(
                "INSERT INTO partials VALUES(?, ?, ?, ?, ?)", (serial, number, at, warning, payload)
            )
        if frame.events_dropped_to:
            connection.execute("DELETE FROM events WHERE seq <= ?", (frame.events_dropped_to,))

    def tidy(self, *, idle: bool) -> None:
        """Between commits: copy the log into the file if it has grown, without waiting for
        readers. The log starts anew once nobody looks at it any more.
        """
        grown = self._log_frames - self._log_frames_seen
        if grown >= (_LOG_FRAMES_IDLE if idle else _LOG_FRAMES_MAX):
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._log_frames_seen = self._log_frames

    def close(self) -> None:
        """A clean stop leaves no log behind: that is how the next start knows."""
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self.connection.close()


def serve(link: socket.socket, file: Path, *, check: bool) -> None:
    """Write until the other end is closed."""
    try:
        writer = Writer(file, check=check)
        link.sendall(pack(Answer(0)))
        buffer = FrameBuffer()
        while chunk := link.recv(_READ_BYTES):
            frames = [decode_frame(message) for message in buffer.feed(chunk)]
            if frames:
                number = writer.commit(frames)
                link.sendall(pack(Answer(number)))
                writer.tidy(idle=not select.select([link], [], [], 0)[0])
        writer.close()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone; what was committed is committed
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
    """FD FILE check|trust: the socket to the server, the database, and how to begin."""
    # The server decides when to stop, also when a signal goes to all processes at once.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing in here makes cycles
    descriptor, file, how = arguments
    serve(socket.socket(fileno=int(descriptor)), Path(file), check=how == "check")


if __name__ == "__main__":
    main(sys.argv[1:])
