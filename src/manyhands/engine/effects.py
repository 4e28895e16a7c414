"""The changes of a command: visible to the command itself, applied at its end, or dropped as a
whole.

Nothing is written to the store before the decision is complete, so a refusal or a failed assertion
leaves nothing half done (rule 24).
"""

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.engine.view import View
from manyhands.model.events import Cursor, Event, Signal
from manyhands.model.job import FINISHED, Holder, Job, Lease, Schedule, State, Unnotified
from manyhands.model.policy import NO_POLICY, NamedLimit, Queue, QueuePolicy, Reentry
from manyhands.model.receipts import Receipt

_READY: Final = State.READY
_AHEAD_BASE: Final = -(1 << 62)


class Partial:
    """A piece of a result, or a line of a job's log, to keep."""

    __slots__ = ("at", "is_log", "job_id", "number", "payload", "warning")

    def __init__(
        self, job: Job, at: int, payload: bytes, *, warning: bool, is_log: bool = False
    ) -> None:
        self.job_id = job.job_id
        self.number = job.partials_count
        self.at = at
        self.payload = payload
        self.warning = warning
        self.is_log = is_log


class _Tracked:
    """What earlier jobs of a command mean for later ones: keys, names, counts."""

    __slots__ = ("awaited", "keys", "more_unfinished", "names")

    def __init__(self) -> None:
        self.keys: dict[tuple[str, bytes], str | None] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.awaited: set[str] = set()
        self.more_unfinished: dict[str, int] = {}


