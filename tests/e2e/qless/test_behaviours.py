"""What shipped qless was seen to do, case by case, over our API."""

import pytest

from manyhands.model.identity import uid_of
from tests.e2e.qless.talk import Qless, wait_until
from tests.e2e.serving import serving

STORES = ("memory", "postgresql")


def ids_of(items) -> list[str]:
    return [item["id"] for item in items]


def leased(client, queue: str, meta=1, **options) -> str:
    [job_id] = client.add(queue, meta, **options)
    assert client.take(queue)["id"] == job_id
    return job_id


def test_qb1_an_empty_queue_gives_nothing_and_after_an_add_the_job(q, queue):
    assert q.take(queue) is None
    [job_id] = q.add(queue, 1)
    assert q.take(queue)["id"] == job_id


def test_qb2_seven_of_ten_come_in_order_then_three(q, queue):
    ids = q.add(queue, *range(10))

    assert ids_of(q.take(queue, 7)) == ids[:7]
    assert ids_of(q.take(queue, 7)) == ids[7:]


def test_qb3_higher_priority_comes_first(q, queue):
    items = [{"meta": n, "priority": n} for n in range(-10, 10)]
    q.results(f"/add/{queue}", items)

    assert [item["meta"] for item in q.take(queue, 20)] == list(range(9, -11, -1))


def test_qb3_a_whole_priority_is_told_as_it_was_given(q, queue, fresh):
    """Clients whose priorities are integers cannot read 5.0."""
    recurring = fresh()
    [job_id] = q.add(queue, 1, priority=5)
    item = {"id": recurring, "meta": 1, "cron": "0 3 29 2 *", "priority": 5}
    q.results(f"/recurring/{queue}", [item])

    texts = [
        q.http.get(f"/job/{job_id}").text,
        q.http.get(f"/recurring/{recurring}").text,
        q.http.get(f"/get/{queue}").text,
    ]

    assert all('"priority":5,' in text for text in texts), texts
    told = q.post("/priority", [{"id": job_id, "priority": 7}, {"id": job_id, "priority": 7.5}])
    assert '"results":[7,7.5]' in told.text


def test_qb4_equal_priority_comes_in_order_of_insertion(q, queue):
    ids = [q.add(queue, n)[0] for n in range(100)]

    assert ids_of(q.take(queue, 100)) == ids


def test_qb5_a_moved_job_is_visible_only_in_its_new_queue(q, queue, fresh):
    job_id = q.add_id(queue, fresh())
    q.add_id(f"{queue}-2", job_id, move=True)

    assert q.take(queue) is None
    assert q.take(f"{queue}-2")["id"] == job_id


def test_qb6_at_most_so_many_are_out_at_once(one, queue):
    one.set(queue, max_concurrency=5)
    ids = one.add(queue, *range(20))

    out = ids_of(one.take(queue, 10))
    assert out == ids[:5]
    for job_id in ids[5:]:
        assert one.take(queue) is None
        one.complete(queue, out.pop(0))
        taken = one.take(queue)["id"]
        assert taken == job_id
        out.append(taken)


def test_qb7_a_lowered_limit_blocks_until_fewer_are_out(one, queue):
    ids = one.add(queue, *range(20))
    out = ids_of(one.take(queue, 10))
    one.set(queue, max_concurrency=5)

    for job_id in out[:6]:
        assert one.take(queue) is None
        one.complete(queue, job_id)
    assert one.take(queue)["id"] == ids[10]


def test_qb8_a_stalled_job_can_be_taken_although_the_limit_was_reached(one, two, queue):
    one.set(queue, max_concurrency=1, heartbeat=0.05)
    first = leased(one, queue)
    one.add(queue, 2)

    assert two.take(queue, wait=60)["id"] == first


def test_qb9_failing_a_job_frees_its_slot(one, queue):
    one.set(queue, max_concurrency=1)
    first, second = one.add(queue, 1, 2)
    one.take(queue)
    assert one.take(queue) is None

    one.results(f"/fail/{queue}", [{"id": first, "group": "g"}])

    assert one.take(queue)["id"] == second


