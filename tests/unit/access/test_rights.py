"""One table says which right a command needs; the gate asks it for every protocol."""

from typing import get_args

import pytest

from manyhands.access.audit import AuditLog
from manyhands.access.gate import Askers, Gate
from manyhands.access.rights import TABLE
from manyhands.model.commands import (
    Attach,
    ByAnyone,
    ByToken,
    Cancel,
    Claim,
    Command,
    Complete,
    Depart,
    Detach,
    Look,
    LookByKey,
    Move,
    NewJob,
    OnExisting,
    Release,
    ReleaseAll,
    Resume,
    SetDependencies,
    SetLimit,
    SetQueue,
    Submit,
    Tick,
)
from manyhands.model.job import Holder, Origin
from manyhands.model.replies import Claimed, Found, Refusal, SubmittedMany, Why
from manyhands.model.roles import ANYBODY, RIGHTS, Caller, Right, Role, Sender
from manyhands.testing.engine import Engine

HOLDER = Holder("native", "w")


@pytest.fixture
def engine():
    return Engine()


class Talk:
    """A caller and what it is answered."""

    def __init__(self, engine, caller):
        self.engine = engine
        self.gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
        self.ask = self.gate.ask_of(caller, "192.0.2.1", "test")

    def __call__(self, command):
        replies = []
        self.ask(command, replies.append)
        self.engine._run()
        assert len(replies) == 1
        return replies[0]


def settle(engine):
    """Has everything committed and answered."""
    engine.ask(Look("ffff"))


def submit(job_id="a1", queue="mail.out"):
    return Submit((NewJob(job_id=job_id, queue=queue, payload=b"secret"),))


def test_every_command_has_a_row():
    assert set(get_args(Command)) == set(TABLE)


def test_every_right_is_one_that_a_role_has_or_the_servers():
    assert {row.right for row in TABLE.values()} == set(Right)


def test_a_caller_that_may_do_everything_asks_the_dispatcher_itself(engine):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))

    assert gate.ask_of(ANYBODY, "", "test") == engine.dispatcher.ask
    assert gate.ask_of(Caller("ada", Role.OPERATE), "", "test") == engine.dispatcher.ask


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.READ, set()),
        (Role.SUBMIT, {"submit"}),
        (Role.WORK, {"work"}),
        (Role.WORKER, {"submit", "work"}),
        (Role.OPERATE, {"submit", "work", "operate"}),
    ],
)
def test_a_role_may_do_what_its_rights_say(engine, role, allowed):
    talk = Talk(engine, Caller("x", role, ("*.out",)))
    commands = {
        "submit": submit(),
        "work": Claim(queues=("mail.out",), holder=HOLDER, tokens=("t",)),
        "operate": SetQueue(queue="mail.out", paused=True),
    }

    done = {right for right, command in commands.items() if not isinstance(talk(command), Refusal)}

    assert done == allowed


def test_nobody_may_ask_what_only_the_server_asks(engine):
    for role in Role:
        refusal = Talk(engine, Caller("x", role, ("*.out",)))(Tick(1))
        assert refusal.why is Why.NOT_ALLOWED


def test_patterns_restrict_every_queue_that_a_command_names(engine):
    other = Talk(engine, ANYBODY)
    other(submit("b1", "web"))
    talk = Talk(engine, Caller("x", Role.OPERATE, ("mail.*",)))

    assert isinstance(talk(submit()), SubmittedMany)
    for command in (
        submit("c1", "web"),
        Submit((NewJob(job_id="b1", queue="mail.out", id_chosen=True),)),
        Claim(queues=("mail.out", "web"), holder=HOLDER, tokens=("t",)),
        Cancel(job_ids=("a1", "b1")),
        Move(job_id="a1", queue="web"),
        Complete(job_id="a1", proof=ByAnyone(), next_queue="web"),
        SetQueue(queue="web", paused=True),
        SetLimit("database", 1),
        Attach(job_id="b1", waiter="w"),
        Look("b1"),
        submit_on("b1"),
        Complete(job_id="a1", proof=ByAnyone(), next_queue="mail.out", depends_on=("b1",)),
        Release(job_id="a1", proof=ByAnyone(), depends_on=("b1",)),
        ReleaseAll((Release(job_id="a1", proof=ByAnyone(), depends_on=("b1",)),)),
        SetDependencies(job_id="a1", add=("b1",)),
        Submit((NewJob(job_id="c1", queue="mail.out", namespace="web", name="n"),)),
    ):
        refusal = talk(command)
        assert isinstance(refusal, Refusal), command
        assert refusal.why is Why.NOT_ALLOWED, command
        assert "x" in refusal.sentence


