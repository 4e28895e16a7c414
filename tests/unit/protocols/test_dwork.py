"""dwork beyond its edge cases: order of replies, holding, leases, failures, other fronts."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.model.commands import (
    ByToken,
    Cancel,
    Claim,
    Complete,
    Depart,
    NewJob,
    Requeue,
    Submit,
)
from manyhands.model.job import Holder, State
from manyhands.model.outcome import Why
from manyhands.model.payload import Encoding
from manyhands.protocols.dwork.turns import Turns
from manyhands.protocols.dwork.words import ANSWERS
from manyhands.wire.dwork import Kind, Query, Task, encode
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
