"""Every role, every command and every protocol, made from the table of rights: real clients ask a
running server, and are refused exactly what their role does not include.
"""

import ast
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
import zmq
from websockets.exceptions import InvalidStatus

import manyhands
from manyhands.access.rights import TABLE
from manyhands.model import commands
from manyhands.model.roles import RIGHTS, Right, Role
from manyhands.protocols.dwork.codec import Kind, Query, Task
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.wmp.codec import Command as Wmp
from tests.e2e import stream_talk, wmp_talk
from tests.e2e.dwork_talk import Talk as DworkTalk
from tests.e2e.dwork_talk import a_task, addresses
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import run, serving

STORES = ("memory", "postgresql")
LISTENERS = ("gearman", "dwork", "wmp", "amqp")
TOKEN = "0" * 32  # of no lease
BY_NAME = {kind.__name__: kind for kind in TABLE}
# Commands that nobody but the server asks, and the end of one's own connection, are not in it.
ASKED = {kind for kind, row in TABLE.items() if row.right not in (Right.SERVER, Right.OWN)}
# Rights that depend on the job that is found: everybody may ask about jobs.
FOUND = {kind for kind in ASKED if TABLE[kind].right is Right.LOOK}


@pytest.fixture(scope="module")
def world(tmp_path_factory, store_of_module):
    folder = tmp_path_factory.mktemp("matrix")
    file = folder / "access.toml"
    tokens = {}
    for role in Role:
        made = run("access", "new", role.value, "--role", role.value, "--file", str(file))
        assert made.returncode == 0, made.stderr
        tokens[role.value] = made.stdout.strip()
    free = [flag for name in LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    with (
        serving(folder, "--store", store_of_module, *free, "--access", str(file)) as served,
        web(served, tokens["operate"]) as ada,
    ):

        def new_job() -> dict:
            made = ada.post("/api/submit", json={"queue": "q", "payload": 1})
            assert made.is_success, made.text
            return made.json()["results"]

        job = new_job()["id"]
        yield SimpleNamespace(served=served, tokens=tokens, ada=ada, job=job, new_job=new_job)


def web(served, token: str) -> httpx.Client:
    return httpx.Client(
        base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    )


def is_refusal(said: str) -> bool:
    """Whether a server said that a caller may not."""
    return "has the role" in said or "may not look at this job" in said


# What a client does to have each command asked. Each returns what the server said.

Way = Callable[[], object]
Ways = dict[str, Way]  # by the name of the command


def over_http(world, role: Role, requests: dict[str, tuple]) -> Iterator[tuple[str, bool]]:
    """Each command, and whether it was refused."""
    with web(world.served, world.tokens[role]) as client:
        for name, (method, path, *body) in requests.items():
            answer = client.request(method, path, json=body[0] if body else None)
            assert answer.status_code < 500, (name, answer.text)
            assert answer.status_code != 400, (name, answer.text)
            yield name, answer.status_code == 403 or is_refusal(answer.text)


def native(world, role: Role) -> Iterator[tuple[str, bool]]:
    held = {"id": "none", "token": TOKEN}
    return over_http(
        world,
        role,
        {
            "Submit": ("POST", "/api/submit", {"queue": "q", "payload": 1}),
            "Claim": ("POST", "/api/claim", {"queue": "empty", "worker": "w"}),
            "Renew": ("POST", "/api/renew", held),
            "Report": ("POST", "/api/progress", held | {"numerator": 1}),
            "SendPartial": ("POST", "/api/partial", held | {"payload": 1}),
            "Complete": ("POST", "/api/complete", held),
            "Fail": ("POST", "/api/fail", held),
            "Release": ("POST", "/api/release", held),
            "Depart": ("POST", "/api/depart", {"worker": "nobody"}),
            "Cancel": ("POST", "/api/cancel", {"id": "none"}),
            "Requeue": ("POST", "/api/requeue", {"id": "none"}),
            "Move": ("POST", "/api/move", {"id": "none", "queue": "other"}),
            "SetPriority": ("POST", "/api/priority", {"id": "none", "priority": 1}),
            "SetTags": ("POST", "/api/tags", {"id": "none", "add": ["t"]}),
            "SetDependencies": ("POST", "/api/dependencies", {"id": "none", "add": ["a1"]}),
            "ExpireLease": ("POST", "/api/expire", {"id": "none"}),
            "SetQueue": ("PUT", "/api/queues/made", {"paused": False}),
            "ForgetQueue": ("DELETE", "/api/queues/unknown"),
            "SetLimit": ("PUT", "/api/limits/some", {"concurrency_max": 5}),
            "RemoveLimit": ("DELETE", "/api/limits/unknown"),
            "PutSchedule": ("PUT", "/api/schedules/s", {"queue": "q", "interval_ms": 86_400_000}),
            "RemoveSchedule": ("DELETE", "/api/schedules/unknown"),
            "Look": ("GET", f"/api/jobs/{world.job}"),
        },
    )


def qless(world, role: Role) -> Iterator[tuple[str, bool]]:
    job = "f" * 32

    def data(*items: object) -> dict[str, object]:
        return {"data": list(items)}

    return over_http(
        world,
        role,
        {
            "Submit": ("POST", "/add/q", data({"meta": 1})),
            "Claim": ("POST", "/get/empty", {"data": {}}),
            "Renew": ("POST", "/heartbeat/q", data(job)),
            "Complete": ("POST", "/complete/q", data({"id": job, "meta": 1})),
            "Fail": ("POST", "/fail/q", data({"id": job, "group": "g", "message": "m"})),
            "SendPartial": ("POST", "/partial", data({"id": job, "data": "x"})),
            "Cancel": ("POST", "/cancel", data(job)),
            "Requeue": ("POST", "/requeue", data({"id": job})),
            "Move": ("POST", "/move", data({"id": job, "queue": "other"})),
            "SetPriority": ("POST", "/priority", data({"id": job, "priority": 1})),
            "SetTags": ("POST", "/tag", data({"id": job, "add": ["t"]})),
            "SetDependencies": ("POST", "/depends", data({"id": job, "on": [job]})),
            "ExpireLease": ("POST", "/timeout", data({"id": job})),
            "SetQueue": ("POST", "/pause", data("q2")),
            "ForgetQueue": ("DELETE", "/queues/unknown"),
            "SetLimit": ("POST", "/limits/some", {"data": {"max": 5}}),
            "RemoveLimit": ("POST", "/limits/unknown", {"data": {"max": None}}),
            "PutSchedule": (
                "POST",
                "/recurring/q",
                data({"id": "r", "meta": 1, "interval": 9}),
            ),
            "RemoveSchedule": ("POST", "/unrecur", data("unknown")),
            "Look": ("GET", f"/job/{world.job}"),
        },
    )


def taskcluster(world, role: Role) -> Iterator[tuple[str, bool]]:
    worker = {"worker_group": "g", "worker_id": "w"}
    name = uuid.uuid4()
    made = world.ada.post("/api/submit", json={"queue": "prov/type", "payload": {}, "id": name.hex})
    assert made.is_success, made.text
    one = f"/0.2.0/task/{name}"
    return over_http(
        world,
        role,
        {
            "Look": ("GET", f"{one}/status"),
            "Claim": ("POST", "/0.2.0/claim-work/none/none", worker),
            "Cancel": ("POST", f"{one}/cancel", {}),
        },
    )


def gearman(world, role: Role) -> Iterator[tuple[str, bool]]:
    token = world.tokens[role].encode()
    handle = f"H:x:{world.new_job()['id']}".encode()

    def refused(said) -> bool:
        kind, args = said
        return kind == wire.ERROR and args[0] == b"NOT_ALLOWED"

    with GearmanTalk(world.served) as talk:
        assert talk.tell(wire.OPTION_REQ, b"token:" + token)[0] == wire.OPTION_RES
        yield "Submit", refused(talk.tell(wire.SUBMIT_JOB_BG, b"q", b"", b"x"))
        talk.put(wire.CAN_DO, b"none")
        talk.put(wire.GRAB_JOB_ALL)
        talk.put(wire.ECHO_REQ, b"that was all")
        said = []
        while not said or said[-1][0] != wire.ECHO_RES:
            said.append(talk.next())
        yield "Claim", any(map(refused, said))
        yield "Look", refused(talk.tell(wire.GET_STATUS, handle))
    with GearmanTalk(world.served) as talk:
        talk.send(b"auth " + token + b"\r\n")
        talk.next()
        for name, line in (
            ("Cancel", b"cancel job " + handle),
            ("SetQueue", b"create function f"),
            ("ForgetQueue", b"drop function unknown"),
        ):
            talk.send(line + b"\r\n")
            yield name, b"NOT_ALLOWED" in talk.next()[1][0]


def is_recorded(world, role: Role, protocol: str, kind: type) -> bool:
    """Whether the audit log has that this command was refused."""
    what = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
    wanted = {"who": role.value, "protocol": protocol, "what": what, "refused": "not_allowed"}
    return bool(world.ada.get("/api/audit", params=wanted).json()["results"])


def plain(world, role: Role, prepared) -> None:
    prepared.setsockopt(zmq.PLAIN_USERNAME, role.value.encode())
    prepared.setsockopt(zmq.PLAIN_PASSWORD, world.tokens[role].encode())


class PlainDwork(DworkTalk):
    """A dwork peer with a user and a password."""

    def __init__(self, world, role: Role) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.REQ)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 90_000)
        plain(world, role, self.socket)
        self.socket.connect(f"tcp://{addresses(world.served)['dwork']}")