def test_qb10_a_paused_queue_gives_nothing_and_keeps_its_counts(q, queue):
    q.add(queue, *range(10))
    assert q.results("/pause", [queue]) == [queue]

    assert q.take(queue, 10) == []
    assert q.queue(queue)["paused"] is True
    assert q.counts(queue, "waiting") == [10]
    q.results("/resume", [queue])
    assert len(q.take(queue, 10)) == 10


def test_qb11_the_record_after_an_add(q, queue, fresh):
    job_id = q.add_id(queue, fresh(), {"a": 1})
    shown = q.job(job_id)
    created = shown["created"]

    assert shown == {
        "id": job_id,
        "uid": uid_of(job_id),
        "state": "waiting",
        "detail": None,
        "queue": queue,
        "meta": {"a": 1},
        "host": None,
        "heartbeat": None,
        "priority": 0,
        "tags": [],
        "retries": 5,
        "retries_left": 5,
        "attempt": 0,
        "depends": [],
        "dependents": [],
        "dependents_count": 0,
        "limits": [],
        "progress": None,
        "result": None,
        "failure": None,
        "created": created,
        "updated": created,
        "due": None,
        "deadline": None,
        "recurring": None,
        "protocol": "qless",
        "history": [{"what": "put", "when": created}],
    }


def test_qb12_an_empty_array_stays_one_through_advance_and_recurrence(one, queue, fresh):
    job_id = leased(one, queue, meta=[])
    item = {"id": job_id, "meta": [], "next": f"{queue}-2"}
    one.results(f"/complete/{queue}", [item])
    one.results(f"/recurring/{queue}-3", [{"id": fresh(), "meta": [], "interval": 60}])

    assert '"meta":[]' in one.http.get(f"/get/{queue}-2").text
    child = one.http.get(f"/get/{queue}-3?wait=60").text
    assert '"meta":[]' in child


def test_qb13_a_delayed_job_is_scheduled_and_takeable_only_later(one, queue):
    [later] = one.add(queue, 1, delay=3600)

    assert one.take(queue) is None
    assert one.state(later) == ("waiting", "scheduled")
    assert one.counts(queue, "waiting", "scheduled") == [0, 1]
    [soon] = one.add(queue, 1, delay=0.3)
    assert one.take(queue, wait=60)["id"] == soon
    put, popped = one.job(soon)["history"]
    assert round(popped["when"] - put["when"], 3) >= 0.3


def test_qb14_a_scheduled_job_that_is_due_counts_as_waiting(q, queue):
    q.add(queue, 1, delay=0.05)

    wait_until(lambda: q.counts(queue, "waiting", "scheduled") == [1, 0])


def test_qb15_moving_keeps_what_is_not_given_anew(q, queue, fresh):
    other = q.add_id(f"{queue}-0", fresh())
    job_id = fresh()
    options = {"priority": 3, "tags": ["a", "b"], "retries": 2, "depends": [other]}
    q.add_id(queue, job_id, 1, **options)

    q.add_id(f"{queue}-2", job_id, 2, move=True)

    shown = q.job(job_id)
    assert (shown["priority"], shown["tags"], shown["retries"]) == (3, ["a", "b"], 2)
    assert (shown["depends"], shown["detail"], shown["meta"]) == ([other], "blocked", 2)
    q.add_id(queue, job_id, 3, move=True, priority=9, tags=["c"])
    assert (q.job(job_id)["priority"], q.job(job_id)["tags"]) == (9, ["c"])


def test_qb17_a_cancelled_or_unknown_job_cannot_be_requeued(one, queue, fresh):
    cancelled, failed = leased(one, queue), leased(one, queue)
    one.results("/cancel", [cancelled])
    one.results(f"/fail/{queue}", [{"id": failed, "group": "g"}])
    items = [{"id": cancelled}, {"id": fresh()}, {"id": failed}]

    results, codes = one.told("/requeue", items)

    assert results == [False, False, failed]
    assert codes == {0: "cancelled", 1: "not_found"}
    assert one.take(queue)["id"] == failed


def test_qb20_after_expiry_another_worker_gets_it(one, two, queue):
    """QA15: the record of the loss stays with the job and with the worker."""
    one.set(queue, heartbeat=0.05)
    job_id = leased(one, queue)
    one.set(queue, heartbeat=3600)
    assert two.take(queue, wait=60)["id"] == job_id

    shown = one.job(job_id)
    assert shown["retries_left"] == 4
    whats = [entry["what"] for entry in shown["history"]]
    assert whats == ["put", "popped", "timed-out", "popped"]


