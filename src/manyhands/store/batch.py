"""What one commit makes durable: the last value of each job that changed, events in order."""

from typing import TYPE_CHECKING, Final

from manyhands.engine.effects import Partial, Settings
from manyhands.model.audit import AuditEntry
from manyhands.model.events import Cursor, Event
from manyhands.model.history import StoredSample
from manyhands.model.job import Job, Schedule
from manyhands.model.policy import NamedLimit, Queue

if TYPE_CHECKING:
    from manyhands.store.bulk import Bulk

# Among the cursors stand, under these and their names, where the graph of a namespace began, and
# jobs that ended with dependants that have not heard of it.
GRAPH_PREFIX: Final = "graph:"
UNTOLD_PREFIX: Final = "untold:"


class Batch:
    """Changes of many commands, folded. Commits are strict prefixes of decisions."""

    __slots__ = (
        "alive_at",
        "audit",
        "bulks",
        "cursors",
        "events",
        "events_after",
        "forgotten_queues",
        "full",
        "is_durable",
        "jobs",
        "limits",
        "number",
        "partials",
        "queues",
        "removed_bulks",
        "removed_cursors",
        "removed_limits",
        "removed_schedules",
        "samples",
        "schedules",
        "touched",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.jobs: dict[str, Job] = {}
        self.full: set[str] = set()  # ids whose whole row is written: new, or a new payload
        self.events: list[Event] = []
        self.events_after = 0  # the number before that of the first, once it is sealed
        self.partials: list[tuple[int, Partial]] = []  # with the job's serial
        self.queues: dict[str, Queue] = {}
        self.forgotten_queues: dict[str, None] = {}
        self.limits: dict[str, NamedLimit] = {}
        self.removed_limits: dict[str, None] = {}
        self.schedules: dict[str, Schedule] = {}
        self.removed_schedules: dict[str, None] = {}
        self.cursors: dict[str, Cursor] = {}
        self.removed_cursors: dict[str, None] = {}
        self.audit: dict[int, AuditEntry] = {}  # by number
        self.bulks: dict[str, Bulk] = {}
        self.removed_bulks: dict[str, None] = {}
        self.samples: list[StoredSample] = []
        self.touched = False  # to be written even if nothing changed, for the time alone
        self.alive_at = 0  # the server's time when the batch was sealed
        self.is_durable = False  # already when it was begun

    @property
    def last_seq(self) -> int:
        """The number of its last event."""
        return self.events_after + len(self.events)

    def is_empty(self) -> bool:
        """Nothing would be written."""
        return not (self.jobs or self.events or self.touched) and self.is_plain()

    def is_plain(self) -> bool:
        """There is nothing in it but jobs and events."""
        return not (
            self.queues
            or self.partials
            or self.schedules
            or self.limits
            or self.removed_schedules
            or self.removed_limits
            or self.forgotten_queues
            or self.cursors
            or self.removed_cursors
            or self.audit
            or self.bulks
            or self.removed_bulks
            or self.samples
        )

    def mark(self, name: str, seq: int | None, notes: str = "") -> None:
        """Keep a number under a name among the cursors; None: not any more."""
        if seq is None:
            self.cursors.pop(name, None)
            self.removed_cursors[name] = None
        else:
            self.removed_cursors.pop(name, None)
            self.cursors[name] = Cursor(name, seq, notes)

    def take_settings(self, settings: Settings) -> None:
        """What a command changed besides jobs and events. The last word counts."""
        for queue in settings.queues.values():
            self.queues[queue.name] = queue
            self.forgotten_queues.pop(queue.name, None)
        for name in settings.forgotten_queues:
            self.queues.pop(name, None)
            self.forgotten_queues[name] = None
        for limit in settings.limits:
            self.limits[limit.name] = limit
            self.removed_limits.pop(limit.name, None)
        for name in settings.removed_limits:
            self.limits.pop(name, None)
            self.removed_limits[name] = None
        for schedule in settings.schedules.values():
            self.schedules[schedule.schedule_id] = schedule
            self.removed_schedules.pop(schedule.schedule_id, None)
        for schedule_id in settings.removed_schedules:
            self.schedules.pop(schedule_id, None)
            self.removed_schedules[schedule_id] = None
        for cursor in settings.cursors.values():
            self.cursors[cursor.name] = cursor
            self.removed_cursors.pop(cursor.name, None)
        for name in settings.removed_cursors:
            self.cursors.pop(name, None)
            self.removed_cursors[name] = None
        for job_id, untold in settings.untold.items():
            name = UNTOLD_PREFIX + job_id
            if untold is None:
                self.mark(name, None)
            else:
                self.mark(name, untold.doomed_max, untold.reason)