def dwork(world, role: Role) -> Iterator[tuple[str, bool]]:
    def refused(said: Query) -> bool:
        return said.kind is Kind.ERROR and is_refusal(said.reason or "")

    with PlainDwork(world, Role.OPERATE) as ada:
        ada.ask(Kind.CREATE, a_task("known"))
    with PlainDwork(world, role) as talk:
        name = f"task-{role.value}"
        yield "Submit", refused(talk.ask(Kind.CREATE, a_task(name)))
        yield "Claim", refused(talk.ask(Kind.STEAL, location="w"))
        yield "Complete", refused(talk.ask(Kind.COMPLETE, a_task("known"), location="w"))
        both = (a_task("known"), a_task("other"))
        yield "Conclude", refused(talk.ask(Kind.COMPLETE, *both, location="w"))
        # What people chose is not even said to exist.
        said = talk.ask(Kind.LOOKUP, name="known")
        yield "LookByName", said.kind is Kind.NOT_FOUND
        yield "Depart", refused(talk.ask(Kind.EXIT, location=f"w-{role.value}"))


def wmp(world, role: Role) -> Iterator[tuple[str, bool]]:
    def refused(heard: wmp_talk.Heard) -> bool:
        return is_refusal((heard["reason"] or b"").decode())

    login = (role.value, world.tokens[role])
    with wmp_talk.Talk(world.served.addresses["wmp"], login=login) as talk:
        talk.say(Wmp.SUBMIT, b"x", request="r", role="q-wmp")
        yield "Submit", refused(talk.expect(Wmp.REPLY))
        talk.say(Wmp.GIVE, lock="L", role="empty")
        heard = talk.hear()
        yield "Claim", refused(heard)
        talk.say(Wmp.FETCH, request="f", job=world.job, wait=0)
        yield "Look", refused(talk.expect(Wmp.REPLY))
        talk.say(Wmp.CLOSE, request="c", job=world.job)
        yield "Cancel", refused(talk.expect(Wmp.REPLY))


