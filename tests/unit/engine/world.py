"""A small world to try the engine in: one memory store, one clock that stands still, and after
every command the checks that hold for all commands.
"""

from collections.abc import Sequence
from typing import Any

from manyhands.engine.decide import decide
from manyhands.engine.invariants import check_job
from manyhands.engine.transitions import TABLE
from manyhands.model.commands import (
    Attach,
    ByHolder,
    ByToken,
    Cancel,
    Claim,
    Command,
    Complete,
    Depart,
    Detach,
    ExpireLease,
    Fail,
    Move,
    NewJob,
    NotifyDependants,
    Prolong,
    Proof,
    Recover,
    Release,
    Renew,
    Report,
    Requeue,
    SetDependencies,
    SetPriority,
    SetQueue,
    Submit,
    Tick,
)
from manyhands.model.events import KINDS, Event, Signal
from manyhands.model.identity import uid_of
from manyhands.model.job import Failure, Holder, Job, State
from manyhands.model.policy import QueuePolicy
from manyhands.model.reasons import Reason
from manyhands.model.replies import (
    Accepted,
    Changed,
    ChangedMany,
    Claimed,
    QueueSet,
    Refusal,
    Reply,
    Submitted,
    SubmittedMany,
    Ticked,
    Why,
)
from manyhands.store.index.recount import check_index
from manyhands.store.memory import MemoryStore
from tests.copies import replace

START = 1_700_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

# Which states can follow which, whatever the trigger.
FOLLOWS = frozenset((before, after) for (before, _), after in TABLE.items())
FIRST_STATES = frozenset({State.BLOCKED, State.DELAYED, State.READY})
# Above this many jobs the checks of the whole index are left to the tests that want them.
CHECKED_JOBS_MAX = 500


def a_job(queue: str = "q", **fields: Any) -> NewJob:
    """A job to submit. Without a ``job_id`` the world gives it one."""
    fields.setdefault("job_id", "")
    return NewJob(queue=queue, **fields)


def a_worker(name: str | None = "worker", realm: str = "native", address: str = "") -> Holder:
    return Holder(realm, name, address)


def by_holder(name: str | None, realm: str = "native", address: str = "") -> ByHolder:
    return ByHolder(realm, name, address)


