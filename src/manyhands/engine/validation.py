"""Checks of input: each function returns a refusal, or None."""

import math
from collections.abc import Mapping

from manyhands.engine.effects import Effects
from manyhands.model import limits
from manyhands.model.commands import NewJob
from manyhands.model.identity import is_job_id
from manyhands.model.policy import QueuePolicy, Terms
from manyhands.model.replies import Refusal, Why


def bad_queue(effects: Effects, name: str) -> Refusal | None:
    """An existing queue has a valid name; a new one is checked and counted."""
    return None if effects.queue(name) is not None else bad_new_queue(effects, name)


def bad_new_queue(effects: Effects, name: str) -> Refusal | None:
    """Refuses a name that cannot be shown, or one queue too many."""
    sentence = bad_name_sentence(name, limits.QUEUE_NAME_BYTES_MAX)
    if sentence is not None:
        return Refusal(Why.BAD_QUEUE_NAME, f"the queue's name {sentence}")
    if not name.strip("."):
        return Refusal(Why.BAD_QUEUE_NAME, "the queue's name consists of dots only")
    count = effects.view.queues_count()
    if effects.settings is not None:
        count += len(effects.settings.queues)  # of earlier items of the same command
    if count >= limits.QUEUES_COUNT_MAX:
        sentence = f"there are {limits.QUEUES_COUNT_MAX} queues already"
        return Refusal(Why.TOO_MANY_QUEUES, sentence)
    return None


def bad_name_sentence(name: str, bytes_max: int) -> str | None:
    """What is wrong with a name that is shown in tables."""
    if not name:
        return "is empty"
    if len(name) > bytes_max:
        return f"is longer than {bytes_max} bytes"
    if name.isascii():
        return None if name.isprintable() else "has control characters"
    try:
        raw = name.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(raw) > bytes_max:
        return f"is longer than {bytes_max} bytes"
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name):
        return "has control characters"
    return None


def bad_job_name(name: str) -> Refusal | None:
    """A job's name is a foreign key: anything that can be stored is valid, within its bound."""
    try:
        if 0 < len(name.encode("utf-8")) <= limits.NAME_BYTES_MAX:
            return None
    except UnicodeEncodeError:
        return Refusal(Why.BAD_NAME, "the name is not valid Unicode")
    return Refusal(Why.BAD_NAME, f"a name has 1 to {limits.NAME_BYTES_MAX} bytes")


def bad_payload(payload: bytes | None) -> Refusal | None:
    """Refuses a payload that is too large."""
    if payload is not None and len(payload) > limits.PAYLOAD_BYTES_MAX:
        sentence = f"{len(payload)} bytes are more than the {limits.PAYLOAD_BYTES_MAX} allowed"
        return Refusal(Why.PAYLOAD_TOO_LARGE, sentence)
    return None


def bad_priority(priority: float) -> Refusal | None:
    """Refuses a priority that is not finite or too large."""
    if not math.isfinite(priority) or abs(priority) > limits.PRIORITY_MAX:
        sentence = f"the priority must be a number between ±{limits.PRIORITY_MAX:g}"
        return Refusal(Why.BAD_PRIORITY, sentence)
    return None


def bad_delay(delay_ms: int) -> Refusal | None:
    """Refuses a delay that is negative or beyond a hundred years."""
    if not 0 <= delay_ms <= limits.TIME_MS_MAX:
        return Refusal(Why.BAD_TIME, "the delay must be between 0 and a hundred years")
    return None


def bad_instant(instant: int | None, now: int, what: str) -> Refusal | None:
    """Refuses an instant before the epoch, or more than a hundred years ahead."""
    if instant is not None and not 0 <= instant <= now + limits.TIME_MS_MAX:
        return Refusal(Why.BAD_TIME, f"the {what} must lie between 1970 and a hundred years ahead")
    return None


def bad_tags(tags: tuple[str, ...]) -> Refusal | None:
    """Refuses too many tags, or one that cannot be shown."""
    if len(tags) > limits.TAGS_COUNT_MAX:
        return Refusal(Why.BAD_TAG, f"a job may have at most {limits.TAGS_COUNT_MAX} tags")
    for tag in tags:
        sentence = bad_name_sentence(tag, limits.TAG_BYTES_MAX)
        if sentence is not None:
            return Refusal(Why.BAD_TAG, f"a tag {sentence}")
    return None


def bad_limits(names: tuple[str, ...]) -> Refusal | None:
    """Refuses too many named limits, or one that cannot be shown."""
    if len(names) > limits.NAMED_LIMITS_COUNT_MAX:
        sentence = f"a job may name at most {limits.NAMED_LIMITS_COUNT_MAX} limits"
        return Refusal(Why.BAD_LIMIT, sentence)
    for name in names:
        wrong = bad_name_sentence(name, limits.QUEUE_NAME_BYTES_MAX)
        if wrong is not None:
            return Refusal(Why.BAD_LIMIT, f"a limit's name {wrong}")
    return None


