"""The stream of events: complete, in order, filtered, resumable, bounded."""

import json
import socket

import pytest

from tests.e2e.qless.talk import Qless, Wire, wait_until
from tests.e2e.serving import serving

STORES = ("memory", "postgresql")


class Stream:
    """A watcher."""

    def __init__(self, client: Qless, last: int | None = None, **query) -> None:
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        self._context = client.http.stream("GET", "/events", params=query, headers=headers)
        self.response = self._context.__enter__()
        assert self.response.status_code == 200
        self._lines = self.response.iter_lines()
        assert self.read() == ("", None, {})  # the hint for reconnecting

    def read(self) -> tuple[str, int | None, dict]:
        """The next event: its name, its number, its data."""
        name, number, data = "", None, {}
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif not line:
                return name, number, data
        raise AssertionError("the stream ended")

    def names(self, count: int) -> list[str]:
        return [self.read()[0] for _ in range(count)]

    def close(self) -> None:
        self._context.__exit__(None, None, None)


@pytest.fixture
def stream(q):
    """Makes watchers of one queue."""
    made: list[Stream] = []

    def watch(queue: str, **query) -> Stream:
        made.append(Stream(q, topics=f"#.{queue}", **query))
        return made[-1]

    yield watch
    for one in made:
        one.close()


def test_qb53_exactly_the_expected_events_in_order(q, one, two, queue, stream, fresh):
    watch = stream(queue)
    first = q.add_id(queue, fresh())
    one.take(queue)
    one.complete(queue, first)
    assert watch.names(3) == ["waiting", "pending", "complete"]

    moved = q.add_id(queue, fresh())
    one.take(queue)
    q.results("/move", [{"id": moved, "queue": queue}])
    assert watch.names(2) == ["waiting", "pending"]
    assert sorted(watch.names(2)) == ["lock_lost", "waiting"]

    one.take(queue)
    one.results(f"/complete/{queue}", [{"id": moved, "meta": 1, "next": queue}])
    assert watch.names(2) == ["pending", "waiting"]
    one.take(queue)
    one.results(f"/fail/{queue}", [{"id": moved, "group": "g"}])
    assert watch.names(2) == ["pending", "failed"]

    cancelled = q.add_id(queue, fresh())
    one.take(queue)
    q.results("/cancel", [cancelled])
    assert watch.names(2) == ["waiting", "pending"]
    assert sorted(watch.names(2)) == ["cancelled", "lock_lost"]

    q.set(queue, heartbeat=0.05)
    expired = q.add_id(queue, fresh())
    one.take(queue)
    assert watch.names(3) == ["waiting", "pending", "stalled"]
    q.set(queue, heartbeat=3600)
    two.take(queue)
    assert sorted(watch.names(2)) == ["lock_lost", "pending"]
    q.results("/timeout", [{"id": expired}])
    assert sorted(watch.names(2)) == ["lock_lost", "stalled"]


def test_qb54_moving_ones_own_job_tells_nobody_that_a_lock_was_lost(one, queue, stream, fresh):
    watch = stream(queue)
    job_id = one.add_id(queue, fresh())
    one.take(queue)
    one.add_id(queue, job_id, move=True)
    one.add_id(queue, fresh())

    assert watch.names(4) == ["waiting", "pending", "waiting", "waiting"]


def test_an_event_tells_what_happened(one, queue, stream):
    watch = stream(queue)
    [job_id] = one.add(queue, 1)
    one.take(queue)

    _, first, waiting = watch.read()
    _, second, pending = watch.read()

    assert second > first
    assert (waiting["id"], waiting["queue"], waiting["state"]) == (job_id, queue, "waiting")
    assert (pending["host"], pending["attempt"], pending["protocol"]) == ("worker-1", 1, "qless")


def test_a_watcher_resumes_without_loss(q, queue, stream):
    watch = stream(queue)
    q.add(queue, 1)
    _, last, _ = watch.read()
    watch.close()
    ids = q.add(queue, *range(500))

    again = Stream(q, last, topics=f"waiting.#.{queue}")
    found = [again.read()[2]["id"] for _ in range(500)]
    again.close()
    by_parameter = Stream(q, after=last, topics=f"waiting.#.{queue}")
    assert by_parameter.read()[2]["id"] == ids[0]
    by_parameter.close()

    assert found == ids


def test_topics_are_chosen_by_pattern(q, one, queue, fresh):
    watched = q.add_id(f"{queue}.eu.north", fresh())
    last = int(q.http.get("/api/events?count=1").json()["last_seq"])
    for pattern, hits in (
        (f"pending.qless.{watched}.{queue}.eu.north", True),
        (f"*.*.*.{queue}.#", True),
        (f"pending.#.{queue}.*.north", True),
        (f"#.{queue}.us.#", False),
        (f"complete.#.{queue}.#", False),
        ("pending", False),
    ):
        other = q.add_id(f"{queue}-end", fresh())
        stream = Stream(q, after=last, topics=f"{pattern},waiting.qless.{other}.#")
        if hits:
            one.take(f"{queue}.eu.north")
            one.results(f"/retry/{queue}.eu.north", [{"id": watched, "delay": 0}])
            found = [stream.read()[2]["id"] for _ in range(2)]
            assert watched in found, pattern
        else:
            assert stream.read()[2]["id"] == other, pattern
        stream.close()
        last = int(q.http.get("/api/events?count=1").json()["last_seq"])


def test_a_watcher_that_comes_too_late_is_told_of_the_gap(tmp_path):
    with serving(tmp_path, "--store", "memory", "--retention-days", "0") as server:
        client = Qless(server)
        client.add("q", *range(10))
        wait_until(lambda: client.http.get("/api/events").json()["first_seq"] > 10)
        watch = Stream(client, 3)
        name, number, data = watch.read()
        watch.close()
        client.close()

    assert (name, number, data["from"]) == ("gap", None, 4)


def test_a_watcher_that_does_not_read_costs_no_memory(served, q, queue):
    with Wire(served) as wire:
        wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send("GET", "/events?after=0")
        before = q.http.get("/queues?load=1").json()["load"]["memory"]
        for _ in range(3):
            q.add(queue, *range(10_000))
        after = q.http.get("/queues?load=1").json()["load"]["memory"]

    assert after - before < 200
    assert q.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("last", ["abc", "-1", "9" * 30])
def test_a_bad_last_event_id_is_refused(q, last):
    response = q.http.get("/events", headers={"Last-Event-ID": last})

    assert q.problem(response) == (400, "invalid_query")


def test_a_stopping_server_ends_the_stream(tmp_path):
    with serving(tmp_path, "--store", "memory") as server:
        client = Qless(server)
        watch = Stream(client)
        client.add("q", 1)
        assert watch.read()[0] == "waiting"
        assert server.stop() == 0
        with pytest.raises((AssertionError, Exception)):
            watch.read()
        watch.close()
        client.close()
