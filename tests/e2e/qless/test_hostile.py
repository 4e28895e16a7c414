"""Requests that no decent client sends: each gets an answer, none of them a defect's."""

import contextlib
import json
import socket
import struct
import threading
import time

import pytest

from manyhands.net.http import _RECEIPT_SECONDS
from tests.e2e.qless.talk import Qless, Wire, wait_until

LONG = b"9" * 5_000
DEFINITION = {
    "version": "0.2.0",
    "provisioner_id": "default",
    "worker_type": "hostile",
    "routing": "",
    "retries": 1,
    "priority": 1,
    "created": "2026-01-01T00:00:00Z",
    "deadline": "2999-01-01T00:00:00Z",
    "metadata": {"name": "n", "owner": "a@b.cc", "maintainer": "a@b.cc", "description": ""},
    "tags": {},
}


def post(q: Qless, path: str, body: bytes):
    return q.http.post(path, content=body, headers={"content-type": "application/json"})


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_a_number_of_many_digits_passes_as_a_meta_and_is_refused_elsewhere(one, queue):
    good = post(one, f"/add/{queue}", b'{"data": [{"meta": %s}]}' % LONG)
    assert "errors" not in good.json()
    assert LONG in one.http.get(f"/get/{queue}").content

    for key in (b"priority", b"retries", b"delay"):
        body = b'{"data": [{"meta": 1, "%s": %s}, {"meta": %s}]}' % (key, LONG, LONG)
        found = post(one, f"/add/{queue}", body).json()
        assert [error["code"] for error in found["errors"]] == ["invalid_option"], key
        assert found["results"][0] is False
        assert found["results"][1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/add/q", b'{"data": [], "host": %s}' % LONG),
        ("/get/q", b'{"data": {"wait": %s}}' % LONG),
        ("/queues/q", b'{"data": {"retries": %s}}' % LONG),
        ("/limits/x", b'{"data": {"max": %s}}' % LONG),
        ("/api/submit", b'{"queue": "q", "attempts_max": %s}' % LONG),
        ("/api/submit", b'{"queue": "q", "encoding": "text", "payload": %s}' % LONG),
        ("/api/claim", b'{"queue": "q", "count": %s}' % LONG),
        ("/0.2.0/task/x/claim", b'{"worker_group": "a", "worker_id": "b", "run_id": %s}' % LONG),
    ],
)
def test_a_number_of_many_digits_is_refused_where_it_is_read(q, path, body):
    assert post(q, path, body).status_code == 400


@pytest.mark.parametrize("value", [LONG, nested(2_000), b"1" + b"0" * 30, b"1e400"])
def test_a_task_with_an_odd_payload_is_taken_or_refused(q, value):
    text = json.dumps({**DEFINITION, "payload": {"x": "HERE"}}).encode()

    found = post(q, "/0.2.0/task/new", text.replace(b'"HERE"', value))

    assert found.status_code in (200, 400), found.text


@pytest.mark.parametrize("depth", [400, 900, 980, 995, 1_000, 1_010, 5_000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/add/q", b'{"data": [{"id": 5, "x": %s}]}'),
        ("/complete/q", b'{"data": [{"id": "a", "meta": %s, "next": 5}]}'),
        ("/heartbeat/q", b'{"host": %s, "data": []}'),
        ("/requeue", b'{"data": %s}'),
        ("/api/submit", b'{"queue": "q", "encoding": "text", "payload": %s}'),
        ("/api/cancel", b'{"ids": %s}'),
    ],
)
def test_deep_json_is_refused_at_any_depth(q, path, body, depth):
    assert post(q, path, body % nested(depth)).status_code in (200, 400)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("OPTIONS *", 204),
        ("GET /0.2.0/store/x/runs/" + "9" * 5_000 + "/logs.json", 404),
        ("GET /0.2.0/store/x/runs/-1/logs.json", 404),
        ("GET /get/../queues", 400),
        ("GET //get/q", 404),
        ("GET /stats/q?date=0001-01-01", 200),
        ("GET /stats/q?date=9999-12-31", 200),
        ("CONNECT localhost:80", 405),
    ],
)
def test_odd_targets(served, request_line, status):
    with Wire(served) as wire:
        method, _, target = request_line.partition(" ")
        wire.send(method, target)
        assert wire.answer()[0] == status


@pytest.mark.parametrize("host", ["evil@localhost", "[::1", "", "localhost.evil.example"])
def test_odd_hosts_are_not_ours(served, host):
    with Wire(served) as wire:
        assert wire.ask("GET", "/get/q", Host=host) == (421, "unknown_host")


