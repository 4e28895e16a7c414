"""What an item expects of the jobs and recurring jobs that are there."""

import pytest

from tests.e2e.qless.talk import Qless
from tests.e2e.serving import serving


@pytest.fixture
def once(tmp_path):
    """A worker of a server that takes a completed job into the same queue once only."""
    options = ("--store", "memory", "--qless-dedup-completed", "same_queue")
    with serving(tmp_path, *options) as server:
        client = Qless(server, "worker-1")
        yield client
        client.close()


def test_a_job_is_completed_once_in_each_queue_where_the_server_is_set_so(once):
    once.add_id("q", "ab", 1)
    once.take("q")
    once.results("/complete/q", [{"id": "ab", "meta": 2}])
    items = [{"id": "ab", "meta": 3}, {"id": "cd", "meta": 4}]

    first = once.post("/add/q", items, **{"Idempotency-Key": "k"})
    again = once.post("/add/q", items, **{"Idempotency-Key": "k"})

    assert first.json()["results"] == [False, "cd"]
    [error] = first.json()["errors"]
    assert (error["index"], error["id"], error["code"]) == (0, "ab", "already_complete")
    assert (error["state"], error["queue"]) == ("complete", "q")
    assert again.json()["results"] == [False, "cd"]
    assert again.json()["errors"][0]["code"] == "already_complete"
    assert once.add_id("r", "ab", 5) == "ab"


def test_an_id_belongs_to_a_job_or_to_a_recurring_job(q, queue, fresh):
    job_id, schedule_id = fresh(), fresh()
    q.add_id(queue, job_id)
    q.results(f"/recurring/{queue}", [{"id": schedule_id, "meta": 1, "interval": 3600}])

    added = q.told(f"/add/{queue}", [{"id": schedule_id, "meta": 1}])
    recurring = q.told(f"/recurring/{queue}", [{"id": job_id, "meta": 1, "interval": 3600}])

    assert added == ([False], {0: "duplicate"})
    assert recurring == ([False], {0: "duplicate"})


def test_a_cancelled_job_is_not_requeued(q, queue, fresh):
    job_id = fresh()
    q.add_id(queue, job_id)
    q.results("/cancel", [job_id])

    assert q.told("/requeue", [{"id": job_id}]) == ([False], {0: "cancelled"})
    assert q.told("/depends", [{"id": job_id, "add": []}]) == ([False], {0: "cancelled"})


def test_dependencies_of_a_job_that_somebody_works_on_stay(q, one, queue, fresh):
    job_id, other = fresh(), fresh()
    q.add_id(queue, job_id)
    q.add_id(f"{queue}-2", other)
    one.take(queue)

    changed = q.told("/depends", [{"id": job_id, "add": [other]}])

    assert changed == ([False], {0: "not_waiting"})
