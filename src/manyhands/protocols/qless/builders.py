"""Jobs, queues and workers as this API shows them. Durations go out in seconds."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from manyhands.model.identity import uid_of
from manyhands.model.job import (
    SUBMITTED,
    SUBMITTED_AGAIN,
    Attempt,
    EndReason,
    Failure,
    Job,
    Lease,
    State,
)
from manyhands.model.payload import Encoding, as_json_value
from manyhands.model.policy import Queue
from manyhands.model.reasons import LOST_CODE, in_words
from manyhands.protocols.qless import answers
from manyhands.protocols.qless.identifiers import shown_id
from manyhands.protocols.qless.items import out_of_retries
from manyhands.protocols.qless.refusals import STATES
from manyhands.web.envelope import plain

# A lock that needs no renewal still needs a number in the answer: one year.
_NEVER_SECONDS: Final = 365 * 24 * 3600

_PUTS: Final = (SUBMITTED, SUBMITTED_AGAIN)
_ENDS: Final[dict[EndReason, str]] = {
    EndReason.COMPLETED: "done",
    EndReason.FAILED: "failed",
    EndReason.RELEASED: "released",
    EndReason.GOODBYE: "released",
    EndReason.LOST: "lost",
    EndReason.EXPIRED: "timed-out",
    EndReason.CUTOFF: "cut-off",
    EndReason.CANCELLED: "cancelled",
    EndReason.MOVED: "moved",
}


def _seconds(ms: float) -> int:
    return max(0, int(ms // 1000))


def _instant(at: int | None) -> float | None:
    return None if at is None else at / 1000


def heartbeat_seconds(lease: Lease) -> int | None:
    """Seconds from the last renewal to the next due one, or None if none is due."""
    due_ms = lease.term_ms
    if lease.cutoff_at is not None:
        renewed_at = lease.claimed_at
        if lease.expires_at is not None and lease.term_ms is not None:
            renewed_at = lease.expires_at - lease.term_ms
        left_ms = lease.cutoff_at - renewed_at
        due_ms = left_ms if due_ms is None else min(due_ms, left_ms)
    return None if due_ms is None else _seconds(due_ms)


def _seconds_left(lease: Lease, now: int) -> int | None:
    """Seconds until another worker may get the job."""
    ends = [at for at in (lease.expires_at, lease.cutoff_at) if at is not None]
    return _seconds(min(ends) - now) if ends else None


def renewed(job: Job) -> int:
    """The answer to a heartbeat."""
    assert job.lease is not None
    found = heartbeat_seconds(job.lease)
    return _NEVER_SECONDS if found is None else found


def taken(job: Job, attempts_max: int) -> answers.Item:
    """An item of work, as handed to its worker."""
    lease = job.lease
    assert lease is not None
    found: answers.Item = {
        "id": shown_id(job),
        "uid": uid_of(job.job_id),
        "queue": job.queue,
        "meta": as_json_value(job.payload, job.encoding),
        "lease": lease.token,
        "attempt": job.attempts_used + 1,
        "priority": plain(job.priority),
    }
    if lease.term_ms is not None:
        found["heartbeat"] = heartbeat_seconds(lease)
        found["expires"] = _instant(lease.expires_at)
    if lease.cutoff_at is not None:
        found["cutoff"] = _seconds(lease.cutoff_at - lease.claimed_at)
    if job.tags:
        found["tags"] = job.tags
    if attempts_max != -1:
        found["retries_left"] = max(0, attempts_max - job.attempts_used - 1)
    return found


def detail_of(job: Job) -> str | None:
    """What this API's three states leave out."""
    if job.state is State.DELAYED:
        return "scheduled"
    if job.state is State.BLOCKED:
        return "blocked"
    if job.state is State.READY and job.lease is not None:
        return "stalled"
    if job.state in (State.FAILED, State.CANCELLED):
        return in_words(job.reason, job.detail) or None
    return None


def listed(job: Job) -> answers.ListedJob:
    """A job in a list."""
    finished = job.state is State.COMPLETED
    lease = job.lease
    return {
        "id": shown_id(job),
        "state": STATES[job.state],
        "detail": detail_of(job),
        "queue": None if finished else job.queue,
        "host": _host(lease) if lease is not None and not lease.lapsed else None,
        "priority": plain(job.priority),
        "tags": job.tags,
        "failure": _failure(job),
        "created": job.submitted_at / 1000,
        "updated": job.entered_at / 1000,
        "protocol": job.origin.realm,
    }


class Edges(NamedTuple):
    """What a job depends on and what depends on it; of the dependants perhaps only the first."""

    depends: list[str]
    dependents: list[str]
    dependents_count: int