class World:
    """Commands in, checked replies out."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = START
        self.signals: list[Signal] = []
        self.urgent = False  # whether the last command was
        self._ids = 0
        self._tokens = 0

    # One step: load, decide, write, commit; and look at all of it.

    def run(self, command: Command) -> Reply:
        """What the command is answered, after everybody has heard of what it ended."""
        reply = self.step(command)
        urgent = self.urgent
        while self.store.live.unnotified:
            self.step(NotifyDependants(next(iter(self.store.live.unnotified))))
        self.urgent = urgent
        return reply

    def step(self, command: Command) -> Reply:
        """One command."""
        index = self.store.live
        before = dict(index.jobs)
        reply, effects = decide(command, self.store.load(command), self.now)
        assert index.jobs == before, "deciding changed the store"
        refused = isinstance(reply, Refusal)
        if isinstance(reply, SubmittedMany):
            refused = all(isinstance(item, Refusal) for item in reply.items)
        if refused:
            assert effects.is_empty(), f"refused, yet something is to change: {reply}"
            assert not effects.events, f"refused, yet published: {effects.events}"
            assert not effects.signals, f"refused, yet told: {effects.signals}"
        old = {job_id: index.job(job_id) for job_id in effects.jobs}
        self._check_events(old, effects.jobs, effects.events)
        seq = self.store.last_seq()
        self.store.write(effects)
        self.store.begin_commit(self.now)
        stored = self.store.events_after(seq, len(effects.events) + 1)
        assert [entry.event for entry in stored] == effects.events
        assert [entry.seq for entry in stored] == list(range(seq + 1, seq + 1 + len(stored)))
        for job_id in effects.jobs:
            check_job(self.job(job_id))
        if len(index.jobs) <= CHECKED_JOBS_MAX:
            self.check_index()
        self.signals.extend(effects.signals)
        self.urgent = effects.urgent
        return reply

    def _check_events(
        self, old: dict[str, Job | None], jobs: dict[str, Job], events: Sequence[Event]
    ) -> None:
        """The events tell exactly the changes of state, each possible after the one before."""
        states = {job_id: job.state if job is not None else None for job_id, job in old.items()}
        used = {job_id: job.attempts_used for job_id, job in old.items() if job is not None}
        for event in events:
            assert event.job_id in jobs, f"an event about an unchanged job: {event}"
            assert event.at == self.now
            before = states[event.job_id]
            if before is None:
                assert event.state in FIRST_STATES
            else:
                assert (before, event.state) in FOLLOWS, f"{before} to {event.state}"
            states[event.job_id] = event.state
            assert event.reason in KINDS[event.state].reasons, f"{event.state} for {event.reason!r}"
            if event.holder is not None and event.state not in (State.LEASED, State.COMPLETED):
                self._check_charge(event, used.get(event.job_id, 0))
            used[event.job_id] = event.attempts_used
        last = {event.job_id: event for event in events}
        for job_id, job in jobs.items():
            assert states[job_id] is job.state, f"{job_id} is {job.state} without an event"
            if job_id in last:
                event = last[job_id]
                assert (event.queue, event.incarnation) == (job.queue, job.incarnation)
                assert (event.lease_number, event.reason) == (job.lease_number, job.reason)
                assert event.detail == job.detail
                assert type(job.reason) is Reason
                assert not job.detail or job.state is State.CANCELLED

    def _check_charge(self, event: Event, used_before: int) -> None:
        """What the reason of a lease's end says about the budget is what the budget says."""
        if event.reason in (Reason.MOVED, Reason.ADVANCED):
            assert event.attempts_used == 0  # it starts anew in the next queue
        elif event.reason is not Reason.ABANDONED:  # whether charged or not before that
            assert event.attempts_used - used_before == event.reason.charged, event

    def check_index(self) -> None:
        """Whatever the index keeps can be worked out again from the jobs themselves."""
        check_index(self.store.live)

    # What came of it.

    def job(self, job_id: str) -> Job:
        job = self.store.find(job_id)
        assert job is not None, f"there is no job {job_id}"
        return job

    def exists(self, job_id: str) -> bool:
        return self.store.find(job_id) is not None

    def state(self, job_id: str) -> State:
        return self.job(job_id).state

    def events(self, job_id: str | None = None) -> list[Event]:
        stored = self.store.events_after(0, 10_000_000)
        return [entry.event for entry in stored if job_id in (None, entry.event.job_id)]

    def states(self, job_id: str) -> list[State]:
        """The states a job went through, as they were published."""
        return [event.state for event in self.events(job_id)]

    def reasons(self, job_id: str) -> list[str]:
        """Why each of its leases ended, oldest first."""
        return [attempt.reason.value for attempt in self.job(job_id).attempts]

    def told(self, what: str) -> list[Signal]:
        return [signal for signal in self.signals if signal.what == what]

    def check(self, *job_ids: str) -> None:
        """The invariants of these jobs; without ids, of all jobs there are."""
        known = job_ids or tuple({event.job_id: None for event in self.events()})
        for job_id in known:
            check_job(self.job(job_id))
            assert len(uid_of(job_id)) == 32
        self.check_index()

    def refused(self, command: Command) -> Why:
        """Run a command that must be refused; why it was."""
        reply = self.run(command)
        assert isinstance(reply, Refusal), f"not refused: {reply}"
        assert reply.sentence
        return reply.why

    def changed(self, command: Command) -> Job:
        reply = self.run(command)
        assert isinstance(reply, Changed), f"not changed: {reply}"
        return self.job(reply.job.job_id)

    def accepted(self, command: Command) -> int:
        reply = self.run(command)
        assert isinstance(reply, Accepted), f"not accepted: {reply}"
        return reply.count

    # Commands, with what a test does not care about filled in.

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def new_token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"

    def offer(self, item: NewJob) -> Submitted | Refusal:
        """One submit, refused or not."""
        return self.offer_all(item)[0]

    def offer_all(self, *items: NewJob) -> tuple[Submitted | Refusal, ...]:
        reply = self.run(Submit(self._named(items)))
        assert isinstance(reply, SubmittedMany)
        return reply.items

    def submit(self, item: NewJob | None = None, **fields: Any) -> Job:
        reply = self.offer(item if item is not None else a_job(**fields))
        assert isinstance(reply, Submitted), f"not submitted: {reply}"
        return self.job(reply.job.job_id)

    def submit_all(self, *items: NewJob) -> tuple[Job, ...]:
        replies = self.offer_all(*items)
        refusals = [reply for reply in replies if isinstance(reply, Refusal)]
        assert not refusals
        return tuple(self.job(reply.job.job_id) for reply in replies)

    def submit_together(self, *items: NewJob) -> tuple[Job, ...] | Refusal:
        reply = self.run(Submit(self._named(items), all_or_nothing=True))
        if isinstance(reply, Refusal):
            return reply
        assert isinstance(reply, SubmittedMany)
        assert not any(isinstance(item, Refusal) for item in reply.items)
        return tuple(self.job(item.job.job_id) for item in reply.items)

    def _named(self, items: Sequence[NewJob]) -> tuple[NewJob, ...]:
        return tuple(
            item if item.job_id or item.id_chosen else replace(item, job_id=self.new_id())
            for item in items
        )

    def claim_reply(self, *queues: str, count: int = 1, **fields: Any) -> Claimed:
        fields.setdefault("holder", a_worker())
        tokens = tuple(self.new_token() for _ in range(count))
        reply = self.run(Claim(queues=queues or ("q",), tokens=tokens, **fields))
        assert isinstance(reply, Claimed), f"not claimed: {reply}"
        assert len(reply.jobs) <= count
        assert len({job.job_id for job in reply.jobs}) == len(reply.jobs), "one job given twice"
        return reply

    def claim_all(self, *queues: str, count: int, **fields: Any) -> list[Job]:
        return [
            self.job(job.job_id) for job in self.claim_reply(*queues, count=count, **fields).jobs
        ]

    def claim(self, *queues: str, **fields: Any) -> Job:
        """The one job that is handed out now."""
        jobs = self.claim_reply(*queues, **fields).jobs
        assert len(jobs) == 1, "there was nothing to claim"
        return self.job(jobs[0].job_id)

    def claims_nothing(self, *queues: str, **fields: Any) -> bool:
        return not self.claim_reply(*queues, **fields).jobs

    def proof_of(self, job_id: str) -> ByToken:
        lease = self.job(job_id).lease
        assert lease is not None
        return ByToken(lease.token)

    def _proof(self, job_id: str, proof: Proof | None) -> Proof:
        return proof if proof is not None else self.proof_of(job_id)

    def renew(self, job_id: str, proof: Proof | None = None, **fields: Any) -> Job:
        return self.changed(Renew(job_id=job_id, proof=self._proof(job_id, proof), **fields))

    def report(self, job_id: str, numerator: int, denominator: int, **fields: Any) -> Job:
        proof = self._proof(job_id, fields.pop("proof", None))
        command = Report(
            job_id=job_id, proof=proof, numerator=numerator, denominator=denominator, **fields
        )
        return self.changed(command)

    def complete(self, job_id: str, proof: Proof | None = None, **fields: Any) -> Job:
        return self.changed(Complete(job_id=job_id, proof=self._proof(job_id, proof), **fields))

    def fail(self, job_id: str, proof: Proof | None = None, **fields: Any) -> Job:
        fields.setdefault("failure", Failure("broken", "it broke"))
        return self.changed(Fail(job_id=job_id, proof=self._proof(job_id, proof), **fields))

    def release(self, job_id: str, proof: Proof | None = None, **fields: Any) -> Job:
        return self.changed(Release(job_id=job_id, proof=self._proof(job_id, proof), **fields))

    def cancel(self, *job_ids: str, **fields: Any) -> tuple[Job, ...]:
        reply = self.run(Cancel(job_ids=job_ids, **fields))
        assert isinstance(reply, ChangedMany), f"not cancelled: {reply}"
        return tuple(self.job(job.job_id) for job in reply.jobs)

    def requeue(self, job_id: str, **fields: Any) -> Job:
        return self.changed(Requeue(job_id=job_id, **fields))

    def move(self, job_id: str, queue: str, **fields: Any) -> Job:
        return self.changed(Move(job_id=job_id, queue=queue, **fields))

    def set_priority(self, job_id: str, priority: float) -> Job:
        return self.changed(SetPriority(job_id, priority))

    def depend(self, job_id: str, *others: str, **fields: Any) -> Job:
        return self.changed(SetDependencies(job_id=job_id, add=others, **fields))

    def free(self, job_id: str, *others: str) -> Job:
        return self.changed(SetDependencies(job_id=job_id, remove=others))

    def attach(self, job_id: str, waiter: str | None = None, *, durable: bool = False) -> Job:
        return self.changed(Attach(job_id=job_id, waiter=waiter, durable=durable))

    def detach(self, waiter: str) -> int:
        return self.accepted(Detach(waiter))

    def depart(self, **fields: Any) -> int:
        return self.accepted(Depart(**fields))

    def expire_lease(self, job_id: str) -> Job:
        return self.changed(ExpireLease(job_id))

    def set_queue(self, queue: str = "q", paused: bool | None = None, **policy: Any) -> None:
        wished = QueuePolicy(**policy) if policy else None
        reply = self.run(SetQueue(queue=queue, paused=paused, policy=wished))
        assert isinstance(reply, QueueSet), reply

    def recover(self, incarnation: str, outage_ms: int = 0) -> int:
        return self.accepted(Recover(incarnation, outage_ms))

    def prolong(self, outage_ms: int) -> int:
        return self.accepted(Prolong(outage_ms))

    def tick(self, ms: int = 0, count_max: int = 500) -> int:
        """Time goes on, and everything that is due by then happens."""
        self.now += ms
        count = 0
        more = True
        while more:
            reply = self.run(Tick(count_max))
            assert isinstance(reply, Ticked)
            count += reply.count
            more = reply.more
        return count
