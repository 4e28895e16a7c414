"""What every store keeps, and in which order, before and after a stop."""

import msgspec
import pytest
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Complete,
    Fail,
    ForgetQueue,
    OnExisting,
    PutSchedule,
    Release,
    RemoveSchedule,
    Requeue,
    SendPartial,
    SetLimit,
    SetPriority,
    SetQueue,
    SetTags,
)
from manyhands.model.identity import uid_of
from manyhands.model.job import (
    Attempt,
    EndReason,
    Failure,
    HistoryEntry,
    Holder,
    Job,
    Lease,
    Origin,
    Progress,
    Schedule,
    State,
)
from manyhands.model.outcome import Refusal
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    TERMS,
    Backoff,
    OnDependencyFailure,
    OnExpiry,
    QueuePolicy,
    Rate,
    Reentry,
    Terms,
)
from manyhands.store.store import Filter
from tests.conformance.stores.opened import START, Opened, ids

HOLDER = Holder("http", 'wörker "1"', "10.0.0.1:5")
EVERYTHING = Job(
    job_id="abc123",
    queue="größe/\0x",
    state=State.LEASED,
    payload=b"\x00\xffpayload",
    encoding=Encoding.JSON,
    terms=Terms(
        TERMS["http"].defaults,
        attempts_max=-1,
        backoff=Backoff(5, 1.5, 50, 0.1),
        lease_ms=7,
        attempt_ms_max=8,
        on_expiry=OnExpiry.LAPSE,
        reentry=Reentry.FRONT,
        on_dependency_failure=OnDependencyFailure.RUN,
        result_ms=9,
    ),
    origin=Origin("draft", "client", "10.0.0.2:6"),
    priority=-2.5,
    position=-77,
    submitted_at=START + 1,
    entered_at=START + 2,
    run_at=START + 3,
    deadline_at=START + 4,
    finished_at=START + 5,
    incarnation=3,
    attempts_used=2,
    lease_number=4,
    lease=Lease("token", 4, HOLDER, START, 10, START + 10, START + 20, "a/1", True, True, True),
    attempts=(Attempt(3, HOLDER, START, START + 1, EndReason.CUTOFF, "t3", "too long"),),
    history=(HistoryEntry(START, "moved", "from a to b"),),
    unique_key=b"\xfe\x00key",
    namespace="graph",
    name="näme\n",
    tags=("red", "blue"),
    limits=("gpu",),
    depends_on=("d1", "d2"),
    waits_for=("d2",),
    durable_interest=False,
    waiters=("a/2",),
    progress=Progress(1, 3, 60, START + 6),
    partials_count=2,
    result=b"\xffresult",
    result_encoding=Encoding.TEXT,
    failure=Failure("code", "message", b"\xfdbytes"),
    reason="why not",
    schedule="nightly",
    metadata=b"\xfcmore",
)


def test_every_field_of_a_job_has_a_value_to_test_with():
    same = [
        field.name
        for field in msgspec.structs.fields(Job)
        if field.default is not msgspec.NODEFAULT
        and getattr(EVERYTHING, field.name) == field.default
    ]

    assert same == ["serial"]


def test_every_field_of_a_job_comes_back(opened):
    (job,) = opened.put(EVERYTHING)
    opened.reopen()

    assert job.serial == 1
    assert opened.store.find("abc123") == job
    assert opened.store.index.jobs["abc123"] == job


def test_changed_fields_of_a_job_come_back(opened):
    (job,) = opened.put(EVERYTHING)
    opened.commit()
    changed = replace(
        job,
        queue="other",
        state=State.FAILED,
        lease=None,
        attempts=(*job.attempts, Attempt(4, HOLDER, START, START + 9, EndReason.FAILED)),
        waits_for=(),
        waiters=(),
        progress=None,
        result=b"",
        failure=None,
        reason="",
        metadata=b"",
    )
    opened.put(changed)
    opened.reopen()

    assert opened.store.find("abc123") == changed


