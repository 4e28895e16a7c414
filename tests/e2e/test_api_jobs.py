"""The life of jobs over the native API."""

import socket
import threading
import time
from uuid import UUID, uuid4

import httpx
import pytest

from tests.e2e.serving import wait_until

STORES = ("memory", "postgresql")


def claim_one(api, queue: str, **more):
    [job] = api.results("claim", queue=queue, **more)
    return job


def test_a_job_is_submitted_claimed_and_completed(api, queue):
    made = api.results("submit", queue=queue, payload={"n": 1}, tags=["a"], priority=2)
    assert made["state"] == "ready"
    assert made["created"] is True

    job = claim_one(api, queue, worker="w1")
    assert (job["id"], job["payload"], job["lease_number"]) == (made["id"], {"n": 1}, 1)
    ended = api.results("complete", id=job["id"], token=job["token"], result=[1, 2])
    assert ended["state"] == "completed"

    shown = api.get(f"jobs/{job['id']}")
    assert shown["result"] == [1, 2]
    assert shown["attempts"][0]["holder"]["name"] == "w1"
    assert "token" not in str(shown)


def test_a_job_has_headers_and_is_found_by_its_task(api, queue):
    """S3."""
    headers = {"task": f"resize-{queue}", "traceparent": "00-ab-cd-01"}
    made = api.results("submit", queue=queue, headers=headers)
    api.results("submit", queue=queue)

    [found] = api.get(f"jobs?task={headers['task']}")
    first = claim_one(api, queue)
    second = claim_one(api, queue)

    assert found["id"] == made["id"] == first["id"]
    assert first["headers"] == headers
    assert "headers" not in second
    assert api.get(f"jobs/{made['id']}")["headers"] == headers
    assert api.get(f"jobs/{second['id']}")["headers"] == {}


@pytest.mark.parametrize("headers", [{"a": "x" * 8192}, {"": "x"}])
def test_headers_beyond_their_bounds_are_refused(api, queue, headers):
    """S3."""
    answer = api.post("submit", queue=queue, headers=headers)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_header"


def test_a_whole_priority_is_told_as_it_was_given(api, queue):
    """Clients whose priorities are integers cannot read 2.0."""
    job_id = api.results("submit", queue=queue, payload=1, priority=2)["id"]
    other_id = api.results("submit", queue=queue, payload=1, priority=0.5)["id"]

    assert '"priority":2,' in api.http.get(f"/api/jobs/{job_id}").text
    assert '"priority":0.5,' in api.http.get(f"/api/jobs/{other_id}").text
    assert '"priority":2,' in api.http.post("/api/claim", json={"queue": queue}).text


def test_a_job_is_found_by_its_uid_its_uuid_and_a_handle(api, queue):
    api.results("submit", queue=queue, id=f"{abs(hash(queue)):x}")
    job = claim_one(api, queue)
    uid = api.get(f"jobs/{job['id']}")["uid"]
    dashed = f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"

    for name in (uid, dashed, f"H:server:{uid}", job["id"].upper()):
        assert api.get(f"jobs/{name}")["id"] == job["id"]
    api.results("complete", id=job["id"], token=job["token"])
    assert api.get(f"jobs/H:server:{uid}")["state"] == "completed"


def forms_of(uid: str) -> list[str]:
    """What peers of other protocols call a job."""
    return [str(UUID(uid)), str(UUID(uid)).upper(), f"H:server:{uid}", uid]


def chosen_ids(count: int) -> list[str | None]:
    """Ids of jobs: one that the server makes, and some that a submitter chose."""
    return [None, *(uuid4().hex[:10] for _ in range(count - 1))]


