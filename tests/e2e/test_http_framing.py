"""Where a request ends: no part of one is ever taken for another, and every refusal is heard."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import textwrap

import pytest

from tests.e2e.serving import SECONDS_MAX, Served, own_port, wait_until

_SUBMIT = b'{"queue":"%s"}'


def place_of(served: Served) -> tuple[str, int]:
    host, _, port = (served.addresses["http"] or "").rpartition(":")
    return host, int(port)


def smuggled(queue: str) -> bytes:
    """A request to be hidden in a body."""
    body = _SUBMIT % queue.encode()
    head = b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)


def carrier(path: str, body: bytes, *lines: bytes) -> bytes:
    """A request whose body is one."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (
        path.encode(),
        len(body),
    )
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def last_request() -> bytes:
    return b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def talk(place: tuple[str, int], *packets: bytes) -> list[tuple[int, dict]]:
    """Sends packets, and gives all answers until the server closes."""
    with socket.create_connection(place, SECONDS_MAX) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            peer.sendall(packet)
        received = b""
        while piece := peer.recv(65536):
            received += piece
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        ]
        found.append((int(head.split()[1]), json.loads(rest[: lengths[0]])))
        received = rest[lengths[0] :]
    return found


_UPGRADES = [
    (b"Connection: Upgrade", b"Upgrade: websocket"),
    (b"Connection: keep-alive, Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"),
    (b"Upgrade: anything", b"Connection: upgrade"),
]


@pytest.mark.parametrize("lines", _UPGRADES, ids=["websocket", "h2c", "anything"])
@pytest.mark.parametrize("path", ["/healthz", "/api/submit", "/get/q"])
@pytest.mark.parametrize("way", ["together", "apart", "in-pieces", "beyond-8-KiB"])
def test_the_body_of_a_request_that_asks_for_an_upgrade_is_its_body(
    served, api, queue, lines, path, way
):
    body = smuggled(queue)
    if way == "beyond-8-KiB":
        head = carrier(path, body)
        filler = b"X-Filler: " + b"x" * (
            8192 - len(head) - sum(map(len, lines)) - 2 * len(lines) - 12
        )
        lines = (*lines, filler)
        assert len(carrier(path, body, *lines)) == 8192
    whole = carrier(path, body, *lines) + body + last_request()
    if way == "apart":
        packets = [carrier(path, body, *lines), body, last_request()]
    elif way == "in-pieces":
        packets = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    else:
        packets = [whole]

    answers = talk(place_of(served), *packets)

    assert answers[0][0] in (405, 415)
    # The connection may be closed because the body came later than its refusal.
    assert [body["results"]["ready"] for _, body in answers[1:]] in ([], [True])
    assert queue not in [row["name"] for row in api.get("queues")]


def test_a_body_is_taken_from_a_request_that_asks_for_an_upgrade(served, api, queue):
    """As Java's client does with its first request."""
    body = _SUBMIT % queue.encode()
    json_lines = (b"Content-Type: application/json", *_UPGRADES[1])

    answers = talk(
        place_of(served), carrier("/api/submit", body, *json_lines) + body + last_request()
    )

    assert [status for status, _ in answers] == [200, 200]
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


@pytest.mark.parametrize(
    ("request_line", "lines", "status"),
    [
        (b"POST /api/submit HTTP/1.1", [b"Transfer-Encoding: gzip, chunked"], 501),
        (b"POST /api/submit HTTP/1.1", [b"Transfer-Encoding: identity, chunked"], 501),
        (b"POST /get/q HTTP/1.1", [b"Transfer-Encoding: gzip, chunked"], 501),
        (b"POST /api/submit HTTP/1.0", [b"Transfer-Encoding: chunked"], 400),
        (b"POST /api/submit HTTP/1.0", [b"Transfer-Encoding: gzip, chunked"], 400),
        (b"GET http://elsewhere.example/healthz HTTP/1.1", [], 400),
        (b"GET http://localhost@elsewhere.example/healthz HTTP/1.1", [], 400),
        (b"GET //elsewhere.example/healthz HTTP/1.1", [], 404),
        (b"CONNECT localhost:80 HTTP/1.1", [], 405),
        (b"CONNECT /healthz HTTP/1.1", [], 405),
    ],
)
def test_what_could_be_understood_in_two_ways_is_refused_and_the_connection_closed(
    served, request_line, lines, status
):
    head = b"".join(line + b"\r\n" for line in [request_line, b"Host: localhost", *lines])
    tail = b"\r\n0\r\n\r\n" if lines else b"\r\n"

    answers = talk(place_of(served), head + tail + last_request())

    assert answers[0][0] == status
    assert answers[0][1]["error"]["message"]
    assert len(answers) == (2 if status == 404 else 1)


