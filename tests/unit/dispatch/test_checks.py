"""A server that checks itself notices what must never be, and ends before it acknowledges more."""

from msgspec.structs import replace

from manyhands.dispatch.checks import WORLD_EVERY
from manyhands.model.commands import NewJob, SetPriority, Submit
from manyhands.model.job import Job, State
from manyhands.model.replies import Refusal, Why
from tests.unit.dispatch.desk import COMMIT_MS, Desk


def a_desk() -> Desk:
    """With everything looked at once, as after a start."""
    desk = Desk(check_invariants=True)
    desk.submit()
    return desk


def corrupt(desk: Desk, job: Job, **fields) -> None:
    """A defect of the server's own has put this into memory."""
    desk.store.live.values[job.job_id] = replace(job, **fields)


def assert_ended(desk: Desk, *words: str) -> None:
    (text,) = desk.failures
    for word in words:
        assert word in text
    assert desk.dispatcher.failed == text


def test_a_sound_server_goes_on():
    desk = a_desk()

    for _ in range(WORLD_EVERY + 2):
        desk.submit()
        desk.tell(desk.a_complete(desk.claim()))
    desk.run(COMMIT_MS * 2)

    assert not desk.failures


def test_a_changed_job_that_contradicts_itself_ends_the_server():
    desk = a_desk()
    job = desk.claim()
    corrupt(desk, job, attempts_used=7)

    answered = desk.ask(SetPriority(job.job_id, 5.0))
    desk.run(COMMIT_MS * 2)

    assert_ended(desk, "an invariant is broken after SetPriority(", "5.0", "attempts_used")
    assert answered.reply is None, "acknowledged although it is broken"
    later = desk.ask(desk.a_submit())
    assert isinstance(later.reply, Refusal)
    assert later.reply.why is Why.STORE_FAILED


def test_a_changed_job_that_is_not_found_as_it_must_be_ends_the_server():
    desk = a_desk()
    job = desk.claim()
    desk.store.live.leases.by_holder.clear()

    desk.tell(SetPriority(job.job_id, 5.0))

    assert_ended(desk, f"{job.job_id}: its holder does not hold it")


def test_what_a_command_did_not_touch_is_looked_at_now_and_then():
    desk = a_desk()
    (job,) = desk.submit(queue="other")
    corrupt(desk, job, run_at=1)

    for _ in range(WORLD_EVERY - 2):
        desk.submit()
    before = list(desk.failures)
    desk.tell(desk.a_submit())
    desk.tell(desk.a_submit())

    assert not before
    assert_ended(desk, "an invariant is broken after Submit(", f"{job.job_id}: ready, yet not due")


def test_a_count_that_is_wrong_is_noticed():
    desk = a_desk()
    desk.store.live.queues["q"].counts[State.DELAYED] = -1

    for number in range(WORLD_EVERY + 1):
        desk.tell(Submit((NewJob(job_id=f"{number:032x}", queue="other"),)))

    assert_ended(desk, "queue q counts -1 delayed, not 0")


def test_a_server_that_does_not_check_itself_pays_nothing_for_it():
    desk = Desk()

    assert desk.dispatcher._write == desk.store.write
    assert desk.dispatcher._load == desk.store.load
