"""What operators see over HTTP: how it went, and over which protocol."""

from tests.e2e.serving import Api, serving

STORES = ("memory", "postgresql")


def work_off(api, queue: str, *, completed: int, failed: int) -> None:
    api.results("submit", items=[{"queue": queue} for _ in range(completed + failed)])
    jobs = api.results("claim", queue=queue, count=completed + failed)
    done = [{"id": job["id"], "token": job["token"]} for job in jobs]
    for index, item in enumerate(done):
        if index < completed:
            api.results("complete", **item)
        else:
            api.results("fail", **item, code="boom", retry=False)


def totals(api, query: str) -> dict:
    response = api.http.get(f"/api/history?{query}")
    assert response.status_code == 200, response.text
    return response.json()["total"]


def test_the_history_tells_of_one_queue_and_of_all(api, queue):
    work_off(api, queue, completed=3, failed=2)

    for name, count in (("1h", 60), ("24h", 144), ("7d", 168)):
        answer = api.http.get(f"/api/history?range={name}&queue={queue}").json()
        assert len(answer["results"]) == count
        assert answer["queue"] == queue
        total = answer["total"]
        assert (total["submitted"], total["started"]) == (5, 5)
        assert (total["completed"], total["failed"], total["failed_attempts"]) == (3, 2, 2)
        assert total["wait_ms"]["count"] == 5
        assert 0 <= total["run_ms"]["p50"] <= total["run_ms"]["p95"]
        assert answer["results"][-1]["depth"] == {
            "blocked": 0,
            "delayed": 0,
            "ready": 0,
            "leased": 0,
        }
    assert totals(api, "range=1h")["submitted"] >= 5
    assert totals(api, "queue=nobody-ever-used-it")["submitted"] == 0


def test_a_range_that_is_not_kept_is_refused(api):
    response = api.http.get("/api/history?range=1y")

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "range is one of 1h, 24h, 7d"
    assert api.http.get("/api/history?since=1").status_code == 400


def test_the_history_survives_a_restart(tmp_path):
    with serving(tmp_path) as served:
        api = Api(served)
        work_off(api, "mail", completed=4, failed=1)
        api.close()
    with serving(tmp_path) as served:
        api = Api(served)
        work_off(api, "mail", completed=1, failed=0)
        total = totals(api, "range=1h&queue=mail")
        api.close()

    assert (total["submitted"], total["completed"], total["failed"]) == (6, 5, 1)


def test_each_protocol_tells_its_connections_jobs_and_errors(tmp_path):
    with serving(tmp_path, "--store", "memory", "--dwork", "127.0.0.1:0") as served:
        api = Api(served)
        work_off(api, "q", completed=2, failed=0)
        assert api.post("submit").status_code == 400
        rows = {row["protocol"]: row for row in api.get("protocols")}
        api.close()

    assert rows["http"]["connections"] == 1
    assert (rows["http"]["jobs_in"], rows["http"]["jobs_out"]) == (2, 2)
    assert rows["http"]["errors"] == 1
    assert rows["http"]["realms"]["native"] == {"jobs_in": 2, "jobs_out": 2}
    assert rows["dwork"]["connections"] == 0
    assert rows["dwork"]["address"] == served.addresses["dwork"]
    assert rows["gearman"]["address"] is None


def test_failures_are_grouped_by_what_went_wrong_and_their_jobs_are_found(api, queue):
    api.results("submit", items=[{"queue": queue} for _ in range(3)])
    for index, job in enumerate(api.results("claim", queue=queue, count=3)):
        message = f"row {index} is wrong\nTraceback" if index else "no such box"
        lease = {"id": job["id"], "token": job["token"]}
        api.results("fail", **lease, code="boom", message=message, retry=False)

    answer = api.http.get(f"/api/failures?queue={queue}").json()

    assert (answer["groups"], answer["failed"]) == (2, 3)
    first = answer["results"][0]
    assert (first["code"], first["message"], first["count"]) == ("boom", "row <number> is wrong", 2)
    assert first["queues"] == {queue: 2}
    assert sum(first["trend"]) == 2
    assert first["first_at"] <= first["last_at"]
    found = api.get(f"jobs?failure={first['group']}")
    assert [job["id"] for job in found] == first["jobs"]
    only = api.get(f"failures?group={first['group']}")
    assert [row["group"] for row in only] == [first["group"]]
    assert api.http.get("/api/failures?order=best").status_code == 400


def test_failures_of_lost_leases_stand_in_the_group_of_their_queue(api):
    name = "lost-leases"
    api.results("submit", items=[{"queue": name, "attempts_max": 1} for _ in range(3)])
    for job in api.results("claim", queue=name, count=3):
        api.results("expire", id=job["id"])

    assert api.http.get("/failed").json()["results"][f"failed-retries-{name}"] == 3
    page = api.http.get(f"/failed/failed-retries-{name}?count=2").json()
    assert len(page["results"]) == 2
    rest = api.http.get(f"/failed/failed-retries-{name}?count=2&after={page['next']}").json()
    assert len(rest["results"]) == 1
    assert rest["next"] is None


def test_a_worker_that_is_gone_gives_back_what_it_held(api, queue):
    """S5: what it was running fails as its death, the rest is not charged."""
    api.results("submit", items=[{"queue": queue} for _ in range(3)])
    running, *waiting = api.results("claim", queue=queue, count=3, worker=f"w-{queue}")

    gone = api.results(
        "depart",
        worker=f"w-{queue}",
        reason="killed by signal 9",
        running=[{"id": running["id"], "token": running["token"]}],
    )

    assert gone == {"worker": f"w-{queue}", "given_back": 2}
    failed = api.get(f"jobs/{running['id']}")
    assert failed["failure"]["code"] == "worker_died"
    assert (failed["failure"]["message"], failed["attempts_used"]) == ("killed by signal 9", 1)
    for job in waiting:
        shown = api.get(f"jobs/{job['id']}")
        assert (shown["state"], shown["attempts_used"]) == ("ready", 0)


def test_a_departure_without_a_name_is_refused(api):
    """S5."""
    assert api.error("depart", worker="") == (400, "invalid_body")
    many = [{"id": "a", "token": "t"}] * 501
    assert api.error("depart", worker="w", running=many) == (400, "invalid_body")


def put(api, path: str, **body) -> dict:
    answer = api.http.put(f"/api/{path}?if_absent=true", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_settings_are_made_where_there_are_none(api, queue):
    """S7."""
    for count, applied in ((3, True), (4, False)):
        answer = put(api, f"queues/{queue}", policy={"concurrency_max": count})
        assert answer == {"name": queue, "applied": applied}
        answer = put(api, f"limits/{queue}", concurrency_max=count)
        assert answer == {"name": queue, "applied": applied}
        answer = put(api, f"schedules/{queue}", queue=queue, interval_ms=count * 3_600_000)
        assert answer["applied"] is applied
        assert ("next_at" in answer) is applied

    assert api.get(f"queues/{queue}")["policy"]["concurrency_max"] == 3
    assert [row["concurrency_max"] for row in api.get("limits") if row["name"] == queue] == [3]
    [schedule] = [row for row in api.get("schedules") if row["id"] == queue]
    assert schedule["interval_ms"] == 3 * 3_600_000


def test_a_misspelt_parameter_of_a_setting_is_refused(api, queue):
    """S7."""
    for query in ("if_absent=yes", "if_abesnt=true"):
        answer = api.http.put(f"/api/limits/{queue}?{query}", json={"concurrency_max": 1})
        assert answer.json()["error"]["code"] == "invalid_query"
