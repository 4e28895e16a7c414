"""The stream (S1), over a WebSocket of other people."""

import json
import signal

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from tests.e2e.serving import SECONDS_MAX, Api, serving, start, wait_until
from tests.e2e.stream_talk import (
    ANSWER,
    CANCEL,
    CLOSING,
    DEPART,
    ENDED,
    HEARD,
    HELLO,
    JOBS,
    LOOK,
    NEWS,
    NOTICE,
    SUBMIT,
    VOUCH,
    WANT,
    WATCH,
    WORK,
    Talk,
    new_id,
    talking,
)

STORES = ("memory", "postgresql")
_NOTHING = -1  # no note is of that kind


def item(queue: str, payload: bytes = b"{}", encoding: str = "json", options=None) -> list:
    return [new_id(), queue, payload, encoding, options]


def worker_of(talk: Talk, queue: str, slots: int = 0, ahead: int = 0) -> None:
    """Wants work of one queue."""
    assert talk.result(WANT, [queue]) is None
    assert talk.result(WORK, [], [], [], [], [slots, ahead]) == []


def closed_with(talk: Talk) -> tuple[int, str]:
    """The code and the sentence that the server closes with."""
    with pytest.raises(ConnectionClosed) as found:
        talk.next(_NOTHING)
    assert found.value.rcvd is not None
    return found.value.rcvd.code, found.value.rcvd.reason


# Opening.


def test_st1_a_stream_is_opened_and_told_its_bounds(served):
    """S1, P21, P24. ST7, too."""
    with talking(served, greeted=False) as talk:
        assert talk.socket.subprotocol == "manyhands.1"

        found = talk.hello()

    assert found["limits"]["items"] == 500
    assert found["limits"]["message_bytes"] == found["limits"]["payload_bytes"] + 1024 * 1024
    assert found["gone"] == []
    assert found["server"]
    assert found["incarnation"]


