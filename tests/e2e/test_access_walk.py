"""Nothing gets past the table: every route, packet and frame type, sent without credentials."""

import contextlib
import re
import struct
import typing
import warnings

import httpx
import msgspec
import pytest
import zmq
from pamqp import base
from pamqp import commands as amqp
from websockets.exceptions import InvalidStatus

from manyhands.protocols.dwork.codec import Kind, Query
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft
from manyhands.protocols.gearman.admin import Admin
from manyhands.protocols.wmp.codec import Command as Wmp
from manyhands.site.document import APIS
from manyhands.ui.site import PAGES
from tests.amqp.raw import raw_client
from tests.e2e import stream_talk
from tests.e2e.dwork_talk import Talk as DworkTalk
from tests.e2e.dwork_talk import a_task
from tests.e2e.gearman_talk import DraftTalk, GearmanTalk
from tests.e2e.serving import run, serving

STORES = ("memory", "postgresql")
LISTENERS = ("gearman", "dwork", "wmp", "amqp")
SECRET = b"vault"  # in everything that there is to see
OPEN = {"/healthz", "/readyz"}


@pytest.fixture(scope="module")
def world(tmp_path_factory, store_of_module):
    folder = tmp_path_factory.mktemp("walk")
    file = folder / "access.toml"
    made = run("access", "new", "ada", "--role", "operate", "--file", str(file))
    token = made.stdout.strip()
    free = [flag for name in LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    with (
        serving(folder, "--store", store_of_module, *free, "--access", str(file)) as served,
        httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}) as ada,
    ):
        for queue in ("vault", "dwork"):
            body = {"queue": queue, "payload": "vault", "unique_key": "vault", "tags": ["vault"]}
            assert ada.post("/api/submit", json=body).is_success
        before = state(ada)
        yield served, token
        assert state(ada) == before, "somebody without credentials changed something"


def state(ada: httpx.Client) -> list[object]:
    """Everything that a peer could have changed."""
    paths = ("/api/jobs", "/api/queues", "/api/limits", "/api/schedules", "/api/bulk")
    found = [ada.get(path).json()["results"] for path in paths]
    for queue in found[1]:
        del queue["oldest_ready_age_ms"]
    return [*found, ada.get("/api/events?after=0").json()["next"]]


@pytest.fixture(scope="module")
def handle(world) -> bytes:
    """Of a job that exists."""
    served, token = world
    headers = {"Authorization": f"Bearer {token}"}
    rows = httpx.get(f"{served.url}/api/jobs?queue=vault", headers=headers).json()["results"]
    return f"H:x:{rows[0]['id']}".encode()


def routes() -> list[tuple[str, str]]:
    known = {(route.method, route.path) for api in APIS for route in api.routes}
    known |= {("GET", f"/ui/{page.name}") for page in PAGES}
    known |= {("POST", f"/ui/{page.name}") for page in PAGES}
    known |= {("GET", "/ui/live"), ("POST", "/ui/theme"), ("GET", "/ui/job/1/payload")}
    return sorted(known)


@pytest.mark.parametrize("credentials", [None, "Bearer wrong"])
def test_no_route_answers_without_credentials(world, credentials):
    served, _ = world
    headers = {} if credentials is None else {"Authorization": credentials}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        for method, path in routes():
            if credentials is not None and (method, path) not in routes()[::12]:
                continue  # each wrong login is answered after a second
            url = re.sub(r"\{\w+(:path)?\}", "vault", path)
            for asked in {method, "HEAD" if method == "GET" else method}:
                answer = client.request(asked, url, json={} if asked != "HEAD" else None)

                if path in OPEN:
                    assert answer.status_code == 200
                else:
                    assert answer.status_code == 401, (asked, url, answer.text)
                    assert "www-authenticate" in answer.headers
                assert SECRET not in answer.content.replace(url.encode(), b""), url


def test_a_stream_is_not_opened_without_credentials(world):
    served, _ = world
    with pytest.raises(InvalidStatus) as refused, stream_talk.talking(served):
        pass

    assert refused.value.response.status_code == 401


ARGUMENTS = {
    wire.SUBMIT_REDUCE_JOB: 5,
    wire.SUBMIT_REDUCE_JOB_BACKGROUND: 5,
    wire.SUBMIT_JOB_SCHED: 8,
    wire.SUBMIT_JOB_EPOCH: 4,
}
# What says nothing of jobs.
HARMLESS = {wire.ECHO_RES, wire.OPTION_RES, wire.NO_JOB, wire.NOOP}


@pytest.mark.parametrize("kind", range(wire.LAST_KIND + 1))
@pytest.mark.parametrize("about", ["queue", "job"])
def test_no_packet_of_gearman_does_anything_without_credentials(world, handle, kind, about):
    served, _ = world
    first = handle if about == "job" else b"vault"
    for count in range(1, ARGUMENTS.get(kind, 4) + 1):
        with GearmanTalk(served) as talk:
            arguments = [first, *[b"1"] * (count - 1)]
            body = b"\0".join(arguments)
            talk.send(b"\0REQ" + struct.pack(">II", kind, len(body)) + body)
            talk.send(wire.encode_request(wire.ECHO_REQ, b"over"))
            said = []
            try:
                while not said or said[-1] != (wire.ECHO_RES, [b"over"]):
                    said.append(talk.next())
            except (EOFError, ConnectionError):
                pass  # it was let go

        for answer, args in said:
            nothing = answer == wire.STATUS_RES and set(args[1:]) == {b"0"}  # no such job
            harmless = answer in HARMLESS or nothing
            assert harmless or answer == wire.ERROR, (kind, answer, args)
            if answer == wire.ERROR and kind in SUBMITS:
                assert args[0] == b"NOT_ALLOWED" or count != SUBMITS[kind], (kind, args)


