"""What a decision needs to know is known again after a stop: order, keys, names, leases, counts."""

from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.commands import (
    ByHolder,
    ByToken,
    Cancel,
    Complete,
    Fail,
    ForgetQueue,
    NotifyDependants,
    PutSchedule,
    Release,
    RemoveLimit,
    RemoveSchedule,
    Requeue,
    SetLimit,
    SetPriority,
    SetQueue,
)
from manyhands.model.filter import Filter
from manyhands.model.identity import name_key
from manyhands.model.job import (
    Failure,
    Schedule,
    State,
)
from manyhands.model.policy import (
    TERMS,
    Backoff,
    OnDependencyFailure,
    QueuePolicy,
    Rate,
    Reentry,
    Terms,
)
from tests.conformance.stores.opened import START, ids


def test_jobs_that_share_terms_share_one_object_after_a_restart(opened):
    jobs = [opened.submit(terms=Terms(lease_ms=5)) for _ in range(3)]
    opened.reopen()

    terms = [opened.job(job.job_id).terms for job in jobs]
    assert terms == [Terms(lease_ms=5)] * 3
    if opened.kind != "memory":
        assert len({id(one) for one in terms}) == 1


def test_ready_jobs_keep_their_order_over_a_restart(opened):
    jobs = [opened.submit(terms=TERMS["qless"]) for _ in range(6)]
    front = [opened.submit(terms=TERMS["dwork"]) for _ in range(3)]
    urgent = opened.submit(priority=5.0)
    claimed = {job.job_id: job for job in opened.claim(count=10)}
    for job in (jobs[4], jobs[1], front[2], front[0]):  # two ahead, then two at the front
        opened.ask(Release(job_id=job.job_id, proof=ByToken(claimed[job.job_id].lease.token)))
    for job in (jobs[5], jobs[0], urgent):
        token = claimed[job.job_id].lease.token
        opened.ask(Release(job_id=job.job_id, proof=ByToken(token), reentry=Reentry.TAIL))
    expected = ids([urgent, jobs[4], jobs[1], front[0], front[2], jobs[5], jobs[0]])

    assert opened.ready() == expected
    opened.reopen()
    assert opened.ready() == expected
    late = opened.submit()
    assert opened.ready() == [*expected, late.job_id]


def test_a_new_priority_is_kept_with_its_place(opened):
    first, second = opened.submit(), opened.submit()
    opened.ask(SetPriority(second.job_id, 1.0))
    opened.reopen()

    assert opened.ready() == ids([second, first])


def test_unique_keys_bind_after_a_restart_until_their_job_ends(opened):
    job = opened.submit(unique_key=b"\x00k", payload=b"1")
    opened.reopen()

    assert opened.submit(unique_key=b"\x00k").job_id == job.job_id
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.reopen()
    assert opened.submit(unique_key=b"\x00k").job_id != job.job_id


def test_names_of_a_graph_keep_their_outcome_until_it_is_drained(opened):
    terms = TERMS["dwork"]
    first = opened.submit(namespace="n", name="first", terms=terms)
    last = opened.submit(namespace="n", name="last", terms=terms)
    opened.ask(Complete(job_id=first.job_id, proof=ByToken("anybody")))
    opened.reopen()

    live = opened.store.live
    assert live.named("n", "first") == first.job_id
    assert live.live_job(first.job_id).state is State.COMPLETED
    opened.ask(Complete(job_id=last.job_id, proof=ByToken("anybody")))
    opened.reopen()
    assert opened.store.live.named("n", "first") is None
    assert opened.store.live.live_job(first.job_id) is None


def test_a_name_points_to_the_latest_of_its_jobs_after_a_restart(opened):
    terms = TERMS["dwork"]
    opened.submit(namespace="n", name="other", terms=terms)
    old = opened.submit(namespace="n", name="x", terms=terms)
    opened.ask(Complete(job_id=old.job_id, proof=ByToken("anybody")))
    new = opened.submit(namespace="n", name="x", terms=terms)
    opened.reopen()

    assert new.job_id != old.job_id
    assert opened.store.live.named("n", "x") == new.job_id