def test_another_version_of_http_is_refused(served):
    with Wire(served) as wire:
        wire.peer.sendall(f"GET /get/q HTTP/2.0\r\nHost: {wire.host}\r\n\r\n".encode())
        assert wire.answer()[0] == 400


CHUNKED = "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("path", ["/add/q", "/cancel", "/api/submit"])
def test_what_follows_a_body_is_no_header(served, path):
    """A trailer cannot say afterwards that the body was JSON, or who sent it."""
    with Wire(served) as wire:
        head = f"POST {path} HTTP/1.1\r\nHost: {wire.host}\r\n{CHUNKED}\r\n"
        trailer = f"Content-Type: application/json\r\nHost: {wire.host}\r\n"
        body = "c\r\n" + '{"data": []}' + "\r\n0\r\n" + trailer + "\r\n"
        wire.peer.sendall((head + body).encode())
        assert wire.answer()[0] == 415


@pytest.mark.parametrize(
    "coding", ["xchunked", "identity", "chunked, identity", "chunked\r\nTransfer-Encoding: chunked"]
)
def test_codings_that_hide_where_a_body_ends_are_refused(served, coding):
    with Wire(served) as wire:
        head = (
            f"POST /add/q HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
            f"Transfer-Encoding: {coding}\r\n\r\n"
        )
        wire.peer.sendall((head + "0\r\n\r\n").encode())
        assert wire.answer()[0] in (400, 501)


def test_pipelined_takes_of_a_client_that_resets_come_back(served, q, queue):
    """QB61: all of them, uncharged, wherever their answers were at that time."""
    rounds = 0
    for number in range(50):
        name = f"{queue}-{number}"
        q.add(name, *("x" * 500_000 for _ in range(12)))
        wire = Wire(served)
        one = f"GET /get/{name} HTTP/1.1\r\nHost: {wire.host}\r\n\r\n".encode()
        began = time.monotonic()
        wire.peer.sendall(one * 8)
        assert wire.peer.recv(1)
        wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
        q.counts(name, "waiting")  # by the time that this is answered, the server knows of the end
        if time.monotonic() - began > _RECEIPT_SECONDS / 2:
            continue  # this machine was so slow that the first answers may count as received
        wait_until(lambda name=name: q.counts(name, "waiting", "pending") == [12, 0])
        assert {item["retries_left"] for item in q.take(name, 12)} == {5}
        rounds += 1
        if rounds == 5:
            break
    assert rounds


def test_many_pipelined_requests_are_all_answered(served, queue):
    count = 2_000
    with Wire(served) as wire:
        one = f"GET /get/{queue} HTTP/1.1\r\nHost: {wire.host}\r\n\r\n".encode()
        sender = threading.Thread(target=wire.peer.sendall, args=(one * count,))
        sender.start()
        got = b""
        while got.count(b"HTTP/1.1 200 OK") < count or not got.endswith(b"}}"):
            got += wire.peer.recv(1 << 20)
        sender.join()
    assert got.count(b'{"results":null,') == count


def test_peers_that_send_nothing_do_not_keep_others_waiting(served, q, queue):
    with contextlib.ExitStack() as stack:
        for number in range(200):
            wire = stack.enter_context(Wire(served))
            wire.peer.sendall(b"POST /add/q HTTP/1.1\r\nHo"[: number % 26])
        q.add(queue, 1)
        assert q.take(queue)["meta"] == 1


def test_an_answer_has_a_bound_and_what_does_not_fit_stays_where_it_was(one, queue):
    """QA39: a thousand jobs of a megabyte are not held in memory twice, whatever is asked for."""
    ids = [job_id for _ in range(4) for job_id in one.add(queue, *(["x" * 1_000_000] * 10))]

    first = one.take(queue, 1_000)

    assert len(first) == 5  # the one that passes 4 MiB is the last
    assert one.counts(queue, "waiting", "pending") == [40 - len(first), len(first)]
    rest = [item for _ in range(7) for item in one.take(queue, 1_000)]
    assert [item["id"] for item in first + rest] == ids
    assert {item["retries_left"] for item in rest} == {5}
    assert {item["attempt"] for item in rest} == {1}


def test_a_job_larger_than_the_bound_of_an_answer_is_handed_out_alone(q, queue):
    for _ in range(2):
        q.http.post("/api/submit", json={"queue": queue, "payload": "x" * 20_000_000})

    for _ in range(2):
        claimed = q.http.post("/api/claim", json={"queue": queue, "count": 10})
        assert len(claimed.json()["results"]) == 1
