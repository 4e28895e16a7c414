"""Failures of jobs that are tried again stand beside those on record, under the same error."""

from manyhands.model import failures as model
from manyhands.model.commands import ByToken, Fail
from manyhands.model.job import Failure
from manyhands.observe import retries
from manyhands.observe.retries import FailureReader
from manyhands.store.contract import FailureQuestion
from tests.conformance.stores.opened import Opened


def failing(opened: Opened, queue: str, message: str, *, retry: bool) -> None:
    opened.submit(queue)
    (job,) = opened.claim(queue)
    failure = Failure("error", message)
    opened.ask(
        Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure, retry=retry)
    )
    opened.commit()


def read(opened: Opened, **wanted):
    question = FailureQuestion(now=opened.now, **wanted)
    return FailureReader().read_now(opened.store, question, opened.store.live.retried_jobs(100))


def test_a_group_counts_jobs_on_record_and_jobs_tried_again(tmp_path):
    opened = Opened("memory", tmp_path)
    failing(opened, "a", "gone", retry=False)
    failing(opened, "a", "gone", retry=True)
    failing(opened, "b", "gone", retry=True)
    failing(opened, "b", "lost", retry=True)

    found = read(opened)

    assert (found.failed_count, found.retrying_count, found.groups_count) == (1, 3, 2)
    assert [(row.group.line, row.count, row.retrying) for row in found.groups] == [
        ("gone", 1, 2),
        ("lost", 0, 1),
    ]
    assert dict(found.groups[0].queues) == {"a": 2, "b": 1}
    assert sum(found.groups[0].trend) == 3
    opened.close()


def test_one_queue_and_one_group_are_counted_by_themselves(tmp_path):
    opened = Opened("memory", tmp_path)
    failing(opened, "a", "gone", retry=True)
    failing(opened, "b", "gone", retry=True)
    (group,) = read(opened, queue="b").groups

    assert (group.retrying, group.queues) == (1, (("b", 1),))
    assert read(opened, group_id=group.group.group_id).retrying_count == 2
    assert read(opened, group_id="another").groups == ()
    opened.close()


def test_a_group_beyond_those_shown_keeps_its_number_on_record(tmp_path):
    opened = Opened("memory", tmp_path)
    for _ in range(3):
        failing(opened, "a", "often", retry=False)
    failing(opened, "a", "rare", retry=False)
    for _ in range(5):
        failing(opened, "a", "rare", retry=True)

    (first,) = read(opened, count_max=1).groups

    assert (first.group.line, first.count, first.retrying) == ("rare", 1, 5)
    opened.close()


def test_the_group_of_a_retried_job_is_found_once_for_each_of_its_failures(tmp_path, monkeypatch):
    opened = Opened("memory", tmp_path)
    for number in range(3):
        failing(opened, "a", f"gone {number}", retry=True)
    asked: list[str] = []

    def group_of(failure: Failure):
        asked.append(failure.message)
        return model.group_of(failure)

    monkeypatch.setattr(retries, "group_of", group_of)
    reader, question = FailureReader(), FailureQuestion(now=opened.now)

    def found():
        return reader.read_now(opened.store, question, opened.store.live.retried_jobs(100))

    first = found()
    failing(opened, "a", "gone 9", retry=True)
    second = found()

    assert asked == ["gone 0", "gone 1", "gone 2", "gone 9"]
    assert [(row.group.line, row.retrying) for row in first.groups] == [("gone <number>", 3)]
    assert [(row.group.line, row.retrying) for row in second.groups] == [("gone <number>", 4)]
    opened.close()
