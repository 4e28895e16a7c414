"""ZeroMQ with CURVE and with passwords, by clients on libzmq."""

import contextlib
import json
import signal
import socket
import subprocess
import threading

import pytest
import zmq
import zmq.utils.monitor

from manyhands.access.curve_keys import CurveKeys, as_text, file_text, new_keys, read_keys
from manyhands.protocols.dwork.codec import Kind
from tests.e2e.dwork_talk import REPLY_MS_MAX, Talk, a_task
from tests.e2e.serving import (
    SECONDS_MAX,
    Served,
    command,
    environment,
    run,
    serving,
    start,
    wait_until,
)
from tests.e2e.wmp_talk import working

SERVER, CLIENT, OTHER = new_keys(), new_keys(), new_keys()
FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


@contextlib.contextmanager
def curve_serving(folder, *options):
    key = folder / "server.key_secret"
    key.write_text(file_text(SERVER, with_secret=True))
    key.chmod(0o600)
    addresses = ("--dwork", "127.0.0.1:0", "--dwork-curve", "127.0.0.1:0,other=127.0.0.1:0")
    addresses += ("--wmp-curve", "127.0.0.1:0", "--curve-key", str(key))
    with serving(folder, *addresses, "--store", "memory", *options) as server:
        yield server


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request, tmp_path):
    with curve_serving(tmp_path, "--loop", request.param) as server:
        yield server


def address_of(server: Served, queue: str = "dwork") -> str:
    for part in (server.addresses["dwork_curve"] or "").split(","):
        name, _, address = part.rpartition("=")
        if (name or "dwork") == queue:
            return address
    raise AssertionError(f"there is no {queue}")


def secure(peer, server_key: bytes = SERVER.public, keys: CurveKeys = CLIENT) -> None:
    peer.curve_serverkey = as_text(server_key).encode()
    peer.curve_publickey = as_text(keys.public).encode()
    peer.curve_secretkey = as_text(keys.secret).encode()


class CurveTalk(Talk):
    """A dwork peer whose socket is prepared before it connects."""

    def __init__(self, address: str, prepare=secure, kind: int = zmq.REQ) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, REPLY_MS_MAX)
        prepare(self.socket)
        self.monitor = self.socket.get_monitor_socket()
        self.socket.connect(f"tcp://{address}")

    def first_event(self, wanted: int) -> int:
        """The first of these events of its connection."""
        while self.monitor.poll(REPLY_MS_MAX):
            event = zmq.utils.monitor.recv_monitor_message(self.monitor)["event"]
            if event & wanted:
                return event
        raise AssertionError("nothing happened")


def outcome(address: str, prepare) -> int:
    """How a handshake ends."""
    with CurveTalk(address, prepare, zmq.DEALER) as talk:
        return talk.first_event(zmq.EVENT_HANDSHAKE_SUCCEEDED | FAILED)


def test_clients_with_curve_and_without_share_one_graph(served):
    with CurveTalk(address_of(served)) as secret, Talk(served) as plain:
        secret.create(a_task("first"), a_task("second", "first"))
        assert plain.steal() == ["first"]
        assert plain.complete("first") is Kind.OK
        assert secret.steal("w2") == ["second"]
        assert secret.complete("second", location="w2") is Kind.OK


def test_each_name_has_an_address_of_its_own_even_if_it_has_none_without_curve(served):
    with CurveTalk(address_of(served, "other")) as other, Talk(served) as plain:
        other.create(a_task("elsewhere"))

        assert other.steal() == ["elsewhere"]
        assert plain.steal() is not Kind.TRANSFER


def test_large_and_many_messages_arrive(served):
    def both(peer) -> None:
        secure(peer)
        peer.setsockopt(zmq.HEARTBEAT_IVL, 50)  # pings are encrypted as well
        peer.setsockopt(zmq.HEARTBEAT_TIMEOUT, REPLY_MS_MAX)

    with CurveTalk(address_of(served), both) as talk:
        for number in range(200):
            talk.create(a_task(f"t{number}", payload=b"x" * (1 << (number % 18))))
        found = talk.steal(n=200)

    assert len(found) == 200
    assert "a peer was refused" not in served.log()


def test_wmp_is_served_with_curve(served):
    assert outcome(served.addresses["wmp_curve"], secure) == zmq.EVENT_HANDSHAKE_SUCCEEDED


