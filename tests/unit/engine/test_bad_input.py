"""Whatever is refused is refused by name, and leaves nothing behind."""

import math

import pytest
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.commands import (
    Attach,
    ByToken,
    Cancel,
    Claim,
    Complete,
    Conclude,
    ExpireLease,
    Fail,
    Fire,
    ForgetQueue,
    Move,
    NewJob,
    OnExisting,
    Only,
    PutSchedule,
    Release,
    ReleaseAll,
    RemoveLimit,
    RemoveSchedule,
    Renew,
    Report,
    Requeue,
    SendPartial,
    SetDependencies,
    SetLimit,
    SetPriority,
    SetQueue,
    SetTags,
    Submit,
)
from manyhands.model.job import Failure, Schedule, State
from manyhands.model.policy import Backoff, OnDuplicate, QueuePolicy, Rate, Terms
from manyhands.model.receipts import Once
from manyhands.model.replies import Accepted, Refusal, SubmittedMany, Why
from tests.unit.engine.world import HOUR, START, World, a_job, a_worker

LONG = "x" * 256
HUGE = bytes(limits.PAYLOAD_BYTES_MAX + 1)
TOKEN = ByToken("token-1")
NOBODY = "f" * 32

# What only the server can know, not a decision about jobs.
BY_THE_SERVER = {
    Why.STORE_FULL,
    Why.STORE_FAILED,
    Why.SHUTTING_DOWN,
    Why.INTERNAL,
    Why.NOT_ALLOWED,
}
# Words for what the fronts find out for themselves; the engine has no command that asks for it.
BY_THE_FRONTS = {Why.UNKNOWN_WORKER, Why.OTHER_ITEM_REFUSED}


def a_schedule(**fields) -> Schedule:
    values = {"schedule_id": "s", "queue": "q", "interval_ms": HOUR, "next_at": START}
    return Schedule(**(values | fields))


def a_full_world() -> World:
    """One job in each state, each with an id that says so, and a queue with settings."""
    world = World()
    world.set_queue("full", jobs_max=0)
    world.set_queue("paused", paused=True)
    world.submit(job_id="ca0ce1", id_chosen=True)
    world.cancel("ca0ce1")
    world.submit(job_id="fa11ed", id_chosen=True)
    world.claim()
    world.fail("fa11ed", ByToken("token-1"))
    world.submit(job_id="d00e", id_chosen=True)
    world.claim()
    world.complete("d00e")
    world.submit(job_id="1ea5ed", id_chosen=True, unique_key=b"leased")
    world.claim()
    world.submit(job_id="de1a", id_chosen=True, delay_ms=HOUR)
    world.submit(job_id="4ead", id_chosen=True, unique_key=b"ready")
    world.submit(namespace="n", name="ready")
    world.submit(job_id="b10c", id_chosen=True, depends_on=("4ead",))
    world.submit(queue="other", job_id="07e4", id_chosen=True, unique_key=b"ready")
    world.run(Submit((a_job("other", job_id="0ce"),), once=Once("key", "one")))
    return world


HELD = ByToken("token-3")  # the proof for the leased job of that world
ENDINGS = [
    ("ca0ce1", Why.ALREADY_CANCELLED),
    ("fa11ed", Why.ALREADY_FAILED),
    ("d00e", Why.ALREADY_COMPLETED),
]


def submits(why: Why, **fields):
    return (why, Submit((NewJob(**({"job_id": NOBODY, "queue": "q"} | fields)),)))


