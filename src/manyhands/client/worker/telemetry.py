"""Spans for runs of jobs, where OpenTelemetry is installed (P66)."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, Final

from manyhands.client.job import current_job

_NAME: Final = "manyhands"


@contextlib.contextmanager
def span() -> Iterator[None]:
    """The first attempt belongs to the submitter's trace; later ones are traces of their own, with
    a link to it.
    """
    # An extra, whose types may not be there.
    trace: Any = importlib.import_module("opentelemetry.trace")
    extract = importlib.import_module("opentelemetry.propagate").extract
    job = current_job()
    parent = extract(dict(job.headers))
    origin = trace.get_current_span(parent).get_span_context()
    links = []
    if job.attempt > 1:
        parent = None
        links = [trace.Link(origin)] if origin.is_valid else []
    attributes = {
        "messaging.system": "manyhands",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "manyhands.task": job.task,
        "manyhands.attempt": job.attempt,
    }
    with trace.get_tracer(_NAME).start_as_current_span(
        f"{job.task} process",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
    ):
        yield
