"""dwork's messages, and their bytes: one protobuf message type for requests and replies, with the
schema of ``docs/protocols/dwork.proto``. Reading them is in ``reader.py``.
"""

import enum
import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct


class Kind(enum.IntEnum):
    """What a message asks or answers."""

    CREATE = 0
    STEAL = 1
    COMPLETE = 2
    TRANSFER = 3
    LOOKUP = 4
    NOT_FOUND = 5
    OK = 6
    EXIT = 7
    ERROR = 8


class Phase(enum.IntEnum):
    """An entry of a task's log."""

    PENDING = 0
    STOLEN = 1
    WAITING = 2
    COPYING = 3
    READY = 4
    STARTED = 5
    DONE = 6
    RECORDED = 7


class Dep(Struct, frozen=True, gc=False):
    """A predecessor."""

    name: str
    location: str | None = None


class LogEntry(Struct, frozen=True, gc=False):
    """A state, and when it was entered, in microseconds since the epoch."""

    phase: Phase
    at_us: int


class Task(Struct, frozen=True, gc=False, kw_only=True):
    """One task. Fields that are not in the original protocol have numbers from 100."""

    name: str
    origin: str = ""
    preds: tuple[Dep, ...] = ()
    log: tuple[LogEntry, ...] = ()
    payload: bytes | None = None
    result: bytes | None = None
    failure: str | None = None
    priority: float | None = None
    attempt: int | None = None
    retry: bool = False
    cancel_on_failure: bool = False
    attempts_max: int | None = None
    attempts_used: int | None = None
    state: str | None = None
    keep: bool = False


class Counts(Struct, frozen=True, gc=False, kw_only=True):
    """The tasks of a graph: those in progress, and how the others ended."""

    waiting: int = 0
    delayed: int = 0
    ready: int = 0
    stolen: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    held: int = 0  # of the waiting ones: those behind a failed or cancelled task


class Made(Struct, frozen=True, gc=False, kw_only=True):
    """What a Create did with its tasks."""

    added: int = 0
    there: int = 0
    done: int = 0  # and therefore left alone
    again: int = 0  # of those added: failed or cancelled before


class Query(Struct, frozen=True, gc=False, kw_only=True):
    """One message."""

    kind: Kind
    tasks: tuple[Task, ...] = ()
    name: str | None = None
    n: int | None = None
    location: str | None = None
    reason: str | None = None
    detail: bool = False
    counts: Counts | None = None
    resume: bool = False
    made: Made | None = None
    lease_ms: int | None = None


# Whole messages, like nearly all replies.
BARE: Final[dict[Kind, bytes]] = {kind: bytes((8, kind)) for kind in Kind}

# Messages are written by hand: they are mostly text, and a protobuf object for each part would cost
# three times as much as the bytes. Fields are written in the order of their numbers.


def encode(query: Query) -> bytes:
    """The bytes of a message."""
    parts = [BARE[query.kind], *map(pack_task, query.tasks)]
    if query.name is not None:
        parts.append(_pack_data(b"\x1a", query.name.encode()))
    if query.n is not None:
        parts.append(b"\x20" + _varint(query.n))
    if query.location is not None:
        parts.append(_pack_data(b"\x32", query.location.encode()))
    if query.reason is not None:
        parts.append(_pack_data(b"\xa2\x06", query.reason.encode()))
    if query.detail:
        parts.append(b"\xa8\x06\x01")
    if query.counts is not None:
        parts.append(_pack_data(b"\xb2\x06", _pack_counts(query.counts)))
    if query.resume:
        parts.append(b"\xb8\x06\x01")
    if query.made is not None:
        made = query.made
        numbers = _pack_numbers(made.added, made.there, made.done, made.again)
        parts.append(_pack_data(b"\xc2\x06", numbers))
    if query.lease_ms is not None:
        parts.append(pack_lease(query.lease_ms))
    return b"".join(parts)


def _pack_counts(counts: Counts) -> bytes:
    under_way = (counts.waiting, counts.delayed, counts.ready, counts.stolen)
    return _pack_numbers(*under_way, counts.done, counts.failed, counts.cancelled, counts.held)


