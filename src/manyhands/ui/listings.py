"""Jobs in a table: a page of a search, and each job in one line."""

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from manyhands.model.failures import headline
from manyhands.model.filter import Filter
from manyhands.model.job import Job, State
from manyhands.model.payload import Encoding
from manyhands.model.reasons import in_words
from manyhands.model.traces import telling_line
from manyhands.store.contract import SEARCH_SECONDS_MAX, Page, Reading
from manyhands.ui import words

ROWS: Final = 50
_PREVIEW_BYTES: Final = 240
_PREVIEW_LENGTH: Final = 110
_NOTE_LENGTH: Final = 140


async def find(store: Reading, wanted: Filter, seconds_max: float = SEARCH_SECONDS_MAX) -> Page:
    """A page of jobs with only the beginnings of their payloads."""
    brief = replace(wanted, payload_bytes=_PREVIEW_BYTES)
    return await asyncio.to_thread(store.search, brief, seconds_max)


def row(job: Job, now: int) -> dict[str, Any]:
    """One job, for the macro ``job_table``."""
    lease = job.lease
    return {
        "id": job.job_id,
        "name": job.name,
        "queue": job.queue,
        "state": job.state,
        "preview": preview(job.payload, job.encoding),
        "priority": job.priority,
        "attempts": job.lease_number,
        "tags": job.tags[:4],
        "submitted_at": job.submitted_at,
        "entered_at": job.entered_at,
        "realm": job.origin.realm,
        "holder": None if lease is None else lease.holder,
        "expires_at": None if lease is None else lease.expires_at,
        "stalled": lease is not None and (lease.lapsed or lease.in_grace),
        "progress": job.progress,
        "note": note(job, now),
        "failing": job.failure is not None,
    }


def preview(payload: bytes, encoding: Encoding) -> str:
    """The beginning of a payload in one line."""
    if not payload:
        return ""
    beginning = payload[:_PREVIEW_BYTES]
    try:
        # Only the last character can have been cut in two.
        text = beginning.decode("utf-8", "strict" if len(beginning) == len(payload) else "ignore")
    except UnicodeDecodeError:
        text = None
    if text is None or (encoding is Encoding.BINARY and "\0" in text):
        return beginning[:24].hex(" ")
    return words.visible(" ".join(text.split()))[:_PREVIEW_LENGTH]


def note(job: Job, now: int) -> str:
    """A note about a job where its state alone does not say enough."""
    text = ""
    if job.state is State.DELAYED and job.run_at is not None:
        text = f"{job.reason.value or 'due'} {words.ago(job.run_at, now)}"
        if job.failure is not None:  # what went wrong first: a line may be cut at its end
            text = f"{last_error(job)} · {text}"
    elif job.state is State.BLOCKED:
        text = f"waits for {words.plural(len(job.waits_for), 'job')}"
    elif job.failure is not None and job.state is State.FAILED:
        text = last_error(job)
    elif job.failure is not None:
        text = f"after {last_error(job)}"
    elif job.state in (State.CANCELLED, State.READY) and job.reason:
        text = in_words(job.reason, job.detail)
    return words.shown(text, _NOTE_LENGTH)


def last_error(job: Job) -> str:
    """The last failure of a job in one line, or "" if it has none."""
    if job.failure is None:
        return ""
    return headline(job.failure.code, telling_line(job.failure.message))
