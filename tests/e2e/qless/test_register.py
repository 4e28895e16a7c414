"""Who holds a lock, its life cycle, the case tables, and the register of decisions."""

import threading
from urllib.parse import quote

import pytest

from tests.e2e.qless.talk import Qless, Wire, wait_until
from tests.e2e.serving import run, serving


def leased(client, queue: str, meta=1, **options) -> str:
    """A job that the client holds."""
    [job_id] = client.add(queue, meta, **options)
    assert client.take(queue)["id"] == job_id
    return job_id


def test_qa1_the_long_form_and_the_short_form_take_the_same(q, queue):
    q.add(queue, 1, 2)

    assert q.http.get(f"/get/{queue}/2").json()["results"][0]["meta"] == 1
    assert q.get(f"/{queue}/1") is None


def test_qa3_the_shape_follows_the_number_asked_for(q, queue):
    """QA4, QA5: fewer than asked is an array of fewer; ?array=1 is always an array."""
    q.add(queue, 1, 2, 3, 4)

    assert q.take(queue, 1)["meta"] == 1
    assert [item["meta"] for item in q.take(queue, 1, array=1)] == [2]
    assert [item["meta"] for item in q.take(queue, array=1)] == [3]
    assert [item["meta"] for item in q.take(queue, 5)] == [4]
    assert q.take(queue, 5) == []
    assert q.take(queue, 1) is None


def test_qa3_the_shape_of_one_and_of_nothing_can_be_chosen(tmp_path):
    """QA6: for those who read the first document otherwise."""
    options = ("--qless-count-one", "array", "--qless-empty", "object")
    with serving(tmp_path, "--store", "memory", *options) as other:
        client = Qless(other)
        client.add("q", 1, 2, 3)
        assert [item["meta"] for item in client.take("q", 1)] == [1]
        assert [item["meta"] for item in client.get("/q/1")] == [2]
        assert client.take("q")["meta"] == 3
        assert client.take("q", 1) == []
        nothing = client.http.get("/get/q")
        assert (nothing.status_code, nothing.json()["results"]) == (200, {})
        assert "error" not in nothing.json()
        client.close()


@pytest.mark.parametrize("count", ["0", "-1", "abc", "1.5", "00", "%31", "\uff11", "+2", "0x1"])
def test_qa39_a_count_that_is_none_is_refused(served, q, queue, count):
    q.add(queue, 1)

    asked = q.problem(q.http.get(f"/get/{queue}/{quote(count, safe='%')}"))

    assert asked == (400, "invalid_count")
    assert q.counts(queue, "waiting") == [1]
    with Wire(served) as wire:
        assert wire.ask("GET", f"/get/{queue}//") == (400, "invalid_count")


def test_qa39_a_count_too_large_is_clamped(q, queue):
    q.add(queue, 1)

    assert len(q.take(queue, 10**30)) == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_qa11_other_methods_are_answered_with_what_is_allowed(served, q, queue, method):
    q.add(queue, 1)

    for path, allow in (
        (f"/get/{queue}", "GET, POST"),
        (f"/add/{queue}", "POST"),
        (f"/{queue}/5", "GET"),
        ("/cancel", "POST"),
    ):
        with Wire(served) as wire:
            wire.send(method, path)
            status, headers, _ = wire.answer(body=False)
        if method == "OPTIONS":
            assert (status, headers["allow"]) == (204, f"{allow}, OPTIONS")
        else:
            assert (status, headers["allow"]) == (405, allow)
    assert q.counts(queue, "waiting", "pending") == [1, 0]


def test_qa12_named_workers_on_one_machine_are_kept_apart(q, one, two, queue):
    """QA13: a name on GET comes from the query or from a header."""
    mine = leased(one, queue)
    q.add(queue, 2)
    theirs = q.http.get(f"/get/{queue}", headers={"X-Qless-Host": "worker-2"})

    assert one.beat(queue, mine) == ([60], {})
    assert two.beat(queue, mine) == ([False], {0: "lock_lost"})
    assert q.beat(queue, mine) == ([False], {0: "lock_lost"})
    assert two.beat(queue, theirs.json()["results"]["id"]) == ([60], {})
    bad = q.http.get(f"/get/{queue}", params={"host": "a\x01b"})
    assert q.problem(bad) == (400, "invalid_host")
    bad = q.http.get(f"/get/{queue}", headers={"X-Qless-Host": b"\xff"})
    assert q.problem(bad) == (400, "invalid_host")


