"""The endpoints, the transport and the ids of the qless API."""

import json
import re
from urllib.parse import quote

import pytest

from manyhands.model.identity import uid_of
from tests.e2e.qless.talk import Qless, Wire
from tests.e2e.serving import serving

STORES = ("memory", "postgresql")
HEX32 = re.compile(r"[0-9a-f]{32}")


def test_qe1_one_item_is_taken_as_an_object(q, queue):
    q.add(queue, {"n": 1})

    item = q.take(queue)

    assert (item["queue"], item["meta"], item["heartbeat"]) == (queue, {"n": 1}, 60)
    assert {"lease", "attempt", "priority", "expires", "retries_left"} <= set(item)
    assert "cutoff" not in item
    assert q.take(queue) is None


def test_qe1_an_item_tells_what_other_protocols_call_the_job(one, queue, fresh):
    ids = one.results(f"/add/{queue}", [{"meta": 1}, {"meta": 2, "id": fresh()}])
    taken = {item["id"]: item["uid"] for item in one.take(queue, 2)}

    assert taken == {job_id: uid_of(job_id) for job_id in ids}
    assert {one.job(job_id)["uid"] for job_id in ids} == set(taken.values())


def test_qe2_several_items_are_taken_as_an_array(q, queue):
    q.add(queue, 1, 2, 3)

    assert [item["meta"] for item in q.take(queue, 2)] == [1, 2]
    assert [item["meta"] for item in q.take(queue, 2)] == [3]
    assert q.take(queue, 2) == []


def test_qe3_the_short_form_takes_too(q, queue):
    q.add(queue, 1, 2)

    assert [item["meta"] for item in q.get(f"/{queue}/5")] == [1, 2]
    assert q.problem(q.http.get(f"/{queue}")) == (404, "not_found")


@pytest.mark.parametrize(
    "word",
    ["get", "fail", "retry", "cancel", "readyz", "openapi.json", "schemas", "0.2.0", "job", "ui"],
)
def test_qe3_a_reserved_first_segment_never_takes(q, word):
    q.add(word, 1)

    q.http.get(f"/{word}/5")

    assert q.counts(word, "waiting", "pending") == [1, 0]


def test_qe4_a_heartbeat_renews_and_tells_the_seconds(one, queue):
    one.set(queue, heartbeat=300)
    ids = one.add(queue, 1, 2)
    one.take(queue, 2)

    assert one.beat(queue, *ids) == ([300, 300], {})


def test_qe5_the_misspelt_heartbeat_works_and_says_that_it_is_old(one, queue):
    """QA2: the alias is kept."""
    [job_id] = one.add(queue, 1)
    one.take(queue)

    response = one.post(f"/hearbeat/{queue}", [job_id])

    assert response.json()["results"] == [60]
    assert response.headers["deprecation"] == "true"
    assert "deprecation" not in one.post(f"/heartbeat/{queue}", [job_id]).headers


def test_qe6_complete_answers_the_ids_that_are_complete(one, queue):
    ids = one.add(queue, 1, 2)
    one.take(queue, 2)

    assert one.complete(queue, *reversed(ids)) == list(reversed(ids))
    assert one.state(ids[0]) == ("complete", None)


def test_qe7_add_answers_an_id_for_each_item(q, queue):
    found = q.results(f"/add/{queue}", [{"meta": "foo", "id": "deed0e7"}, {"meta": "bar"}])

    assert found[0] == "deed0e7"
    assert HEX32.fullmatch(found[1])


def test_qe8_queues_are_listed_with_their_counts(q, queue):
    """QA27: an array of objects, by name."""
    q.add(f"{queue}-b", 1)
    q.add(f"{queue}-a", 1)

    listed = q.get("/queues")

    names = [row["name"] for row in listed]
    assert names == sorted(names)
    assert {f"{queue}-a", f"{queue}-b"} <= set(names)
    row = next(row for row in listed if row["name"] == f"{queue}-a")
    assert (row["waiting"], row["pending"]) == (1, 0)
    assert set(row) == {
        *("name", "waiting", "pending", "scheduled", "blocked", "stalled", "failed"),
        *("recurring", "paused", "workers", "oldest_waiting"),
    }
    assert q.problem(q.http.get("/queues/never-heard-of")) == (404, "not_found")