def whole(job: Job, attempts_max: int, edges: Edges, now: int) -> answers.Job:
    """Everything about a job except its lease's token."""
    lease = job.lease
    left = _seconds_left(lease, now) if lease is not None and not lease.lapsed else None
    unlimited = attempts_max == -1
    progress = job.progress
    return {
        **listed(job),
        "uid": uid_of(job.job_id),
        "failure": _whole_failure(job),
        "meta": as_json_value(job.payload, job.encoding),
        "heartbeat": left,
        "retries": -1 if unlimited else attempts_max - 1,
        "retries_left": -1 if unlimited else max(0, attempts_max - job.attempts_used - 1),
        "attempt": job.attempts_used + (job.state in (State.LEASED, State.COMPLETED)),
        "depends": edges.depends,
        "dependents": edges.dependents,
        "dependents_count": edges.dependents_count,
        "limits": job.limits,
        "progress": None
        if progress is None
        else {
            "numerator": progress.numerator,
            "denominator": progress.denominator,
            "seconds_left": progress.seconds_left,
        },
        "result": None if job.result is None else as_json_value(job.result, job.result_encoding),
        "due": _instant(job.run_at),
        "deadline": _instant(job.deadline_at),
        "recurring": job.schedule,
        "history": history(job),
    }


def _host(lease: Lease) -> str:
    return lease.holder.name or lease.holder.address


def _failure(job: Job) -> answers.Failure | None:
    failure = job.failure
    if failure is None:
        return None
    last = job.attempts[-1] if job.attempts else None
    return {
        "group": group_of(job, failure),
        "message": failure.message,
        "when": _instant(job.finished_at or job.entered_at),
        "host": _name_of(last) if last is not None else None,
    }


def _whole_failure(job: Job) -> answers.Failure | None:
    """The failure with the data its worker sent, unless the message already says it all."""
    found, failure = _failure(job), job.failure
    if found is None or failure is None or not failure.payload:
        return found
    if failure.payload != failure.message.encode("utf-8", "replace"):
        found["data"] = as_json_value(failure.payload, Encoding.BINARY)
    return found


def group_of(job: Job, failure: Failure) -> str:
    """The group of a failure; lost leases are grouped by queue."""
    return group_of_code(job.queue, failure.code)


def group_of_code(queue: str, code: str) -> str:
    """The group of all failures of a queue with this code."""
    return out_of_retries(queue) if code == LOST_CODE else code


def queue_of_group(group: str) -> str | None:
    """The queue of a group of lost leases, or None for any other group."""
    prefix = out_of_retries("")
    return group.removeprefix(prefix) if group.startswith(prefix) else None


def _name_of(attempt: Attempt) -> str:
    return attempt.holder.name or attempt.holder.address


def history(job: Job) -> list[answers.HistoryEntry]:
    """The job's history in order. Leases and changes keep their first and latest entries."""
    found: list[tuple[tuple[int, int, int], Any]] = []

    def note(at: int, rank: int, what: str, **more: str | None) -> None:
        """``rank`` orders entries of the same millisecond: changes come after one lease and before
        the next.
        """
        place = (at, rank, len(found))
        found.append((place, {"what": what, "when": _instant(at), **more}))

    if not any(entry.what in _PUTS for entry in job.history):
        note(job.submitted_at, 0, "put")
    for index, entry in enumerate(job.history):
        is_put = entry.what in _PUTS
        rank = 0 if is_put and index == 0 else 2
        detail = {"detail": entry.detail} if entry.detail else {}
        note(entry.at, rank, "put" if is_put else entry.what, **detail)
    for attempt in job.attempts:
        began, ended = attempt.claimed_at, attempt.ended_at
        note(began, 1 if began == ended else 3, "popped", host=_name_of(attempt))
        note(ended, 1, _ENDS[attempt.reason], host=_name_of(attempt))
    lease = job.lease
    if lease is not None:
        note(lease.claimed_at, 3, "popped", host=_host(lease))
        if lease.lapsed and lease.expires_at is not None:
            note(lease.expires_at, 3, "timed-out", host=_host(lease))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def queue(
    settings: Queue,
    counts: Mapping[State, int],
    oldest_ready_at: int | None,
    beside: tuple[int, int, int],
    now: int,
) -> answers.Queue:
    """A queue; ``beside`` has its stalled jobs, workers and recurring jobs."""
    stalled, workers, recurring = beside
    age = None if oldest_ready_at is None else max(0, now - oldest_ready_at) / 1000
    return {
        "name": settings.name,
        "waiting": counts[State.READY],
        "pending": counts[State.LEASED],
        "scheduled": counts[State.DELAYED],
        "blocked": counts[State.BLOCKED],
        "stalled": stalled,
        "failed": counts[State.FAILED],
        "recurring": recurring,
        "paused": settings.paused,
        "workers": workers,
        "oldest_waiting": age,
    }


def partial(number: int, at: int, payload: bytes, *, warning: bool) -> answers.Partial:
    """A partial result. Payloads from other protocols are bytes, not JSON."""
    try:
        msgspec.json.decode(payload)
        encoding = Encoding.JSON
    except msgspec.DecodeError:
        encoding = Encoding.BINARY
    data = as_json_value(payload, encoding)
    return {"number": number, "when": at / 1000, "warning": warning, "data": data}