def test_qa13_the_first_named_request_adopts_an_anonymous_lock(q, one, two, queue):
    job_id = leased(q, queue)

    assert q.beat(queue, job_id) == ([60], {})
    assert one.beat(queue, job_id) == ([60], {})
    assert two.beat(queue, job_id) == ([False], {0: "lock_lost"})
    assert q.beat(queue, job_id) == ([False], {0: "lock_lost"})
    assert one.job(job_id)["host"] == "worker-1"


def test_qa13_who_has_no_name_goes_by_the_address(q, one, queue):
    """A worker that calls itself by its address and one that says nothing there are the same."""
    job_id = leased(q.also("127.0.0.1"), queue)

    assert one.beat(queue, job_id) == ([False], {0: "lock_lost"})
    assert q.beat(queue, job_id) == ([60], {})
    assert q.complete(queue, job_id) == [job_id]


def test_qa13_the_lease_token_proves_more_than_any_name(q, one, two, queue):
    q.add(queue, 1)
    item = one.take(queue)

    beat = two.beat(queue, {"id": item["id"], "lease": item["lease"]})
    wrong = one.beat(queue, {"id": item["id"], "lease": "0" * 32})

    assert beat == ([60], {})
    assert wrong == ([False], {0: "lock_lost"})


def test_qa14_only_a_trusted_proxy_says_who_the_sender_is(q, queue, tmp_path):
    job_id = leased(q, queue)
    spoofed = {"X-Forwarded-For": "10.9.9.9", "Forwarded": "for=10.9.9.9"}

    assert q.told(f"/heartbeat/{queue}", [job_id], **spoofed) == ([60], {})
    with serving(tmp_path, "--store", "memory", "--trusted-proxies", "127.0.0.0/8") as other:
        behind = Qless(other)
        behind.add("q", 1)
        [item] = behind.http.get("/get/q/2", headers=spoofed).json()["results"]
        asked = behind.told("/heartbeat/q", [item["id"]])
        assert asked == ([False], {0: "lock_lost"})
        for header in (
            {"Forwarded": 'for="[::ffff:10.9.9.9]";proto=http, for=127.0.0.1'},
            {"X-Forwarded-For": "1.2.3.4, 10.9.9.9, 127.0.0.5"},
        ):
            assert behind.told("/heartbeat/q", [item["id"]], **header) == ([60], {})
        behind.close()


def test_qa15_a_host_has_a_record(q, queue, fresh):
    worker = q.also(f"w-{fresh()}")
    job_id = leased(worker, queue)
    worker.complete(queue, job_id)
    leased(worker, queue)

    record = wait_until(
        lambda: (found := q.get(f"/workers/{worker.host}"))["completed"] == 1 and found
    )

    assert (record["taken"], record["pending"], record["lost"]) == (2, 1, 0)
    assert record["address"] == "127.0.0.1"
    assert worker.host in [row["name"] for row in q.get("/workers")]
    assert q.problem(q.http.get("/workers/nobody-ever")) == (404, "not_found")


def test_qa16_a_heartbeat_answers_relative_seconds(one, queue):
    """QA42: durations in, durations out."""
    one.set(queue, heartbeat=90.9)

    assert one.beat(queue, leased(one, queue)) == ([90], {})


def test_qa17_every_case_of_a_heartbeat(one, two, queue):
    """QB19: and of an unknown id, and of what is none."""
    mine = leased(one, queue)
    theirs = leased(two, queue)
    complete, failed, cancelled = (leased(one, queue) for _ in range(3))
    one.complete(queue, complete)
    one.results(f"/fail/{queue}", [{"id": failed, "group": "g"}])
    one.results("/cancel", [cancelled])
    elsewhere = leased(one, f"{queue}-2")
    scheduled = one.add(queue, 1, delay=600)[0]
    blocked = one.add(queue, 1, depends=[scheduled])[0]
    waiting = one.add(queue, 1)[0]

    asked = [mine, theirs, waiting, scheduled, blocked, complete, failed, cancelled, elsewhere]
    results, codes = one.beat(queue, *asked, "abcabcabc", "no id", 5, mine)

    assert results == [60] + [False] * 11 + [60]
    assert [codes[index] for index in range(1, 12)] == [
        *("lock_lost", "not_running", "not_running", "not_running"),
        *("complete", "failed", "cancelled", "wrong_queue", "not_found", "invalid_id"),
        "invalid_item",
    ]


