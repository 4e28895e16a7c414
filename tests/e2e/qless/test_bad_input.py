"""Nothing takes work by accident, and nothing a peer sends costs more than an answer."""

import contextlib
import json
import socket
import struct

import pytest

from tests.e2e.qless.talk import Qless, Wire, wait_until
from tests.e2e.serving import serving

JSON = {"Content_Type": "application/json"}


def untouched(q, queue: str) -> bool:
    return q.counts(queue, "waiting", "pending") == [1, 0]


@pytest.mark.parametrize(
    ("method", "headers", "answer"),
    [
        ("HEAD", {}, (405, "")),
        ("GET", {"Sec_Fetch_Site": "cross-site"}, (403, "cross_site")),
        ("GET", {"Sec_Fetch_Site": "same-site"}, (403, "cross_site")),
        ("GET", {"Sec_Purpose": "prefetch"}, (403, "cross_site")),
        ("GET", {"Purpose": "prefetch"}, (403, "cross_site")),
        ("GET", {"X_Moz": "prefetch"}, (403, "cross_site")),
        ("GET", {"X_Purpose": "Preview"}, (403, "cross_site")),
        ("GET", {"Origin": "http://evil.example"}, (403, "cross_site")),
        ("GET", {"Origin": "null"}, (403, "cross_site")),
        ("GET", {"Host": "evil.example"}, (421, "unknown_host")),
        ("GET", {"Host": "127.0.0.1.evil.example:7700"}, (421, "unknown_host")),
        ("POST", {"Host": "evil.example", **JSON}, (421, "unknown_host")),
        ("POST", {"Sec_Fetch_Site": "cross-site", **JSON}, (403, "cross_site")),
        ("POST", {}, (415, "unsupported_media_type")),
    ],
)
@pytest.mark.parametrize("path", ["/get/{}", "/get/{}/5", "/{}/5"])
def test_qb60_a_browser_or_a_prefetch_takes_nothing(
    served, q, queue, path, method, headers, answer
):
    q.add(queue, 1)
    if method == "POST" and not path.startswith("/get"):
        answer = (405, "method_not_allowed")
        headers = {"Origin": f"http://{served.addresses['http']}"}

    with Wire(served) as wire:
        asked = wire.ask(method, path.format(queue), b'{"data":{}}', **headers)

    assert asked == answer
    assert untouched(q, queue)


BROWSER = {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A server that others reach by a name. Browsers tell it nothing about who sent them."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with serving(folder, "--store", "memory", "--server-name", "jobs.example") as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        (BROWSER, False),
        ({**BROWSER, "Referer": "http://evil.example/"}, False),
        ({**BROWSER, "Referer": "http://jobs.example.evil.example/"}, False),
        ({**BROWSER, "Referer": "http://evil.example/http://jobs.example/"}, False),
        ({**BROWSER, "Authorization": "Basic Om5vYm9keQ=="}, False),
        ({**BROWSER, "Accept": "image/*"}, False),
        ({**BROWSER, "Referer": "http://jobs.example/ui/"}, True),
        ({**BROWSER, "Origin": "http://jobs.example"}, True),
        ({**BROWSER, "X_Qless_Host": "worker"}, True),
        ({**BROWSER, "Sec_Fetch_Site": "same-origin"}, True),
        ({**BROWSER, "Host": "localhost"}, True),
        ({**BROWSER, "Host": "127.0.0.1:7700"}, True),
        ({"User_Agent": "curl/8.5.0"}, True),
        ({"User_Agent": "python-requests/2.32"}, True),
        ({}, True),
    ],
)
@pytest.mark.parametrize("path", ["/get/{}", "/get/{}/5", "/{}/5", "/0.2.0/claim-work/default/{}"])
def test_qb60_a_browser_takes_nothing_for_a_page_that_may_be_another_sites(
    elsewhere, fresh, path, headers, is_taken
):
    q, queue = Qless(elsewhere), fresh()
    q.add(queue, 1)
    query = "?worker_group=g&worker_id=w" if path.startswith("/0.2.0") else ""

    headers = {"Host": "jobs.example"} | headers

    with Wire(elsewhere) as wire:
        wire.send("GET", path.format(queue) + query, **headers)
        status, _, _ = wire.answer()
    is_left = untouched(q, queue)
    q.close()

    assert status == (200 if is_taken else 403)
    assert is_left is not is_taken


