"""A dwork task as a job, and any job as a dwork task."""

from collections.abc import Sequence
from typing import Final

import msgspec

from manyhands.model.commands import NewJob, OnExisting
from manyhands.model.job import FINISHED, NOTED, EndReason, Job, Origin, State
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    DEFAULTS,
    Completion,
    OnDependencyFailure,
    OnUnknownDependency,
    Terms,
)
from manyhands.model.roles import unsigned
from manyhands.protocols.dwork.codec import (
    Dep,
    LogEntry,
    Phase,
    Task,
    pack_rest,
    pack_task,
    with_name,
)
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.kept import Kept, decode_kept, encode_kept

_STATED: Final[dict[State, Phase]] = {
    State.BLOCKED: Phase.WAITING,
    State.DELAYED: Phase.PENDING,
    State.READY: Phase.READY,
    State.COMPLETED: Phase.RECORDED,
    State.FAILED: Phase.RECORDED,
    State.CANCELLED: Phase.RECORDED,
}


class Maker:
    """Makes jobs from tasks, for one queue and its settings."""

    def __init__(self, queue: str, *, strict: bool, wait_for_unknown: bool) -> None:
        self._queue = queue
        defaults = DEFAULTS["dwork"]
        if strict:
            defaults = msgspec.structs.replace(defaults, completion=Completion.HOLDER)
        self._defaults = defaults
        self._terms = Terms(defaults)
        # Terms of tasks with special wishes; equal ones share one object.
        self._special: dict[tuple[int | None, bool], Terms] = {}
        self._origins: dict[str, Origin] = {}
        self.on_unknown = (
            OnUnknownDependency.WAIT if wait_for_unknown else OnUnknownDependency.SATISFIED
        )

    def new_job(self, task: Task, job_id: str) -> NewJob:
        """The job of a created task. Its name is what workers of any protocol get, unless it came
        with a payload.
        """
        named = task.payload is None
        preds = task.preds
        return NewJob(
            job_id=job_id,
            queue=self._queue,
            payload=task.name.encode() if task.payload is None else task.payload,
            encoding=Encoding.TEXT if named else Encoding.BINARY,
            on_existing=OnExisting.KEEP if task.keep else OnExisting.ADD_DEPENDENCIES,
            terms=self._terms_of(task),
            origin=self._origin(task.origin),
            priority=0.0 if task.priority is None else task.priority,
            namespace=self._queue,
            name=task.name,
            depends_on=tuple([dep.name for dep in preds]) if preds else (),
            on_unknown_dependency=self.on_unknown,
            metadata=_metadata(task) if preds or task.log else b"",
        )

    def _terms_of(self, task: Task) -> Terms:
        wish = (task.attempts_max, task.cancel_on_failure)
        if wish == _NO_WISH:
            return self._terms
        found = self._special.get(wish)
        if found is None:
            if len(self._special) > _TERMS_COUNT_MAX:
                self._special.clear()
            found = self._special[wish] = Terms(
                self._defaults,
                attempts_max=task.attempts_max,
                on_dependency_failure=OnDependencyFailure.CANCEL if wish[1] else None,
            )
        return found

    def _origin(self, name: str) -> Origin:
        """Equal origins share one object: a graph comes from few hosts."""
        found = self._origins.get(name)
        if found is None:
            if len(self._origins) > _ORIGINS_COUNT_MAX:
                self._origins.clear()
            found = self._origins[name] = Origin("dwork", _escaped(name))
        return found


_ORIGINS_COUNT_MAX: Final = 1_000
_TERMS_COUNT_MAX: Final = 1_000
_NO_WISH: Final[tuple[int | None, bool]] = (None, False)


def _metadata(task: Task) -> bytes:
    located = {dep.name: dep.location for dep in task.preds if dep.location is not None}
    if not located and not task.log:
        return b""
    log = tuple((entry.phase.value, entry.at_us) for entry in task.log)
    return encode_kept(Kept(log, located))


def note_of(log: Sequence[LogEntry]) -> str:
    """A worker's log of its work (D37) as a line of the job's history: the latest entries, since
    the end matters most.
    """
    latest = log[-_LOG_COUNT_MAX:]
    return ", ".join([f"{entry.phase.name.lower()} {entry.at_us}" for entry in latest])


def _noted(note: str) -> list[LogEntry]:
    entries = []
    for line in note.split(", "):
        word, _, at_us = line.partition(" ")
        entries.append(LogEntry(Phase[word.upper()], int(at_us)))
    return entries