@pytest.mark.parametrize("what", ["another server's key", "none", "plain"])
def test_a_peer_without_the_servers_key_is_refused(served, what):
    def spoil(peer) -> None:
        if what == "plain":
            peer.plain_username, peer.plain_password = b"ada", b"secret"
        elif what != "none":
            secure(peer, OTHER.public)

    assert outcome(address_of(served), spoil) & FAILED
    sentence = "another server's key" if what.startswith("another") else "only CURVE"
    wait_until(lambda: sentence in served.log())
    # And all others are served.
    with CurveTalk(address_of(served)) as talk:
        talk.create(a_task("still"))


def test_a_peer_with_curve_is_refused_where_there_is_none(served):
    assert outcome(served.addresses["dwork"], secure) & FAILED


def test_a_proxy_of_libzmq_may_stand_between(served):
    """It speaks CURVE on both sides, with keys of its own."""
    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    front.curve_server = True
    front.curve_publickey = as_text(OTHER.public).encode()
    front.curve_secretkey = as_text(OTHER.secret).encode()
    secure(back, keys=OTHER)
    port = front.bind_to_random_port("tcp://127.0.0.1")
    back.connect(f"tcp://{address_of(served)}")

    def carry() -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            zmq.proxy(front, back)
        front.close(0)
        back.close(0)

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        with (
            CurveTalk(f"127.0.0.1:{port}", lambda peer: secure(peer, OTHER.public)) as one,
            CurveTalk(f"127.0.0.1:{port}", lambda peer: secure(peer, OTHER.public)) as two,
        ):
            one.create(a_task("a"), a_task("b"))
            assert two.steal("w2", 1) == ["a"]
            assert one.steal("w1", 1) == ["b"]
    finally:
        context.term()
        thread.join(SECONDS_MAX)


def test_garbage_after_the_greeting_is_answered_and_let_go(served):
    host, _, port = address_of(served).rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        peer.sendall(greeting + b"\x04\xc8\x05HELLO" + bytes(194))
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(1000):
                said += piece

    assert b"\x05ERROR" in said
    assert "internal error" not in served.log()


def test_new_keys_are_used_by_peers_that_connect_from_then_on(tmp_path):
    with curve_serving(tmp_path) as server, CurveTalk(address_of(server)) as old:
        old.create(a_task("before"))
        key = tmp_path / "server.key_secret"
        key.write_text(file_text(OTHER, with_secret=True))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the CURVE keys were loaded again" in server.log())

        old.create(a_task("after"))
        with CurveTalk(address_of(server), lambda peer: secure(peer, OTHER.public)) as new:
            assert new.steal(n=2) == ["before", "after"]
        assert outcome(address_of(server), secure) & FAILED


def test_passwords_are_carried_from_this_machine(served):
    def plain(peer) -> None:
        peer.plain_username, peer.plain_password = b"ada", b"secret"

    with CurveTalk(served.addresses["dwork"], plain) as talk:
        talk.create(a_task("with-password"))


def test_a_key_that_cannot_be_used_ends_the_start_with_a_sentence(tmp_path):
    key = tmp_path / "key"
    key.write_text("nothing")
    options = ("--dwork-curve", "127.0.0.1:0", "--curve-key", str(key), "--store", "memory")

    with pytest.raises(AssertionError, match="has no secret-key of CURVE"):
        start(tmp_path, *options)


# Our own clients and devices.


@pytest.fixture
def key_files(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "server.key").write_text(file_text(SERVER, with_secret=False))
    (folder / "client.key_secret").write_text(file_text(CLIENT, with_secret=True))
    return {
        "MANYHANDS_CURVE_SERVER": str(folder / "server.key"),
        "MANYHANDS_CURVE_CLIENT_KEY": str(folder / "client.key_secret"),
    }