def bad_headers(headers: Mapping[str, str] | None) -> Refusal | None:
    """Refuses headers without a name, or that are too large together."""
    size = 0
    for name, value in (headers or {}).items():
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            return Refusal(Why.BAD_HEADER, "a header is not valid Unicode")
        sentence = bad_name_sentence(name, limits.HEADERS_BYTES_MAX)
        if sentence is not None:
            return Refusal(Why.BAD_HEADER, f"the name of a header {sentence}")
    if size > limits.HEADERS_BYTES_MAX:
        sentence = f"the headers of a job have at most {limits.HEADERS_BYTES_MAX} bytes together"
        return Refusal(Why.BAD_HEADER, sentence)
    return None


def bad_durations(policy: QueuePolicy | Terms) -> str | None:
    """What is wrong with the numbers that terms and policies share."""
    backoff = policy.backoff
    if policy.attempts_max is not None and not (
        policy.attempts_max == -1 or 1 <= policy.attempts_max <= limits.ATTEMPTS_MAX
    ):
        return f"attempts_max must be -1 or between 1 and {limits.ATTEMPTS_MAX}"
    for field in ("lease_ms", "attempt_ms_max"):
        duration = getattr(policy, field)
        if duration is not None and not 0 <= duration <= limits.TIME_MS_MAX:
            return f"{field} must be between 0 and a hundred years"
    if backoff is not None and not (
        0 <= backoff.first_ms <= backoff.ms_max <= limits.TIME_MS_MAX
        and 1.0 <= backoff.factor <= 1000.0
        and 0.0 <= backoff.jitter <= 1.0
    ):
        return "a backoff needs 0 <= first_ms <= ms_max, factor from 1 to 1000, jitter from 0 to 1"
    return None


def bad_new_job(effects: Effects, item: NewJob) -> Refusal | None:
    """Checks everything about a submitted job, except its queue, that does not depend on other
    jobs.
    """
    refusal = bad_simple_job(item)
    if refusal is not None:
        return refusal
    if item.delay_ms and (refusal := bad_delay(item.delay_ms)) is not None:
        return refusal
    if item.run_at is not None or item.deadline_at is not None:
        refusal = _bad_times(item, effects.now)
        if refusal is not None:
            return refusal
    if item.name is not None or item.metadata or item.tags or item.limits or item.headers:
        refusal = _bad_rarities(item)
        if refusal is not None:
            return refusal
    return bad_terms(item.terms)


def bad_simple_job(item: NewJob) -> Refusal | None:
    """Checks what every job has, besides its terms."""
    if len(item.payload) > limits.PAYLOAD_BYTES_MAX:
        return bad_payload(item.payload)
    if item.priority != 0.0 and (refusal := bad_priority(item.priority)) is not None:
        return refusal
    if item.id_chosen and not is_job_id(item.job_id):
        sentence = f"a job id has 1 to {limits.JOB_ID_DIGITS_MAX} lower-case hexadecimal digits"
        return Refusal(Why.BAD_JOB_ID, sentence)
    key = item.unique_key
    if key is not None and not 0 < len(key) <= limits.UNIQUE_KEY_BYTES_MAX:
        sentence = f"a unique key has 1 to {limits.UNIQUE_KEY_BYTES_MAX} bytes"
        return Refusal(Why.BAD_UNIQUE_KEY, sentence)
    return None


def bad_terms(terms: Terms) -> Refusal | None:
    """Refuses terms with a number out of range."""
    if (
        terms.attempts_max is None
        and terms.lease_ms is None
        and terms.attempt_ms_max is None
        and terms.backoff is None
    ):
        return None
    wrong = bad_durations(terms)
    return Refusal(Why.BAD_POLICY, wrong) if wrong is not None else None


def _bad_times(item: NewJob, now: int) -> Refusal | None:
    refusal = bad_instant(item.run_at, now, "time to run") or bad_instant(
        item.deadline_at, now, "deadline"
    )
    if refusal is None and item.deadline_at is not None and item.deadline_at <= now:
        refusal = Refusal(Why.BAD_TIME, "the deadline has passed already")
    return refusal


def _bad_rarities(item: NewJob) -> Refusal | None:
    if item.name is not None:
        refusal = bad_job_name(item.name)
        if refusal is not None:
            return refusal
    if len(item.metadata) > limits.METADATA_BYTES_MAX:
        sentence = f"metadata may have at most {limits.METADATA_BYTES_MAX} bytes"
        return Refusal(Why.METADATA_TOO_LARGE, sentence)
    return bad_tags(item.tags) or bad_limits(item.limits) or bad_headers(item.headers)