def test_terms_name_and_payload_of_a_job_submitted_again_come_back(opened):
    job = opened.submit(job_id="ab", payload=b"", id_chosen=True, terms=TERMS["http"])
    opened.ask(Cancel(job_ids=("ab",)))
    opened.commit()
    again = opened.submit(
        job_id="ab", id_chosen=True, terms=TERMS["dwork"], namespace="n", name="new"
    )
    opened.reopen()

    assert again.serial == job.serial
    assert opened.store.find("ab") == again
    assert opened.store.index.named("n", "new") == "ab"


def test_jobs_that_share_terms_share_one_object_after_a_restart(opened):
    jobs = [opened.submit(terms=Terms(lease_ms=5)) for _ in range(3)]
    opened.reopen()

    terms = [opened.job(job.job_id).terms for job in jobs]
    assert terms == [Terms(lease_ms=5)] * 3
    if opened.kind != "memory":
        assert len({id(one) for one in terms}) == 1


def test_a_job_is_found_by_the_uid_of_a_foreign_id(opened):
    job = opened.submit(job_id="c0ffee", id_chosen=True)
    opened.reopen()
    uid = uid_of("c0ffee")

    assert opened.store.find(uid) == opened.job(job.job_id)
    assert opened.store.index.job_by_uid(uid) == opened.job(job.job_id)
    opened.ask(Cancel(job_ids=("c0ffee",)))
    opened.reopen()
    assert opened.store.find(uid).state is State.CANCELLED
    assert opened.store.find("0" * 32) is None


def test_ready_jobs_keep_their_order_over_a_restart(opened):
    jobs = [opened.submit(terms=TERMS["http"]) for _ in range(6)]
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

    index = opened.store.index
    assert index.named("n", "first") == first.job_id
    assert index.jobs[first.job_id].state is State.COMPLETED
    assert index.unfinished_in("n") == 1
    opened.ask(Complete(job_id=last.job_id, proof=ByToken("anybody")))
    opened.reopen()
    assert opened.store.index.named("n", "first") is None
    assert opened.store.index.unfinished_in("n") == 0


def test_a_name_points_to_the_latest_of_its_jobs_after_a_restart(opened):
    terms = TERMS["dwork"]
    opened.submit(namespace="n", name="other", terms=terms)
    old = opened.submit(namespace="n", name="x", terms=terms)
    opened.ask(Complete(job_id=old.job_id, proof=ByToken("anybody")))
    new = opened.submit(namespace="n", name="x", terms=terms)
    opened.reopen()

    assert new.job_id != old.job_id
    assert opened.store.index.named("n", "x") == new.job_id


def test_dependants_are_known_after_a_restart(opened):
    first = opened.submit("a")
    waiting = [opened.submit("b", depends_on=(first.job_id,)) for _ in range(3)]
    opened.reopen()

    assert opened.store.index.dependants(first.job_id) == tuple(ids(waiting))
    (claimed,) = opened.claim("a")
    opened.ask(Complete(job_id=first.job_id, proof=ByToken(claimed.lease.token)))
    opened.reopen()
    assert opened.ready("b") == ids(waiting)


def test_leases_limits_and_waiters_are_known_after_a_restart(opened):
    opened.ask(SetLimit("gpu", 1))
    job = opened.submit(limits=("gpu",), waiter="s/1", durable_interest=False)
    opened.claim()
    opened.reopen()

    index = opened.store.index
    assert list(index.leased()) == [job.job_id]
    assert index.limit_used("gpu") == 1
    assert index.limit("gpu").concurrency_max == 1
    assert list(index.waited()) == [job.job_id]
    assert index.next_due_at() == START + 60_000
    opened.ask(SetLimit("gpu", None))
    opened.reopen()
    assert opened.store.index.limit("gpu") is None


def test_counts_are_those_of_all_jobs_on_record(opened):
    for queue, count in (("a", 3), ("b", 1)):
        for _ in range(count):
            opened.submit(queue)
    (job,) = opened.claim("a")
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(job.lease.token)))
    (job,) = opened.claim("a")
    opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=Failure("x")))
    opened.reopen()

    counts = {state: count for state, count in opened.store.index.counts_of("a").items() if count}
    assert counts == {State.READY: 1, State.COMPLETED: 1, State.FAILED: 1}
    assert opened.store.index.counts_of("b")[State.READY] == 1