@pytest.mark.parametrize("subprotocols", [None, ["manyhands.2"]])
def test_st1_another_subprotocol_is_refused_with_426(served, subprotocols):
    with (
        pytest.raises(InvalidStatus) as found,
        talking(served, subprotocols=subprotocols, greeted=False),
    ):
        pass

    response = found.value.response
    assert response.status_code == 426
    assert response.headers["Upgrade"] == "websocket"
    assert response.headers["Sec-WebSocket-Version"] == "13"
    assert "manyhands.1" in json.loads(response.body)["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_st1_an_ordinary_request_is_told_what_is_needed(api, method):
    response = api.http.request(method, "/api/stream")

    assert response.status_code == 426
    assert response.headers["Upgrade"] == "websocket"
    assert api.post("stream").status_code == 405


def test_st1_pages_of_other_sites_open_no_stream(served):
    with (
        pytest.raises(InvalidStatus) as found,
        talking(served, origin="https://elsewhere.example", greeted=False),
    ):
        pass

    assert found.value.response.status_code == 403
    with talking(served, origin=served.url) as talk:
        assert talk.result(LOOK, []) == []


def test_st1_a_token_is_needed_where_all_of_http_needs_one(tmp_path):
    (tmp_path / "tokens").write_text(
        "operator:ada:ada-has-a-s3cret-of-hers\nread-only:wall:the-wall-has-an0ther-one\n"
    )
    (tmp_path / "tokens").chmod(0o600)
    arguments = ("--store", "memory", "--tokens-file", str(tmp_path / "tokens"))
    with serving(tmp_path, *arguments) as served:
        statuses = []
        for token in ("", "Bearer wrong", "Bearer the-wall-has-an0ther-one"):
            headers = {"Authorization": token} if token else {}
            with (
                pytest.raises(InvalidStatus) as found,
                talking(served, additional_headers=headers, greeted=False),
            ):
                pass
            statuses.append(found.value.response.status_code)
        headers = {"Authorization": "Bearer ada-has-a-s3cret-of-hers"}
        with talking(served, additional_headers=headers) as talk:
            job_id = talk.submit(item("q"))[0]
            talk.result(CANCEL, [job_id])
        api = Api(served)
        api.http.headers["Authorization"] = "Bearer ada-has-a-s3cret-of-hers"
        audit = api.get("audit")
        api.close()

    assert statuses == [401, 401, 403]
    assert [(entry["who"], entry["what"], entry["target"]) for entry in audit] == [
        ("ada", "cancel", job_id),
        ("wall", "work", ""),  # not let in
        ("", "log in with a token", ""),
        ("", "work", ""),
    ]


# Notes.


def test_st4_everything_before_hello_closes_the_stream(served):
    """P22."""
    with talking(served, greeted=False) as talk:
        talk.send([LOOK, 1, []])

        assert closed_with(talk) == (CloseCode.PROTOCOL_ERROR, "the first note is a hello")


@pytest.mark.parametrize(
    "message",
    ["text", b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([[]])],
    ids=["text", "empty", "no-msgpack", "a-map", "a-note-of-nothing"],
)
def test_st4_what_is_no_message_of_notes_closes_the_stream_with_a_sentence(served, message):
    with talking(served) as talk:
        talk.socket.send(message)

        code, sentence = closed_with(talk)

    assert code == CloseCode.PROTOCOL_ERROR
    assert sentence


def test_st4_a_note_of_an_unknown_kind_is_answered_with_an_error_and_nothing_else_happens(served):
    """P22."""
    with talking(served) as talk:
        assert talk.ask(99, "whatever")[0][0] == "unknown_kind"
        assert talk.ask(SUBMIT, "no list")[0][0] == "invalid_note"
        assert talk.ask(HELLO, 1)[0][0] == "invalid_note"
        assert talk.result(LOOK, []) == []


def test_st4_a_hello_of_another_version_closes_the_stream(served):
    with talking(served, greeted=False) as talk:
        talk.send([HELLO, 1, 2, "tests"])

        assert closed_with(talk)[0] == CloseCode.PROTOCOL_ERROR


def test_st4_fields_that_are_appended_are_ignored(served, queue):
    with talking(served) as talk:
        assert talk.result(SUBMIT, [[*item(queue), None, "later"]], False, False, "later") == []


def test_st4_answers_to_what_came_in_one_message_leave_in_one_message(served, queue):
    with talking(served) as talk:
        before = talk.messages_count
        talk.send(*([SUBMIT, number, [item(queue)]] for number in range(100, 110)))

        numbers = [talk.next(ANSWER)[1] for _ in range(10)]

        assert numbers == list(range(100, 110))
        assert talk.messages_count - before <= 2


def test_st6_answers_come_in_the_order_of_the_requests(served, queue):
    """P23."""
    with talking(served) as talk:
        job_id = talk.submit(item(queue))[0]
        notes = [[LOOK, 1_000 + number, [job_id]] for number in range(0, 300, 2)]
        notes += [[SUBMIT, 1_001 + number, [item(queue)]] for number in range(0, 300, 2)]
        notes.sort(key=lambda note: note[1])

        talk.send(*notes)

        assert [talk.next(ANSWER)[1] for _ in notes] == [note[1] for note in notes]


def test_st6_a_note_without_a_number_has_no_answer_unless_it_is_refused(served, api, queue):
    with talking(served) as talk:
        job = item(queue)
        talk.send([SUBMIT, 0, [job]], [99, 0])

        assert talk.next(ANSWER)[1:3] == [0, ["unknown_kind", "there is no note of kind 99"]]
        # Nothing says when it is decided.
        wait_until(lambda: talk.result(LOOK, [job[0]])[0][1] == "ready")
        assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


# Submitting.


def test_st7_a_note_over_a_bound_is_refused_by_name_and_the_stream_stays(served, api, queue):
    with talking(served) as talk:
        many = [item(queue) for _ in range(501)]

        assert talk.ask(SUBMIT, many)[0][0] == "batch_too_large"
        assert talk.result(SUBMIT, many, True) == []
        assert talk.ask(LOOK, [new_id()] * 501)[0][0] == "batch_too_large"
        assert api.get(f"queues/{queue}")["counts"]["ready"] == 501


def test_st7_a_message_that_is_too_long_closes_the_stream_with_1009(tmp_path):
    with (
        serving(tmp_path, "--store", "memory", "--payload-bytes-max", "1000") as served,
        talking(served) as talk,
    ):
        assert talk.ask(SUBMIT, [item("q", b"x" * 1001, "binary")])[0][0] == "payload_too_large"
        talk.send([SUBMIT, 9, [item("q", b"x" * (1024 * 1024 + 1000), "binary")]])

        code, sentence = closed_with(talk)

    assert code == CloseCode.MESSAGE_TOO_BIG
    assert sentence


def test_st8_jobs_have_the_options_of_the_api(served, api, queue):
    options = {"priority": 5, "delay_ms": 60_000, "tags": ["a"], "unique_key": "k"}
    with talking(served) as talk:
        first, second = item(queue, b"\xff", "binary", options), item(queue, options=options)

        result = talk.result(SUBMIT, [first, second])

        assert result == [[1, None, None, first[0], "delayed"]]
        job = api.get(f"jobs/{first[0]}")
        assert (job["priority"], job["tags"], job["state"]) == (5, ["a"], "delayed")
        assert job["payload"] == {"base64": "/w=="}


def test_st9_an_item_that_is_refused_is_named_and_the_others_are_accepted(served, api, queue):
    with talking(served) as talk:
        result = talk.result(SUBMIT, [item(queue), item(""), item(queue)])

        assert [row[:2] for row in result] == [[1, "bad_queue_name"]]
        assert api.get(f"queues/{queue}")["counts"]["ready"] == 2


@pytest.mark.parametrize(
    ("payload", "encoding", "options"),
    [
        (b"{", "json", None),
        (b"\xff", "text", None),
        (b"", "yaml", None),
        (b"{}", "json", {"priorty": 1}),
        (b"{}", "json", {"priority": "high"}),
        (b"{}", "json", "no map"),
    ],
)
def test_st8_an_item_that_is_not_what_it_says_is_refused_with_a_sentence(
    served, api, queue, payload, encoding, options
):
    with talking(served) as talk:
        error, result = talk.ask(SUBMIT, [item(queue), item(queue, payload, encoding, options)])

    assert error[0] == "invalid_note"
    assert "item 1" in error[1]
    assert result is None
    assert queue not in [row["name"] for row in api.get("queues")]


def test_st8_a_worker_gets_the_headers_of_options_and_item(served, queue):
    """S3."""
    options = {"headers": {"task": "resize", "trace": "all"}}
    with talking(served) as client, talking(served, "w1") as talk:
        rows = [
            [*item(queue, options=options), {"trace": "one"}],
            item(queue, options=options),
            [*item(queue), {"trace": "two"}],
            item(queue),
        ]
        ids = client.submit(*rows)
        worker_of(talk, queue, slots=10)
        jobs = talk.jobs(4)

    assert [(job[0], job[8]) for job in jobs] == list(
        zip(
            ids,
            [
                {"task": "resize", "trace": "one"},
                {"task": "resize", "trace": "all"},
                {"trace": "two"},
                None,
            ],
            strict=True,
        )
    )


@pytest.mark.parametrize(("headers", "code"), [({"a": 1}, "invalid_note"), ({"": "x"}, None)])
def test_st8_headers_that_are_not_a_flat_map_of_strings_are_refused(served, queue, headers, code):
    with talking(served) as talk:
        error, result = talk.ask(SUBMIT, [[*item(queue), headers]])

    if code is not None:
        assert error[0] == code
    else:
        assert result[0][:2] == [0, "bad_header"]


def test_st8_a_submit_that_is_said_twice_makes_one_job(served, api, queue):
    row = item(queue, options={"on_existing": "keep"})
    with talking(served) as talk:
        assert talk.result(SUBMIT, [row]) == []
        assert talk.result(SUBMIT, [row]) == [[0, None, None, row[0], "ready"]]

    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


def test_what_was_answered_survives_a_kill(tmp_path):
    served = start(tmp_path)
    with talking(served) as talk:
        ids = talk.submit(*(item("q") for _ in range(50)))
        served.stop(signal.SIGKILL)
    with serving(tmp_path) as again, talking(again) as talk:
        states = [view[1] for view in talk.result(LOOK, ids)]

    assert states == ["ready"] * 50


def test_p13_a_submit_that_joined_and_is_repeated_after_the_end_makes_a_job(served, queue):
    """As a later caller's submit would."""
    options = {"unique_key": "k", "on_existing": "keep"}
    first, second = item(queue, options=options), item(queue, options=options)
    with talking(served) as talk:
        talk.result(SUBMIT, [first])
        assert talk.result(SUBMIT, [second]) == [[0, None, None, first[0], "ready"]]
        assert talk.result(SUBMIT, [second]) == [[0, None, None, first[0], "ready"]]
        talk.result(CANCEL, [first[0]])

        assert talk.result(SUBMIT, [second]) == []
        assert talk.result(LOOK, [second[0]])[0][1] == "ready"


# Working.


def test_st12_a_worker_is_given_what_there_is_in_one_note(served, queue):
    """P26."""
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(*(item(queue, b'{"n":1}') for _ in range(5)))

        worker_of(talk, queue, slots=10)
        note = talk.next(JOBS)

    assert [row[0] for row in note[1]] == ids
    _, _, token, number, used, payload, encoding, term_ms, headers, extras = note[1][0]
    assert (number, used, payload, encoding, term_ms) == (1, 0, b'{"n":1}', "json", 30_000)
    assert len(token) == 32
    assert headers is None
    assert extras is None


def test_st12_a_sleeping_worker_hears_of_new_work(served, queue):
    """P26."""
    with talking(served) as client, talking(served, "w1") as talk:
        worker_of(talk, queue, slots=2)

        ids = client.submit(item(queue), item(queue), item(queue))

        assert [row[0] for row in talk.jobs(2)] == ids[:2]
        assert talk.result(WORK, [], [], [], [], [1, 0]) == []
        assert [row[0] for row in talk.jobs(1)] == ids[2:]


def test_p24_large_payloads_are_handed_out_in_several_notes(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        for _ in range(12):
            client.submit(item(queue, b"x" * 3_000_000, "binary"))

        worker_of(talk, queue, slots=12)
        notes: list[list] = []
        while sum(len(note[1]) for note in notes) < 12:
            notes.append(talk.next(JOBS))

    assert max(sum(len(row[5]) for row in note[1]) for note in notes) <= 16 * 1024 * 1024


def test_st12_jobs_carry_what_few_of_them_have(served, queue):
    options = {"priority": 3, "tags": ["t"], "attempt_ms_max": 5_000, "namespace": "n"}
    with talking(served) as client, talking(served, "w1") as talk:
        client.submit(item(queue, options={**options, "name": queue}))
        worker_of(talk, queue, slots=1)

        row = talk.jobs(1)[0]

    assert 0 < row[9].pop("cutoff_ms") <= 5_000
    assert row[9] == {"priority": 3, "tags": ["t"], "name": queue}


def test_st14_work_is_finished_failed_released_and_renewed_in_one_note(served, api, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(*(item(queue) for _ in range(4)))
        worker_of(talk, queue, slots=4)
        rows = talk.jobs(4)
        done, failed, released, renewed = ([row[0], row[2]] for row in rows)

        refused = talk.result(
            WORK,
            [[*done, b'"yes"', "json"]],
            [[*failed, "Timeout", "it took too long", b"trace", False, None]],
            [released],
            [renewed],
        )

        assert refused == []
        views = talk.result(LOOK, ids)
        assert views[0] == [ids[0], "completed", b'"yes"', "json", None, None]
        assert views[1][1:] == [
            "failed",
            None,
            "binary",
            ["Timeout", "it took too long", b"trace"],
            "failed",
        ]
        assert [view[1] for view in views[2:]] == ["ready", "leased"]
        assert api.get(f"jobs/{ids[2]}")["attempts_used"] == 0


def test_st14_what_a_worker_reports_wrongly_is_refused_item_by_item(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(item(queue), item(queue))
        worker_of(talk, queue, slots=2)
        (first, second) = talk.jobs(2)

        refused = talk.result(
            WORK,
            [[first[0], "0" * 32], [second[0], second[2]]],
            [[new_id(), "0" * 32]],
            [[first[0], "0" * 32]],
            [[second[0], second[2]]],
        )

        assert [row[:3] for row in refused] == [
            ["done", 0, "not_your_lease"],
            ["failed", 0, "unknown_job"],
            ["released", 0, "not_your_lease"],
            ["renewed", 0, "already_completed"],
        ]
        assert all(row[3] for row in refused)
        assert [view[1] for view in talk.result(LOOK, ids)] == ["leased", "completed"]


def test_st14_a_completion_that_is_said_twice_is_no_refusal(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        client.submit(item(queue))
        worker_of(talk, queue, slots=1)
        row = talk.jobs(1)[0]

        assert talk.result(WORK, [[row[0], row[2], b"1", "json"]]) == []
        assert talk.result(WORK, [[row[0], row[2], b"1", "json"]]) == []


def test_st10_a_want_replaces_the_last_one_and_its_credit(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        worker_of(talk, queue, slots=5)
        assert talk.result(WANT, [f"{queue}-2"]) is None

        ids = client.submit(item(queue), item(f"{queue}-2"))
        assert talk.result(WORK, [], [], [], [], [1, 0]) == []

        assert [row[0] for row in talk.jobs(1)] == ids[1:]
        assert client.result(LOOK, ids[:1])[0][1] == "ready"


@pytest.mark.parametrize(
    ("queues", "order", "term_ms", "code"),
    [
        (["q"], "fastest", None, "invalid_note"),
        (["q"] * 1_001, "listed", None, "bad_count"),
        (["q"], "listed", -1, "bad_time"),
    ],
)
def test_st10_a_want_that_means_nothing_is_refused(served, queues, order, term_ms, code):
    with talking(served, "w1") as talk:
        assert talk.ask(WANT, queues, order, term_ms)[0][0] == code
        assert talk.ask(WORK, [], [], [], [], [-1, 0])[0][0] == "bad_count"


def test_st11_what_is_kept_ready_does_not_starve_idle_hands(served, queue):
    """P25, S10."""
    with (
        talking(served) as client,
        talking(served, "w1") as first,
        talking(served, "w2") as second,
    ):
        worker_of(first, queue, slots=8, ahead=100)
        worker_of(second, queue, slots=8, ahead=100)

        client.submit(*(item(queue) for _ in range(10)))

        assert len(first.jobs(8)) + len(second.jobs(2)) == 10


def test_st11_jobs_are_kept_ready_while_nobody_has_idle_hands(served, queue):
    with (
        talking(served) as client,
        talking(served, "w1") as first,
        talking(served, "w2") as second,
    ):
        worker_of(first, queue, ahead=3)
        worker_of(second, queue, slots=1)

        ids = client.submit(*(item(queue) for _ in range(6)))

        taken = [row[0] for row in second.jobs(1)] + [row[0] for row in first.jobs(3)]
        assert sorted(taken) == ids[:4]
        assert client.result(LOOK, ids[4:])[0][1] == "ready"


def test_st13_a_lease_outlives_its_connection(served, queue):
    """P27."""
    with talking(served) as client:
        with talking(served, "w1") as talk:
            ids = client.submit(item(queue))
            worker_of(talk, queue, slots=1)
            row = talk.jobs(1)[0]
        assert client.result(LOOK, ids)[0][1] == "leased"

        with talking(served, greeted=False) as again:
            assert again.hello("w1", [[row[0], row[2]]])["gone"] == []
            assert again.result(WORK, [[row[0], row[2]]]) == []
        assert client.result(LOOK, ids)[0][1] == "completed"


def test_st13_the_term_is_the_wants_where_it_names_one(served, queue):
    """P27."""
    with talking(served) as client, talking(served, "w1") as talk:
        client.submit(item(queue, options={"lease_ms": 7_000}), item(queue))
        talk.result(WANT, [queue], "listed", None)
        talk.result(WORK, [], [], [], [], [1, 0])
        assert talk.jobs(1)[0][7] == 7_000
        talk.result(WANT, [queue], "listed", 9_000)
        talk.result(WORK, [], [], [], [], [1, 0])
        assert talk.jobs(1)[0][7] == 9_000


def test_st15_what_a_returning_worker_does_not_name_goes_back_uncharged(served, api, queue):
    with talking(served) as client:
        with talking(served, "w1") as talk:
            ids = client.submit(*(item(queue) for _ in range(3)))
            worker_of(talk, queue, slots=3)
            rows = {row[0]: row for row in talk.jobs(3)}
        api.results("cancel", id=ids[2])

        with talking(served, greeted=False) as again:
            named = [[rows[job_id][0], rows[job_id][2]] for job_id in (ids[0], ids[2])]
            found = again.hello("w1", named)

        assert found["gone"] == [ids[2]]
        assert [view[1] for view in client.result(LOOK, ids)] == ["leased", "ready", "cancelled"]
        assert api.get(f"jobs/{ids[1]}")["attempts_used"] == 0


def test_st16_a_worker_that_departs_gives_back_what_it_holds(served, api, queue):
    """P29."""
    with talking(served) as supervisor, talking(served, "w1") as talk:
        ids = supervisor.submit(*(item(queue) for _ in range(3)))
        worker_of(talk, queue, slots=3)
        rows = talk.jobs(3)

        running = [[rows[0][0], rows[0][2]]]
        assert supervisor.result(DEPART, "w1", "killed by signal 9", running) is None

        jobs = [api.get(f"jobs/{job_id}") for job_id in ids]
        assert [job["attempts_used"] for job in jobs] == [1, 0, 0]
        assert jobs[0]["failure"] == {"code": "worker_died", "message": "killed by signal 9"}
        assert {job["state"] for job in jobs[1:]} == {"ready"}


def test_st16_a_departure_over_http_closes_the_stream_of_that_worker(served, api, queue):
    with talking(served, queue) as gone:
        worker_of(gone, queue, slots=1)

        api.post("depart", worker=queue)

        assert closed_with(gone) == (1008, "this worker was reported to have left")


def test_st16_a_supervisor_renews_what_is_past_a_third_of_its_term(served, api, queue):
    """P48, S4."""
    with talking(served) as supervisor, talking(served, "w1") as talk:
        ids = supervisor.submit(*(item(queue) for _ in range(600)), all_or_nothing=True)
        talk.result(WANT, [queue], "listed", 6_000)
        talk.result(WORK, [], [], [], [], [599, 0])
        talk.jobs(599)
        talk.result(WANT, [queue], "listed", 60_000)
        talk.result(WORK, [], [], [], [], [1, 0])
        talk.jobs(1)

        def expiry(job_id: str) -> int:
            return api.get(f"jobs/{job_id}")["lease"]["expires_at"]

        first, last = expiry(ids[0]), expiry(ids[599])

        def vouched() -> bool:
            assert supervisor.result(VOUCH, ["w1", "somebody else"]) is None
            return expiry(ids[0]) > first and expiry(ids[598]) > first

        wait_until(vouched)
        assert expiry(ids[599]) == last
        assert talk.unread(NOTICE) == []


def test_st15_a_worker_without_a_name_is_known_by_its_tokens(served, queue):
    with talking(served) as client:
        with talking(served) as talk:
            client.submit(item(queue))
            worker_of(talk, queue, slots=1)
            row = talk.jobs(1)[0]

        with talking(served, greeted=False) as again:
            found = again.hello(None, [[row[0], row[2]], [row[0], "0" * 32]])

    assert found["gone"] == [row[0]]


def test_st18_news_of_jobs_is_kept(served, api, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        job_id = client.submit(item(queue))[0]
        worker_of(talk, queue, slots=1)
        row = talk.jobs(1)[0]

        talk.send([NEWS, 0, [[job_id, row[2], [1, 4], None], [job_id, row[2], [2, 4], b"piece"]]])
        assert talk.result(LOOK, []) == []

        progress = wait_until(lambda: api.get(f"jobs/{job_id}").get("progress"))
        assert (progress["numerator"], progress["denominator"]) == (2, 4)
        assert [piece["payload"] for piece in api.get(f"jobs/{job_id}/partials")] == ["piece"]


def test_st17_a_worker_is_told_of_leases_that_it_loses(served, api, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(*(item(queue) for _ in range(4)))
        worker_of(talk, queue, slots=4)
        numbers = {row[0]: row[3] for row in talk.jobs(4)}

        client.result(CANCEL, [ids[0]])
        api.results("move", id=ids[1], queue=f"{queue}-2")
        api.results("expire", id=ids[2])

        told = [talk.next(NOTICE)[1:] for _ in range(3)]
        assert told == [
            [ids[0], numbers[ids[0]], "cancelled"],
            [ids[1], numbers[ids[1]], "moved"],
            [ids[2], numbers[ids[2]], "expired"],
        ]


def test_st17_a_worker_is_told_when_an_attempt_takes_too_long(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        job_id = client.submit(item(queue, options={"attempt_ms_max": 50}))[0]
        worker_of(talk, queue, slots=1)

        row = talk.jobs(1)[0]

        assert talk.next(NOTICE)[1:] == [job_id, row[3], "cutoff"]


def test_st17_a_worker_is_not_told_what_it_did_itself(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        client.submit(item(queue), item(queue))
        worker_of(talk, queue, slots=2)
        first, second = talk.jobs(2)
        talk.result(WORK, [[first[0], first[2]]], [], [[second[0], second[2]]])
        talk.result(WORK, [], [], [], [], [1, 0])
        talk.jobs(1)

        assert talk.unread(NOTICE) == []


# Watching.


def test_st19_the_ends_of_watched_jobs_are_reported(served, queue):
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(item(queue), item(queue), item(queue), watch=True)
        worker_of(talk, queue, slots=2)
        first, second = talk.jobs(2)

        talk.result(WORK, [[first[0], first[2], b"1", "json"]])
        talk.result(WORK, [], [[second[0], second[2], "No", "never", b"", False]])
        talk.result(CANCEL, [ids[2]], True, "unwanted")

        assert [client.next(ENDED)[1] for _ in range(3)] == [
            [ids[0], "completed", b"1", "json", None, None],
            [ids[1], "failed", None, "binary", ["No", "never", b""], "failed"],
            [ids[2], "cancelled", None, "binary", None, "unwanted"],
        ]


def test_st19_jobs_that_have_ended_are_reported_at_once(served, queue):
    with talking(served) as client:
        ids = client.submit(item(queue))
        client.result(CANCEL, ids)

        assert client.result(WATCH, [*ids, "f" * 32]) is None

        found = sorted(client.next(ENDED)[1][:2] for _ in range(2))
        assert found == [[ids[0], "cancelled"], ["f" * 32, "unknown"]]


def test_st19_a_job_that_is_no_longer_watched_is_not_reported(served, queue):
    with talking(served) as client:
        ids = client.submit(item(queue), item(queue), watch=True)

        assert client.result(WATCH, ids[:1], False) is None
        client.result(CANCEL, ids)

        assert client.next(ENDED)[1][0] == ids[1]
        assert client.result(LOOK, []) == []
        assert client.unread(ENDED) == []


def test_st23_a_client_follows_a_job_from_its_first_piece_to_its_end(served, queue):
    """P38."""
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(item(queue))
        worker_of(talk, queue, slots=1)
        [row] = talk.jobs(1)
        held = row[0], row[2]
        talk.result(NEWS, [[*held, [1, 4], b"first"]])

        client.result(WATCH, ids, True, True)
        news = [client.next(HEARD)[1:], client.next(HEARD)[1:]]
        talk.result(NEWS, [[*held, [2, 4, 30], None], [*held, None, b"second"]])
        news += [client.next(HEARD)[1:], client.next(HEARD)[1:]]
        talk.result(WORK, [[*held, b"1", "json"]])

        assert client.next(ENDED, HEARD)[:1] == [ENDED]
        assert [row for row in news if row[2] is not None] == [
            [ids[0], None, b"first", False],
            [ids[0], None, b"second", False],
        ]
        assert [row[1] for row in news if row[1] is not None] == [[1, 4, None], [2, 4, 30]]


def test_st23_a_finished_job_is_followed_from_the_record(served, queue):
    """P38."""
    with talking(served) as client, talking(served, "w1") as talk:
        ids = client.submit(item(queue))
        worker_of(talk, queue, slots=1)
        [row] = talk.jobs(1)
        talk.result(NEWS, [[row[0], row[2], None, b"first"]])
        talk.result(WORK, [[row[0], row[2], b"1", "json"]])

        client.result(WATCH, ids, True, True)

        assert client.next(HEARD, ENDED) == [HEARD, ids[0], None, b"first", False]
        assert client.next(HEARD, ENDED)[1][:2] == [ids[0], "completed"]


def test_st20_a_finished_job_is_looked_up_on_record(tmp_path):
    with serving(tmp_path) as served:
        with talking(served) as client, talking(served, "w1") as talk:
            ids = client.submit(item("q"))
            worker_of(talk, "q", slots=1)
            row = talk.jobs(1)[0]
            talk.result(WORK, [[row[0], row[2], b"\x00result", "binary"]])
        served.stop()
    with serving(tmp_path) as served, talking(served) as client:
        assert client.result(LOOK, ids)[0][:4] == [ids[0], "completed", b"\x00result", "binary"]
        client.result(WATCH, ids)
        assert client.next(ENDED)[1][1] == "completed"


def test_st21_jobs_are_cancelled_with_those_that_depend_on_them(served, queue):
    with talking(served) as client:
        first = client.submit(item(queue))
        client.submit(item(queue, options={"depends_on": first}))

        assert client.ask(CANCEL, first, False)[0][0] == "has_dependants"
        assert client.ask(CANCEL, ["f" * 32])[0][0] == "unknown_job"
        assert client.result(CANCEL, first)[0] == [first[0], "cancelled"]


# The end.


def test_st22_a_client_that_closes_gets_its_answers_first(served, api, queue):
    with talking(served) as talk:
        talk.send(*([SUBMIT, number, [item(queue)]] for number in range(1, 51)))
        talk.socket.close()

    assert talk.socket.close_code == CloseCode.NORMAL_CLOSURE
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 50


def test_st22_a_server_that_stops_says_so_and_closes_with_1001(tmp_path):
    with serving(tmp_path, "--store", "memory", "--drain-seconds", "7") as served:
        with talking(served, "w1") as talk:
            worker_of(talk, "q", slots=1)
            served.process.send_signal(signal.SIGTERM)

            assert talk.next(CLOSING) == [CLOSING, 7]
            assert closed_with(talk)[0] == CloseCode.GOING_AWAY
        assert served.process.wait(SECONDS_MAX) == 0


def test_jobs_go_round_between_the_stream_and_the_api(served, api, queue):
    with talking(served, "w1") as talk:
        worker_of(talk, queue, slots=1)
        submitted = api.results("submit", queue=queue, payload={"path": "a.png"})
        row = talk.jobs(1)[0]

        assert json.loads(row[5]) == {"path": "a.png"}
        talk.result(WORK, [[row[0], row[2], b'{"ok":true}', "json"]])
        assert api.get(f"jobs/{submitted['id']}")["result"] == {"ok": True}
        assert [worker["name"] for worker in api.get("workers") if worker["name"] == "w1"] == []