def test_dependants_are_known_after_a_restart(opened):
    first = opened.submit("a")
    waiting = [opened.submit("b", depends_on=(first.job_id,)) for _ in range(3)]
    opened.reopen()

    assert opened.store.live.dependants(first.job_id) == tuple(ids(waiting))
    (claimed,) = opened.claim("a")
    opened.ask(Complete(job_id=first.job_id, proof=ByToken(claimed.lease.token)))
    opened.reopen()
    assert opened.ready("b") == ids(waiting)


def test_who_has_not_heard_of_an_end_is_known_after_a_restart(opened, monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    first = opened.submit("a")
    waiting = [opened.submit("b", depends_on=(first.job_id,)) for _ in range(5)]
    (claimed,) = opened.claim("a")
    opened.ask(Complete(job_id=first.job_id, proof=ByToken(claimed.lease.token)))
    for heard in (2, 4):
        opened.reopen()
        assert opened.ready("b") == ids(waiting[:heard])
        assert list(opened.store.live.unnotified) == [first.job_id]
        assert not opened.store.live.cursors
        opened.ask(NotifyDependants(first.job_id))
    opened.reopen()

    assert opened.ready("b") == ids(waiting)
    assert not opened.store.live.unnotified


def test_who_is_yet_to_be_cancelled_with_a_job_is_known_after_a_restart(opened, monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    first = opened.submit("a")
    hold = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    waiting = [opened.submit("b", depends_on=(first.job_id,), terms=hold) for _ in range(5)]
    opened.ask(Cancel(job_ids=(first.job_id,), detail="enough"))
    late = opened.submit("b", depends_on=(first.job_id,), terms=hold)
    for _ in range(3):
        opened.reopen()
        assert list(opened.store.live.unnotified) == [first.job_id]
        opened.ask(NotifyDependants(first.job_id))
    opened.reopen()

    assert not opened.store.live.unnotified
    ended = [opened.job(job.job_id) for job in waiting]
    assert {(job.state, job.detail) for job in ended} == {(State.CANCELLED, "enough")}
    assert opened.store.live.job(late.job_id).state is State.BLOCKED


def test_leases_limits_and_waiters_are_known_after_a_restart(opened):
    opened.ask(SetLimit("gpu", 1))
    job = opened.submit(limits=("gpu",), waiter="s/1", durable_interest=False)
    opened.claim()
    opened.reopen()

    live = opened.store.live
    assert list(live.view.leased()) == [job.job_id]
    assert live.limit_used("gpu") == 1
    assert live.view.limit("gpu").concurrency_max == 1
    assert list(live.waited()) == [job.job_id]
    assert live.next_due_at() == START + 60_000
    opened.ask(RemoveLimit("gpu"))
    opened.reopen()
    assert opened.store.live.view.limit("gpu") is None


def test_counts_are_those_of_all_jobs_on_record(opened):
    for queue, count in (("a", 3), ("b", 1)):
        for _ in range(count):
            opened.submit(queue)
    (job,) = opened.claim("a")
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(job.lease.token)))
    (job,) = opened.claim("a")
    opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=Failure("x")))
    opened.reopen()

    counts = opened.store.live.queues["a"].counts
    counts = {state: count for state, count in counts.items() if count}
    assert counts == {State.READY: 1, State.COMPLETED: 1, State.FAILED: 1}
    assert opened.store.live.queues["b"].counts[State.READY] == 1


def test_a_forgotten_queue_keeps_its_records_and_its_counts(opened):
    job = opened.submit("old")
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.commit()
    opened.ask(ForgetQueue("old"))
    opened.reopen()

    assert opened.store.live.queue("old") is None
    assert ids(opened.store.search(Filter(states=(State.CANCELLED,))).jobs) == [job.job_id]
    opened.submit("old")
    counts = opened.store.live.queues["old"].counts
    assert (counts[State.CANCELLED], counts[State.READY]) == (1, 1)


def test_settings_of_queues_and_schedules_come_back(opened):
    policy = QueuePolicy(
        attempts_max=2, backoff=Backoff(1), lease_ms=3, lease_forced=True, rate=Rate(5, 1000)
    )
    schedule = Schedule(
        schedule_id="nightly", queue="q", cron="0 3 * * *", next_at=START + 5, payload=b"\xff"
    )
    opened.ask(SetQueue(queue="q", paused=True, policy=policy))
    opened.ask(PutSchedule(schedule))
    opened.ask(PutSchedule(replace(schedule, schedule_id="gone")))
    opened.reopen()
    opened.ask(RemoveSchedule("gone"))
    opened.reopen()

    queue = opened.store.live.queue("q")
    assert (queue.paused, queue.policy) == (True, policy)
    assert opened.store.live.schedules == {"nightly": schedule}


