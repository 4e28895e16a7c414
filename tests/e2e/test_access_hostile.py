"""Hostile peers of a server with an access file: garbage instead of a handshake, secrets that must
not show, callers that are removed while they are connected.
"""

import base64
import contextlib
import random
import signal
import socket
import ssl
import time
from pathlib import Path

import httpx
import pika
import pytest
import zmq
from pamqp import commands as amqp

from manyhands.access.curve_keys import as_text, file_text, new_keys
from manyhands.net.zmtp import command as zmtp_command
from manyhands.protocols.dwork.codec import Kind
from manyhands.protocols.gearman import codec as wire
from tests.amqp.raw import raw_client
from tests.e2e import stream_talk
from tests.e2e.certificates import Authority
from tests.e2e.dwork_talk import Talk as DworkTalk
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import SECONDS_MAX, run, serving, wait_until
from tests.e2e.wmp_talk import Talk as WmpTalk
from tests.unit.net.curve_client import GREETING, CurveClient

PLAIN_LISTENERS = ("gearman", "dwork", "wmp", "amqp")
SERVER = new_keys()
PASSWORD = "planted-passw0rd-of-hers"
PLAIN_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32)


def new(file: Path, name: str, *more: str, given: str | None = None) -> str:
    made = run("access", "new", name, "--file", str(file), *more, input=given)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / "access.toml"
    token = new(file, "ada", "--role", "operate")
    pair = Authority(folder).sign("server", "IP:127.0.0.1,DNS:localhost")
    key = folder / "curve"
    key.write_text(file_text(SERVER, with_secret=True))
    key.chmod(0o600)
    listeners = (*PLAIN_LISTENERS, "http-tls", "gearman-tls", "amqp-tls", "dwork-curve")
    free = [flag for name in listeners for flag in (f"--{name}", "127.0.0.1:0")]
    options = (*free, *pair.options, "--curve-key", str(key), "--access", str(file))
    with serving(folder, *options) as served:
        yield served, token, file
        assert "Traceback" not in served.log()


def connect(served, listener: str) -> socket.socket:
    host, _, port = served.addresses[listener].rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS_MAX)


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some changed, cut off, repeated, or followed by others."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) or 1)
        match rng.randrange(5):
            case 0 if found:
                found[at] = rng.randrange(256)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = rng.randbytes(rng.randint(1, 40))
            case 3:
                found += found[at:]
            case _:
                found += rng.randbytes(rng.randint(1, 2_000))
    return bytes(found)


