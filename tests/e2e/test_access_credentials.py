"""Credentials that are not in order, over every way to show who one is: nobody comes in."""

import contextlib
import re
import socket
from collections.abc import Callable
from http.client import HTTPConnection

import httpx
import pika
import pytest
import zmq
from websockets.exceptions import InvalidHandshake
from zmq.utils.monitor import recv_monitor_message

from manyhands.net.zmtp import command as zmtp_command
from manyhands.protocols.gearman import codec as wire
from tests.e2e import stream_talk
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import SECONDS_MAX, run, serving

LISTENERS = ("gearman", "dwork", "wmp", "amqp")
PLAIN_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32)
PASSWORD = "correct-horse-battery"


def new(file, name: str, *more: str, given: str | None = None) -> str:
    made = run("access", "new", name, "--role", "operate", "--file", str(file), *more, input=given)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credentials")
    file = folder / "access.toml"
    past = ("--expires", "2020-01-01T00:00:00Z")
    tokens = {"ada": new(file, "ada"), "late": new(file, "late", *past)}
    new(file, "eve", "--password", given=f"{PASSWORD}\n")
    new(file, "tardy", "--password", *past, given=f"{PASSWORD}\n")
    free = [flag for name in LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    with serving(folder, "--store", "memory", *free, "--access", str(file)) as served:
        yield served, tokens
        log = served.log()
        assert "Traceback" not in log
        assert PASSWORD not in log
        assert not any(token in log for token in tokens.values())


def by_basic(served, user: str, secret: str) -> bool:
    answer = httpx.get(f"{served.url}/api/queues", auth=(user, secret), timeout=60)
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


def by_bearer(served, _user: str, secret: str) -> bool:
    with contextlib.closing(HTTPConnection(served.addresses["http"], timeout=60)) as client:
        client.request("GET", "/api/queues", headers={"Authorization": f"Bearer {secret}"})
        status = client.getresponse().status
    assert status in (200, 401)
    return status == 200


def by_login_page(served, user: str, secret: str) -> bool:
    with httpx.Client(base_url=served.url, timeout=60) as browser:
        csrf = re.search(r'name="csrf" value="([^"]+)"', browser.get("/ui/login").text)[1]
        browser.post("/ui/login", data={"csrf": csrf, "user": user, "secret": secret})
        return browser.get("/api/queues").status_code == 200


def by_stream(served, user: str, secret: str) -> bool:
    auth = httpx.BasicAuth(user, secret)
    (request,) = [next(auth.auth_flow(httpx.Request("GET", served.url)))]
    headers = {"Authorization": request.headers["authorization"]}
    try:
        with stream_talk.talking(served, additional_headers=headers):
            return True
    except InvalidHandshake:
        return False


def by_option(served, _user: str, secret: str) -> bool:
    with GearmanTalk(served) as talk:
        kind, _ = talk.tell(wire.OPTION_REQ, b"token:" + secret.encode())
        return kind == wire.OPTION_RES


def by_auth_line(served, _user: str, secret: str) -> bool:
    with GearmanTalk(served) as talk:
        talk.send(b"auth " + secret.encode() + b"\r\n")
        return talk.next()[1] == [b"OK"]


def by_plain_of_zeromq(listener: str) -> Callable[..., bool]:
    def log_in(served, user: str, secret: str) -> bool:
        if not (user and secret):  # which libzmq does not send
            return b"READY" in answer_to_plain(served.addresses[listener], user, secret)
        context = zmq.Context()
        try:
            peer = context.socket(zmq.DEALER)
            peer.plain_username, peer.plain_password = user.encode(), secret.encode()
            seen = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            monitor = peer.get_monitor_socket(seen | failed | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
            peer.connect(f"tcp://{served.addresses[listener]}")
            assert monitor.poll(SECONDS_MAX * 1000)
            return recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        finally:
            context.destroy(linger=0)

    return log_in


def answer_to_plain(address: str, user: str, secret: str) -> bytes:
    hello = b"".join(bytes((len(text),)) + text.encode() for text in (user, secret))
    host, _, port = address.rpartition(":")
    said = b""
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        peer.sendall(PLAIN_GREETING + zmtp_command(b"HELLO", hello))
        peer.sendall(zmtp_command(b"INITIATE", b"\x0bSocket-Type\0\0\0\x06DEALER"))
        peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(1 << 16):
                said += piece
    return said


def by_plain_of_amqp(served, user: str, secret: str) -> bool:
    host, _, port = served.addresses["amqp"].rpartition(":")
    credentials = pika.PlainCredentials(user, secret)
    try:
        pika.BlockingConnection(
            pika.ConnectionParameters(host, int(port), credentials=credentials)
        ).close()
    except pika.exceptions.ProbableAuthenticationError:
        return False
    return True


WITH_A_USER = {
    "Basic": by_basic,
    "the login page": by_login_page,
    "the stream": by_stream,
    "dwork": by_plain_of_zeromq("dwork"),
    "WMP": by_plain_of_zeromq("wmp"),
    "AMQP": by_plain_of_amqp,
}
WITH_A_TOKEN = {"Bearer": by_bearer, "OPTION_REQ": by_option, "auth": by_auth_line}
WAYS = {**WITH_A_USER, **WITH_A_TOKEN}
WRONG = {
    "wrong": ("ada", "wrong"),
    "empty": ("ada", ""),
    "nothing at all": ("", ""),
    "an unknown user": ("nobody", PASSWORD),
    "the password of an expired user": ("tardy", PASSWORD),
    "a password with more behind it": ("eve", f"{PASSWORD}x"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_right_secret_lets_in(world, way):
    served, tokens = world
    assert WAYS[way](served, "ada", tokens["ada"])


@pytest.mark.parametrize("way", WITH_A_USER)
def test_a_password_lets_in_where_a_user_is_named(world, way):
    served, _ = world
    assert WAYS[way](served, "eve", PASSWORD)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", WRONG)
def test_credentials_that_are_not_in_order_let_nobody_in(world, way, what):
    served, _ = world
    assert not WAYS[way](served, *WRONG[what])


@pytest.mark.parametrize("way", WAYS)
def test_an_expired_token_lets_nobody_in(world, way):
    served, tokens = world
    assert not WAYS[way](served, "late", tokens["late"])


@pytest.mark.parametrize("way", WITH_A_USER)
def test_the_token_of_another_user_lets_nobody_in(world, way):
    served, tokens = world
    assert not WAYS[way](served, "eve", tokens["ada"])


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("dwork", "WMP", "AMQP")])
def test_a_secret_of_many_kilobytes_lets_nobody_in(world, way):
    """Where the protocol has no bound of its own; over HTTP, up to that of a head."""
    served, _ = world
    assert not WAYS[way](served, "ada", "x" * 5_000)