SUBMITS = dict.fromkeys(
    (
        *(wire.SUBMIT_JOB, wire.SUBMIT_JOB_BG, wire.SUBMIT_JOB_HIGH, wire.SUBMIT_JOB_HIGH_BG),
        *(wire.SUBMIT_JOB_LOW, wire.SUBMIT_JOB_LOW_BG),
    ),
    3,
)


def test_no_admin_line_of_gearman_shows_or_changes_anything_without_credentials(world):
    served, _ = world
    names = [name.removeprefix("on_") for name in dir(Admin) if name.startswith("on_")]
    assert {"status", "workers", "cancel", "drop"} <= set(names)
    lines = [f"{name}{more}" for name in names for more in ("", " function vault", " jobs", " 1")]
    lines += ["show unique jobs", "cancel job H:x:1", "maxqueue vault 1", "priority vault 1"]
    for line in lines:
        if line.startswith("auth"):
            continue  # answered after a second; what it does is tested elsewhere
        with GearmanTalk(served) as talk:
            talk.send(line.encode() + b"\r\n" + wire.encode_request(wire.ECHO_REQ, b"over"))
            said = b""
            while b"over" not in said and (piece := talk.socket.recv(1 << 16)):
                said += piece

        assert SECRET not in said.replace(line.encode(), b""), (line, said)
    assert served.process.poll() is None


@pytest.mark.parametrize("kind", draft.TYPES, ids=lambda kind: kind.__name__)
def test_no_packet_of_the_draft_does_anything_without_credentials(world, handle, kind):
    """Each field is a handle, a name of a queue or a number, as its kind is."""
    served, _ = world
    for text in (handle, b"vault"):
        given = {"bytes": text, "int": 1, "tuple": (text,)}
        fields = msgspec.structs.fields(kind)
        packet = kind(**{each.name: given[shape(each.type)] for each in fields})
        with DraftTalk(served) as talk:
            talk.send(draft.encode(packet))
            talk.send(draft.encode(draft.JobCompleteReq(b"H:x:1")))
            said = []
            try:
                while not said or getattr(said[-1], "data", None) != b"unknown job":
                    said.append(talk.next())
            except (EOFError, ConnectionError):
                pass  # it was let go

        for answer in said:
            nothing = answer in (draft.JobAssignRes(b"", b""), draft.JobStatusRes(0, 0, 0))
            assert nothing or isinstance(answer, HARMLESS_OF_THE_DRAFT), answer
            assert SECRET not in draft.encode(answer).replace(text, b""), answer


HARMLESS_OF_THE_DRAFT = (draft.Error, draft.Noop, draft.JobCompleteRes)


def shape(kind: object) -> str:
    return getattr(typing.get_origin(kind) or kind, "__name__", str(kind))


@pytest.mark.parametrize("kind", Kind)
def test_no_message_of_dwork_is_taken_from_a_peer_without_credentials(world, kind):
    """The handshake itself is refused, so that no message arrives."""
    served, _ = world
    with DworkTalk(served, kind=zmq.DEALER) as talk:
        talk.socket.setsockopt(zmq.RCVTIMEO, 300)
        talk.socket.send_multipart(
            [b"", encode_query(Query(kind=kind, tasks=(a_task("vault"),), location="w"))]
        )
        with pytest.raises(zmq.Again):
            talk.socket.recv_multipart()


def encode_query(query: Query) -> bytes:
    from manyhands.protocols.dwork.codec import encode

    return encode(query)


@pytest.mark.parametrize("kind", Wmp)
def test_no_message_of_wmp_is_taken_from_a_peer_without_credentials(world, kind):
    from manyhands.protocols.wmp.codec import Packet, encode, pack

    served, _ = world
    context = zmq.Context()
    try:
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.RCVTIMEO, 300)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(f"tcp://{served.addresses['wmp']}")
        peer.send_multipart(pack(Packet((), (), encode(kind, (b"request", b"r")), b"vault")))
        with pytest.raises(zmq.Again):
            peer.recv_multipart()
    finally:
        context.destroy(linger=0)


# What a client may say, with the names of things that there are.
GIVEN = {
    "queue": "vault",
    "exchange": "task_pending_v1",
    "routing_key": "#",
    "destination": "vault",
}
METHODS = [
    method
    for group in vars(amqp).values()
    for method in (vars(group).values() if isinstance(group, type) else ())
    if isinstance(method, type) and issubclass(method, base.Frame)
]


@pytest.mark.parametrize("channel", [0, 1])
def test_no_method_of_amqp_is_carried_out_before_the_login(world, channel):
    served, _ = world
    assert len(METHODS) > 60
    with contextlib.ExitStack() as stack:
        peers = []
        for method in METHODS:
            peer = stack.enter_context(raw_client(served))
            peer.start()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                said = method()
            for name, value in said:
                is_text = said.amqp_type(name) in ("longstr", "shortstr")
                if name in GIVEN or value is None:
                    setattr(said, name, GIVEN.get(name, "vault" if is_text else 1))
            peer.say(said, channel)
            peers.append((method, peer))
        for method, peer in peers:
            heard = peer.hear()
            assert heard is None or isinstance(heard[1], REFUSALS), (method, heard)


REFUSALS = (amqp.Connection.Close, amqp.Connection.CloseOk)
