"""WMP peers that are wrong, hostile or gone: counted, logged once, never fatal, nothing lost."""

import contextlib
import random
import resource
import socket
from pathlib import Path

import pytest
import zmq

from manyhands.net.zmtp import GREETING, ready
from manyhands.protocols.wmp.codec import CONTROL_BYTES_MAX, Command, encode
from tests.e2e.serving import SECONDS_MAX, Api, Served, serving
from tests.e2e.wmp_talk import Talk, wait_until

READY = encode(Command.READY)


@pytest.fixture
def served(tmp_path):
    listen = ("--wmp", "127.0.0.1:0", "--payload-bytes-max", "100000")
    with serving(tmp_path, *listen, "--store", "memory") as server:
        yield server


def address(served: Served) -> str:
    found = served.addresses["wmp"]
    assert found is not None
    return found


def dropped(served: Served) -> dict[str, int]:
    """Messages by what was wrong with them."""
    with contextlib.closing(Api(served)) as api:
        lines = api.http.get("/metrics").text.splitlines()
    prefix = 'manyhands_wmp_dropped_total{kind="'
    found = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return {line.split('"')[0]: int(float(line.rsplit(" ", 1)[1])) for line in found}


def is_served(served: Served) -> None:
    """A job goes through."""
    with Talk(address(served)) as good:
        job = good.submit("good", b"x")
        good.done(good.take(role="good"), b"fine")
        good.expect(Command.CANCEL)
        assert good.fetch(job).payload == b"fine"


MALFORMED = {
    "frames": [[b"no end"], [b"", READY], [b"", b"", READY, b"p", b"q"], [b"x"] * 60, [b""] * 100],
    "hops": [[b"", *[b"h"] * 9, b"", READY], [b"onward", b"", b"", READY]],
    "control": [[b"", b"", b"WMPW01"], [b"", b"", b""], [b"", b"", b"W" * (CONTROL_BYTES_MAX + 1)]],
    "signature": [[b"", b"", b"MDPW01\1"], [b"", b"", b"WMPM01\1"], [b"", b"", b"WMPM01\4"]],
    "command": [[b"", b"", b"WMPW01\x63"], [b"", b"", b"WMPC01\xff"]],
    "property": [[b"", b"", READY + b"\4role\0\0\0\xffx"], [b"", b"", READY + b"\xff"]],
    "missing": [[b"", b"", encode(Command.GIVE)], [b"", b"", encode(Command.DONE)]],
    "value": [[b"", b"", encode(Command.READY, (b"slots", b"many"))]],
    "payload": [[b"", b"", READY, b"unwanted"]],
}


def test_w9_nine_kinds_of_malformed_messages_are_counted_and_logged_once_a_peer(served):
    with Talk(address(served)) as peer:
        for kind in MALFORMED.values():
            for frames in kind:
                peer.socket.send_multipart(frames)
        expected = {kind: len(found) for kind, found in MALFORMED.items()}
        wait_until(lambda: dropped(served) == expected, f"all are counted: {expected}")
        assert peer.is_silent(0)
    is_served(served)
    assert served.log().count("a message was dropped") == 1


def test_w9_peers_that_come_again_and_again_do_not_fill_the_log(served):
    for number in range(1, 21):
        with Talk(address(served)) as peer:
            peer.socket.send_multipart([b"", b"", b""])
            wait_until(lambda n=number: dropped(served) == {"control": n}, "it is counted")
    is_served(served)

    assert served.log().count("a message was dropped") == 1


def test_w9_rubbish_harms_nobody(served):
    chance = random.Random(14)
    with Talk(address(served)) as vandal:
        for _ in range(2_000):
            frames = [chance.randbytes(chance.randrange(12)) for _ in range(chance.randrange(1, 7))]
            if chance.random() < 0.5:
                command = chance.choice([*Command])
                frames = [b"", b"", encode(command) + chance.randbytes(chance.randrange(20))]
            vandal.socket.send_multipart(frames)
        is_served(served)
    with contextlib.closing(Api(served)) as api:
        assert api.http.get("/healthz").status_code == 200
        assert "manyhands_internal_errors_total 0.0" in api.http.get("/metrics").text
    assert "internal error" not in served.log()


def test_w59_a_message_of_many_frames_is_thrown_away_and_others_are_served(served):
    with Talk(address(served)) as flood, Talk(address(served)) as good:
        for _ in range(499_999):
            flood.socket.send(b"", zmq.SNDMORE)
        flood.socket.send(b"")
        with contextlib.closing(Api(served)) as api:
            while "frames" not in dropped(served):
                assert api.http.get("/healthz", timeout=60.0).status_code == 200
        assert good.submit("r", b"x")
        flood.say(Command.GIVE, lock="L", role="r")  # it may go on
        assert flood.expect(Command.TAKE)["lock"] == b"L"
    assert dropped(served) == {"frames": 1}
    is_served(served)


@pytest.mark.parametrize(
    "frame", [b"\1\0", b"\1\xff" + bytes(255), b"\3\0\0\0\0\0\1" + bytes(65538)]
)
def test_w59_frames_without_end_take_no_memory_and_are_cut_off(served, frame):
    host, _, port = address(served).rpartition(":")
    hello = GREETING + b"\1" + b"NULL".ljust(20, b"\0") + bytes(32) + ready(b"DEALER", b"")
    is_served(served)
    before = resident_bytes(served)
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as flood:
        flood.sendall(hello)
        piece = frame * (1_000_000 // len(frame))
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 400_000_000:
                flood.sendall(piece)
                sent += len(piece)
    assert sent < 400_000_000
    assert resident_bytes(served) - before < 50_000_000
    is_served(served)


def resident_bytes(served: Served) -> int:
    pages = Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_w60_whoever_takes_over_a_routing_id_cannot_end_the_job(served):
    # One that came back would take its routing id back, and the thief's answers with it.
    victim = Talk(address(served), b"\1victim", comes_back=False)
    with victim, Talk(address(served)) as client:
        job = client.submit("r", b"x")
        taken = victim.take(role="r")
        with Talk(address(served), b"\1victim") as thief:
            thief.say(Command.GIVE, lock="mine", role="r")
            assert thief.expect(Command.NO)["lock"] == b"mine"
            thief.done(taken, b"stolen", lease=b"a guess")
            assert thief.expect(Command.CANCEL)["reason"] == b"lost"
        with Talk(address(served), b"\1elsewhere") as again:
            again.done(taken, b"mine")
            assert again.expect(Command.CANCEL)["reason"] == b"recorded"
        assert client.fetch(job).payload == b"mine"


def test_w8_a_frame_that_is_too_large_cuts_only_its_sender_off(served):
    with Talk(address(served)) as large, Talk(address(served)) as good:
        large.say(Command.SUBMIT, b"x" * 100_001, request="r", role="r")
        reply = large.expect(Command.REPLY)
        assert (reply["code"], reply["reason"]) == (
            b"400",
            b"100001 bytes are more than the 100000 allowed",
        )
        large.say(Command.SUBMIT, b"x" * 3_000_000, request="r", role="r")
        assert good.submit("r", b"x")
        assert large.is_silent()
    is_served(served)


def test_w49_a_submitter_hears_what_is_wrong(served):
    with Talk(address(served)) as client:
        client.say(Command.SUBMIT, b"", request="r", role="r", priority="urgent")
        reply = client.expect(Command.REPLY)
        assert (reply["code"], reply["reason"]) == (b"400", b"the priority is no number")
        client.say(Command.FETCH, request="r", job="0" * 32)
        assert client.expect(Command.REPLY)["code"] == b"400"