def test_bodies_name_jobs_in_every_form_that_paths_do(api, queue):
    for chosen in chosen_ids(2):
        made = api.results("submit", queue=queue, id=chosen)
        later = api.results("submit", queue=queue, delay_ms=3_600_000)
        uuid, upper, handle, uid = forms_of(made["uid"])
        told = [
            api.results("priority", id=uuid, priority=5),
            api.results("tags", id=handle, add=["seen"]),
            api.results("dependencies", id=uid, add=[str(UUID(later["uid"]))]),
            api.results("dependencies", id=upper, remove=[f"H:x:{later['uid']}"]),
        ]
        [held] = api.results("claim", id=handle, queue=queue)
        told += [
            api.results("renew", id=uuid, token=held["token"]),
            api.results("progress", id=handle, token=held["token"], numerator=1),
            api.results("partial", id=upper, token=held["token"], payload=1),
            api.results("complete", id=handle, token=held["token"]),
            api.results("requeue", id=uuid),
            *api.results("cancel", ids=[handle, str(UUID(later["uid"]))]),
        ]

        told.pop()
        assert {job["id"] for job in told} == {made["id"]}
        assert held["id"] == made["id"]
        assert api.get(f"jobs/{made['id']}")["state"] == "cancelled"
        assert api.get(f"jobs/{later['id']}")["state"] == "cancelled"


def test_dependencies_of_a_submit_have_every_form(api, queue):
    for chosen in chosen_ids(2):
        first = api.results("submit", queue=queue, id=chosen)
        depends_on = forms_of(first["uid"])
        second = api.results("submit", queue=queue, depends_on=depends_on)

        assert api.get(f"jobs/{second['id']}")["depends_on"] == [first["id"]]
        api.results("cancel", id=first["id"])


@pytest.mark.parametrize("name", ["H:Host:CAFE", "0190E0F0-cafe-7000-8000-000000000000", "Mail-7"])
def test_a_refusal_names_the_job_as_the_request_did(api, name):
    sentence = f"there is no job {name}"
    for path, body in (
        ("cancel", {"id": name}),
        ("expire", {"id": name}),
        ("claim", {"id": name}),
    ):
        response = api.post(path, **body)
        assert response.status_code == 404
        assert response.json()["error"]["message"] == sentence
    batch = api.post("requeue", items=[{"id": name}]).json()
    assert [(error["id"], error["message"]) for error in batch["errors"]] == [(name, sentence)]


def test_answers_about_a_job_tell_its_uid(api, queue):
    for chosen in chosen_ids(2):
        made = api.results("submit", queue=queue, id=chosen)
        [held] = api.results("claim", queue=queue)
        ended = api.results("complete", id=held["id"], token=held["token"])
        shown = api.get(f"jobs/{made['id']}")

        assert {made["uid"], held["uid"], ended["uid"]} == {shown["uid"]}
        assert len(shown["uid"]) == 32


def test_a_batch_tells_which_items_were_refused(api, queue):
    response = api.post("submit", items=[{"queue": queue}, {"queue": ""}, {"queue": queue}])

    envelope = response.json()
    assert response.status_code == 200
    assert [row and row["state"] for row in envelope["results"]] == ["ready", None, "ready"]
    assert [(row["index"], row["code"]) for row in envelope["errors"]] == [(1, "bad_queue_name")]
    assert envelope["time"]["total"] >= 0


def test_all_or_nothing_leaves_nothing_behind(api, queue):
    items = [{"queue": queue}, {"queue": queue, "id": "not hexadecimal"}]

    assert api.error("submit", items=items, all_or_nothing=True) == (400, "bad_job_id")
    assert api.http.get(f"/api/queues/{queue}").status_code == 404


def test_the_holder_renews_reports_and_sends_pieces(api, queue):
    api.results("submit", queue=queue)
    job = claim_one(api, queue, term_ms=600_000)
    lease = {"id": job["id"], "token": job["token"]}

    renewed = api.results("renew", **lease, term_ms=1_200_000)
    api.results("progress", **lease, numerator=1, denominator=4)
    api.results("partial", **lease, payload="a piece", encoding="text")
    api.results("partial", **lease, payload="careful", encoding="text", warning=True)

    assert renewed["expires_at"] > job["expires_at"]
    assert api.get(f"jobs/{job['id']}")["progress"]["numerator"] == 1
    pieces = api.get(f"jobs/{job['id']}/partials")
    assert [(piece["payload"], piece["warning"]) for piece in pieces] == [
        ("a piece", False),
        ("careful", True),
    ]