def test_an_address_with_the_host_that_was_asked_for_is_answered(served):
    request = (
        b"GET http://localhost/readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )

    [(status, _)] = talk(place_of(served), request)

    assert status == 200


# Behind a proxy.

_NGINX = """
    daemon off;
    pid {folder}/pid;
    error_log {folder}/error.log;
    events {{}}
    http {{
        access_log off;
        client_body_temp_path {folder}/body;
        proxy_temp_path {folder}/proxy;
        fastcgi_temp_path {folder}/fastcgi;
        uwsgi_temp_path {folder}/uwsgi;
        scgi_temp_path {folder}/scgi;
        server {{
            listen 127.0.0.1:{port};
            location /healthz {{
                proxy_pass http://{upstream};
                proxy_http_version 1.1;
                proxy_request_buffering {buffering};
                proxy_set_header Host localhost;
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection "upgrade";
            }}
            location /api/stream {{
                proxy_pass http://{upstream};
                proxy_http_version 1.1;
                proxy_set_header Host localhost;
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection "upgrade";
            }}
            location / {{ return 403; }}
        }}
    }}
"""


@pytest.fixture(params=["on", "off"])
def nginx(request, served, tmp_path):
    """A real proxy that lets few paths through, set up for WebSockets."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("nginx is not installed")
        pytest.skip("nginx is not installed")
    port = own_port()
    text = _NGINX.format(
        folder=tmp_path, port=port, upstream=served.addresses["http"], buffering=request.param
    )
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(textwrap.dedent(text))
    tmp_path.chmod(0o755)
    process = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(configuration)])

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "error.log").read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    wait_until(answers)
    yield "127.0.0.1", port
    process.terminate()
    process.wait(SECONDS_MAX)


@pytest.mark.parametrize("lines", _UPGRADES, ids=["websocket", "h2c", "anything"])
@pytest.mark.parametrize("filler_bytes", [0, 8400])
def test_no_request_gets_past_a_proxy_inside_another(
    served, api, nginx, queue, lines, filler_bytes
):
    """Only /healthz is let through, whatever its body says."""
    body = b"\r\n" * (filler_bytes // 2) + smuggled(queue)
    request = carrier("/healthz", body, *lines)
    for packets in ([request + body], [request, body]):
        with socket.create_connection(nginx, SECONDS_MAX) as peer:
            for packet in packets:
                peer.sendall(packet)
            assert peer.recv(65536).startswith(b"HTTP/1.1 405")
    # Whatever the proxy sent on was looked at once this is answered.
    talk(place_of(served), last_request())

    assert queue not in [row["name"] for row in api.get("queues")]


# A refusal is heard by those who are still sending.


@pytest.mark.parametrize("path", ["/api/submit", "/add/q", "/nowhere", "/healthz"])
def test_a_peer_that_sends_all_of_its_body_first_hears_why_it_was_refused(served, path):
    """http.client looks for an answer only when everything has left."""
    host, port = place_of(served)
    client = http.client.HTTPConnection(host, port, timeout=SECONDS_MAX)
    client.request("POST", path, b"x" * 100_000_000, {"Content-Type": "application/json"})
    answer = client.getresponse()
    body = json.loads(answer.read())
    client.close()

    assert answer.status == {"/nowhere": 404, "/healthz": 405}.get(path, 413)
    assert body["error"]["message"]


_NODE = """
const body = Buffer.alloc(17 * 1024 * 1024, "x")
const headers = {"Content-Type": "application/json"}
for (let number = 0; number < 5; number++) {
  const answer = await fetch(process.argv[1], {method: "POST", body, headers})
  console.log(answer.status, (await answer.json()).error.code)
}
"""


def test_node_hears_why_it_was_refused_too(served):
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI"):
            pytest.fail("node is not installed")
        pytest.skip("node is not installed")
    arguments = [node, "--input-type=module", "--eval", _NODE, f"{served.url}/add/q"]

    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )

    assert ended.stdout.splitlines() == ["413 too_large"] * 5, ended.stderr


def test_a_peer_that_was_refused_and_sends_without_end_is_cut_off(served):
    with socket.create_connection(place_of(served), SECONDS_MAX) as peer:
        peer.sendall(
            b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert peer.recv(65536).startswith(b"HTTP/1.1 413")
        piece = b"x" * 1_000_000
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 10_000:
                peer.sendall(piece)
                sent += 1

        assert sent < 1_000