def test_qa18_every_case_of_a_complete(one, two, queue):
    """QB28, QB29, QB30: refused items are absent from the results, and nothing changes."""
    mine, theirs = leased(one, queue), leased(two, queue, meta="kept")
    failed, cancelled = leased(one, queue), leased(one, queue)
    one.results(f"/fail/{queue}", [{"id": failed, "group": "g"}])
    two.results("/cancel", [cancelled])
    elsewhere = leased(one, f"{queue}-2")
    scheduled = one.add(queue, 1, delay=600)[0]
    blocked = one.add(queue, 1, depends=[scheduled])[0]
    waiting = one.add(queue, 1)[0]
    asked = [mine, theirs, failed, cancelled, elsewhere, scheduled, blocked, waiting, "abcabc"]
    data = [{"id": job_id, "meta": "new"} for job_id in asked]
    data += [{"id": "no id", "meta": 1}, 5, {"id": mine}, {"meta": 1}]

    results, codes = one.told(f"/complete/{queue}", data)

    assert results == [mine]
    assert [codes[index] for index in range(1, 13)] == [
        *("lock_lost", "failed", "lock_lost", "wrong_queue", "not_running", "not_running"),
        *("not_running", "not_found", "invalid_id", "invalid_item", "missing_meta", "invalid_id"),
    ]
    assert one.job(theirs)["meta"] == "kept"
    [error] = one.post(f"/complete/{queue}", [{"id": elsewhere, "meta": 1}]).json()["errors"]
    assert error["queue"] == f"{queue}-2"


def test_qa18_a_repeated_complete_changes_nothing(one, two, queue):
    job_id = leased(one, queue)
    item = {"id": job_id, "meta": {"a": 1}}
    one.results(f"/complete/{queue}", [item])
    updated = one.job(job_id)["updated"]

    assert one.told(f"/complete/{queue}", [item]) == ([job_id], {})
    assert one.job(job_id)["updated"] == updated
    other_meta = {"id": job_id, "meta": {"a": 2}}
    assert one.told(f"/complete/{queue}", [other_meta]) == ([], {0: "already_complete"})
    assert two.told(f"/complete/{queue}", [item]) == ([], {0: "already_complete"})
    assert one.told(f"/complete/{queue}-2", [item]) == ([], {0: "already_complete"})


def test_qa19_complete_ends_the_job_and_next_moves_it_on(one, queue):
    """QB31."""
    first, second = leased(one, queue), leased(one, queue)

    one.complete(queue, first)
    one.results(f"/complete/{queue}", [{"id": second, "meta": "on", "next": f"{queue}-next"}])

    assert one.state(first) == ("complete", None)
    shown = one.job(second)
    assert (shown["state"], shown["queue"], shown["meta"]) == ("waiting", f"{queue}-next", "on")
    assert one.counts(f"{queue}-next", "waiting") == [1]


def test_qa20_a_complete_job_may_be_added_again_unless_configured(one, queue, tmp_path):
    job_id = leased(one, queue)
    one.complete(queue, job_id)

    assert one.add_id(f"{queue}-2", job_id, "again") == job_id
    assert (one.job(job_id)["state"], one.job(job_id)["queue"]) == ("waiting", f"{queue}-2")
    option = ("--qless-dedup-completed", "same_queue")
    with serving(tmp_path, "--store", "memory", *option) as other:
        strict = Qless(other, "w")
        strict.add_id("q", "aa")
        strict.take("q")
        strict.complete("q", "aa")
        asked = strict.told("/add/q", [{"id": "aa", "meta": 1}])
        assert asked == ([False], {0: "already_complete"})
        assert strict.add_id("p", "aa") == "aa"
        strict.close()


@pytest.mark.parametrize("end", ["complete", "failed", "cancelled"])
def test_qa20_whatever_has_finished_comes_back_with_a_new_meta_and_its_history(one, queue, end):
    job_id = leased(one, queue, meta="old")
    if end == "complete":
        one.complete(queue, job_id)
    elif end == "failed":
        one.results(f"/fail/{queue}", [{"id": job_id, "group": "g"}])
    else:
        one.results("/cancel", [job_id])
    assert one.state(job_id)[0] == end
    before = one.job(job_id)["history"]

    assert one.add_id(queue, job_id, "new") == job_id

    shown = one.job(job_id)
    assert (shown["state"], shown["meta"], shown["retries_left"]) == ("waiting", "new", 5)
    assert [row["what"] for row in before[:2]] == ["put", "popped"]
    assert shown["history"][:-1] == before
    assert shown["history"][-1] == {"what": "put", "when": shown["created"]}


def test_qa20_a_job_that_was_requeued_or_moved_shows_when_it_was_put_first(one, queue):
    job_id = leased(one, queue)
    put = one.job(job_id)["history"][0]
    one.complete(queue, job_id)
    one.results("/requeue", [{"id": job_id}])
    one.add_id(f"{queue}-2", job_id, "new", move=True)

    history = one.job(job_id)["history"]

    assert history[0] == put
    assert put["what"] == "put"
    whats = [row["what"] for row in history]
    assert whats == ["put", "popped", "done", "requeued", "moved"]


