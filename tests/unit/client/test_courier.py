"""What leaves a client and when, against a server that answers as the tests say."""

import asyncio
import threading

import pytest

from manyhands import App, JobFailed, Refused, Unavailable, gather
from manyhands.client import courier, home
from manyhands.client.ids import id_of, new_id
from tests.unit.client.fake_server import ANSWER, ENDED, SUBMIT, WATCH, fake_server

SECONDS_MAX = 90.0


@pytest.fixture
def server():
    with fake_server() as server:
        yield server


@pytest.fixture
def app(server):
    app = App(server.url, timeout=SECONDS_MAX)
    yield app
    app.close()


def declare(app: App, **options):
    @app.task(**options)
    def add(a: int) -> int:
        return a

    return add


def test_p15_ids_are_uuids_of_version_7_and_differ():
    ids = [new_id() for _ in range(1_000)]

    assert len(set(ids)) == 1_000
    assert all(len(each) == 32 and each[12] == "7" and each[16] in "89ab" for each in ids)
    assert id_of("task", "key") == id_of("task", "key") != id_of("task", "key", 0)


def test_p15_every_submit_keeps_an_existing_job(server, app):
    declare(app).submit(1)

    [[_, _, [item], together]] = server.notes(SUBMIT)
    assert item[1:4] == ["add", b'{"a":1}', "json"]
    assert item[4] == {"on_existing": "keep"}
    assert item[5] is None
    assert together is False


def test_p16_submits_of_one_turn_leave_in_one_message(server, app):
    add = declare(app)
    add.submit(0)  # so that there is a connection

    async def submit() -> None:
        await asyncio.gather(*(add.asubmit(n) for n in range(100)))

    asyncio.run(submit())

    [note] = server.notes(SUBMIT)[1:]
    assert len(note[2]) == 100


