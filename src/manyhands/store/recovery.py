"""After an unclean stop: what is in the journal and not yet in the database goes there.

Records are read in order from the one that follows what the database holds. The first that is not
whole ends the journal, and was never acknowledged, since only the last one written can be torn. If
there are later ones all the same, the journal is damaged, and nobody may go on as if it were not.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import apsw
import msgspec

from manyhands.store import journal
from manyhands.store.applying import Applier, PackedFrame
from manyhands.store.frames import cut
from manyhands.store.journal import HEADER_BYTES, Header, Mark
from manyhands.store.opening import DirectoryLock, check, inspect
from manyhands.store.store import StoreError

_WINDOW_BYTES: Final = 16 * 1024 * 1024
_BUSY_MS: Final = 5_000
# A server that runs applies what it has within a moment.
_CATCH_UP_REST_SECONDS: Final = 0.005
_CATCH_UP_SECONDS_MAX: Final = 60.0


def recover(file: Path) -> bool:
    """Bring the database up to date with its journal, under the directory's lock. Gives whether
    there was one; then the file has been checked. Raises StoreError, and changes nothing, if
    they do not fit together or one of them is damaged.
    """
    directory = file.parent
    if not journal.segments(directory):
        return False
    if not file.exists():
        _refuse_records(directory, file, b"")
        journal.remove(directory)
        return False
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_busy_timeout(_BUSY_MS)
            connection.pragma("synchronous", "FULL")
            check(connection, file)
            _replay(connection, file)
        finally:
            connection.close()
        journal.remove(directory)
    except (apsw.Error, msgspec.MsgspecError, OSError) as error:
        raise StoreError(
            f"the journal of {file} cannot be applied to it: {error}. Nothing was removed."
        ) from None
    return True


def read_mark(connection: apsw.Connection) -> Mark:
    """How far the database has come."""
    found = connection.execute("SELECT value FROM facts WHERE key = 'journal'").get
    return journal.decode_mark(found) if found else Mark()


def recover_if_free(file: Path) -> None:
    """The same for a directory that nobody may be using. If a server is, it is left to that."""
    if not journal.segments(file.parent):
        return
    try:
        lock = DirectoryLock(file.parent)
    except StoreError:
        return
    try:
        inspect(file)
        recover(file)
    finally:
        lock.release()


def catch_up(connection: apsw.Connection, file: Path) -> None:
    """Wait until the file holds what the server that uses it has made durable up to now."""
    epoch = bytes.fromhex(read_mark(connection).epoch)
    last = _last_number(file.parent, epoch)
    give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
    while (mark := read_mark(connection)).applied < last and mark.epoch == epoch.hex():
        if time.perf_counter() > give_up_at:
            raise StoreError(f"{file} does not catch up with its journal; is its server alive?")
        time.sleep(_CATCH_UP_REST_SECONDS)


def _last_number(directory: Path, epoch: bytes) -> int:
    """The last frame of a journal that may be in use: files come and go, but whatever was durable
    before this was called is in one of them, or was applied.
    """
    last = 0
    for path in journal.segments(directory):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # all of it was applied
        for header, _ in _records(data):
            if header.epoch == epoch:
                last = max(last, header.last)
    return last


def _replay(connection: apsw.Connection, file: Path) -> None:
    mark = read_mark(connection)
    epoch = bytes.fromhex(mark.epoch)
    _refuse_records(file.parent, file, epoch)
    # All of it is looked at before any of it is applied.
    for _ in _unapplied(file.parent, epoch, mark.applied):
        pass
    applier = Applier(connection, mark.epoch)
    window: list[PackedFrame] = []
    weight = 0
    for frame in _unapplied(file.parent, epoch, mark.applied):
        window.append(frame)
        weight += len(frame[1])
        if weight > _WINDOW_BYTES:
            _apply(applier, window)
            window, weight = [], 0
    if window:
        _apply(applier, window)


def _apply(applier: Applier, window: list[PackedFrame]) -> None:
    for _ in applier.apply(window):
        pass


def _refuse_records(directory: Path, file: Path, epoch: bytes) -> None:
    """A journal that another database left behind holds what is nowhere else."""
    for path in journal.segments(directory):
        with path.open("rb") as stream:
            header = journal.decode_header(stream.read(HEADER_BYTES), 0)
        if header is not None and header.epoch != epoch:
            raise StoreError(
                f"{path} is the journal of another database than {file}, and may hold jobs that "
                "are nowhere else. Put that database back; or, if it was replaced on purpose, "
                "move the journal's files away."
            )


def _unapplied(directory: Path, epoch: bytes, applied: int) -> Iterator[PackedFrame]:
    """Frames that follow what was applied, in order. Raises StoreError if one is missing."""
    expected = applied + 1
    for path in journal.segments(directory):
        data = path.read_bytes()
        end = 0
        for header, start in _records(data):
            if header.epoch != epoch:
                break
            end = journal.next_start(start + header.length)
            if header.first > expected:
                raise _broken(path, expected)
            body = memoryview(data)[start : start + header.length]
            for number, first, last in cut(body)[0]:
                if number == expected:
                    yield number, body[first:last]
                    expected += 1
        if _later_record(data, end, epoch, expected):
            raise _broken(path, expected)


def _records(data: bytes) -> Iterator[tuple[Header, int]]:
    """Whole records from the start of a file, and where the body of each begins."""
    start = 0
    while (header := journal.decode_header(data, start)) is not None:
        body = start + HEADER_BYTES
        if len(data) - body < header.length:
            return
        if crc32(memoryview(data)[body : body + header.length]) != header.checksum:
            return
        yield header, body
        start = journal.next_start(body + header.length)


def _later_record(data: bytes, start: int, epoch: bytes, expected: int) -> bool:
    """Whether something was written behind the record that is missing or torn: then that one
    had been synced before.
    """
    signature = journal.signature(epoch)
    while (start := data.find(signature, start)) >= 0:
        header = journal.decode_header(data, start)
        if header is not None and start % journal.SECTOR_BYTES == 0 and header.first > expected:
            return True
        start += 1
    return False


def _broken(path: Path, expected: int) -> StoreError:
    return StoreError(
        f"{path} is damaged: frame {expected} of the journal is missing or not whole, although "
        "later ones are there. Nothing was changed. Put a backup into an empty directory; or move "
        "the journal's files away, and lose what was acknowledged just before the server ended."
    )
