"""The check of every answer finds what does not fit, so that silence means something."""

import json

import pytest

from manyhands.model.job import Job, State
from manyhands.protocols.native import builders
from manyhands.web.envelope import envelope
from tests.e2e.described import check

SHOWN = json.loads(envelope(builders.whole(Job(job_id="ab" * 16, queue="q", state=State.READY)), 1))


def shown(**changes) -> bytes:
    return json.dumps({**SHOWN, "results": {**SHOWN["results"], **changes}}).encode()


def test_an_answer_that_is_as_described_passes():
    check("GET", "/api/jobs/abc?wait=1", 200, shown())
    check("GET", "/api/queues/a/b/c", 404, b'{"results":null,"error":{"code":"x","message":"y"},'
          b'"time":{"total":1}}')  # fmt: skip
    check("GET", "/nowhere/at/all", 404, b'{"results":null,"error":{"code":"x","message":"y"},'
          b'"time":{"total":1}}')  # fmt: skip


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/api/jobs/abc", 200, shown(extra=1)),
        ("/api/jobs/abc", 200, shown(state="odd")),
        ("/api/jobs/abc", 200, shown(priority="1")),
        ("/api/jobs/abc", 200, shown().replace(b'"uid"', b'"uld"')),
        ("/api/jobs/abc", 404, shown()),
        ("/api/jobs/abc", 299, shown()),
        ("/api/jobs", 200, shown()),
        ("/nowhere/at/all", 200, b"{}"),
        ("/nowhere/at/all", 404, b"{}"),
        ("/0.2.0/nowhere", 404, b"{}"),
    ],
)
def test_an_answer_that_is_not_as_described_fails(target, status, body):
    with pytest.raises((ValueError, AssertionError)):
        check("GET", target, status, body)