def test_qb21_moving_a_leased_job_ends_the_lease(one, queue):
    job_id = leased(one, queue)

    one.results("/move", [{"id": job_id, "queue": f"{queue}-2"}])

    assert one.beat(queue, job_id) == ([False], {0: "not_running"})
    assert one.told(f"/complete/{queue}", [{"id": job_id, "meta": 1}])[1] == {0: "lock_lost"}


def test_qb22_with_grace_nobody_gets_it_before_expiry_and_grace(one, two, queue):
    one.set(queue, heartbeat=0.1, grace=0.4)
    for _ in range(2):
        [job_id] = one.add(queue, 1)
        item = one.take(queue)
        again = two.take(queue, wait=60)
        assert again["id"] == job_id
        assert again["expires"] - item["expires"] >= 0.5 - 0.01
        two.complete(queue, job_id)


def test_qb23_the_holder_may_still_fail_it_during_grace(one, q, queue):
    one.set(queue, heartbeat=0.05, grace=600)
    job_id = leased(one, queue)
    wait_until(lambda: q.job(job_id)["heartbeat"] >= 20)

    assert one.results(f"/fail/{queue}", [{"id": job_id, "group": "late"}]) == [job_id]


def test_qb24_without_retries_a_lost_lease_fails_the_job(one, queue):
    job_id = leased(one, queue, retries=0, heartbeat=60)
    assert one.results("/timeout", [{"id": job_id}]) == [job_id]
    assert one.take(queue) is None

    wait_until(lambda: one.state(job_id)[0] == "failed")

    assert one.job(job_id)["failure"]["group"] == f"failed-retries-{queue}"


def test_qb25_retries_are_reset_by_advancing_and_by_moving(one, queue):
    job_id = leased(one, queue)
    one.results(f"/retry/{queue}", [{"id": job_id, "delay": 0}])
    assert one.take(queue)["retries_left"] == 4

    one.results(f"/complete/{queue}", [{"id": job_id, "meta": 1, "next": f"{queue}-2"}])
    assert one.job(job_id)["retries_left"] == 5
    one.take(f"{queue}-2")
    one.results(f"/retry/{queue}-2", [{"id": job_id, "delay": 0}])
    assert one.job(job_id)["retries_left"] == 4
    one.results("/move", [{"id": job_id, "queue": queue}])
    assert one.job(job_id)["retries_left"] == 5


def test_qb26_a_retry_may_be_delayed_and_its_group_is_kept_when_it_was_the_last(one, queue):
    job_id = leased(one, queue, retries=1)
    item = {"id": job_id, "delay": 0.05, "group": "net", "message": "no route"}

    one.results(f"/retry/{queue}", [item])
    assert one.take(queue, wait=60)["id"] == job_id
    one.results(f"/retry/{queue}", [{**item, "delay": 600}])

    shown = one.job(job_id)
    assert shown["state"] == "failed"
    assert (shown["failure"]["group"], shown["failure"]["message"]) == ("net", "no route")
    other = leased(one, queue, retries=0)
    one.results(f"/retry/{queue}", [{"id": other}])
    assert one.job(other)["failure"]["group"] == f"failed-retries-{queue}"


def test_qb27_after_a_retry_the_old_holder_can_do_nothing(one, queue):
    job_id = leased(one, queue)
    one.results(f"/retry/{queue}", [{"id": job_id, "delay": 0}])

    assert one.beat(queue, job_id)[1] == {0: "not_running"}
    assert one.told(f"/fail/{queue}", [{"id": job_id, "group": "g"}])[1] == {0: "not_running"}
    assert one.told(f"/complete/{queue}", [{"id": job_id, "meta": 1}])[1] == {0: "not_running"}


def test_qb32_completion_clears_an_earlier_failure(one, queue):
    job_id = leased(one, queue)
    one.results(f"/fail/{queue}", [{"id": job_id, "group": "g"}])
    one.results("/requeue", [{"id": job_id}])
    one.take(queue)
    one.complete(queue, job_id)

    assert one.job(job_id)["failure"] is None


