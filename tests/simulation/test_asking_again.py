"""The server that decides dies between the question and the answer: whoever asked at another one is
told the same as if nothing had happened, and what was asked for is done once.
"""

from collections.abc import Callable
from typing import Any

import pytest

from manyhands.cluster.again import UNKNOWN_OUTCOME
from manyhands.model import commands as c
from manyhands.model import replies as r
from manyhands.model.events import Cursor
from manyhands.model.job import Failure, Holder, Job, Schedule, State
from manyhands.model.payload import Encoding
from manyhands.model.receipts import Once
from tests.simulation.cluster_world import Cluster

WORKER = Holder("native", "w")


class Desk:
    """A client at a front, before and after the death of the owner."""

    def __init__(self) -> None:
        self.world = Cluster(21)
        self.world.until(self.world.is_settled)
        owner = self.world.owner()
        assert owner is not None
        self.owner = owner
        self.front, self.heir = (node for node in self.world.living() if node is not owner)
        self.connection = self.front.ids.connection()
        self.front.router.on_signal[self.connection] = lambda _signal: None

    def begin(self, command: c.Command) -> list[r.Reply]:
        """Asks; the answer will be in the list."""
        answers: list[r.Reply] = []
        self.front.router.ask(command, answers.append)
        return answers

    def ask(self, command: c.Command) -> r.Reply:
        answers = self.begin(command)
        self.world.until(lambda: bool(answers))
        return answers[0]

    def item(self, **fields: Any) -> c.NewJob:
        job_id = self.front.ids.job_id(self.front.clock.now())
        return c.NewJob(**({"job_id": job_id, "queue": "q", "payload": b"x"} | fields))

    def submit(self, **fields: Any) -> str:
        item = self.item(**fields)
        assert isinstance(self.ask(c.Submit((item,))), r.SubmittedMany)
        return item.job_id

    def a_claim(self, count: int = 1, **fields: Any) -> c.Claim:
        tokens = tuple(self.front.ids.token() for _ in range(count))
        given = {"queues": ("q",), "holder": WORKER, "tokens": tokens, "term_ms": 60_000}
        return c.Claim(**(given | fields))

    def claim(self, **fields: Any) -> Job:
        self.submit()
        reply = self.ask(self.a_claim(**fields))
        assert isinstance(reply, r.Claimed)
        (job,) = reply.jobs
        return job

    def finished(self) -> str:
        job = self.claim()
        self.ask(c.Complete(job_id=job.job_id, proof=proof(job), result=b"done"))
        return job.job_id

    def kill_owner(self) -> None:
        """Whatever is on its way from and to it is lost."""
        self.owner.crash()
        for end in self.owner.ends:
            end.forget()
        for end in self.front.ends:
            if end.other is not None and end.other.node is self.owner:
                end.forget()
        self.world.heal()


def proof(job: Job) -> c.ByToken:
    assert job.lease is not None
    return c.ByToken(job.lease.token)


def complete(desk: Desk, **fields: Any) -> c.Complete:
    job = desk.claim()
    return c.Complete(**({"job_id": job.job_id, "proof": proof(job), "result": b"done"} | fields))


def fail(desk: Desk, **fields: Any) -> c.Fail:
    job = desk.claim()
    return c.Fail(job_id=job.job_id, proof=proof(job), failure=Failure("odd"), **fields)


def of_claimed(desk: Desk, make: Callable[..., c.Command], **fields: Any) -> c.Command:
    job = desk.claim()
    return make(job_id=job.job_id, proof=proof(job), **fields)


def release_all(desk: Desk) -> c.ReleaseAll:
    return c.ReleaseAll((of_claimed(desk, c.Release), of_claimed(desk, c.Release)))


def a_schedule() -> Schedule:
    return Schedule(schedule_id="s", queue="q", interval_ms=3_600_000, next_at=1 << 42)


def joining(desk: Desk) -> c.Submit:
    desk.submit(unique_key=b"k")
    return c.Submit((desk.item(), desk.item(unique_key=b"k")))


