"""Answers of the native API, built from stored values.

Tokens are shown only to the worker that claims, since anyone who knows one may finish the job.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from manyhands.model.audit import AuditEntry
from manyhands.model.events import Event
from manyhands.model.history import Sample, quantile
from manyhands.model.identity import uid_of
from manyhands.model.job import Attempt, Failure, Holder, Job, Lease, Progress, Schedule, State
from manyhands.model.obstacles import Wait
from manyhands.model.payload import Encoding, as_json_value, guess_encoding
from manyhands.model.policy import NamedLimit, Queue, Terms
from manyhands.model.reasons import in_words
from manyhands.model.receipts import ReceiptItem
from manyhands.model.replies import Changed, Submitted
from manyhands.model.servers import ServerFacts
from manyhands.protocols.native import answers
from manyhands.web.envelope import plain


def submitted(reply: Submitted | ReceiptItem) -> answers.Submitted:
    """A job submitted now, or by an earlier request with the same key."""
    if isinstance(reply, Submitted):
        job = reply.job
        return answers.Submitted(
            job.job_id, uid_of(job.job_id), job.queue, job.state, reply.created
        )
    return answers.Submitted(
        reply.job_id, uid_of(reply.job_id), reply.queue, State(reply.state), reply.created
    )


def changed(reply: Changed) -> answers.Changed:
    """A job after a change."""
    return brief(reply.job, repeated=reply.repeated)


def brief(job: Job, *, repeated: bool = False) -> answers.Changed:
    """The summary of a job, for a peer that changed it."""
    lease = job.lease
    expires_at = None if lease is None else lease.expires_at
    run_at = job.run_at if job.state is State.DELAYED else None
    return answers.Changed(
        job.job_id,
        uid_of(job.job_id),
        job.queue,
        job.state,
        UNSET if lease is None else lease.number,
        UNSET if expires_at is None else expires_at,
        in_words(job.reason, job.detail) or UNSET,
        UNSET if run_at is None else run_at,
        repeated or UNSET,
    )


def claimed(job: Job) -> answers.Claimed:
    """What a worker needs: the payload and the token that proves the lease."""
    lease = job.lease
    assert lease is not None
    expires_at, cutoff_at, deadline_at = lease.expires_at, lease.cutoff_at, job.deadline_at
    return answers.Claimed(
        id=job.job_id,
        uid=uid_of(job.job_id),
        queue=job.queue,
        token=lease.token,
        lease_number=lease.number,
        attempts_used=job.attempts_used,
        priority=plain(job.priority),
        encoding=job.encoding,
        payload=as_json_value(job.payload, job.encoding),
        expires_at=UNSET if expires_at is None else expires_at,
        term_ms=UNSET if expires_at is None else lease.term_ms,
        cutoff_at=UNSET if cutoff_at is None else cutoff_at,
        deadline_at=UNSET if deadline_at is None else deadline_at,
        tags=job.tags or UNSET,
        headers=UNSET if job.headers is None else dict(job.headers),
    )


def _short(job: Job) -> dict[str, Any]:
    """The fields shared by a listed job and a whole one."""
    return {
        "id": job.job_id,
        "queue": job.queue,
        "state": job.state,
        "priority": plain(job.priority),
        "submitted_at": job.submitted_at,
        "entered_at": job.entered_at,
        "finished_at": job.finished_at,
        "run_at": job.run_at,
        "deadline_at": job.deadline_at,
        "attempts_used": job.attempts_used,
        "lease_number": job.lease_number,
        "incarnation": job.incarnation,
        "tags": job.tags,
        "payload_bytes": len(job.payload) + job.stored_bytes,
        "lease": _lease(job.lease),
        "failure": _failure(job.failure),
        "reason": in_words(job.reason, job.detail) or None,
        "progress": _progress(job.progress),
    }


def listed(job: Job) -> answers.ListedJob:
    """A job in a list."""
    return answers.ListedJob(
        **_short(job),
        name=UNSET if job.name is None else job.name,
        origin=answers.Origin(job.origin.realm, job.origin.name),
    )


def whole(job: Job, reasons: Iterable[Wait] = ()) -> answers.Job:
    """Everything about a job, and why it waits, if it does."""
    origin = job.origin
    return answers.Job(
        **_short(job),
        name=job.name,
        origin=answers.Origin(origin.realm, origin.name, origin.address),
        waits=[_wait(reason) for reason in reasons],
        uid=uid_of(job.job_id),
        namespace=job.namespace,
        unique_key=bytes_value(job.unique_key),
        limits=job.limits,
        depends_on=job.depends_on,
        waits_for=job.waits_for,
        attempts=[_attempt(attempt) for attempt in job.attempts],
        history=[answers.HistoryEntry(entry.at, entry.what, entry.detail) for entry in job.history],
        terms=_terms(job.terms),
        partials_count=job.partials_count,
        schedule=job.schedule,
        headers=dict(job.headers or {}),
        encoding=job.encoding,
        payload=as_json_value(job.payload, job.encoding),
        result_encoding=job.result_encoding,
        result=None if job.result is None else as_json_value(job.result, job.result_encoding),
    )


def _wait(reason: Wait) -> answers.Wait:
    return answers.Wait(
        reason.what,
        reason.sentence,
        reason.until_at,
        reason.name or None,
        reason.job_ids,
        reason.count,
    )


def _terms(terms: Terms) -> answers.Terms:
    return answers.Terms(
        terms.attempts_max,
        terms.backoff,
        terms.lease_ms,
        terms.attempt_ms_max,
        terms.on_expiry,
        terms.reentry,
        terms.on_dependency_failure,
        terms.result_ms,
    )


def _holder(holder: Holder) -> answers.Holder:
    return answers.Holder(holder.realm, holder.name, holder.address)


def _lease(lease: Lease | None) -> answers.Lease | None:
    if lease is None:
        return None
    return answers.Lease(
        lease.number,
        _holder(lease.holder),
        lease.claimed_at,
        lease.expires_at,
        lease.cutoff_at,
        lease.lapsed,
    )


def _attempt(attempt: Attempt) -> answers.Attempt:
    return answers.Attempt(
        attempt.number,
        _holder(attempt.holder),
        attempt.claimed_at,
        attempt.ended_at,
        attempt.reason,
        attempt.failure or None,
    )


def _failure(failure: Failure | None) -> answers.Failure | None:
    if failure is None:
        return None
    if not failure.payload:
        return answers.Failure(failure.code, failure.message)
    encoding = failure.encoding
    if encoding is Encoding.BINARY:
        encoding = guess_encoding(failure.payload)
    payload = as_json_value(failure.payload, encoding)
    return answers.Failure(failure.code, failure.message, payload, encoding)


def _progress(progress: Progress | None) -> Any:  # noqa: ANN401 - the type, or unset
    if progress is None:
        return UNSET
    return answers.Progress(
        progress.numerator, progress.denominator, progress.seconds_left, progress.reported_at
    )


def bytes_value(data: bytes | None) -> Any:  # noqa: ANN401 - any JSON value
    """Bytes of unknown content: a string if they are UTF-8, otherwise base64."""
    return None if data is None else as_json_value(data, guess_encoding(data))


def partial(number: int, at: int, payload: bytes, *, warning: bool) -> answers.Partial:
    """A partial result."""
    return answers.Partial(number, at, warning, bytes_value(payload))


def queue(
    settings: Queue,
    counts: Mapping[State, int],
    oldest_ready_at: int | None,
    now: int,
    *,
    awaited: bool,
    retrying: int,
    polled: bool,
    waits: Sequence[Wait],
) -> answers.Queue:
    """A queue: its job counts and settings."""
    age = None if oldest_ready_at is None else max(0, now - oldest_ready_at)
    found = answers.Counts(**{state.value: counts[state] for state in State})
    return answers.Queue(
        settings.name,
        settings.paused,
        found,
        age,
        settings.policy,
        awaited,
        retrying,
        polled,
        [_wait(reason) for reason in waits],
    )


def worker(holder: Holder, jobs: list[Job], leases_count: int) -> answers.Worker:
    """A worker that holds leases, with some of them."""
    leases = [
        answers.HeldLease(
            held.job_id,
            held.queue,
            held.lease.claimed_at,
            held.lease.expires_at,
            held.lease.lapsed,
        )
        for held in jobs
        if held.lease is not None
    ]
    return answers.Worker(holder.realm, holder.name, holder.address, leases_count, leases)


def idle_worker(
    holder: Holder, awaits: Sequence[str] | None, seen_at: int | None, last_queue: str
) -> answers.Worker:
    """A worker that holds none."""
    return answers.Worker(
        holder.realm,
        holder.name,
        holder.address,
        0,
        [],
        awaits=None if awaits is None else list(awaits),
        seen_at=seen_at,
        last_queue=last_queue or None,
    )


def event(seq: int, happened: Event) -> answers.Event:
    """A change of state."""
    holder = happened.holder
    return answers.Event(
        seq,
        happened.at,
        happened.state,
        happened.job_id,
        happened.queue,
        in_words(happened.reason, happened.detail) or None,
        happened.incarnation,
        happened.lease_number,
        happened.attempts_used,
        happened.attempts_max,
        _holder(holder) if holder is not None else None,
        happened.expires_at,
        plain(happened.priority),
        happened.submitted_at,
        happened.deadline_at,
        happened.origin.realm,
        happened.lasted_ms,
    )


def server(row: ServerFacts) -> answers.Server:
    """A server among others."""
    links = tuple(answers.ServerLink(**asdict(link)) for link in row.links)
    return answers.Server(**{**asdict(row), "links": links})


def limit(named: NamedLimit, used: int) -> answers.Limit:
    """A named limit and how much of it is in use."""
    return answers.Limit(named.name, named.concurrency_max, used)


def schedule(row: Schedule) -> answers.Schedule:
    """A schedule, including its template."""
    return answers.Schedule(
        id=row.schedule_id,
        queue=row.queue,
        interval_ms=row.interval_ms,
        cron=row.cron,
        time_zone=row.time_zone,
        next_at=row.next_at,
        backlog_max=row.backlog_max,
        paused=row.paused,
        unique=row.unique,
        fired_count=row.fired_count,
        last_job_id=row.last_job_id,
        priority=plain(row.priority),
        tags=row.tags,
        limits=row.limits,
        headers=dict(row.headers or {}),
        terms=_terms(row.terms),
        encoding=row.encoding,
        payload=as_json_value(row.payload, row.encoding),
    )


def sample(at: int, found: Sample) -> answers.Sample:
    """One step of a history."""
    return answers.Sample(
        at=at,
        submitted=found.submitted,
        started=found.started,
        completed=found.completed,
        failed=found.failed,
        failed_attempts=found.failed_attempts,
        lost=found.lost,
        cancelled=found.cancelled,
        wait_ms=_durations(found.wait, found.wait_ms),
        run_ms=_durations(found.run, found.run_ms),
        depth=answers.Depth(*found.depth) if found.depth else None,
        queues_left_out=found.left_out,
    )


def _durations(counts: list[int], total_ms: int) -> answers.Durations | None:
    """A summary of durations, or None without any."""
    count = sum(counts)
    if not count:
        return None
    return answers.Durations(
        count,
        round(total_ms / count, 1),
        round(quantile(counts, 0.5) or 0.0, 1),
        round(quantile(counts, 0.95) or 0.0, 1),
    )


def audit_entry(entry: AuditEntry) -> answers.AuditEntry:
    """One action of an operator."""
    return answers.AuditEntry(**asdict(entry))
