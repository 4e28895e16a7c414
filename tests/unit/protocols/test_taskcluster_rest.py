"""Bodies of the REST API, read and written without a server."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from manyhands.model.job import Failure, Holder, failure_from_bytes
from manyhands.model.payload import Encoding
from manyhands.model.policy import TERMS
from manyhands.protocols.taskcluster import rest
from manyhands.protocols.taskcluster.rest import RestError, Worker
from tests.unit.engine.world import World
from tests.unit.protocols.test_taskcluster_messages import REGISTRY, a_task, jsonschema


def schema(name: str):
    return jsonschema.Draft202012Validator({"$ref": f"{name}.json"}, registry=REGISTRY)


TASK, RESULT, RESOLUTION = schema("task"), schema("result"), schema("resolution")
WORKER = Worker("rack-1", "node-7", 1)


def a_definition(**changes) -> bytes:
    definition = {
        "version": "0.2.0",
        "provisioner_id": "aws",
        "worker_type": "ami",
        "routing": "a.b",
        "retries": 2,
        "priority": 2.5,
        "created": "2014-02-01T03:22:36.356Z",
        "deadline": "2014-03-01T03:22:36.356Z",
        "payload": {"command": ["true"]},
        "metadata": {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
        "tags": {"kind": "test"},
    }
    return json.dumps(definition | changes).encode()


def refusal(body: bytes) -> str:
    with pytest.raises(RestError) as refused:
        rest.read_task(body, "0" * 32, "127.0.0.1")
    assert refused.value.status == 400
    return f"{refused.value.message}: {refused.value.error}"


@pytest.mark.parametrize(
    "created",
    [
        "2014-02-01T03:22:36Z",
        "2014-02-01T03:22:36.356Z",
        "2014-02-01T03:22:36.356123456+01:00",
        "2014-02-01T03:22:36-08:00",
    ],
)
def test_dates_are_those_of_rfc_3339(created):
    """T39."""
    posted = a_definition(created=created, deadline=created)
    rest.read_task(posted, "0" * 32, "")
    TASK.validate(json.loads(posted))


@pytest.mark.parametrize(
    "created",
    [
        "20140201T032236Z",
        "2014-02-01 03:22:36Z",
        "2014-02-01T03:22:36",
        "2014-02-01T03:22Z",
        "2014-W05-6T03:22:36Z",
        "2014-02-31T03:22:36Z",
        "2014-02-01T03:22:36,5Z",
        "2014-02-01T03:22:36+01:00:30",
        f"2014-02-01T03:22:36.{'1' * 100_000}Z",
        "",
    ],
)
def test_other_dates_are_refused(created):
    """T39: messages carry what was created when, and their schema has one form for it."""
    for name in ("created", "deadline"):
        posted = a_definition(**{name: created})
        assert f"{name} must be" in refusal(posted)
        # What a schema cannot say is that February is short.
        is_day = "02-31" not in created
        assert TASK.is_valid(json.loads(posted)) is not is_day


@pytest.mark.parametrize("name", ["provisioner_id", "worker_type"])
@pytest.mark.parametrize("text", ["", "_", "a.b", "a/b", "x" * 37, "é" * 20])
def test_the_refusal_of_an_identifier_names_it_and_its_rule(name, text):
    """T39."""
    told = refusal(a_definition(**{name: text}))
    assert name in told
    assert "1 to 36" in told


@pytest.mark.parametrize("name", ["worker_group", "worker_id"])
def test_the_refusal_of_a_worker_names_what_is_wrong_with_it(name):
    with pytest.raises(RestError) as refused:
        rest.read_worker(json.dumps({"worker_group": "g", "worker_id": "w"} | {name: "a.b"}))
    assert refused.value.status == 400
    assert name in refused.value.message
    assert "1 to 36" in refused.value.message


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
        {"name": "n", "owner": "a@x", "maintainer": "b@x", "description": "what it does"},
    ],
)
def test_a_definition_is_kept_as_it_was_posted(metadata):
    """T38."""
    posted = a_definition(metadata=metadata)
    world = World()
    command = rest.read_task(posted, "0" * 31 + "1", "127.0.0.1")
    job = world.submit(replace(command, deadline_at=None))

    found = json.loads(rest.definition_of(job))
    assert found == json.loads(posted)
    TASK.validate(found)


def a_run(number: int):
    """A task that was claimed so many times."""
    world = World()
    a_task(world)
    job = world.claim("aws/ami", holder=Holder("taskcluster", "rack-1/node-7"))
    lease = job.lease
    assert lease is not None
    return replace(job, lease=replace(lease, number=number), lease_number=number)


def test_runs_above_the_last_number_are_called_by_it():
    """T8: the same in messages, in answers and in URLs."""
    job = a_run(1234)
    assert rest.run_id_of(job.lease_number) == 999

    assert rest.held_by(job, replace(WORKER, run_id=999)) is job.lease
    with pytest.raises(RestError) as refused:
        rest.held_by(job, replace(WORKER, run_id=1234))
    assert refused.value.status == 410
    assert rest.logs_of(job, 999)["logs"] == {}
    with pytest.raises(RestError):
        rest.logs_of(job, 1000)


def test_a_worker_that_speaks_of_another_run_is_told_which_one_it_is():
    """T35."""
    for wrong in (-1, 0, 1, 3, 10**30):
        with pytest.raises(RestError) as refused:
            rest.held_by(a_run(2), replace(WORKER, run_id=wrong))
        assert (refused.value.status, refused.value.message) == (
            410,
            f"this is run 2, not run {wrong}",
        )


PICKY = b'{"n": [1.10, 3.14159265358979323846, 1e400], "e": "\\u00e9"}'


def test_a_payload_is_kept_as_the_text_that_was_posted():
    """T39"""
    body = a_definition(payload={"here": 1}, deadline="2090-01-01T00:00:00Z")
    body = body.replace(b'{"here": 1}', PICKY)

    item = rest.read_task(body, "0" * 32, "")

    assert item.payload == PICKY
    job = World().submit(item)
    assert PICKY in rest.definition_of(job)


@pytest.mark.parametrize("payload", ["text", ["list"], 7, None])
def test_a_payload_is_an_object(payload):
    """T39"""
    assert "payload must be an object" in refusal(a_definition(payload=payload))


@pytest.mark.parametrize(
    ("payload", "encoding", "text"),
    [
        (b"hello", Encoding.BINARY, '{"value":"hello"}'),
        (b"", Encoding.BINARY, '{"value":""}'),
        (b"\xff\x00", Encoding.BINARY, '{"base64":"/wA="}'),
        (b'{"a": 1.10}', Encoding.JSON, '{"a": 1.10}'),
        (b"[1.10]", Encoding.JSON, '{"value":[1.10]}'),
    ],
)
@pytest.mark.parametrize("front", list(TERMS))
def test_a_job_of_another_protocol_has_a_definition(payload, encoding, text, front):
    """T38"""
    job = World().submit(
        queue="mail", payload=payload, encoding=encoding, terms=TERMS[front], tags=("red",)
    )

    definition = rest.definition_of(job)

    TASK.validate(json.loads(definition))
    assert f'"payload":{text}' in definition.decode()
    assert json.loads(definition)["worker_type"] == "mail"


@pytest.mark.parametrize(
    ("document", "payload", "encoding", "result"),
    [
        (b'{"result": {"a": 1.10}}', b"{}", Encoding.JSON, (b'{"a": 1.10}', Encoding.JSON)),
        (b'{"result": 1e400}', b"{}", Encoding.JSON, (b"1e400", Encoding.JSON)),
        (b'{"answer": 1.10}', b"{}", Encoding.JSON, (b'{"answer": 1.10}', Encoding.JSON)),
        (b'{"result": {"value": 7}}', b"{}", Encoding.JSON, (b'{"value": 7}', Encoding.JSON)),
        (b'{"result": {"value": 7}}', b"7", Encoding.JSON, (b"7", Encoding.JSON)),
        (b'{"result": {"value": "x"}}', b"", Encoding.BINARY, (b"x", Encoding.TEXT)),
        (b'{"result": "x"}', b"", Encoding.BINARY, (b"x", Encoding.TEXT)),
        (b'{"result": {"base64": "/wA="}}', b"", Encoding.TEXT, (b"\xff\x00", Encoding.BINARY)),
        (b'{"result": {"a": 1.10}}', b"", Encoding.TEXT, (b'{"a": 1.10}', Encoding.JSON)),
    ],
)
def test_an_uploaded_result_is_the_jobs_result(document, payload, encoding, result):
    """T41"""
    job = World().submit(payload=payload, encoding=encoding)

    assert rest.read_result(job, document) == result


@pytest.mark.parametrize(
    ("result", "encoding", "text"),
    [
        (b"\x00\xff", Encoding.BINARY, b'{"base64":"AP8="}'),
        (b'{"a": 1.10}', Encoding.JSON, b'{"a": 1.10}'),
        (b'{"a": 1.10}', Encoding.BINARY, b'{"value":"{\\"a\\": 1.10}"}'),
        (b"", Encoding.TEXT, b'{"value":""}'),
        (None, Encoding.BINARY, b"{}"),
    ],
)
def test_the_result_of_another_protocols_worker_is_shown_whole(result, encoding, text):
    """T38"""
    world = World()
    job = a_task(world)
    world.claim(job.queue, holder=Holder("gearman", "w"))

    done = world.complete(job.job_id, result=result, encoding=encoding)

    shown = msgspec.json.encode(rest.result_of(done, 1))
    assert b'"result":' + text in shown
    RESULT.validate(json.loads(shown))


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (Failure("failed", "it broke"), {"code": "failed", "message": "it broke"}),
        (failure_from_bytes("failed", b"it broke"), {"code": "failed", "message": "it broke"}),
        (
            Failure("failed", "it broke", b"\xff"),
            {"code": "failed", "message": "it broke", "data": {"base64": "/w=="}},
        ),
    ],
)
def test_a_resolution_says_what_went_wrong(failure, shown):
    """T35"""
    world = World()
    job = a_task(world)
    world.claim(job.queue)

    failed = world.fail(job.job_id, failure=failure)

    resolution = json.loads(msgspec.json.encode(rest.resolution_of(failed, "http://x")))
    assert resolution["failure"] == shown
    RESOLUTION.validate(resolution)


def test_a_worker_may_say_why_it_gives_up():
    """T35"""
    body = {"worker_group": "rack-1", "worker_id": "node-7", "run_id": 1}

    told = rest.read_failed(json.dumps(body | {"message": "no such image"}).encode())
    silent = rest.read_failed(json.dumps(body).encode())

    assert told == (WORKER, Failure("failed", "no such image"))
    assert silent == (WORKER, Failure("failed", ""))
