"""Spans of submits, where OpenTelemetry is installed (P66)."""

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

_NAME: Final = "manyhands"


@functools.cache
def is_installed() -> bool:
    """Whether ``opentelemetry-api`` can be imported."""
    return importlib.util.find_spec("opentelemetry") is not None


@functools.cache
def _module(name: str) -> Any:  # noqa: ANN401 - an extra, whose types may not be there
    return importlib.import_module(f"opentelemetry.{name}")


def has_provider() -> bool:
    """Whether spans go anywhere. The API alone, which other packages bring along, records none."""
    if not is_installed():
        return False
    trace = _module("trace")
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def is_needed() -> bool:
    """Whether a submit made here has anything to record or to pass on."""
    return is_installed() and (has_provider() or bool(_module("context").get_current()))


def is_carried(headers: Mapping[str, str]) -> bool:
    """Whether a job's headers have anything to go on with."""
    return is_installed() and any(
        name in headers for name in _module("propagate").get_global_textmap().fields
    )


def headers_of(task: str, queue: str, job_id: str) -> dict[str, str]:
    """Records that a job is submitted, and gives the headers by which its worker goes on with the
    trace; none if nobody records.
    """
    trace = _module("trace")
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
        _module("propagate").inject(headers)
    return headers
