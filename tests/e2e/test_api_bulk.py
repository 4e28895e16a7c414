"""Operations on many jobs over HTTP: counted, run in slices, watched, cancelled, gone on with."""

import json
import signal
import time

import pytest

from tests.e2e.qless.talk import Wire
from tests.e2e.serving import SECONDS_MAX, Api, serving

STORES = ("memory", "postgresql")


def fill(api, queue: str, count: int, **fields) -> list[str]:
    ids = []
    for start in range(0, count, 5_000):
        items = [{"queue": queue, **fields} for _ in range(min(5_000, count - start))]
        ids += [row["id"] for row in api.results("submit", items=items)]
    return ids


def fail_all(api, queue: str, count: int) -> list[str]:
    ids = fill(api, queue, count)
    for start in range(0, count, 5_000):
        jobs = api.results("claim", queue=queue, count=min(5_000, count - start))
        items = [
            {"id": job["id"], "token": job["token"], "code": "boom", "retry": False} for job in jobs
        ]
        api.results("fail", items=items)
    return ids


def ended(api, bulk_id: str) -> dict:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        found = api.get(f"bulk/{bulk_id}")
        if found["state"] != "active":
            return found
        time.sleep(0.02)
    raise AssertionError(f"still active: {found}")


def counts(api, queue: str) -> dict:
    found = api.get(f"queues/{queue}")["counts"]
    return {state: count for state, count in found.items() if count}


def test_the_number_is_told_before_anything_is_done(api, queue):
    fail_all(api, queue, 3)
    wanted = {"action": "retry", "filter": {"queue": queue}}

    told = api.results("bulk", **wanted, dry_run=True)

    assert told == {"action": "retry", "expected": 3, "expected_all": True}
    assert counts(api, queue) == {"failed": 3}


def test_all_failed_jobs_of_a_queue_are_put_to_work_again(api, queue):
    fail_all(api, queue, 1_000)
    fill(api, queue, 10, delay_ms=3_600_000)
    begun = api.results("bulk", action="retry", filter={"queue": queue})
    assert (begun["state"], begun["expected"]) == ("active", 1_000)

    found = ended(api, begun["id"])

    assert (found["state"], found["changed"], found["done"]) == ("completed", 1_000, 1_000)
    assert (found["passed"], found["refused"]) == (0, {})
    assert found["filter"] == {"state": ["failed"], "queue": queue}
    assert counts(api, queue) == {"ready": 1_000, "delayed": 10}


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        ({"action": "cancel"}, {"cancelled": 300}),
        ({"action": "cancel", "reason": "spring cleaning"}, {"cancelled": 300}),
        ({"action": "priority", "priority": 7.5}, {"ready": 300}),
    ],
)
def test_each_action_is_done_to_all_jobs_of_a_filter(api, body, becomes):
    queue = f"each-{body['action']}-{len(body)}"
    ids = fill(api, queue, 300, tags=["batch"])
    fill(api, "beside", 5)
    begun = api.results("bulk", **body, filter={"queue": queue, "tag": "batch"})
    assert begun["expected"] == 300

    assert ended(api, begun["id"])["changed"] == 300
    assert counts(api, queue) == becomes
    job = api.get(f"jobs/{ids[-1]}")
    if body["action"] == "priority":
        assert job["priority"] == 7.5
    if "reason" in body:
        assert job["reason"] == "spring cleaning"


def test_jobs_are_moved_and_leases_are_ended(api, queue):
    fill(api, queue, 5)
    api.results("claim", queue=queue, count=2)
    expired = api.results("bulk", action="expire", filter={"queue": queue})
    assert ended(api, expired["id"])["changed"] == 2
    assert counts(api, queue) == {"ready": 5}

    moved = api.results("bulk", action="move", queue=f"{queue}-2", filter={"queue": queue})

    assert ended(api, moved["id"])["changed"] == 5
    assert counts(api, f"{queue}-2") == {"ready": 5}


def test_a_selection_is_named_by_ids_and_what_does_not_fit_is_counted(api, queue):
    failed = fail_all(api, queue, 3)
    (ready,) = fill(api, queue, 1)
    ids = [failed[0].upper(), failed[1], failed[1], ready, "feed" * 8]

    found = ended(api, api.results("bulk", action="retry", ids=ids)["id"])

    assert (found["expected"], found["changed"]) == (4, 2)
    assert found["refused"] == {"not_finished": 1, "unknown_job": 1}
    assert counts(api, queue) == {"failed": 1, "ready": 3}


