"""What goes after its time, and what stays however old it is."""

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Complete,
    Fail,
    ForgetIdle,
    ForgetQueue,
    Look,
    Requeue,
    SendPartial,
    SetQueue,
)
from manyhands.model.filter import Filter
from manyhands.model.job import Failure, State
from manyhands.model.policy import TERMS, OnDependencyFailure, QueuePolicy, Terms
from manyhands.store.retention import Retention
from tests.conformance.stores.opened import START, ids

HOUR = 3_600_000


def finish(opened, queue="q", state=State.COMPLETED, **fields):
    job = opened.submit(queue, **fields)
    if state is State.CANCELLED:
        opened.ask(Cancel(job_ids=(job.job_id,)))
        return job.job_id
    (claimed,) = opened.claim(queue)
    proof = ByToken(claimed.lease.token)
    if state is State.FAILED:
        opened.ask(Fail(job_id=claimed.job_id, proof=proof, failure=Failure("x")))
    else:
        opened.ask(Complete(job_id=claimed.job_id, proof=proof, result=b"result"))
    return claimed.job_id


def prune_all(opened):
    count = 0
    while slice_count := opened.store.prune(opened.now, 3):
        count += slice_count
        opened.settle()
    opened.settle()
    return count


def on_record(opened, **wanted):
    return ids(opened.store.search(Filter(**wanted)).jobs)


def test_records_go_when_they_are_old_enough(opening):
    opened = opening(Retention(record_ms=HOUR))
    old = [finish(opened) for _ in range(7)]
    opened.settle()
    opened.now += HOUR // 2
    young = finish(opened)
    live = opened.submit()
    opened.settle()
    assert prune_all(opened) == 0

    opened.now = START + HOUR
    assert prune_all(opened) == 7
    assert on_record(opened) == [live.job_id, young]
    assert all(opened.store.find(job_id) is None for job_id in old)
    assert all(opened.store.live.job(job_id) is None for job_id in old)
    opened.reopen()
    assert opened.store.live.queues["q"].counts[State.COMPLETED] == 1


def test_records_over_the_number_go_oldest_first_for_each_outcome(opening):
    opened = opening(Retention(records_max=2))
    made = {state: [] for state in (State.COMPLETED, State.FAILED, State.CANCELLED)}
    for _ in range(4):
        for state, kept in made.items():
            kept.append(finish(opened, state=state))
            opened.now += 1
    opened.settle()

    assert prune_all(opened) == 6
    for state, kept in made.items():
        assert on_record(opened, states=(state,)) == [kept[3], kept[2]]
        assert opened.store.live.queues["q"].counts[state] == 2


def test_a_queue_has_its_own_retention(opening):
    opened = opening(Retention(record_ms=HOUR))
    opened.ask(SetQueue(queue="short", policy=QueuePolicy(record_ms=10)))
    opened.ask(SetQueue(queue="few", policy=QueuePolicy(records_max=1)))
    kept = [finish(opened, "q"), finish(opened, "few")]
    finish(opened, "short")
    opened.now += 1
    kept[1] = finish(opened, "few")
    opened.settle()
    opened.now += 20

    assert prune_all(opened) == 2
    assert sorted(on_record(opened)) == sorted(kept)


def test_records_of_a_forgotten_queue_go_by_the_servers_own_retention(opening):
    opened = opening(Retention(record_ms=HOUR))
    opened.ask(SetQueue(queue="old", policy=QueuePolicy(record_ms=100 * HOUR)))
    finish(opened, "old")
    opened.settle()
    opened.ask(ForgetQueue("old"))
    opened.settle()
    opened.now += HOUR

    assert prune_all(opened) == 1
    assert on_record(opened) == []


def test_a_queue_whose_records_are_gone_is_forgotten_for_good(opening):
    opened = opening(Retention(record_ms=HOUR))
    for number in range(5):
        finish(opened, f"reply {number}")
    opened.submit("busy")
    opened.settle()
    opened.now += HOUR
    prune_all(opened)

    opened.ask(ForgetIdle(tuple(opened.store.live.queues)))
    opened.reopen()

    assert opened.store.live.view.recorded_count("reply 0") == 0
    assert opened.store.live.view.recorded_count("busy") == 1


def test_nothing_is_kept_of_a_forgotten_queue_whose_last_record_is_gone(opening):
    opened = opening(Retention(record_ms=HOUR))
    finish(opened, "old")
    opened.settle()
    opened.ask(ForgetQueue("old"))
    opened.now += HOUR

    assert prune_all(opened) == 1
    assert opened.store.live.view.recorded_count("old") == 0


