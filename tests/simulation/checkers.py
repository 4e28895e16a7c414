"""What must hold in every world, one function each. They look from outside: at what was decided,
at what is on disk, and at what clients were told. None of them asks the engine for its opinion.
"""

import enum
from collections import Counter
from typing import NamedTuple

from msgspec import json, structs
from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.invariants import check_job
from manyhands.engine.transitions import TABLE
from manyhands.model import commands
from manyhands.model.events import KINDS, Event, Signal
from manyhands.model.job import FINISHED, EndReason, Job, Lease, State
from manyhands.model.policy import Completion, OnDependencyFailure, QueuePolicy
from manyhands.model.reasons import Reason
from manyhands.model.replies import (
    Changed,
    ChangedMany,
    Claimed,
    Concluded,
    Found,
    Refusal,
    Reported,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.store.batch import Batch
from manyhands.store.index.live import Index
from manyhands.store.index.recount import check_index as check_index_itself
from tests.simulation.world import SETTINGS, Disk, FaultyStore

_MOVES = {(state, after) for (state, _), after in TABLE.items()}
_HOLDING = (
    commands.Renew,
    commands.Report,
    commands.SendPartial,
    commands.Complete,
    commands.Fail,
    commands.Release,
)
# A standstill is noticed by a timer: one that is shorter than this may not be noticed at all.
UNSEEN_MS = 2_100.0


class Violation(AssertionError):  # noqa: N818 - it reads as what it is
    """The world is broken."""


def require(condition: object, sentence: str) -> None:
    if not condition:
        raise Violation(sentence)


class Stall(NamedTuple):
    """A time in which the server stood still or was away."""

    began_ms: float  # in time awake
    ms: float
    unseen_ms: float = UNSEEN_MS  # how much of it the server may not know of


class Doomed(NamedTuple):
    """A job that was cancelled with what it depends on, or is yet to be."""

    number: int  # the batch that it was decided in
    incarnation: int
    serial_max: int  # of the jobs that there were when somebody asked for it


class Record:
    """What has been seen. It outlives crashes; what a crash threw away is forgotten here too."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}  # as the disk must have them
        self.settings: dict[str, dict[str, object]] = {kind: {} for kind in SETTINGS}
        self.events: list[bytes] = []  # as the disk must have them, by sequence number
        self.decided: list[bytes] = []  # the same, with those that are not on disk yet
        self.completed: set[str] = set()  # ids and name keys of jobs that completed, ever
        self.ended: set[str] = set()  # of jobs that failed or were cancelled
        self.put_to_work_again: set[str] = set()
        self.doomed: dict[str, Doomed] = {}
        self.acknowledged: dict[tuple[str, str, int], str] = {}
        self.signals: dict[int, tuple[int, Signal]] = {}  # batch that each was decided in
        # Lease token -> each time that its holder spoke: the batch, the server's time awake, and
        # the term that it was given.
        self.spoken: dict[str, list[tuple[int, float, int]]] = {}
        self.command: commands.Command | None = None
        self.before: dict[str, Job | None] = {}
        self.finished_count = 0

    def forget_undecided(self, disk: Disk, durable: int) -> None:
        """A crash: only what is on disk happened."""
        for token, words in self.spoken.items():
            kept = [(0, awake_ms, ms) for number, awake_ms, ms in words if number <= durable]
            self.spoken[token] = kept
        self.doomed = {key: row for key, row in self.doomed.items() if row.number <= durable}
        self.decided = list(self.events)
        self.signals.clear()
        self.completed.clear()
        self.ended.clear()
        for body in self.events:
            event = json.decode(body, type=Event)
            self.note_end(event, disk.job(event.job_id))

    def states(self) -> dict[int, str]:
        """The state that each event on disk tells of, by sequence number."""
        found = enumerate(self.events, start=1)
        return {seq: json.decode(body, type=Event).state.value for seq, body in found}

    def note_end(self, event: Event, job: Job | None) -> None:
        if event.state not in FINISHED or job is None:
            return
        keys = [job.job_id]
        if job.name is not None:
            keys.append(f"{job.namespace or ''}\0{job.name}")
        (self.completed if event.state is State.COMPLETED else self.ended).update(keys)


# At each decision, before it is taken in.


def check_proof(record: Record, store: FaultyStore, effects: Effects) -> None:
    """Late workers change nothing: whoever changes a held job shows the lease it has now."""
    command = record.command
    if isinstance(command, commands.Conclude):
        for job_id, after in effects.jobs.items():
            job = store.live.job(job_id)
            if job is not None and job.lease is not None and after.lease is not job.lease:
                said = [item for item in command.items if store.live.job(item.job_id) == job]
                require(
                    any(_is_allowed(job, item) for item in said),
                    f"{said} changed a job under a foreign lease {job}",
                )
    elif isinstance(command, _HOLDING):
        job = store.live.job(command.job_id)
        require(job is not None, f"{command} was accepted for a job that is not there")
        assert job is not None
        require(
            _is_allowed(job, command),
            f"{command} changed a job that nobody holds, or under a foreign lease: {job}",
        )


def _is_allowed(job: Job, command: commands.Command) -> bool:
    assert isinstance(command, _HOLDING)
    if isinstance(command, commands.Complete) and (
        job.terms.defaults.completion is Completion.OPEN and job.state not in FINISHED
    ):
        return True
    return job.lease is not None and _fits(job.lease, command.proof)


def _fits(lease: Lease, proof: commands.Proof) -> bool:
    match proof:
        case commands.ByToken(token):
            return lease.token == token
        case commands.ByConnection(connection):
            return lease.connection == connection
        case commands.ByHolder(realm, name, address):
            same = (
                lease.holder.name in (name, address)
                if lease.holder.name
                else (lease.holder.address == address)
            )
            return lease.holder.realm == realm and same
    return False


def check_transitions(store: FaultyStore, effects: Effects) -> None:
    """Events equal transitions, in order; and every step is one that the table has."""
    entered: dict[str, list[Event]] = {}
    for event in effects.events:
        entered.setdefault(event.job_id, []).append(event)
    require(set(entered) <= set(effects.jobs), "an event of a job that did not change")
    for job_id, job in effects.jobs.items():
        check_job(job)
        old = store.live.job(job_id)
        events = entered.get(job_id, [])
        if old is None:
            require(events, f"{job_id} came into being without an event")
        elif not events:
            require(old.state is job.state, f"{job_id}: {old.state} to {job.state}, no event")
        state = old.state if old is not None else None
        incarnation = old.incarnation if old is not None else 0
        for event in events:
            # A submit under an old id begins anew, whatever the state was.
            anew = state is None or (state in FINISHED and event.incarnation == incarnation + 1)
            require(anew or (state, event.state) in _MOVES, f"{job_id}: {state} to {event.state}")
            known = event.reason in KINDS[event.state].reasons
            require(known, f"{job_id}: {event.state} for the reason {event.reason!r}")
            state, incarnation = event.state, event.incarnation
        require(state is job.state, f"{job_id} is {job.state}, its last event says {state}")


def check_finished_stay(record: Record, store: FaultyStore, effects: Effects) -> None:
    """A finished job never moves, except that somebody puts it to work again."""
    command = record.command
    for job_id, job in effects.jobs.items():
        old = store.live.job(job_id)
        # One batch may replace a job and submit it again: it finishes in between.
        ends = sum(e.job_id == job_id and e.state in FINISHED for e in effects.events)
        more = job.incarnation - (old.incarnation if old is not None else 0)
        require(0 <= more <= ends + 1, f"{job_id}: an incarnation too many")
        if old is None or old.state not in FINISHED:
            require(more <= ends, f"{job_id}: an incarnation too many")
            continue
        if isinstance(command, commands.Requeue | commands.Submit):
            if more:
                record.put_to_work_again.add(job_id)
                continue
        elif isinstance(command, commands.SetTags):
            require(old.state is job.state, f"{job_id} moved by new tags")
            continue
        called_off = old.state is State.FAILED and job.state is State.CANCELLED
        require(
            called_off and isinstance(command, commands.Cancel),
            f"{job_id} was {old.state} and is {job.state} after {command}",
        )


def check_leases(store: FaultyStore, effects: Effects) -> None:
    """At most one live lease a job: a claim only takes a ready one, and raises the fence."""
    tokens: set[str] = set()
    for job_id, job in effects.jobs.items():
        old = store.live.job(job_id)
        lease = job.lease
        if lease is None or (
            old is not None and old.lease is not None and (old.lease.token == lease.token)
        ):
            continue
        require(lease.token not in tokens, f"one token for two jobs: {lease.token}")
        tokens.add(lease.token)
        require(old is not None, f"{job_id} was leased before it was there")
        assert old is not None
        require(old.state is State.READY, f"{job_id} was {old.state} when it was claimed")
        require(
            lease.number == job.lease_number == old.lease_number + 1,
            f"{job_id}: the fence went from {old.lease_number} to {lease.number}",
        )


def check_dependencies(record: Record, effects: Effects) -> None:
    """Dependants start only after what they depend on."""
    for event in effects.events:
        job = effects.jobs[event.job_id]
        if event.state is not State.LEASED or event.job_id in record.put_to_work_again:
            continue
        if event.reason is Reason.RENEWED:
            continue  # it had started before the new dependency came
        policy = job.terms.on_dependency_failure or job.terms.defaults.on_dependency_failure
        for key in job.depends_on:
            met = key in record.completed or (
                policy is OnDependencyFailure.RUN and key in record.ended
            )
            require(met, f"{job.job_id} started before {key!r} had completed")


def check_settings_kept(record: Record, store: FaultyStore, effects: Effects) -> None:
    """A change of a queue's settings leaves alone what it does not name."""
    command = record.command
    if not isinstance(command, commands.SetQueue):
        return
    old = store.live.queue(command.queue)
    new = (effects.set().queues if effects.settings is not None else {}).get(command.queue)
    require(new is not None, f"{command} was accepted and set nothing")
    assert new is not None
    require(old is not None or not command.only_known, f"{command} created a queue")
    if old is None:
        return
    if command.paused is None:
        require(new.paused == old.paused, f"{command} switched the queue")
    named = command.fields
    if command.policy is None:
        named = ()
    if named is not None:
        for field in structs.fields(QueuePolicy):
            if field.name not in named:
                kept = getattr(new.policy, field.name) == getattr(old.policy, field.name)
                require(kept, f"{command} changed {field.name}")


def check_in_step(record: Record, store: FaultyStore, effects: Effects) -> bool:
    """A schedule that is set again keeps its step, or everything but what was to change. Returns
    whether one was moved into step.
    """
    command = record.command
    if not isinstance(command, commands.PutSchedule):
        return False
    asked = command.schedule
    old = store.live.schedules.get(asked.schedule_id)
    new = effects.set().schedules[asked.schedule_id]
    assert new is not None
    if old is None:
        require(command.fields is None, f"{command} created a schedule")
        require(new.next_at == asked.next_at, f"{command} set another time")
        return False
    if command.fields is not None:
        kept = {field: getattr(asked, field) for field in command.fields}
        require(replace(old, **kept) == new, f"{command} changed more than it names")
        return False
    if not command.in_step or old.interval_ms is None or asked.interval_ms is None:
        require(new.next_at == asked.next_at, f"{command} set another time")
        return False
    fired_at = old.next_at - old.interval_ms
    require(new.next_at == fired_at + asked.interval_ms, f"{command} is out of step")
    return True


def check_resumed(record: Record, store: FaultyStore, effects: Effects) -> None:
    """What was completed does not run again because its graph is resumed."""
    command = record.command
    if not isinstance(command, commands.Resume):
        return
    new = {job.name for job_id, job in effects.jobs.items() if store.live.job(job_id) is None}
    states: dict[str | None, set[State]] = {name: set() for name in new}
    for job in (*(row.job() for row in store.disk.rows.values()), *store.live.jobs.values()):
        if job.namespace == command.namespace and job.name in new:
            states[job.name].add(job.state)
    for name, found in states.items():
        require(found != {State.COMPLETED}, f"{name!r} was completed, and runs again")


def check_doomed(record: Record, effects: Effects) -> None:
    """What is cancelled with its dependants takes them all along, at once or in slices: none of
    them is handed out any more, unless somebody freed it or put it to work again.
    """
    command = record.command
    if isinstance(command, commands.SetDependencies):
        record.doomed.pop(command.job_id, None)
    elif isinstance(command, commands.Submit):
        # Submitted again under its id, it was moved, and has the dependencies of that submit.
        for job in effects.jobs.values():
            if job.reason is Reason.MOVED:
                record.doomed.pop(job.job_id, None)
    for event in effects.events:
        doomed = record.doomed.get(event.job_id)
        require(
            event.state is not State.LEASED
            or doomed is None
            or doomed.incarnation != event.incarnation,
            f"{event.job_id} was handed out although it was cancelled with what it depends on",
        )


# At each decision, after it is taken in.


def note_written(record: Record, store: FaultyStore, effects: Effects, awake_ms: float) -> None:
    """Remember what the later checks compare with."""
    for event in effects.events:
        record.decided.append(json.encode(event))
        record.note_end(event, effects.jobs[event.job_id])
    require(len(record.decided) == store.decided_seq(), "events and sequence numbers disagree")
    number = store.unsaved_number()
    for signal in effects.signals:
        record.signals[id(signal)] = (number, signal)
    for job_id, job in effects.jobs.items():
        old, lease = record.before.get(job_id), job.lease
        if lease is not None and (old is None or old.lease is not lease):
            renewing = commands.Renew | commands.RenewHeld | commands.Report
            renewed = isinstance(record.command, renewing)
            words = record.spoken.setdefault(lease.token, [])
            if lease.expires_at is not None and (renewed or not words):
                words.append((number, awake_ms, lease.expires_at - effects.now))
    for job in effects.jobs.values():
        if job.state is State.CANCELLED:
            _note_doomed(record, store, job, number)


def _note_doomed(record: Record, store: FaultyStore, job: Job, number: int) -> None:
    """A job was cancelled: those that wait for it are cancelled as well, if somebody asked for
    that, or if it was such a one itself.
    """
    command = record.command
    if isinstance(command, commands.Cancel) and command.with_dependants:
        serial_max = store.live.serial
    elif isinstance(command, commands.NotifyDependants) and job.job_id in record.doomed:
        serial_max = record.doomed[job.job_id].serial_max
    else:
        return
    keys = {job.job_id, f"{job.namespace or ''}\0{job.name}"}
    for other in store.live.live_jobs():
        if (
            other.state is State.BLOCKED
            and other.serial <= serial_max
            and not keys.isdisjoint(other.waits_for)
        ):
            record.doomed[other.job_id] = Doomed(number, other.incarnation, serial_max)


def check_expiry(record: Record, effects: Effects, awake_ms: float, stalls: list[Stall]) -> None:
    """Nobody loses a lease because the server stood still, was away, or had its clock set."""
    if not isinstance(record.command, commands.Tick):
        return
    for job_id, job in effects.jobs.items():
        old = record.before.get(job_id)
        if old is None or old.lease is None or old.lease.term_ms is None or old.lease.in_grace:
            continue
        reason = job.attempts[-1].reason if job.attempts else None
        expired = (
            job.lease is None and reason is EndReason.EXPIRED and job.reason is not Reason.DEADLINE
        )
        lapsed = job.lease is not None and job.lease.lapsed and not old.lease.lapsed
        if not (expired or lapsed) or old.lease.lapsed:
            continue
        _, spoken_ms, granted_ms = record.spoken[old.lease.token][-1]
        silent_ms = awake_ms - spoken_ms
        unseen_ms = sum(stall.unseen_ms for stall in stalls if stall.began_ms >= spoken_ms)
        require(
            silent_ms + unseen_ms >= granted_ms - 2,
            f"{job_id} expired after {silent_ms:.0f} of {granted_ms} ms",
        )


# When something is told.


def _recorded(job: Job | None) -> Job | None:
    """A job without its waiters: where it is wanted durably, they need not be on disk (S11)."""
    return None if job is None else replace(job, waiters=())


def check_told(
    store: FaultyStore,
    command: commands.Command,
    reply: object,
    needed: int,
    before: dict[str, Job | None],
) -> None:
    """No answer before its commit; an early claim only hands out what is on disk as it was, an
    early submit only makes jobs that nobody wants durably.
    """
    if store.durable >= needed:
        return
    require(
        isinstance(command, commands.Claim | commands.Submit) and command.early,
        f"{type(command).__name__} was answered at commit {store.durable}, needs {needed}",
    )
    if isinstance(reply, SubmittedMany):
        for item in reply.items:
            require(
                isinstance(item, Submitted) and not item.job.durable_interest,
                "a job that was promised was answered early",
            )
    if isinstance(reply, Claimed):
        require(not reply.drained, "drained, said before the commit of what was seen")
        for job in reply.jobs:
            require(
                not job.durable_interest
                or _recorded(store.disk.job(job.job_id)) == _recorded(before[job.job_id]),
                f"{job.job_id} was handed out early, but it is not on disk as it was",
            )


class Drained(enum.Enum):
    """What a claim finds."""

    OPEN = "open"
    EMPTY = "empty"
    STUCK = "stuck"
    UNKNOWN = "unknown"


def find_drained(store: FaultyStore, command: commands.Command) -> Drained:
    """Rule 27, by a look at every job."""
    assert isinstance(command, commands.Claim)
    index = store.live
    unknown = [name for name in command.queues if name not in index.queues]
    live = [
        job
        for job in index.jobs.values()
        if job.queue in command.queues and job.state not in FINISHED
    ]
    if any(job.state is not State.BLOCKED for job in live):
        return Drained.OPEN
    for job in live:
        for other in map(index.job, job.waits_for):
            if other is None or other.state is State.COMPLETED:
                return Drained.OPEN
            if other.state not in FINISHED and other.queue != job.queue:
                return Drained.OPEN
    if unknown:
        asked = command.report_drained is commands.ReportDrained.ALWAYS
        return Drained.UNKNOWN if asked else Drained.OPEN
    return Drained.STUCK if live else Drained.EMPTY


def check_drained(command: commands.Command, reply: Claimed, found: Drained) -> None:
    """Whoever asks hears that nothing is left exactly when nothing was left."""
    require(
        reply.drained == (found is not Drained.OPEN),
        f"{command} was answered {reply.drained}, the queues were {found.value}",
    )


def note_acknowledged(record: Record, command: commands.Command, reply: object) -> None:
    """The client's own ledger: what it may rely on from now on."""
    if isinstance(reply, SubmittedMany):
        for item in reply.items:
            if isinstance(item, Submitted) and not isinstance(command, commands.Fire):
                job = item.job
                record.acknowledged["submit", job.job_id, job.incarnation] = "submitted"
    elif isinstance(reply, Changed) and isinstance(command, commands.Complete | commands.Fail):
        note_ended(record, reply.job)
    elif isinstance(reply, Concluded):
        for item in reply.items:
            if isinstance(item, Reported):
                note_ended(record, item)
    elif isinstance(reply, ChangedMany) and isinstance(command, commands.Cancel):
        for job in reply.jobs:
            record.acknowledged["end", job.job_id, job.incarnation] = job.state.value


def note_ended(record: Record, job: Job | Reported) -> None:
    if job.state in FINISHED:
        record.acknowledged["end", job.job_id, job.incarnation] = job.state.value


def check_signal(record: Record, store: FaultyStore, signal: Signal) -> None:
    """No signal before its commit, unless only those want the job who hear it."""
    found = record.signals.get(id(signal))
    require(found is not None, f"a signal out of nowhere: {signal}")
    assert found is not None
    number, _ = found
    fleeting = not signal.job.durable_interest and signal.what != "notice"
    require(fleeting or number <= store.durable, f"{signal.what} was told before its commit")


# When a commit is on disk.


def note_durable(record: Record, batch: Batch) -> None:
    """Commits are strict prefixes of decisions, and their numbers have no gaps."""
    for job_id, job in batch.jobs.items():
        if job.stored_bytes:
            # The batch does not bring its payload: it is that of the value before.
            payload = record.jobs[job_id].payload
            require(len(payload) == job.stored_bytes, f"{job_id}: a payload that was never written")
            record.jobs[job_id] = replace(job, payload=payload, stored_bytes=0)
        else:
            record.jobs[job_id] = job
    for kind, settings in record.settings.items():
        for name, value in batch.rows_of(kind).items():
            if value is None:
                settings.pop(name, None)
            else:
                settings[name] = value
    for seq, event in enumerate(batch.events, batch.events_after + 1):
        require(seq == len(record.events) + 1, f"event {seq} follows event {len(record.events)}")
        body = json.encode(event)
        require(record.decided[seq - 1] == body, f"event {seq} is not what was decided")
        record.events.append(body)
        if event.state in FINISHED:
            record.finished_count += 1


# After a crash.


def check_disk(record: Record, disk: Disk) -> None:
    """The disk holds the committed prefix: every row, every event, nothing else."""
    require(set(disk.rows) == set(record.jobs), "other jobs than were committed")
    for job_id, job in record.jobs.items():
        found = disk.job(job_id)
        require(found == job, f"written as {job},\nread as {found}")
    bodies = [body for _, body in disk.events]
    require(bodies == record.events, "the event log is not the one that was committed")
    numbers = [seq for seq, _ in disk.events]
    require(numbers == list(range(1, len(numbers) + 1)), "the event log has gaps")


def check_settings(record: Record, store: FaultyStore) -> None:
    """Queues, limits, schedules and cursors are what was committed."""
    index = store.live
    queues = {name: known.queue for name, known in index.queues.items()}
    for name, queue in record.settings["queues"].items():
        require(queues.get(name) == queue, f"queue {name} was {queue} and is {queues.get(name)}")
    for kind in ("limits", "schedules", "cursors"):
        found, wanted = getattr(index, kind), record.settings[kind]
        if kind == "cursors":
            wanted = {name: value for name, value in wanted.items() if ":" not in name}
            found = {name: value for name, value in found.items() if ":" not in name}
        require(found == wanted, f"{kind} were {wanted} and are {found}")


def check_names(record: Record, store: FaultyStore) -> None:
    """After a start, a name means something only if its job is of the graph that is open: once
    all jobs of a namespace had ended, their names were given up for good.
    """
    members: dict[str, set[str]] = {}
    unfinished: dict[str, set[str]] = {}
    for body in record.events:
        event = json.decode(body, type=Event)
        namespace = record.jobs[event.job_id].namespace
        if namespace is None:
            continue
        live = unfinished.setdefault(namespace, set())
        if event.state in FINISHED:
            live.discard(event.job_id)
        else:
            live.add(event.job_id)
        if live:
            members.setdefault(namespace, set()).add(event.job_id)
        else:
            members.pop(namespace, None)
    for namespace, ids in members.items():
        names = store.live.namespaces.names.get(namespace, {})
        for name, job_id in names.items():
            require(job_id in ids, f"{name} of {namespace} came back after its graph had ended")
        for job_id in unfinished[namespace]:
            require(names.get(record.jobs[job_id].name or "") == job_id, f"{job_id} lost its name")


def check_acknowledged(record: Record, disk: Disk) -> None:
    """Nothing acknowledged is lost."""
    ends = {}
    for _, body in disk.events:
        event = json.decode(body, type=Event)
        if event.state in FINISHED:
            ends.setdefault((event.job_id, event.incarnation), []).append(event.state.value)
    for (what, job_id, incarnation), state in record.acknowledged.items():
        job = disk.job(job_id)
        require(job is not None, f"job {job_id} was acknowledged and is lost")
        assert job is not None
        require(job.incarnation >= incarnation, f"job {job_id} lost incarnation {incarnation}")
        if what == "end":
            found = ends.get((job_id, incarnation), [])
            require(state in found, f"job {job_id} was told to be {state}; the log says {found}")


def check_finished_once(record: Record) -> None:
    """Each incarnation of a job is finished exactly once; only a failed one can be called off."""
    ends: dict[tuple[str, int], list[State]] = {}
    for body in record.events:
        event = json.decode(body, type=Event)
        if event.state in FINISHED:
            ends.setdefault((event.job_id, event.incarnation), []).append(event.state)
    for key, states in ends.items():
        fine = len(states) == 1 or states == [State.FAILED, State.CANCELLED]
        require(fine, f"{key} finished as {states}")


# Now and then.


def check_index(record: Record, store: FaultyStore) -> None:
    """The index says what a recount of all jobs says."""
    index = store.live
    jobs = {**record.jobs, **index.jobs}
    counts = Counter((job.queue, job.state) for job in jobs.values())
    for name in index.recorded_queues():
        for state in State:
            wanted = counts.get((name, state), 0)
            got = index.counts_of(name)[state]
            require(got == wanted, f"queue {name} counts {got} {state} jobs, there are {wanted}")
    holders: dict[tuple[str, bytes], str | None] = {}
    for job in jobs.values():
        if job.unique_key is not None:
            place = (job.queue, job.unique_key)
            holders[place] = holders.get(place) if job.state in FINISHED else job.job_id
    for (name, key), job_id in holders.items():
        held_by = index.key_holder(name, key)
        require(held_by == job_id, f"key {key!r} is held by {held_by}, not by {job_id}")
    recount(index)
    missing = [i for i, job in jobs.items() if job.state not in FINISHED and i not in index.jobs]
    require(not missing, f"unfinished, but not in the index: {missing}")


def recount(index: Index) -> None:
    """Whatever the index keeps can be worked out again from its jobs."""
    try:
        check_index_itself(index)
    except AssertionError as error:
        raise Violation(str(error)) from error


def check_log(record: Record, seq: int, read) -> None:
    """A watcher reads what was committed, in order, without gaps."""
    for stored in read:
        seq += 1
        require(stored.seq == seq, f"event {stored.seq} where {seq} was to come")
        require(seq <= len(record.events), f"event {seq} is shown before its commit")
        require(json.encode(stored.event) == record.events[seq - 1], f"event {seq} is another one")


def check_terms(record: Record, store: FaultyStore, now: int, stalls: list[Stall]) -> None:
    """A lease is prolonged by what it lost, not by more: else a dead worker keeps its job."""
    for job_id in store.live.view.leased():
        lease = store.live.live_job(job_id).lease
        words = record.spoken.get(lease.token) if lease is not None else None
        if lease is None or lease.expires_at is None or lease.lapsed or lease.in_grace or not words:
            continue
        _, spoken_ms, granted_ms = words[-1]
        # What was claimed before the standstill was noticed is prolonged too. So be it.
        spare_ms = sum(10_000 + stall.ms for stall in stalls if stall.began_ms >= spoken_ms)
        left_ms = lease.expires_at - now
        require(left_ms <= granted_ms + spare_ms, f"{job_id} is leased for another {left_ms} ms")


# Once a second.


class Sleepers:
    """No sleeper is left asleep for long while its queue has work that it could be given."""

    def __init__(self) -> None:
        self._since: dict[tuple[object, str], float] = {}

    def check(self, dispatcher, now_ms: float, sleepers, woken_at: dict[str, float]) -> None:
        still: dict[tuple[object, str], float] = {}
        for sleeper in sleepers:
            if not sleeper.asleep:
                continue
            for queue in sleeper.queues:
                if dispatcher.has_work((queue,)):
                    since = self._since.get((sleeper, queue), now_ms)
                    since = max(since, woken_at.get(queue, 0.0))
                    still[sleeper, queue] = since
                    require(
                        now_ms - since < 2_500,
                        f"somebody sleeps for queue {queue} although there is work",
                    )
        self._since = still


# At the end.


def check_all_ended(store: FaultyStore) -> None:
    """Left alone with honest workers, every job ends, and nothing is left in anybody's hands."""
    left = [job for job in store.live.live_jobs() if job.state not in FINISHED]
    first = [(job.job_id, job.state, job.waits_for, job.lease, job.run_at) for job in left[:3]]
    require(not left, f"{len(left)} jobs did not end, among them {first}")
    require(not store.live.has_leases(), "somebody still holds something")


def check_reply(reply: object, failed: str | None) -> None:
    """No command ends in an internal error; when the store has failed, all are refused for that.
    No job is handed out or shown without its payload.
    """
    if isinstance(reply, Claimed):
        require(not any(job.stored_bytes for job in reply.jobs), "a job without its payload")
    if isinstance(reply, Found) and reply.job is not None:
        require(not reply.job.stored_bytes, "a job without its payload")
    why = reply.why if isinstance(reply, Refusal) else None
    require(why is not Why.INTERNAL, f"{reply} is a defect")
    refused = why is Why.STORE_FAILED
    require(refused == (failed is not None), f"{reply} although the store says {failed!r}")
