"""Messages of jobs that really went that way: each is held against its schema."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import msgpack
from pamqp import frame
from referencing import Registry, Resource

import manyhands.protocols.taskcluster
from manyhands.model.commands import ByAnyone
from manyhands.model.job import Holder, Origin
from manyhands.model.policy import DEFAULTS, TERMS, Terms
from manyhands.model.replies import Submitted
from manyhands.net.amqp import pack_publish
from manyhands.protocols.taskcluster.identifiers import (
    identifier_of,
    is_identifier,
    is_routing,
    place_of,
    task_id_of,
)
from manyhands.protocols.taskcluster.messages import (
    EXCHANGES,
    NEVER,
    RUNS_SHOWN_MAX,
    Extras,
    Renderer,
)
from manyhands.protocols.topic_patterns import Pattern, words_of
from tests.unit.engine.world import MINUTE, SECOND, START, World, a_job

SCHEMAS = Path(manyhands.protocols.taskcluster.__file__).parent / "schemas"
DOCUMENTS = {file.name: json.loads(file.read_text()) for file in SCHEMAS.glob("*.json")}
REGISTRY = Registry().with_resources(
    (name, Resource.from_contents(document)) for name, document in DOCUMENTS.items()
)
CHECKERS = {
    exchange: jsonschema.Draft202012Validator(
        {"$ref": f"{exchange}.json"},
        registry=REGISTRY,
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )
    for exchange in EXCHANGES
}
TASKCLUSTER = Origin("taskcluster")
BASE = "http://server:7700"
NAME_CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"))


class Heard:
    """A message as a watcher sees it: read back from the wire."""

    def __init__(self, message) -> None:
        data = pack_publish(1, message, 4096)
        frames = []
        while data:
            count, _, read = frame.unmarshal(data)
            frames.append(read)
            data = data[count:]
        method, header, *bodies = frames
        self.exchange = method.exchange
        self.key = method.routing_key
        self.words = words_of(self.key)
        self.properties = header.properties
        self.headers = header.properties.headers
        raw = b"".join(body.value for body in bodies)
        assert header.body_size == len(raw)
        self.body = json.loads(raw)
        self.status = self.body["status"]
        CHECKERS[self.exchange].validate(self.body)


def heard(world: World, job_id: str | None = None, extras: Extras | None = None) -> list[Heard]:
    """What watchers hear of a job, rendered now, however long ago it was."""
    renderer = Renderer("server", BASE, world.store.find, extras)
    found = []
    for stored in world.store.events_after(0, 1_000_000):
        if job_id in (None, stored.event.job_id):
            message = renderer.render(stored.seq, stored.event)
            if message is not None:
                found.append(Heard(message))
    return found


def a_task(world: World, queue: str = "aws/ami", retries: int = 0, **more):
    routing = more.pop("routing", "my.task")
    definition = {"routing": routing, "created": "2014-02-01T03:22:36.356Z", "tags": {}}
    terms = Terms(DEFAULTS["taskcluster"], attempts_max=retries + 1)
    return world.submit(
        queue=queue,
        origin=TASKCLUSTER,
        terms=terms,
        metadata=json.dumps(definition).encode(),
        **more,
    )


def a_claim(world: World, queue: str = "aws/ami", group: str = "rack-1", worker: str = "node-7"):
    return world.claim(queue, holder=Holder("taskcluster", f"{group}/{worker}"), term_ms=1_200_000)


@pytest.fixture
def world() -> World:
    return World()


def test_schemas_are_schemas():
    for document in DOCUMENTS.values():
        jsonschema.Draft202012Validator.check_schema(document)


def test_a_life_is_told_as_pending_running_and_completed(world):
    """T2, T5."""
    task = a_task(world, retries=2, priority=2.6, deadline_at=START + MINUTE)
    a_claim(world)
    world.now += 5 * SECOND
    world.complete(task.job_id)

    pending, running, completed = heard(world)

    task_id = task_id_of(task.job_id)
    assert [m.exchange for m in (pending, running, completed)] == list(EXCHANGES[:3])
    assert pending.key == f"{task_id}._._._.aws.ami.my.task"
    assert running.key == completed.key == f"{task_id}.1.rack-1.node-7.aws.ami.my.task"
    assert pending.body == {
        "version": "0.2.0",
        "status": {
            "task_id": task_id,
            "provisioner_id": "aws",
            "worker_type": "ami",
            "runs": [],
            "state": "pending",
            "reason": "none",
            "routing": "my.task",
            "retries": 2,
            "priority": 2.6,
            "created": "2014-02-01T03:22:36.356Z",
            "deadline": "2023-11-14T22:14:20.000Z",
            "taken_until": "1970-01-01T00:00:00.000Z",
        },
    }
    assert running.status["taken_until"] == "2023-11-14T22:33:20.000Z"
    assert running.status["runs"] == [
        {"run_id": 1, "worker_group": "rack-1", "worker_id": "node-7"}
    ]
    assert completed.body["result"] == f"{BASE}/0.2.0/store/{task_id}/runs/1/result.json"


def test_properties_and_cloudevents_headers_of_a_message(world):
    """T13."""
    task = a_task(world)
    [pending] = heard(world)

    properties = pending.properties
    assert properties.content_type == "application/json"
    assert properties.content_encoding == "utf-8"
    assert properties.delivery_mode == 2
    assert properties.message_id == "1"
    assert int(properties.timestamp.timestamp()) == START // 1000
    assert properties.message_type == "task_pending_v1"
    assert properties.app_id == "server"
    assert pending.headers == {
        "ce-specversion": "1.0",
        "ce-source": "/server",
        "ce-type": "manyhands.task.pending.v1",
        "ce-dataschema": f"{BASE}/0.2.0/schemas/task_pending_v1.json",
        "ce-id": "00000000000000000001",
        "ce-sequence": "00000000000000000001",
        "ce-subject": task_id_of(task.job_id),
        "ce-time": "2023-11-14T22:13:20.000Z",
        "manyhands-job-id": task.job_id,
    }


@pytest.mark.parametrize(
    ("setting", "prefixes"),
    [
        ("ce", ["ce-"]),
        ("cloudevents", ["cloudEvents_"]),
        ("both", ["ce-", "cloudEvents_"]),
        ("none", []),
    ],
)
def test_cloudevents_headers_are_a_matter_of_choice(world, setting, prefixes):
    """T44"""
    a_task(world)
    a_claim(world)
    names = ["specversion", "source", "type", "dataschema", "id", "sequence", "subject", "time"]
    usual = heard(world)

    for message, other in zip(heard(world, extras=Extras(setting)), usual, strict=True):
        told = [name for name in message.headers if name != "manyhands-job-id"]
        assert sorted(told) == sorted(p + n for p in prefixes for n in names)
        for prefix in prefixes:
            for name in names:
                assert message.headers[prefix + name] == other.headers["ce-" + name]
        assert message.body == other.body


def test_a_second_key_travels_in_a_header(world):
    """T44"""
    a_task(world, routing="my.task")

    [message] = heard(world, extras=Extras(cc=True))

    assert message.headers["CC"] == ["aws.ami.my.task"]
    assert message.key.split(".")[4:] == ["aws", "ami", "my", "task"]


def test_jobs_of_other_protocols_have_neither_deadline_nor_priority_nor_routing(world):
    """T10, T14."""
    job = world.submit(queue="resize", priority=7, origin=Origin("gearman"), terms=TERMS["dwork"])
    world.claim("resize", holder=Holder("gearman", "", "10.0.0.1"), term_ms=None)
    world.fail(job.job_id)

    pending, running, failed = heard(world)

    assert pending.key.endswith("._._._.default.resize.")
    assert pending.status["deadline"] == NEVER
    assert pending.status["priority"] == 0
    assert pending.status["routing"] == ""
    assert pending.status["retries"] == 999
    assert running.status["taken_until"] == NEVER
    assert re.fullmatch(r"10-0-0-1-[0-9a-f]{8}", running.body["worker_id"])
    assert running.body["worker_group"] == "gearman"
    assert failed.status["reason"] == "failed"


def test_a_queue_whose_name_is_no_identifier_is_slugged_and_named_in_a_header(world):
    """T14."""
    world.submit(queue="größe/mit.punkt und mehr als sechsunddreißig zeichen")
    [pending] = heard(world)

    worker_type = pending.status["worker_type"]
    assert is_identifier(worker_type)
    assert len(worker_type) == 36
    assert len(pending.words) == 7
    assert pending.headers["manyhands-queue"].startswith("größe/mit.punkt")


def test_a_queue_called_like_provisioner_and_type_is_theirs_whoever_submits(world):
    world.submit(queue="aws/ami", origin=Origin("gearman"))
    [pending] = heard(world)

    assert pending.words[4:] == ["aws", "ami", ""]
    assert "manyhands-queue" not in pending.headers


@pytest.mark.parametrize("job_id", ["cc1", "0190e0f0cafe70008000000000000000"])
def test_a_header_tells_the_id_that_the_job_has_elsewhere(world, job_id):
    """T13."""
    world.submit(queue="a", job_id=job_id, id_chosen=True)
    [pending] = heard(world)

    assert pending.headers["manyhands-job-id"] == job_id


def test_blocked_and_delayed_jobs_are_not_pending(world):
    """T6."""
    first = world.submit(queue="a")
    world.submit(queue="b", depends_on=(first.job_id,))
    late = world.submit(queue="c", delay_ms=MINUTE)
    assert [m.words[5] for m in heard(world)] == ["a"]

    world.tick(2 * MINUTE)
    assert [m.exchange for m in heard(world, late.job_id)] == ["task_pending_v1"]


def test_renewing_publishes_nothing(world):
    """T6."""
    task = a_task(world)
    a_claim(world)
    world.renew(task.job_id)
    world.report(task.job_id, 1, 2)

    assert [m.exchange for m in heard(world)] == list(EXCHANGES[:2])


def test_a_lapsed_lease_that_is_renewed_runs_again_as_the_same_run(world):
    """T6."""
    job = world.submit(queue="q", terms=TERMS["qless"], origin=Origin("qless"))
    world.claim("q", term_ms=SECOND)
    world.tick(2 * SECOND)
    world.renew(job.job_id)

    told = heard(world)
    assert [m.exchange for m in told] == [*EXCHANGES[:2], *EXCHANGES[:2]]
    assert told[3].body["run_id"] == told[1].body["run_id"] == 1


def test_open_completion_without_a_claim_is_a_run_too(world):
    """T14."""
    job = world.submit(queue="q", terms=TERMS["dwork"], origin=Origin("dwork"))
    world.complete(job.job_id, ByAnyone("alice"))

    completed = heard(world)[-1]
    assert completed.words[1] == "1"
    assert completed.body["worker_id"] == "alice"


def test_the_last_fifty_runs_are_shown_and_a_header_says_so(world):
    """T8."""
    job = a_task(world, retries=200)
    for _ in range(70):
        a_claim(world)
        world.release(job.job_id)
    last = heard(world)[-1]

    assert [run["run_id"] for run in last.status["runs"]] == list(range(21, 71))
    assert len(last.status["runs"]) == RUNS_SHOWN_MAX
    assert last.headers["manyhands-runs-cut"] == "true"


# The traps of the exchanges' first description, by number.


def test_trap_01_provisioner_and_type_are_words_five_and_six(world):
    """T3."""
    a_task(world)
    [pending] = heard(world)

    assert not Pattern("aws.#").matches(pending.words)
    assert Pattern("*.*.*.*.aws.#").matches(pending.words)
    assert Pattern("*.*.*.*.aws.ami.#").matches(pending.words)


def test_trap_02_a_task_fails_when_it_was_not_completed_before_its_deadline(world):
    a_task(world, deadline_at=START + MINUTE)
    early = a_task(world, queue="aws/other", deadline_at=START + MINUTE)
    a_claim(world, "aws/other")
    world.complete(early.job_id)
    world.tick(2 * MINUTE)

    [failed] = [m for m in heard(world) if m.exchange == "task_failed_v1"]
    assert failed.status["reason"] == "deadline-exceeded"
    assert failed.words[1:4] == ["_", "_", "_"]


def test_trap_03_running_has_both_spellings(world):
    """T7."""
    a_task(world)
    a_claim(world)
    running = heard(world)[-1].body

    assert running["worker-group"] == running["worker_group"] == "rack-1"
    assert running["worker-id"] == running["worker_id"] == "node-7"
    assert running["run_id"] == 1


def test_trap_04_there_are_four_exchanges_and_none_is_called_task_failed():
    """T1."""
    assert EXCHANGES == (
        "task_pending_v1",
        "task_running_v1",
        "task_completed_v1",
        "task_failed_v1",
    )


def test_trap_05_messages_name_result_json(world):
    task = a_task(world)
    a_claim(world)
    world.complete(task.job_id)

    assert heard(world)[-1].body["result"].endswith("/runs/1/result.json")


def test_trap_06_completed_and_failed_tell_run_and_worker_where_there_was_one(world):
    """T7."""
    done, never_run = a_task(world), a_task(world, queue="aws/idle")
    a_claim(world)
    world.complete(done.job_id)
    world.cancel(never_run.job_id)
    completed, failed = heard(world)[-2:]

    worker = {"run_id": 1, "worker_group": "rack-1", "worker_id": "node-7"}
    assert completed.body.items() >= worker.items()
    assert not failed.body.keys() & worker.keys()


@given(
    st.text(NAME_CHARACTERS, min_size=1, max_size=255),
    st.text(NAME_CHARACTERS, max_size=255),
    st.text(
        alphabet=st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=64
    ),
    st.integers(0, 5),
)
def test_trap_07_a_key_never_has_more_than_253_bytes(queue, worker, routing, leases):
    """T4."""
    world = World()
    queue = queue.encode()[:255].decode(errors="ignore") or "q"
    definition = json.dumps({"routing": routing}).encode()
    new = a_job(queue=queue, origin=TASKCLUSTER, metadata=definition)
    assume(isinstance(world.offer(new), Submitted))
    for _ in range(leases):
        job = world.claim(queue, holder=Holder("some realm", worker, "::1"))
        world.release(job.job_id)

    for message in heard(world):
        assert len(message.key.encode()) <= 253
        assert message.key.isascii()


def test_trap_07_the_longest_key_there_can_be_has_253_bytes(world):
    name = "x" * 36
    task = a_task(world, queue=f"{name}/{name}", routing="r" * 64)
    for _ in range(3):
        a_claim(world, f"{name}/{name}", name, name)
        world.release(task.job_id)
    message = heard(world)[-2]

    assert len(message.key) == 253 - 2  # a run of one digit


def test_trap_07_routing_is_bounded_in_bytes():
    assert is_routing("a" * 64)
    assert not is_routing("a" * 65)
    assert not is_routing("é" * 10)
    assert not is_routing("line\nbreak")


@given(st.text())
def test_trap_08_no_word_has_a_dot_whatever_the_name(name):
    """T4."""
    assert is_identifier(identifier_of(name))
    place = place_of(name)
    assert is_identifier(place.provisioner)
    assert is_identifier(place.worker_type)


def test_trap_09_the_placeholder_is_no_identifier(world):
    """T4."""
    assert not is_identifier("_")
    assert is_identifier("__")
    world.submit(queue="_")
    world.claim("_", holder=Holder("taskcluster", "_/_"))

    for message in heard(world):
        assert message.words[5] != "_"
        assert "_" not in (message.body.get("worker_group"), message.body.get("worker_id"))


def test_trap_10_runs_start_at_one_and_are_shown_up_to_999(world):
    """T8."""
    task = a_task(world, retries=5)
    a_claim(world)
    assert heard(world)[-1].words[1] == "1"
    world.release(task.job_id)
    event = world.events(task.job_id)[-1]
    many = msgpack.decode(
        msgpack.encode(
            [
                *msgpack.decode(msgpack.encode(event))[:6],
                1234,
                *msgpack.decode(msgpack.encode(event))[7:],
            ]
        ),
        type=type(event),
    )
    message = Renderer("server", BASE, lambda _: None).render(1, many)
    assert Heard(message).status["runs"][-1]["run_id"] == 999


def test_trap_11_retries_go_down_only_when_an_expired_claim_sends_the_task_back(world):
    """T9, T10."""
    task = a_task(world, retries=1)
    a_claim(world)
    world.tick(1_300 * SECOND)
    a_claim(world)
    world.tick(1_300 * SECOND)

    told = heard(world, task.job_id)
    assert [m.exchange for m in told] == [
        EXCHANGES[0],
        EXCHANGES[1],
        EXCHANGES[0],
        EXCHANGES[1],
        EXCHANGES[3],
    ]
    assert [m.status["retries"] for m in told] == [1, 1, 0, 0, 0]
    assert told[-1].status["reason"] == "retries-exhausted"
    assert told[-1].words[1] == "2"
    assert told[2].words[1] == "_"


def test_trap_12_a_message_shows_the_moment_of_its_event_whenever_it_is_rendered(world):
    """T12."""
    task = a_task(world, retries=3)
    a_claim(world, worker="node-1")
    before = [m.body for m in heard(world)]
    world.release(task.job_id)
    a_claim(world, worker="node-2")
    world.complete(task.job_id)

    told = heard(world)
    assert [m.body for m in told[:2]] == before
    assert [len(m.status["runs"]) for m in told] == [0, 1, 1, 2, 2]


def test_trap_13_the_url_of_logs_has_its_runs(world):
    task = a_task(world)
    a_claim(world)

    task_id = task_id_of(task.job_id)
    assert heard(world)[-1].body["logs"] == f"{BASE}/0.2.0/store/{task_id}/runs/1/logs.json"


def test_trap_16_an_empty_routing_leaves_an_empty_seventh_word(world):
    """T2."""
    a_task(world, routing="")
    [pending] = heard(world)

    assert pending.key.endswith(".ami.")
    assert len(pending.words) == 7
    assert Pattern("*.*.*.*.*.*.*").matches(pending.words)
    assert Pattern("*.*.*.*.aws.ami.#").matches(pending.words)


def test_trap_17_stars_and_hashes_in_a_routing_are_plain_characters(world):
    a_task(world, routing="*.#.x")
    [pending] = heard(world)

    assert pending.words[6:] == ["*", "#", "x"]
    assert not Pattern("*.*.*.*.*.*.y.#").matches(pending.words)
    assert Pattern("*.*.*.*.*.*.*.*.x").matches(pending.words)


def test_trap_18_completed_says_nothing_about_success_and_there_is_no_fifth_state(world):
    """T11."""
    schema = DOCUMENTS["task_status.json"]["properties"]["state"]

    assert schema["enum"] == ["pending", "running", "completed", "failed"]
    task = a_task(world)
    a_claim(world)
    world.complete(task.job_id, result=b'{"exit_code": 1}')
    assert heard(world)[-1].status["reason"] == "none"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda world, job: world.cancel(job.job_id), "canceled"),
        (lambda world, job: world.fail(job.job_id), "failed"),
        (lambda world, _: world.tick(2 * MINUTE), "deadline-exceeded"),
    ],
)
def test_reasons_of_failures(world, end, reason):
    """T11."""
    job = a_task(world, deadline_at=START + MINUTE)
    a_claim(world)
    end(world, job)

    failed = heard(world, job.job_id)[-1]
    assert failed.exchange == "task_failed_v1"
    assert failed.status["reason"] == reason
    assert failed.words[1:4] == ["1", "rack-1", "node-7"]


NOBODY = ["_", "_", "_"]
FIRST = ["1", "rack-1", "node-7"]
SECOND_RUN = ["2", "rack-2", "node-8"]
EXPIRY = 21 * MINUTE


def is_claimed_again(world: World) -> None:
    a_claim(world)
    world.tick(EXPIRY)
    a_claim(world, group="rack-2", worker="node-8")


# What happens to a task with one retry and a deadline in an hour, and what is told last: the
# exchange, words 2 to 4 of the key, the reason, and the retries that are left.
TRANSITIONS = {
    "created": (lambda _w, _j: None, "pending", NOBODY, "none", 1),
    "claimed": (lambda w, _j: a_claim(w), "running", FIRST, "none", 1),
    "reclaimed": (lambda w, j: (a_claim(w), w.renew(j)), "running", FIRST, "none", 1),
    "expired with a retry left": (
        lambda w, _j: (a_claim(w), w.tick(EXPIRY)),
        *("pending", NOBODY, "none", 0),
    ),
    "claimed again": (lambda w, _j: is_claimed_again(w), "running", SECOND_RUN, "none", 0),
    "expired without a retry left": (
        lambda w, _j: (is_claimed_again(w), w.tick(EXPIRY)),
        *("failed", SECOND_RUN, "retries-exhausted", 0),
    ),
    "deadline while never claimed": (
        lambda w, _j: w.tick(61 * MINUTE),
        *("failed", NOBODY, "deadline-exceeded", 1),
    ),
    "deadline while pending again": (
        lambda w, _j: (a_claim(w), w.tick(EXPIRY), w.tick(61 * MINUTE)),
        *("failed", FIRST, "deadline-exceeded", 0),
    ),
    "deadline and expiry at once": (
        lambda w, _j: (a_claim(w), w.tick(61 * MINUTE)),
        *("failed", FIRST, "deadline-exceeded", 1),
    ),
    "canceled while never claimed": (
        lambda w, j: w.cancel(j),
        *("failed", NOBODY, "canceled", 1),
    ),
    "canceled while running": (
        lambda w, j: (a_claim(w), w.cancel(j)),
        *("failed", FIRST, "canceled", 1),
    ),
    "completed": (
        lambda w, j: (a_claim(w), w.complete(j)),
        *("completed", FIRST, "none", 1),
    ),
    "completed by the second run": (
        lambda w, j: (is_claimed_again(w), w.complete(j)),
        *("completed", SECOND_RUN, "none", 0),
    ),
    "completed in the last moment of the claim": (
        lambda w, j: (a_claim(w), w.tick(20 * MINUTE - 1), w.complete(j)),
        *("completed", FIRST, "none", 1),
    ),
}


@pytest.mark.parametrize("what", TRANSITIONS)
def test_what_is_published_when_and_under_which_key(world, what):
    """T6, T7, T9, T11."""
    happens, exchange, words, reason, retries = TRANSITIONS[what]
    task = a_task(world, retries=1, deadline_at=START + 60 * MINUTE)
    happens(world, task.job_id)

    told = heard(world, task.job_id)
    last = told[-1]
    assert last.exchange == f"task_{exchange}_v1"
    assert last.words[1:4] == words
    assert last.words[4:] == ["aws", "ami", "my", "task"]
    assert (last.status["reason"], last.status["retries"]) == (reason, retries)
    running = [message for message in told if message.exchange == "task_running_v1"]
    assert len(running) == len({message.body["run_id"] for message in running})


def test_taken_until_is_twenty_minutes_from_the_claim_and_from_each_reclaim(world):
    """T10."""
    task = a_task(world, retries=1)
    a_claim(world)
    assert heard(world)[-1].status["taken_until"] == "2023-11-14T22:33:20.000Z"
    world.tick(19 * MINUTE)
    world.renew(task.job_id)
    world.tick(19 * MINUTE)

    assert [message.exchange for message in heard(world)] == ["task_pending_v1", "task_running_v1"]
    world.tick(MINUTE)
    assert heard(world)[-1].exchange == "task_pending_v1"


def test_a_dependency_that_failed_fails_a_task(world):
    """T11."""
    first = a_job(queue="aws/first", origin=TASKCLUSTER, terms=TERMS["taskcluster"])
    first = world.submit(first)
    second = a_task(world, depends_on=(first.job_id,))
    a_claim(world, "aws/first")
    world.fail(first.job_id)

    [message] = heard(world, second.job_id)
    assert message.exchange == "task_failed_v1"
    assert message.status["reason"] == "dependency-failed"


def test_a_task_is_canceled_with_what_it_depends_on(world):
    """T11."""
    first = a_task(world, queue="aws/first")
    second = a_task(world, depends_on=(first.job_id,))
    world.cancel(first.job_id)

    [message] = heard(world, second.job_id)
    assert (message.exchange, message.status["reason"]) == ("task_failed_v1", "canceled")


def test_every_reason_of_the_engine_makes_a_valid_message(world):
    for number in range(3):
        job = world.submit(queue=f"q{number}", terms=TERMS["qless"], origin=Origin("qless"))
        world.claim(f"q{number}", term_ms=SECOND)
        if number == 0:
            world.fail(job.job_id, retry=True)
        elif number == 1:
            world.move(job.job_id, "elsewhere")
        world.tick(MINUTE)

    assert heard(world)  # each was validated