def submit_on(*job_ids: str) -> Submit:
    return Submit((NewJob(job_id="c1", queue="mail.out", depends_on=job_ids),))


@pytest.mark.parametrize("namespace", [None, "mail.graph"])
@pytest.mark.parametrize("on_existing", OnExisting)
def test_a_chosen_name_is_judged_by_the_job_that_has_it(engine, namespace, on_existing):
    taken = {"namespace": namespace, "name": "n"}
    Talk(engine, ANYBODY)(Submit((NewJob(job_id="b1", queue="web", **taken),)))
    item = NewJob(job_id="c1", queue="mail.out", on_existing=on_existing, **taken)
    before = engine.find("b1")

    for caller in (Caller("x", Role.WORKER, ("mail.*",)), Caller("y", Role.SUBMIT)):
        talk = Talk(engine, caller)
        guard = talk.gate.guard(caller, "192.0.2.1", "test")
        assert not guard.submit_at_once((item,), lambda _: None, early=False)
        assert talk(Submit((item,))).why is Why.NOT_ALLOWED
    assert engine.find("b1") == before


def test_names_that_a_job_waits_for_are_judged_by_the_jobs_that_have_them(engine):
    Talk(engine, ANYBODY)(
        Submit((NewJob(job_id="b1", queue="web", namespace="mail.graph", name="n"),))
    )
    talk = Talk(engine, Caller("x", Role.WORKER, ("mail.*",)))
    item = NewJob(job_id="c1", queue="mail.out", namespace="mail.graph", depends_on=("n",))

    assert talk(Submit((item,))).why is Why.NOT_ALLOWED
    assert talk(submit_on("unknown")).items[0].why is Why.UNKNOWN_DEPENDENCY


def test_a_key_that_jobs_of_several_queues_have_is_found_in_a_callers_own(engine):
    for job_id, queue in (("b1", "web"), ("c1", "mail.out")):
        item = NewJob(job_id=job_id, queue=queue, unique_key=b"key")
        Talk(engine, ANYBODY)(Submit((item,)))
    talk = Talk(engine, Caller("x", Role.READ, ("mail.*",)))

    assert talk(LookByKey(b"key")).job.job_id == "c1"
    assert talk(LookByKey(b"key", "web")) == Found(None)


def test_what_another_server_let_pass_is_judged_where_it_is_decided(engine):
    """A server that does not decide may not know a job yet."""
    Talk(engine, ANYBODY)(submit("b1", "web"))
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    caller = Caller("x", Role.WORKER, ("mail.*",))
    judge = gate.judge_of(Sender(caller, "192.0.2.7", "gearman"))
    taken = Submit((NewJob(job_id="b1", queue="mail.out", id_chosen=True),))
    replies = []

    for command in (taken, submit("c1", "mail.out")):
        engine.dispatcher.ask_later(command, replies.append, None, judge)
        settle(engine)

    assert replies[0].why is Why.NOT_ALLOWED
    assert isinstance(replies[1], SubmittedMany)
    assert engine.find("b1").queue == "web"
    (entry,) = engine.store.audit(None, 10)
    assert (entry.who, entry.address, entry.protocol) == ("x", "192.0.2.7", "gearman")
    assert gate.judge_of(Sender(Caller("ada", Role.OPERATE), "", "")) is None


