"""Spans of jobs (P66)."""

import asyncio
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from manyhands import App
from manyhands.client import notes, traces
from manyhands.client.job import Job, current
from manyhands.client.worker import telemetry
from manyhands.client.worker.execution import Execution
from manyhands.client.worker.run import Run
from manyhands.client.worker.tallies import COMPLETED

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def run_attempt(attempt: int, **headers: str) -> None:
    job = Job("id", "mail", "queue", attempt, headers, None)  # type: ignore[arg-type]
    token = current.set(job)
    try:
        with telemetry.span():
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


def around_jobs(*, is_traced: bool = False, **headers: str) -> int:
    """How many context managers are put around a job of an app that has none."""
    seen: list[bool] = []
    app = App("http://127.0.0.1:1")

    @app.task
    def look() -> None:
        seen.append(trace.get_current_span() is not trace.INVALID_SPAN)

    async def run() -> None:
        execution = Execution(asyncio.get_running_loop(), ())
        execution.is_traced = is_traced
        given = notes.Job("id", "look", "token", 1, 0, b"{}", "json", None, headers or None)
        assert execution.in_thread(Run(given, look, None, 0.0)).kind == COMPLETED  # type: ignore[arg-type]

    asyncio.run(run())
    return sum(seen)


def test_p66_without_opentelemetry_nothing_is_put_around_jobs(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    traces.is_installed.cache_clear()
    try:
        assert not traces.has_provider()
        assert not traces.is_carried({"traceparent": PARENT})
    finally:
        traces.is_installed.cache_clear()


def test_p66_the_api_alone_puts_nothing_around_jobs():
    """Other packages bring it along; it records nothing, so it need not cost anything."""
    assert not traces.has_provider()
    assert around_jobs(task="look") == 0


def test_p66_a_trace_is_passed_on_even_if_nobody_records_here():
    assert around_jobs(traceparent=PARENT) == 1


def test_p66_with_a_provider_every_job_has_a_span(spans):
    assert traces.has_provider()
    assert around_jobs(is_traced=True) == 1
    assert len(spans.get_finished_spans()) == 1
