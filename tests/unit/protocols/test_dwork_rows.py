"""The edge cases of dwork, one test for each, by the numbers of the table they come from."""

import pytest
from msgspec.structs import force_setattr, replace

from manyhands.model import limits
from manyhands.model.commands import Submit
from manyhands.model.job import State
from manyhands.model.roles import Caller, Role
from manyhands.protocols.dwork.codec import Dep, Kind, LogEntry, Phase, Task
from tests.unit.protocols.dwork_desk import START, Desk, a_task

OK, NOT_FOUND, ERROR, EXIT = Kind.OK, Kind.NOT_FOUND, Kind.ERROR, Kind.EXIT


@pytest.fixture
def desk() -> Desk:
    return Desk()


def drain(desk: Desk) -> None:
    """Something existed, and is finished."""
    desk.create(a_task("earlier"))
    desk.steal()
    desk.complete("earlier")


def test_row_1_a_new_task_is_created(desk):
    """D8"""
    assert desk.create(a_task("a")) is OK
    assert desk.status() == (1, 1)


def test_row_2_an_unknown_predecessor_is_taken_as_done_and_noted(desk):
    """D9"""
    assert desk.create(a_task("a", "nobody")) is OK

    assert desk.steal() == ["a"]
    (entry,) = desk.job("a").history
    assert (entry.what, entry.detail) == ("dependency unknown", "nobody")


def test_row_2_an_unknown_predecessor_is_waited_for_where_that_is_set():
    """D9"""
    desk = Desk(wait_for_unknown=True)

    desk.create(a_task("a", "later"))
    assert desk.state("a") is State.BLOCKED
    desk.create(a_task("later"))
    assert desk.steal() == ["later"]
    desk.complete("later")
    assert desk.steal() == ["a"]


def test_row_3_a_predecessor_may_stand_later_in_the_same_message(desk):
    """D10"""
    assert desk.create(a_task("b", "a"), a_task("a")) is OK

    assert desk.steal(n=10) == ["a"]


def test_row_4_a_predecessor_that_is_done_is_met(desk):
    """D9"""
    desk.create(a_task("a"), a_task("other"))
    desk.steal()
    desk.complete("a")

    assert desk.create(a_task("b", "a")) is OK
    assert desk.steal(n=10) == ["other", "b"]


def test_row_5_the_same_predecessor_twice_counts_once(desk):
    """D10"""
    assert desk.create(a_task("a"), a_task("b", "a", "a")) is OK

    desk.steal()
    desk.complete("a")
    assert desk.steal() == ["b"]


@pytest.mark.parametrize("tasks", [[a_task("a", "a")], [a_task("x"), a_task("a", "x", "a")]])
def test_row_6_a_task_that_depends_on_itself_is_an_error(desk, tasks):
    """D11"""
    assert desk.create(*tasks) is ERROR
    assert desk.status() == (0, 0)


def test_row_7_a_cycle_through_an_existing_task_is_an_error_and_nothing_changes(desk):
    """D11"""
    desk.create(a_task("a"), a_task("b", "a"))

    assert desk.create(a_task("new"), a_task("a", "b")) is ERROR
    assert desk.status() == (2, 1)
    assert desk.create(a_task("x", "y"), a_task("y", "x")) is ERROR
    assert desk.status() == (2, 1)


def test_row_8_a_waiting_task_gets_further_predecessors(desk):
    """D12"""
    desk.create(a_task("a"), a_task("b"), a_task("c", "a"))

    assert desk.create(a_task("c", "b")) is OK
    assert desk.steal(n=2) == ["a", "b"]
    desk.complete("a")
    assert desk.state("c") is State.BLOCKED
    desk.complete("b")
    assert desk.steal() == ["c"]


def test_row_9_a_ready_task_with_new_predecessors_waits_again(desk):
    """D12"""
    desk.create(a_task("a"), a_task("b"))

    assert desk.create(a_task("a", "b")) is OK
    assert desk.steal(n=10) == ["b"]
    desk.complete("b")
    assert desk.steal(n=10) == ["a"]