def test_qb34_delay_or_depends_without_next_is_refused(one, queue):
    job_id = leased(one, queue)

    for extra in ({"delay": 1}, {"depends": [job_id]}):
        item = {"id": job_id, "meta": 1, **extra}
        assert one.told(f"/complete/{queue}", [item]) == ([], {0: "invalid_item"})
    item = {"id": job_id, "meta": 1, "next": "."}
    assert one.told(f"/complete/{queue}", [item]) == ([], {0: "invalid_queue"})


def test_qb35_a_dependent_unlocks_when_its_dependency_completes(one, queue):
    first = leased(one, queue)
    [second] = one.add(queue, 2, depends=[first])
    assert one.state(second) == ("waiting", "blocked")
    assert one.job(first)["dependents"] == [second]

    one.complete(queue, first)

    assert one.take(queue)["id"] == second


def test_qb36_it_unlocks_only_after_all_and_a_chain_one_by_one(one, queue):
    ten = one.add(queue, *range(10))
    [last] = one.add(queue, "last", depends=ten)
    one.take(queue, 10)
    for job_id in ten:
        assert one.state(last) == ("waiting", "blocked")
        one.complete(queue, job_id)
    assert one.take(queue)["id"] == last

    chain = one.add(f"{queue}-2", 0)
    for n in range(9):
        chain += one.add(f"{queue}-2", n, depends=[chain[-1]])
    for job_id in chain:
        [item] = one.take(f"{queue}-2", 10)
        assert item["id"] == job_id
        one.complete(f"{queue}-2", job_id)


def test_qb37_with_a_delay_it_becomes_scheduled_on_unlock(one, queue):
    first = leased(one, queue)
    [second] = one.add(queue, 2, depends=[first], delay=1000)

    one.complete(queue, first)

    assert one.state(second) == ("waiting", "scheduled")


def test_qb38_complete_dependencies_are_satisfied_at_once(one, queue):
    first = leased(one, queue)
    one.complete(queue, first)

    [second] = one.add(queue, 2, depends=[first])

    assert one.state(second) == ("waiting", None)


def test_qb39_advance_with_depends_and_delay_blocks_then_schedules(one, queue):
    first, second = leased(one, queue), leased(one, queue)
    item = {"id": second, "meta": 1, "next": f"{queue}-2", "depends": [first], "delay": 1000}
    one.results(f"/complete/{queue}", [item])
    assert one.state(second) == ("waiting", "blocked")

    one.complete(queue, first)

    assert one.state(second) == ("waiting", "scheduled")


def test_qb40_moving_with_new_dependencies_replaces_the_edges_on_both_sides(q, queue, fresh):
    old, new = q.add(queue, 1, 2)
    job_id = q.add_id(queue, fresh(), depends=[old])

    q.add_id(queue, job_id, depends=[new], move=True)

    assert q.job(job_id)["depends"] == [new]
    assert q.job(old)["dependents"] == []
    assert q.job(new)["dependents"] == [job_id]


def test_qb41_removing_the_last_edge_frees_the_job(q, queue):
    first, second = q.add(queue, 1, 2)
    [job_id] = q.add(queue, 3, depends=[first, second])

    assert q.results("/depends", [{"id": job_id, "remove": [first]}]) == [[second]]
    assert q.state(job_id) == ("waiting", "blocked")
    q.results("/depends", [{"id": job_id, "remove": [second]}])
    assert q.state(job_id) == ("waiting", None)


def test_qb42_edges_change_only_while_a_job_waits(one, queue, fresh):
    pending, failed = leased(one, queue), leased(one, queue)
    one.results(f"/fail/{queue}", [{"id": failed, "group": "g"}])
    [scheduled] = one.add(queue, 1, delay=600)
    waiting, other = one.add(queue, 1, 2)
    ids = [pending, failed, scheduled, fresh()]

    _, codes = one.told("/depends", [{"id": job_id, "add": [other]} for job_id in ids])

    assert codes == {0: "not_waiting", 1: "failed", 2: "not_waiting", 3: "not_found"}
    assert one.results("/depends", [{"id": waiting, "add": [other]}]) == [[other]]
    assert one.state(waiting) == ("waiting", "blocked")