def test_the_queue_of_a_job_is_named_only_to_whoever_named_it(engine):
    Talk(engine, ANYBODY)(submit("b1", "web.secret"))
    talk = Talk(engine, Caller("x", Role.OPERATE, ("mail.*",)))

    assert "web.secret" in talk(submit("c1", "web.secret")).sentence
    for command in (
        Submit((NewJob(job_id="b1", queue="mail.out", id_chosen=True),)),
        Cancel(job_ids=("b1",)),
        Move(job_id="b1", queue="mail.out"),
        Complete(job_id="b1", proof=ByAnyone()),
    ):
        assert "web" not in talk(command).sentence


@pytest.mark.parametrize(
    ("role", "refused"), [(Role.SUBMIT, True), (Role.WORKER, False), (Role.OPERATE, False)]
)
def test_a_submitter_chooses_no_id_of_a_job_that_it_did_not_submit(engine, role, refused):
    Talk(engine, ANYBODY)(submit("b1", "web"))
    talk = Talk(engine, Caller("x", role))
    own = NewJob(job_id="d1", queue="web", id_chosen=True)
    item = NewJob(job_id="b1", queue="web", id_chosen=True, on_existing=OnExisting.MOVE)

    for _ in range(2):  # a repetition meets its own job
        reply = talk(Submit((own,)))
        assert not (isinstance(reply, Refusal) and reply.why is Why.NOT_ALLOWED)
    reply = talk(Submit((item,)))
    guard = talk.gate.guard(Caller("x", role), "192.0.2.1", "test")

    assert isinstance(reply, Refusal) is refused
    if refused:
        assert reply.why is Why.NOT_ALLOWED
        assert not guard.submit_at_once((item,), lambda _: None, early=False)


def test_a_submitter_sees_its_own_jobs_and_no_others(engine):
    mine, others = Talk(engine, Caller("x", Role.SUBMIT)), Talk(engine, Caller("y", Role.SUBMIT))
    mine(submit("a1"))
    others(submit("b1"))

    found = mine(Look("a1"))
    assert isinstance(found, Found)
    assert found.job.payload == b"secret"
    assert mine(Look("b1")).why is Why.NOT_ALLOWED
    assert mine(Look("ffff")) == Found(None)
    assert Talk(engine, Caller("w", Role.WORK))(Look("a1")).why is Why.NOT_ALLOWED


def test_a_peer_that_was_not_identified_may_only_leave(engine):
    talk = Talk(engine, None)

    for command in (submit(), Look("a1"), SetQueue(queue="q")):
        assert "requires credentials" in talk(command).sentence
    assert not isinstance(talk(Detach("c")), Refusal)
    assert not isinstance(talk(Depart(connection="c")), Refusal)


def test_refusals_are_in_the_audit_log_without_end(engine):
    talk = Talk(engine, Caller("x", Role.READ))
    for number in range(150):
        talk(SetQueue(queue=f"q{number}"))

    entries = engine.store.audit(None, 1000)

    assert len(entries) == 100
    assert entries[0].who == "x"
    assert entries[0].address == "192.0.2.1"
    assert entries[0].what == "set queue"
    assert entries[0].refused == "not_allowed"


def test_a_refusal_comes_after_earlier_answers(engine):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    ask = gate.ask_of(Caller("x", Role.SUBMIT), "", "test")
    order = []

    ask(submit(), lambda _reply: order.append("submit"))
    ask(SetQueue(queue="q"), lambda _reply: order.append("refusal"))
    engine._run()

    assert order == ["submit", "refusal"]


def test_what_a_shared_session_is_called_back_with_asks_as_its_peer(engine):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    askers = Askers(engine.dispatcher.ask)
    replies = []
    claim = Claim(queues=("mail.out",), holder=HOLDER, tokens=("t",))

    askers.enter(gate.guard(Caller("x", Role.READ), "", "test"))
    later = askers.bind(lambda: askers.ask(claim, replies.append))
    askers.enter(None)
    askers.ask(claim, replies.append)
    later()
    engine._run()

    assert isinstance(replies[0], Claimed)
    assert isinstance(replies[1], Refusal)
    assert askers.guard is None