def test_row_10_a_running_task_completes_in_spite_of_new_predecessors(desk):
    """D12"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    assert desk.create(a_task("a", "b")) is OK
    assert desk.complete("a") is OK


def test_row_10_new_predecessors_of_a_running_task_bind_if_it_comes_back(desk):
    """D12"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    desk.create(a_task("a", "b"))
    desk.query(Kind.EXIT, location="w1")
    assert desk.steal(n=10) == ["b"]


def test_row_11_creating_again_what_exists_changes_nothing(desk):
    """D12"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    assert desk.create(a_task("a"), a_task("b")) is OK
    assert desk.status() == (2, 1)
    assert desk.steal("w2", n=10) == ["b"]


def test_row_12_the_same_name_twice_in_a_message_is_one_task(desk):
    """D10"""
    desk.create(a_task("x"), a_task("y"), a_task("a", "x"), a_task("a", "y"))

    assert desk.status() == (3, 2)
    assert desk.steal(n=2) == ["x", "y"]
    desk.complete("x")
    assert desk.state("a") is State.BLOCKED
    desk.complete("y")
    assert desk.state("a") is State.READY


def test_row_13_a_name_that_is_done_runs_again(desk):
    """D13"""
    desk.create(a_task("a"), a_task("other"))
    first = desk.job("a").job_id
    desk.steal()
    desk.complete("a")

    assert desk.create(a_task("a")) is OK
    assert desk.job("a").job_id != first
    assert desk.steal(n=10) == ["other", "a"]


@pytest.mark.parametrize(
    ("tasks", "fields"),
    [
        ([a_task("a")], {"location": "x"}),
        ([a_task("a")], {"n": 1}),
        ([a_task("a")], {"name": "a"}),
        ([], {}),
    ],
)
def test_row_14_a_create_with_more_or_less_than_tasks_is_an_error(desk, tasks, fields):
    """D4"""
    assert desk.query(Kind.CREATE, *tasks, **fields).kind is ERROR
    assert desk.status() == (0, 0)


def test_row_15_log_and_places_of_predecessors_are_kept(desk):
    """D14"""
    entry = LogEntry(Phase.COPYING, 7)
    task = Task(name="a", origin="client", preds=(Dep("p", "tcp://far"),), log=(entry,))
    desk.create(a_task("p"))

    assert desk.create(task) is OK
    (shown,) = desk.query(Kind.LOOKUP, name="a").tasks
    assert shown.log[0] == entry
    assert shown.preds == (Dep("p", "tcp://far"),)


ORIGINS = ("vm", "", " ", "two words", "@", "@ada", "@ada vm", "@x vm", " @x vm", "  @x", "dwork")


class Signing(Desk):
    """A desk whose peer is a caller of an access file, as the gate has it."""

    def ask(self, command, settle=None, refused=None) -> None:
        for item in command.items if isinstance(command, Submit) else ():
            signed = replace(item.origin, name=Caller("x", Role.WORKER).signed(item.origin.name))
            force_setattr(item, "origin", signed)
        super().ask(command, settle, refused)


@pytest.mark.parametrize("kind_of_desk", [Desk, Signing])
def test_row_15_a_task_comes_back_with_the_origin_that_its_creator_chose(kind_of_desk):
    """D14"""
    desk = kind_of_desk()
    tasks = [Task(name=f"t{n}", origin=origin) for n, origin in enumerate(ORIGINS)]
    assert desk.create(*tasks) is OK

    given = desk.query(Kind.STEAL, location="w1", n=len(tasks)).tasks
    shown = [desk.query(Kind.LOOKUP, name=task.name).tasks[0] for task in tasks]

    assert {task.name: task.origin for task in given} == {task.name: task.origin for task in tasks}
    assert [task.origin for task in shown] == list(ORIGINS)


def test_row_15_no_origin_makes_a_task_look_like_that_of_a_caller(desk):
    """D14"""
    desk.create(*(Task(name=f"t{n}", origin=origin) for n, origin in enumerate(ORIGINS)))

    sees = [
        Caller("x", Role.SUBMIT).sees("dwork", desk.job(f"t{n}").origin.name)
        for n in range(len(ORIGINS))
    ]
    assert not any(sees)


def test_row_16_a_steal_without_n_gets_one(desk):
    """D15"""
    desk.create(a_task("a"), a_task("b"))

    assert desk.steal() == ["a"]


def test_row_17_a_steal_gets_what_is_ready_up_to_the_cap():
    """D15"""
    desk = Desk(steal_max=3)
    desk.create(a_task("a"), a_task("b"))

    assert desk.steal(n=1000) == ["a", "b"]
    desk.create(*(a_task(f"t{number}") for number in range(5)))
    assert desk.steal(n=1000) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("n", [0, -1])
def test_row_18_a_steal_of_nothing_gets_nothing(desk, n):
    """D15"""
    desk.create(a_task("a"))

    assert desk.steal(n=n) is NOT_FOUND
    assert desk.status() == (1, 1)


def test_row_19_nothing_ready_is_not_found(desk):
    """D18"""
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal()

    assert desk.steal() is NOT_FOUND


def test_row_20_a_drained_graph_answers_exit(desk):
    """D19"""
    drain(desk)

    assert desk.steal() is EXIT


def test_row_21_before_the_first_task_nobody_is_sent_away(desk):
    """D19"""
    desk.post(b"p", Kind.STEAL, location="w1")
    assert desk.read() is None
    desk.pass_time(1000)
    reply = desk.read()

    assert reply is not None
    assert reply.kind is NOT_FOUND


def test_row_21_exit_always_or_never_where_that_is_set():
    """D19"""
    always, never = Desk(exit_when="always"), Desk(exit_when="never")
    drain(never)

    assert always.steal() is EXIT
    never.post(b"p", Kind.STEAL, location="w1")
    never.pass_time(1000)
    reply = never.read()
    assert reply is not None
    assert reply.kind is NOT_FOUND


@pytest.mark.parametrize(
    ("tasks", "fields"),
    [([], {}), ([], {"location": "w", "name": "w"}), ([a_task("a")], {"location": "w"})],
)
def test_row_22_a_steal_with_more_or_less_than_a_location_is_an_error(desk, tasks, fields):
    """D4"""
    assert desk.query(Kind.STEAL, *tasks, **fields).kind is ERROR


def test_row_23_priority_goes_first_then_freed_then_first_come(desk):
    """D16"""
    desk.create(a_task("a"), a_task("freed", "a"), a_task("b"), a_task("high", priority=5.0))
    assert desk.steal(n=2) == ["high", "a"]
    desk.complete("a")

    assert desk.steal(n=10) == ["freed", "b"]


def test_row_24_tasks_that_go_together_are_told_apart_by_all_they_differ_in(desk):
    """D17"""
    desk.create(a_task("a"), a_task("b"), a_task("with payload", payload=b"data"))
    desk.create(Task(name="elsewhere", origin="other"), a_task("urgent", priority=2.0))
    desk.clock += 5
    desk.create(a_task("late"))
    desk.query(Kind.STEAL, location="w0", n=1)  # the urgent one, which comes back
    desk.query(Kind.EXIT, location="w0")

    tasks = {task.name: task for task in desk.query(Kind.STEAL, location="w1", n=10).tasks}

    assert len(tasks) == 6
    for name, task in tasks.items():
        began = START + 5 if name == "late" else START
        assert task.log[0] == LogEntry(Phase.READY, began * 1000)
        assert task.log[-1] == LogEntry(Phase.STOLEN, (START + 5) * 1000)
        assert task.origin == ("other" if name == "elsewhere" else "client")
        assert task.payload == (b"data" if name == "with payload" else None)
        assert task.priority == (2.0 if name == "urgent" else None)
        assert task.attempt == (2 if name == "urgent" else 1)


def test_row_24_a_stolen_task_brings_its_creator_predecessors_and_log(desk):
    """D17"""
    desk.create(a_task("p"), a_task("a", "p"))
    desk.steal()
    desk.complete("p")
    desk.clock += 5
    reply = desk.query(Kind.STEAL, location="w1")

    (task,) = reply.tasks
    assert (task.name, task.origin, task.preds) == ("a", "client", (Dep("p"),))
    assert task.log == (
        LogEntry(Phase.WAITING, START * 1000),
        LogEntry(Phase.STOLEN, (START + 5) * 1000),
    )


def test_row_25_a_worker_completes_its_task(desk):
    """D22"""
    desk.create(a_task("a"))
    desk.steal()

    assert desk.complete("a") is OK
    assert desk.status() == (0, 0)


def test_row_26_completing_an_unknown_name_is_not_found_with_that_task(desk):
    """D22"""
    assert desk.complete("nobody") == ["nobody"]


def test_row_27_known_ones_are_done_and_the_others_listed(desk):
    """D22"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal(n=2)

    assert desk.complete("x", "a", "y", "b") == ["x", "y"]
    assert desk.status() == (0, 0)