def task_of(job: Job, queue: str, hub: Hub, state: str | None = None) -> Task:
    """A job as handed to a worker or, with its state, as shown by a lookup."""
    # A job of another protocol has no name here and goes by its id.
    name = job.name if job.name is not None and job.namespace == queue else job.job_id
    kept = _kept(job) if job.metadata and job.origin.realm == "dwork" else _NOTHING
    failure = job.failure
    return Task(
        name=name,
        origin=_origin_of(job.origin),
        preds=_preds(job, kept, hub) if job.depends_on else (),
        log=_log(job, kept),
        payload=None if job.payload == name.encode() else job.payload,
        result=_result(job),
        failure=(failure.message or failure.code) if failure is not None else None,
        priority=job.priority or None,
        attempt=job.lease_number or None,
        attempts_max=job.terms.attempts_max,
        attempts_used=job.attempts_used or None,
        state=state,
    )


# A task's creator gets back the origin that it chose. A chosen one that looks signed by a caller
# (see roles.py) is stored with a blank before it, and so is one that looks like that.


def _escaped(origin: str) -> str:
    return f" {origin}" if _looks_signed(origin) else origin


def _origin_of(submitter: Origin) -> str:
    if submitter.realm != "dwork":
        return submitter.name or submitter.realm
    if not submitter.name.startswith(("@", " ")):  # as nearly always
        return submitter.name
    stored = unsigned(submitter.name)
    return stored[1:] if _looks_signed(stored) else stored


def _looks_signed(origin: str) -> bool:
    return origin.lstrip(" ").startswith("@")


def _result(job: Job) -> bytes | None:
    """The result or, for a failed task, the data its worker sent with the failure."""
    failure = job.failure
    if failure is not None and job.state is State.FAILED:
        return failure.payload or None
    return job.result


class Giver:
    """Packs the tasks handed to workers of one queue."""

    def __init__(self, queue: str, hub: Hub) -> None:
        self._queue = queue
        self._hub = hub
        # Tasks that were created and handed out together differ only in their names: the rest is
        # packed once. By origin, instants, attempt and priority.
        self._rests: dict[tuple[str, str, int, int, int, float], bytes] = {}

    def pack(self, job: Job) -> bytes:
        """A leased job as a task, packed as part of a message."""
        name = job.name
        lease = job.lease
        if (
            name is None
            or lease is None
            or job.depends_on
            or job.attempts
            or job.metadata
            or job.failure is not None
            or job.result is not None
            or job.terms.attempts_max is not None
            or job.namespace != self._queue
        ):
            return pack_task(task_of(job, self._queue, self._hub))
        data = name.encode()
        if job.payload != data:
            return pack_task(task_of(job, self._queue, self._hub))
        origin = job.origin
        given = (
            origin.realm,
            origin.name,
            job.submitted_at,
            lease.claimed_at,
            job.lease_number,
            job.priority,
        )
        rest = self._rests.get(given)
        if rest is None:
            if len(self._rests) >= _RESTS_COUNT_MAX:
                self._rests.clear()
            rest = self._rests[given] = pack_rest(task_of(job, self._queue, self._hub))
        return with_name(data, rest)


_RESTS_COUNT_MAX: Final = 256
_NOTHING: Final = Kept()
# Log entries that a worker may send with the end of a task and get back.
_LOG_COUNT_MAX: Final = 16


def _kept(job: Job) -> Kept:
    try:
        return decode_kept(job.metadata)
    except msgspec.DecodeError:
        return _NOTHING


def _preds(job: Job, kept: Kept, hub: Hub) -> tuple[Dep, ...]:
    locations = kept.pred_locations
    if not locations:
        return tuple([Dep(hub.name_of(key)) for key in job.depends_on])
    names = [hub.name_of(key) for key in job.depends_on]
    return tuple(Dep(name, locations.get(name)) for name in names)


def _log(job: Job, kept: Kept) -> tuple[LogEntry, ...]:
    """The creator's entries, then the server's: each hand-out, and how it ended."""
    first = Phase.WAITING if job.depends_on else Phase.READY
    entries = [LogEntry(first, job.submitted_at * 1000)]
    if kept.log:
        entries[:0] = [LogEntry(Phase(phase), at_us) for phase, at_us in kept.log]
    noted = [entry for entry in job.history if entry.what == NOTED] if job.history else ()
    for attempt in job.attempts:
        entries.append(LogEntry(Phase.STOLEN, attempt.claimed_at * 1000))
        for entry in noted:
            if entry.at == attempt.ended_at:
                entries += _noted(entry.detail)
        ended = Phase.DONE if attempt.reason is EndReason.COMPLETED else Phase.READY
        if ended is Phase.DONE or job.state not in FINISHED:
            entries.append(LogEntry(ended, attempt.ended_at * 1000))
    if job.lease is not None:
        entries.append(LogEntry(Phase.STOLEN, job.lease.claimed_at * 1000))
    elif job.entered_at != job.submitted_at or job.state in FINISHED:
        entries.append(LogEntry(_STATED[job.state], job.entered_at * 1000))
    return tuple(entries)
