"""Submits may be repeated over HTTP: with a key, or under an id that is to be kept."""

import concurrent.futures
import signal
import socket
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.e2e.serving import SECONDS_MAX, Api, serving, start, wait_until

STORES = ("memory", "postgresql")


def keyed(api: Api, key: str, **body) -> httpx.Response:
    return api.http.post("/api/submit", json=body, headers={"Idempotency-Key": key})


def ready_count(api: Api, queue: str) -> int:
    return api.get(f"queues/{queue}")["counts"]["ready"]


def finish(api: Api, queue: str) -> None:
    for job in api.results("claim", queue=queue, count=10):
        api.results("complete", id=job["id"], token=job["token"])


def waits_count(api: Api) -> int:
    lines = api.http.get("/metrics").text.splitlines()
    [count] = [line.split()[1] for line in lines if line.startswith("manyhands_http_job_waits ")]
    return int(float(count))


# With a key.


def test_a_submit_with_the_same_key_is_answered_as_before_and_runs_once(api, queue):
    first = keyed(api, f"{queue}-1", queue=queue, payload=1)
    finish(api, queue)

    again = keyed(api, f"{queue}-1", queue=queue, payload=1)

    assert again.status_code == first.status_code == 200
    assert again.json()["results"] == first.json()["results"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert ready_count(api, queue) == 0


def test_a_key_with_another_body_is_refused_with_a_sentence(api, queue):
    keyed(api, f"{queue}-1", queue=queue, payload=1)

    other = keyed(api, f"{queue}-1", queue=queue, payload=2)

    assert other.status_code == 422
    assert other.json()["error"]["code"] == "key_reused"
    assert "new key" in other.json()["error"]["message"]
    assert ready_count(api, queue) == 1


def test_a_batch_with_the_same_key_is_answered_as_before_item_by_item(api, queue):
    items = [{"queue": queue, "id": "ab12"}, {"queue": ""}, {"queue": queue, "id": "AB12"}]
    first = keyed(api, f"{queue}-1", items=items).json()
    finish(api, queue)

    again = keyed(api, f"{queue}-1", items=items).json()

    assert again["results"] == first["results"]
    assert [error["index"] for error in again["errors"]] == [1, 2]
    assert [error["code"] for error in again["errors"]] == ["bad_queue_name", "duplicate_job"]
    assert ready_count(api, queue) == 0


def test_many_who_send_the_same_at_once_make_one_job(api, queue):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: keyed(api, f"{queue}-1", queue=queue).json()["results"], range(40))
        )

    assert len({answer["id"] for answer in answers}) == 1
    assert ready_count(api, queue) == 1


def test_a_submit_that_was_refused_may_succeed_with_the_same_key_later(api, queue):
    api.http.put(f"/api/queues/{queue}", json={"policy": {"jobs_max": 1}})
    api.results("submit", queue=queue)
    assert keyed(api, f"{queue}-1", queue=queue).status_code == 429
    finish(api, queue)

    assert keyed(api, f"{queue}-1", queue=queue).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "naïve".encode("latin-1")])
def test_what_is_no_key_is_refused(api, queue, key):
    response = keyed(api, key, queue=queue)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_idempotency_key"


def test_a_submit_whose_answer_was_lost_with_the_server_runs_once(tmp_path):
    """It is killed as soon as it has decided, whether or not the answer left."""
    served = start(tmp_path)
    for number in range(5):
        host, _, port = (served.addresses["http"] or "").rpartition(":")
        body = b'{"queue":"q","payload":%d}' % number
        request = (
            b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Idempotency-Key: k%d\r\nContent-Length: %d\r\n\r\n%s" % (number, len(body), body)
        )
        with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
            peer.sendall(request)
            if number % 2:
                peer.recv(1)
            served.stop(signal.SIGKILL)
        served = start(tmp_path)
        api = Api(served)
        finish(api, "q")
        headers = {"Idempotency-Key": f"k{number}", "Content-Type": "application/json"}
        answer = api.http.post("/api/submit", content=body, headers=headers)

        assert answer.status_code == 200
        assert number % 2 == 0 or answer.headers["Idempotent-Replayed"] == "true"
        finish(api, "q")
        jobs = api.get("jobs?queue=q&count=100")
        assert len(jobs) == number + 1
        assert {job["state"] for job in jobs} == {"completed"}
        api.close()
    assert served.stop() == 0