def test_row_28_a_task_of_another_worker_is_completed_everywhere(desk):
    """D23"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal("w2")

    assert desk.complete("a", location="w1") is OK
    desk.query(Kind.EXIT, location="w2")
    assert desk.steal(n=10) == ["b"]


def test_row_28_a_strict_endpoint_leaves_a_task_to_its_holder():
    """D23"""
    desk = Desk(strict=True)
    desk.create(a_task("a"))
    desk.steal("w2")

    assert desk.complete("a", location="w1") == ["a"]
    assert desk.complete("a", location="w2") is OK


def test_row_29_a_ready_task_that_nobody_stole_can_be_completed(desk):
    """D24"""
    desk.create(a_task("a"), a_task("b"))

    assert desk.complete("a") is OK
    assert desk.steal(n=10) == ["b"]


def test_row_30_a_waiting_task_cannot_be_completed(desk):
    """D24"""
    desk.create(a_task("a"), a_task("b", "a"))

    assert desk.complete("b") == ["b"]
    assert desk.state("b") is State.BLOCKED


def test_row_31_completing_twice_is_fine_for_the_same_worker_only(desk):
    """D25"""
    desk.create(a_task("a"), a_task("other"))
    desk.steal("w1")

    assert desk.complete("a", "a", location="w1") is OK
    assert desk.complete("a", location="w1") is OK
    assert desk.complete("a", location="w2") == ["a"]


def test_row_31_completing_twice_is_fine_after_the_last_task_of_a_graph(desk):
    """D25"""
    drain(desk)

    assert desk.complete("earlier", location="w2") == ["earlier"]
    assert desk.complete("earlier", location="w1") is OK


def test_row_31_completing_twice_is_fine_however_much_was_reported_since(desk):
    """D25"""
    names = [f"t{number}" for number in range(25_000)]
    for first in range(0, len(names), 5_000):
        desk.create(*map(a_task, names[first : first + 5_000]))
    for first in range(0, len(names), 5_000):
        assert desk.complete(*names[first : first + 5_000]) is Kind.OK

    assert desk.complete("t0", "t24999", "x", "t12000") == ["x"]
    assert desk.complete("t0", location="w2") == ["t0"]


def test_row_31_failing_twice_is_fine_after_the_last_task_of_a_graph(desk):
    """D25"""
    desk.create(a_task("a"))
    desk.steal()
    failed = a_task("a", failure="no")

    replies = [desk.query(Kind.COMPLETE, failed, location="w1").kind for _ in range(2)]

    assert replies == [Kind.OK, Kind.OK]
    assert desk.query(Kind.COMPLETE, failed, location="w2").kind is Kind.NOT_FOUND


def test_a_log_that_comes_with_the_end_is_kept_and_shown(desk):
    """D37"""
    log = tuple(LogEntry(Phase.STARTED, 1_000_000 + number) for number in range(40))
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    desk.query(Kind.COMPLETE, a_task("a", log=(*log, LogEntry(Phase.DONE, -7))), location="w1")

    shown = desk.query(Kind.LOOKUP, name="a").tasks[0].log
    phases = [entry.phase for entry in shown]
    assert phases == [
        *(Phase.READY, Phase.STOLEN),
        *[Phase.STARTED] * 15,
        *(Phase.DONE, Phase.DONE, Phase.RECORDED),
    ]
    assert [entry.at_us for entry in shown][2:18] == [*range(1_000_025, 1_000_040), -7]
    (entry,) = desk.job("a").history
    assert (entry.what, entry.detail[-8:]) == ("noted", ", done -7"[-8:])


def test_a_log_that_comes_with_a_failure_is_kept_and_shown(desk):
    """D37"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    failed = a_task("a", failure="no", log=(LogEntry(Phase.STARTED, 5),))
    desk.query(Kind.COMPLETE, failed, location="w1")

    log = desk.query(Kind.LOOKUP, name="a").tasks[0].log
    assert LogEntry(Phase.STARTED, 5) in log