def stream(world, role: Role) -> Iterator[tuple[str, bool]]:
    def refused(said: object) -> bool:
        return is_refusal(msgspec.json.encode(said, enc_hook=repr).decode())

    headers = {"Authorization": f"Bearer {world.tokens[role]}"}
    job, item = world.job, [stream_talk.new_id(), "q", b"1"]
    if role is Role.READ:  # ST1: a stream is for those who may change something
        with (
            pytest.raises(InvalidStatus) as refusal,
            stream_talk.talking(world.served, additional_headers=headers),
        ):
            pass
        assert refusal.value.response.status_code == 403
        return
    with stream_talk.talking(world.served, f"w-{role.value}", additional_headers=headers) as talk:
        yield "Submit", refused(talk.ask(stream_talk.SUBMIT, [item], False, False))
        yield "Claim", refused(talk.ask(stream_talk.WANT, ["empty"]))
        done, failed = [[job, TOKEN, None]], [[job, TOKEN]]
        yield "Complete", refused(talk.ask(stream_talk.WORK, done))
        yield "Fail", refused(talk.ask(stream_talk.WORK, [], failed))
        yield "Release", refused(talk.ask(stream_talk.WORK, [], [], [[job, TOKEN]]))
        yield "Renew", refused(talk.ask(stream_talk.WORK, [], [], [], [[job, TOKEN]]))
        # News of jobs are not answered one by one, but whatever is refused is on record.
        talk.ask(stream_talk.NEWS, [[job, TOKEN, [1, 2], b"x"]])
        for name in ("Report", "SendPartial"):
            yield name, is_recorded(world, role, "stream", BY_NAME[name])
        yield "Depart", refused(talk.ask(stream_talk.DEPART, "somebody"))
        yield "Look", talk.result(stream_talk.LOOK, [job])[0][1] == "unknown"
        yield "Cancel", refused(talk.ask(stream_talk.CANCEL, ["none"]))