def test_a_forgotten_queue_keeps_its_records_and_its_counts(opened):
    job = opened.submit("old")
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.commit()
    opened.ask(ForgetQueue("old"))
    opened.reopen()

    assert opened.store.index.queue("old") is None
    assert ids(opened.store.search(Filter(states=(State.CANCELLED,))).jobs) == [job.job_id]
    opened.submit("old")
    counts = opened.store.index.counts_of("old")
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

    queue = opened.store.index.queue("q")
    assert (queue.paused, queue.policy) == (True, policy)
    assert opened.store.index.schedules == {"nightly": schedule}


def test_events_are_kept_in_order_and_read_by_cursor(opened):
    for _ in range(3):
        opened.submit()
    opened.commit()
    opened.claim(count=2)
    assert opened.store.last_seq() == 3  # the claims are not committed yet
    opened.reopen()

    events = opened.store.events_after(0, 100)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.event.state for event in events] == [State.READY] * 3 + [State.LEASED] * 2
    assert events[4].event.holder == Holder("native", "worker")
    assert opened.store.events_after(3, 1) == events[3:4]
    assert list(opened.store.events_after(5, 10)) == []
    assert (opened.store.first_seq(), opened.store.last_seq()) == (1, 5)
    opened.submit()
    opened.commit()
    assert opened.store.last_seq() == 6


def test_the_time_of_the_last_commit_is_known_at_the_next_start(opened):
    assert opened.store.alive_at is None
    opened.submit()
    opened.commit()
    opened.now += 5_000
    opened.store.touch()
    opened.reopen()

    if opened.kind != "memory":
        assert opened.store.alive_at == START + 5_000


def test_nothing_to_write_makes_no_batch(opened):
    assert opened.store.begin_commit(START) is None


def test_several_changes_of_a_job_in_one_batch_are_one_row_and_all_events(opened):
    job = opened.submit(tags=("a",))
    (claimed,) = opened.claim()
    opened.ask(SetTags(job.job_id, add=("b",), remove=("a",)))
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(claimed.lease.token), result=b"r"))
    assert opened.store.is_unsaved(job.job_id)
    opened.reopen()

    kept = opened.store.find(job.job_id)
    assert (kept.state, kept.result, kept.tags) == (State.COMPLETED, b"r", ("b",))
    states = [stored.event.state for stored in opened.store.events_after(0, 10)]
    assert states == [State.READY, State.LEASED, State.COMPLETED]
    assert not opened.store.is_unsaved(job.job_id)
    assert job.job_id not in opened.store.index.jobs
    assert not opened.store.search(Filter(tag="a")).jobs


def test_a_finished_job_is_read_from_the_record_when_it_is_asked_for(opened):
    job = opened.submit()
    (claimed,) = opened.claim()
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(claimed.lease.token), result=b"r"))
    opened.commit()

    assert job.job_id not in opened.store.index.jobs
    assert opened.job(job.job_id).result == b"r"
    assert opened.store.index.job("0" * 32) is None


def test_a_finished_job_that_was_let_go_of_can_be_put_to_work_again(opened):
    job = opened.submit(unique_key=b"k", payload=b"p", namespace="n", name="x", tags=("t",))
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.reopen()
    assert job.job_id not in opened.store.index.jobs
    opened.ask(Requeue(job_id=job.job_id))
    opened.reopen()

    again = opened.job(job.job_id)
    assert (again.state, again.incarnation, again.payload) == (State.READY, 1, b"p")
    assert opened.ready() == [job.job_id]
    index = opened.store.index
    assert index.key_holder("q", b"k") == job.job_id
    assert index.named("n", "x") == job.job_id
    assert index.counts_of("q")[State.CANCELLED] == 0
    assert ids(opened.store.search(Filter(tag="t")).jobs) == [job.job_id]