def test_qe9_a_job_is_shown(q, one, queue, fresh):
    """QA28, QA29: its queue while it waits or runs, and 404 for what names no job."""
    job_id = q.add_id(queue, fresh(), {"a": []})

    assert (q.job(job_id)["state"], q.job(job_id)["queue"]) == ("waiting", queue)
    one.take(queue)
    shown = q.job(job_id)
    assert (shown["state"], shown["queue"], shown["host"]) == ("pending", queue, "worker-1")
    assert 0 < shown["heartbeat"] <= 60
    one.complete(queue, job_id, meta=1)
    assert (q.job(job_id)["state"], q.job(job_id)["queue"]) == ("complete", None)
    for unknown in ("abc123abc123", "not-hex", "%ff", "x" * 300, "a/b/c"):
        assert q.problem(q.http.get(f"/job/{unknown}")) == (404, "not_found")


def test_qe9_of_very_many_dependents_the_first_thousand_are_named_and_all_are_counted(q, queue):
    [job_id] = q.add(queue, 1)
    dependents = q.add(f"{queue}-2", *range(1_001), depends=[job_id])

    shown = q.job(job_id)

    assert shown["dependents"] == dependents[:1_000]
    assert shown["dependents_count"] == 1_001


def test_qe10_there_is_an_index_for_programs_and_a_page_for_people(q):
    assert q.get("/")["name"] == "manyhands"
    page = q.http.get("/ui/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")


def test_qt1_answers_are_json_that_nobody_stores(q, queue):
    for response in (q.http.get(f"/get/{queue}"), q.http.get("/nowhere")):
        assert response.headers["content-type"] == "application/json; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        assert response.http_version == "HTTP/1.1"


def test_qt2_results_are_always_there_and_errors_only_with_an_error(q, queue):
    """QA6: nothing to hand out is no error."""
    nothing = q.http.get(f"/get/{queue}")
    wrong = q.http.get(f"/get/{queue}/0")

    assert nothing.status_code == 200
    assert nothing.json().keys() == {"results", "time"}
    assert nothing.json()["results"] is None
    assert wrong.json()["results"] is None
    assert wrong.status_code == 400


def test_qt3_an_error_has_a_code_and_a_sentence(q):
    """QA8."""
    error = q.http.get("/nowhere").json()["error"]

    assert error["code"] == "not_found"
    assert " " in error["message"]


def test_qt4_refused_items_are_listed_beside_the_results(q, queue):
    """QA7: they stay inside a 200."""
    response = q.post(f"/add/{queue}", [{"meta": 1}, {"id": "xyz", "meta": 1}])

    assert response.status_code == 200
    [error] = response.json()["errors"]
    assert (error["index"], error["id"], error["code"]) == (1, "xyz", "invalid_id")
    assert "errors" not in q.post(f"/add/{queue}", [{"meta": 1}]).json()


def test_qt5_every_answer_tells_how_long_it_took(q, queue):
    """QA9: in milliseconds."""
    for response in (q.http.get(f"/get/{queue}"), q.http.get("/queues"), q.http.get("/nowhere")):
        assert 0 <= response.json()["time"]["total"] < 60_000


def test_qt6_the_load_is_told_on_request(q, queue, tmp_path):
    """QA10: a share of a core, and MiB; always, if configured."""
    for path in (f"/get/{queue}", "/queues"):
        load = q.http.get(f"{path}?load=1").json()["load"]
        assert 0 <= load["cpu"] < 64
        assert 10 < load["memory"] < 4096
        assert "load" not in q.http.get(path).json()
    with serving(tmp_path, "--store", "memory", "--qless-load") as other:
        busy = Qless(other)
        assert busy.http.get("/queues").json()["load"]["memory"] > 10
        busy.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"host": "a"}', "missing_data"),
        (b"[1]", "invalid_body"),
        (b'"x"', "invalid_body"),
        (b'{"data": {}}', "invalid_body"),
        (b'{"data": 3}', "invalid_body"),
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"data": [], "host": ""}', "invalid_host"),
        (b'{"data": [], "host": 5}', "invalid_host"),
        (b'{"data": [], "host": "a\\u0000b"}', "invalid_host"),
        (b'{"data": [], "host": "%s"}' % (b"x" * 256), "invalid_host"),
        (b'{"data": [{"meta": NaN}]}', "invalid_json"),
        (b'{"data": [{"meta": -Infinity}]}', "invalid_json"),
        (b'{"data": [{"meta": "\xff"}]}', "invalid_json"),
        (b'{"data": [{"meta": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "invalid_json"),
    ],
)
@pytest.mark.parametrize("route", ["add", "complete", "heartbeat", "fail", "retry"])
def test_qt7_a_body_is_an_object_with_data(q, route, body, code):
    headers = {"content-type": "application/json"}

    response = q.http.post(f"/{route}/q", content=body, headers=headers)

    assert q.problem(response) == (400, code)