CASES = [
    # Names, ids, keys, tags.
    submits(Why.BAD_QUEUE_NAME, queue=""),
    submits(Why.BAD_QUEUE_NAME, queue=LONG),
    submits(Why.BAD_QUEUE_NAME, queue="é" * 128),
    submits(Why.BAD_QUEUE_NAME, queue="a\nb"),
    submits(Why.BAD_QUEUE_NAME, queue="é\x85"),
    submits(Why.BAD_QUEUE_NAME, queue="\ud800"),
    submits(Why.BAD_QUEUE_NAME, queue=".."),
    (Why.BAD_QUEUE_NAME, SetQueue(queue="")),
    (Why.BAD_QUEUE_NAME, Move(job_id="4ead", queue="")),
    (Why.BAD_QUEUE_NAME, Requeue(job_id="d00e", queue="a\0b")),
    (Why.BAD_QUEUE_NAME, Complete(job_id="1ea5ed", proof=HELD, next_queue=LONG)),
    (Why.BAD_QUEUE_NAME, PutSchedule(a_schedule(queue=""))),
    submits(Why.BAD_JOB_ID, job_id="ABC", id_chosen=True),
    submits(Why.BAD_JOB_ID, job_id="", id_chosen=True),
    submits(Why.BAD_JOB_ID, job_id="0" * 129, id_chosen=True),
    submits(Why.BAD_NAME, namespace="n", name=""),
    submits(Why.BAD_NAME, namespace="n", name="x" * (limits.NAME_BYTES_MAX + 1)),
    submits(Why.BAD_NAME, namespace="n", name="\udc80"),
    submits(Why.BAD_UNIQUE_KEY, unique_key=b""),
    submits(Why.BAD_UNIQUE_KEY, unique_key=bytes(256)),
    submits(Why.BAD_TAG, tags=("",)),
    submits(Why.BAD_TAG, tags=(LONG,)),
    submits(Why.BAD_TAG, tags=tuple(map(str, range(65)))),
    (Why.BAD_TAG, SetTags("4ead", add=("a\tb",))),
    (Why.BAD_TAG, SetTags("4ead", add=tuple(map(str, range(65))))),
    submits(Why.BAD_LIMIT, limits=("",)),
    submits(Why.BAD_LIMIT, limits=tuple(map(str, range(17)))),
    submits(Why.BAD_HEADER, headers={"": "v"}),
    submits(Why.BAD_HEADER, headers={"a\nb": "v"}),
    submits(Why.BAD_HEADER, headers={"a": "\ud800"}),
    submits(Why.BAD_HEADER, headers={"a": "é" * (limits.HEADERS_BYTES_MAX // 2)}),
    (Why.BAD_HEADER, PutSchedule(a_schedule(headers={"": "v"}))),
    (Why.BAD_LIMIT, SetLimit("", 1)),
    (Why.BAD_LIMIT, SetLimit("l", -1)),
    (Why.UNKNOWN_LIMIT, RemoveLimit("l")),
    (Why.UNKNOWN_LIMIT, RemoveLimit("")),
    # What a command expects of its job.
    (Why.NO_LONGER_FITS, Requeue(job_id="d00e", only=Only((State.FAILED,)))),
    (Why.NO_LONGER_FITS, Move(job_id=NOBODY, queue="q", only=Only((State.READY,)))),
    (Why.NOT_IDLE, SetDependencies(job_id="1ea5ed", only_idle=True)),
    (Why.ALREADY_CANCELLED, Requeue(job_id="ca0ce1", cancelled_too=False)),
    (Why.DUPLICATE_JOB, PutSchedule(a_schedule(), unless_job="4ead")),
    # Numbers and times.
    submits(Why.BAD_PRIORITY, priority=math.inf),
    submits(Why.BAD_PRIORITY, priority=math.nan),
    submits(Why.BAD_PRIORITY, priority=2 * limits.PRIORITY_MAX),
    (Why.BAD_PRIORITY, SetPriority("4ead", -math.inf)),
    (Why.BAD_PRIORITY, PutSchedule(a_schedule(priority=math.nan))),
    submits(Why.BAD_TIME, delay_ms=-1),
    submits(Why.BAD_TIME, delay_ms=limits.TIME_MS_MAX + 1),
    submits(Why.BAD_TIME, run_at=-1),
    submits(Why.BAD_TIME, run_at=START + limits.TIME_MS_MAX + 1),
    submits(Why.BAD_TIME, deadline_at=START),
    submits(Why.BAD_TIME, deadline_at=2**63),
    (Why.BAD_TIME, Move(job_id="4ead", queue="r", delay_ms=-1)),
    (Why.BAD_TIME, Requeue(job_id="d00e", delay_ms=-1)),
    (Why.BAD_TIME, Renew(job_id="1ea5ed", proof=HELD, term_ms=-1)),
    (Why.BAD_TIME, Complete(job_id="1ea5ed", proof=HELD, delay_ms=1)),
    (Why.BAD_TIME, Complete(job_id="1ea5ed", proof=HELD, depends_on=("4ead",))),
    (Why.BAD_TIME, Complete(job_id="1ea5ed", proof=HELD, next_queue="r", delay_ms=-1)),
    (Why.BAD_TIME, Fail(job_id="1ea5ed", proof=HELD, failure=Failure("x"), delay_ms=-1)),
    (Why.BAD_TIME, PutSchedule(a_schedule(next_at=-1))),
    submits(Why.BAD_POLICY, terms=Terms(attempts_max=0)),
    submits(Why.BAD_POLICY, terms=Terms(attempts_max=limits.ATTEMPTS_MAX + 1)),
    submits(Why.BAD_POLICY, terms=Terms(lease_ms=-1)),
    submits(Why.BAD_POLICY, terms=Terms(attempt_ms_max=limits.TIME_MS_MAX + 1)),
    submits(Why.BAD_POLICY, terms=Terms(backoff=Backoff(first_ms=2, ms_max=1))),
    submits(Why.BAD_POLICY, terms=Terms(backoff=Backoff(factor=math.nan))),
    submits(Why.BAD_POLICY, terms=Terms(backoff=Backoff(jitter=1.5))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(attempts_max=-2))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(concurrency_max=-1))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(jobs_max_high=-1))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(rate=Rate(0, 1)))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(rate=Rate(1, 0)))),
    (Why.BAD_POLICY, SetQueue(queue="q", policy=QueuePolicy(lease_forced=True))),
    (Why.BAD_POLICY, PutSchedule(a_schedule(terms=Terms(attempts_max=0)))),
    (Why.BAD_POLICY, PutSchedule(a_schedule(terms=Terms(backoff=Backoff(factor=1e10))))),
    (Why.BAD_SCHEDULE, PutSchedule(a_schedule(schedule_id=""))),
    (Why.BAD_SCHEDULE, PutSchedule(a_schedule(interval_ms=None))),
    (Why.BAD_SCHEDULE, PutSchedule(a_schedule(cron="* * * * *"))),
    (Why.BAD_SCHEDULE, PutSchedule(a_schedule(interval_ms=0))),
    (Why.BAD_SCHEDULE, PutSchedule(a_schedule(backlog_max=0))),
    (Why.BAD_COUNT, Report(job_id="1ea5ed", proof=HELD, numerator=-1, denominator=1)),
    (Why.BAD_COUNT, Report(job_id="1ea5ed", proof=HELD, numerator=1, denominator=-1)),
    (Why.BAD_COUNT, Claim(holder=a_worker(), queues=("q",), tokens=("t",) * 10_001)),
    (Why.BAD_COUNT, Claim(holder=a_worker(), queues=("q",) * 1_001, tokens=("t",))),
    # Sizes.
    submits(Why.PAYLOAD_TOO_LARGE, payload=HUGE),
    (Why.PAYLOAD_TOO_LARGE, Renew(job_id="1ea5ed", proof=HELD, payload=HUGE)),
    (Why.PAYLOAD_TOO_LARGE, Complete(job_id="1ea5ed", proof=HELD, result=HUGE)),
    (Why.PAYLOAD_TOO_LARGE, SendPartial(job_id="1ea5ed", proof=HELD, payload=HUGE)),
    (
        Why.PAYLOAD_TOO_LARGE,
        Fail(job_id="1ea5ed", proof=HELD, failure=Failure("x"), payload=HUGE),
    ),
    (
        Why.PAYLOAD_TOO_LARGE,
        Fail(job_id="1ea5ed", proof=HELD, failure=Failure("x", "", HUGE)),
    ),
    (Why.PAYLOAD_TOO_LARGE, PutSchedule(a_schedule(payload=HUGE))),
    submits(Why.METADATA_TOO_LARGE, metadata=bytes(limits.METADATA_BYTES_MAX + 1)),
    (Why.EMPTY_BATCH, Submit(())),
    (Why.EMPTY_BATCH, Cancel(job_ids=())),
    (Why.EMPTY_BATCH, ReleaseAll(())),
    (Why.EMPTY_BATCH, Conclude(())),
    (Why.BATCH_TOO_LARGE, Submit((a_job(),) * 10_001)),
    (Why.BATCH_TOO_LARGE, Cancel(job_ids=tuple(map(str, range(10_001))))),
    (
        Why.BATCH_TOO_LARGE,
        ReleaseAll((Release(job_id="1ea5ed", proof=HELD),) * 10_001),
    ),
    (
        Why.BATCH_TOO_LARGE,
        Conclude((Complete(job_id="1ea5ed", proof=HELD),) * 10_001),
    ),
    # What is not there.
    (Why.UNKNOWN_JOB, Renew(job_id=NOBODY, proof=TOKEN)),
    (Why.UNKNOWN_JOB, Report(job_id=NOBODY, proof=TOKEN, numerator=1, denominator=1)),
    (Why.UNKNOWN_JOB, SendPartial(job_id=NOBODY, proof=TOKEN, payload=b"")),
    (Why.UNKNOWN_JOB, Complete(job_id=NOBODY, proof=TOKEN)),
    (Why.UNKNOWN_JOB, Fail(job_id=NOBODY, proof=TOKEN, failure=Failure("x"))),
    (Why.UNKNOWN_JOB, Release(job_id=NOBODY, proof=TOKEN)),
    (Why.UNKNOWN_JOB, Cancel(job_ids=(NOBODY,))),
    (Why.UNKNOWN_JOB, Requeue(job_id=NOBODY)),
    (Why.UNKNOWN_JOB, Move(job_id=NOBODY, queue="q")),
    (Why.UNKNOWN_JOB, SetPriority(NOBODY, 1)),
    (Why.UNKNOWN_JOB, SetTags(NOBODY)),
    (Why.UNKNOWN_JOB, SetDependencies(job_id=NOBODY)),
    (Why.UNKNOWN_JOB, ExpireLease(NOBODY)),
    (Why.UNKNOWN_JOB, Attach(job_id=NOBODY)),
    (Why.UNKNOWN_JOB, Claim(job_id=NOBODY, holder=a_worker(), tokens=("t",))),
    (Why.UNKNOWN_QUEUE, ForgetQueue("nowhere")),
    (Why.UNKNOWN_SCHEDULE, RemoveSchedule("nothing")),
    submits(Why.UNKNOWN_DEPENDENCY, depends_on=("0" * 32,)),
    submits(Why.CYCLE, depends_on=(NOBODY,)),
    (Why.UNKNOWN_DEPENDENCY, SetDependencies(job_id="4ead", add=(NOBODY,))),
    (
        Why.UNKNOWN_DEPENDENCY,
        Complete(job_id="1ea5ed", proof=HELD, next_queue="r", depends_on=(NOBODY,)),
    ),
    # What is there already.
    submits(Why.DUPLICATE_JOB, job_id="4ead", id_chosen=True),
    submits(Why.IN_OTHER_QUEUE, job_id="4ead", id_chosen=True, queue="other"),
    submits(Why.DUPLICATE_KEY, unique_key=b"ready", on_duplicate=OnDuplicate.REFUSE),
    submits(Why.DUPLICATE_KEY, unique_key=b"leased", on_duplicate=OnDuplicate.REPLACE),
    submits(
        Why.DUPLICATE_KEY,
        job_id="4ead",
        id_chosen=True,
        queue="other",
        on_existing=OnExisting.MOVE,
    ),
    (Why.DUPLICATE_KEY, Move(job_id="4ead", queue="other")),
    submits(Why.DUPLICATE_NAME, namespace="n", name="ready"),
    (Why.KEY_REUSED, Submit((a_job(job_id=NOBODY),), once=Once("key", "another"))),
    # What is in the wrong state.
    (Why.NOT_YOUR_LEASE, Renew(job_id="1ea5ed", proof=ByToken("guessed"))),
    (Why.NOT_LEASED, Renew(job_id="4ead", proof=TOKEN)),
    (Why.NOT_LEASED, ExpireLease("de1a")),
    (
        Why.NOT_LEASED,
        ReleaseAll((Release(job_id="1ea5ed", proof=HELD),) * 2),
    ),
    (Why.NOT_CLAIMABLE, Claim(job_id="de1a", holder=a_worker(), tokens=("t",))),
    (Why.NOT_CLAIMABLE, Claim(job_id="4ead", holder=a_worker(), tokens=())),
    (Why.WRONG_QUEUE, Renew(job_id="1ea5ed", proof=HELD, queue="r")),
    (Why.WRONG_QUEUE, Complete(job_id="1ea5ed", proof=HELD, queue="r")),
    (Why.WRONG_QUEUE, Fail(job_id="1ea5ed", proof=HELD, failure=Failure("x"), queue="r")),
    (Why.NOT_FINISHED, Requeue(job_id="4ead")),
    *(
        (why, command)
        for job_id, why in ENDINGS
        for command in (
            Renew(job_id=job_id, proof=TOKEN),
            Complete(job_id=job_id, proof=ByToken("other")),
            Fail(job_id=job_id, proof=TOKEN, failure=Failure("x")),
            Release(job_id=job_id, proof=TOKEN),
            Move(job_id=job_id, queue="r"),
            SetPriority(job_id, 1),
            SetDependencies(job_id=job_id, add=("4ead",)),
            ExpireLease(job_id),
        )
    ),
    (Why.ALREADY_COMPLETED, Cancel(job_ids=("d00e",))),
    (Why.ALREADY_CANCELLED, Cancel(job_ids=("ca0ce1",))),
    # Graphs.
    (Why.CYCLE, SetDependencies(job_id="4ead", add=("b10c",))),
    (Why.CYCLE, SetDependencies(job_id="4ead", add=("4ead",))),
    (Why.CYCLE, Release(job_id="1ea5ed", proof=HELD, depends_on=("1ea5ed",))),
    submits(Why.TOO_MANY_DEPENDENCIES, depends_on=tuple(f"{n:x}" for n in range(10_001))),
    (Why.HAS_DEPENDANTS, Cancel(job_ids=("4ead",), with_dependants=False)),
    (Why.QUEUE_IN_USE, ForgetQueue("q")),
    submits(Why.QUEUE_FULL, queue="full"),
]


