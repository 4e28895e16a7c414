"""Every stored collection besides jobs and events, declared once.

Data travels as rows ``(table, key, record)``, where no record means removal: from a command
(``Settings``) into a batch, a frame, the journal, a window, and the database. Rows of one table
stay together and in order; of several rows with one key the last one counts. Packing, folding,
writing, loading and checking all use this module; a new collection is a line here and a migration
in ``schema.py``.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from manyhands.engine.effects import Partial
from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.events import Cursor
from manyhands.model.job import Schedule
from manyhands.model.policy import NamedLimit, Queue, Terms
from manyhands.store.bulk import Bulk

Key = tuple[Any, ...]
Record = tuple[Any, ...]
Row = tuple[Key, Record | None]
Rows = dict[str, list[Row]]  # by table

# Removals from the hot collections, which have lists of their own in a frame: a job with all that
# belongs to it; the row of a job, to be written again; a result; events up to a number. They come
# first.
JOBS: Final = "jobs"
REPLACED: Final = "replaced"
RESULTS: Final = "results"
EVENTS: Final = "events"

_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


def _as_json(value: object) -> Record:
    return (_encode_json(value).decode(),)


class Table(Struct, frozen=True, kw_only=True):
    """How one collection is stored."""

    name: str
    key: tuple[str, ...] = ("name",)  # columns that identify a row; a row begins with them
    columns: tuple[str, ...] = ("record",)
    kind: Any = None  # the type of the record, if that is JSON
    encode: Callable[[Any], Record] = _as_json  # encodes a value of a batch
    has_sum: bool = True  # its rows end in a checksum; otherwise they can be computed from jobs
    is_of_job: bool = False  # its rows have a serial, and are removed with the job
    is_of_row: bool = False  # and are written again with the row of the job
    # A removal names rows by `removed_by`. It may concern rows whose key has the removal's first
    # value at `grouped_by` (None: all rows); `covers` says which of these.
    removed_by: str
    grouped_by: int | None = 0
    covers: Callable[[Key, Key], bool] | None = None  # (removal, key); None: the whole group
    # The removal that a new row implies, to be applied before it, or None.
    displaces: Callable[[Key], Key | None] | None = None
    keeps_first: bool = False  # an existing row stays as it is
    # A removal reads other tables, so it comes last, and nothing can be folded after it.
    removed_last: bool = False

    def is_removed_singly(self) -> bool:
        """Whether a removal names one row, by its key."""
        return len(self.key) == 1 and self.covers is None


def _setting(name: str, kind: Any) -> Table:  # noqa: ANN401 - any type
    return Table(name=name, kind=kind, removed_by="name = ?")


# In the column `warning` of a piece: it is a line of the log.
LOG_BIT: Final = 2


def _encode_partial(piece: Partial) -> Record:
    return (piece.at, int(piece.warning) + LOG_BIT * int(piece.is_log), piece.payload)


def _partials_displaced(key: Key) -> Key:
    """Numbers start again when a job is retried: later ones are from before."""
    serial, number = key
    return (serial, number, number - limits.PARTIALS_KEPT_MAX + 1)


def _audit_displaced(key: Key) -> Key | None:
    seq = key[0] - limits.AUDIT_KEPT_MAX
    return (seq,) if seq > 0 else None


_ALL: Final = (
    _setting("queues", Queue),
    _setting("limits", NamedLimit),
    _setting("schedules", Schedule),
    _setting("cursors", Cursor),
    _setting("bulks", Bulk),
    Table(
        name="audit",
        key=("seq",),
        kind=AuditEntry,
        removed_by="seq <= ?",
        grouped_by=None,
        covers=lambda removal, key: bool(key[0] <= removal[0]),
        displaces=_audit_displaced,
    ),
    Table(
        name="history",
        key=("queue", "step_ms", "at"),
        columns=("sample",),
        encode=lambda stored: (_encode_msgpack(stored.sample),),
        removed_by="step_ms = ? AND at < ?",
        grouped_by=1,
        covers=lambda removal, key: bool(key[2] < removal[1]),
    ),
    Table(name="terms", key=("terms_id",), kind=Terms, removed_by="terms_id = ?"),
    Table(
        name="partials",
        key=("serial", "number"),
        columns=("at", "warning", "payload"),
        encode=_encode_partial,
        is_of_job=True,
        removed_by="serial = ? AND (number >= ? OR number < ?)",
        covers=lambda removal, key: bool(key[1] >= removal[1] or key[1] < removal[2]),
        displaces=_partials_displaced,
    ),
    Table(
        name="payloads",
        key=("serial",),
        columns=("payload",),
        has_sum=False,  # the row of the job has it
        is_of_job=True,
        is_of_row=True,
        removed_by="serial = ?",
    ),
    Table(
        name="tags",
        key=("tag", "serial"),
        columns=(),
        has_sum=False,
        is_of_job=True,
        is_of_row=True,
        removed_by="serial = ?",
        grouped_by=1,
    ),
    Table(
        name="failures",
        key=("serial",),
        columns=("group_id", "code", "queue", "at"),
        has_sum=False,
        is_of_job=True,
        removed_by="serial = ?",
    ),
    Table(
        name="failure_groups",
        key=("group_id",),
        columns=("code", "line"),
        has_sum=False,
        keeps_first=True,
        removed_by=(
            "NOT EXISTS (SELECT 1 FROM failures WHERE failures.group_id = failure_groups.group_id)"
        ),
        removed_last=True,
    ),
)
TABLES: Final = {table.name: table for table in _ALL}
OF_JOB: Final = tuple(table for table in _ALL if table.is_of_job)
OF_ROW: Final = tuple(table for table in OF_JOB if table.is_of_row)
REMOVED_LAST: Final = tuple(table for table in _ALL if table.removed_last)
# Tables that the index holds in memory by name.
SETTINGS: Final = tuple(table for table in _ALL if table.key == ("name",))

# Tables whose rows end in a checksum of all other columns, in order.
SUMMED: Final = {
    **{table.name: (*table.key, *table.columns) for table in _ALL if table.has_sum},
    "events": ("last_seq", "count", "bodies"),
    "facts": ("key", "value"),
}