def test_qt7_other_keys_of_a_body_are_ignored(q, queue):
    response = q.http.post(
        f"/add/{queue}", json={"data": [{"meta": 1, "colour": "red"}], "x": {"y": 1}}
    )

    assert "errors" not in response.json()


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_qt8_only_json_is_listened_to(q, queue, kind):
    headers = {} if kind is None else {"content-type": kind}
    for path in (f"/add/{queue}", f"/get/{queue}", "/cancel"):
        response = q.http.post(path, content=b'{"data": []}', headers=headers)
        assert q.problem(response) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"]
)
def test_qt8_all_kinds_of_json_will_do(q, queue, kind):
    response = q.http.post(f"/add/{queue}", content=b'{"data": []}', headers={"content-type": kind})

    assert response.json()["results"] == []


def test_qt9_an_empty_batch_is_fine(one, queue):
    for route in ("add", "complete", "heartbeat", "fail", "retry"):
        assert one.results(f"/{route}/{queue}", []) == []


def test_qt9_a_batch_too_long_is_refused_whole(q, queue):
    """QA39."""
    response = q.post(f"/add/{queue}", [{"meta": 1}] * 10_001)

    assert q.problem(response) == (413, "too_large")
    assert q.problem(q.http.get(f"/queues/{queue}")) == (404, "not_found")


def test_qt9_ten_thousand_items_go_in_one_batch(one, queue):
    ids = one.add(queue, *range(10_000))

    assert len(set(ids)) == 10_000
    taken = one.take(queue, 10_000)
    assert [item["meta"] for item in taken] == list(range(1_000))
    beats, refused = one.beat(queue, *ids)
    assert beats[:1_000] == [60] * 1_000
    assert set(refused.values()) == {"not_running"}
    done, refused = one.told(f"/complete/{queue}", [{"id": i, "meta": 0} for i in ids])
    assert done == ids[:1_000]
    assert len(refused) == 9_000


def test_qt9_one_meta_too_large_is_refused_alone(q, queue):
    found, refused = q.told(f"/add/{queue}", [{"meta": "x" * (1 << 20)}, {"meta": 2}])

    assert found[0] is False
    assert HEX32.fullmatch(found[1])
    assert refused == {0: "too_large"}


def test_qt9_a_body_too_large_is_refused(q, queue):
    big = b'{"data": [{"meta": "' + b"x" * (16 << 20) + b'"}]}'

    response = q.http.post(
        f"/add/{queue}", content=big, headers={"content-type": "application/json"}
    )

    assert q.problem(response) == (413, "too_large")


def test_qt10_items_succeed_or_fail_by_themselves_and_what_is_told_is_durable(tmp_path):
    """QA36, QB62: after a kill nothing is missing that was acknowledged."""
    with serving(tmp_path) as server:
        worker = Qless(server, "w")
        worker.set("q", heartbeat=3600)  # however long the restart takes
        results, refused = worker.told(
            "/add/q", [{"meta": 1, "id": "a1"}, {"meta": 2, "id": "!"}, {"meta": 3, "id": "a3"}]
        )
        assert results == ["a1", False, "a3"]
        assert refused == {1: "invalid_id"}
        lease = worker.take("q")["lease"]
        worker.close()
        server.process.kill()
        server.process.wait()
    (tmp_path / "ready").unlink()
    with serving(tmp_path) as server:
        worker = Qless(server, "w")
        assert worker.counts("q", "waiting", "pending") == [1, 1]
        done = worker.results("/complete/q", [{"id": "a1", "meta": None, "lease": lease}])
        assert done == ["a1"]
        worker.close()


EXACT = [
    "[]",
    "{}",
    "9223372036854775809",
    "1.10",
    "-0",
    "1e400",
    '{"a":1,"a":2}',
    '"\\u00e9"',
    '"é"',
    "null",
    "[ 1 , 2 ]",
]


def test_qt11_meta_comes_back_as_the_text_that_was_sent(q, queue):
    """QA25, QB12: any JSON value."""
    items = ",".join(f'{{"meta": {meta}}}' for meta in EXACT).encode()
    q.http.post(
        f"/add/{queue}",
        content=b'{"data": [' + items + b"]}",
        headers={"content-type": "application/json"},
    )

    text = q.http.get(f"/get/{queue}/50").text

    for meta in EXACT:
        assert f'"meta":{meta}' in text


@pytest.mark.parametrize("name", ["a/b", "ä ö", "x.y", "100%", "-", "q" * 255, "a?b#c"])
def test_qt12_any_decent_name_is_a_queue(q, name):
    path = quote(name, safe="")
    made = q.results(f"/add/{path}", [{"meta": 1}])

    item = q.http.get(f"/get/{path}/1/").json()["results"]
    assert (item["id"], item["queue"]) == (made[0], name)
    assert q.queue(name)["name"] == name