@pytest.mark.parametrize(
    ("why", "command"),
    CASES,
    ids=[f"{why}-{type(command).__name__}-{n}" for n, (why, command) in enumerate(CASES)],
)
def test_bad_input_is_refused_by_its_name_and_nothing_is_half_done(why, command):
    world = a_full_world()
    jobs = {job_id: world.job(job_id) for job_id in ("ca0ce1", "fa11ed", "d00e", "1ea5ed")}
    jobs |= {job_id: world.job(job_id) for job_id in ("de1a", "4ead", "b10c", "07e4")}
    queues, seq = set(world.store.live.queues), world.store.last_seq()

    reply = world.run(command)
    if isinstance(reply, SubmittedMany):
        (reply,) = reply.items

    assert isinstance(reply, Refusal), f"not refused: {reply}"
    assert reply.why is why, reply.sentence
    assert reply.sentence
    assert {job_id: world.job(job_id) for job_id in jobs} == jobs
    assert set(world.store.live.queues) == queues
    assert world.store.last_seq() == seq
    world.check()


def test_there_can_be_too_many_queues(monkeypatch):
    world = World()
    world.submit(queue="a")
    monkeypatch.setattr(limits, "QUEUES_COUNT_MAX", 2)
    world.submit(queue="b")

    reply = world.offer(a_job(queue="c"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.TOO_MANY_QUEUES
    assert world.submit(queue="a").state is State.READY
    world.check()


def test_there_can_be_too_many_queues_in_one_batch(monkeypatch):
    world = World()
    monkeypatch.setattr(limits, "QUEUES_COUNT_MAX", 2)

    replies = world.offer_all(a_job("a"), a_job("b"), a_job("c"))

    assert [isinstance(reply, Refusal) for reply in replies] == [False, False, True]
    world.check()


def test_there_can_be_too_many_schedules(monkeypatch):
    world = World()
    assert world.run(PutSchedule(a_schedule())) == Accepted(1)
    monkeypatch.setattr(limits, "SCHEDULES_COUNT_MAX", 1)

    why = world.refused(PutSchedule(a_schedule(schedule_id="t")))

    assert why is Why.TOO_MANY_SCHEDULES
    assert world.run(PutSchedule(a_schedule(interval_ms=1))) == Accepted(1)


def test_every_reason_for_a_refusal_is_given_by_some_command():
    tried = {why for why, _ in CASES}

    elsewhere = {Why.TOO_MANY_QUEUES, Why.TOO_MANY_SCHEDULES}  # in the two tests above

    assert tried | elsewhere | BY_THE_SERVER | BY_THE_FRONTS == set(Why)
    assert tried.isdisjoint(BY_THE_SERVER | BY_THE_FRONTS)


def test_a_refused_item_of_a_batch_leaves_the_others_alone():
    world = World()

    good, bad, other = world.offer_all(a_job(), a_job(""), a_job())

    assert not isinstance(good, Refusal)
    assert isinstance(bad, Refusal)
    assert not isinstance(other, Refusal)
    assert len(world.events()) == 2
    world.check()


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "limited"},
        {"queue": "q", "depends_on": (NOBODY,)},
        {"queue": "q", "depends_on": tuple(f"{n:x}" for n in range(10_001))},
    ],
)
def test_a_refused_replacement_replaces_nothing(fields):
    world = World()
    world.set_queue("limited", jobs_max=2)
    queue = fields["queue"]
    world.submit(queue=queue)
    holder = world.submit(queue=queue, unique_key=b"k")
    if queue == "limited":
        world.set_queue("limited", jobs_max=1)

    reply = world.offer(a_job(unique_key=b"k", on_duplicate=OnDuplicate.REPLACE, **fields))

    assert isinstance(reply, Refusal)
    assert world.job(holder.job_id) == holder
    world.check()