def test_qa18_a_job_that_was_cancelled_before_anybody_took_it_cannot_be_completed(one, queue):
    [job_id] = one.add(queue, 1)
    one.results("/cancel", [job_id])

    asked = [{"id": job_id, "meta": 2}]
    assert one.told(f"/complete/{queue}", asked) == ([], {0: "cancelled"})
    assert one.job(job_id)["meta"] == 1


def test_qa21_a_live_job_is_neither_moved_nor_overwritten_unless_asked(one, queue, fresh):
    job_id = one.add_id(queue, fresh(), "old")
    here = one.post(f"/add/{queue}", [{"id": job_id, "meta": "new"}]).json()
    there = one.post(f"/add/{queue}-2", [{"id": job_id, "meta": "new"}]).json()

    assert here["results"] == there["results"] == [False]
    assert (here["errors"][0]["code"], here["errors"][0]["state"]) == ("duplicate", "waiting")
    assert there["errors"][0]["code"] == "in_other_queue"
    assert there["errors"][0]["queue"] == queue
    assert one.job(job_id)["meta"] == "old"
    one.take(queue)
    again = one.post(f"/add/{queue}", [{"id": job_id, "meta": 1}]).json()["errors"][0]
    assert (again["code"], again["state"]) == ("duplicate", "pending")
    assert one.add_id(f"{queue}-2", job_id, "new", move=True) == job_id
    assert (one.job(job_id)["queue"], one.job(job_id)["meta"]) == (f"{queue}-2", "new")
    assert one.told(f"/complete/{queue}", [{"id": job_id, "meta": 1}])[1] == {0: "lock_lost"}


def test_qa21_twice_in_one_request_the_first_one_wins(one, queue, fresh):
    job_id = fresh()
    items = [{"id": job_id, "meta": 1}, {"id": job_id, "meta": 2}]

    assert one.told(f"/add/{queue}", items) == ([job_id, False], {1: "duplicate"})
    assert one.job(job_id)["meta"] == 1


def test_qa22_a_retried_add_is_recognised_by_its_key(one, queue, fresh):
    key = {"Idempotency-Key": fresh()}
    chosen = fresh()
    items = [{"meta": 1}, {"meta": 2, "id": chosen}]
    first = one.results(f"/add/{queue}", items, **key)

    assert one.results(f"/add/{queue}", items, **key) == first
    assert one.counts(queue, "waiting") == [2]
    one.take(queue, 2)
    one.complete(queue, *first)
    assert one.results(f"/add/{queue}", items, **key) == first
    assert one.counts(queue, "waiting") == [0]
    without = one.told(f"/add/{queue}", [{"meta": 2, "id": chosen}])
    assert without == ([chosen], {})
    other = one.results(f"/add/{queue}", [{"meta": 1}], **{"Idempotency-Key": fresh()})
    assert other != first[:1]
    for bad in ("", "x" * 256):
        response = one.post(f"/add/{queue}", items, **{"Idempotency-Key": bad})
        assert one.problem(response) == (400, "invalid_idempotency_key")


def test_qa22_a_key_is_not_for_another_request(one, queue, fresh):
    key = {"Idempotency-Key": fresh()}
    first = one.results(f"/add/{queue}", [{"meta": 1}], **key)

    for path, items in ((f"/add/{queue}", [{"meta": 2}]), (f"/add/{queue}-2", [{"meta": 1}])):
        assert one.problem(one.post(path, items, **key)) == (422, "key_reused")

    again = one.post(f"/add/{queue}", [{"meta": 1}], **key)
    assert again.json()["results"] == first
    assert again.headers["Idempotent-Replayed"] == "true"
    assert one.counts(queue, "waiting") == [1]


def test_qa22_a_repeated_add_is_refused_what_was_refused_before(one, queue, fresh):
    key = {"Idempotency-Key": fresh()}
    chosen = fresh()
    items = [{"meta": 1}, {"id": "not hex", "meta": 2}, {"id": chosen, "meta": 3}]
    items.append(items[2])
    first = one.told(f"/add/{queue}", items, **key)
    assert first[0][0]
    one.post(f"/cancel/{queue}", [{"id": chosen}])

    assert one.told(f"/add/{queue}", items, **key) == first


def test_errors_of_a_batch_stand_in_the_order_of_its_items(one, queue, fresh):
    known, unknown = fresh(), fresh()
    items = [
        {"meta": 1, "id": known, "depends": [known]},
        {"meta": 1, "id": fresh(), "depends": [unknown]},
        {"id": fresh()},
        {"meta": 1},
        {"meta": 1, "id": fresh(), "depends": 7},
    ]

    found = one.post(f"/add/{queue}", items).json()["errors"]

    assert [error["index"] for error in found] == [0, 1, 2, 4]
    assert [error["code"] for error in found][:2] == ["cycle", "unknown_dependency"]
    turned_in = one.post(f"/complete/{queue}", [{"id": unknown}, {"id": 7}, {"id": unknown}])
    assert [error["index"] for error in turned_in.json()["errors"]] == [0, 1, 2]