def test_qb43_cancel_is_refused_while_an_uncancelled_dependent_exists(q, queue):
    chain = q.add(queue, 0)
    for n in range(3):
        chain += q.add(queue, n, depends=[chain[-1]])

    results, codes = q.told("/cancel", chain[:3])

    assert results == []
    assert codes[2] == "has_dependents"
    assert set(codes.values()) == {"has_dependents", "not_tried"}
    assert q.state(chain[0]) == ("waiting", None)


def test_qb44_a_whole_chain_goes_in_any_order_and_unknown_ids_are_ignored(q, queue, fresh):
    chain = q.add(queue, 0)
    for n in range(4):
        chain += q.add(queue, n, depends=[chain[-1]])
    mixed = [chain[2], fresh(), chain[0], chain[4], chain[1], chain[3]]

    results, codes = q.told("/cancel", mixed)

    assert set(results) == set(chain)
    assert q.state(chain[4])[0] == "cancelled"
    assert q.told("/cancel", [fresh()])[0] == []
    assert set(codes.values()) <= {"not_found"}


@pytest.mark.parametrize("state", ["waiting", "scheduled", "blocked", "failed", "pending"])
def test_qb45_cancel_works_in_every_state(one, queue, state):
    [job_id] = one.add(queue, 1, delay=600 if state == "scheduled" else 0)
    if state == "blocked":
        [job_id] = one.add(queue, 1, depends=[job_id])
    elif state in ("failed", "pending"):
        one.take(queue)
    if state == "failed":
        one.results(f"/fail/{queue}", [{"id": job_id, "group": "g"}])

    assert one.results("/cancel", [job_id]) == [job_id]

    assert one.state(job_id)[0] == "cancelled"
    assert one.beat(queue, job_id) == ([False], {0: "cancelled"})


def test_qb46_failures_are_counted_by_group_and_paged_newest_first(one, queue, fresh):
    group = f"g-{fresh()}"
    ids = one.add(queue, *range(100))
    one.take(queue, 100)
    one.results(f"/fail/{queue}", [{"id": job_id, "group": group} for job_id in ids])

    assert one.get("/failed")[group] == 100
    found: list[str] = []
    after = {}
    for _ in range(4):
        page = one.http.get(f"/failed/{group}", params={"count": 25, **after}).json()
        found += ids_of(page["results"])
        after = {"after": page["next"]}
    assert found == list(reversed(ids))
    assert page["next"] is None


def test_qb47_only_the_holder_may_fail_and_a_failed_job_may_be_added_again(one, two, queue):
    job_id = leased(one, queue)

    assert two.told(f"/fail/{queue}", [{"id": job_id, "group": "g"}])[1] == {0: "lock_lost"}
    one.results(f"/fail/{queue}", [{"id": job_id, "group": "g"}])
    assert one.add_id(queue, job_id, "new") == job_id
    assert (one.job(job_id)["state"], one.job(job_id)["meta"]) == ("waiting", "new")
    assert one.job(job_id)["failure"] is None


def test_qb48_unfail_returns_ten_jobs_to_waiting(one, queue, fresh):
    group = f"g-{fresh()}"
    ids = one.add(queue, *range(15))
    one.take(queue, 15)
    one.results(f"/fail/{queue}", [{"id": job_id, "group": group} for job_id in ids])

    assert one.results(f"/unfail/{queue}", {"group": group, "count": 10}) == ids[:10]

    assert one.counts(queue, "waiting", "failed") == [10, 5]
    assert one.problem(one.post(f"/unfail/{queue}", {"group": group, "count": 0}))[0] == 400


def test_qb51_worker_lists_follow_what_happens(q, queue, fresh):
    worker, other = q.also(f"w-{fresh()}"), q.also(f"v-{fresh()}")

    def held(client) -> tuple[list[str], list[str]]:
        found = q.get(f"/workers/{client.host}")
        return found["jobs"], found["stalled"]

    for end in (
        lambda job_id: worker.complete(queue, job_id),
        lambda job_id: worker.results(f"/fail/{queue}", [{"id": job_id, "group": "g"}]),
        lambda job_id: worker.results(f"/retry/{queue}", [{"id": job_id, "delay": 600}]),
        lambda job_id: worker.results("/cancel", [job_id]),
        lambda job_id: worker.results("/move", [{"id": job_id, "queue": f"{queue}-2"}]),
    ):
        job_id = leased(worker, queue)
        assert held(worker) == ([job_id], [])
        end(job_id)
        assert held(worker) == ([], [])
    job_id = leased(worker, queue)
    worker.results("/timeout", [{"id": job_id}])
    assert held(worker) == ([], [job_id])
    assert other.take(queue)["id"] == job_id
    assert held(worker) == ([], [])
    assert held(other) == ([job_id], [])


