"""What the server offers so that a client in any language can be as good as the Python one."""

import threading
import uuid

import pytest

from tests.e2e.serving import SECONDS_MAX


def claimed(api, queue: str) -> dict:
    [job] = api.results("claim", queue=queue)
    return job


def named(api, kind: str, key: str, name: str) -> dict:
    """One of a list."""
    [found] = [each for each in api.get(kind) if each[key] == name]
    return found


def test_s2_a_job_that_is_there_is_the_answer_whatever_its_state(api, queue):
    """S2: said again under the same id, a submit makes nothing and changes nothing."""
    job_id = uuid.uuid4().hex

    def keep(where: str = queue) -> dict:
        return api.results("submit", queue=where, id=job_id, payload=1, on_existing="keep")

    assert keep()["created"]
    for state in ("ready", "leased", "completed"):
        if state == "leased":
            job = claimed(api, queue)
        elif state == "completed":
            api.results("complete", id=job_id, token=job["token"], result=7)
        found = keep()
        assert (found["created"], found["state"]) == (False, state)
    assert api.get(f"jobs/{job_id}")["result"] == 7
    refused = api.error("submit", queue=f"{queue}-other", id=job_id, on_existing="keep")
    assert refused == (409, "in_other_queue")


def test_s3_headers_travel_with_a_job_and_are_searched_by_task(api, queue):
    """S3: also with the jobs of a schedule."""
    task = f"{queue}-task"
    headers = {"task": task, "colour": "blue"}
    job_id = api.results("submit", queue=queue, headers=headers)["id"]
    api.results("submit", queue=queue, headers={"task": "another"})
    nightly = {"queue": queue, "interval_ms": 86_400_000, "headers": headers}
    put = api.http.put(f"/api/schedules/{queue}", json=nightly)
    assert put.status_code == 200, put.text

    assert api.get(f"jobs/{job_id}")["headers"] == headers
    found = api.http.get("/api/jobs", params={"task": task}).json()["results"]
    assert [job["id"] for job in found] == [job_id]
    assert claimed(api, queue)["headers"] == headers
    assert named(api, "schedules", "id", queue)["headers"] == headers


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"a": "x" * 8192}, "bad_header"), ({"a": 1}, "invalid_body"), ({"a": {}}, "invalid_body")],
)
def test_s3_headers_are_a_flat_map_of_strings_of_bounded_size(api, queue, headers, code):
    assert api.error("submit", queue=queue, headers=headers) == (400, code)


def test_s6_a_question_waits_for_the_end_of_a_job(api, queue):
    """S6: for those who have no stream."""
    job_id = api.results("submit", queue=queue)["id"]
    assert api.get(f"jobs/{job_id}?wait=0.05")["state"] == "ready"
    found = []
    asking = threading.Thread(
        target=lambda: found.append(api.get(f"jobs/{job_id}?wait={SECONDS_MAX}"))
    )
    asking.start()

    job = claimed(api, queue)
    api.results("complete", id=job_id, token=job["token"], result="done")
    asking.join(SECONDS_MAX)

    assert (found[0]["state"], found[0]["result"]) == ("completed", "done")


def test_s7_settings_are_put_only_where_there_are_none(api, queue):
    """S7: queues, limits and schedules; what an operator set stays."""
    cases = [
        (f"queues/{queue}", {"policy": {"concurrency_max": 1}}, {"policy": {"concurrency_max": 2}}),
        (f"limits/{queue}", {"concurrency_max": 1}, {"concurrency_max": 2}),
        (
            f"schedules/{queue}",
            {"queue": queue, "interval_ms": 3_600_000},
            {"queue": queue, "interval_ms": 7_200_000},
        ),
    ]
    for path, first, second in cases:
        applied = []
        for body in (first, second):
            response = api.http.put(f"/api/{path}?if_absent=true", json=body)
            assert response.status_code == 200, response.text
            applied.append(response.json()["results"]["applied"])
        assert applied == [True, False]
    assert api.get(f"queues/{queue}")["policy"] == {"concurrency_max": 1}
    assert named(api, "limits", "name", queue)["concurrency_max"] == 1
    assert named(api, "schedules", "id", queue)["interval_ms"] == 3_600_000
