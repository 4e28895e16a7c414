"""HTTP as nobody should send it: no part of a request is taken for another, and nobody else
notices. Slow peers are in tests/unit/net/test_http.py, where time is ours.
"""

import json
import socket

import pytest

from tests.e2e.serving import SECONDS_MAX, Served
from tests.e2e.test_http_framing import carrier, last_request, place_of, smuggled

JSON = b"Content-Type: application/json\r\n"
SUBMIT = b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\n" + JSON


@pytest.fixture(autouse=True)
def _no_defects(served):
    """Whatever a peer sends, it is the peer's fault."""
    yield
    assert "internal error" not in served.log()
    assert "Traceback" not in served.log()


def statuses(served: Served, *packets: bytes) -> list[int]:
    """Of all answers until the server hangs up."""
    with socket.create_connection(place_of(served), SECONDS_MAX) as peer:
        for packet in packets:
            peer.sendall(packet)
        received = b""
        while piece := peer.recv(65536):
            received += piece
    return [int(part.split(b" ", 1)[0]) for part in received.split(b"HTTP/1.1 ")[1:]]


def queues(api) -> list[str]:
    return [row["name"] for row in api.get("queues")]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 0\r\nContent-Length: 500\r\n",
        b"Content-Length: 0, 500\r\n",
        b"Content-Length: +0\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 0x0\r\n",
        b"Content-Length: 0 0\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length : 0\r\n",
        b"Content-Length:\r\n 0\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"X: a\r\n Transfer-Encoding: chunked\r\n",
        b"X: a\nTransfer-Encoding: chunked\r\n",
        b"X: a\rTransfer-Encoding: chunked\r\n",
        b"X: a\0b\r\n",
        b"X\xe4: a\r\n",
        b"X y: a\r\n",
        b": a\r\n",
        b"no colon\r\n",
        b"\r\n\r\nContent-Length: 0\r\n",
    ],
)
def test_a_head_whose_body_could_end_in_two_places_is_refused(served, api, queue, head):
    found = statuses(served, SUBMIT + head + b"\r\n" + smuggled(queue), last_request())

    assert found[0] >= 400
    assert queue not in queues(api)


@pytest.mark.parametrize(
    "chunks",
    [
        b"-1\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"g\r\n",
        b"ffffffffffffffffff\r\n",
        b"\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;ext\x00\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_chunks_that_are_none_are_refused_and_nothing_behind_them_is_read(
    served, api, queue, chunks
):
    head = SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n"

    found = statuses(served, head + chunks + smuggled(queue), last_request())

    assert found == [400]
    assert queue not in queues(api)


def test_trailers_are_no_headers(served, api, queue):
    body = json.dumps({"queue": queue}).encode()
    chunked = b"%x\r\n%s\r\n0\r\nHost: evil.example\r\nX: y\r\n\r\n" % (len(body), body)

    found = statuses(
        served, SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + last_request()
    )

    assert found == [200, 200]
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


def test_bytes_beyond_ascii_may_stand_in_a_value_and_mean_nothing(served):
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \xe4\xff\x80\r\n\r\n"

    assert statuses(served, request + last_request()) == [200, 200]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /healthz HTTP/1.1 ", 400),
        (b"GET  /healthz HTTP/1.1", 200),
        (b" GET /healthz HTTP/1.1", 400),
        (b"GET /healthz HTTP/2.0", 400),
        (b"GET /healthz HTTP/0.9", 400),
        (b"GET /healthz", 400),
        (b"G\xc4T /healthz HTTP/1.1", 400),
        (b"GET /\x00healthz HTTP/1.1", 400),
        (b"TRACE /healthz HTTP/1.1", 405),
        (b"BREW /healthz HTTP/1.1", 400),
        (b"PRI * HTTP/2.0", 400),
        (b"GET http://localhost/healthz HTTP/1.1", 200),
        (b"GET http://evil.example/healthz HTTP/1.1", 400),
        (b"GET file:///etc/passwd HTTP/1.1", 400),
        (b"OPTIONS * HTTP/1.1", 204),
        (b"GET * HTTP/1.1", 404),
        (b"HEAD /healthz HTTP/1.1", 200),
    ],
)
def test_an_odd_first_line_is_answered_and_the_next_request_is_its_own(served, line, status):
    found = statuses(served, line + b"\r\nHost: localhost\r\n\r\n", last_request())

    assert found[0] == status
    assert found[1:] in ([], [200])


@pytest.mark.parametrize("expectation", [b"100-continue", b"100-CONTINUE", b"a-miracle", b""])
def test_whatever_a_client_expects_it_is_answered_once(served, queue, expectation):
    body = json.dumps({"queue": queue}).encode()
    head = SUBMIT + b"Expect: %s\r\nContent-Length: %d\r\n\r\n" % (expectation, len(body))

    found = statuses(served, head, body, last_request())

    assert [status for status in found if status != 100] == [200, 200]


def test_a_client_that_expects_and_is_refused_sends_no_body_and_is_hung_up_on(served):
    head = b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"

    assert statuses(served, head + b"Content-Length: 10\r\n\r\n") == [415]


@pytest.mark.parametrize(
    "lines",
    [
        (b"Connection: Upgrade", b"Upgrade: websocket"),
        (b"Connection: Upgrade", b"Upgrade: websocket, h2c"),
        (b"Connection: Upgrade", b"Upgrade: nonsense/9"),
        (b"Connection: Upgrade", b"Upgrade: "),
        (b"Connection: Upgrade", b"Upgrade: TLS/1.0, HTTP/1.1"),
        (b"Upgrade: websocket",),
    ],
)
def test_an_upgrade_that_is_declined_leaves_http_as_it_was(served, api, queue, lines):
    """What follows is a request, and so is what follows that."""
    head = carrier("/healthz", b"", *lines).replace(b"POST", b"GET", 1)

    found = statuses(served, head + smuggled(queue) + last_request())

    assert found == [200, 200, 200]
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


def test_a_watcher_that_never_reads_harms_nobody(served, api, queue):
    """Its events are read for it only as it takes them."""
    with socket.socket() as watcher:
        watcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        watcher.settimeout(SECONDS_MAX)
        watcher.connect(place_of(served))
        watcher.sendall(b"GET /events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert watcher.recv(100).startswith(b"HTTP/1.1 200")

        for _ in range(10):
            api.results("submit", items=[{"queue": queue} for _ in range(1_000)])

        assert api.get(f"queues/{queue}")["counts"]["ready"] == 10_000
        assert api.get("about")["memory"]["held_bytes"]["answers"] < 8 * 1024 * 1024


def test_many_requests_that_nobody_reads_the_answers_of_are_answered_in_time(served, api):
    """The answers are made as the peer takes them."""
    with socket.create_connection(place_of(served), SECONDS_MAX) as peer:
        peer.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)

        assert api.get("about")["memory"]["held_bytes"]["answers"] < 16 * 1024 * 1024

        peer.sendall(last_request())
        received = b""
        while piece := peer.recv(1024 * 1024):
            received += piece
    assert received.count(b"HTTP/1.1 200 OK") == 201
