"""Applies what is in the journal but not in the database, after an unclean stop.

Records are read in order, from the first that is not applied. The first incomplete one ends the
journal; it was never acknowledged, because only the last record written can be torn. If there are
records after it, the journal is damaged and the server must not start.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

import apsw
import msgspec

from manyhands.loggers import get_logger
from manyhands.store.contract import StoreError
from manyhands.store.records.frames import HEAD_BYTES, decode_head
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.checksums import read_fact
from manyhands.store.sqlite.opening import DirectoryLock, check, inspect
from manyhands.store.sqlite.writer import journal
from manyhands.store.sqlite.writer.apply import Applier, PackedFrame
from manyhands.store.sqlite.writer.journal import HEADER_BYTES, Header, Mark
from manyhands.store.sqlite.writer.older import translated

_log = get_logger("manyhands.store")

_ADVICE: Final = (
    "Nothing was changed. Put a backup into an empty directory; or move the journal's files away, "
    "and lose what was acknowledged just before the server ended."
)
_WINDOW_BYTES: Final = 4 * 1024 * 1024
# A record may not fit into memory, so it is read in pieces of whole sectors.
_PIECE_BYTES: Final = 1024 * 1024
_BUSY_MS: Final = 5_000
# A server that is up applies its journal within a moment.
_CATCH_UP_REST_SECONDS: Final = 0.005
_CATCH_UP_SECONDS_MAX: Final = 60.0


def recover(file: Path) -> bool:
    """Brings the database up to date under the directory's lock: applies its journal, then migrates
    an older version. Returns whether there was anything to do; then the file has been checked.
    Raises StoreError, and changes nothing, if database and journal do not match or one of them is
    damaged.
    """
    had_journal = _apply_journal(file)
    return (file.exists() and schema.migrate(file)) or had_journal


def _apply_journal(file: Path) -> bool:
    """Returns whether there was a journal."""
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
    """How far the database has applied the journal."""
    found = read_fact(connection, "journal")
    return journal.decode_mark(found) if found else Mark()


def unapplied_count(connection: apsw.Connection, file: Path) -> int:
    """How many frames of the journal the next start has to apply. Raises StoreError if it is
    damaged or belongs to another database.
    """
    mark = read_mark(connection)
    epoch = bytes.fromhex(mark.epoch)
    _refuse_records(file.parent, file, epoch)
    return sum(1 for _ in _unapplied(file.parent, epoch, mark.applied))


def recover_if_free(file: Path) -> None:
    """Recovers a directory if no server uses it. If one does, recovery is left to that server."""
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
    """Waits until the file holds everything that the server using it has made durable so far."""
    epoch = bytes.fromhex(read_mark(connection).epoch)
    last = _last_number(file.parent, epoch)
    give_up_at = time.perf_counter() + _CATCH_UP_SECONDS_MAX
    while (mark := read_mark(connection)).applied < last and mark.epoch == epoch.hex():
        if time.perf_counter() > give_up_at:
            raise StoreError(f"{file} does not catch up with its journal; is its server alive?")
        time.sleep(_CATCH_UP_REST_SECONDS)


def _last_number(directory: Path, epoch: bytes) -> int:
    """The last frame of a journal that may be in use. Files come and go, but what was durable
    before this call is in one of them, or was applied.
    """
    last = 0
    for path in journal.segments(directory):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue  # all of it was applied
        with file:
            for header, _ in _records(file):
                if header.epoch == epoch:
                    last = max(last, header.last)
    return last


def _replay(connection: apsw.Connection, file: Path) -> None:
    mark = read_mark(connection)
    epoch = bytes.fromhex(mark.epoch)
    _refuse_records(file.parent, file, epoch)
    # All of it is checked before any of it is applied.
    last = mark.applied
    for _, header, _ in _following(file.parent, epoch, mark.applied):
        last = max(last, header.last)
    _report_torn(file.parent, epoch, last)
    # The format of frames depends on the version of the file.
    is_older = int(connection.pragma("user_version")) == schema.OLDEST_REPLAYED
    applier = Applier(connection, mark.epoch)
    window: list[PackedFrame] = []
    weight = 0
    for number, packed in _unapplied(file.parent, epoch, mark.applied):
        frame = (number, translated(packed) if is_older else packed)
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
    """Raises StoreError if there are records of another database, because they are stored nowhere
    else.
    """
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
    """Frames that are not applied, in order. Raises StoreError if one is missing."""
    expected = applied + 1
    for path, header, start in _following(directory, epoch, applied):
        with path.open("rb") as file:
            at, end = start, start + header.length
            while at < end:
                length, number = decode_head(_read(file, at, HEAD_BYTES))
                at += HEAD_BYTES
                if number > expected:
                    raise _broken(path, expected)
                if number == expected:
                    yield number, memoryview(_read(file, at, length))
                    expected += 1
                at += length


def _following(directory: Path, epoch: bytes, applied: int) -> Iterator[tuple[Path, Header, int]]:
    """Complete records with frames that are not applied, in order, and where their frames begin.
    Raises StoreError if one is missing.
    """
    expected = applied + 1
    for path in journal.segments(directory):
        end, size = 0, path.stat().st_size
        if size < journal.SEGMENT_BYTES:
            raise _cut_off(path, size, journal.SEGMENT_BYTES)
        with path.open("rb") as file:
            for header, start in _records(file):
                if header.epoch != epoch:
                    break
                end = journal.next_start(start + header.length)
                if header.first > expected:
                    raise _broken(path, expected)
                if header.last >= expected:
                    yield path, header, start
                    expected = header.last + 1
            if _later_record(file, end, epoch, expected):
                raise _broken(path, expected)
            torn = journal.decode_header(_read(file, end, HEADER_BYTES), 0)
            if torn is not None and torn.epoch == epoch and torn.first == expected:
                # The space for a record is allocated before it is written, however large it is.
                needed = end + HEADER_BYTES + torn.length
                if needed > size:
                    raise _cut_off(path, size, needed)


def _records(file: BinaryIO) -> Iterator[tuple[Header, int]]:
    """Complete records from the start of a file, and where the body of each begins."""
    start = 0
    while (header := journal.decode_header(_read(file, start, HEADER_BYTES), 0)) is not None:
        body = start + HEADER_BYTES
        if not _is_whole(file, header, body):
            return
        yield header, body
        start = journal.next_start(body + header.length)


def _is_whole(file: BinaryIO, header: Header, body: int) -> bool:
    checksum, left = 0, header.length
    while left:
        piece = _read(file, body, min(left, _PIECE_BYTES))
        if not piece:
            return False
        checksum = crc32(piece, checksum)
        body += len(piece)
        left -= len(piece)
    return checksum == header.checksum


def _read(file: BinaryIO, start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)


def _later_record(file: BinaryIO, start: int, epoch: bytes, expected: int) -> bool:
    """Whether there is a record after the missing or torn one, which must therefore have been
    synced.
    """
    return any(header.first > expected for header in _headers(file, start, epoch))


def _headers(file: BinaryIO, start: int, epoch: bytes) -> Iterator[Header]:
    """Every header of a record from there on. ``start`` is the start of a sector, as that of every
    record, so no header spans two pieces.
    """
    signature = journal.signature(epoch)
    while piece := _read(file, start, _PIECE_BYTES):
        at = -1
        while (at := piece.find(signature, at + 1)) >= 0:
            header = journal.decode_header(piece, at)
            if header is not None and at % journal.SECTOR_BYTES == 0:
                yield header
        start += len(piece)


def _report_torn(directory: Path, epoch: bytes, last: int) -> None:
    """Logs that the last record was torn. It was never acknowledged, but an operator may want to
    know.
    """
    for path in journal.segments(directory):
        with path.open("rb") as file:
            for header in _headers(file, 0, epoch):
                if header.first == last + 1:
                    _log.warning(
                        "the end of the journal was not written completely, and is dropped",
                        file=str(path),
                        bytes=header.length,
                        batches=header.last - last,
                    )
                    return


def _cut_off(path: Path, size: int, made: int) -> StoreError:
    return StoreError(
        f"{path} is damaged: it ends after {size} of at least {made} bytes, so what was "
        f"acknowledged may be missing. {_ADVICE}"
    )


def _broken(path: Path, expected: int) -> StoreError:
    return StoreError(
        f"{path} is damaged: frame {expected} of the journal is missing or not whole, although "
        f"later ones are there. {_ADVICE}"
    )