def run_with(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_our_commands_speak_curve(tmp_path, key_files):
    with curve_serving(tmp_path) as server:
        at = ("--server", address_of(server))
        made = run_with(key_files, "dwork", "create", "one", *at)
        assert made.returncode == 0, made.stderr
        text = {"MANYHANDS_CURVE_SERVER": as_text(SERVER.public)}  # and keys of the moment
        found = run_with(text, "dwork", "steal", "--location", "w", *at)
        assert "one" in found.stdout, found.stderr

        without = run_with({}, "dwork", "create", "two", *at, "--timeout", "1")
        assert without.returncode != 0

        manager = ("--manager", server.addresses["wmp_curve"])
        submitted = run_with(key_files, "wmp", "submit", "role", "payload", *manager)
        assert submitted.returncode == 0, submitted.stderr


def test_our_commands_say_what_is_wrong_with_their_keys(tmp_path):
    missing = {"MANYHANDS_CURVE_SERVER": str(tmp_path / "nothing")}

    ended = run_with(missing, "dwork", "create", "one", "--server", "127.0.0.1:1")

    assert ended.returncode != 0
    assert "cannot be read" in ended.stderr


def test_a_device_encrypts_towards_its_managers(tmp_path, key_files):
    with curve_serving(tmp_path) as server:
        device = subprocess.Popen(
            command("device", "-l", "127.0.0.1:0", "-m", server.addresses["wmp_curve"], "--json"),
            env=environment() | key_files,
            stdout=subprocess.PIPE,
        )
        try:
            assert device.stdout is not None
            said = json.loads(device.stdout.readline())
            assert said["reached"] == 1
        finally:
            device.terminate()
            device.communicate(timeout=SECONDS_MAX)
    assert "a peer was refused" not in server.log()


def test_with_an_access_file_keys_say_who_a_peer_is(tmp_path):
    made = {}
    for name in ("node", "stranger"):
        found = run("access", "curve", str(tmp_path / name))
        assert found.returncode == 0, found.stderr
        made[name] = read_keys(tmp_path / f"{name}.key_secret")
        assert found.stdout.strip() == as_text(made[name].public)
        assert (tmp_path / f"{name}.key_secret").stat().st_mode & 0o077 == 0
    again = run("access", "curve", str(tmp_path / "node"))
    assert "not overwritten" in again.stderr
    file = tmp_path / "access.toml"
    listed = ("--role", "worker", "--curve", as_text(made["node"].public), "--file", str(file))
    assert run("access", "new", "node", *listed).returncode == 0

    with curve_serving(tmp_path, "--access", str(file)) as server:
        with CurveTalk(address_of(server), lambda peer: secure(peer, keys=made["node"])) as talk:
            talk.create(a_task("known"))
            assert talk.steal() == ["known"]
        refused = outcome(address_of(server), lambda peer: secure(peer, keys=made["stranger"]))
        assert refused == zmq.EVENT_HANDSHAKE_FAILED_AUTH


def test_workers_of_a_device_encrypt_and_only_callers_that_may_work_connect(
    tmp_path, key_files, monkeypatch
):
    device_keys = tmp_path / "device.key_secret"
    device_keys.write_text(file_text(OTHER, with_secret=True))
    device_keys.chmod(0o600)
    file = tmp_path / "access.toml"
    worker, looker, stranger = new_keys(), new_keys(), new_keys()
    for name, role, keys in (("node", "work", worker), ("wall", "read", looker)):
        listed = ("--role", role, "--curve", as_text(keys.public), "--file", str(file))
        assert run("access", "new", name, *listed).returncode == 0
    with curve_serving(tmp_path) as server:
        device = subprocess.Popen(
            command(
                *("device", "-l", "127.0.0.1:0", "-m", server.addresses["wmp_curve"], "--json"),
                *("--curve-key", str(device_keys), "--access", str(file)),
            ),
            env=environment() | key_files,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            address = json.loads(device.stdout.readline())["listen"]

            let_in = outcome(address, lambda peer: secure(peer, OTHER.public, worker))
            refused = [
                outcome(address, lambda peer, keys=keys: secure(peer, OTHER.public, keys))
                for keys in (looker, stranger)
            ]
            plain = outcome(address, lambda _: None)
            node = tmp_path / "node.key_secret"
            node.write_text(file_text(worker, with_secret=True))
            monkeypatch.setenv("MANYHANDS_CURVE_SERVER", as_text(OTHER.public))
            monkeypatch.setenv("MANYHANDS_CURVE_CLIENT_KEY", str(node))
            worked = threading.Event()
            with working(address, handler=lambda _job: worked.set() or b"done", roles=["r"]):
                manager = ("--manager", server.addresses["wmp_curve"])
                submitted = run_with(key_files, "wmp", "submit", "r", "payload", *manager)
                assert submitted.returncode == 0, submitted.stderr
                assert worked.wait(SECONDS_MAX)
        finally:
            device.terminate()
            _, log = device.communicate(timeout=SECONDS_MAX)

    assert let_in == zmq.EVENT_HANDSHAKE_SUCCEEDED
    assert all(event != zmq.EVENT_HANDSHAKE_SUCCEEDED for event in (*refused, plain))
    assert b"its key is not accepted" in log


def test_a_device_that_others_can_reach_asks_who_its_workers_are(tmp_path):
    reached = run("device", "-l", "0.0.0.0:0", "-m", "127.0.0.1:1")
    no_keys = run("device", "-m", "127.0.0.1:1", "--access", str(tmp_path / "access.toml"))

    assert reached.returncode != 0
    assert "--curve-key and --access" in reached.stderr
    assert no_keys.returncode != 0
    assert "needs --curve-key" in no_keys.stderr