def test_very_many_queues_are_looked_at_in_turns(opening, monkeypatch):
    opened = opening(Retention(record_ms=HOUR))
    for number in range(7):
        finish(opened, f"q{number}")
    opened.settle()
    opened.now += HOUR
    monkeypatch.setattr(limits, "QUEUES_A_SLICE", 3)

    counts = []
    for _ in range(3):
        counts.append(opened.store.prune(opened.now, 100))
        opened.settle()

    assert counts == [3, 3, 1]
    assert on_record(opened) == []


def test_results_go_by_the_wish_of_the_job_and_the_record_stays(opening):
    opened = opening(Retention(result_ms=2 * HOUR))
    wish = finish(opened, terms=Terms(result_ms=10))
    front = finish(opened, terms=TERMS["draft"])
    default = finish(opened)
    forever = finish(opened, terms=Terms(result_ms=100 * HOUR))
    thrown = finish(opened, terms=Terms(result_ms=0))
    opened.reopen()

    def results():
        found = [opened.store.find(job_id) for job_id in (wish, front, default, forever, thrown)]
        return [job.result is not None for job in found]

    assert results() == [True, True, True, True, False]
    opened.now += 10
    assert prune_all(opened) == 1
    assert results() == [False, True, True, True, False]
    opened.now = START + HOUR
    assert prune_all(opened) == 1
    assert results() == [False, False, True, True, False]
    opened.now = START + 2 * HOUR
    assert prune_all(opened) == 1
    assert results() == [False, False, False, True, False]
    assert prune_all(opened) == 0
    assert len(on_record(opened)) == 5


def test_nothing_goes_that_a_live_job_waits_for(opening):
    opened = opening(Retention(record_ms=HOUR, records_max=0))
    hold = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    needed = [finish(opened, state=State.FAILED) for _ in range(5)]
    opened.settle()
    waits = opened.submit("other", depends_on=tuple(needed), terms=hold)
    free = finish(opened, state=State.FAILED)
    opened.reopen()
    opened.now += 2 * HOUR

    assert waits.state is State.BLOCKED
    assert prune_all(opened) == 1
    assert opened.store.find(free) is None
    assert all(opened.store.find(job_id) is not None for job_id in needed)
    opened.ask(Cancel(job_ids=(waits.job_id,)))
    opened.settle()
    assert prune_all(opened) == 6


def test_names_of_a_graph_that_is_not_drained_stay(opening):
    opened = opening(Retention(record_ms=HOUR, records_max=1))
    terms = TERMS["dwork"]
    last = opened.submit("later", namespace="n", name="last", terms=terms)
    named = [finish(opened, namespace="n", name=f"n{number}", terms=terms) for number in range(5)]
    opened.reopen()
    opened.now += 2 * HOUR

    assert prune_all(opened) == 0
    assert opened.store.live.named("n", "n0") == named[0]
    opened.ask(Complete(job_id=last.job_id, proof=ByToken("anybody")))
    opened.settle()
    assert prune_all(opened) == 5


def test_a_record_that_is_about_to_go_is_gone_for_every_command(opening):
    opened = opening(Retention(record_ms=HOUR))
    gone = finish(opened)
    opened.settle()
    opened.now += HOUR
    assert opened.store.prune(opened.now, 10) == 1

    assert opened.ask(Look(gone)).job is None
    opened.ask(Requeue(job_id=gone))
    opened.reopen()
    assert opened.store.find(gone) is None
    assert opened.ready() == []


def test_a_job_put_to_work_again_is_not_pruned(opening):
    opened = opening(Retention(record_ms=HOUR, result_ms=10))
    job_id = finish(opened)
    opened.settle()
    opened.now += HOUR
    opened.ask(Requeue(job_id=job_id))
    assert opened.store.prune(opened.now, 10) in (0, 1)  # its old result may go, it may not
    opened.reopen()

    assert opened.ready() == [job_id]
    assert opened.store.live.queues["q"].counts[State.COMPLETED] == 0


def test_pieces_and_tags_go_with_their_record(opening):
    opened = opening(Retention(record_ms=HOUR))
    job = opened.submit(tags=("red",))
    (claimed,) = opened.claim()
    proof = ByToken(claimed.lease.token)
    opened.ask(SendPartial(job_id=job.job_id, proof=proof, payload=b"piece"))
    opened.ask(Complete(job_id=job.job_id, proof=proof))
    opened.settle()
    assert len(opened.store.partials(job.job_id)) == 1
    opened.now += HOUR

    assert prune_all(opened) == 1
    assert list(opened.store.partials(job.job_id)) == []
    assert on_record(opened, tag="red") == []


