"""What a command is about to change: read through, written at the end, or dropped whole."""

from msgspec.structs import replace

from manyhands.engine.retry import attempts_max
from manyhands.engine.view import View
from manyhands.model.events import Event, Signal
from manyhands.model.job import FINISHED, Holder, Job, Lease, Schedule, State
from manyhands.model.policy import NO_POLICY, NamedLimit, Queue, QueuePolicy, Reentry

_READY = State.READY
_AHEAD_BASE = -(1 << 62)


class Partial:
    """A piece of a result to be kept."""

    __slots__ = ("at", "job_id", "number", "payload", "warning")

    def __init__(self, job: Job, at: int, payload: bytes, *, warning: bool) -> None:
        self.job_id = job.job_id
        self.number = job.partials_count
        self.at = at
        self.payload = payload
        self.warning = warning


class Effects:
    """The changes of one command, folded: the last value of each job, all events in order."""

    __slots__ = (
        "_keys",
        "_names",
        "ended",
        "events",
        "forgotten_queues",
        "held",
        "jobs",
        "limits",
        "now",
        "partials",
        "queues",
        "removed_limits",
        "removed_schedules",
        "schedules",
        "signals",
        "urgent",
        "view",
    )

    def __init__(self, view: View, now: int) -> None:
        self.view = view
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.events: list[Event] = []
        self.signals: list[Signal] = []
        self.partials: list[Partial] = []
        self.queues: dict[str, Queue] = {}
        self.forgotten_queues: list[str] = []
        self.limits: list[NamedLimit] = []
        self.removed_limits: list[str] = []
        self.schedules: dict[str, Schedule] = {}
        self.removed_schedules: list[str] = []
        self.ended: list[Job] = []  # finished by this command; their dependants are yet to hear
        self.held: list[Job] = []  # blocked by this command; a dependency may be lost already
        self.urgent = False  # somebody waits for this, or work became ready by it
        self._keys: dict[tuple[str, bytes], str | None] = {}
        self._names: dict[tuple[str, str], str] = {}

    # Reading: what this command changed already, else the view.

    def job(self, job_id: str) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None else self.view.job(job_id)

    def policy(self, queue: str) -> QueuePolicy:
        known = self.queues.get(queue) or self.view.queue(queue)
        return known.policy if known is not None else NO_POLICY

    def queue(self, name: str) -> Queue | None:
        return self.queues.get(name) or self.view.queue(name)

    def key_holder(self, queue: str, key: bytes) -> str | None:
        if (queue, key) in self._keys:
            return self._keys[queue, key]
        return self.view.key_holder(queue, key)

    def named(self, namespace: str, name: str) -> str | None:
        return self._names.get((namespace, name)) or self.view.named(namespace, name)

    # Writing.

    def put(self, job: Job) -> None:
        """A new value of a job, without a change of its state."""
        if job.unique_key is not None:
            old = self.job(job.job_id)
            if old is not None and old.unique_key is not None:
                self._keys[old.queue, old.unique_key] = None
            free = job.state in FINISHED
            self._keys[job.queue, job.unique_key] = None if free else job.job_id
        if job.name is not None:
            self._names[job.namespace or "", job.name] = job.job_id
        self.jobs[job.job_id] = job

    def enter(self, job: Job, lease: Lease | None = None, holder: Holder | None = None) -> None:
        """A job that entered a state: stored and published. ``lease`` is the one that ended."""
        self.put(job)
        shown = job.lease or lease
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
                attempts_max(job, self.policy(job.queue)),
                shown.holder if shown is not None else holder,
                job.lease.expires_at if job.lease is not None else None,
                job.priority,
                job.submitted_at,
                job.deadline_at,
                job.origin,
            )
        )
        if job.state is _READY:
            self.urgent = True

    def signal(self, what: str, job: Job, payload: bytes = b"") -> None:
        """News for the connections that wait for the job."""
        if job.waiters:
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

    def has_settings(self) -> bool:
        """Whether anything but jobs and events changed."""
        return bool(
            self.queues
            or self.limits
            or self.removed_limits
            or self.schedules
            or self.removed_schedules
            or self.forgotten_queues
        )

    def is_empty(self) -> bool:
        """Whether nothing at all changed."""
        return not (self.jobs or self.events or self.partials or self.has_settings())

    def use_rate(self, queue: Queue) -> None:
        """One more claim in the present rate window."""
        self.queues[queue.name] = replace(queue, rate_used=queue.rate_used + 1)
