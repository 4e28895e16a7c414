"""Failed jobs on record are counted by what went wrong, whatever becomes of them."""

from manyhands.model.commands import ByToken, Cancel, Fail, Requeue
from manyhands.model.failures import group_of
from manyhands.model.filter import Filter, Order
from manyhands.model.job import Failure
from manyhands.store.contract import FailureQuestion
from manyhands.store.retention import Retention

HOUR_MS = 3_600_000


def fail(opened, *, queue: str = "q", code: str = "boom", message: str = "it broke") -> str:
    job_id = opened.submit(queue).job_id
    (job,) = opened.claim(queue)
    failure = Failure(code, message)
    opened.ask(Fail(job_id=job_id, proof=ByToken(job.lease.token), failure=failure))
    return job_id


def counts(opened, **wanted) -> dict[tuple[str, str], int]:
    opened.commit()
    found = opened.store.failures(FailureQuestion(now=opened.now, **wanted))
    assert found.failed_count == sum(row.count for row in found.groups)
    return {(row.group.code, row.group.line): row.count for row in found.groups}


def test_alike_failures_are_one_group_with_its_times_queues_and_newest_jobs(opened):
    first = fail(opened, message="row 1 is wrong")
    opened.now += 3 * HOUR_MS
    second = fail(opened, message="row 2 is wrong", queue="other")
    fail(opened, code="late", message="too late")
    opened.commit()

    found = opened.store.failures(FailureQuestion(now=opened.now))

    assert (found.groups_count, found.failed_count) == (2, 3)
    row = found.groups[0]
    assert (row.group.code, row.group.line, row.count) == ("boom", "row <number> is wrong", 2)
    assert row.last_at - row.first_at == 3 * HOUR_MS
    assert row.trend == (*[0] * 20, 1, 0, 0, 1)
    assert row.queues == (("other", 1), ("q", 1))
    assert row.job_ids == (second, first)


def test_a_restart_changes_nothing(opened):
    fail(opened)
    fail(opened, code="late")
    opened.reopen()

    assert counts(opened) == {("boom", "it broke"): 1, ("late", "it broke"): 1}


def test_a_job_that_is_put_to_work_again_or_cancelled_is_not_counted_any_more(opened):
    again, gone, stays = fail(opened), fail(opened), fail(opened)
    opened.commit()
    opened.ask(Requeue(job_id=again))
    opened.ask(Cancel(job_ids=(gone,)))

    assert counts(opened) == {("boom", "it broke"): 1}
    (group,) = opened.store.failures(FailureQuestion(now=opened.now)).groups
    assert group.job_ids == (stays,)


def test_a_job_that_fails_again_is_counted_under_its_last_failure(opened):
    job_id = fail(opened)
    opened.commit()
    opened.ask(Requeue(job_id=job_id))
    (job,) = opened.claim()
    failure = Failure("late", "too late")
    opened.ask(Fail(job_id=job_id, proof=ByToken(job.lease.token), failure=failure))

    assert counts(opened) == {("late", "too late"): 1}


def test_what_retention_drops_is_not_counted_any_more(opening):
    opened = opening(Retention(record_ms=1_000))
    fail(opened)
    opened.now += 500
    fail(opened)
    opened.settle()
    opened.now += 600
    opened.store.prune(opened.now, 100)
    opened.store.touch()

    assert counts(opened) == {("boom", "it broke"): 1}


def test_groups_can_be_limited_to_queues_that_fit_patterns(opened):
    fail(opened, queue="mail.out")
    fail(opened, queue="mail.in", code="late")
    fail(opened, queue="vault")
    fail(opened, queue="m[x", code="odd")

    assert counts(opened, patterns=("mail.*",)) == {
        ("boom", "it broke"): 1,
        ("late", "it broke"): 1,
    }
    assert counts(opened, patterns=("*.in", "m[*")) == {
        ("late", "it broke"): 1,
        ("odd", "it broke"): 1,
    }
    assert counts(opened, patterns=("mail.*",), queue="vault") == {}
    opened.commit()
    question = FailureQuestion(now=opened.now, patterns=("mail.*",))
    shown = opened.store.failures(question).groups
    assert {queue for row in shown for queue, _ in row.queues} == {"mail.out", "mail.in"}


def test_groups_can_be_asked_for_by_queue_by_id_and_in_two_orders(opened):
    for _ in range(2):
        fail(opened)
    opened.now += 10
    fail(opened, code="late", queue="other")

    assert counts(opened, queue="other") == {("late", "it broke"): 1}
    group_id = group_of(Failure("boom", "it broke")).group_id
    assert counts(opened, group_id=group_id) == {("boom", "it broke"): 2}
    assert list(counts(opened)) == [("boom", "it broke"), ("late", "it broke")]
    assert list(counts(opened, latest_first=True)) == [("late", "it broke"), ("boom", "it broke")]
    assert sorted(opened.store.failure_codes()) == [("boom", "q", 2), ("late", "other", 1)]


def test_jobs_of_a_group_or_a_code_are_listed_a_page_at_a_time(opened):
    ids = [fail(opened, message=f"row {n}") for n in range(5)]
    fail(opened, message="another")
    fail(opened, code="late")
    opened.commit()
    group_id = group_of(Failure("boom", "row 7")).group_id
    wanted = Filter(failure=group_id, order=Order.OLDEST, count_max=3)

    page = opened.store.search(wanted)
    assert [job.job_id for job in page.jobs] == ids[:3]
    rest = opened.store.search(
        Filter(failure=group_id, order=Order.OLDEST, count_max=3, after=page.next)
    )
    assert [job.job_id for job in rest.jobs] == ids[3:]
    assert rest.next is None
    assert len(opened.store.search(Filter(failure_code="boom")).jobs) == 6
    assert len(opened.store.search(Filter(failure_code="boom", queue="other")).jobs) == 0
