"""The qless API's words without a server: refusals, topics, statistics, bodies."""

import pytest

from manyhands.model.commands import ByHolder, ByToken
from manyhands.model.events import Event
from manyhands.model.job import (
    SUBMITTED,
    SUBMITTED_AGAIN,
    Attempt,
    EndReason,
    HistoryEntry,
    Holder,
    Job,
    Origin,
    State,
)
from manyhands.model.payload import Encoding, from_json_text
from manyhands.model.reasons import Reason
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.qless import builders, items, topics
from manyhands.protocols.qless.decoder import BadItem
from manyhands.protocols.qless.paths import RESERVED, count_of, segments
from manyhands.protocols.qless.refusals import CODES, problem, was_revoked
from manyhands.protocols.qless.statistics import DAY_MS, Statistics, bucket_of
from manyhands.site.document import APIS
from manyhands.web.envelope import Problem

NOON = 20_000 * DAY_MS + DAY_MS // 2
WORKER = Holder("qless", "w", "10.0.0.1")


def happened(state: State, at: int, lasted_ms: int = 0, **changes) -> Event:
    fields = {
        "at": at,
        "state": state,
        "job_id": "aa",
        "queue": "q",
        "reason": Reason.NONE,
        "incarnation": 0,
        "lease_number": 1,
        "attempts_used": 0,
        "attempts_max": 6,
        "holder": WORKER,
        "expires_at": None,
        "priority": 0.0,
        "submitted_at": at,
        "deadline_at": None,
        "origin": Origin("qless"),
        "lasted_ms": lasted_ms,
    }
    return Event(**{**fields, **changes})


def test_every_refusal_has_a_code_and_an_error_status():
    assert set(CODES) == set(Why)
    for why in Why:
        assert 400 <= problem(Refusal(why, "no")).status < 600


def test_qb49_wait_and_run_of_twenty_jobs():
    """Twenty jobs at 0 to 19 seconds: count, mean, deviation and a histogram of ones."""
    figures = Statistics()
    for second in range(20):
        figures.fold([happened(State.LEASED, NOON, second * 1000)])
        figures.fold([happened(State.COMPLETED, NOON, second * 1000)])

    shown = figures.day("q", 20_000).shown()

    for series in (shown["wait"], shown["run"]):
        assert (series["count"], series["mean"]) == (20, 9.5)
        assert series["std"] == pytest.approx(5.916, abs=0.001)
        assert series["histogram"][:20] == [1] * 20
        assert sum(series["histogram"]) == 20
        assert len(series["histogram"]) == 60 + 59 + 23 + 6


def test_qb49_a_run_counts_for_the_queue_that_was_left():
    figures = Statistics()
    moved = {"queue": "next", "left_queue": "q", "reason": Reason.ADVANCED}
    figures.fold([happened(State.READY, NOON, 3000, **moved)])

    assert figures.day("q", 20_000).shown()["run"]["count"] == 1
    assert figures.day("next", 20_000).shown()["run"]["count"] == 0


def test_qb50_failed_falls_and_failures_stay_on_the_original_day():
    figures = Statistics()
    for job_id in ("a1", "a2", "a3"):
        figures.fold([happened(State.FAILED, NOON, job_id=job_id, reason=Reason.FAILED)])
    figures.fold([happened(State.READY, NOON + DAY_MS, job_id="a1", reason=Reason.REQUEUED)])
    figures.fold([happened(State.CANCELLED, NOON + DAY_MS, job_id="a2")])

    shown = figures.day("q", 20_000).shown()
    assert (shown["failed"], shown["failures"]) == (1, 3)
    assert figures.day("q", 20_001).shown()["failures"] == 0
    figures.forget_before(20_001)
    assert figures.day("q", 20_000).shown()["failures"] == 0


def test_retries_are_counted_and_renewals_are_not_waits():
    figures = Statistics()
    figures.fold([happened(State.READY, NOON, reason=Reason.LAPSED)])
    figures.fold([happened(State.LEASED, NOON, reason=Reason.RENEWED)])
    figures.fold([happened(State.DELAYED, NOON, reason=Reason.RETRY)])

    shown = figures.day("q", 20_000).shown()
    assert (shown["retries"], shown["wait"]["count"]) == (2, 0)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0, 0), (59, 59), (60, 60), (3599, 118), (3600, 119), (86_399, 141), (86_400, 142)],
)
def test_buckets_are_seconds_then_minutes_then_hours_then_days(seconds, bucket):
    assert bucket_of(seconds) == bucket
    assert bucket_of(10**9) == 147


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "a.b.c", True),
        ("#.b", "a.b.c", False),
        ("a.*.c", "a.b.c", True),
        ("a.*", "a.b.c", False),
        ("*", "", True),
        ("a.#.#.c", "a.c", True),
        ("a.#.b.#.c", "a.x.b.y.z.c", True),
        ("a.b", "a.b.c", False),
    ],
)
def test_patterns_are_those_of_amqp_topics(pattern, key, fits):
    assert topics.is_wanted(key.split("."), topics.read_patterns(pattern)) is fits
    assert topics.is_wanted(key.split("."), ()) is True


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("," * 60, "at most 50 patterns"),
        ("x" * 2000, "at most 1024 characters"),
        ("#," + "#." * 131 + "zz", "at most 131 words"),
    ],
)
def test_too_many_patterns_and_too_long_ones_are_refused(text, sentence):
    with pytest.raises(Problem, match=sentence):
        topics.read_patterns(text)


