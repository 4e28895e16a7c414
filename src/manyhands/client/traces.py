"""Spans of submits, where OpenTelemetry is installed (P66)."""

import functools
import importlib
import importlib.util
from typing import Any, Final

_NAME: Final = "manyhands"


@functools.cache
def is_installed() -> bool:
    """Whether ``opentelemetry-api`` can be imported."""
    return importlib.util.find_spec("opentelemetry") is not None


def headers_of(task: str, queue: str, job_id: str) -> dict[str, str]:
    """Records that a job is submitted, and gives the headers by which its worker goes on with the
    trace; none if nobody records.
    """
    # An extra, whose types may not be there.
    trace: Any = importlib.import_module("opentelemetry.trace")
    inject = importlib.import_module("opentelemetry.propagate").inject
    attributes = {
        "messaging.system": "manyhands",
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
        "manyhands.task": task,
    }
    headers: dict[str, str] = {}
    with trace.get_tracer(_NAME).start_as_current_span(
        f"{task} create", kind=trace.SpanKind.PRODUCER, attributes=attributes
    ):
        inject(headers)
    return headers