PROTOCOLS = {one.__name__: one for one in (native, qless, taskcluster, gearman, dwork, wmp, stream)}


def spoken(folder: str) -> set[str]:
    """The commands in the source of a protocol."""
    found: set[str] = set()
    for file in (Path(manyhands.__file__).parent / "protocols" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == commands.__name__:
                found |= {each.name for each in node.names}
    return found & {kind.__name__ for kind in ASKED}


# Reports of leases that belong to a connection, which a caller without the right to work cannot
# get; and what a protocol asks only on the way of another command.
NOT_BY_ITSELF = {
    "gearman": {"Complete", "Depart", "Fail", "LiftTerms", "LookByKey", "Release", "Renew"}
    | {"Report", "SendPartial"},
    "dwork": {"Fail", "Look", "Release", "ReleaseAll", "Renew", "Resume"},
    "wmp": {"Complete", "Fail", "Release", "Renew", "Report", "SendPartial"},
    "taskcluster": {"Complete", "Fail", "Renew", "Submit"},
    "qless": {"Report"},
    "native": {"Conclude"},
    "stream": set(),
}


@pytest.mark.parametrize("protocol", NOT_BY_ITSELF)
def test_no_command_of_a_protocol_is_forgotten_here(world, protocol):
    """A new command, or a protocol that learns one, has to be added above."""
    asked = set(dict(PROTOCOLS[protocol](world, Role.OPERATE)))

    missing = spoken("native" if protocol == "stream" else protocol) - asked
    if protocol == "stream":  # it shares a folder with what is asked over HTTP
        missing &= {"Submit", "Claim", "Conclude", "Complete", "Fail", "Release", "Renew"}
        missing -= {"Conclude"}  # completions and failures of one note

    assert missing - NOT_BY_ITSELF[protocol] == set()


def test_every_command_of_the_table_is_asked_over_some_protocol(world):
    asked = {
        name for ask in PROTOCOLS.values() for name, _ in ask(world, Role.OPERATE)
    } | set().union(*NOT_BY_ITSELF.values())
    # Asked for whole crews, after a lost connection, and by what watches a job.
    within = {"RenewHeld", "ReleaseAll", "Attach"}

    assert {kind.__name__ for kind in ASKED} - asked - within == set()


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_role_may_do_what_the_table_says_over_every_protocol(world, protocol, role):
    found = dict(PROTOCOLS[protocol](world, role))

    wrong = {
        name: said
        for name, said in found.items()
        if said is not (TABLE[BY_NAME[name]].right not in RIGHTS[role])
    }
    assert not wrong


@pytest.mark.parametrize("role", [Role.WORKER, Role.OPERATE])
def test_a_task_comes_back_with_the_origin_that_its_creator_chose(world, role):
    chosen = {f"from-{role.value}-{n}": text for n, text in enumerate(("vm", f"@{role.value} vm"))}
    with PlainDwork(world, role) as talk:
        made = talk.ask(Kind.CREATE, *(Task(name=n, origin=text) for n, text in chosen.items()))
        assert made.kind is Kind.OK
        found = [talk.ask(Kind.LOOKUP, name=name).tasks[0] for name in chosen]

    assert {task.name: task.origin for task in found} == chosen