def test_a_lock_that_somebody_else_ended_is_known_by_its_last_attempt():
    def job(reason: EndReason, holder: Holder = WORKER) -> Job:
        attempt = Attempt(1, holder, 0, 1, reason, "token")
        return Job(job_id="aa", queue="q", state=State.READY, attempts=(attempt,))

    mine = ByHolder("qless", "w", "10.0.0.1")
    assert was_revoked(job(EndReason.CUTOFF), mine)
    assert was_revoked(job(EndReason.MOVED), ByToken("token"))
    assert not was_revoked(job(EndReason.MOVED), ByToken("other"))
    assert not was_revoked(job(EndReason.FAILED), mine)
    assert not was_revoked(job(EndReason.CUTOFF), ByHolder("qless", "v", "10.0.0.1"))
    assert not was_revoked(job(EndReason.CUTOFF), ByHolder("dwork", "w", ""))
    anonymous = Holder("qless", None, "10.0.0.1")
    assert was_revoked(job(EndReason.CUTOFF, anonymous), ByHolder("qless", None, "10.0.0.1"))
    assert not was_revoked(Job(job_id="aa", queue="q", state=State.READY), mine)


def test_a_path_is_split_before_it_is_decoded():
    assert segments(b"/get/a%2Fb/5") == [b"get", b"a%2Fb", b"5"]
    assert segments(b"/get/q/") == [b"get", b"q"]
    assert segments(b"/get/q//") == [b"get", b"q", b""]
    assert segments(b"/") == [b""]


def test_every_first_segment_of_ours_is_reserved():
    endpoints = {route.path.split("/")[1] for api in APIS for route in api.routes}
    others = {"ui", "static", "favicon.ico", "robots.txt", "schemas"}

    assert (endpoints - {"", "{queue}"}) | others <= RESERVED


def test_a_count_is_clamped_and_never_read_as_a_giant():
    assert count_of(b"5", 10) == 5
    assert count_of(b"9" * 1_000_000, 10) == 10
    assert count_of(b"0007", 10) == 7


def test_a_good_batch_with_one_bad_item_keeps_the_good_ones():
    body = b'{"data": [{"meta": 1}, 7, {"meta": 2, "priority": "x"}, {"id": 5, "meta": 1}]}'

    found, host = items.ADD.read(body, 10)

    assert host is None
    assert isinstance(found[0], items.AddItem)
    assert [item.code for item in found[1:] if isinstance(item, BadItem)] == [
        "invalid_item",
        "invalid_option",
        "invalid_id",
    ]


@pytest.mark.parametrize(
    ("text", "like", "payload", "encoding"),
    [
        (b'"abc"', Encoding.JSON, b'"abc"', Encoding.JSON),
        (b'"abc"', Encoding.TEXT, b"abc", Encoding.TEXT),
        (b'{"base64": "/wA="}', Encoding.BINARY, b"\xff\x00", Encoding.BINARY),
        (b'{"base64": 5}', Encoding.BINARY, b'{"base64": 5}', Encoding.JSON),
        (b'{"base64": "?"}', Encoding.TEXT, b'{"base64": "?"}', Encoding.JSON),
        (b"[1]", Encoding.BINARY, b"[1]", Encoding.JSON),
    ],
)
def test_what_a_json_peer_gives_back_is_what_the_other_end_understands(
    text, like, payload, encoding
):
    assert from_json_text(text, like) == (payload, encoding)


def a_story(*, claimed_at: int, ended_at: int, changes: list[tuple[int, str]]) -> list[str]:
    """What the history of a job tells that was submitted at 1 and worked on once."""
    attempt = Attempt(1, Holder("qless", "h"), claimed_at, ended_at, EndReason.COMPLETED)
    job = Job(
        job_id="ab",
        queue="q",
        state=State.COMPLETED,
        submitted_at=1,
        finished_at=ended_at,
        attempts=(attempt,),
        history=tuple(HistoryEntry(at, what) for at, what in changes),
    )
    return [row["what"] for row in builders.history(job)]


@pytest.mark.parametrize(
    ("claimed_at", "ended_at"), [(1, 5), (4, 5), (5, 5)], ids=["apart", "near", "at once"]
)
def test_what_happens_in_one_millisecond_is_told_in_the_order_in_which_it_can_happen(
    claimed_at, ended_at
):
    changes = [(5, "requeued"), (5, "moved")]

    told = a_story(claimed_at=claimed_at, ended_at=ended_at, changes=changes)

    assert told == ["put", "popped", "done", "requeued", "moved"]


def test_a_job_that_was_put_taken_and_done_in_one_millisecond_was_put_first():
    told = a_story(claimed_at=1, ended_at=1, changes=[(1, SUBMITTED), (1, SUBMITTED_AGAIN)])

    assert told == ["put", "popped", "done", "put"]


def test_a_job_that_was_moved_in_the_millisecond_of_its_claim_was_moved_before():
    assert a_story(claimed_at=3, ended_at=5, changes=[(3, "moved")]) == [
        "put",
        "moved",
        "popped",
        "done",
    ]