def test_row_31_whoever_completed_anothers_task_may_say_so_twice(desk):
    """D25"""
    desk.create(a_task("a"), a_task("other"))
    desk.steal("owner")

    assert desk.complete("a", location="w1") is OK
    assert desk.complete("a", location="w1") is OK
    assert desk.complete("a", location="owner") == ["a"]


def test_row_32_a_late_completion_wins_if_it_comes_first(desk):
    """D25"""
    desk.create(a_task("a"), a_task("b"), a_task("other"))
    assert desk.steal("w1", n=2) == ["a", "b"]
    desk.query(Kind.EXIT, location="w1")

    assert desk.complete("a", location="w1") is OK
    assert desk.steal("w2") == ["b"]
    assert desk.complete("b", location="w1") is OK
    assert desk.complete("b", location="w2") == ["b"]


def test_row_33_a_task_is_given_back_behind_the_queue(desk):
    """D28"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    assert desk.transfer(a_task("a")) is OK
    assert desk.steal(n=10) == ["b", "a"]


def test_row_34_a_task_given_back_waits_for_new_predecessors(desk):
    """D28"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal()

    assert desk.transfer(a_task("a", "b")) is OK
    assert desk.steal(n=10) == ["b"]
    desk.complete("b")
    assert desk.steal(n=10) == ["a"]