@pytest.mark.parametrize(
    ("caller", "may"),
    [
        (Caller("x", Role.WORKER), True),
        (Caller("x", Role.WORK, ("mail.*",)), True),
        (Caller("x", Role.WORK, ("web.*",)), False),
        (Caller("x", Role.SUBMIT), False),
        (Caller("x", Role.READ), False),
        (None, False),
    ],
)
def test_the_shortcuts_of_plain_jobs_let_nobody_past_the_table(engine, caller, may):
    guard = Gate(engine.dispatcher, AuditLog(engine.dispatcher)).guard(caller, "", "test")
    for job_id in ("a1", "a2"):
        engine.ask(submit(job_id))
    claimed = engine.ask(Claim(queues=("mail.out",), holder=HOLDER, tokens=("t",)))

    taken = guard.claim_at_once("mail.out", HOLDER, "u", "c")
    ended = guard.complete_at_once(claimed.jobs[0].job_id, ByToken("t"), b"")

    assert (taken is not None, ended) == (may, may)


@pytest.mark.parametrize(
    ("caller", "queue", "sentence"),
    [
        (Caller("x", Role.WORK), "mail.out", None),
        (Caller("x", Role.WORKER, ("mail.*",)), "mail.out", None),
        (Caller("x", Role.WORKER, ("mail.*",)), "vault", "no access to the queue vault"),
        (Caller("x", Role.WORK, ("mail.*",)), None, "no access to all queues"),
        (Caller("x", Role.SUBMIT), "mail.out", "this needs the role work"),
        (None, "mail.out", "requires credentials"),
    ],
)
def test_an_offer_to_work_is_judged_like_a_claim_and_a_refusal_is_on_record(
    engine, caller, queue, sentence
):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    guard = gate.guard(caller, "192.0.2.1", "test")

    refusal = guard.refusal_to_work(queue)
    settle(engine)
    entries = engine.store.audit(None, 10)

    assert guard.may_work(queue) == (sentence is None)
    assert (sentence or "") in (refusal.sentence if refusal else "")
    assert [(row.what, row.target) for row in entries] == [("claim", queue or "")] * bool(refusal)
    assert gate.refused_count == len(entries)


@pytest.mark.parametrize("role", [*Role, None])
def test_a_listing_is_for_those_who_may_look_and_a_refusal_is_on_record(engine, role):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    guard = gate.guard(role and Caller("x", role, ("mail.*",)), "192.0.2.1", "test")

    refusal = guard.refusal_to_look()
    settle(engine)

    assert (refusal is None) == (role in (Role.READ, Role.OPERATE))
    assert gate.refused_count == len(engine.store.audit(None, 10)) == bool(refusal)


def test_what_people_chose_is_not_even_said_to_exist(engine):
    engine.ask(Submit((NewJob(job_id="b1", queue="q", payload=b"", unique_key=b"key"),)))
    talk = Talk(engine, Caller("x", Role.SUBMIT))

    assert talk(LookByKey(b"key")) == Found(None)
    assert talk(Look("b1")).why is Why.NOT_ALLOWED


@pytest.mark.parametrize("role", Role)
def test_what_is_asked_as_it_is_is_what_the_table_allows(engine, role):
    gate = Gate(engine.dispatcher, AuditLog(engine.dispatcher))
    free = gate.guard(Caller("x", role, ()), "", "test")
    some = gate.guard(Caller("x", role, ("mail.*",)), "", "test")

    if role is Role.OPERATE:
        assert free is None
    else:
        assert {TABLE[kind].right for kind in free._free} <= RIGHTS[role]
        assert not free._free & {Submit, Resume}  # they are signed
        assert (Attach in free._free) is (role is Role.READ)
    assert some._free == frozenset()


def test_each_job_is_signed_once_with_the_name_of_its_caller(engine):
    asked = []
    talk = Talk(engine, Caller("x", Role.WORKER))
    items = tuple(
        NewJob(job_id=f"a{n}", queue="q", origin=Origin("native", name, ""))
        for n, name in enumerate(["", "host", "host", "", "@ada"])
    )

    reply = talk(Submit(items))
    again = talk(Submit(items))
    asked = [engine.dispatcher.store.live.job(f"a{n}").origin.name for n in range(5)]

    assert isinstance(reply, SubmittedMany)
    assert not isinstance(again, Refusal)
    assert asked == ["@x", "@x host", "@x host", "@x", "@x @ada"]