@pytest.mark.parametrize("fields", [{"depends_on": (NOBODY,)}, {"terms": Terms(attempts_max=0)}])
def test_a_refused_submit_does_not_bring_its_queue_into_being(fields):
    world = World()

    reply = world.offer(a_job(queue="new", **fields))

    assert isinstance(reply, Refusal)
    assert world.store.live.queue("new") is None


def test_a_schedule_that_is_fired_by_somebody_else_first_does_nothing():
    world = World()
    world.run(PutSchedule(a_schedule()))

    twice = [
        world.run(Fire(schedule_id="s", due_at=START, next_at=START + HOUR, job_id=NOBODY))
        for _ in range(2)
    ]

    assert isinstance(twice[0], SubmittedMany)
    assert twice[1] == Accepted(0)
    world.check()


def test_a_long_failure_is_shortened_and_not_refused():
    world = World()
    job = world.submit()
    world.claim()
    message = "x" * (limits.FAILURE_MESSAGE_BYTES_MAX + 5)

    failed = world.fail(job.job_id, failure=Failure("long", message))

    assert len(failed.failure.message) == limits.FAILURE_MESSAGE_BYTES_MAX
    assert len(failed.attempts[-1].failure) == 200
    world.check()


def test_replacing_a_schedule_keeps_its_count():
    world = World()
    world.run(PutSchedule(a_schedule()))
    world.run(Fire(schedule_id="s", due_at=START, next_at=START + HOUR, job_id=NOBODY))

    world.run(PutSchedule(replace(a_schedule(), interval_ms=1)))

    schedule = world.store.live.view.schedule("s")
    assert (schedule.fired_count, schedule.last_job_id) == (1, NOBODY)
    world.check()