def test_qb55_recurring_jobs_come_by_interval_offset_and_backlog(q, queue, fresh):
    recur = fresh()
    item = {"id": recur, "meta": {"n": 1}, "interval": 600, "tags": ["t"], "retries": 2}
    assert q.results(f"/recurring/{queue}", [item]) == [recur]
    later = {"id": f"{recur}0", "meta": 1, "interval": 600, "offset": 3600}
    q.results(f"/recurring/{queue}", [later])

    child = q.take(queue, wait=60)

    assert (child["meta"], child["tags"], child["retries_left"]) == ({"n": 1}, ["t"], 2)
    assert q.take(queue) is None
    shown = q.get(f"/recurring/{recur}")
    assert (shown["interval"], shown["count"], shown["last"]) == (600, 1, child["id"])
    assert q.job(child["id"])["recurring"] == recur
    assert q.counts(queue, "recurring") == [2]
    assert q.get(f"/recurring/{recur}0")["count"] == 0


def test_qb56_a_changed_template_counts_for_later_children_and_stop_stops(q, queue, fresh):
    recur = fresh()
    item = {"id": recur, "meta": "old", "interval": 0.1}
    q.results(f"/recurring/{queue}", [item])
    assert q.take(queue, wait=60)["meta"] == "old"

    q.results(f"/recurring/{queue}-2", [{**item, "meta": "new"}])
    assert q.take(f"{queue}-2", wait=60)["meta"] == "new"
    assert q.get(f"/recurring/{recur}")["count"] >= 2
    assert q.told(f"/add/{queue}", [{"id": recur, "meta": 1}]) == ([False], {0: "duplicate"})
    assert q.results("/unrecur", [recur]) == [recur]

    assert q.problem(q.http.get(f"/recurring/{recur}")) == (404, "not_found")
    assert q.told("/unrecur", [recur]) == ([], {0: "not_found"})
    q.add_id(queue, recur)
    assert q.told(f"/recurring/{queue}", [item]) == ([False], {0: "duplicate"})


def test_qb57_tags_are_searchable_ordered_unique_and_dropped_on_cancel(q, queue, fresh):
    tag = fresh()
    ids = q.add(queue, *range(5), tags=["b", tag, "a", tag])
    assert q.job(ids[0])["tags"] == ["b", tag, "a"]

    assert q.results("/tag", [{"id": ids[0], "add": ["z"], "remove": ["b"]}]) == [[tag, "a", "z"]]
    assert ids_of(q.get(f"/tags/{tag}")) == list(reversed(ids))
    q.results("/cancel", [ids[0]])
    assert ids_of(q.get(f"/tags/{tag}", order="oldest")) == ids[1:]
    page = q.http.get(f"/tags/{tag}", params={"count": 3}).json()
    rest = q.get(f"/tags/{tag}", after=page["next"])
    assert [*ids_of(page["results"]), *ids_of(rest)] == list(reversed(ids[1:]))


def test_qb58_history_keeps_the_first_entry_and_the_latest(one, queue):
    job_id = leased(one, queue, retries=-1)
    for _ in range(105):
        one.results(f"/retry/{queue}", [{"id": job_id, "delay": 0}])
        one.take(queue)

    history = one.job(job_id)["history"]

    assert history[0]["what"] == "put"
    assert history[1]["what"] == "popped"
    assert history[-1]["what"] == "popped"
    assert len(history) == 1 + 2 * 100 + 1


def test_qb59_a_take_of_ten_thousand_is_all_or_nothing(tmp_path):
    with serving(tmp_path, "--store", "memory", "--qless-take-max", "10000") as server:
        worker = Qless(server, "w")
        ids = worker.add("q", *range(10_000))
        taken = worker.take("q", 10_000)
        assert ids_of(taken) == ids
        assert worker.counts("q", "waiting", "pending") == [0, 10_000]
        worker.close()