class Effects(Struct, gc=False, eq=False):
    """The changes of one command, folded: the last value of each job, all events in order."""

    view: View
    now: int
    jobs: dict[str, Job] = {}
    events: list[Event] = []
    signals: list[Signal] = []
    ended: list[Job] = []  # finished by this command; their dependants are not notified yet
    held: list[Job] = []  # blocked by this command; a dependency may be lost already
    urgent: bool = False  # a client waits for this, or work became ready by it
    notified_count: int = 0  # dependants that this command notified
    settings: "Settings | None" = None  # what is not jobs and events, where there is any
    _tracked: _Tracked | None = None

    def track(self) -> None:
        """Lets later jobs of a submit see the keys and names of earlier ones."""
        self._tracked = _Tracked()

    # Reading: what this command has changed, otherwise the view.

    def job(self, job_id: str) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None else self.view.job(job_id)

    def policy(self, queue: str) -> QueuePolicy:
        known = self.view.queue(queue) if self.settings is None else self.queue(queue)
        return known.policy if known is not None else NO_POLICY

    def queue(self, name: str) -> Queue | None:
        settings = self.settings
        if settings is not None and name in settings.queues:
            return settings.queues[name]
        return self.view.queue(name)

    def key_holder(self, queue: str, key: bytes) -> str | None:
        tracked = self._tracked
        if tracked is not None and (queue, key) in tracked.keys:
            return tracked.keys[queue, key]
        return self.view.key_holder(queue, key)

    def named(self, namespace: str, name: str) -> str | None:
        tracked = self._tracked
        if tracked is not None and (namespace, name) in tracked.names:
            return tracked.names[namespace, name]
        return self.view.named(namespace, name)

    def unfinished_count(self, queue: str) -> int:
        """Unfinished jobs of a queue, including the changes of a tracked command."""
        more = self._tracked.more_unfinished.get(queue, 0) if self._tracked is not None else 0
        return self.view.unfinished_count(queue) + more

    def is_awaited(self, key: str) -> bool:
        """Whether an unfinished job waits for this id (or name key)."""
        tracked = self._tracked
        return bool(self.view.dependants(key)) or (tracked is not None and key in tracked.awaited)

    def doom(self, job_id: str) -> Unnotified | None:
        """The pending cascade cancellation of a job, or None."""
        settings = self.settings
        if settings is not None and job_id in settings.unnotified:
            unnotified = settings.unnotified[job_id]
        else:
            unnotified = self.view.unnotified_of(job_id)
        return unnotified if unnotified is not None and unnotified.doomed_max else None

    # Writing.

    def put(self, job: Job) -> None:
        """Stores a new value of a job whose state did not change; no event (rule 26)."""
        if self._tracked is not None:
            self._track(job, self._tracked)
        self.jobs[job.job_id] = job

    def _track(self, job: Job, tracked: _Tracked) -> None:
        old = self.job(job.job_id) if job.serial else self.jobs.get(job.job_id)
        more = tracked.more_unfinished
        if old is not None and old.state not in FINISHED:
            if old.unique_key is not None:
                tracked.keys[old.queue, old.unique_key] = None
            more[old.queue] = more.get(old.queue, 0) - 1
        if job.state not in FINISHED:
            more[job.queue] = more.get(job.queue, 0) + 1
        if job.state is State.BLOCKED:
            tracked.awaited.update(job.waits_for)
        if job.unique_key is not None:
            free = job.state in FINISHED
            tracked.keys[job.queue, job.unique_key] = None if free else job.job_id
        if job.name is not None:
            tracked.names[job.namespace or "", job.name] = job.job_id

    def enter(
        self,
        job: Job,
        since: int,
        lease: Lease | None = None,
        holder: Holder | None = None,
        policy: QueuePolicy | None = None,
        left_queue: str = "",
    ) -> None:
        """Stores a job that entered a state and publishes the event (rule 26). ``since`` is when it
        entered the previous state, ``lease`` the lease that ended, ``holder`` who reported without
        one.
        """
        if self._tracked is not None:
            self._track(job, self._tracked)
        self.jobs[job.job_id] = job
        held = job.lease
        if held is not None:
            holder = held.holder
        elif lease is not None:
            holder = lease.holder
        terms = job.terms
        allowed = terms.attempts_max
        if allowed is None:
            if policy is None:
                policy = self.policy(job.queue)
            allowed = policy.attempts_max
            if allowed is None:
                allowed = terms.defaults.attempts_max
        now = self.now
        self.events.append(
            Event(
                now,
                job.state,
                job.job_id,
                job.queue,
                job.reason,
                job.incarnation,
                job.lease_number,
                job.attempts_used,
                allowed,
                holder,
                held.expires_at if held is not None else None,
                job.priority,
                job.submitted_at,
                job.deadline_at,
                job.origin,
                now - since,
                left_queue,
                job.detail,
            )
        )
        if job.state is _READY:
            self.urgent = True

    def signal(self, what: str, job: Job, payload: bytes = b"") -> None:
        """Sends a message to the waiters of the job."""
        if job.waiters:
            if job.durable_interest:
                self.urgent = True
            self.signals.append(Signal(job, what, payload, job.waiters))

    def notify_holder(self, job: Job, lease: Lease) -> None:
        """Notifies the holder that its lease was ended by someone else."""
        receivers = (lease.connection,) if lease.connection is not None else ()
        self.signals.append(Signal(job, "notice", b"", receivers, lease))

    def position(self, reentry: Reentry) -> int:
        """A position among the ready jobs of the same priority (rule 18)."""
        number = self.view.take_position()
        if reentry is Reentry.TAIL:
            return number
        return -number if reentry is Reentry.FRONT else _AHEAD_BASE + number

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.jobs or self.settings is not None)

    # Settings.

    def set(self) -> "Settings":
        """The changed settings, created on first use."""
        if self.settings is None:
            self.settings = Settings()
        return self.settings

    def put_queue(self, queue: Queue) -> None:
        """New settings of a queue, or a new queue."""
        self.set().queues[queue.name] = queue

    def use_rate(self, queue: Queue) -> None:
        """One more claim in the present rate window."""
        self.put_queue(replace(queue, rate_used=queue.rate_used + 1))


class Settings:
    """What a command changed besides jobs and events."""

    __slots__ = ("cursors", "limits", "partials", "queues", "receipts", "schedules", "unnotified")

    def __init__(self) -> None:
        # Finished jobs and the pending notification of their dependants; None: all are notified.
        self.unnotified: dict[str, Unnotified | None] = {}
        self.partials: list[Partial] = []
        self.receipts: dict[str, Receipt | None] = {}  # None: it is too old
        # By name; None: removed.
        self.queues: dict[str, Queue | None] = {}
        self.limits: dict[str, NamedLimit | None] = {}
        self.schedules: dict[str, Schedule | None] = {}
        self.cursors: dict[str, Cursor | None] = {}

    def tables(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The settings that are stored unchanged, by the names of their tables."""
        return (
            ("queues", self.queues),
            ("limits", self.limits),
            ("schedules", self.schedules),
            ("cursors", self.cursors),
        )