def test_there_are_no_cors_headers(served, q, queue):
    own = f"http://{served.addresses['http']}"
    for path in (f"/get/{queue}", "/queues", "/nowhere"):
        response = q.http.get(path, headers={"Origin": own})
        assert response.status_code in (200, 404)
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_request_without_host_is_refused(served, q, queue):
    q.add(queue, 1)
    host, port = served.addresses["http"].split(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(f"GET /get/{queue} HTTP/1.1\r\n\r\n".encode())
        assert peer.recv(1000).startswith(b"HTTP/1.1 400")
    assert untouched(q, queue)


def test_qb61_a_client_that_hangs_up_before_its_answer_holds_nothing(served, q, queue):
    q.add(queue, *range(200))
    for path in (f"/get/{queue}", f"/get/{queue}/50", f"/{queue}/50", f"/get/{queue}?wait=5"):
        wire = Wire(served)
        wire.send("GET", path)
        # An abortive close: the server hears of it at once.
        wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
    # What was answered before the server heard of the end is held; the rest came back, and in
    # no case was a retry used up.
    counts = wait_until(lambda: q.counts(queue, "waiting", "pending"))
    assert sum(counts) == 200
    taken = q.take(queue, 200)
    assert {item["retries_left"] for item in taken} == {5}


def test_qb61_a_waiting_client_that_hangs_up_gets_no_job(served, q, queue):
    with Wire(served) as wire:
        wire.send("GET", f"/get/{queue}?wait=30")
        wait_until(lambda: "manyhands_sleepers 1.0" in q.http.get("/metrics").text)
    wait_until(lambda: "manyhands_sleepers 0.0" in q.http.get("/metrics").text)

    [job_id] = q.add(queue, 1)

    assert untouched(q, queue)
    assert q.job(job_id)["history"][1:] == []


def test_qb61_an_answer_that_cannot_be_written_gives_the_jobs_back(served, q, queue):
    ids = [q.add(queue, "x" * 1_000_000)[0] for _ in range(15)]
    with Wire(served) as wire:
        wire.send("GET", f"/get/{queue}/15")
        wire.peer.recv(1000)  # it begins, and most of it is still to come

    wait_until(lambda: q.counts(queue, "waiting", "pending") == [15, 0])

    shown = q.job(ids[0])
    assert shown["retries_left"] == 5
    assert shown["history"][-1]["what"] == "released"


def test_pipelined_requests_are_answered_in_order(served, q, queue):
    q.add(queue, 1, 2, 3)
    with Wire(served) as wire:
        head = f"GET /get/{queue} HTTP/1.1\r\nHost: {wire.host}\r\n\r\n"
        body = b'{"data": []}'
        post = (
            f"POST /add/{queue} HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        wire.peer.sendall(head.encode() + post + head.encode() + head.encode())
        file = wire.peer.makefile("rb")
        found = []
        for _ in range(4):
            size = 0
            while (line := file.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            found.append(json.loads(file.read(size))["results"])

    assert [row and row["meta"] for row in found] == [1, [], 2, 3]


def test_a_body_that_arrives_in_pieces_is_read_whole(served, queue):
    body = json.dumps({"data": [{"meta": "x" * 200_000}]}).encode()
    with Wire(served) as wire:
        wire.send("POST", f"/add/{queue}", b"", Content_Length=str(len(body)), **JSON)
        for at in range(0, len(body), 10_000):
            wire.peer.sendall(body[at : at + 10_000])
        status, _, found = wire.answer()
    assert status == 200
    assert len(json.loads(found)["results"][0]) == 32


def test_a_chunked_body_is_read_and_bounded(served, queue):
    for size, wanted in ((1_000, 200), (17 << 20, 413)):
        body = b'{"data": [{"meta": "' + b"x" * size + b'"}]}'
        with Wire(served) as wire:
            head = (
                f"POST /add/{queue} HTTP/1.1\r\nHost: {wire.host}\r\n"
                "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            wire.peer.sendall(head.encode())
            with contextlib.suppress(OSError):  # it may be refused before it is all there
                wire.peer.sendall(b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
            try:
                assert wire.answer()[0] == wanted
            except (OSError, IndexError):
                assert wanted == 413  # closed while we were still sending


def test_a_curl_that_expects_to_be_asked_on_is_served(served, queue):
    body = b'{"data": [{"meta": 1}]}'
    with Wire(served) as wire:
        head = {"Expect": "100-continue", "Content_Length": str(len(body)), **JSON}
        wire.send("POST", f"/add/{queue}", b"", **head)
        assert wire.peer.recv(100).startswith(b"HTTP/1.1 100")
        wire.peer.sendall(body)
        assert wire.answer()[0] == 200


def test_an_old_client_is_answered_and_let_go(served, queue):
    with Wire(served) as wire:
        wire.peer.sendall(f"GET /get/{queue} HTTP/1.0\r\nHost: {wire.host}\r\n\r\n".encode())
        status, headers, _ = wire.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert wire.peer.recv(1) == b""


def test_long_addresses_and_heads_are_refused(served, q):
    for extra, wanted in ((f"/get/{'x' * 20_000}", 414), ("/get/q", 431)):
        with Wire(served) as wire:
            headers = {f"X-{n}": "y" for n in range(200)} if wanted == 431 else {}
            wire.send("GET", extra, **headers)
            assert wire.answer()[0] == wanted
    assert q.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /get/q\r\n\r\n",
        b"\x00\x01\x02",
        b"GET /get/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /add/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_server_goes_on(served, q, raw):
    with Wire(served) as wire:
        wire.peer.sendall(raw)
        wire.peer.shutdown(socket.SHUT_WR)
        assert b" 200 " not in wire.peer.recv(1000)
    assert q.http.get("/healthz").status_code == 200


def test_a_server_that_stops_says_so(tmp_path):
    with serving(tmp_path, "--store", "memory", "--drain-seconds", "600") as server:
        client = Qless(server)
        client.add("q", 1)
        with Wire(server) as wire:
            wire.send("GET", "/get/empty?wait=30")
            wait_until(lambda: "manyhands_sleepers 1.0" in client.http.get("/metrics").text)
            client.close()
            assert server.stop() == 0
            status, _, found = wire.answer()
    assert (status, json.loads(found)["results"]) in ((200, None), (503, None))


def test_when_the_disk_is_nearly_full_adds_are_put_off_and_work_goes_on(tmp_path):
    with serving(tmp_path) as server:
        client = Qless(server, "w")
        client.add_id("q", "aa")
        client.close()
        assert server.stop() == 0
    with serving(tmp_path, "--disk-free-mib-min", str(1 << 30)) as server:
        client = Qless(server, "w")
        wait_until(lambda: "manyhands_store_full 1.0" in client.http.get("/metrics").text)
        refused = client.post("/add/q", [{"meta": 1}])
        assert client.problem(refused) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert client.take("q")["id"] == "aa"
        assert client.complete("q", "aa") == ["aa"]
        client.close()