def _pack_numbers(*values: int) -> bytes:
    """A message of numbers only, in the order of its fields."""
    numbered = enumerate(values, start=1)
    return b"".join([bytes((number << 3,)) + _varint(value) for number, value in numbered if value])


def pack_lease(lease_ms: int) -> bytes:
    """How long a worker may be silent, as the last part of a message."""
    return b"\xc8\x06" + _varint(lease_ms)


def encode_given(tasks: Sequence[bytes], rest: bytes = b"") -> bytes:
    """A message that hands out tasks; tasks and rest are already packed."""
    return BARE[Kind.TRANSFER] + b"".join(tasks) + rest


def pack_task(task: Task) -> bytes:
    """A task as part of a message."""
    return with_name(task.name.encode(), pack_rest(task))


def with_name(name: bytes, rest: bytes) -> bytes:
    """A task of that name as part of a message; ``rest`` is what ``pack_rest`` returned for a task
    that differs only in its name.
    """
    size = len(name)
    total = size + len(rest) + 2
    if total < 128:
        return b"".join((b"\x12", _SMALL[total], b"\x0a", _SMALL[size], name, rest))
    body = _pack_data(b"\x0a", name) + rest
    return _pack_data(b"\x12", body)


def pack_rest(task: Task) -> bytes:
    """All of a task but its name."""
    origin = task.origin.encode()
    parts = [b"\x12", _length(origin), origin]
    for dep in task.preds:
        pred = _pack_data(b"\x0a", dep.name.encode())
        if dep.location is not None:
            pred += _pack_data(b"\x12", dep.location.encode())
        parts.append(_pack_data(b"\x22", pred))
    known = _packed_entries.get
    parts += [known(entry) or _pack_entry(entry) for entry in task.log]
    if task.payload is not None:
        parts.append(_pack_data(b"\xa2\x06", task.payload))
    if task.result is not None:
        parts.append(_pack_data(b"\xaa\x06", task.result))
    if task.failure is not None:
        parts.append(_pack_data(b"\xb2\x06", task.failure.encode()))
    if task.priority is not None:
        parts.append(b"\xb9\x06" + _DOUBLE_FORM.pack(task.priority))
    if task.attempt is not None:
        parts.append(b"\xc0\x06" + _varint(task.attempt))
    if task.retry:
        parts.append(b"\xc8\x06\x01")
    if task.cancel_on_failure:
        parts.append(b"\xd0\x06\x01")
    if task.attempts_max is not None or task.attempts_used is not None or task.state is not None:
        parts.append(_pack_rarities(task))
    if task.keep:
        parts.append(b"\xf0\x06\x01")
    return b"".join(parts)


def _pack_rarities(task: Task) -> bytes:
    parts = []
    if task.attempts_max is not None:
        parts.append(b"\xd8\x06" + _varint(task.attempts_max))
    if task.attempts_used is not None:
        parts.append(b"\xe0\x06" + _varint(task.attempts_used))
    if task.state is not None:
        parts.append(_pack_data(b"\xea\x06", task.state.encode()))
    return b"".join(parts)


_DOUBLE_FORM: Final = struct.Struct("<d")
_SMALL: Final = tuple(bytes((number,)) for number in range(128))
# Many tasks are handed out within a millisecond, with equal entries.
_packed_entries: Final[dict[LogEntry, bytes]] = {}
_PACKED_ENTRIES_MAX: Final = 4_096


def _pack_entry(entry: LogEntry) -> bytes:
    packed = _pack_data(b"\x32", bytes((8, entry.phase, 16)) + _varint(entry.at_us))
    if len(_packed_entries) >= _PACKED_ENTRIES_MAX:
        _packed_entries.clear()
    _packed_entries[entry] = packed
    return packed


def _pack_data(tag: bytes, data: bytes) -> bytes:
    return tag + _length(data) + data


def _length(data: bytes) -> bytes:
    count = len(data)
    return _SMALL[count] if count < 128 else _varint(count)


def _varint(number: int) -> bytes:
    """Seven bits per byte, lowest first; negative numbers count as 64 bits."""
    if number < 0:
        number += 1 << 64
    packed = bytearray()
    while number >= 128:
        packed.append(number & 127 | 128)
        number >>= 7
    packed.append(number)
    return bytes(packed)
