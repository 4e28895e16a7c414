"""Spans of jobs (P66)."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from manyhands.client.job import Job, current
from manyhands.client.worker import telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def run_attempt(attempt: int, **headers: str) -> None:
    job = Job("id", "mail", "queue", attempt, headers, None)  # type: ignore[arg-type]
    token = current.set(job)
    try:
        (around,) = telemetry.arounds()
        with around():
            assert trace.get_current_span().is_recording()
    finally:
        current.reset(token)


def test_p66_the_first_attempt_is_a_child_of_its_submitter_s_span(spans):
    run_attempt(1, traceparent=PARENT)
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.attributes["messaging.message.id"] == "id"
    assert span.kind is trace.SpanKind.CONSUMER


def test_p66_later_attempts_are_traces_of_their_own_with_a_link(spans):
    run_attempt(2, traceparent=PARENT)
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" != TRACE
    assert f"{span.links[0].context.trace_id:032x}" == TRACE


def test_p66_a_job_without_a_trace_begins_one(spans):
    run_attempt(1)
    (span,) = spans.get_finished_spans()
    assert span.parent is None
    assert not span.links


def test_p66_without_opentelemetry_nothing_is_put_around_jobs(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert telemetry.arounds() == []