def test_only_the_token_of_the_lease_finishes_a_job(api, queue):
    api.results("submit", queue=queue)
    job = claim_one(api, queue)

    assert api.error("complete", id=job["id"], token="guessed") == (409, "not_your_lease")
    api.results("complete", id=job["id"], token=job["token"])
    again = api.results("complete", id=job["id"], token=job["token"])
    assert again["repeated"] is True


def test_a_failure_is_retried_and_then_final(api, queue):
    api.results("submit", queue=queue, attempts_max=2, backoff={"first_ms": 0, "ms_max": 0})

    for state in ("ready", "failed"):
        job = claim_one(api, queue, wait=100)
        ended = api.results("fail", id=job["id"], token=job["token"], message="no luck")
        assert ended["state"] == state
    shown = api.get(f"jobs/{job['id']}")
    assert shown["failure"]["message"] == "no luck"

    assert api.results("requeue", id=job["id"])["state"] == "ready"


def test_a_released_job_costs_no_attempt(api, queue):
    api.results("submit", queue=queue)
    job = claim_one(api, queue)

    assert api.results("release", id=job["id"], token=job["token"])["state"] == "ready"
    assert claim_one(api, queue)["attempts_used"] == 0


def test_many_jobs_are_completed_in_one_request(api, queue):
    api.results("submit", items=[{"queue": queue} for _ in range(20)])
    jobs = api.results("claim", queue=queue, count=50)
    items = [{"id": job["id"], "token": job["token"]} for job in jobs]
    items[3]["token"] = "wrong"

    envelope = api.post("complete", items=items).json()

    assert len(envelope["results"]) == 20
    assert envelope["results"][3] is None
    assert [row["code"] for row in envelope["errors"]] == ["not_your_lease"]
    assert envelope["errors"][0]["id"] == jobs[3]["id"]


def test_operators_change_jobs(api, queue):
    first = api.results("submit", queue=queue)["id"]
    second = api.results("submit", queue=queue, depends_on=[first])["id"]

    assert api.get(f"jobs/{second}")["state"] == "blocked"
    assert api.results("dependencies", id=second, remove=[first])["state"] == "ready"
    api.results("priority", id=second, priority=9)
    api.results("tags", id=second, add=["red", "blue"], remove=["red"])
    assert api.get(f"jobs/{second}")["tags"] == ["blue"]
    assert api.results("move", id=second, queue=f"{queue}-2")["queue"] == f"{queue}-2"
    claim_one(api, f"{queue}-2")
    assert api.results("expire", id=second)["state"] in ("ready", "delayed")
    cancelled = api.results("cancel", ids=[first, second])
    assert {row["state"] for row in cancelled} == {"cancelled"}


def test_a_listing_is_filtered_and_paged(api, queue):
    made = api.results(
        "submit",
        items=[{"queue": queue, "payload": f"p{n}", "tags": [f"t{n % 2}"]} for n in range(5)],
    )
    ids = [row["id"] for row in made]

    first = api.http.get(f"/api/jobs?queue={queue}&count=3&order=oldest").json()
    second = api.http.get(
        f"/api/jobs?queue={queue}&count=3&order=oldest&after={first['next']}"
    ).json()

    assert [row["id"] for row in first["results"]] == ids[:3]
    assert [row["id"] for row in second["results"]] == ids[3:]
    assert second["next"] is None
    assert [row["id"] for row in api.get(f"jobs?queue={queue}&tag=t1")] == [ids[3], ids[1]]
    assert [row["id"] for row in api.get(f"jobs?queue={queue}&text=p4")] == [ids[4]]
    assert api.get(f"jobs?queue={queue}&state=failed,completed") == []
    assert len(api.get(f"jobs?queue={queue}&age_max=3600")) == 5
    assert api.get(f"jobs?queue={queue}&age_min=3600") == []


