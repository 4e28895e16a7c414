"""What one commit makes durable: the latest value of each changed job, and events in order.

Values and events of plain jobs are kept as they are (``values``, ``entries``); whoever looks at
``jobs`` and ``events`` sees ordinary ones, made on the spot.
"""

from typing import Any, Final

from manyhands.engine.effects import Settings
from manyhands.model.events import Cursor, Event
from manyhands.model.job import Job
from manyhands.model.plain import Plain, event_of, job_of
from manyhands.model.receipts import write_receipt

# Cursors also hold, under these prefixes: where the graph of a namespace began, finished jobs with
# dependants that have not been notified, and the receipts of submits.
GRAPH_PREFIX: Final = "graph:"
UNNOTIFIED_PREFIX: Final = "unnotified:"
RECEIPT_PREFIX: Final = "receipt:"


class Batch:
    """The changes of many commands, folded. Commits are strict prefixes of the decisions."""

    __slots__ = (
        "alive_at",
        "entries",
        "events_after",
        "full",
        "is_durable",
        "is_plain",
        "number",
        "rows",
        "touched",
        "values",
        "weight",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[str, Job | Plain] = {}
        self.full: set[str] = set()  # ids whose whole row is written: new jobs, or a new payload
        self.entries: list[Event | Plain] = []  # the events, in order
        self.is_plain = True  # only steps of the short way are in it, and none has a reason
        self.events_after = 0  # the number before the first event's, once the batch is sealed
        # Everything else: table -> key -> value, or None to remove the row.
        self.rows: dict[str, dict[Any, Any]] = {}
        self.touched = False  # written even if nothing changed, to record the time
        self.weight = 0  # bytes of the payloads and results in it
        self.alive_at = 0  # server time when the batch was sealed
        self.is_durable = False  # it was durable as soon as its commit began

    @property
    def last_seq(self) -> int:
        """The number of its last event."""
        return self.events_after + len(self.entries)

    @property
    def jobs(self) -> dict[str, Job]:
        """The latest value of each changed job."""
        return {job_id: job_of(value) for job_id, value in self.values.items()}

    @property
    def events(self) -> list[Event]:
        """All events, in order."""
        return [event_of(entry) for entry in self.entries]

    def job(self, job_id: str) -> Job | None:
        """The latest value of a job, if it changed."""
        value = self.values.get(job_id)
        return None if value is None else job_of(value)

    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.values or self.entries or self.touched or self.rows)

    def put(self, table: str, key: Any, value: Any) -> None:  # noqa: ANN401 - see the tables
        """Sets a row, or removes it with None. The last value per key counts, in the last place."""
        rows = self.rows.get(table)
        if rows is None:
            rows = self.rows[table] = {}
        else:
            rows.pop(key, None)
        rows[key] = value

    def rows_of(self, table: str) -> dict[Any, Any]:
        """What changed in a table: the new value by key, or None for a removed row."""
        return self.rows.get(table) or {}

    def mark(self, name: str, seq: int | None, notes: str = "") -> None:
        """Keeps a number under a name among the cursors; None removes it."""
        self.put("cursors", name, None if seq is None else Cursor(name, seq, notes))

    def take_settings(self, settings: Settings) -> None:
        """Takes what a command changed besides jobs and events."""
        for table, rows in settings.tables():
            for name, value in rows.items():
                self.put(table, name, value)
        for job_id, unnotified in settings.unnotified.items():
            name = UNNOTIFIED_PREFIX + job_id
            if unnotified is None:
                self.mark(name, None)
            else:
                self.mark(name, unnotified.doomed_max, unnotified.detail)
        for key, receipt in settings.receipts.items():
            name = RECEIPT_PREFIX + key
            if receipt is None:
                self.mark(name, None)
            else:
                self.mark(name, receipt.at, write_receipt(receipt))
