"""A flood of wrong passwords holds up nobody: while no check ends, others go on."""

import base64
import socket
import threading

import httpx
import pytest
import zmq
from pamqp.commands import Connection

from manyhands.access.callers import PasswordCheck, new_password
from manyhands.config import Address, Config
from manyhands.config.kinds import Endpoint, Endpoints
from manyhands.protocols.dwork.codec import Kind, Query, encode
from manyhands.protocols.dwork.reader import decode
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import listener as gearman_listener
from tests.amqp.raw import Raw
from tests.e2e.dwork_talk import a_task
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.inside import inside
from tests.e2e.test_access_file import new

ROUND_TRIPS = 100
PASSWORD = "a right password"
FLOOD = 10  # of each protocol
HERE = Address("127.0.0.1", 0)


@pytest.fixture
def gate(monkeypatch):
    """No password is checked before this is set."""
    gate = threading.Event()
    run = PasswordCheck.run

    def held(self):
        assert gate.wait(90)
        return run(self)

    monkeypatch.setattr(PasswordCheck, "run", held)
    yield gate
    gate.set()


def add_password(file, name: str = "ada", role: str = "worker") -> None:
    entry = f'[[caller]]\nname = "{name}"\nrole = "{role}"\npassword = "{new_password(PASSWORD)}"\n'
    file.write_text(f"{file.read_text()}\n{entry}")


def wrong_http(server) -> socket.socket:
    """A request with a wrong password, without waiting for its answer."""
    host, _, port = server.addresses["http"].rpartition(":")
    peer = socket.create_connection((host, int(port)), 90)
    basic = base64.b64encode(b"ada:wrong").decode()
    head = f"GET /api/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {basic}\r\n\r\n"
    peer.sendall(head.replace("Host: x", f"Host: {host}").encode())
    return peer


def wrong_amqp(server) -> Raw:
    raw = Raw(server)
    raw.start()
    raw.log_in("\0ada\0wrong", capabilities={"authentication_failure_close": True})
    return raw


def wrong_zmtp(server, context: zmq.Context) -> zmq.Socket:
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    peer.plain_username, peer.plain_password = b"ada", b"wrong"
    peer.connect(f"tcp://{server.addresses['dwork']}")
    return peer


def test_others_go_on_while_wrong_passwords_wait_over_every_protocol(tmp_path, gate):
    file = tmp_path / "access.toml"
    token = new(file, "worker", "--role", "worker")
    operator = new(file, "boss", "--role", "operate")
    add_password(file)
    config = Config(
        http=HERE,
        gearman=HERE,
        amqp=HERE,
        dwork=Endpoints((Endpoint("dwork", HERE),)),
        wmp=None,
        access=file,
    )
    context = zmq.Context()
    with inside(config) as server:
        flood = [wrong_http(server) for _ in range(FLOOD)]
        watchers = [wrong_amqp(server) for _ in range(FLOOD)]
        peers = [wrong_zmtp(server, context) for _ in range(FLOOD)]

        with GearmanTalk(server) as talk, httpx.Client(base_url=server.url) as client:
            assert talk.tell(wire.OPTION_REQ, b"token:" + token.encode())[0] == wire.OPTION_RES
            for number in range(ROUND_TRIPS):
                made = talk.tell(wire.SUBMIT_JOB_BG, b"q", b"", b"%d" % number)
                assert made[0] == wire.JOB_CREATED
            client.headers["Authorization"] = f"Bearer {operator}"
            for _ in range(ROUND_TRIPS):
                assert client.get("/api/queues").is_success
            waiting = client.get("/metrics").text

            # No password has been looked at meanwhile, so nobody was answered.
            assert 'failed_logins_total{protocol="http"}' not in waiting
            for peer in flood:
                peer.setblocking(False)
                with pytest.raises(BlockingIOError):
                    peer.recv(1)
                peer.settimeout(90)
            gate.set()
            answers = [peer.recv(65536).split(b"\r\n", 1)[0] for peer in flood]
            closes = [raw.hear() for raw in watchers]

            statuses = {answer.split()[1] for answer in answers}
            assert b"401" in statuses
            assert statuses <= {b"401", b"503"}
            for heard in closes:  # refused, or sent away to try again
                assert heard is None or heard[1].reply_code == 403
                assert heard is None or isinstance(heard[1], Connection.Close)
        for peer in (*flood, *peers):
            peer.close()
        for raw in watchers:
            raw.socket.close()
        context.destroy(0)


def test_a_gearman_peer_without_credentials_is_let_go_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(gearman_listener, "_LOOK_SECONDS", 0.1)
    file = tmp_path / "access.toml"
    token = new(file, "ada", "--role", "worker")
    config = Config(http=HERE, gearman=HERE, dwork=None, wmp=None, amqp=None, access=file)
    with (
        inside(config) as server,
        GearmanTalk(server) as known,
        GearmanTalk(server) as stranger,
    ):
        known.tell(wire.OPTION_REQ, b"token:" + token.encode())
        assert stranger.tell(wire.ECHO_REQ, b"x")[0] == wire.ECHO_RES

        assert stranger.is_closed_by_server()
        assert known.tell(wire.ECHO_REQ, b"still here")[0] == wire.ECHO_RES


def test_answers_keep_their_order_while_a_password_is_checked(tmp_path, gate):
    file = tmp_path / "access.toml"
    operator = new(file, "boss", "--role", "operate")
    add_password(file)
    config = Config(http=HERE, gearman=None, amqp=None, dwork=None, wmp=None, access=file)
    with inside(config) as server:
        peer = wrong_http(server)
        host = server.addresses["http"]
        peer.sendall(
            f"GET /api/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {operator}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        gate.set()
        said = b""
        while data := peer.recv(65536):
            said += data
        peer.close()

    first, second = said.index(b"HTTP/1.1 401"), said.index(b"HTTP/1.1 200")
    assert first < second
    assert b'"name":"boss"' in said[second:]


def test_a_right_password_lets_in_over_dwork_and_is_checked_once(tmp_path, monkeypatch):
    file = tmp_path / "access.toml"
    new(file, "boss", "--role", "operate")
    add_password(file)
    ran = []
    run = PasswordCheck.run
    monkeypatch.setattr(PasswordCheck, "run", lambda self: ran.append(1) or run(self))
    context = zmq.Context()
    dwork = Endpoints((Endpoint("dwork", HERE),))
    config = Config(http=None, gearman=None, amqp=None, dwork=dwork, wmp=None, access=file)
    with inside(config) as server:
        for number in range(3):
            peer = context.socket(zmq.REQ)
            peer.linger, peer.rcvtimeo = 0, 90_000
            peer.plain_username, peer.plain_password = b"ada", PASSWORD.encode()
            peer.connect(f"tcp://{server.addresses['dwork']}")
            peer.send(encode(Query(kind=Kind.CREATE, tasks=(a_task(f"t{number}"),))))
            assert decode(peer.recv()).kind is Kind.OK
            peer.close()
    context.destroy(0)

    assert len(ran) == 1
