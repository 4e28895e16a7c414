"""Queues, settings, events, metrics and health over the native API."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.serving import wait_until


def test_the_index_names_every_endpoint(api):
    results = api.http.get("/").json()["results"]

    assert results["name"] == "manyhands"
    assert {"POST /api/claim", "GET /api/jobs", "PUT /api/queues/{name}"} <= set(
        results["endpoints"]
    )


def test_a_healthy_server_says_so(api):
    assert api.http.get("/healthz").json()["results"] == {"healthy": True, "failure": None}
    ready = api.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["results"] == {"ready": True, "missing": []}


def test_a_queue_shows_its_counts_and_its_policy(api, queue):
    body = {"paused": True, "policy": {"concurrency_max": 2, "rate": {"count": 5, "per_ms": 1000}}}
    assert api.http.put(f"/api/queues/{queue}", json=body).json()["results"] == {
        "name": queue,
        "applied": True,
    }
    api.results("submit", queue=queue)

    shown = api.get(f"queues/{queue}")

    assert shown["paused"] is True
    assert shown["counts"]["ready"] == 1
    assert shown["oldest_ready_age_ms"] >= 0
    assert shown["policy"] == {"concurrency_max": 2, "rate": {"count": 5, "per_ms": 1000}}
    assert api.results("claim", queue=queue) == []
    assert any(row["name"] == queue for row in api.get("queues"))


def test_a_queue_in_use_is_not_forgotten(api, queue):
    job_id = api.results("submit", queue=queue)["id"]

    assert api.http.delete(f"/api/queues/{queue}").status_code == 409
    api.results("cancel", id=job_id)
    assert api.http.delete(f"/api/queues/{queue}").status_code == 200
    assert api.http.delete(f"/api/queues/{queue}").status_code == 404


def test_a_queue_may_have_a_slash_in_its_name(api):
    api.http.put("/api/queues/a%2Fb%20c", json={}).raise_for_status()

    assert api.get("queues/a%2Fb%20c")["name"] == "a/b c"


def test_queues_are_listed_a_page_at_a_time(api):
    for letter in "xyz":
        api.http.put(f"/api/queues/page-{letter}", json={}).raise_for_status()

    page = api.http.get("/api/queues?after=page-&count=2").json()

    assert [row["name"] for row in page["results"]] == ["page-x", "page-y"]
    assert page["next"] == "page-y"


def all_pages(api, path: str) -> list[dict]:
    """Two at a time, until there is no next page."""
    found, after = [], ""
    for _ in range(1_000):
        page = api.http.get(f"/api/{path}", params={"count": 2, "after": after}).json()
        assert len(page["results"]) <= 2
        found += page["results"]
        after = page["next"]
        if after is None:
            return found
    raise AssertionError("there is no last page")


@pytest.mark.parametrize(
    ("path", "key"), [("queues", "name"), ("limits", "name"), ("schedules", "id")]
)
def test_lists_by_name_are_paged(api, queue, path, key):
    names = [f"{queue} ü {letter}" for letter in "abcde"]
    body = {"limits": {"concurrency_max": 1}, "schedules": {"queue": queue, "interval_ms": 10**8}}
    for name in names:
        api.http.put(f"/api/{path}/{quote(name)}", json=body.get(path, {})).raise_for_status()

    found = [row[key] for row in all_pages(api, path)]

    assert found == sorted(set(found))
    assert [name for name in found if name in names] == names
    assert found == [row[key] for row in api.get(path)]
    assert api.http.get(f"/api/{path}?count=1001").json()["error"]["code"] == "invalid_query"


def test_workers_are_paged_by_realm_and_name(api, queue):
    names = [f"{queue}/{letter}" for letter in "abcde"]
    api.results("submit", items=[{"queue": queue}] * 6)
    for name in names:
        api.results("claim", queue=queue, worker=name)
    api.results("claim", queue=queue)

    found = [(row["realm"], row["name"]) for row in all_pages(api, "workers")]

    assert len(found) == len(set(found))
    assert [name for _, name in found if name in names] == names
    assert ("native", None) in found
    assert found == [(row["realm"], row["name"]) for row in api.get("workers")]


def test_a_limit_counts_the_leases_of_its_jobs(api, queue):
    api.http.put(f"/api/limits/{queue}", json={"concurrency_max": 1}).raise_for_status()
    api.results("submit", items=[{"queue": queue, "limits": [queue]}] * 2)

    assert len(api.results("claim", queue=queue, count=5)) == 1
    assert {"name": queue, "concurrency_max": 1, "used": 1} in api.get("limits")
    assert api.http.delete(f"/api/limits/{queue}").status_code == 200
    assert api.http.delete(f"/api/limits/{queue}").status_code == 404


def test_a_schedule_submits_its_job(api, queue):
    body = {"queue": queue, "interval_ms": 100, "payload": {"from": "schedule"}}
    made = api.http.put(f"/api/schedules/{queue}", json=body).json()["results"]

    [job] = api.results("claim", queue=queue, wait=100)

    assert made["id"] == queue
    assert job["payload"] == {"from": "schedule"}
    [shown] = [row for row in api.get("schedules") if row["id"] == queue]
    assert shown["fired_count"] >= 1
    assert api.http.delete(f"/api/schedules/{queue}").status_code == 200
    assert api.http.delete(f"/api/schedules/{queue}").status_code == 404


def test_a_cron_line_knows_its_next_instant(api, queue):
    body = {"queue": queue, "cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
    made = api.http.put(f"/api/schedules/{queue}", json=body).json()["results"]
    assert made["next_at"] > time.time() * 1000

    for wrong in ({"cron": "nonsense"}, {"cron": "0 3 * * *", "time_zone": "Mars/Olympus"}, {}):
        response = api.http.put(f"/api/schedules/{queue}", json={"queue": queue, **wrong})
        assert response.status_code == 400
    api.http.delete(f"/api/schedules/{queue}").raise_for_status()


def test_workers_are_shown_with_what_they_hold(api, queue):
    api.results("submit", queue=queue)
    [job] = api.results("claim", queue=queue, worker=queue)

    [worker] = [row for row in api.get("workers") if row["name"] == queue]

    assert worker["realm"] == "native"
    assert [lease["id"] for lease in worker["leases"]] == [job["id"]]


def test_an_idle_worker_is_listed_with_what_it_waits_for(api, queue):
    def everybody():
        return api.get("workers?idle=true")

    with ThreadPoolExecutor(1) as apart:
        claiming = apart.submit(api.results, "claim", queue=queue, worker=queue, wait=20)
        [worker] = wait_until(lambda: [row for row in everybody() if row["name"] == queue])
        unasked = [row for row in api.get("workers") if row["name"] == queue]
        api.results("submit", queue=queue)
        [job] = claiming.result()

    [busy] = [row for row in everybody() if row["name"] == queue]
    api.results("complete", id=job["id"], token=job["token"])
    [after] = [row for row in everybody() if row["name"] == queue]

    assert (worker["awaits"], worker["leases_count"], unasked) == ([queue], 0, [])
    assert (busy["awaits"], busy["leases_count"]) == (None, 1)
    assert (after["awaits"], after["leases_count"], after["last_queue"]) == (None, 0, queue)
    assert after["seen_at"] <= time.time() * 1000


def test_events_are_read_from_a_cursor_on(api, queue):
    start = api.http.get("/api/events?count=1").json()["last_seq"]
    job_id = api.results("submit", queue=queue)["id"]
    [job] = api.results("claim", queue=queue)
    api.results("complete", id=job_id, token=job["token"])

    first = api.http.get(f"/api/events?after={start}&count=2").json()
    rest = api.http.get(f"/api/events?after={first['next']}").json()

    events = first["results"] + rest["results"]
    states = [event["state"] for event in events if event["id"] == job_id]
    assert states == ["ready", "leased", "completed"]
    assert rest["next"] == rest["last_seq"]


def test_a_watcher_waits_for_the_next_event(api, served, queue):
    start = api.http.get("/api/events?count=1").json()["last_seq"]

    pages = []

    def watch():
        address = f"{served.url}/api/events?after={start}&wait=100"
        pages.append(httpx.get(address).json())

    watcher = threading.Thread(target=watch)
    watcher.start()
    wait_until(lambda: "manyhands_event_watchers 1.0" in api.http.get("/metrics").text)
    assert not pages
    api.results("submit", queue=queue)
    watcher.join()

    [page] = pages
    assert [event["queue"] for event in page["results"]] == [queue]
    assert api.http.get(f"/api/events?after={page['next']}&wait=0.1").json()["results"] == []


def test_the_server_tells_about_itself(api, served):
    about = api.get("about")

    assert about["addresses"]["http"] == served.addresses["http"]
    assert about["store"]["kind"] == "memory"
    assert about["config"]["store"] == "memory"
    assert about["uptime_ms"] >= 0


def test_metrics_can_be_parsed_and_count_jobs(api, queue):
    api.results("submit", queue=queue)
    [job] = api.results("claim", queue=queue)
    api.results("complete", id=job["id"], token=job["token"])
    api.error("complete", id="ff", token="x")

    text = api.http.get("/metrics").text

    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["manyhands_queue_jobs", queue, "completed"] == 1
    assert samples["manyhands_jobs_entered_total", "completed"] >= 1
    assert samples["manyhands_refusals_total", "unknown_job"] >= 1
    assert samples[("manyhands_job_run_seconds_count",)] >= 1
    assert samples["manyhands_process_resident_bytes", "server"] > 1_000_000
