"""Handing out work: which jobs, to whom, for how long."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.ending import ended_attempts
from manyhands.engine.transitions import Trigger, moved
from manyhands.model import limits
from manyhands.model.commands import Claim, ClaimOrder
from manyhands.model.job import EndReason, Job, Lease, State
from manyhands.model.outcome import Claimed, Refusal, Reply, Why
from manyhands.model.policy import NO_POLICY, Queue, QueuePolicy

_READY: Final = State.READY
_CLAIMED: Final = Trigger.CLAIMED
_LISTED: Final = ClaimOrder.LISTED


def decide_claim(command: Claim, effects: Effects) -> Reply:
    """As many jobs as there are tokens, at most."""
    tokens, queues = command.tokens, command.queues
    count = len(tokens)
    if count == 1 and len(queues) == 1 and command.job_id is None:
        view = effects.view
        queue = view.queue(queues[0])
        if queue is not None and queue.policy is NO_POLICY and not queue.paused:
            # The hot path: nothing can stand in the way but the job itself.
            job = view.first_ready(queues[0])
            if job is not None and job.lease is None and job.deadline_at is None and not job.limits:
                return Claimed((grant(effects, job, command, tokens[0], queue),))
    elif count > limits.CLAIM_COUNT_MAX or len(queues) > limits.CLAIM_QUEUES_MAX:
        sentence = f"a claim takes at most {limits.CLAIM_COUNT_MAX} jobs"
        return Refusal(Why.BAD_COUNT, sentence)
    if command.job_id is not None:
        return _claim_one(command, effects, command.job_id)
    gate = Gate(effects)
    jobs: list[Job] = []
    if count == 1:
        job = _first(command, gate)
        if job is not None:
            jobs.append(grant(effects, job, command, command.tokens[0]))
    elif count:
        found = _as_listed if command.order is _LISTED else _in_turns
        for job in found(command, gate):
            jobs.append(grant(effects, job, command, command.tokens[len(jobs)]))
            if len(jobs) == count:
                return Claimed(tuple(jobs))
            gate.count(job)
    return Claimed(tuple(jobs), gate.retry_at)


def _first(command: Claim, gate: "Gate") -> Job | None:
    """The one job of a claim for one: the hot path."""
    queues = command.queues
    if len(queues) == 1:
        return gate.first(queues[0])
    if command.order is _LISTED:
        for queue in queues:
            job = gate.first(queue)
            if job is not None:
                return job
        return None
    best: Job | None = None
    for offset in range(len(queues)):
        job = gate.first(queues[(command.turn + offset) % len(queues)])
        if job is not None and (best is None or job.priority > best.priority):
            best = job
    return best


def _as_listed(command: Claim, gate: "Gate") -> Iterator[Job]:
    """One queue until it is empty, then the next."""
    for queue in command.queues:
        yield from gate.claimable(queue)


def _in_turns(command: Claim, gate: "Gate") -> Iterator[Job]:
    """Highest priority anywhere; equals take turns."""
    queues = tuple(dict.fromkeys(command.queues))  # or a job could head two streams
    count = len(queues)
    streams = [gate.claimable(queues[(command.turn + i) % count]) for i in range(count)]
    heads = [next(stream, None) for stream in streams]
    turn = 0
    while True:
        best = -1
        for offset in range(count):
            index = (turn + offset) % count
            head = heads[index]
            if head is not None and (best == -1 or head.priority > heads[best].priority):  # type: ignore[union-attr]
                best = index
        if best == -1:
            return
        chosen = heads[best]
        assert chosen is not None
        # Since it became the head another queue may have used up a limit that both name.
        if gate.has_room(chosen):
            yield chosen
            turn = best + 1
        heads[best] = next(streams[best], None)


class Gate:
    """What stands between a ready job and a worker: pause, concurrency, rate, named limits."""

    __slots__ = ("_effects", "_granted", "retry_at")

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        # What this very command has granted, which the view does not know yet: jobs of a queue,
        # and jobs of each named limit.
        self._granted: tuple[dict[str, int], dict[str, int]] | None = None
        self.retry_at: int | None = None  # when a rate limit may allow more

    def first(self, name: str) -> Job | None:
        """The next job of a queue, if its gate is open."""
        effects = self._effects
        queue = effects.queue(name)
        if queue is None or not self.is_open(queue):
            return None
        job = effects.view.first_ready(name)
        if job is None or (
            job.lease is None
            and (job.deadline_at is None or job.deadline_at > effects.now)
            and not job.limits
        ):
            return job
        return next(self.claimable(name), None)

    def claimable(self, name: str) -> Iterator[Job]:
        """All jobs of a queue that may be handed out, in order, while its gate is open. The
        caller grants and counts each one before it asks for the next.
        """
        effects = self._effects
        queue = effects.queue(name)
        if queue is None:
            return
        now = effects.now
        for job in effects.view.ready(name):
            if not self.is_open(effects.queue(name) or queue):
                return
            if job.job_id in effects.jobs and effects.jobs[job.job_id].state is not _READY:
                continue
            if job.lease is not None and job.lease.spent:
                continue
            if job.deadline_at is not None and job.deadline_at <= now:
                continue
            if job.limits and not self.has_room(job):
                continue
            yield job

    def count(self, job: Job) -> None:
        """A job was granted, and another one is to follow."""
        if self._granted is None:
            self._granted = ({}, {})
        of_queues, of_limits = self._granted
        of_queues[job.queue] = of_queues.get(job.queue, 0) + 1
        for limit in job.limits:
            of_limits[limit] = of_limits.get(limit, 0) + 1

    def is_open(self, queue: Queue) -> bool:
        """Whether the queue may hand out one more job now."""
        if queue.paused:
            return False
        policy = queue.policy
        if policy.concurrency_max is not None:
            granted = self._granted[0].get(queue.name, 0) if self._granted is not None else 0
            held = self._effects.view.leased_count(queue.name) + granted
            if held >= policy.concurrency_max:
                return False
        rate = policy.rate
        if rate is not None:
            window_ends_at = queue.rate_started_at + rate.per_ms
            if queue.rate_used >= rate.count and self._effects.now < window_ends_at:
                if self.retry_at is None or window_ends_at < self.retry_at:
                    self.retry_at = window_ends_at
                return False
        return True

    def has_room(self, job: Job) -> bool:
        """Whether every named limit of the job leaves room for one more lease."""
        effects = self._effects
        for name in job.limits:
            limit = effects.view.limit(name)
            if limit is None:
                continue
            granted = self._granted[1].get(name, 0) if self._granted is not None else 0
            if effects.view.limit_used(name) + granted >= limit.concurrency_max:
                return False
        return True


def _claim_one(command: Claim, effects: Effects, job_id: str) -> Reply:
    """One job by its id, if nothing stands in the way."""
    job = effects.job(job_id)
    if job is None:
        return Refusal(Why.UNKNOWN_JOB, f"there is no job {job_id}")
    if job.state is not _READY or (job.lease is not None and job.lease.spent):
        return Refusal(Why.NOT_CLAIMABLE, f"job {job_id} is {job.state}", job)
    queue = effects.queue(job.queue)
    gate = Gate(effects)
    open_ = queue is not None and gate.is_open(queue) and gate.has_room(job)
    if job.deadline_at is not None and job.deadline_at <= effects.now:
        open_ = False
    if not open_ or not command.tokens:
        return Refusal(Why.NOT_CLAIMABLE, f"queue {job.queue!r} hands nothing out now", job)
    return Claimed((grant(effects, job, command, command.tokens[0]),))


def grant(
    effects: Effects, job: Job, command: Claim, token: str, queue: Queue | None = None
) -> Job:
    """Lease a ready job. A lapsed lease is charged now, to its old holder."""
    now = effects.now
    queue = queue or effects.queue(job.queue)
    assert queue is not None
    policy = queue.policy
    term_ms = command.term_ms or None  # 0: no expiry
    if policy is not NO_POLICY or command.terms_ms or command.term_of_job:
        term_ms = _term_ms(command, job, policy)
        if policy.rate is not None:
            if now >= queue.rate_started_at + policy.rate.per_ms:
                queue = replace(queue, rate_started_at=now, rate_used=0)
            effects.use_rate(queue)
    longest = job.terms.attempt_ms_max
    if longest is None:
        longest = policy.attempt_ms_max
    number = job.lease_number + 1
    lease = Lease(
        token,
        number,
        command.holder,
        now,
        term_ms,
        now + term_ms if term_ms is not None else None,
        now + longest if longest else None,
        command.connection,
    )
    leased = replace(
        job,
        state=moved(job, _CLAIMED),
        entered_at=now,
        lease=lease,
        lease_number=number,
        reason="",
    )
    if job.lease is not None:
        sentence = "the lease expired and another worker claimed the job"
        leased = replace(
            leased,
            attempts=ended_attempts(job, job.lease, now, EndReason.EXPIRED, sentence),
            attempts_used=job.attempts_used + 1,
            progress=None,
        )
        effects.tell_holder(job, job.lease)
    effects.enter(leased, job.entered_at, policy=policy)
    return leased


def _term_ms(command: Claim, job: Job, policy: QueuePolicy) -> int | None:
    """Rule 1: the term comes from the claim, which may honour the job's and the queue's."""
    term_ms = command.term_ms
    if command.terms_ms and job.queue in command.queues:
        term_ms = command.terms_ms[command.queues.index(job.queue)]
    if policy.lease_forced:
        term_ms = policy.lease_ms
    elif command.term_of_job:
        if job.terms.lease_ms is not None:
            term_ms = job.terms.lease_ms
        elif policy.lease_ms is not None:
            term_ms = policy.lease_ms
    return term_ms or None  # 0: no expiry
