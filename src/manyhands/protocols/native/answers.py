"""Jobs, queues, events and settings as JSON.

Tokens are never shown, except to the worker that claims: whoever knows one may finish the job.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from manyhands.model.events import Event
from manyhands.model.history import DEPTH_STATES, Sample, quantile
from manyhands.model.identity import uid_of
from manyhands.model.job import Attempt, Failure, Holder, Job, Lease, Schedule, State
from manyhands.model.payload import as_json_value, guess_encoding
from manyhands.model.policy import NamedLimit, Queue, Terms
from manyhands.model.waiting import Reason
from manyhands.protocols.http_envelope import plain


def brief(job: Job) -> dict[str, Any]:
    """What somebody who changed a job wants to know."""
    found: dict[str, Any] = {"id": job.job_id, "queue": job.queue, "state": job.state.value}
    lease = job.lease
    if lease is not None:
        found["lease_number"] = lease.number
        if lease.expires_at is not None:
            found["expires_at"] = lease.expires_at
    if job.reason:
        found["reason"] = job.reason
    if job.run_at is not None and job.state is State.DELAYED:
        found["run_at"] = job.run_at
    return found


def claimed(job: Job) -> dict[str, Any]:
    """What a worker needs: the payload, and the token that proves the lease."""
    lease = job.lease
    assert lease is not None
    found: dict[str, Any] = {
        "id": job.job_id,
        "queue": job.queue,
        "token": lease.token,
        "lease_number": lease.number,
        "attempts_used": job.attempts_used,
        "priority": plain(job.priority),
        "encoding": job.encoding.value,
        "payload": as_json_value(job.payload, job.encoding),
    }
    if lease.expires_at is not None:
        found["expires_at"] = lease.expires_at
        found["term_ms"] = lease.term_ms
    if lease.cutoff_at is not None:
        found["cutoff_at"] = lease.cutoff_at
    if job.deadline_at is not None:
        found["deadline_at"] = job.deadline_at
    if job.tags:
        found["tags"] = job.tags
    return found


def listed(job: Job) -> dict[str, Any]:
    """A job in a listing: everything that is short."""
    found: dict[str, Any] = {
        "id": job.job_id,
        "queue": job.queue,
        "state": job.state.value,
        "priority": plain(job.priority),
        "submitted_at": job.submitted_at,
        "entered_at": job.entered_at,
        "finished_at": job.finished_at,
        "run_at": job.run_at,
        "deadline_at": job.deadline_at,
        "attempts_used": job.attempts_used,
        "incarnation": job.incarnation,
        "tags": job.tags,
        "payload_bytes": len(job.payload),
        "origin": {"realm": job.origin.realm, "name": job.origin.name},
        "lease": _lease(job.lease),
        "failure": _failure(job.failure),
        "reason": job.reason or None,
    }
    if job.name is not None:
        found["name"] = job.name
    if job.progress is not None:
        progress = job.progress
        found["progress"] = {
            "numerator": progress.numerator,
            "denominator": progress.denominator,
            "seconds_left": progress.seconds_left,
            "reported_at": progress.reported_at,
        }
    return found


def whole(job: Job, reasons: Iterable[Reason] = ()) -> dict[str, Any]:
    """Everything about a job, but tokens; and why it waits, if it does."""
    return {
        **listed(job),
        "waits": [_reason(reason) for reason in reasons],
        "uid": uid_of(job.job_id),
        "namespace": job.namespace,
        "name": job.name,
        "unique_key": bytes_value(job.unique_key),
        "limits": job.limits,
        "depends_on": job.depends_on,
        "waits_for": job.waits_for,
        "lease_number": job.lease_number,
        "attempts": [_attempt(attempt) for attempt in job.attempts],
        "history": [
            {"at": entry.at, "what": entry.what, "detail": entry.detail} for entry in job.history
        ],
        "terms": _terms(job.terms),
        "partials_count": job.partials_count,
        "schedule": job.schedule,
        "origin": _origin(job),
        "encoding": job.encoding.value,
        "payload": as_json_value(job.payload, job.encoding),
        "result_encoding": job.result_encoding.value,
        "result": None if job.result is None else as_json_value(job.result, job.result_encoding),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "what": reason.what.value,
        "sentence": reason.sentence,
        "until_at": reason.until_at,
        "name": reason.name or None,
        "ids": reason.job_ids,
        "count": reason.count,
    }


def _origin(job: Job) -> dict[str, str]:
    origin = job.origin
    return {"realm": origin.realm, "name": origin.name, "address": origin.address}


def _terms(terms: Terms) -> dict[str, Any]:
    found = msgspec.to_builtins(terms)
    found.pop("defaults", None)
    return dict(found)


def _holder(holder: Holder) -> dict[str, str | None]:
    return {"realm": holder.realm, "name": holder.name, "address": holder.address}


def _lease(lease: Lease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {
        "number": lease.number,
        "holder": _holder(lease.holder),
        "claimed_at": lease.claimed_at,
        "expires_at": lease.expires_at,
        "cutoff_at": lease.cutoff_at,
        "lapsed": lease.lapsed,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "holder": _holder(attempt.holder),
        "claimed_at": attempt.claimed_at,
        "ended_at": attempt.ended_at,
        "reason": attempt.reason.value,
        "failure": attempt.failure or None,
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    found: dict[str, Any] = {"code": failure.code, "message": failure.message}
    if failure.payload:
        found["payload"] = bytes_value(failure.payload)
    return found


def bytes_value(data: bytes | None) -> Any:  # noqa: ANN401 - any JSON value
    """Bytes that nobody said anything about: a string if they are one, else base64."""
    return None if data is None else as_json_value(data, guess_encoding(data))


def partial(number: int, at: int, payload: bytes, *, warning: bool) -> dict[str, Any]:
    """A piece of a result."""
    return {"number": number, "at": at, "warning": warning, "payload": bytes_value(payload)}


def queue(
    settings: Queue, counts: dict[State, int], oldest_ready_at: int | None, now: int
) -> dict[str, Any]:
    """A queue: what is in it, and what was set for it."""
    age = None if oldest_ready_at is None else max(0, now - oldest_ready_at)
    return {
        "name": settings.name,
        "paused": settings.paused,
        "counts": {state.value: counts[state] for state in State},
        "oldest_ready_age_ms": age,
        "policy": msgspec.to_builtins(settings.policy),
    }


def worker(holder: Holder, jobs: list[Job], leases_count: int) -> dict[str, Any]:
    """Somebody who holds leases, with some of what it holds."""
    return {
        **_holder(holder),
        "leases_count": leases_count,
        "leases": [
            {
                "id": job.job_id,
                "queue": job.queue,
                "claimed_at": job.lease.claimed_at,
                "expires_at": job.lease.expires_at,
                "lapsed": job.lease.lapsed,
            }
            for job in jobs
            if job.lease is not None
        ],
    }


def event(seq: int, happened: Event) -> dict[str, Any]:
    """A change of state."""
    holder = happened.holder
    return {
        "seq": seq,
        "at": happened.at,
        "state": happened.state.value,
        "id": happened.job_id,
        "queue": happened.queue,
        "reason": happened.reason or None,
        "incarnation": happened.incarnation,
        "lease_number": happened.lease_number,
        "attempts_used": happened.attempts_used,
        "attempts_max": happened.attempts_max,
        "holder": _holder(holder) if holder is not None else None,
        "expires_at": happened.expires_at,
        "priority": plain(happened.priority),
        "submitted_at": happened.submitted_at,
        "deadline_at": happened.deadline_at,
        "realm": happened.origin.realm,
        "lasted_ms": happened.lasted_ms,
    }


def limit(named: NamedLimit, used: int) -> dict[str, Any]:
    """A named limit, and how much of it is taken."""
    return {"name": named.name, "concurrency_max": named.concurrency_max, "used": used}


def schedule(row: Schedule) -> dict[str, Any]:
    """A schedule, its template included."""
    return {
        "id": row.schedule_id,
        "queue": row.queue,
        "interval_ms": row.interval_ms,
        "cron": row.cron,
        "time_zone": row.time_zone,
        "next_at": row.next_at,
        "backlog_max": row.backlog_max,
        "paused": row.paused,
        "unique": row.unique,
        "fired_count": row.fired_count,
        "last_job_id": row.last_job_id,
        "priority": plain(row.priority),
        "tags": row.tags,
        "limits": row.limits,
        "terms": _terms(row.terms),
        "encoding": row.encoding.value,
        "payload": as_json_value(row.payload, row.encoding),
    }


def sample(at: int, found: Sample) -> dict[str, Any]:
    """What happened in one step of a history."""
    return {
        "at": at,
        "submitted": found.submitted,
        "started": found.started,
        "completed": found.completed,
        "failed": found.failed,
        "failed_attempts": found.failed_attempts,
        "lost": found.lost,
        "cancelled": found.cancelled,
        "wait_ms": _durations(found.wait, found.wait_ms),
        "run_ms": _durations(found.run, found.run_ms),
        "depth": {
            state.value: count for state, count in zip(DEPTH_STATES, found.depth, strict=False)
        }
        or None,
        "queues_left_out": found.left_out,
    }


def _durations(counts: list[int], total_ms: int) -> dict[str, float] | None:
    """None: there were none."""
    count = sum(counts)
    if not count:
        return None
    return {
        "count": count,
        "mean": round(total_ms / count, 1),
        "p50": round(quantile(counts, 0.5) or 0.0, 1),
        "p95": round(quantile(counts, 0.95) or 0.0, 1),
    }