def test_the_time_of_the_last_commit_is_known_at_the_next_start(opened):
    assert opened.store.alive_at is None
    opened.submit()
    opened.commit()
    opened.now += 5_000
    opened.store.touch()
    opened.reopen()

    if opened.kind != "memory":
        assert opened.store.alive_at == START + 5_000


def test_how_far_ages_are_behind_the_clock_is_known_at_the_next_start(opened):
    opened.store.behind_ms = 5_000
    opened.submit()
    opened.reopen()

    assert opened.store.behind_ms == 5_000


def test_serials_and_positions_go_on_after_a_restart_even_if_their_jobs_are_gone(opened):
    last = [opened.submit() for _ in range(3)][-1]
    opened.reopen()

    job = opened.submit()
    assert job.serial > last.serial
    assert job.position > last.position


def a_graph(opened, *names: str) -> None:
    for name in names:
        opened.submit(namespace="g", name=name, terms=TERMS["dwork"])


def end(opened, *names: str) -> None:
    for name in names:
        key = name_key("g", name)
        opened.ask(Complete(job_id=key, proof=ByHolder("dwork", "w1")))


def known(opened, *names: str) -> list[str]:
    return [name for name in names if opened.store.live.named("g", name) is not None]


def test_names_of_a_drained_graph_stay_forgotten_over_a_restart(opened):
    a_graph(opened, "a", "b")
    end(opened, "a", "b")
    opened.commit()
    a_graph(opened, "c", "d")
    end(opened, "c")
    opened.commit()

    assert known(opened, "a", "b", "c", "d") == ["c", "d"]
    opened.reopen()
    assert known(opened, "a", "b", "c", "d") == ["c", "d"]


def test_a_graph_that_begins_in_the_commit_of_the_last_ones_end_is_a_new_one(opened):
    a_graph(opened, "a")
    end(opened, "a")
    a_graph(opened, "b")

    assert known(opened, "a", "b") == ["b"]
    opened.commit()
    assert known(opened, "a", "b") == ["b"]
    opened.reopen()
    assert known(opened, "a", "b") == ["b"]


def test_a_graph_of_the_same_names_begins_anew_and_keeps_its_outcomes(opened):
    a_graph(opened, "a", "b")
    end(opened, "a", "b")
    a_graph(opened, "a", "b")
    end(opened, "b")
    opened.reopen()

    live = opened.store.live
    states = [live.job(live.named("g", name)).state for name in ("a", "b")]
    assert states == [State.READY, State.COMPLETED]


def test_a_job_of_a_drained_graph_that_is_put_to_work_again_has_its_name_until_it_ends(opened):
    a_graph(opened, "a", "b")
    end(opened, "a", "b")
    opened.commit()
    (job,) = opened.store.search(Filter(name="a")).jobs
    opened.ask(Requeue(job_id=job.job_id))
    a_graph(opened, "c")
    opened.reopen()

    assert known(opened, "a", "b", "c") == ["a", "c"]
    end(opened, "a")
    opened.settle()
    assert known(opened, "a", "b", "c") == ["c"]
    opened.reopen()
    assert known(opened, "a", "b", "c") == ["c"]


def test_the_latest_end_under_a_name_is_found_whatever_became_of_its_graph(opened):
    a_graph(opened, "a", "b")
    end(opened, "a", "b")
    opened.commit()
    a_graph(opened, "a", "c")
    opened.ask(Complete(job_id=name_key("g", "a"), proof=ByHolder("dwork", "w2")))
    opened.reopen()

    found = opened.store.find_ended("g", ["c", "b", "a", "nobody", *map(str, range(2_500))])

    ends = {name: job.attempts[-1].holder.name for name, job in found.items()}
    assert ends == {"a": "w2", "b": "w1"}
    assert opened.store.find_ended("other", ["a"]) == {}
