"""The lines of an export: a header, then queues, limits, schedules and jobs, one JSON object each.

Checklist for a change that older versions cannot read: raise ``FORMAT`` - read the old one too.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from manyhands.model.job import Job, Schedule
from manyhands.model.payload import Encoding
from manyhands.model.policy import NamedLimit, Queue
from manyhands.store.records.rows import with_reason
from manyhands.store.sqlite.renames import renamed_job

FORMAT: Final = 1


class Header(Struct, tag="header", tag_field="kind"):
    """Always the first line."""

    format: int
    version: str
    exported_at: int


class QueueLine(Struct, tag="queue", tag_field="kind"):
    """A queue and its policy."""

    queue: Queue


class LimitLine(Struct, tag="limit", tag_field="kind"):
    """A named limit."""

    limit: NamedLimit


class ScheduleLine(Struct, tag="schedule", tag_field="kind"):
    """A schedule and its template."""

    schedule: Schedule


class Content(Struct, omit_defaults=True):
    """A payload as text if it is text, otherwise as base64."""

    text: str | None = None
    base64: bytes | None = None

    def plain(self) -> bytes:
        """The bytes themselves."""
        return self.text.encode() if self.text is not None else self.base64 or b""


class Doom(Struct):
    """A pending cascade cancellation: not all dependants of the cancelled job are cancelled yet."""

    among: int  # the first this many jobs of the export: later ones are not affected
    reason: str


class JobLine(Struct, tag="job", tag_field="kind", omit_defaults=True):
    """A job in any state; long values are separate fields."""

    job: Job
    payload: Content
    result: Content | None = None
    doom: Doom | None = None
    begins_graph: bool = False  # the unfinished graph of its namespace

    def plain(self) -> Job:
        """The job to store; the new store assigns its position."""
        result = self.result.plain() if self.result is not None else None
        return replace(self.job, payload=self.payload.plain(), result=result, serial=0)


Line = Header | QueueLine | LimitLine | ScheduleLine | JobLine

encode: Final = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode


def decode(text: bytes) -> Line:
    """A line. Raises msgspec.MsgspecError."""
    line = _decode_older(text)
    return replace(line, job=renamed_job(line.job)) if isinstance(line, JobLine) else line


def _decode_older(text: bytes) -> Line:
    try:
        return _decode(text)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(text)
        if not isinstance(fields, dict) or not isinstance(fields.get("job"), dict):
            raise
        return _decode(encode({**fields, "job": with_reason(fields["job"])}))


def job_line(job: Job, doom: Doom | None = None, *, begins_graph: bool = False) -> JobLine:
    """A job as a line."""
    result = None if job.result is None else _content(job.result, job.result_encoding)
    bare = replace(job, payload=b"", result=None, serial=0)
    payload = _content(job.payload, job.encoding)
    return JobLine(bare, payload, result, doom, begins_graph)


def _content(data: bytes, encoding: Encoding) -> Content:
    if encoding is not Encoding.BINARY:
        try:
            return Content(text=data.decode())
        except UnicodeDecodeError:
            pass  # not what the submitter declared; base64 loses nothing
    return Content(base64=data)