def test_tasks_are_made_once_with_the_same_key_too(api):
    now = datetime.now(UTC)
    body = {
        "version": "0.2.0",
        "provisioner_id": "default",
        "worker_type": "repeated",
        "routing": "one",
        "retries": 1,
        "priority": 1.0,
        "created": now.isoformat(),
        "deadline": (now + timedelta(hours=1)).isoformat(),
        "payload": {},
        "metadata": {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
        "tags": {},
    }
    headers = {"Idempotency-Key": "task"}
    first = api.http.post("/0.2.0/task/new", json=body, headers=headers)
    assert first.status_code == 200, first.text

    again = api.http.post("/0.2.0/task/new", json=body, headers=headers)
    other = api.http.post("/0.2.0/task/new", json={**body, "retries": 2}, headers=headers)

    assert again.json()["status"]["task_id"] == first.json()["status"]["task_id"]
    assert other.status_code == 422
    assert ready_count(api, "repeated") == 1


# Under an id that is to be kept.


def test_a_job_that_is_to_be_kept_does_not_run_again_after_its_end(api, queue):
    body = {"queue": queue, "id": "beef01", "on_existing": "keep"}
    assert api.results("submit", **body)["created"] is True
    assert api.results("submit", **body)["created"] is False
    finish(api, queue)

    again = api.results("submit", **body)

    assert (again["state"], again["created"]) == ("completed", False)
    assert ready_count(api, queue) == 0


# Waiting for the end.


def test_a_look_at_a_job_may_wait_for_its_end(api, queue):
    """S6."""
    job_id = api.results("submit", queue=queue)["id"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(api.http.get, f"/api/jobs/{name}?wait=300")
            for name in (job_id, f"H:x:{job_id}")
        ]
        finish(api, queue)
        answers = [future.result(SECONDS_MAX).json()["results"] for future in waiting]

    assert [answer["state"] for answer in answers] == ["completed", "completed"]


def test_a_look_that_waited_in_vain_shows_the_job_as_it_is(api, queue):
    job_id = api.results("submit", queue=queue)["id"]

    assert api.get(f"jobs/{job_id}?wait=0.01")["state"] == "ready"
    assert api.http.get(f"/api/jobs/{job_id}?wait=301").status_code == 400
    assert api.http.get("/api/jobs/0?wait=300").status_code == 404


def test_those_who_wait_for_a_job_do_not_keep_a_server_from_stopping(tmp_path):
    with serving(tmp_path) as served:
        api = Api(served)
        job_id = api.results("submit", queue="q")["id"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(api.http.get, f"/api/jobs/{job_id}?wait=300")
            wait_until(lambda: waits_count(api) == 1)

            assert served.stop() == 0
            assert waiting.result(SECONDS_MAX).json()["results"]["state"] == "ready"
        api.close()


def test_nothing_is_left_of_those_who_waited_for_a_job_and_hung_up(served, api, queue):
    job_id = api.results("submit", queue=queue)["id"]
    host, _, port = (served.addresses["http"] or "").rpartition(":")
    peers = [socket.create_connection((host, int(port)), SECONDS_MAX) for _ in range(20)]
    for peer in peers:
        peer.sendall(
            b"GET /api/jobs/%s?wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n" % job_id.encode()
        )
    wait_until(lambda: waits_count(api) == 20)

    for peer in peers:
        peer.close()

    wait_until(lambda: waits_count(api) == 0)
