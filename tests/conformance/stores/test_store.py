"""What every store keeps of jobs, events and pieces of results, before and after a stop."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Complete,
    OnExisting,
    Renew,
    Requeue,
    SendPartial,
    SetTags,
)
from manyhands.model.filter import Filter
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
    State,
)
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    TERMS,
    Backoff,
    OnDependencyFailure,
    OnExpiry,
    Reentry,
    Terms,
)
from manyhands.model.reasons import Reason
from manyhands.model.replies import Refusal
from tests.conformance.stores.opened import START, Opened, ids

HOLDER = Holder("qless", 'wörker "1"', "10.0.0.1:5")
EVERYTHING = Job(
    job_id="abc123",
    queue="größe/\0x",
    state=State.LEASED,
    payload=b"\x00\xffpayload",
    encoding=Encoding.JSON,
    terms=Terms(
        TERMS["qless"].defaults,
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
    wanted_at=START + 8,
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
    reason=Reason.ABANDONED,
    detail="why not",
    schedule="nightly",
    headers={"task": "resize", "trace": "0-1"},
    metadata=b"\xfcmore",
)


def test_every_field_of_a_job_has_a_value_to_test_with():
    same = [
        field.name
        for field in msgspec.structs.fields(Job)
        if field.default is not msgspec.NODEFAULT
        and getattr(EVERYTHING, field.name) == field.default
    ]

    assert same == ["serial", "stored_bytes"]  # these are the store's own


def test_every_field_of_a_job_comes_back(opened):
    (job,) = opened.put(EVERYTHING)
    opened.reopen()

    assert job.serial > 0
    assert opened.store.find("abc123") == job
    assert opened.store.live.live_job("abc123") == job


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
    job = opened.submit(job_id="ab", payload=b"", id_chosen=True, terms=TERMS["qless"])
    opened.ask(Cancel(job_ids=("ab",)))
    opened.commit()
    again = opened.submit(
        job_id="ab", id_chosen=True, terms=TERMS["dwork"], namespace="n", name="new"
    )
    opened.reopen()

    assert again.serial == job.serial
    assert opened.store.find("ab") == again
    assert opened.store.live.named("n", "new") == "ab"


def test_a_job_is_found_by_the_uid_of_a_foreign_id(opened):
    job = opened.submit(job_id="c0ffee", id_chosen=True)
    opened.reopen()
    uid = uid_of("c0ffee")

    assert opened.store.find(uid) == opened.job(job.job_id)
    assert opened.store.live.job_by_uid(uid) == opened.job(job.job_id)
    opened.ask(Cancel(job_ids=("c0ffee",)))
    opened.reopen()
    assert opened.store.find(uid).state is State.CANCELLED
    assert opened.store.find("0" * 32) is None


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
    assert opened.store.live.live_job(job.job_id) is None
    assert not opened.store.search(Filter(tag="a")).jobs


def test_a_finished_job_is_read_from_the_record_when_it_is_asked_for(opened):
    job = opened.submit()
    (claimed,) = opened.claim()
    opened.ask(Complete(job_id=job.job_id, proof=ByToken(claimed.lease.token), result=b"r"))
    opened.settle()

    assert opened.store.live.live_job(job.job_id) is None
    assert opened.job(job.job_id).result == b"r"
    assert opened.store.live.job("0" * 32) is None


def test_a_finished_job_that_was_let_go_of_can_be_put_to_work_again(opened):
    job = opened.submit(unique_key=b"k", payload=b"p", namespace="n", name="x", tags=("t",))
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.reopen()
    assert opened.store.live.live_job(job.job_id) is None
    opened.ask(Requeue(job_id=job.job_id))
    opened.reopen()

    again = opened.job(job.job_id)
    assert (again.state, again.incarnation, again.payload) == (State.READY, 1, b"p")
    assert opened.ready() == [job.job_id]
    live = opened.store.live
    assert live.key_holder("q", b"k") == job.job_id
    assert live.named("n", "x") == job.job_id
    assert live.queues["q"].counts[State.CANCELLED] == 0
    assert ids(opened.store.search(Filter(tag="t")).jobs) == [job.job_id]


def test_a_change_of_a_finished_job_is_seen_before_it_is_committed(opened):
    job = opened.submit()
    opened.ask(Cancel(job_ids=(job.job_id,)))
    opened.commit()
    opened.ask(SetTags(job.job_id, add=("late",)))

    assert opened.job(job.job_id).tags == ("late",)
    opened.settle()
    assert opened.store.live.live_job(job.job_id) is None
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


def test_a_batch_larger_than_any_buffer_arrives_whole(opened):
    payload = bytes(range(256)) * 40_000  # 10 MB
    job = opened.submit(payload=payload)
    opened.reopen()

    assert opened.job(job.job_id).payload == payload


def test_a_payload_may_grow_and_shrink(opened):
    job = opened.submit(payload=b"small", tags=("t",))
    (claimed,) = opened.claim()
    proof = ByToken(claimed.lease.token)
    for payload in (b"large" * 10_000, b"", b"other" * 20_000):
        opened.ask(Renew(job_id=job.job_id, proof=proof, payload=payload))
        opened.commit()
        assert opened.store.find(job.job_id).payload == payload
    opened.reopen()

    assert opened.job(job.job_id).payload == b"other" * 20_000
    assert ids(opened.store.search(Filter(text="rother")).jobs) == [job.job_id]
    assert ids(opened.store.search(Filter(tag="t")).jobs) == [job.job_id]


def test_threads_find_and_search_while_jobs_are_committed(opened):
    known = [opened.submit().job_id for _ in range(50)]
    opened.commit()

    def look(job_id):
        return opened.store.find(job_id).job_id, len(opened.store.search(Filter()).jobs)

    with ThreadPoolExecutor(4) as threads:
        looks = [threads.submit(look, job_id) for job_id in known]
        for _ in range(50):
            opened.submit()
            opened.commit()
        found = [one.result() for one in looks]

    assert [job_id for job_id, _ in found] == known
    assert all(50 <= count <= 100 for _, count in found)


def test_an_id_in_another_queue_is_moved_with_its_counts(opened):
    job = opened.submit("a", job_id="aa", id_chosen=True)
    opened.submit("b", job_id="aa", id_chosen=True, on_existing=OnExisting.MOVE)
    opened.reopen()

    assert opened.ready("b") == [job.job_id]
    assert opened.store.live.queues["a"].counts[State.READY] == 0
    assert opened.store.live.queues["b"].counts[State.READY] == 1


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
    if opened.kind != "sqlite":
        pytest.skip("there is no file to copy")
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