# What can be asked again, or leaves traces.
SAME: dict[str, Callable[[Desk], c.Command]] = {
    "submit": lambda d: c.Submit((d.item(),)),
    "submit of several, all or none": lambda d: c.Submit((d.item(), d.item()), True),
    "submit, one joins another": joining,
    "submit under a chosen id": lambda d: c.Submit((d.item(job_id="mine", id_chosen=True),)),
    "submit with a key for repetitions": lambda d: c.Submit((d.item(),), once=Once("key")),
    "submit that depends": lambda d: c.Submit((d.item(depends_on=(d.submit(),)),)),
    "submit of a waiter": lambda d: c.Submit((d.item(waiter=d.connection),)),
    "claim": lambda d: d.submit() and d.a_claim(),
    "claim of several": lambda d: d.submit() and d.submit() and d.a_claim(2),
    "claim of one job": lambda d: d.a_claim(queues=(), job_id=d.submit()),
    "claim over several queues": lambda d: d.submit(queue="p") and d.a_claim(queues=("o", "p")),
    "claim by a connection": lambda d: (
        d.submit() and d.a_claim(connection=d.connection, term_ms=None)
    ),
    "claim of nothing": lambda d: d.a_claim(),
    "renew": lambda d: of_claimed(d, c.Renew),
    "renew by name": lambda d: d.claim() and c.RenewHeld((WORKER,)),
    "lift terms": lambda d: d.claim(connection=d.connection) and c.LiftTerms(d.connection),
    "report": lambda d: of_claimed(d, c.Report, numerator=1, denominator=2),
    "complete": complete,
    "complete by name": lambda d: complete(d, proof=c.ByHolder("native", "w")),
    "complete into a next queue": lambda d: complete(d, next_queue="p"),
    "complete with a new payload": lambda d: complete(
        d, replaces_payload=True, encoding=Encoding.JSON, result=b"1"
    ),
    "fail": fail,
    "fail and retry": lambda d: fail(d, retry=True, delay_ms=600_000),
    "conclude": lambda d: c.Conclude((complete(d), fail(d))),
    "set priority": lambda d: c.SetPriority(d.submit(), 5.0),
    "set tags": lambda d: c.SetTags(d.submit(), ("tag",)),
    "attach": lambda d: c.Attach(job_id=d.submit(), waiter=d.connection),
    "detach": lambda d: d.submit(waiter=d.connection) and c.Detach(d.connection),
    "depart": lambda d: (
        d.claim(connection=d.connection, term_ms=None) and c.Depart(connection=d.connection)
    ),
    "set queue": lambda _: c.SetQueue(queue="q", paused=True),
    "set limit": lambda _: c.SetLimit("limit", 3),
    "set cursor": lambda _: c.SetCursor(Cursor("reader", 1)),
    "remove cursor": lambda d: d.ask(c.SetCursor(Cursor("reader", 1))) and c.RemoveCursor("reader"),
    "look": lambda d: c.Look(d.submit()),
    "look for a finished job": lambda d: c.Look(d.finished()),
    "look by key": lambda d: d.submit(unique_key=b"k") and c.LookByKey(b"k"),
    "look by name": lambda d: (
        d.submit(namespace="space", name="name") and c.LookByName("space", "name")
    ),
}
# The other ones: nobody can tell, so that is the answer.
UNKNOWN: dict[str, Callable[[Desk], c.Command]] = {
    "send a piece": lambda d: of_claimed(d, c.SendPartial, payload=b"piece"),
    "release": lambda d: of_claimed(d, c.Release),
    "release several": release_all,
    "cancel": lambda d: c.Cancel(job_ids=(d.submit(),)),
    "requeue": lambda d: c.Requeue(job_id=d.finished()),
    "move": lambda d: c.Move(job_id=d.submit(), queue="p"),
    "set dependencies": lambda d: c.SetDependencies(job_id=d.submit(), add=(d.submit(),)),
    "expire": lambda d: c.ExpireLease(d.claim().job_id),
    "put schedule": lambda _: c.PutSchedule(a_schedule()),
    "remove schedule": lambda d: d.ask(c.PutSchedule(a_schedule())) and c.RemoveSchedule("s"),
    "remove limit": lambda d: d.ask(c.SetLimit("limit", 3)) and c.RemoveLimit("limit"),
    "resume": lambda d: c.Resume(
        namespace="space", items=(d.item(namespace="space", name="name"),)
    ),
}
ALL = SAME | UNKNOWN


def summary(reply: r.Reply) -> object:
    """What must be the same: not instants, nor whether it was said before."""
    match reply:
        case r.SubmittedMany(items=items) | r.Concluded(items=items):
            return [summary(item) for item in items]
        case r.Submitted(job=job, created=created):
            return "submitted", job.job_id, created
        case r.Repeated(receipt=receipt):
            return [("submitted", item.job_id, True) for item in receipt.items]
        case r.Claimed(jobs=jobs) | r.ChangedMany(jobs=jobs):
            return [_of(job) for job in jobs]
        case r.Changed(job=job) | r.Found(job=job):
            return _of(job)
        case r.Refusal(why=why):
            return why
        case r.Accepted():
            return "accepted"
    return reply


def _of(job: Job | None) -> object:
    if job is None:
        return None
    token = None if job.lease is None else job.lease.token
    return job.job_id, job.state, job.queue, token, job.priority, job.tags, job.result