def test_qa24_only_the_holder_changes_the_meta_of_a_running_job(one, two, queue):
    job_id = leased(one, queue, meta="old")

    assert two.beat(queue, {"id": job_id, "meta": "stolen"})[1] == {0: "lock_lost"}
    assert one.job(job_id)["meta"] == "old"
    progress = {"numerator": 3, "denominator": 10}
    beat = one.beat(queue, {"id": job_id, "meta": "new", "progress": progress})
    assert beat == ([60], {})
    shown = one.job(job_id)
    assert (shown["meta"], shown["progress"]["numerator"]) == ("new", 3)
    assert one.beat(queue, job_id) == ([60], {})
    assert one.job(job_id)["meta"] == "new"


def test_qa26_meta_must_be_there_and_may_be_null(one, queue):
    assert one.told(f"/add/{queue}", [{}, {"meta": None}])[1] == {0: "missing_meta"}
    job_id = one.take(queue)["id"]

    assert one.told(f"/complete/{queue}", [{"id": job_id}])[1] == {0: "missing_meta"}
    assert one.complete(queue, job_id, meta=None) == [job_id]
    assert one.job(job_id)["meta"] is None


def test_qa30_a_lapsed_lock_is_waiting_and_stalled_and_still_its_holders(one, two, queue):
    """QB18: heartbeat and complete after expiry succeed as long as nobody else has it."""
    one.set(queue, heartbeat=0.4)
    renewed, completed, taken = one.add(queue, 1, 2, 3)
    assert len(one.take(queue, 3)) == 3
    wait_until(lambda: one.queue(queue)["stalled"] == 3)

    assert one.state(renewed) == ("waiting", "stalled")
    assert one.counts(queue, "waiting", "pending") == [3, 0]
    one.set(queue, heartbeat=60)
    assert one.complete(queue, completed) == [completed]
    assert one.beat(queue, renewed)[0] == [0]
    wait_until(lambda: one.state(renewed) == ("waiting", "stalled"))
    got = {item["id"] for item in two.take(queue, 5)}
    assert got == {renewed, taken}
    assert one.beat(queue, taken) == ([False], {0: "lock_lost"})
    assert two.job(taken)["retries_left"] == 4


def test_qa31_a_failure_is_final_and_a_retry_is_not(one, queue):
    failed, retried = leased(one, queue), leased(one, queue)

    item = {"id": failed, "group": "timeout", "message": "too slow", "meta": {"x": 1}}
    assert one.results(f"/fail/{queue}", [item]) == [failed]
    retry = {"id": retried, "delay": 0, "group": "net", "message": "again"}
    assert one.results(f"/retry/{queue}", [retry]) == [retried]

    shown = one.job(failed)
    assert (shown["state"], shown["meta"]) == ("failed", {"x": 1})
    assert shown["failure"]["group"] == "timeout"
    assert shown["failure"]["message"] == "too slow"
    assert shown["failure"]["host"] == "worker-1"
    assert one.job(retried)["retries_left"] == 4
    assert one.take(queue)["id"] == retried
    bad = [{"id": retried}, {"id": retried, "group": ""}, {"id": retried, "group": 5}]
    assert one.told(f"/fail/{queue}", bad)[1] == {
        0: "missing_group",
        1: "invalid_option",
        2: "invalid_option",
    }


def test_qa32_a_queue_without_heartbeat_never_loses_its_locks_by_silence(one, queue):
    one.set(queue, heartbeat=0)
    [job_id] = one.add(queue, 1)
    item = one.take(queue)

    assert "heartbeat" not in item
    assert "expires" not in item
    [seconds], _ = one.beat(queue, job_id)
    assert seconds > 86_400


def test_qa33_the_cutoff_ends_a_lock_whatever_its_heartbeats(one, two, queue):
    one.set(queue, heartbeat=3600, cutoff=0.3, retries=1)
    [job_id] = one.add(queue, 1)
    item = one.take(queue)
    assert (item["cutoff"], item["heartbeat"]) == (0, 0)
    # It may be over by now.
    assert one.beat(queue, job_id) in (([0], {}), ([False], {0: "not_running"}))
    one.set(queue, cutoff=3600)

    again = two.take(queue, wait=60)

    assert (again["id"], again["retries_left"]) == (job_id, 0)
    assert one.beat(queue, job_id) == ([False], {0: "lock_lost"})
    assert one.told(f"/complete/{queue}", [{"id": job_id, "meta": 1}])[1] == {0: "lock_lost"}
    assert one.results("/timeout", [{"id": job_id}]) == [job_id]
    assert one.take(queue) is None
    wait_until(lambda: one.state(job_id)[0] == "failed")
    assert one.job(job_id)["failure"]["group"] == f"failed-retries-{queue}"


