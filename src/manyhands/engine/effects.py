"""What a command is about to change: read through, written at the end, or dropped whole."""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.engine.view import View
from manyhands.model.events import Cursor, Event, Signal
from manyhands.model.job import FINISHED, Holder, Job, Lease, Schedule, State, Untold
from manyhands.model.policy import NO_POLICY, NamedLimit, Queue, QueuePolicy, Reentry

_READY: Final = State.READY
_AHEAD_BASE: Final = -(1 << 62)


class Partial:
    """A piece of a result to be kept."""

    __slots__ = ("at", "job_id", "number", "payload", "warning")

    def __init__(self, job: Job, at: int, payload: bytes, *, warning: bool) -> None:
        self.job_id = job.job_id
        self.number = job.partials_count
        self.at = at
        self.payload = payload
        self.warning = warning


class _Tracked:
    """What the jobs of one command mean for the jobs that follow in it."""

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
    ended: list[Job] = []  # finished by this command; their dependants are yet to hear
    held: list[Job] = []  # blocked by this command; a dependency may be lost already
    urgent: bool = False  # somebody waits for this, or work became ready by it
    told_count: int = 0  # dependants that heard of an end
    settings: "Settings | None" = None  # what is not jobs and events, where there is any
    _tracked: _Tracked | None = None

    def track(self) -> None:
        """Several jobs are submitted: let later ones see the keys and names of earlier ones."""
        self._tracked = _Tracked()

    # Reading: what this command changed already, else the view.

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
        """Unfinished jobs of a queue, with what a tracked command changed."""
        more = self._tracked.more_unfinished.get(queue, 0) if self._tracked is not None else 0
        return self.view.unfinished_count(queue) + more

    def is_awaited(self, key: str) -> bool:
        """Whether an unfinished job waits for this id (or name key)."""
        tracked = self._tracked
        return bool(self.view.dependants(key)) or (tracked is not None and key in tracked.awaited)

    def doom(self, job_id: str) -> Untold | None:
        """Which dependants are yet to be cancelled together with a job, and why; None: none are."""
        settings = self.settings
        if settings is not None and job_id in settings.untold:
            untold = settings.untold[job_id]
        else:
            untold = self.view.untold_of(job_id)
        return untold if untold is not None and untold.doomed_max else None

    # Writing.

    def put(self, job: Job) -> None:
        """A new value of a job, without a change of its state."""
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
        """A job that entered a state: stored and published. ``since`` is when it entered the
        state before, ``lease`` the one that ended, ``holder`` who spoke without one.
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
        self.events.append(
            Event(
                self.now,
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
                self.now - since,
                left_queue,
            )
        )
        if job.state is _READY:
            self.urgent = True

    def signal(self, what: str, job: Job, payload: bytes = b"") -> None:
        """News for the connections that wait for the job."""
        if job.waiters:
            if job.durable_interest:
                self.urgent = True
            self.signals.append(Signal(job, what, payload, job.waiters))

    def tell_holder(self, job: Job, lease: Lease) -> None:
        """The holder's lease was taken away by somebody else's word."""
        heard_by = (lease.connection,) if lease.connection is not None else ()
        self.signals.append(Signal(job, "told", b"", heard_by, lease))

    def position(self, reentry: Reentry) -> int:
        """A place among the ready jobs of the same priority."""
        number = self.view.take_position()
        if reentry is Reentry.TAIL:
            return number
        return -number if reentry is Reentry.FRONT else _AHEAD_BASE + number

    def is_empty(self) -> bool:
        """Whether nothing at all changed."""
        return not (self.jobs or self.settings is not None)

    # Settings.

    def set(self) -> "Settings":
        """Where changes of settings are written down."""
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

    __slots__ = (
        "cursors",
        "forgotten_queues",
        "limits",
        "partials",
        "queues",
        "removed_cursors",
        "removed_limits",
        "removed_schedules",
        "schedules",
        "untold",
    )

    def __init__(self) -> None:
        # Jobs that ended, and what their dependants have not heard; None: all have.
        self.untold: dict[str, Untold | None] = {}
        self.partials: list[Partial] = []
        self.queues: dict[str, Queue] = {}
        self.forgotten_queues: list[str] = []
        self.limits: list[NamedLimit] = []
        self.removed_limits: list[str] = []
        self.schedules: dict[str, Schedule] = {}
        self.removed_schedules: list[str] = []
        self.cursors: dict[str, Cursor] = {}
        self.removed_cursors: list[str] = []