def calm(name: str) -> object:
    desk = Desk()
    return summary(desk.ask(ALL[name](desk)))


def trace(desk: Desk) -> list[object]:
    """All jobs as the owner knows them."""
    owner = desk.world.owner()
    assert owner is not None
    jobs = [row.job() for row in owner.store.base.disk.rows.values()]
    return sorted(
        (job.job_id, job.state, job.queue, job.lease_number, len(job.attempts)) for job in jobs
    )


@pytest.mark.parametrize("is_decided", [True, False], ids=["answer lost", "question lost"])
@pytest.mark.parametrize("name", SAME)
def test_the_next_owner_gives_the_same_answer(name, is_decided):
    """S39."""
    expected, other = calm(name), Desk()
    other.ask(ALL[name](other))
    other.world.run(0.5)
    desk = Desk()
    command = ALL[name](desk)
    desk.world.run(0.5)
    here, there = desk.owner.name, desk.front.name
    desk.world.cut(*((here, there) if is_decided else (there, here)), both_ways=False)
    answers = desk.begin(command)
    desk.world.run(0.5)
    assert not answers
    desk.kill_owner()

    desk.world.until(lambda: bool(answers))
    desk.world.run(0.5)

    assert summary(answers[0]) == expected
    assert len(answers) == 1
    assert trace(desk) == trace(other)


@pytest.mark.parametrize("is_decided", [True, False], ids=["answer lost", "question lost"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_whoever_cannot_be_told_is_told_so(name, is_decided):
    """S39."""
    desk = Desk()
    command = ALL[name](desk)
    here, there = desk.owner.name, desk.front.name
    desk.world.cut(*((here, there) if is_decided else (there, here)), both_ways=False)
    answers = desk.begin(command)
    desk.world.run(0.5)
    desk.kill_owner()

    desk.world.until(lambda: bool(answers))

    assert answers == [UNKNOWN_OUTCOME]


@pytest.mark.parametrize("name", ALL)
def test_what_was_asked_while_nobody_decided_is_answered_by_the_next_owner(name):
    """S39 and S40."""
    expected, desk = calm(name), Desk()
    command = ALL[name](desk)
    desk.world.run(0.5)
    desk.owner.crash()
    desk.world.until(lambda: not desk.front.router.has_host)
    answers = desk.begin(command)

    desk.world.until(lambda: bool(answers))

    assert summary(answers[0]) == expected


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen id", "made id"])
def test_a_job_that_was_done_before_its_submit_is_asked_again_is_not_done_twice(is_chosen):
    """S39: its id was chosen by its submitter, so a second submit would run it again."""
    desk = Desk()
    desk.world.cut(desk.owner.name, desk.front.name, both_ways=False)
    item = desk.item(id_chosen=is_chosen)
    answers = desk.begin(c.Submit((item,)))
    desk.world.until(lambda: desk.owner.store.live.live_job(item.job_id) is not None)
    heir = desk.heir.router
    claimed: list[r.Reply] = []
    heir.ask(desk.a_claim(), claimed.append)
    desk.world.until(lambda: bool(claimed))
    (job,) = claimed[0].jobs
    done: list[r.Reply] = []
    heir.ask(c.Complete(job_id=job.job_id, proof=proof(job), result=b"done"), done.append)
    desk.world.until(lambda: bool(done))
    desk.kill_owner()

    desk.world.until(lambda: bool(answers))
    desk.world.run(0.5)

    (submitted,) = answers[0].items
    assert submitted.job.job_id == item.job_id
    assert trace(desk) == [(item.job_id, State.COMPLETED, "q", 1, 1)]


def test_a_finished_job_that_is_submitted_once_more_runs_again_also_across_a_takeover():
    """Rule 15: it was finished long before."""
    desk = Desk()
    job_id = desk.finished()
    desk.world.run(700.0)
    desk.world.cut(desk.front.name, desk.owner.name, both_ways=False)
    answers = desk.begin(c.Submit((desk.item(job_id=job_id, id_chosen=True),)))
    desk.world.run(0.5)
    desk.kill_owner()

    desk.world.until(lambda: bool(answers))

    (submitted,) = answers[0].items
    assert (submitted.job.state, submitted.job.incarnation) == (State.READY, 1)


def test_every_command_of_a_client_is_looked_at():
    """S36."""
    looked_at = {type(make(Desk())) for make in ALL.values()}
    own = {c.Fire, c.FollowClock, c.NotifyDependants, c.Prolong, c.Recover, c.Tick}
    every = set(c.Command.__args__) - own - {c.ForgetQueue, c.ForgetIdle}

    assert every <= looked_at