def test_qa33_a_cutoff_of_seconds_is_told_and_bounds_the_heartbeat(one, queue):
    one.set(queue, heartbeat=60, cutoff=30)
    [job_id] = one.add(queue, 1)
    item = one.take(queue)

    assert (item["cutoff"], item["heartbeat"]) == (30, 30)
    assert 0 <= one.beat(queue, job_id)[0][0] <= 30


def test_qa34_a_queue_comes_into_being_by_an_add_and_by_nothing_else(one, queue):
    one.take(queue, 5)
    one.beat(queue, "abc")
    one.told(f"/complete/{queue}", [{"id": "abc", "meta": 1}])
    assert one.problem(one.http.get(f"/queues/{queue}")) == (404, "not_found")

    job_id = leased(one, queue)
    one.complete(queue, job_id)

    assert one.counts(queue, "waiting", "pending") == [0, 0]


def test_qa35_priority_first_then_stalled_then_age(one, two, queue):
    leased(one, queue, meta="stalled", heartbeat=0.05)
    one.add(queue, "low", priority=-1)
    one.add(queue, "a", "b")
    one.add(queue, "high", priority=7)
    wait_until(lambda: one.queue(queue)["stalled"] == 1)

    taken = two.take(queue, 9)

    assert [item["meta"] for item in taken] == ["high", "stalled", "a", "b", "low"]


def test_qa37_what_a_client_never_acknowledged_is_handed_out_again(one, two, queue):
    job_id = leased(one, queue, heartbeat=0.05)

    assert two.take(queue, wait=60)["id"] == job_id


def test_qa38_finished_jobs_are_kept_for_a_while(one, queue):
    """QB33: by number here; by age and by number in the tests of the stores. QB57: their tags
    go with them.
    """
    one.set(queue, keep_count=2)
    ids = [leased(one, queue, tags=[queue]) for _ in range(4)]
    for job_id in ids:
        one.complete(queue, job_id)

    wait_until(lambda: one.http.get(f"/job/{ids[1]}").status_code == 404)

    assert one.problem(one.http.get(f"/job/{ids[0]}")) == (404, "not_found")
    assert one.state(ids[3]) == ("complete", None)
    assert [row["id"] for row in one.get(f"/tags/{queue}", order="oldest")] == ids[2:]


def test_qa40_both_paths_lead_to_the_pages(q):
    moved = q.http.get("/ui")
    assert (moved.status_code, moved.headers["location"]) == (308, "/ui/")
    assert q.http.get("/ui/").status_code == 200


def test_qa41_without_credentials_only_this_machine_is_listened_to(tmp_path):
    ended = run("serve", "--data", str(tmp_path), "--http", "0.0.0.0:0", "--gearman", "off")

    assert ended.returncode != 0
    assert "insecure" in ended.stdout + ended.stderr


def test_a_take_may_wait_for_work(one, q, queue):
    found = []
    worker = threading.Thread(target=lambda: found.append(one.take(queue, wait=60)))
    worker.start()
    wait_until(lambda: "manyhands_sleepers 1.0" in q.http.get("/metrics").text)
    [job_id] = q.add(queue, 1)
    worker.join()

    assert found[0]["id"] == job_id
    assert one.take(queue, 2, wait=0.05) == []


def test_the_safe_form_of_a_take(one, queue):
    ids = one.add(queue, 1, 2, 3)

    first = one.results(f"/get/{queue}", {})
    rest = one.results(f"/get/{queue}/5", {"wait": 1})

    assert [first["id"], *(item["id"] for item in rest)] == ids
    assert one.beat(queue, *ids) == ([60, 60, 60], {})
    assert one.results(f"/get/{queue}", {"array": True, "wait": 0.01}) == []
    for data, code in (({"wait": 61}, "invalid_body"), ({"wait": "x"}, "invalid_body")):
        assert one.problem(one.post(f"/get/{queue}", data)) == (400, code)
    assert one.problem(one.http.get(f"/get/{queue}?wait=61")) == (400, "invalid_query")