def test_alike_failures_are_retried_together(api, queue):
    fill(api, queue, 4)
    for index, job in enumerate(api.results("claim", queue=queue, count=4)):
        message = f"row {index}" if index < 3 else "something else"
        lease = {"id": job["id"], "token": job["token"]}
        api.results("fail", **lease, code="boom", message=message, retry=False)
    group = api.get(f"failures?queue={queue}")[0]["group"]

    wanted = {"failure": group, "queue": queue}
    assert api.results("bulk", action="retry", filter=wanted, dry_run=True)["expected"] == 3
    assert ended(api, api.results("bulk", action="retry", filter=wanted)["id"])["changed"] == 3


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"action": "retry"}, 400, "an operation needs a filter or ids, and not both"),
        ({"action": "retry", "ids": ["aa"], "filter": {"queue": "q"}}, 400, "not both"),
        ({"action": "retry", "filter": {}}, 400, "a filter needs at least one condition"),
        ({"action": "praise", "ids": ["aa"]}, 400, "action is one of retry, cancel"),
        ({"action": "move", "ids": ["aa"]}, 400, "move needs a queue"),
        ({"action": "priority", "ids": ["aa"]}, 400, "priority needs a number"),
        ({"action": "retry", "filter": {"state": "ready"}}, 409, "retry is for jobs that are"),
        ({"action": "cancel", "filter": {"quue": "q"}}, 400, "quue"),
        ({"action": "cancel", "filter": {"age_min": -1}}, 400, "an age is a number of seconds"),
    ],
)
def test_an_operation_that_makes_no_sense_is_refused_with_a_sentence(api, body, status, sentence):
    response = api.post("bulk", **body)

    assert response.status_code == status
    assert sentence in response.json()["error"]["message"]
    assert api.http.get("/api/bulk/nobody").status_code == 404


def test_an_operation_can_be_cancelled_and_what_was_done_stays_done(api, queue):
    for number in range(10):
        queue = f"{queue[:190]}-{number}"
        fill(api, queue, 20_000)
        begun = api.results("bulk", action="cancel", filter={"queue": queue})
        api.http.post(f"/api/bulk/{begun['id']}/cancel")
        found = ended(api, begun["id"])
        if found["state"] == "cancelled":
            break  # and was not through already, because we were slow

    assert found["state"] == "cancelled"
    assert found["changed"] < 20_000
    left = counts(api, queue)
    assert left["ready"] + left.get("cancelled", 0) == 20_000
    assert left.get("cancelled", 0) == found["changed"]
    listed = [row["id"] for row in api.get("bulk")]
    assert begun["id"] in listed


def test_others_are_answered_while_a_large_operation_runs(api, queue):
    fill(api, queue, 20_000)
    wanted = {"action": "priority", "priority": 1.0, "filter": {"queue": queue}}
    beside = {"queue": f"{queue}-beside"}
    # Sent at once, so that it does not matter how fast we are: each is answered after the other.
    with Wire(api.served) as wire:
        for path, body in (("bulk", wanted), *[("submit", beside)] * 5):
            wire.send(
                "POST", f"/api/{path}", json.dumps(body).encode(), Content_Type="application/json"
            )
        wire.send("GET", "/api/bulk")
        begun, *submitted, listed = (json.loads(wire.answer()[2])["results"] for _ in range(7))

    assert [row["state"] for row in submitted] == ["ready"] * 5
    meanwhile = next(row for row in listed if row["id"] == begun["id"])
    assert meanwhile["state"] == "active"
    assert meanwhile["done"] < 20_000
    assert ended(api, begun["id"])["changed"] == 20_000


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_an_operation_goes_on_after_a_restart(tmp_path, way):
    with serving(tmp_path) as served:
        api = Api(served)
        fill(api, "q", 20_000)
        begun = api.results("bulk", action="cancel", filter={"queue": "q"})
        while api.get(f"bulk/{begun['id']}")["changed"] == 0:
            time.sleep(0.001)
        served.stop(way)
        served.ready_file.unlink(missing_ok=True)  # a server that is killed leaves it behind
        api.close()
    with serving(tmp_path) as served:
        api = Api(served)
        found = ended(api, begun["id"])
        after = counts(api, "q")
        api.close()

    assert found["state"] == "completed"
    assert after == {"cancelled": 20_000}
    # Of the slice that was cut off, some may have been dealt with and not counted.
    assert 20_000 - 200 <= found["changed"] <= 20_000
