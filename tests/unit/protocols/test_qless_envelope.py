"""What becomes of a defect of our own: that peer hears of it, with a number that is in the log."""

import json
from types import SimpleNamespace

import pytest

from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials
from manyhands.dispatch.ids import Ids
from manyhands.net.http_short_way import Head, Request
from manyhands.protocols.qless.envelope import Answering, Load
from manyhands.web.admission import Admission
from manyhands.web.envelope import Problem
from tests.captured_logs import capture_logs

DISPATCHER = SimpleNamespace(ask=None, clock=SimpleNamespace(monotonic_ms=lambda: 5.0))


class Sent(Request):
    """A request that keeps what it was answered."""

    def __init__(self, query: bytes = b"") -> None:
        connection = SimpleNamespace(
            is_lost=False,
            credentials=lambda _headers: Credentials(),
            connection=SimpleNamespace(address=""),
        )
        super().__init__(connection, Head("GET", (b"/get/q", query), {b"host": b"h"}))
        self.answers: list[tuple[int, dict, dict]] = []

    def send(self, status, body, headers) -> None:
        self.answers.append((status, json.loads(body), dict(headers)))


@pytest.fixture
def answering():
    found = Answering(
        DISPATCHER,
        Ids(),
        Admission(SimpleNamespace(callers=Callers()), SimpleNamespace(), lambda: 0.0),
        load_always=False,
    )
    found.defences = SimpleNamespace(
        check=lambda _headers, *, host_needed: host_needed, check_taking=lambda _headers: None
    )
    return found


def test_a_defect_is_an_answer_with_a_number_that_is_in_the_log(answering):
    def broken(_):
        raise ZeroDivisionError

    on_arrival, on_reply = Sent(), Sent()

    with capture_logs() as logs:
        answering.guarded(broken)(on_arrival)
        answering.ask(on_reply, [], broken)

    for sent, logged in zip((on_arrival, on_reply), logs, strict=True):
        [(status, body, _)] = sent.answers
        assert (status, body["results"], body["error"]["code"]) == (500, None, "internal")
        assert body["error"]["detail"]["request_id"] == logged["request_id"]
        assert logged["log_level"] == "error"


@pytest.mark.parametrize(
    ("status", "header"), [(503, b"retry-after"), (429, b"retry-after"), (405, b"allow")]
)
def test_an_error_says_what_to_do_about_it(answering, status, header):
    sent = Sent()

    answering.fail(sent, Problem(status, "some_code", "a sentence"))

    assert header in sent.answers[0][2]


@pytest.mark.parametrize(
    ("query", "told"),
    [(b"load=1", True), (b"a=b&load=1", True), (b"load=0", False), (b"workload=1", False)],
)
def test_the_load_is_told_to_those_who_ask_for_it(answering, query, told):
    sent = Sent(query)

    answering.answer(sent, None)

    assert ("load" in sent.answers[0][1]) is told


def test_the_load_is_looked_at_once_a_second():
    now = [0.0]
    load = Load(lambda: now[0])
    first = load.sample()

    now[0] = 999.0
    assert load.sample() is first
    now[0] = 1_000.0
    assert load.sample() is not first