def test_p16_submits_of_many_threads_leave_in_one_message(server, app):
    add = declare(app)
    add.submit(0)
    may_go, calls = threading.Event(), home.home()._calls._calls
    home.home().call(may_go.wait, SECONDS_MAX)  # the client's thread is busy
    threads = [threading.Thread(target=add.submit, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    while len(calls) < 16:
        threads[0].join(0.001)
    may_go.set()
    for thread in threads:
        thread.join(SECONDS_MAX)

    [note] = server.notes(SUBMIT)[1:]
    assert len(note[2]) == 16


@pytest.mark.parametrize("way", ["map", "amap"])
def test_p16_four_slices_of_a_map_are_under_way(server, app, way):
    add = declare(app)
    add.submit(0)
    held: list = []

    def answer(note):
        if note[0] != SUBMIT:
            return server.accept(note)
        held.append(note)
        assert len(held) <= 4
        return None

    server.answer = answer
    run = add.map if way == "map" else lambda items: asyncio.run(add.amap(items))
    thread = threading.Thread(target=run, args=(range(5_000),))
    thread.start()
    for left in range(10, 0, -1):
        server.wait_for(lambda left=left: len(held) == min(4, left))
        note = held.pop(0)
        assert len(note[2]) == 500
        server.send([ANSWER, note[1], None, []])
    thread.join(SECONDS_MAX)

    assert sum(len(note[2]) for note in server.notes(SUBMIT)) == 5_001


def test_p16_a_slice_has_four_mebibytes_at_most(server, app):
    @app.task
    def store(text: str) -> None: ...

    store.map("x" * 900_000 for _ in range(10))

    assert [len(note[2]) for note in server.notes(SUBMIT)] == [4, 4, 2]


def test_p17_so_many_bytes_are_unanswered_at_most(server, app, monkeypatch):
    """A coroutine waits as a thread does."""
    monkeypatch.setattr(courier, "UNANSWERED_BYTES_MAX", 1_000_000)
    held: list = []

    @app.task
    def store(text: str) -> None: ...

    def answer(note):
        if note[0] != SUBMIT:
            return server.accept(note)
        held.append(note)
        assert sum(len(item[1]) + len(item[2]) for each in held for item in each[2]) <= 1_000_000
        return None

    async def submit() -> None:
        await asyncio.gather(*(store.asubmit("x" * 300_000) for _ in range(8)))

    server.answer = answer
    thread = threading.Thread(target=lambda: asyncio.run(submit()))
    thread.start()
    count = 0
    while count < 8:
        enough = min(3, 8 - count)
        server.wait_for(lambda enough=enough: sum(len(note[2]) for note in held) >= enough)
        some, held[:] = held[:], []
        count += sum(len(note[2]) for note in some)
        server.send(*([ANSWER, note[1], None, []] for note in some))
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def test_p17_ten_thousand_jobs_are_unanswered_at_most(server, app):
    add = declare(app)
    add.submit(0)
    held: list = []
    is_held = threading.Event()
    is_held.set()

    def unanswered() -> int:
        return sum(len(note[2]) for note in held)

    def answer(note):
        if note[0] == SUBMIT and is_held.is_set():
            held.append(note)
            assert unanswered() <= 10_000
            return None
        return server.accept(note)

    server.answer = answer
    threads = [
        threading.Thread(target=lambda: add.map(range(3_000)), daemon=True) for _ in range(8)
    ]
    for thread in threads:
        thread.start()

    server.wait_for(lambda: unanswered() == 10_000)
    is_held.clear()
    server.send(*([ANSWER, note[1], None, []] for note in held))
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert sum(len(note[2]) for note in server.notes(SUBMIT)) == 24_001


@pytest.mark.parametrize("code", ["store_full", "shutting_down"])
@pytest.mark.parametrize("whole", [True, False])
def test_p17_refusals_that_pass_are_tried_again_under_the_same_id(server, app, code, whole):
    refusals = [code, code]

    def answer(note):
        if note[0] == SUBMIT and refusals:
            sentence = refusals.pop()
            if whole:
                return [ANSWER, note[1], [sentence, "Not now."], None]
            return [ANSWER, note[1], None, [[0, sentence, "Not now."]]]
        return server.accept(note)

    server.answer = answer
    handle = declare(app).submit(1)

    submits = server.notes(SUBMIT)
    assert len(submits) == 3
    assert {note[2][0][0] for note in submits} == {handle.id}


def test_p17_a_refusal_that_does_not_pass_ends_in_unavailable(server):
    app = App(server.url, timeout=SECONDS_MAX)
    add = declare(app)
    add.submit(1)
    server.answer = lambda note: [ANSWER, note[1], ["shutting_down", "It stops."], None]
    app.server.courier._timeout = 5.0

    with pytest.raises(Unavailable, match=r"took nothing new for 5 s: It stops.*was not accepted"):
        add.submit(1)

    app.close()


def test_p35_unanswered_submits_are_sent_again_in_order(server, app):
    add = declare(app)
    server.answer = lambda note: None
    done: list[str] = []
    threads = []
    for number in range(3):
        thread = threading.Thread(target=lambda n=number: done.append(add.submit(n).id))
        thread.start()
        threads.append(thread)
        server.wait_for(lambda n=number: len(server.notes(SUBMIT)) == n + 1)
    first = server.notes(SUBMIT)
    server.answer = server.accept
    asyncio.run_coroutine_threadsafe(server._connection.close(), server._loop).result(SECONDS_MAX)
    for thread in threads:
        thread.join(SECONDS_MAX)

    assert server.notes(SUBMIT)[3:] == first
    assert sorted(done) == sorted(note[2][0][0] for note in first)


def test_p36_waiting_for_one_job_twice_asks_once(server, app):
    handle = declare(app).submit(1)
    other = app.handle(handle.id)
    found: list = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(each.result(SECONDS_MAX)))
        for each in (handle, other)
    ]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: bool(server.notes(WATCH)))
    # Both wait now, or the second asks again after the end: both get it.
    server.answer = lambda note: (
        [ENDED, [handle.id, "completed", b"7", "json", None, None]]
        if note[0] == WATCH
        else server.accept(note)
    )
    server.send([ENDED, [handle.id, "completed", b"7", "json", None, None]])
    for thread in threads:
        thread.join(SECONDS_MAX)

    assert found == [7, 7]