@pytest.mark.parametrize("path", ["%00", "a%0ab", "%ff", "..", "%2e", "q" * 256, "", "%C2%85"])
def test_qt12_an_indecent_name_is_refused(served, path):
    for route in (f"/get/{path}/5", f"/get/{path}/"):
        with Wire(served) as wire:
            assert wire.ask("GET", route) == (400, "invalid_queue"), route
    with Wire(served) as wire:
        body = b'{"data": [{"meta": 1}]}'
        asked = wire.ask("POST", f"/add/{path}/", body, Content_Type="application/json")
    assert asked == (400, "invalid_queue")


def test_qt13_unknown_parameters_and_keys_are_ignored(q, queue):
    q.results(f"/add/{queue}?what=ever", [{"meta": 1, "klass": "X"}])

    assert q.http.get(f"/get/{queue}?colour=red&host=w").json()["results"]["meta"] == 1


@pytest.mark.parametrize("length", [1, 9, 31, 32, 33, 128])
def test_qi1_ids_are_hexadecimal_of_any_length(q, queue, length):
    """QA23."""
    job_id = f"{length:02x}" + "b" * (length - 2) if length > 1 else "7"

    assert q.add_id(queue, job_id) == job_id
    assert q.job(job_id)["id"] == job_id


def test_qi2_ids_compare_without_case(one, queue, fresh):
    job_id = "ABCDEF" + fresh()

    assert one.add_id(queue, job_id) == job_id.lower()
    assert one.told(f"/add/{queue}", [{"id": job_id, "meta": 1}])[1] == {0: "duplicate"}
    one.take(queue)
    assert one.beat(queue, job_id) == ([60], {})
    assert one.complete(queue, job_id) == [job_id.lower()]
    assert one.job(job_id)["id"] == job_id.lower()


def test_qi3_the_server_assigns_ids_in_order_of_time(q, queue):
    first, second, third = q.results(
        f"/add/{queue}", [{"meta": 1}, {"meta": 2, "id": None}, {"meta": 3}]
    )

    assert first < second < third
    assert all(HEX32.fullmatch(found) for found in (first, second, third))


@pytest.mark.parametrize("bad", ["a-b", "0x12", "a b", "", 7, "f" * 129, "gg", [], "é"])
def test_qi4_a_malformed_id_refuses_its_item(one, queue, bad):
    assert one.told(f"/add/{queue}", [{"id": bad, "meta": 1}]) == ([False], {0: "invalid_id"})
    assert one.told(f"/complete/{queue}", [{"id": bad, "meta": 1}]) == ([], {0: "invalid_id"})
    assert one.told(f"/heartbeat/{queue}", [{"id": bad}]) == ([False], {0: "invalid_id"})


def test_qi4_any_text_is_an_id_where_the_server_is_told_so(tmp_path):
    with serving(tmp_path, "--store", "memory", "--qless-id-policy", "any") as server:
        worker = Qless(server, "w")
        names = ["urn:a/b c", "é-1", "x" * 255, "-"]
        assert worker.results("/add/q", [{"id": n, "meta": n} for n in names]) == names
        again = worker.post("/add/q", [{"id": names[0], "meta": 1}]).json()
        assert again["errors"][0] | {"message": ""} == {
            "index": 0,
            "id": names[0],
            "code": "duplicate",
            "message": "",
            "state": "waiting",
            "queue": "q",
        }
        assert [item["id"] for item in worker.take("q", 9)] == names
        assert worker.beat("q", *names) == ([60] * 4, {})
        assert worker.complete("q", names[0], meta="done") == [names[0]]
        assert worker.results("/fail/q", [{"id": names[1], "group": "g"}]) == [names[1]]
        assert worker.results("/cancel", [names[2]]) == [names[2]]
        assert worker.results("/move", [{"id": names[3], "queue": "p"}]) == [names[3]]
        for name, state in zip(names, ("complete", "failed", "cancelled", "waiting"), strict=True):
            shown = worker.get(f"/job/{quote(name, safe='')}")
            assert (shown["id"], shown["state"]) == (name, state)
        assert [row["id"] for row in worker.get("/failed/g")] == [names[1]]
        worker.add_id("q", "child", depends=["-"])
        assert worker.job("child")["depends"] == ["-"]
        assert worker.job("-")["dependents"] == ["child"]
        worker.close()