def test_row_35_a_task_given_back_with_an_unknown_predecessor_is_ready(desk):
    """D28"""
    desk.create(a_task("a"))
    desk.steal()

    assert desk.transfer(a_task("a", "nobody")) is OK
    assert desk.steal(n=10) == ["a"]


@pytest.mark.parametrize("name", ["a", "b", "nobody"])
def test_row_36_only_its_holder_gives_a_task_back(desk, name):
    """D28"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal("w1")

    assert desk.transfer(a_task(name), location="w2") is NOT_FOUND
    assert desk.state("a") is State.LEASED


def test_row_37_giving_back_is_all_or_nothing(desk):
    """D28"""
    desk.create(a_task("a"), a_task("b"))
    desk.steal("w1")
    desk.steal("w2")

    assert desk.transfer(a_task("a"), a_task("b"), location="w1") is NOT_FOUND
    assert desk.state("a") is State.LEASED


def test_row_38_a_worker_that_leaves_gives_everything_back(desk):
    """D29"""
    desk.create(a_task("a"), a_task("b"), a_task("c"))
    desk.steal(n=2)

    assert desk.query(Kind.EXIT, location="w1").kind is OK
    assert sorted(desk.steal("w2", n=10)) == ["a", "b", "c"]
    assert desk.job("a").attempts_used == 0


def test_row_39_a_worker_without_tasks_leaves_once(desk):
    """D29"""
    desk.create(a_task("a"))
    desk.steal()
    desk.complete("a")

    assert desk.query(Kind.EXIT, location="w1").kind is OK
    assert desk.query(Kind.EXIT, location="w1").kind is NOT_FOUND


def test_row_40_a_worker_that_was_never_seen_is_not_found(desk):
    """D29"""
    assert desk.query(Kind.EXIT, location="nobody").kind is NOT_FOUND


def test_row_41_an_exit_without_location_is_an_error(desk):
    """D4"""
    assert desk.query(Kind.EXIT).kind is ERROR


def test_row_42_status_is_a_sentence_and_a_number(desk):
    """D30"""
    desk.create(a_task("a"), a_task("b", "a"), a_task("c"))
    desk.steal()

    reply = desk.query(Kind.OK)
    assert (reply.kind, reply.name, reply.n) == (OK, "dhub: 3 active tasks, 1 ready.", 1)


@pytest.mark.parametrize("kind", [Kind.NOT_FOUND, Kind.ERROR])
def test_row_43_answers_are_no_requests(desk, kind):
    """D4"""
    assert desk.query(kind).kind is ERROR


def test_row_43_lookup_tells_where_a_task_is_unless_strict(desk):
    """D31"""
    desk.create(a_task("a"), a_task("b", "a"))
    desk.steal("w7")

    reply = desk.query(Kind.LOOKUP, name="a")
    assert (reply.kind, reply.location, reply.tasks[0].name) == (OK, "w7", "a")
    assert desk.query(Kind.LOOKUP, name="b").location is None
    assert desk.query(Kind.LOOKUP, name="nobody").kind is NOT_FOUND
    assert Desk(strict=True).query(Kind.LOOKUP, name="a").kind is ERROR


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="row 44: no bytes"),
        pytest.param(bytes.fromhex("ffffffff"), id="row 45: garbage"),
        pytest.param(b"hello world", id="row 45: text"),
        pytest.param(
            bytes.fromhex("080012100a064142434445461206636c69"), id="row 45: cut three bytes short"
        ),
        pytest.param(bytes.fromhex("080012030a0141"), id="row 45: a task without origin"),
        pytest.param(bytes.fromhex("080012031201 41"), id="row 45: a task without name"),
        pytest.param(bytes.fromhex("1203 0a0141"), id="row 45: no type"),
        pytest.param(bytes.fromhex("0863120b0a01411206636c69656e74"), id="row 46: unknown type"),
        pytest.param(bytes.fromhex("0863"), id="row 46: unknown type, bare"),
        pytest.param(bytes.fromhex("0800120a0a001206636c69656e74"), id="row 48: empty name"),
        pytest.param(bytes.fromhex("08013200"), id="row 48: empty location"),
        pytest.param(bytes.fromhex("0800120b0a01ff1206636c69656e74"), id="row 49: not UTF-8"),
    ],
)
def test_rows_44_to_49_a_bad_body_is_an_error_with_a_reason_and_changes_nothing(desk, body):
    """D4 and D5"""
    reply = desk.raw(body)

    assert reply.startswith(b"\x08\x08")
    assert len(reply) > 10
    assert desk.status() == (0, 0)


def test_row_47_unknown_fields_are_accepted_and_not_echoed(desk):
    """D4"""
    assert desk.raw(bytes.fromhex("08067a0178")) == desk.raw(bytes.fromhex("0806"))


def test_row_50_long_and_odd_names_are_fine_up_to_the_limit(desk):
    """D5"""
    names = ["x" * limits.NAME_BYTES_MAX, "a,b\n\u00e4\0", "\u20ac" * 100]

    assert desk.create(*map(a_task, names)) is OK
    assert desk.steal(n=10) == names
    assert desk.create(a_task("x" * (limits.NAME_BYTES_MAX + 1))) is ERROR
    assert desk.create(a_task("\u20ac" * (limits.NAME_BYTES_MAX // 2))) is ERROR
    assert desk.query(Kind.STEAL, location="w" * 256).kind is ERROR


def test_row_51_two_body_frames_are_an_error(desk):
    """D2"""
    desk.tell([b"p", b"", b"\x08\x06", b"\x08\x06"])

    reply = desk.read()
    assert reply is not None
    assert reply.kind is ERROR


@pytest.mark.parametrize("frames", [[b"p", b"\x08\x06"], [b"p", b""], [b"p"]])
def test_row_52_without_delimiter_or_body_a_message_is_dropped_and_counted(desk, frames):
    """D2"""
    desk.tell(frames)

    assert desk.replies == {}
    assert desk.session.dropped_count == desk.dropped_reported == 1
    assert desk.status() == (0, 0)


def test_row_53_a_worker_that_vanishes_keeps_its_task_without_a_lease_term(desk):
    """D32"""
    desk.create(a_task("a"))
    desk.steal()
    desk.pass_time(10 * 366 * 24 * 3600 * 1000)

    assert desk.state("a") is State.LEASED
    assert desk.complete("a") is OK


def test_row_54_while_stopping_everything_is_answered_with_exit(desk):
    """D6"""
    desk.create(a_task("a"), a_task("b"), a_task("c"))
    desk.steal("w1", n=2)
    desk.draining = True

    assert desk.create(a_task("d")) is EXIT
    assert desk.steal() is EXIT
    assert desk.query(Kind.OK).kind is EXIT
    assert desk.query(Kind.LOOKUP, name="a").kind is EXIT
    # What a worker reports is taken in all the same: its work is not lost.
    assert desk.complete("a") is EXIT
    assert desk.transfer(a_task("b")) is EXIT
    assert desk.query(Kind.EXIT, location="w1").kind is EXIT
    assert desk.state("a") is State.COMPLETED
    assert desk.state("b") is State.READY
