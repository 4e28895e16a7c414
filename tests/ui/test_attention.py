"""Trouble in progress is seen within seconds: in the API, on the first page, by `status`."""

import re

import httpx
import pytest

from tests.e2e.serving import Api, own_port, run, serving, wait_until
from tests.ui.test_jobs_requests import text_of
from tests.ui.test_operating import attention, links

HOUR_MS = 3_600_000


def note_about(api, what: str, about: str):
    """The note of a kind about something, or None."""
    return next((n for n in api.get("attention") if (n["what"], n["about"]) == (what, about)), None)


def claim(api, queue: str, count: int = 1, worker: str = "w"):
    return api.results("claim", queue=queue, worker=worker, count=count, term_ms=HOUR_MS)


def proof(job) -> dict[str, str]:
    return {"id": job["id"], "token": job["token"]}


def submit(api, queue: str, count: int = 1, **more) -> list[str]:
    items = [{"queue": queue, "payload": n, **more} for n in range(count)]
    return [job["id"] for job in api.results("submit", items=items)]


def test_jobs_that_wait_for_one_that_failed_need_attention(http, api, queue, served):
    (first,) = submit(api, f"{queue}-first")
    submit(api, queue, 3, depends_on=[first], on_dependency_failure="hold")
    assert note_about(api, "stuck", queue) is None
    (job,) = claim(api, f"{queue}-first")
    api.results("fail", **proof(job), code="x", message="y", retry=False)

    note = note_about(api, "stuck", queue)

    assert (note["level"], note["count"], note["job"]) == ("warn", 3, first)
    assert note["detail"] == f"3 jobs wait for job {first[-12:]}, which failed"
    assert links(attention(http, "which failed"), queue) == [f"/ui/job/{first}"]
    said = run("status", "--url", served.url)
    assert said.returncode == 1
    assert f"stuck: {queue}: 3 jobs wait for job {first[-12:]}, which failed" in said.stderr


def test_jobs_that_wait_for_several_lost_ones_are_one_note(api, queue):
    lost = submit(api, f"{queue}-first", 2)
    submit(api, queue, 2, depends_on=lost, on_dependency_failure="hold")
    for job in claim(api, f"{queue}-first", 2):
        api.results("fail", **proof(job), code="x", message="y", retry=False)

    note = note_about(api, "stuck", queue)

    assert note["count"] == 2
    assert note["job"] is None
    assert note["detail"] == "2 jobs wait for 2 jobs that failed or were cancelled"


def test_jobs_are_no_longer_stuck_once_what_they_wait_for_runs_again(api, queue, served):
    (first,) = submit(api, f"{queue}-first")
    submit(api, queue, depends_on=[first], on_dependency_failure="hold")
    (job,) = claim(api, f"{queue}-first")
    api.results("fail", **proof(job), code="x", message="y", retry=False)
    assert note_about(api, "stuck", queue)

    assert run("retry", first, "--yes", "--url", served.url).returncode == 0

    assert note_about(api, "stuck", queue) is None


def test_a_queue_says_which_full_limit_holds_it_back(http, api, queue, served):
    api.http.put(f"/api/limits/{queue}", json={"concurrency_max": 1})
    submit(api, queue, 3, limits=[queue])
    assert api.get(f"queues/{queue}")["waits"] == []
    claim(api, queue)

    (wait,) = api.get(f"queues/{queue}")["waits"]

    assert (wait["what"], wait["name"], wait["count"]) == ("limit", queue, 1)
    assert wait["sentence"] == f"limit '{queue}' is full: 1 of 1 leases are held"
    page = text_of(http.get("/ui/queues", params={"q": queue}))
    assert "limit full" in page
    assert f"2 jobs in {queue[:20]}" in text_of(http.get("/ui/limits"))
    row = next(
        line
        for line in run("queue", "list", "--url", served.url).stdout.splitlines()
        if line.startswith(f"{queue}\t")
    )
    assert row.endswith("\tlimit full")


def test_a_queue_at_its_concurrency_says_so(http, api, queue):
    api.http.put(f"/api/queues/{queue}", json={"policy": {"concurrency_max": 1}})
    submit(api, queue, 2)
    claim(api, queue)

    (wait,) = api.get(f"queues/{queue}")["waits"]

    assert wait["what"] == "concurrency"
    assert "queue full" in text_of(http.get("/ui/queues", params={"q": queue}))


@pytest.fixture
def relaying(tmp_path):
    """A server whose broker cannot be reached."""
    broker = f"amqp://127.0.0.1:{own_port()}/"
    with serving(tmp_path, "--amqp-relay", broker) as served:
        yield served


def test_a_relay_without_its_broker_needs_attention(relaying):
    api = Api(relaying)
    submit(api, "q", 2)

    def note():
        found = note_about(api, "relay", "")
        return found if found is not None and found["count"] else None

    found = wait_until(note)
    assert found["level"] == "bad"
    assert re.fullmatch(
        r"amqp://\S+ cannot be reached: Connection refused; 2 events wait, the oldest for \S+",
        found["detail"],
    )
    with httpx.Client(base_url=relaying.url, timeout=60) as http:
        notes = attention(http, "cannot be reached")
        assert links(notes, "server") == ["/ui/about"]
    said = run("status", "--url", relaying.url)
    assert said.returncode == 1
    assert "relay: amqp://" in said.stderr
    seen = run("doctor", "--url", relaying.url).stdout
    assert re.search(
        r"^warn\trelay\tamqp://\S+ cannot be reached: Connection refused;", seen, re.MULTILINE
    )
    api.close()


def test_a_list_of_jobs_counts_the_attempt_that_completed_a_job(api, queue, served):
    submit(api, queue)
    (job,) = claim(api, queue)
    api.results("complete", **proof(job), result=1)

    (row,) = run("jobs", f"queue:{queue}", "--url", served.url).stdout.splitlines()

    assert row.split("\t")[4] == "1"


def test_a_queue_whose_workers_poll_is_not_said_to_have_none(api, queue, served):
    submit(api, queue)
    (job,) = claim(api, queue)
    api.results("complete", **proof(job), result=1)

    def workers() -> str:
        said = run("queue", "list", queue, "--url", served.url).stdout
        return said.rstrip("\n").rpartition("\t")[2]

    wait_until(lambda: workers() == "polling")  # it is remembered for some seconds who took jobs


def test_jobs_stay_stuck_through_a_restart(tmp_path):
    with serving(tmp_path) as served:
        api = Api(served)
        (first,) = submit(api, "first")
        submit(api, "q", 2, depends_on=[first], on_dependency_failure="hold")
        (job,) = claim(api, "first")
        api.results("fail", **proof(job), code="x", message="y", retry=False)
        before = note_about(api, "stuck", "q")
        api.close()

    with serving(tmp_path) as served:
        api = Api(served)
        after = note_about(api, "stuck", "q")
        api.close()

    assert (before["job"], before["count"]) == (first, 2)
    assert after == before