def test_a_change_of_a_finished_job_is_seen_before_it_is_committed(opened):
    job = opened.submit()
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.commit()
    opened.ask(SetTags(job.job_id, add=("late",)))

    assert opened.job(job.job_id).tags == ("late",)
    opened.commit()
    assert job.job_id not in opened.store.index.jobs
    assert opened.job(job.job_id).tags == ("late",)


def test_pieces_of_a_result_are_kept_in_order_up_to_their_bound(opened):
    job = opened.submit()
    (claimed,) = opened.claim()
    proof = ByToken(claimed.lease.token)
    for number in range(limits.PARTIALS_KEPT_MAX + 3):
        opened.ask(SendPartial(job_id=job.job_id, proof=proof, payload=b"%d" % number))
    opened.ask(SendPartial(job_id=job.job_id, proof=proof, payload=b"", warning=True))
    opened.reopen()

    kept = opened.store.partials(job.job_id)
    assert len(kept) == limits.PARTIALS_KEPT_MAX
    assert (kept[0].number, kept[0].payload, kept[0].warning) == (5, b"4", False)
    assert (kept[-1].number, kept[-1].payload, kept[-1].warning) == (260, b"", True)
    assert kept[-1].at == START
    assert list(opened.store.partials("0" * 32)) == []


def test_pieces_of_a_job_put_to_work_again_replace_the_old_ones(opened):
    job = opened.submit()
    for payloads in ((b"1", b"2", b"3"), (b"new",)):
        (claimed,) = opened.claim()
        proof = ByToken(claimed.lease.token)
        for payload in payloads:
            opened.ask(SendPartial(job_id=job.job_id, proof=proof, payload=payload))
        opened.ask(Complete(job_id=job.job_id, proof=proof))
        opened.commit()
        opened.ask(Requeue(job_id=job.job_id))

    assert [piece.payload for piece in opened.store.partials(job.job_id)] == [b"new"]


def test_serials_and_positions_go_on_after_a_restart_even_if_their_jobs_are_gone(opened):
    last = [opened.submit() for _ in range(3)][-1]
    opened.reopen()

    job = opened.submit()
    assert job.serial == last.serial + 1
    assert job.position > last.position


def test_a_batch_larger_than_any_buffer_arrives_whole(opened):
    payload = bytes(range(256)) * 40_000  # 10 MB
    job = opened.submit(payload=payload)
    opened.reopen()

    assert opened.job(job.job_id).payload == payload


def test_an_id_in_another_queue_is_moved_with_its_counts(opened):
    job = opened.submit("a", job_id="aa", id_chosen=True)
    opened.submit("b", job_id="aa", id_chosen=True, on_existing=OnExisting.MOVE)
    opened.reopen()

    assert opened.ready("b") == [job.job_id]
    assert opened.store.index.counts_of("a")[State.READY] == 0
    assert opened.store.index.counts_of("b")[State.READY] == 1


@pytest.mark.parametrize("count", [1, 50])
def test_facts_tell_what_there_is(opened, count):
    for _ in range(count):
        opened.submit()
    opened.commit()

    facts = opened.store.facts()
    assert facts["kind"] == opened.kind
    assert facts["unfinished_jobs"] == count
    assert facts["events"] == count


def test_a_copy_made_while_the_store_is_in_use_opens_as_a_store(opened, tmp_path):
    if opened.kind == "memory":
        pytest.skip("a memory store has nothing on disk to copy")
    jobs = [opened.submit(payload=b"x" * 10_000) for _ in range(2_000)]
    opened.commit()
    steps = []
    for step in opened.store.backup(str(tmp_path / "copy.db")):
        steps.append(step)
        opened.submit()
        opened.commit()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy.db").rename(tmp_path / "elsewhere" / "manyhands.db")
    copy = Opened("sqlite", tmp_path / "elsewhere")

    assert len(steps) > 2
    assert steps[-1][0] == 0
    assert copy.ready() == ids(jobs)
    copy.close()


def test_a_refusal_leaves_nothing_to_write(opened):
    reply = opened.ask(Requeue(job_id="0" * 32))

    assert isinstance(reply, Refusal)
    assert opened.store.begin_commit(START) is None
