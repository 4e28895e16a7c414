"""Log records of a worker: every one made inside a job names it (P65)."""

import json
import logging
import sys
from typing import Any, Final

from manyhands.client.job import current, send_records

FIELDS: Final = ("job_id", "task", "queue", "attempt")
_EXTRA: Final = (*FIELDS, "outcome", "seconds")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FORMATS: Final = ("text", "json")


def name_jobs_in_records() -> None:
    """Has all records of this process carry the job that they were made in."""
    make = logging.getLogRecordFactory()
    if getattr(make, "names_jobs", False):
        return

    def make_with_job(*args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401
        record = make(*args, **kwargs)
        job = current.get(None)
        if job is not None:
            record.job_id = job.id
            record.task = job.task
            record.queue = job.queue
            record.attempt = job.attempt
        return record

    make_with_job.names_jobs = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_with_job)


class _TextFormatter(logging.Formatter):
    """A line, with the job at its end if it was made in one."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if hasattr(record, "outcome") or not hasattr(record, "job_id"):
            return text
        first, *rest = text.split("\n", 1)
        return "\n".join([f"{first} [{record.task} {record.job_id}]", *rest])  # type: ignore[attr-defined]


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _EXTRA:
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def write_records(log_format: str, level: str) -> None:
    """Writes records to standard error, unless the program has set that up by itself."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter(_TEXT))
        root.addHandler(handler)
        root.setLevel(level.upper())
    name_jobs_in_records()
    send_records()
