"""The history of a job: its submission, each lease, operations on it, and its end."""

from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape
from msgspec import Struct

from manyhands.model.events import Event
from manyhands.model.failures import headline
from manyhands.model.job import (
    FINISHED,
    SUBMITTED,
    SUBMITTED_AGAIN,
    Attempt,
    EndReason,
    Holder,
    Job,
    State,
)
from manyhands.model.reasons import Reason, in_words
from manyhands.model.traces import telling_line
from manyhands.ui import words

# Shown by the leases themselves, or by the job's start and end.
_SHOWN_ELSEWHERE: Final = frozenset({State.LEASED, *FINISHED})
_BETWEEN_ATTEMPTS: Final = (Reason.NONE, Reason.RETRY)
_PLAIN_ENDS: Final = (EndReason.COMPLETED, EndReason.FAILED)
_STRIP_WIDTH: Final = 1_000
_SHARE_MIN: Final = 5.0
_SEGMENTS_MAX: Final = 200


class Entry(Struct, frozen=True):
    """Something that happened, or is still happening."""

    at: int
    kind: str  # a state, or "note"
    what: str
    detail: str = ""
    holder: Holder | None = None
    lasted_ms: int | None = None
    until_at: int | None = None  # the expected end, if it is still happening
    ended_at: int | None = None  # the end, if it took a while


class Stop(Struct, frozen=True):
    """A protocol that handled a job."""

    what: str
    realm: str
    who: str
    count: int = 1


def entries(job: Job, events: Iterable[Event], now: int) -> list[Entry]:
    """Oldest first."""
    again = any(entry.what == SUBMITTED_AGAIN for entry in job.history)
    word = SUBMITTED_AGAIN if again else SUBMITTED
    found = [Entry(job.submitted_at, "submitted", word.capitalize(), _origin(job))]
    found += [_attempt(attempt) for attempt in job.attempts]
    found += [
        Entry(entry.at, "note", entry.what.replace("_", " ").capitalize(), entry.detail)
        for entry in job.history
        if (entry.at, entry.what) != (job.submitted_at, word)
    ]
    seen = {(job.entered_at, job.state)}
    lease = job.lease
    claims = [attempt.claimed_at for attempt in job.attempts]
    if lease is not None:
        claims.append(lease.claimed_at)
    for event in events:
        if event.state in _SHOWN_ELSEWHERE or (event.at, event.state) in seen:
            continue
        # Between two attempts it waited, which the attempts say already.
        if event.reason in _BETWEEN_ATTEMPTS and claims and claims[0] < event.at <= claims[-1]:
            continue
        found.append(_entered(event.at, event.state, event.reason))
    if lease is not None:
        what = f"Attempt {lease.number}" + (" lapsed" if lease.lapsed else "")
        found.append(
            Entry(
                lease.claimed_at,
                State.LEASED.value,
                what,
                "still held" if not lease.lapsed else "its holder may still continue",
                lease.holder,
                now - lease.claimed_at,
                lease.expires_at,
            )
        )
    if job.state in FINISHED:
        detail = in_words(job.reason, job.detail)
        detail = detail if detail != job.state.value else ""
        if job.failure is not None and job.state is State.FAILED:
            detail = headline(job.failure.code, telling_line(job.failure.message))
        found.append(Entry(job.entered_at, job.state.value, job.state.capitalize(), detail))
    elif job.state is not State.LEASED:
        found.append(_entered(job.entered_at, job.state, job.reason, job.run_at))
    # In one millisecond a job can be submitted, become ready, be claimed and finish.
    found.sort(key=lambda entry: (entry.at, _rank(entry)))
    return found


def _rank(entry: Entry) -> int:
    """The order of entries at the same instant."""
    if entry.kind == "submitted":
        return 0
    if entry.kind == State.READY:
        return 1
    return 2 if entry.holder is not None else 3


def _entered(at: int, state: State, reason: Reason, run_at: int | None = None) -> Entry:
    until = run_at if state is State.DELAYED else None
    detail = reason.replace("_", " ")
    return Entry(at, state.value, state.capitalize(), detail, until_at=until)


def _attempt(attempt: Attempt) -> Entry:
    return Entry(
        attempt.claimed_at,
        attempt.reason.value if attempt.reason in _PLAIN_ENDS else "ended",
        f"Attempt {attempt.number} {attempt.reason}",
        attempt.failure.split("\n", 1)[0],
        attempt.holder,
        attempt.ended_at - attempt.claimed_at,
        ended_at=attempt.ended_at,
    )


def _origin(job: Job) -> str:
    who = job.origin.name or job.origin.address
    return f"by {who}" if who else ""


def trail(job: Job) -> list[Stop]:
    """The protocols that handled a job, in order."""
    origin = job.origin
    found = [Stop("submitted over", origin.realm, origin.name or origin.address)]
    holders = [attempt.holder for attempt in job.attempts]
    if job.lease is not None:
        holders.append(job.lease.holder)
    worked: dict[tuple[str, str], int] = {}
    for holder in holders:
        key = (holder.realm, holder.name or holder.address)
        worked[key] = worked.get(key, 0) + 1
    found += [Stop("worked over", realm, who, count) for (realm, who), count in worked.items()]
    return found


def strip(job: Job, now: int) -> Markup:
    """The life of a job as one bar: when it waited, when it ran."""
    start = min((job.submitted_at, *(entry.at for entry in job.history)))
    end = max(job.finished_at or now, start + 1)
    spans: list[tuple[int, int, str, str]] = []
    for attempt in job.attempts[-_SEGMENTS_MAX:]:
        kind = attempt.reason.value if attempt.reason in _PLAIN_ENDS else "cancelled"
        title = f"lease {attempt.number}, {attempt.reason}"
        spans.append((attempt.claimed_at, attempt.ended_at, kind, title))
    if job.lease is not None:
        spans.append((job.lease.claimed_at, now, "leased", f"lease {job.lease.number}"))
    waited = (end - start) - sum(min(to, end) - max(since, start) for since, to, _, _ in spans)
    parts = [_segment(start, end, *span) for span in spans]
    label = f"{words.duration(end - start)} in all, {words.duration(max(0, waited))} of it waiting"
    return Markup(  # noqa: S704 - made of our own words and numbers
        f'<svg class="strip" role="img" aria-label="{escape(label)}"'
        f' viewBox="0 0 {_STRIP_WIDTH} 14" preserveAspectRatio="none"><rect class="strip-wait"'
        f' x="0" y="3" width="{_STRIP_WIDTH}" height="8"/>{"".join(parts)}</svg>'
    )


def _segment(start: int, end: int, since: int, to: int, kind: str, title: str) -> str:
    scale = _STRIP_WIDTH / (end - start)
    width = max(_SHARE_MIN, (min(to, end) - max(since, start)) * scale)
    x = min(max(0.0, (since - start) * scale), _STRIP_WIDTH - width)
    text = f"{title}: {words.duration(to - since)}"
    return (
        f'<rect class="fill-{kind}" x="{x:.1f}" y="0" width="{width:.1f}" height="14">'
        f"<title>{escape(text)}</title></rect>"
    )


def newest_first(found: Sequence[Entry], count_max: int) -> tuple[list[Entry], int]:
    """The latest entries and the first one, and how many in between were left out."""
    if len(found) <= count_max:
        return list(reversed(found)), 0
    return [*reversed(found[-(count_max - 1) :]), found[0]], len(found) - count_max