def test_events_go_when_they_are_old_enough(opening):
    opened = opening(Retention(event_ms=HOUR))
    for _ in range(50):
        opened.submit()
    opened.settle()
    opened.now += HOUR // 2
    opened.submit()
    opened.settle()
    opened.now = START + HOUR
    opened.store.prune(opened.now, 10)
    opened.reopen()

    assert (opened.store.first_seq(), opened.store.last_seq()) == (51, 51)
    assert [stored.seq for stored in opened.store.events_after(0, 100)] == [51]
    opened.now += 10 * HOUR
    opened.store.prune(opened.now, 10)
    opened.reopen()
    assert (opened.store.first_seq(), opened.store.last_seq()) == (52, 51)
    opened.submit()
    opened.settle()
    assert [stored.seq for stored in opened.store.events_after(0, 100)] == [52]


def test_of_events_of_one_batch_only_the_surplus_goes(opening):
    opened = opening(Retention(events_max=30))
    for _ in range(300):
        opened.submit()
    opened.settle()

    opened.store.prune(opened.now, 10)
    opened.settle()
    first = opened.store.first_seq()
    opened.reopen()

    assert 1 < first == opened.store.first_seq() <= 271
    assert [stored.seq for stored in opened.store.events_after(0, 300)] == [*range(first, 301)]
    assert [stored.seq for stored in opened.store.events_after(280, 3)] == [281, 282, 283]


def test_what_goes_rides_with_other_changes_in_one_batch(opening):
    opened = opening(Retention(records_max=0))
    finish(opened)
    opened.settle()
    opened.store.prune(opened.now, 10)
    other = opened.submit()
    opened.reopen()

    assert on_record(opened) == [other.job_id]


def large(opened, queue="q", state=State.COMPLETED):
    """A finished job of 1,000 bytes, later than all before it."""
    opened.now += 1
    return finish(opened, queue, state, payload=bytes(1_000 - len(b"result")))


def test_records_over_the_bytes_go_oldest_first_whatever_their_queue_and_outcome(opening):
    opened = opening(Retention(bytes_max=3_500))
    made = [
        large(opened, queue, state)
        for queue in ("one", "other")
        for state in (State.COMPLETED, State.CANCELLED, State.COMPLETED)
    ]
    live = opened.submit(payload=bytes(10_000))
    opened.settle()

    assert prune_all(opened) == 3
    assert on_record(opened) == [live.job_id, *reversed(made[3:])]
    opened.reopen()
    assert prune_all(opened) == 0


def test_bytes_of_records_are_counted_whatever_becomes_of_them(opening):
    opened = opening(Retention(result_ms=HOUR, records_max=4))
    made = [large(opened) for _ in range(6)]
    opened.settle()
    assert opened.store.live.finished_bytes == 6_000
    prune_all(opened)
    assert opened.store.live.finished_bytes == 4_000

    opened.ask(Requeue(job_id=made[-1]))
    opened.settle()
    assert opened.store.live.finished_bytes == 3_000
    opened.now += 2 * HOUR
    prune_all(opened)
    assert opened.store.live.finished_bytes == 3 * (1_000 - len(b"result"))
    opened.reopen()
    assert opened.store.live.finished_bytes == 3 * (1_000 - len(b"result"))


def test_bytes_of_unfinished_jobs_are_counted_also_after_a_restart(opening):
    opened = opening()
    opened.submit(payload=bytes(5_000))
    opened.submit(payload=bytes(100))
    finish(opened, "other", payload=bytes(700))
    weight = 5_100 + 2 * limits.JOB_BYTES
    assert opened.store.live.unfinished_bytes == weight

    opened.settle()
    opened.reopen()

    assert opened.store.live.unfinished_bytes == weight
    assert opened.store.held_bytes()["jobs"] == weight


def test_bytes_on_their_way_to_the_records_are_counted(opening):
    opened = opening()
    opened.submit(payload=bytes(5_000))
    finish(opened, payload=bytes(700))
    held = opened.store.held_bytes()
    assert held["gathering"] == opened.store.backlog_bytes() == 5_706

    opened.settle()

    held = opened.store.held_bytes()
    assert (held["gathering"], held["frames"], held["recent"]) == (0, 0, 0)
    assert opened.store.backlog_bytes() == 0
