"""A submit that is repeated after a stop is recognised."""

from manyhands.model.commands import NewJob, Submit
from manyhands.model.receipts import Once
from manyhands.model.replies import Repeated, SubmittedMany
from tests.conformance.stores.opened import IDS

HOUR = 3_600_000


def submit(opened, key: str):
    job = NewJob(job_id=IDS.job_id(opened.now), queue="q")
    return opened.ask(Submit((job,), once=Once(key, "digest", "a note")))


def test_the_answer_to_a_submit_is_known_again_after_a_stop(opened):
    first = submit(opened, "a")
    opened.reopen()

    again = submit(opened, "a")

    assert isinstance(again, Repeated)
    assert [item.job_id for item in again.receipt.items] == [first.items[0].job.job_id]
    assert (again.receipt.note, again.receipt.at) == ("a note", opened.now)


def test_the_oldest_answers_are_still_the_first_to_go_after_a_stop(opened):
    for key in ("z", "m", "a"):
        submit(opened, key)
        opened.now += HOUR
    opened.reopen()
    assert [key for key, _ in opened.store.live.view.oldest_receipts(9)] == ["z", "m", "a"]
    opened.now += 22 * HOUR
    assert isinstance(submit(opened, "z"), SubmittedMany)
    opened.reopen()

    assert [key for key, _ in opened.store.live.view.oldest_receipts(9)] == ["a", "z"]
    assert opened.store.live.view.receipts_weight() == 4
    assert opened.store.live.cursors == {}