def test_a_claim_that_waits_is_woken_by_a_submit(api, served, queue):
    found = []

    def claim():
        body = {"queue": queue, "wait": 300}
        answer = httpx.post(f"{served.url}/api/claim", json=body)
        found.append(answer.json()["results"])

    worker = threading.Thread(target=claim)
    worker.start()
    wait_until(lambda: "manyhands_sleepers 1.0" in api.http.get("/metrics").text)
    assert not found
    api.results("submit", queue=queue)
    worker.join()

    [[job]] = found
    assert job["queue"] == queue


def test_a_claim_that_waits_in_vain_gives_nothing(api, queue):
    started = time.monotonic()

    assert api.results("claim", queue=queue, wait=0.3) == []
    assert time.monotonic() - started > 0.25
    assert api.http.get(f"/api/queues/{queue}").status_code == 404


def test_a_peer_that_hangs_up_while_it_waits_gets_no_job(api, served, queue):
    host, port = served.addresses["http"].split(":")
    body = f'{{"queue": "{queue}", "wait": 300}}'.encode()
    head = f"POST /api/claim HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: "manyhands_sleepers 1.0" in api.http.get("/metrics").text)
    wait_until(lambda: "manyhands_sleepers 0.0" in api.http.get("/metrics").text)

    job_id = api.results("submit", queue=queue)["id"]

    shown = api.get(f"jobs/{job_id}")
    assert (shown["state"], shown["lease_number"]) == ("ready", 0)


def test_an_answer_that_cannot_be_delivered_gives_the_job_back(api, served, queue):
    job_id = api.results("submit", queue=queue, payload="x" * 20_000_000)["id"]
    host, port = served.addresses["http"].split(":")
    body = f'{{"queue": "{queue}"}}'.encode()
    head = f"POST /api/claim HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        peer.recv(1000)  # the answer begins, and most of it is still to come

    wait_until(lambda: api.get(f"jobs?queue={queue}")[0]["state"] == "ready")

    shown = api.get(f"jobs/{job_id}")
    assert (shown["lease_number"], shown["attempts_used"]) == (1, 0)
    assert shown["attempts"][0]["reason"] == "released"


def test_two_who_wait_get_one_job_each(api, served, queue):
    found = []

    def work():
        answer = httpx.post(f"{served.url}/api/claim", json={"queue": queue, "wait": 300})
        found.extend(answer.json()["results"])

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    wait_until(lambda: "manyhands_sleepers 2.0" in api.http.get("/metrics").text)
    api.results("submit", items=[{"queue": queue}, {"queue": queue}])
    for worker in workers:
        worker.join()

    assert len({job["id"] for job in found}) == 2


def test_an_expired_lease_is_lost(api, queue):
    api.results("submit", queue=queue, backoff={"first_ms": 0, "ms_max": 0})
    job = claim_one(api, queue, term_ms=100)

    again = claim_one(api, queue, wait=100)

    assert again["id"] == job["id"]
    assert again["attempts_used"] == 1
    assert api.error("complete", id=job["id"], token=job["token"]) == (409, "not_your_lease")


@pytest.mark.parametrize("state", ["ready", "leased"])
def test_a_unique_key_is_held_while_a_job_lives(api, queue, state):
    made = api.results("submit", queue=queue, unique_key="k")
    if state == "leased":
        claim_one(api, queue)

    joined = api.results("submit", queue=queue, unique_key="k")

    assert (joined["id"], joined["created"]) == (made["id"], False)
    refused = api.error("submit", queue=queue, unique_key="k", on_duplicate="refuse")
    assert refused == (409, "duplicate_key")
