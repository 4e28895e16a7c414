"""What one peer may have made for it before others get their turn, in the real program."""

import socket
from contextlib import closing, contextmanager

import pytest

from manyhands.net.zmtp import GREETING, ready
from manyhands.net.zmtp import encode as zmtp_encode
from manyhands.protocols.dwork.codec import Kind, Query, encode
from manyhands.protocols.gearman import codec as gearman_wire
from manyhands.protocols.wmp.codec import Command, Packet, pack
from manyhands.protocols.wmp.codec import encode as wmp_encode
from tests.e2e import dwork_talk, wmp_talk
from tests.e2e.gearman_talk import GearmanTalk, resident_bytes
from tests.e2e.serving import SECONDS_MAX, Api, serving

LISTEN = ("--dwork", "127.0.0.1:0", "--wmp", "127.0.0.1:0", "--gearman", "127.0.0.1:0")
HELLO = GREETING + b"\1" + b"NULL".ljust(20, b"\0") + bytes(32) + ready(b"DEALER", b"")
SIZE = 8_000_000
REQUESTS = 300
MIB = 1024 * 1024


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request, tmp_path):
    with serving(tmp_path, *LISTEN, "--loop", request.param) as server:
        yield server


@contextmanager
def flooding(address: str, *data: bytes):
    """A peer that sends all at once and reads nothing."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        for piece in data:
            peer.sendall(piece)
        yield peer


def commands_count(api: Api) -> int:
    text = api.http.get("/metrics").text
    (line,) = (line for line in text.splitlines() if line.startswith("manyhands_commands_total "))
    return int(float(line.split()[1]))


def dwork_lookups(served) -> tuple[str, bytes]:
    with dwork_talk.Talk(served) as talk:
        talk.create(dwork_talk.a_task("large", payload=bytes(SIZE)))
    request = zmtp_encode((b"", b""), encode(Query(kind=Kind.LOOKUP, name="large")))
    return served.addresses["dwork"], HELLO + request * REQUESTS


def wmp_fetches(served) -> tuple[str, bytes]:
    with wmp_talk.Talk(served.addresses["wmp"]) as talk:
        talk.say(Command.SUBMIT, request="1", role="r")
        job = talk.hear()["job"]
        talk.say(Command.GIVE, lock="l", role="r")
        taken = talk.hear()
        known = {"manager": taken["manager"], "job": job, "lease": taken["lease"]}
        talk.say(Command.DONE, bytes(SIZE), status="ok", ack=1, **known)
        talk.hear()
    control = wmp_encode(Command.FETCH, (b"request", b"1"), (b"job", job))
    frames = pack(Packet((), (), control, None))
    return served.addresses["wmp"], HELLO + zmtp_encode((b"", *frames[:-1]), frames[-1]) * REQUESTS


def gearman_grabs(served) -> tuple[str, bytes]:
    with GearmanTalk(served) as talk:
        for _ in range(30):
            talk.submit(b"large", data=bytes(SIZE // 4))
    grab = gearman_wire.encode_request(gearman_wire.GRAB_JOB)
    can_do = gearman_wire.encode_request(gearman_wire.CAN_DO, b"large")
    return served.addresses["gearman"], can_do + grab * REQUESTS


@pytest.mark.parametrize("prepare", [dwork_lookups, wmp_fetches, gearman_grabs])
def test_a_peer_that_does_not_read_has_no_more_answers_made_than_it_can_take(served, prepare):
    address, flood = prepare(served)
    with closing(Api(served)) as api, GearmanTalk(served) as other:
        before, resident = commands_count(api), resident_bytes(served)

        with flooding(address, flood):
            for _ in range(100):
                other.submit(b"small")
            asked = commands_count(api) - before

        assert 100 < asked < 120
        assert resident_bytes(served) - resident < 200 * MIB


def test_a_peer_that_reads_gets_all_the_answers_that_it_asked_for_at_once(served):
    with dwork_talk.Talk(served) as talk:
        talk.create(dwork_talk.a_task("large", payload=bytes(SIZE // 4)))
    request = zmtp_encode((b"", b""), encode(Query(kind=Kind.LOOKUP, name="large")))
    with flooding(served.addresses["dwork"], HELLO, request * 40) as peer:
        got = 0
        while got < 40 * SIZE // 4:
            got += len(peer.recv(1 << 20))