def client_hello() -> bytes:
    """What a peer of TLS says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        peer.do_handshake()
    return outgoing.read()


def start_ok(mechanism: str, response: str) -> bytes:
    from pamqp import frame

    return b"AMQP\0\0\x09\x01" + frame.marshal(
        amqp.Connection.StartOk({}, mechanism, response, "en_US"), 0
    )


def handshakes() -> dict[str, tuple[str, bytes]]:
    """For each way to show who one is: where, and what a peer with a wrong secret sends."""
    basic = base64.b64encode(b"ada:wrong").decode()
    plain = zmtp_command(b"HELLO", b"\x03ada\x05wrong")
    curve = CurveClient(new_keys(), SERVER.public)
    head = "GET /api/queues HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
    option = wire.encode_request(wire.OPTION_REQ, b"token:wrong")
    submit = wire.encode_request(wire.SUBMIT_JOB_BG, b"q", b"", b"x")
    return {
        "HTTP Basic": ("http", f"{head}Basic {basic}\r\n\r\n".encode()),
        "HTTP Bearer": ("http", f"{head}Bearer wrong\r\n\r\n".encode()),
        "session": ("http", b"GET /ui/ HTTP/1.1\r\nHost: localhost\r\nCookie: a=b; c\r\n\r\n"),
        "OPTION_REQ": ("gearman", option + submit),
        "auth line": ("gearman", b"auth wrong\r\nstatus\r\n"),
        "SASL PLAIN": ("amqp", start_ok("PLAIN", "\0ada\0wrong")),
        "SASL AMQPLAIN": ("amqp", start_ok("AMQPLAIN", "\x05LOGINS\0\0\0\x03ada")),
        "SASL EXTERNAL": ("amqp", start_ok("EXTERNAL", "")),
        "ZMTP PLAIN": ("dwork", PLAIN_GREETING + plain),
        "ZMTP PLAIN to WMP": ("wmp", PLAIN_GREETING + plain),
        "CURVE": ("dwork_curve", GREETING + curve.hello()),
        "TLS to HTTP": ("http_tls", client_hello()),
        "TLS to Gearman": ("gearman_tls", client_hello()),
        "TLS to AMQP": ("amqp_tls", client_hello()),
    }


HANDSHAKES = handshakes()


@pytest.mark.parametrize("way", HANDSHAKES)
def test_a_spoiled_handshake_lets_nobody_in_and_harms_nobody(world, way):
    served, token, _ = world
    rng = random.Random(way)
    listener, data = HANDSHAKES[way]
    peers = []
    for _ in range(30):
        peer = connect(served, listener)
        peers.append(peer)
        with contextlib.suppress(ConnectionError):
            peer.sendall(spoiled(rng, data))
            peer.shutdown(socket.SHUT_WR)
    said = b""
    for peer in peers:
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(1 << 16):
                said += piece
        peer.close()

    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}) as ada:
        assert ada.get("/healthz").status_code == 200
        assert ada.get("/api/jobs").json()["results"] == []
    assert b"JOB_CREATED" not in said
    assert b'"results":[' not in said
    assert token.encode() not in said


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"CURVE2", b"\xff" * 20, b""])
def test_nobody_talks_a_curve_listener_out_of_its_encryption(world, mechanism):
    served, _, _ = world
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)
    with connect(served, "dwork_curve") as peer:
        peer.sendall(greeting + zmtp_command(b"READY", b"\x0bSocket-Type\0\0\0\x03REQ"))
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(1 << 16):
                said += piece

    assert b"READY" not in said


# Callers that are removed, or whose time is over, while they are connected.


class Connected:
    """A caller with a connection over every protocol."""

    def __init__(self, served, token: str, stack: contextlib.ExitStack) -> None:
        self.served = served
        headers = {"Authorization": f"Bearer {token}"}
        self.gearman = stack.enter_context(GearmanTalk(served))
        assert self.gearman.tell(wire.OPTION_REQ, b"token:" + token.encode())[0] == wire.OPTION_RES
        self.gearman.tell(wire.SUBMIT_JOB_BG, b"held", b"", b"work")
        self.gearman.send(wire.encode_request(wire.CAN_DO, b"held"))
        assert self.gearman.tell(wire.GRAB_JOB)[0] == wire.JOB_ASSIGN
        self.stream = stack.enter_context(
            stream_talk.talking(served, "w", additional_headers=headers)
        )
        self.events = connect(served, "http")
        head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.events.sendall(f"GET /events HTTP/1.1\r\n{head}".encode())
        assert b"200 OK" in self.events.recv(1 << 16)
        self.page = connect(served, "http")
        self.page.sendall(f"GET /ui/live HTTP/1.1\r\n{head}".encode())
        assert b"200 OK" in self.page.recv(1 << 16)
        self.waiting = connect(served, "http")
        self.waiting.sendall(f"GET /get/empty?wait=60 HTTP/1.1\r\n{head}".encode())
        with httpx.Client(base_url=served.url, headers=headers) as client:
            client.put("/api/queues/empty", json={"paused": False})
            wait_until(lambda: client.get("/api/queues/empty").json()["results"]["awaited"])
        self.watcher = pika.BlockingConnection(
            pika.ConnectionParameters(
                *split(served.addresses["amqp"]), credentials=pika.PlainCredentials("gone", token)
            )
        )
        login = ("gone", token)
        self.wmp = stack.enter_context(
            WmpTalk(served.addresses["wmp"], comes_back=False, login=login)
        )
        self.wmp_monitor = self.wmp.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.wmp.submit("held-by-wmp")
        self.wmp.take(role="held-by-wmp")
        self.context = zmq.Context()
        stack.callback(self.context.destroy, linger=0)
        self.dwork = self.context.socket(zmq.DEALER)
        self.dwork.setsockopt(zmq.PLAIN_USERNAME, b"gone")
        self.dwork.setsockopt(zmq.PLAIN_PASSWORD, token.encode())
        self.dwork.setsockopt(zmq.RECONNECT_IVL, -1)
        self.monitor = self.dwork.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.dwork.connect(f"tcp://{served.addresses['dwork']}")
        self.dwork.send_multipart([b"", encoded_steal()])
        assert self.dwork.poll(SECONDS_MAX * 1000)

    def is_cut_off(self) -> bool:
        """Every one of the connections is closed by the server."""
        assert self.gearman.is_closed_by_server()
        with contextlib.suppress(Exception):
            while True:
                self.stream.socket.recv(SECONDS_MAX)
        assert self.stream.socket.close_code is not None
        for peer in (self.events, self.page, self.waiting):
            assert is_closed(peer), "a request over HTTP goes on"
            peer.close()
        with contextlib.suppress(pika.exceptions.AMQPError, ConnectionError):
            while self.watcher.is_open:
                self.watcher.process_data_events(time_limit=1)
        assert self.monitor.poll(SECONDS_MAX * 1000), "the dwork peer is still there"
        assert self.wmp_monitor.poll(SECONDS_MAX * 1000), "the WMP peer is still there"
        return True


def is_closed(peer: socket.socket) -> bool:
    """Whether the server closes it, rather than to send signs of life."""
    until = time.monotonic() + SECONDS_MAX
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 16):
            if time.monotonic() > until:
                return False
    return True


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def encoded_steal() -> bytes:
    from manyhands.protocols.dwork.codec import Query, encode

    return encode(Query(kind=Kind.STEAL, location="w"))


@pytest.mark.parametrize("how", ["removed", "removed without a signal", "expired"])
def test_a_caller_that_ends_is_cut_off_over_every_protocol(tmp_path, how):
    file = tmp_path / "access.toml"
    token = new(file, "gone", "--role", "operate")
    stays = new(file, "ada", "--role", "operate")
    free = [flag for name in PLAIN_LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    with (
        contextlib.ExitStack() as stack,
        serving(tmp_path, "--store", "memory", *free, "--access", str(file)) as served,
    ):
        gone = Connected(served, token, stack)
        beside = stack.enter_context(GearmanTalk(served))
        beside.tell(wire.OPTION_REQ, b"token:" + stays.encode())
        if how.startswith("removed"):
            assert run("access", "remove", "gone", "--file", str(file)).returncode == 0
        else:
            text = file.read_text().replace(
                'name = "gone"', 'name = "gone"\nexpires = 2020-01-01T00:00:00Z'
            )
            file.write_text(text)
        if how != "removed without a signal":
            served.process.send_signal(signal.SIGHUP)

        assert gone.is_cut_off()
        assert beside.is_alive()
        # What it held is given to the next.
        beside.send(wire.encode_request(wire.CAN_DO, b"held"))
        kind, said = beside.tell(wire.GRAB_JOB)
        assert (kind, said[1:]) == (wire.JOB_ASSIGN, [b"held", b"work"])
        answer = httpx.get(f"{served.url}/api/me", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401


# Secrets.


def test_no_secret_shows_anywhere(tmp_path):
    file = tmp_path / "access.toml"
    token = new(file, "ada", "--role", "operate")
    new(file, "eve", "--role", "operate", "--password", given=f"{PASSWORD}\n")
    curve_key = tmp_path / "curve"
    curve_key.write_text(file_text(SERVER, with_secret=True))
    curve_key.chmod(0o600)
    free = [flag for name in PLAIN_LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    options = (*free, "--dwork-curve", "127.0.0.1:0", "--curve-key", str(curve_key))
    secrets = {"token": token, "password": PASSWORD, "CURVE key": as_text(SERVER.secret)}
    seen: dict[str, str] = {}
    with serving(tmp_path, *options, "--access", str(file), "--log-level", "debug") as served:
        for credentials in ((token,), ("eve", PASSWORD)):
            show_everywhere(served, *credentials)
        with httpx.Client(base_url=served.url, timeout=60) as browser:
            form = browser.get("/ui/login").text
            csrf = form.partition('name="csrf" value="')[2].partition('"')[0]
            browser.post("/ui/login", data={"csrf": csrf, "user": "eve", "secret": PASSWORD})
            secrets["session"] = browser.cookies["manyhands_session"]
            for path in ("", "audit", "about", "events", "workers", "servers", "jobs"):
                seen[f"/ui/{path}"] = browser.get(f"/ui/{path}").text
        with httpx.Client(base_url=served.url, auth=("eve", PASSWORD), timeout=60) as eve:
            for path in ("/metrics", "/api/audit", "/api/about", "/api/me", "/api/events", "/docs"):
                seen[path] = eve.get(path).text
            for wrong in ("/api/none", f"/api/jobs/{'x' * 600}", "/api/submit"):
                seen[wrong[:20]] = eve.post(wrong, json={}).text
        seen["the process list"] = processes()
        backup = run("backup", "--data", str(served.data), str(tmp_path / "copy"))
        export = run("export", "--data", str(served.data))
        seen["backup"], seen["export"] = backup.stderr, export.stdout + export.stderr
        seen["config"] = run("config", "--access", str(file)).stdout
        seen["list"] = run("access", "list", "--file", str(file)).stdout
        seen["doctor"] = run("doctor", "--data", str(served.data)).stdout
    seen["log"] = served.log()
    for found in (*served.data.rglob("*"), *tmp_path.glob("copy*")):
        if found.is_file():
            seen[str(found)] = found.read_bytes().decode("latin-1")
    seen["access file"] = file.read_text()

    assert len(seen["log"]) > 1_000
    for place, text in seen.items():
        for name, secret in secrets.items():
            assert secret not in text, f"the {name} is in {place}"


def show_everywhere(served, *credentials: str) -> None:
    """Shows a credential over every protocol, rightly and with mistakes."""
    *users, secret = credentials
    user = users[0] if users else "ada"
    for shown in (secret, f"{secret}x", secret[:-1]):
        with GearmanTalk(served) as talk:
            talk.send(b"auth " + shown.encode() + b"\r\n")
            talk.next()
            talk.tell(wire.OPTION_REQ, b"token:" + shown.encode())
        basic = base64.b64encode(f"{user}:{shown}".encode()).decode()
        for header in (f"Basic {basic}", f"Bearer {shown}", f"Hawk {shown}", f"Basic {shown}"):
            httpx.get(f"{served.url}/api/queues", headers={"Authorization": header}, timeout=60)
        with raw_client(served) as peer:
            peer.start()
            peer.say(amqp.Connection.StartOk({}, "PLAIN", f"\0{user}\0{shown}", "en_US"))
            peer.hear()
    with DworkTalk(served, kind=zmq.DEALER) as talk:
        talk.socket.setsockopt(zmq.PLAIN_USERNAME, user.encode())
        talk.socket.setsockopt(zmq.PLAIN_PASSWORD, secret.encode())
        talk.socket.connect(f"tcp://{served.addresses['dwork']}")
        talk.socket.send_multipart([b"", encoded_steal()])
        talk.socket.poll(2_000)


def processes() -> str:
    """What anybody on this machine sees of programs."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(line.read_text(errors="replace"))
    return "\n".join(found)
