"""The native API's words: every refusal has one, every body is read strictly."""

import json
from typing import get_args, get_type_hints

import msgspec
import pytest

from manyhands.config import LISTENERS
from manyhands.model.commands import ByToken, Complete, Fail, Renew
from manyhands.model.job import Holder, Job, Lease, Origin, State
from manyhands.model.payload import Encoding, as_json_value
from manyhands.model.policy import TERMS, Backoff, QueuePolicy, Rate
from manyhands.model.replies import Refusal, Why
from manyhands.observe.history import RANGES
from manyhands.protocols.native import answers, bodies, builders, settings
from manyhands.protocols.native.decoder import Batch, check_payload, decode
from manyhands.protocols.native.operations import OPERATIONS
from manyhands.protocols.native.refusals import STATUSES, item_error, problem
from manyhands.store.bulk import BulkAction, BulkState
from manyhands.web.envelope import Problem, encode, envelope, error_envelope

ORIGIN = Origin("native")


def new_job(**item):
    found = bodies.SUBMIT.read(json.dumps({"queue": "work", **item}).encode())
    return found.new_job("ab" * 16, ORIGIN)


def refused(read, body: bytes) -> tuple[int, str, str]:
    with pytest.raises(Problem) as raised:
        read(body)
    return raised.value.status, raised.value.code, raised.value.message


def test_every_refusal_has_a_status_that_is_an_error():
    assert set(STATUSES) == set(Why)
    assert all(400 <= status < 600 for status in STATUSES.values())


def test_a_refusal_names_the_job_that_it_is_about():
    job = Job(job_id="aa", queue="work", state=State.READY)

    found = problem(Refusal(Why.DUPLICATE_JOB, "it is there already", job))

    assert (found.status, found.code) == (409, "duplicate_job")
    assert found.detail == {"id": "aa", "queue": "work", "state": "ready"}
    entry = item_error(3, "aa", Refusal(Why.DUPLICATE_JOB, "it is there already", job))
    assert (entry.index, entry.state) == (3, "ready")


def test_a_payload_is_kept_as_the_json_text_that_was_sent():
    item = bodies.SUBMIT.read(b'{"queue":"q","payload":{"n": 18446744073709551617,"x":1.10}}')

    job = item.new_job("aa", ORIGIN)

    assert job.payload == b'{"n": 18446744073709551617,"x":1.10}'
    assert job.encoding is Encoding.JSON


@pytest.mark.parametrize(
    ("encoding", "value", "payload"),
    [
        ("json", "text", b'"text"'),
        ("json", None, b"null"),
        ("text", "grüße", "grüße".encode()),
        ("binary", "plain", b"plain"),
        ("binary", {"base64": "/wA="}, b"\xff\x00"),
    ],
)
def test_a_payload_that_was_shown_can_be_sent_back(encoding, value, payload):
    job = new_job(payload=value, encoding=encoding)

    assert job.payload == payload
    shown = encode(as_json_value(job.payload, job.encoding))
    assert json.loads(shown) == value


def test_a_job_without_a_payload_has_an_empty_one():
    assert (new_job().payload, new_job().encoding) == (b"", Encoding.BINARY)


def test_a_job_without_wishes_shares_the_terms_of_all_others():
    assert new_job().terms is TERMS["native"]
    assert new_job(attempts_max=3, backoff={"first_ms": 5}).terms.backoff == Backoff(first_ms=5)


def test_a_chosen_id_is_kept_in_lower_case():
    job = new_job(id="DEADBEEF1", depends_on=["AB"])

    assert (job.job_id, job.id_chosen, job.depends_on) == ("deadbeef1", True, ("ab",))


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", "invalid_json", "no body"),
        (b"{", "invalid_json", "truncated"),
        (b'{"queue": NaN}', "invalid_json", "malformed"),
        (b'{"queue": "q", "payload": "\xff"}', "invalid_json", "UTF-8"),
        (b'{"queue": "q", "payload": ' + b"[" * 9999 + b"]" * 9999 + b"}", "invalid_json", "deep"),
        (b"[]", "invalid_body", "object"),
        (b"{}", "invalid_body", "queue"),
        (b'{"queue": 7}', "invalid_body", "queue"),
        (b'{"queue": "q", "prioritty": 7}', "invalid_body", "prioritty"),
        (b'{"queue": "q", "backoff": {"frist_ms": 7}}', "invalid_body", "frist_ms"),
        (b'{"items": [{"queue": "q"}, {}]}', "invalid_body", "items[1]"),
        (b'{"items": [], "queue": "q"}', "invalid_body", "queue"),
    ],
)
def test_a_wrong_body_is_answered_with_a_sentence(body, code, words):
    status, found, sentence = refused(bodies.SUBMIT.read, body)

    assert (status, found) == (400, code)
    assert words in sentence


@pytest.mark.parametrize(
    "item",
    [
        {"payload": 7, "encoding": "text"},
        {"payload": {"base64": 7}, "encoding": "binary"},
        {"payload": {"base64": "%%"}, "encoding": "binary"},
        {"payload": {"other": "/w=="}, "encoding": "binary"},
    ],
)
def test_a_payload_that_does_not_fit_its_encoding_is_refused(item):
    with pytest.raises(Problem) as raised:
        new_job(**item)

    assert raised.value.code == "invalid_body"