def test_p36_more_handles_than_the_server_watches_are_watched_in_turns(server, app, monkeypatch):
    handles = declare(app).map(range(1_200))
    watched: set[str] = set()
    most = 0

    def answer(note):
        nonlocal most
        if note[0] != WATCH:
            return server.accept(note)
        watched.update(note[2])
        most = max(most, len(watched))
        later.extend(note[2])
        return None

    later: list[str] = []
    server.answer = answer
    stream = app.server.courier._stream
    monkeypatch.setattr(stream, "limits", stream.limits.__class__(watches=500))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(gather(*handles, timeout=SECONDS_MAX)))
    thread.start()
    while thread.is_alive():
        some, later[:] = later[:], []
        if some:
            watched.difference_update(some)
            server.send(*([ENDED, [each, "completed", b"1", "json", None, None]] for each in some))
        thread.join(0.01)

    assert found == [1] * 1_200
    assert most <= 500


def test_p40_unknown_notes_and_fields_are_ignored(server, app):
    handle = declare(app).submit(1)
    server.answer = lambda note: (
        [ENDED, [handle.id, "failed", None, None, ["x", "y", b"z"], None, "new"], "new"]
        if note[0] == WATCH
        else server.accept(note)
    )
    server.send([99, "later"], [20, 0, ["x", "y"], None])

    with pytest.raises(JobFailed, match="x: y"):
        handle.result(SECONDS_MAX)


def test_p40_a_server_of_a_later_version_is_named(server):
    """P21, P17: it closes the stream with a sentence, which the error repeats."""
    server.refusal = "the only version here is 2"
    app = App(server.url, timeout=0.5)

    with pytest.raises(Unavailable, match="the only version here is 2"):
        declare(app).submit(1)

    app.close()


@pytest.mark.parametrize("message", [b"\xff", b"", b"\x91\x01", b"\x91\x90", b"\x91\x92\x15\x01"])
def test_p40_a_server_that_talks_nonsense_is_left(server, app, message):
    """And asked again on another connection."""
    add = declare(app)
    add.submit(1)
    asyncio.run_coroutine_threadsafe(server._connection.send(message), server._loop).result()

    assert add.submit(2).id


def test_p40_an_answer_with_the_wrong_fields_is_an_error_and_no_wait(server, app):
    add = declare(app)
    add.submit(1)
    server.answer = lambda note: [ANSWER, note[1], None, {"not": "a list"}]

    with pytest.raises(Refused, match="wrong fields"):
        add.submit(2)
    with pytest.raises(Refused, match="wrong fields"):
        app.handle("0f").cancel()


def test_p34_a_host_that_cannot_be_one_is_named():
    app = App(f"http://{'a' * 70}.example", timeout=0.5)

    with pytest.raises(Unavailable, match="is no name of a host"):
        declare(app).submit(1)

    app.close()


def test_a_closed_client_says_so(server):
    app = App(server.url)
    add = declare(app)
    handle = add.submit(1)
    app.close()

    for call in (lambda: add.submit(1), handle.result, handle.cancel):
        with pytest.raises(Refused, match="closed"):
            call()


def test_p16_the_bounds_are_those_of_the_specification():
    """P17."""
    assert (courier.SLICE_COUNT, courier.SLICE_BYTES) == (500, 4 * 1024 * 1024)
    assert (courier.UNANSWERED_COUNT_MAX, courier.UNANSWERED_BYTES_MAX) == (10_000, 64 * 1024**2)
