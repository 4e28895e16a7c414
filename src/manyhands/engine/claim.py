"""Handing out work: which jobs a claim gets, and for how long (rules 1, 18 and 19)."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.endings import ended_attempts
from manyhands.engine.graph import is_stuck
from manyhands.engine.transitions import CLAIMED_FROM
from manyhands.model import limits
from manyhands.model.commands import Claim, ClaimOrder, ReportDrained
from manyhands.model.job import EndReason, Holder, Job, Lease, State
from manyhands.model.plain import PlainReady
from manyhands.model.policy import NO_POLICY, Queue, QueuePolicy
from manyhands.model.reasons import Reason
from manyhands.model.replies import Claimed, Refusal, Reply, Why

_READY: Final = State.READY
_NO_REASON: Final = Reason.NONE
_LISTED: Final = ClaimOrder.LISTED
_NEVER: Final = ReportDrained.NEVER


def decide_claim(command: Claim, effects: Effects) -> Reply:
    """Hands out at most as many jobs as there are tokens; fewer if their payloads are large,
    because an answer is made in one go while all other clients wait.
    """
    count = len(command.tokens)
    if count > limits.CLAIM_COUNT_MAX or len(command.queues) > limits.CLAIM_QUEUES_MAX:
        sentence = f"a claim takes at most {limits.CLAIM_COUNT_MAX} jobs"
        return Refusal(Why.BAD_COUNT, sentence)
    if command.job_id is not None:
        return _claim_one(command, effects, command.job_id)
    gate = Gate(effects)
    jobs: list[Job] = []
    if count == 1:
        job = _first(command, gate)
        if job is not None:
            granted = grant(effects, job, command, command.tokens[0])
            return Claimed((granted,), gate.retry_at)
    elif count:
        payload_bytes = 0
        for job in _selected(command, gate):
            jobs.append(grant(effects, job, command, command.tokens[len(jobs)]))
            payload_bytes += len(job.payload) + job.stored_bytes
            if len(jobs) == count or payload_bytes > limits.CLAIM_BYTES_MAX:
                return Claimed(tuple(jobs))
            gate.count(job)
    drained = not jobs and command.report_drained is not _NEVER and _are_drained(command, effects)
    return Claimed(tuple(jobs), gate.retry_at, drained)


def _are_drained(command: Claim, effects: Effects) -> bool:
    """Rule 27: whether nothing is left in the queues that could ever be handed out."""
    view = effects.view
    for queue in command.queues:
        if view.queue(queue) is None:
            if command.report_drained is not ReportDrained.ALWAYS:
                return False
            continue
        blocked_count = view.blocked_count(queue)
        if view.unfinished_count(queue) > blocked_count:
            return False
        if blocked_count and not is_stuck(view, queue):
            return False
    return True


def _first(command: Claim, gate: "Gate") -> Job | None:
    """The first selected job, for claims of one job, as nearly all are. Without iterators, a report
    and the worker's next claim together take a fifth less time.
    """
    queues = command.queues
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


def _selected(command: Claim, gate: "Gate") -> Iterator[Job]:
    """Rule 19: in order of the list, one queue until it is empty, then the next; or in turns, the
    highest priority in any queue, where queues with equal ones take turns.
    """
    if command.order is _LISTED:
        for queue in command.queues:
            yield from gate.claimable(queue)
        return
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
        # Since it became the head, another queue may have used up a limit that both share.
        if gate.has_room(chosen):
            yield chosen
            turn = best + 1
        heads[best] = next(streams[best], None)


class Gate:
    """What stands between a ready job and a worker: pause, concurrency, rate, named limits."""

    __slots__ = ("_effects", "_granted", "retry_at")

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        # Granted by this command, and so not in the view yet: jobs by queue and by named limit.
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
        """All jobs of a queue that may be handed out, in order, while its gate is open.

        The caller grants and counts each job before it takes the next one. Expired deadlines and
        spent leases are skipped, not failed: only a tick changes a job because of time.
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
        """Counts a granted job, so that the next one of the same command sees it."""
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
            # A window that starts in the future is left from before the clock was set back.
            is_open = queue.rate_started_at <= self._effects.now < window_ends_at
            if is_open and queue.rate_used >= rate.count:
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
    """One job by its id, if nothing blocks it."""
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


def grant(effects: Effects, job: Job, command: Claim, token: str) -> Job:
    """Leases a ready job.

    A lapsed lease is charged here, not when it expired: until this claim its holder could still
    have renewed or completed the job (rule 6). The number of the new lease is the fence: no report
    under an older lease is accepted from here on (rule 5).
    """
    now = effects.now
    queue = effects.queue(job.queue)
    assert queue is not None
    policy = queue.policy
    term_ms = command.term_ms or None  # 0: no expiry
    if policy is not NO_POLICY or command.terms_ms or command.term_of_job:
        term_ms = term_ms_of(command, job, policy)
        if policy.rate is not None:
            if not 0 <= now - queue.rate_started_at < policy.rate.per_ms:
                queue = replace(queue, rate_started_at=now, rate_used=0)
            effects.use_rate(queue)
    longest = job.terms.attempt_ms_max
    if longest is None:
        longest = policy.attempt_ms_max
    leased = leased_to(job, command.holder, token, command.connection, term_ms, longest, now)
    if job.lease is not None:
        sentence = "the lease expired and another worker claimed the job"
        leased = replace(
            leased,
            attempts=ended_attempts(job, job.lease, now, EndReason.EXPIRED, sentence),
            attempts_used=job.attempts_used + 1,
            progress=None,
        )
        effects.notify_holder(job, job.lease)
    effects.enter(leased, job.entered_at, policy=policy)
    return leased


def leased_to(
    job: Job,
    holder: Holder,
    token: str,
    connection: str | None,
    term_ms: int | None,
    longest_ms: int | None,
    now: int,
) -> Job:
    """The job with a new lease for this holder."""
    number = job.lease_number + 1
    return replace(
        job,
        state=CLAIMED_FROM[job.state],
        entered_at=now,
        lease=new_lease(number, holder, token, connection, term_ms, longest_ms, now),
        lease_number=number,
        reason=_NO_REASON,
    )


def new_lease(
    number: int,
    holder: Holder,
    token: str,
    connection: str | None,
    term_ms: int | None,
    longest_ms: int | None,
    now: int,
) -> Lease:
    """A lease that begins now."""
    return Lease(
        token,
        number,
        holder,
        now,
        term_ms,
        now + term_ms if term_ms is not None else None,
        now + longest_ms if longest_ms else None,
        connection,
    )


def term_ms_of(command: Claim, job: Job | PlainReady, policy: QueuePolicy) -> int | None:
    """Rule 1: the claim sets the term, since only the worker's protocol knows whether it can renew.

    A claim may ask for the term of the job or the queue; only a queue can force one.
    """
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