def test_a_batch_may_not_have_more_items_than_one_command_takes():
    body = json.dumps({"items": [{"queue": "q"}] * 10_001}).encode()

    assert refused(bodies.SUBMIT.read, body)[:2] == (413, "batch_too_large")


def test_the_configured_bound_of_a_payload_holds():
    with pytest.raises(Problem) as raised:
        check_payload(new_job(payload="x" * 100), 100)

    assert (raised.value.status, raised.value.code) == (413, "payload_too_large")
    check_payload(new_job(payload="x" * 98), 100)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "q", "count": 0},
        {"queue": "q", "count": 10_001},
        {"queue": "q", "wait": -1},
        {"queue": "q", "wait": 301},
        {"queue": "q", "term_ms": -1},
        {"queue": "q", "worker": ""},
        {"queue": "q", "worker": "a\nb"},
    ],
)
def test_a_claim_that_cannot_be_meant_is_refused(body):
    with pytest.raises(Problem):
        decode(bodies.CLAIM, json.dumps(body).encode()).check()


def test_a_claim_honours_the_jobs_term_unless_it_names_one():
    plain = decode(bodies.CLAIM, b'{"queue":"a","queues":["b"]}').claim(("t",), "::1")
    given = decode(bodies.CLAIM, b'{"queue":"a","term_ms":0}').claim(("t",), "::1")

    assert plain.queues == ("a", "b")
    assert (plain.term_ms, plain.term_of_job) == (60_000, True)
    assert (given.term_ms, given.term_of_job) == (0, False)
    assert plain.holder == Holder("native", None, "::1")


def test_operations_prove_a_lease_by_its_token():
    body = b'{"items": [{"id": "AB", "token": "t", "result": [1]}]}'
    batch = OPERATIONS["complete"].read(body)
    assert isinstance(batch, Batch)

    [command] = [item.command() for item in batch.items]

    assert command == Complete(
        job_id="ab", proof=ByToken("t"), result=b"[1]", encoding=Encoding.JSON
    )
    renew = OPERATIONS["renew"].read(b'{"id": "ab", "token": "t"}').command()
    assert isinstance(renew, Renew)
    assert renew.payload is None
    fail = OPERATIONS["fail"].read(b'{"id": "ab", "token": "t", "message": "no"}').command()
    assert isinstance(fail, Fail)
    assert fail.retry


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_wants_an_id(name):
    assert refused(OPERATIONS[name].read, b"{}")[1] == "invalid_body"


def test_a_policy_is_set_as_plain_values():
    body = decode(
        settings.QUEUE, b'{"policy": {"rate": {"count": 5, "per_ms": 1000}, "lease_ms": 9}}'
    )

    command = body.command("work", if_absent=False)

    assert command.paused is None
    assert command.policy == QueuePolicy(rate=Rate(5, 1000), lease_ms=9)
    assert type(command.policy.rate) is Rate
    assert (
        decode(settings.QUEUE, b'{"paused": true}').command("work", if_absent=False).policy is None
    )


def test_a_schedule_has_an_interval_or_a_cron_line():
    for body in (b'{"queue":"q"}', b'{"queue":"q","interval_ms":1,"cron":"* * * * *"}'):
        with pytest.raises(Problem):
            decode(settings.SCHEDULE, body).check()
    body = decode(settings.SCHEDULE, b'{"queue":"q","cron":"* * * * *","payload":{"a":1}}')
    body.check()

    schedule = body.schedule("nightly", 5)

    assert (schedule.schedule_id, schedule.next_at, schedule.payload) == ("nightly", 5, b'{"a":1}')


def test_no_token_is_shown_to_those_who_only_look():
    lease = Lease("secret", 1, Holder("native", "w"), 0)
    job = Job(job_id="aa", queue="work", state=State.LEASED, lease=lease, payload=b"\xff")

    assert b"secret" not in encode([builders.whole(job), builders.listed(job)])
    assert builders.claimed(job).token == "secret"
    assert json.loads(encode(builders.whole(job)))["payload"] == {"base64": "/w=="}


def test_an_error_has_no_results_and_a_success_has_no_error():
    good = json.loads(envelope(None, 1.23456))
    bad = json.loads(error_envelope(Problem(404, "gone", "it is gone", {"a": 1}), 0.5))

    assert good == {"results": None, "time": {"total": 1.235}}
    assert bad["results"] is None
    assert bad["error"] == {"code": "gone", "message": "it is gone", "detail": {"a": 1}}


def test_what_a_job_shows_is_json_whatever_its_bytes_are():
    for payload, encoding in ((b"{}", Encoding.JSON), (b"\xff", Encoding.TEXT), (b"x", "binary")):
        job = Job(
            job_id="aa",
            queue="q",
            state=State.COMPLETED,
            payload=payload,
            encoding=Encoding(encoding),
            result=payload,
            result_encoding=Encoding(encoding),
            unique_key=payload,
        )

        msgspec.json.decode(encode(builders.whole(job)))


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        (answers.Action, BulkAction),
        (get_type_hints(answers.Bulk)["state"], BulkState),
        (get_type_hints(answers.Stepped)["range"], RANGES),
        (
            get_type_hints(answers.Listener)["protocol"],
            {name for name in LISTENERS if not name.endswith(("_tls", "_curve", "cluster"))},
        ),
    ],
)
def test_an_answer_knows_every_word_that_the_server_has(shown, kept):
    assert set(get_args(shown)) == set(kept)