def test_qi4_digits_stay_what_they_are_among_any_text(tmp_path):
    """QI2: they compare without case, and other text does not."""
    with serving(tmp_path, "--store", "memory", "--qless-id-policy", "any") as server:
        worker = Qless(server, "w")
        items = [{"id": name, "meta": 1} for name in ("ABC", "abc", "Job", "job", "JOB")]
        assert worker.told("/add/q", items) == (
            ["abc", False, "Job", "job", "JOB"],
            {1: "duplicate"},
        )
        assert worker.job("ABC")["id"] == "abc"
        bad = ["", "x" * 256, "a\nb", "\x00", 7, []]
        data = [{"id": name, "meta": 1} for name in bad]
        assert set(worker.told("/add/q", data)[1].values()) == {"invalid_id"}
        recurring = [{"id": "Job", "meta": 1, "interval": 60}]
        assert worker.told("/recurring/q", recurring)[1] == {0: "duplicate"}
        worker.results("/recurring/q", [{"id": "nightly", "meta": 1, "interval": 60, "offset": 60}])
        assert worker.told("/add/q", [{"id": "nightly", "meta": 1}])[1] == {0: "duplicate"}
        shapes = worker.http.get("/openapi.json").json()["components"]["schemas"]
        assert shapes["Id"]["maxLength"] == 255
        worker.close()


def test_qi4_a_job_with_a_text_for_an_id_is_the_same_after_a_restart(tmp_path):
    with serving(tmp_path, "--qless-id-policy", "any") as server:
        worker = Qless(server, "w")
        worker.add_id("q", "my job")
        worker.add_id("q", "my other job")
        worker.take("q")
        worker.complete("q", "my job")
        before = worker.job("my job")["history"]
        worker.close()
        assert server.stop() == 0
    with serving(tmp_path, "--qless-id-policy", "any") as server:
        worker = Qless(server, "w")
        assert worker.job("my job")["state"] == "complete"
        assert worker.add_id("q", "my job") == "my job"
        assert [item["id"] for item in worker.take("q", 5)] == ["my other job", "my job"]
        history = worker.job("my job")["history"]
        assert [row["what"] for row in history].count("put") == 2
        assert history[: len(before)] == before
        worker.close()
        assert server.stop() == 0
    with serving(tmp_path, "--qless-id-policy", "any") as server:
        worker = Qless(server, "w")
        assert worker.job("my job")["history"] == history
        worker.close()


def test_qi5_jobs_of_every_protocol_are_shown(q, queue):
    made = q.http.post("/api/submit", json={"queue": queue, "payload": "x", "encoding": "text"})
    job_id = made.json()["results"]["id"]

    shown = q.job(job_id)

    assert (shown["protocol"], shown["meta"]) == ("native", "x")
    dashed = f"{job_id[:8]}-{job_id[8:12]}-{job_id[12:16]}-{job_id[16:20]}-{job_id[20:]}"
    assert q.job(dashed)["id"] == job_id


def test_qb63_the_conversation_of_the_first_document(q, two):
    """Verbatim: two are added, taken without a name, renewed by a name, one is lost."""
    work = "work"
    body = {"host": "worker-1", "data": [{"meta": "foo", "id": "deedee"}, {"meta": "bar"}]}
    added = q.http.post("/add/work", json=body)
    assert added.status_code == 200
    first, second = added.json()["results"]
    assert first == "deedee"
    assert HEX32.fullmatch(second)

    taken = q.get("/get/work/2")
    assert [item["id"] for item in taken] == [first, second]
    assert all({"meta", "id", "queue", "heartbeat"} <= set(item) for item in taken)

    beat = {"host": "worker-1", "data": [first, second]}
    renewed = q.http.post("/hearbeat/work", json=beat).json()["results"]
    assert [type(seconds) for seconds in renewed] == [int, int]

    # Worker 1 falls silent about the second one, and its time is over: worker 2 gets it.
    q.results("/timeout", [{"id": second}])
    assert two.take(work)["id"] == second

    again = q.http.post("/heartbeat/work", json=beat).json()["results"]
    assert again == [60, False]

    both = {
        "host": "worker-1",
        "data": [{"meta": "done", "id": first}, {"meta": "done", "id": second}],
    }
    completed = q.http.post("/complete/work", json=both).json()
    assert completed["results"] == [first]
    assert completed["errors"][0]["code"] == "lock_lost"

    shown = q.job(first)
    assert (shown["state"], shown["queue"], shown["meta"]) == ("complete", None, "done")
    two.beat(work, second)
    assert q.counts(work, "waiting", "pending") == [0, 1]


def test_the_index_names_the_routes(q):
    endpoints = q.get("/")["endpoints"]

    assert "POST /add/{queue}" in endpoints
    assert "GET /queues" in endpoints
    assert json.dumps(endpoints)