def test_options_of_an_add_are_checked_one_by_one(q, queue):
    """QB16: malformed options are refused and nothing is stored."""
    bad = [
        {"priority": "high"},
        {"priority": 1e300},
        {"delay": -1},
        {"delay": "x"},
        {"retries": -2},
        {"retries": 1.5},
        {"tags": "x"},
        {"tags": [1]},
        {"tags": ["a\x01"]},
        {"depends": "abc"},
        {"depends_missing": "maybe"},
        {"heartbeat": -1},
        {"cutoff": "x"},
        {"deadline": -5},
        {"move": "yes"},
        {"limits": [""]},
        {"deadline": 0},
    ]
    data = [{"meta": 1, **options} for options in bad]

    results, codes = q.told(f"/add/{queue}", data)

    assert results == [False] * len(bad)
    wrong = {
        bad[index].popitem()[0]: code for index, code in codes.items() if code != "invalid_option"
    }
    assert wrong == {}
    assert q.http.get(f"/queues/{queue}").status_code == 404


def test_dependencies_that_are_not_there_are_refused_unless_told_otherwise(q, queue, fresh):
    missing = fresh()
    items = [
        {"meta": 1, "depends": [missing]},
        {"meta": 1, "depends": [missing], "depends_missing": "ok"},
        {"meta": 1, "depends": ["no id"]},
    ]

    results, codes = q.told(f"/add/{queue}", items)

    assert codes == {0: "unknown_dependency", 2: "invalid_id"}
    assert q.state(results[1]) == ("waiting", None)


def test_a_cycle_of_dependencies_is_refused(q, queue, fresh):
    first, second = fresh(), fresh()
    q.add_id(queue, first)
    q.add_id(queue, second, depends=[first])

    assert q.told("/depends", [{"id": first, "add": [second]}])[1] == {0: "cycle"}
    moved = {"id": first, "meta": 1, "depends": [second], "move": True}
    assert q.told(f"/add/{queue}", [moved])[1] == {0: "cycle"}


def test_a_deadline_fails_a_job_that_was_not_done_in_time(q, queue):
    [job_id] = q.add(queue, 1, deadline=0.1)

    wait_until(lambda: q.state(job_id) == ("failed", "deadline"))


def test_pieces_of_a_result_are_kept(one, two, queue):
    job_id = leased(one, queue)

    pieces = [{"id": job_id, "data": {"n": 1}}, {"id": job_id, "data": "hm", "warning": True}]
    assert one.results("/partial", pieces) == [1, 2]
    assert two.told("/partial", pieces[:1])[1] == {0: "lock_lost"}
    shown = one.get(f"/job/{job_id}/partials")
    assert [(row["data"], row["warning"]) for row in shown] == [({"n": 1}, False), ("hm", True)]


def names_of_all_pages(q, path: str, key: str) -> list[str]:
    """Two at a time, until there is no next page."""
    found, after = [], ""
    for _ in range(1_000):
        page = q.http.get(path, params={"count": 2, "after": after}).json()
        assert len(page["results"]) <= 2
        found += [row[key] for row in page["results"]]
        after = page["next"]
        if after is None:
            return found
        assert after == found[-1]
    raise AssertionError("there is no last page")


def test_lists_by_name_are_paged(q, queue, fresh):
    names = sorted(f"{fresh()} ü" for _ in range(5))
    for name in names:
        q.results(f"/limits/{quote(name, safe='')}", {"max": 1})
        q.results(f"/recurring/{queue}", [{"id": name, "meta": 1, "interval": 60, "offset": 60}])
        q.also(name).take(queue)
        q.set(name, retries=1)

    lists = (("/limits", "name"), ("/recurring", "id"), ("/workers", "name"), ("/queues", "name"))
    for path, key in lists:
        found = names_of_all_pages(q, path, key)
        assert found == sorted(set(found))
        assert [name for name in found if name in names] == names
        assert found == [row[key] for row in q.get(path)]
        for query in ("count=0", "count=1001", "count=x"):
            assert q.problem(q.http.get(f"{path}?{query}")) == (400, "invalid_query")
    for name in names:
        q.results(f"/limits/{quote(name, safe='')}", {"max": None})
    q.results("/unrecur", names)


def test_the_jobs_of_a_worker_are_paged(q, queue, fresh):
    worker = q.also(f"w-{fresh()}")
    ids = sorted(q.add(queue, 1, 2, 3, 4, 5))
    worker.set(queue, heartbeat=600)
    worker.http.get(f"/get/{queue}/5", params={"host": worker.host}).raise_for_status()
    q.results("/timeout", [{"id": ids[0]}, {"id": ids[3]}])
    path = f"/workers/{quote(worker.host)}"

    everything = q.http.get(path).json()
    first = q.http.get(path, params={"count": 2}).json()
    second = q.http.get(path, params={"count": 2, "after": first["next"]}).json()
    third = q.http.get(path, params={"count": 2, "after": second["next"]}).json()

    def held(answer) -> tuple[list[str], list[str]]:
        return answer["results"]["jobs"], answer["results"]["stalled"]

    assert held(everything) == ([ids[1], ids[2], ids[4]], [ids[0], ids[3]])
    assert held(first) == ([ids[1]], [ids[0]])
    assert held(second) == ([ids[2]], [ids[3]])
    assert held(third) == ([ids[4]], [])
    assert (first["next"], second["next"]) == (ids[1], ids[3])
    assert third["next"] is None
    assert everything["next"] is None
    assert q.problem(q.http.get(f"{path}?count=1001")) == (400, "invalid_query")


