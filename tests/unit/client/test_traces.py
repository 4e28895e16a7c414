"""Spans of submits (P66)."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from manyhands import App
from manyhands.client import traces


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def item_of(**options) -> tuple:
    """A job as it would be sent."""

    @App("http://127.0.0.1:1").task(**options)
    def add(a: int) -> int:
        return a

    return add.prepared((1,), {})[0]


def test_p66_a_submit_is_a_span_that_the_job_carries_on(spans):
    item = item_of()

    (span,) = spans.get_finished_spans()
    assert span.kind is trace.SpanKind.PRODUCER
    assert span.attributes["messaging.message.id"] == item[0]
    trace_id, span_id = span.context.trace_id, span.context.span_id
    assert item[5]["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")


def test_p66_a_trace_that_the_caller_gives_is_kept(spans):
    given = f"00-{'1' * 32}-{'2' * 16}-01"

    assert item_of(headers={"traceparent": given})[5] == {"traceparent": given}


def test_p66_where_nobody_records_there_are_no_headers():
    assert item_of()[5] is None


def test_p66_without_opentelemetry_nothing_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    traces.is_installed.cache_clear()
    try:
        assert item_of()[5] is None
    finally:
        traces.is_installed.cache_clear()


def test_p66_a_trace_of_the_caller_is_passed_on_even_if_nobody_records_here():
    parent = trace.NonRecordingSpan(
        trace.SpanContext(int("1" * 32, 16), int("2" * 16, 16), is_remote=False, trace_flags=1)
    )
    with trace.use_span(parent):
        assert item_of()[5] == {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
