"""dwork beyond its edge cases: order of replies, holding, leases, failures, other fronts."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.model.commands import (
    ByAnyone,
    ByToken,
    Cancel,
    Claim,
    Complete,
    Depart,
    Fail,
    NewJob,
    Requeue,
    Submit,
)
from manyhands.model.job import Failure, Holder, State
from manyhands.model.payload import Encoding
from manyhands.model.replies import Why
from manyhands.protocols.dwork.codec import Kind, Query, Task, encode
from manyhands.protocols.dwork.turns import Turns
from manyhands.protocols.dwork.words import ANSWERS
from tests.unit.protocols.dwork_desk import Desk, a_task

OK, NOT_FOUND, ERROR, EXIT = Kind.OK, Kind.NOT_FOUND, Kind.ERROR, Kind.EXIT


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_every_refusal_has_an_answer():
    assert set(ANSWERS) == set(Why)


def test_the_transcript_of_a_diamond_is_that_of_the_original(desk):
    """D1 and D8: the bytes that conform, but for the log and the order of equals."""
    diamond = (
        "0800120b0a01611206636c69656e7412100a01621206636c69656e7422030a016112100a01631206636c69656e"
        "7422030a016112150a01641206636c69656e7422030a016222030a0163"
    )
    four_active = "08061a1e646875623a203420616374697665207461736b732c20312072656164792e2001"
    complete_a = "0802120b0a01611206636c69656e7432027731"
    steal_ten = "0801200a32027731"

    def say(text: str) -> str:
        return desk.raw(bytes.fromhex(text)).hex()

    assert say("0806") == "08061a1e646875623a203020616374697665207461736b732c20302072656164792e2000"
    assert say(diamond) == "0806"
    assert say("0806") == four_active
    assert say(steal_ten).startswith("0803")
    assert say(steal_ten) == "0805"
    assert say(complete_a) == "0806"
    assert desk.status() == (3, 2)
    desk.steal(n=10)
    desk.complete("b", "c")
    assert desk.steal() == ["d"]
    desk.complete("d")
    assert say("080132027731") == "0807"
    assert say("080732027731") == "0806"
    assert say("080732066e6f626f6479") == "0805"


def test_d1_further_frames_of_an_envelope_come_back(desk):
    sent: list[tuple[bytes, ...]] = []
    desk.send = lambda route, body, _: sent.append((*route, body))
    desk.session.turns.hub = desk

    desk.tell([b"p", b"proxy", b"", b"\x08\x01\x32\x00"])

    assert sent[0][:3] == (b"p", b"proxy", b"")


def test_d3_a_reply_leaves_alone_if_nothing_else_is_owed_along_its_route():
    sent: list[tuple[str, bytes]] = []
    hub = SimpleNamespace(
        send=lambda _route, body, _undelivered: sent.append(("together", body)),
        send_alone=lambda _route, body, _undelivered: sent.append(("alone", body)),
    )
    turns = Turns(hub)
    first, second, other = [turns.take((peer, b"")) for peer in (b"p", b"p", b"q")]
    second.answer(b"2")
    other.answer(b"other")
    assert sent == [("alone", b"other")]
    first.answer(b"1")
    turns.take((b"p", b"")).answer(b"3")

    assert sent[1:] == [("together", b"1"), ("together", b"2"), ("alone", b"3")]
    assert turns.awaited_count == 0


def test_d3_replies_of_a_peer_come_in_the_order_of_its_requests(desk):
    desk.create(a_task("a"))
    later = []
    ask = desk.ask

    def slow(command, settle=None, refused=None) -> None:
        # A commit that takes its time; the claim after it does not.
        if type(command).__name__ == "Submit":
            ask(command, lambda reply: later.append(lambda: settle(reply)), refused)
        else:
            ask(command, settle, refused)

    desk.ask = slow
    desk.post(b"d", Kind.CREATE, a_task("b"))
    desk.post(b"d", Kind.STEAL, location="w")
    assert desk.read(b"d") is None
    later[0]()

    first, second = desk.read(b"d"), desk.read(b"d")
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (OK, Kind.TRANSFER)
    assert desk.session.turns.awaited_count == 0


def test_d18_a_steal_is_held_until_there_is_work(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal("busy")

    desk.post(b"idle", Kind.STEAL, location="w2")
    assert desk.read(b"idle") is None
    desk.complete("a", location="busy")

    reply = desk.read(b"idle")
    assert reply is not None
    assert [task.name for task in reply.tasks] == ["b"]


def test_d18_a_steal_is_held_for_a_second_at_most(desk):
    desk.create(a_task("a"))
    desk.steal("busy")

    desk.post(b"idle", Kind.STEAL, location="w2")
    desk.pass_time(999)
    assert desk.read(b"idle") is None
    desk.pass_time(1)

    reply = desk.read(b"idle")
    assert reply is not None
    assert reply.kind is NOT_FOUND


def test_d18_a_worker_that_has_work_is_answered_at_once(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal("w1")

    assert desk.steal("w1") is NOT_FOUND


def test_d18_whoever_goes_on_talking_does_not_wait(desk):
    desk.create(a_task("a"))
    desk.steal("busy")

    desk.post(b"idle", Kind.STEAL, location="w2")
    desk.post(b"idle", Kind.OK)

    kinds = [decoded.kind for decoded in iter(lambda: desk.read(b"idle"), None)]
    assert kinds == [NOT_FOUND, OK]


def test_d19_held_steals_hear_at_once_that_a_graph_is_drained(desk):
    desk.create(a_task("a"))
    desk.steal("busy")
    desk.post(b"idle", Kind.STEAL, location="w2")

    desk.complete("a", location="busy")

    reply = desk.read(b"idle")
    assert reply is not None
    assert reply.kind is EXIT


def test_d6_held_steals_hear_that_the_server_stops(desk):
    desk.create(a_task("a"))
    desk.steal("busy")
    desk.post(b"idle", Kind.STEAL, location="w2")

    desk.draining = True
    desk.session.drain()

    reply = desk.read(b"idle")
    assert reply is not None
    assert reply.kind is EXIT


def test_d21_what_could_not_be_delivered_goes_back_and_costs_nothing(desk):
    desk.create(a_task("a"))
    desk.unreachable.add(b"gone")

    desk.post(b"gone", Kind.STEAL, location="w1")

    assert desk.state("a") is State.READY
    assert desk.job("a").attempts_used == 0
    assert desk.steal("w2") == ["a"]


def fail(desk: Desk, name: str, location: str = "w1", **fields) -> Kind:
    task = Task(name=name, origin="w", failure="disk full\nat line 7", **fields)
    return desk.query(Kind.COMPLETE, task, location=location).kind


def test_d26_a_task_can_fail_with_a_reason(desk):
    desk.create(a_task("a"), a_task("other"))
    desk.steal()

    assert fail(desk, "a") is OK
    (shown,) = desk.query(Kind.LOOKUP, name="a").tasks
    assert desk.state("a") is State.FAILED
    assert (shown.failure, shown.attempt) == ("disk full\nat line 7", 1)


def test_d26_a_failure_may_be_reported_twice_by_the_same_worker_only(desk):
    desk.create(a_task("a"), a_task("other"))
    desk.steal()

    assert fail(desk, "a") is OK
    assert fail(desk, "a") is OK
    assert fail(desk, "a", location="w2") is NOT_FOUND
    assert fail(desk, "other", location="w2") is NOT_FOUND


def test_d26_a_failed_task_is_tried_again_if_its_worker_says_so(desk):
    desk.create(a_task("a"))
    desk.steal()

    assert fail(desk, "a", retry=True) is OK
    assert desk.state("a") is State.DELAYED
    desk.pass_time(2000)
    assert desk.steal() == ["a"]
    assert desk.job("a").lease_number == 2


def test_d27_dependants_of_a_failed_task_are_held_until_it_is_put_to_work_again(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal()
    fail(desk, "a")
    assert desk.state("b") is State.BLOCKED

    desk.ask(Requeue(job_id=desk.job("a").job_id))
    desk.steal()
    desk.complete("a")

    assert desk.steal() == ["b"]


def test_d13_creating_a_failed_task_again_frees_those_that_waited_for_it(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal()
    fail(desk, "a")

    assert desk.create(a_task("a")) is OK
    assert desk.steal() == ["a"]
    desk.complete("a")
    assert desk.steal() == ["b"]


def test_d13_a_task_that_is_to_be_kept_does_not_run_again(desk):
    desk.create(a_task("a"), a_task("b", "a"), a_task("c"))
    desk.steal()
    desk.complete("a")
    first = desk.job("a").job_id

    assert desk.create(a_task("d", "a"), a_task("a", keep=True), a_task("c", "d", keep=True)) is OK

    assert desk.job("a").job_id == first
    assert desk.state("a") is State.COMPLETED
    assert [desk.state(name) for name in "bcd"] == [State.READY] * 3


def test_d13_creating_a_failed_task_again_after_its_own_dependant_is_an_error(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal()
    fail(desk, "a")

    assert desk.create(a_task("a", "b")) is ERROR
    assert desk.create(a_task("x"), a_task("a", "x"), a_task("x", "b")) is ERROR
    assert desk.status() == (1, 0)


def test_d27_dependants_are_cancelled_where_they_asked_for_it_or_an_operator_does(desk):
    desk.create(
        a_task("a"), a_task("b", "a", cancel_on_failure=True), a_task("c", "a"), a_task("d")
    )
    desk.steal()
    fail(desk, "a")

    assert desk.state("b") is State.CANCELLED
    assert desk.state("c") is State.BLOCKED
    desk.ask(Cancel(job_ids=(desk.job("c").job_id,)))
    assert desk.state("c") is State.CANCELLED


def test_d20_a_graph_that_only_failures_hold_up_is_drained(desk):
    desk.create(a_task("a"), a_task("b", "a"), a_task("c", "b"))
    desk.steal()
    fail(desk, "a")

    assert desk.steal() is EXIT
    assert desk.status() == (2, 0)


@pytest.mark.parametrize(("count", "slices"), [(499, 1), (1_200, 3)])
def test_d29_a_worker_that_held_very_many_tasks_gives_them_back_in_slices(desk, count, slices):
    for first in range(0, count, 1_000):
        row = range(first, min(first + 1_000, count))
        desk.create(*(a_task(f"t{number}") for number in row))
        assert len(desk.steal(n=1_000)) == len(row)
    assert desk.status() == (count, 0)
    before = len(desk.asked)

    assert desk.query(Kind.EXIT, location="w1").kind is OK

    assert [type(command) for command in desk.asked[before:]] == [Depart] * slices
    assert desk.status() == (count, count)


def test_d32_a_lease_ends_in_silence_and_is_renewed_by_any_message_of_its_worker():
    desk = Desk(lease_ms=10_000)
    desk.create(a_task("a"), a_task("b"), a_task("c"))
    desk.steal("w1")
    desk.steal("w2")

    desk.pass_time(9_000)
    desk.complete("nobody", location="w1")
    desk.pass_time(2_000)

    assert desk.state("a") is State.LEASED
    assert desk.state("b") is State.READY
    assert desk.steal("w1", n=2) == ["b", "c"]


def test_d33_payload_priority_and_result_travel_in_fields_of_their_own(desk):
    desk.create(a_task("a", payload=b"\xff\0data", priority=2.5), a_task("other"))
    reply = desk.query(Kind.STEAL, location="w1")
    (task,) = reply.tasks
    assert (task.payload, task.priority, task.attempt) == (b"\xff\0data", 2.5, 1)

    desk.query(Kind.COMPLETE, Task(name="a", origin="w", result=b"42"), location="w1")

    assert desk.job("a").result == b"42"
    assert desk.query(Kind.LOOKUP, name="a").tasks[0].result == b"42"


def test_d33_a_payload_above_the_limit_is_an_error():
    desk = Desk(payload_bytes_max=10)

    assert desk.create(a_task("a", payload=b"x" * 11)) is ERROR
    assert desk.create(a_task("a", payload=b"x" * 10)) is OK


def test_d34_two_endpoints_are_two_graphs(desk):
    other = Desk("physics", store=desk.store)

    desk.create(a_task("a"))
    other.create(a_task("a"), a_task("b", "a"))

    assert desk.steal(n=10) == ["a"]
    desk.complete("a")
    assert desk.steal() is EXIT
    assert other.status() == (2, 1)
    assert other.steal(n=10) == ["a"]


def test_d35_a_job_of_another_front_goes_by_its_id(desk):
    job_id = "ab" * 16
    item = NewJob(job_id=job_id, queue="dwork", payload=b'{"x":1}', encoding=Encoding.JSON)
    desk.ask(Submit((item,)))

    (task,) = desk.query(Kind.STEAL, location="w1").tasks
    assert (task.name, task.origin, task.payload) == (job_id, "native", b'{"x":1}')
    assert desk.complete(job_id, location="w2") == [job_id]
    assert desk.complete(job_id, location="w1") is OK


@pytest.mark.parametrize("queue", ["dwork", "elsewhere"])
def test_d35_a_task_comes_after_a_job_of_another_front(desk, queue):
    desk.ask(Submit((NewJob(job_id="abc123", queue=queue, id_chosen=True),)))

    desk.create(a_task("b", "abc123"))
    waited = desk.state("b")
    (shown,) = desk.query(Kind.LOOKUP, name="b").tasks
    desk.ask(Claim(queues=(queue,), holder=Holder("native", "w"), tokens=("t",)))
    desk.ask(Complete(job_id="abc123", proof=ByToken("t")))

    assert waited is State.BLOCKED
    assert [dep.name for dep in shown.preds] == ["abc123"]
    assert desk.steal() == ["b"]


def test_d35_a_task_after_a_job_of_another_front_that_failed_is_held(desk):
    desk.ask(Submit((NewJob(job_id="abc123", queue="elsewhere", id_chosen=True),)))
    desk.ask(Claim(queues=("elsewhere",), holder=Holder("native", "w"), tokens=("t",)))
    desk.ask(Fail(job_id="abc123", proof=ByToken("t"), failure=Failure("failed")))

    desk.create(a_task("b", "abc123"))

    assert desk.state("b") is State.BLOCKED


def test_d9_a_predecessor_that_is_no_job_of_anybody_is_met(desk):
    desk.ask(Submit((NewJob(job_id="abc123", queue="elsewhere", id_chosen=True),)))

    desk.create(a_task("b", "abc124", "ABC123", "abc"))

    assert desk.state("b") is State.READY


def test_d28_a_job_of_another_front_is_given_back_to_come_after_a_task(desk):
    desk.ask(Submit((NewJob(job_id="abc123", queue="dwork", id_chosen=True),)))
    desk.steal("w1")
    desk.create(a_task("first"))

    desk.transfer(a_task("abc123", "first"), location="w1")

    assert desk.job("abc123").waits_for == (desk.job("first").job_id,)


def test_d33_what_a_worker_sent_with_a_failure_is_shown(desk):
    desk.create(a_task("a"), a_task("b"))
    desk.steal("w1")

    failed = a_task("a", failure="broken", result=b"\xff core")
    desk.query(Kind.COMPLETE, failed, location="w1")

    (task,) = desk.query(Kind.LOOKUP, name="a").tasks
    assert (task.failure, task.result) == ("broken", b"\xff core")


def test_d35_a_task_reaches_another_front_with_its_name_as_payload(desk):
    desk.create(a_task("run me"), a_task("then", "run me"))
    claim = Claim(queues=("dwork",), holder=Holder("native", "w"), tokens=("t",))
    desk.ask(claim)

    job = desk.job("run me")
    assert (job.payload, job.encoding, job.origin.realm) == (b"run me", Encoding.TEXT, "dwork")
    desk.ask(Complete(job_id=job.job_id, proof=ByToken("t"), result=b"r"))
    assert desk.steal() == ["then"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.just(b"")), min_size=1, max_size=5))
def test_d4_random_frames_never_break_the_session(frames):
    desk = Desk()

    desk.tell([b"q", *frames])

    assert desk.status() == (0, 0)


NAMES = st.sampled_from("abcdef")
TASKS = st.builds(lambda name, preds: a_task(name, *preds), NAMES, st.lists(NAMES, max_size=3))
REQUESTS = st.one_of(
    st.tuples(st.just(Kind.CREATE), st.lists(TASKS, min_size=1, max_size=4), st.none()),
    st.tuples(
        st.sampled_from([Kind.COMPLETE, Kind.TRANSFER]),
        st.lists(TASKS, min_size=1, max_size=3),
        st.sampled_from(["w1", "w2"]),
    ),
    st.tuples(st.sampled_from([Kind.STEAL, Kind.EXIT]), st.just([]), st.sampled_from(["w1", "w2"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(REQUESTS, max_size=30))
def test_d11_whatever_is_asked_every_request_is_answered_and_no_graph_locks_up(requests):
    """No sequence of requests leaves a task that can never run."""
    desk = Desk()
    for kind, tasks, location in requests:
        desk.tell([b"p", b"", encode(Query(kind=kind, tasks=tuple(tasks), location=location))])
        desk.pass_time(1000)
        assert len(desk.replies.pop(b"p")) == 1

    for location in ("w1", "w2"):
        desk.query(Kind.EXIT, location=location)
    for _ in range(20):
        desk.post(b"p", Kind.STEAL, location="last")
        desk.pass_time(1000)
        reply = desk.read()
        assert reply is not None
        if reply.kind is not Kind.TRANSFER:
            break
        desk.complete(reply.tasks[0].name, location="last")
    assert desk.status() == (0, 0)


def counts(desk: Desk) -> dict[str, int]:
    found = desk.query(OK, detail=True).counts
    assert found is not None
    words = ("waiting", "delayed", "ready", "stolen", "done", "failed", "cancelled", "held")
    return {word: getattr(found, word) for word in words if getattr(found, word)}


def test_d38_the_whole_graph_is_counted_by_state_if_that_is_asked_for(desk):
    desk.create(a_task("a"), a_task("b"), a_task("c"), a_task("d", "b"), a_task("e", "d"))
    desk.create(a_task("f", "c"), a_task("g", "b", cancel_on_failure=True))
    desk.steal(n=3)
    desk.complete("a")
    fail(desk, "b")

    found = counts(desk)

    assert found == {"done": 1, "failed": 1, "cancelled": 1, "stolen": 1, "waiting": 3, "held": 2}
    assert desk.query(OK).counts is None


def test_d38_a_graph_that_is_over_is_counted_until_the_next_begins(desk):
    desk.create(a_task("a"), a_task("b"))
    desk.steal(n=2)
    desk.complete("a")
    fail(desk, "b")
    over = counts(desk)
    desk.create(a_task("c"))

    assert over == {"done": 1, "failed": 1}
    assert counts(desk) == {"ready": 1}


def test_d38_a_failed_task_that_is_created_again_has_not_failed_any_more(desk):
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal()
    fail(desk, "a")
    desk.create(a_task("a"))

    assert counts(desk) == {"ready": 1, "waiting": 1}


def made(desk: Desk, *tasks: Task) -> tuple[int, int, int, int]:
    found = desk.query(Kind.CREATE, *tasks, resume=True).made
    assert found is not None
    return found.added, found.there, found.done, found.again


def test_d40_resuming_leaves_alone_what_is_done_and_runs_again_what_failed(desk):
    desk.create(a_task("a"), a_task("b"), a_task("c"))
    desk.steal(n=3)
    desk.complete("a")
    fail(desk, "b")

    found = made(desk, a_task("a"), a_task("b"), a_task("c"), a_task("d", "a", "b"))

    assert found == (2, 1, 1, 1)
    assert (desk.state("a"), desk.state("b")) == (State.COMPLETED, State.READY)
    assert desk.state("d") is State.BLOCKED


def test_d40_resuming_knows_what_was_done_in_a_graph_that_is_over():
    desk = Desk(wait_for_unknown=True)
    desk.create(a_task("a"))
    desk.steal()
    desk.complete("a")

    assert made(desk, a_task("a"), a_task("b", "a")) == (1, 0, 1, 0)
    assert desk.state("b") is State.READY


def test_d40_a_graph_that_ends_while_its_records_are_read_does_not_run_again(desk, monkeypatch):
    desk.create(a_task("old"))
    desk.steal()
    desk.complete("old")
    desk.create(a_task("a"))
    desk.steal()
    find = desk.find_ended
    asked = []

    def find_slowly(namespace, names, then):
        asked.append(names)
        found = {}
        find(namespace, names, found.update)
        if len(asked) == 1:
            desk.ask(Complete(job_id=desk.job("a").job_id, proof=ByAnyone()))
        then(found)

    monkeypatch.setattr(desk, "find_ended", find_slowly)

    found = made(desk, a_task("a"), a_task("b", "a"))

    assert found == (1, 0, 1, 0)
    assert len(asked) == 2
    assert desk.state("b") is State.READY


def test_d40_resuming_reads_no_records_where_nothing_has_finished(desk, monkeypatch):
    monkeypatch.setattr(desk, "find_ended", None)
    desk.create(a_task("a"))

    assert made(desk, a_task("a"), a_task("b", "a")) == (1, 1, 0, 0)


def test_d31_a_task_of_a_graph_that_is_over_is_found_on_record(desk):
    desk.create(a_task("a"), a_task("b"))
    desk.steal(n=2)
    desk.complete("a")
    fail(desk, "b")
    desk.create(a_task("c"))

    shown = [desk.query(Kind.LOOKUP, name=name).tasks[0].state for name in ("a", "b", "c")]

    assert shown == ["completed", "failed", "ready"]
    assert desk.query(Kind.LOOKUP, name="nobody").kind is NOT_FOUND


def test_d32_a_worker_may_ask_for_a_lease_and_is_told_what_it_got(desk):
    desk.create(a_task("a"))

    reply = desk.query(Kind.STEAL, location="w1", lease_ms=3_000)
    assert reply.lease_ms == 3_000
    desk.pass_time(2_999)
    assert desk.state("a") is State.LEASED
    desk.pass_time(1)

    assert desk.state("a") is State.READY


def test_d32_a_steal_of_nothing_is_a_sign_of_life(desk):
    desk.create(a_task("a"))
    desk.query(Kind.STEAL, location="w1", lease_ms=3_000)

    for _ in range(5):
        desk.pass_time(1_000)
        assert desk.query(Kind.STEAL, location="w1", n=0, lease_ms=3_000).kind is NOT_FOUND

    assert desk.state("a") is State.LEASED
    assert desk.job("a").attempts_used == 0


def test_d32_an_operator_may_allow_less_than_a_worker_asks_for():
    desk = Desk(lease_ms=1_000)
    desk.create(a_task("a"), a_task("b"))

    assert desk.query(Kind.STEAL, location="w1", lease_ms=3_000).lease_ms == 1_000
    assert desk.query(Kind.STEAL, location="w2", lease_ms=0).lease_ms == 1_000


def test_d32_a_lease_is_not_spoken_of_to_those_who_do_not_know_the_field():
    desk = Desk(lease_ms=1_000)
    desk.create(a_task("a"))

    assert desk.query(Kind.STEAL, location="w1").lease_ms is None


def test_d6_an_exit_says_whether_the_server_stops_or_all_is_finished(desk):
    desk.create(a_task("a"))
    desk.steal()
    desk.complete("a")
    finished = desk.query(Kind.STEAL, location="w1")
    desk.draining = True
    stopping = desk.query(Kind.STEAL, location="w1")

    assert (finished.kind, finished.reason) == (EXIT, None)
    assert (stopping.kind, stopping.reason) == (EXIT, "stopping")


def test_d26_a_task_with_attempts_of_its_own_is_tried_no_more_often(desk):
    desk.create(a_task("a", attempts_max=2), a_task("later", "a"))
    reply = desk.query(Kind.STEAL, location="w1")
    assert (reply.tasks[0].attempts_max, reply.tasks[0].attempts_used) == (2, None)
    fail(desk, "a", retry=True)
    desk.pass_time(60_000)
    reply = desk.query(Kind.STEAL, location="w1")
    assert reply.tasks[0].attempts_used == 1

    fail(desk, "a", retry=True)

    assert desk.state("a") is State.FAILED