def test_groups_of_failures_are_paged_by_their_names(q, one, queue, fresh):
    groups = sorted(f"{fresh()} ü" for _ in range(5))
    for group in groups:
        [job_id] = one.add(queue, 1)
        one.take(queue)
        one.results(f"/fail/{queue}", [{"id": job_id, "group": group}])

    found, after = {}, ""
    for _ in range(1_000):
        page = q.http.get("/failed", params={"count": 2, "after": after}).json()
        assert len(page["results"]) <= 2
        found |= page["results"]
        after = page["next"]
        if after is None:
            break

    assert found == q.get("/failed")
    assert {group: found.get(group) for group in groups} == dict.fromkeys(groups, 1)


def test_a_list_that_does_not_fit_says_where_it_goes_on(tmp_path):
    """To those who ask for no page as well: they get the first thousand, and are told."""
    with serving(tmp_path, "--store", "memory") as server:
        client = Qless(server)
        items = [{"queue": f"q-{number:04}"} for number in range(1_001)]
        client.http.post("/api/submit", json={"items": items}).raise_for_status()
        for path in ("/queues", "/api/queues"):
            answer = client.http.get(path).json()
            assert [row["name"] for row in answer["results"]] == [f"q-{n:04}" for n in range(1_000)]
            assert answer["next"] == "q-0999"
        client.close()


def test_a_named_limit_holds_over_queues(one, queue, fresh):
    limit = fresh()
    one.results(f"/limits/{limit}", {"max": 1})
    for name in (f"{queue}-a", f"{queue}-b"):
        one.add(name, 1, limits=[limit])

    first = one.take(f"{queue}-a")
    assert one.take(f"{queue}-b") is None
    row = next(row for row in one.get("/limits") if row["name"] == limit)
    assert (row["max"], row["used"]) == (1, 1)
    one.complete(f"{queue}-a", first["id"])
    assert one.take(f"{queue}-b") is not None
    one.results(f"/limits/{limit}", {"max": None})
    assert limit not in [row["name"] for row in one.get("/limits")]


def test_settings_of_a_queue_are_kept_until_they_are_unset(q, queue):
    q.set(queue, heartbeat=5, grace=1, retries=2, backoff={"first": 2}, max_concurrency=3)
    q.set(queue, cutoff=9, retries=None, rate={"count": 1, "per": 60})

    found = q.queue(queue)["settings"]

    assert (found["heartbeat"], found["cutoff"], found["retries"]) == (5, 9, None)
    assert (found["grace"], found["max_concurrency"]) == (1, 3)
    assert found["backoff"]["first"] == 2
    for bad in ({"heartbeat": "x"}, {"retries": -9}, {"max_concurrency": -1}, [], {"grace": -1}):
        response = q.post(f"/queues/{queue}", bad)
        assert response.status_code == 400, bad
    assert q.problem(q.http.delete("/queues/never-was")) == (404, "not_found")
    assert q.http.delete(f"/queues/{queue}").json()["results"] == queue
    assert q.problem(q.http.get(f"/queues/{queue}")) == (404, "not_found")


def test_jobs_are_searched(q, one, queue, fresh):
    tag = fresh()
    ids = q.add(queue, "alpha", "beta", "gamma", tags=[tag])
    one.take(queue)

    def found(**query):
        return [row["id"] for row in q.get("/jobs", **query)]

    assert found(queue=queue, order="oldest") == ids
    assert found(queue=queue, state="pending") == ids[:1]
    assert found(tag=tag, state="waiting,scheduled") == [ids[2], ids[1]]
    assert found(queue=queue, text="gam") == [ids[2]]
    assert found(queue=queue, host="worker-1") == ids[:1]
    page = q.http.get("/jobs", params={"queue": queue, "count": 2}).json()
    assert [row["id"] for row in page["results"]] == [ids[2], ids[1]]
    assert found(queue=queue, after=page["next"]) == [ids[0]]
    for bad in ({"state": "odd"}, {"count": 0}, {"order": "x"}, {"after": "x"}):
        assert q.problem(q.http.get("/jobs", params=bad)) == (400, "invalid_query")
