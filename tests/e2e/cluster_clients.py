"""Clients of every protocol at every server of a cluster, and the ledger of what they were told.

A client talks to one server until that one is gone, and then to another. What it was told goes into
the ledger; of what it asked without getting an answer it knows nothing.
"""

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pika
import zmq
from websockets.exceptions import WebSocketException

from manyhands.protocols.dwork.codec import Kind, Query
from manyhands.protocols.dwork.codec import encode as encode_query
from manyhands.protocols.dwork.reader import decode as decode_query
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.wmp.codec import Command
from tests.amqp.watching import bind_all, connect, url_of
from tests.e2e.cluster import Cluster
from tests.e2e.dwork_talk import Talk as DworkTalk
from tests.e2e.dwork_talk import a_task
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import Served
from tests.e2e.stream_talk import ENDED, JOBS, SUBMIT, WANT, WORK, talking
from tests.e2e.stream_talk import Talk as StreamTalk
from tests.e2e.wmp_talk import Heard
from tests.e2e.wmp_talk import Talk as WmpTalk

QUEUE = "crash"
DWORK_QUEUE = "dwork"
WATCHER = "ledger"  # a durable queue
# A client that was told nothing for so long was forgotten.
PATIENCE_SECONDS = 45.0
_POLL_MS = 100
# Between two jobs of one submitter: enough to be in every commit, and not all that there is.
_PACE_SECONDS = 0.05


class GoneError(Exception):
    """The server is gone, or says that it cannot go on."""


BROKEN = (
    *(GoneError, OSError, EOFError, httpx.TransportError, zmq.ZMQError),
    *(pika.exceptions.AMQPError, pika.exceptions.StreamLostError),
    WebSocketException,
)


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.submitted: dict[str, str] = {}  # job id -> protocol
        self.named: set[str] = set()  # names of dwork's tasks
        self.completed: Counter[str] = Counter()  # by job id, as workers were told
        self.completed_names: Counter[str] = Counter()
        self.completed_by: dict[str, list[str]] = {}  # by id or name: who was told, and when
        self.reported: set[str] = set()  # those whose end a submitter waited for
        # The same of jobs that end with their waiter: their end is told before it is on disk.
        self.fleeting: set[str] = set()
        self.events: dict[str, list[str]] = {}  # job id -> states, as the watcher was told
        self.by_protocol: Counter[str] = Counter()
        self.errors: list[str] = []

    def unwatched(self) -> list[str]:
        """What was acknowledged, and no watcher was told."""
        with self.lock:
            ended = {*self.completed, *self.reported}
            wanted = [(job_id, "task_pending_v1") for job_id in self.submitted]
            wanted += [(job_id, "task_completed_v1") for job_id in ended]
            found = self.events
            return [
                f"{exchange} of {job_id}"
                for job_id, exchange in wanted
                if exchange not in found.get(job_id, ())
            ]

    def count(self, what: str) -> None:
        with self.lock:
            self.by_protocol[what] += 1

    def note_submitted(self, job_id: str, protocol: str) -> None:
        with self.lock:
            self.submitted[job_id] = protocol
            self.by_protocol[f"{protocol} submitted"] += 1

    def note_completed(self, job_id: str, client: "Client") -> None:
        with self.lock:
            self.completed[job_id] += 1
            self._note_client(job_id, client)

    def note_completed_name(self, name: str, client: "Client") -> None:
        with self.lock:
            self.completed_names[name] += 1
            self._note_client(name, client)

    def _note_client(self, what: str, client: "Client") -> None:
        told = f"{client.name} at {client.served.folder.name} at {datetime.now(UTC):%H:%M:%S.%f}"
        self.completed_by.setdefault(what, []).append(told)
        self.by_protocol[f"{client.protocol} completed"] += 1


class Client:
    """One submitter, worker or watcher."""

    protocol = ""

    def __init__(self, clients: "Clients", place: int) -> None:
        self.ledger = clients.ledger
        self.over = clients.over
        self._cluster = clients.cluster
        self._place = place
        self.name = f"{self.protocol}{place}"
        self.served: Served
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def _run(self) -> None:
        names = self._cluster.names
        turn = self._place
        while not self.over.is_set():
            turn += 1
            served = self._cluster.servers.get(names[turn % len(names)])
            if served is None:
                self.over.wait(0.02)
                continue
            self.served = served
            try:
                self.talk()
            except BROKEN:
                self.over.wait(0.02)
            except Exception as error:  # noqa: BLE001 - the test shows it
                self.ledger.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def talk(self) -> None:
        """Talks to ``served`` until the end, or raises one of ``BROKEN``."""
        raise NotImplementedError

    def is_gone(self) -> bool:
        return self.served.process.poll() is not None or self.over.is_set()

    def pace(self) -> None:
        self.over.wait(_PACE_SECONDS)

    def going(self) -> bool:
        return not self.over.is_set()

    def wait_for_socket(self, socket: zmq.Socket) -> None:
        """A socket of ZeroMQ does not say that its peer is gone."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not socket.poll(_POLL_MS):
            if self.is_gone():
                raise GoneError
            if time.monotonic() > deadline:
                raise AssertionError("no answer")


class Http(Client):
    """Over one connection."""

    def talk(self) -> None:
        with httpx.Client(base_url=self.served.url, timeout=PATIENCE_SECONDS) as self.http:
            try:
                self.go_on()
            except httpx.TimeoutException:
                raise AssertionError("no answer") from None

    def go_on(self) -> None:
        raise NotImplementedError

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer; None if it was refused for a reason that there may be."""
        answer = self.http.post(path, json=body)
        if answer.status_code == 503:
            self.pace()
            raise GoneError
        if answer.status_code not in (200, 204, 403, 404, 409):
            raise AssertionError(f"{path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.status_code == 200 else None


class NativeSubmitter(Http):
    protocol = "native"

    def go_on(self) -> None:
        queues = (QUEUE, QUEUE, QUEUE, DWORK_QUEUE)
        number = 0
        while self.going():
            number += 1
            body = {"queue": queues[number % 4], "payload": number}
            answer = self.post("/api/submit", body)
            if answer is not None:
                self.ledger.note_submitted(answer["results"]["id"], self.protocol)
            self.pace()


class NativeWorker(Http):
    protocol = "native"

    def go_on(self) -> None:
        while self.going():
            body = {"queues": [QUEUE, DWORK_QUEUE], "worker": self.name, "count": 3, "wait": 1}
            answer = self.post("/api/claim", body)
            for job in answer["results"] if answer is not None else ():
                done = {"id": job["id"], "token": job["token"], "result": 1}
                if self.post("/api/complete", done) is not None:
                    self.ledger.note_completed(job["id"], self)


class QlessSubmitter(Http):
    protocol = "qless"

    def go_on(self) -> None:
        while self.going():
            answer = self.post(f"/add/{QUEUE}", {"data": [{"meta": {"by": self.name}}]})
            if answer is not None:
                self.ledger.note_submitted(answer["results"][0], self.protocol)
            self.pace()


class QlessWorker(Http):
    protocol = "qless"

    def go_on(self) -> None:
        while self.going():
            answer = self.http.get(f"/get/{QUEUE}?host={self.name}&wait=1")
            if answer.status_code == 503:
                raise GoneError
            found = answer.json()["results"] if answer.status_code == 200 else None
            if not found:
                self.pace()
                continue
            body = {"host": self.name, "data": [{"id": found["id"], "meta": {"done": True}}]}
            done = self.post(f"/complete/{QUEUE}", body)
            if done is not None and done["results"] == [found["id"]]:
                self.ledger.note_completed(found["id"], self)


class TaskSubmitter(Http):
    protocol = "taskcluster"

    def go_on(self) -> None:
        while self.going():
            answer = self.post("/0.2.0/task/new", self._definition())
            if answer is not None:
                task_id = answer["status"]["task_id"]
                self.ledger.note_submitted(task_id.replace("-", ""), self.protocol)
            self.pace()

    def _definition(self) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            "version": "0.2.0",
            "provisioner_id": "default",
            "worker_type": QUEUE,
            "routing": "",
            "retries": 5,
            "priority": 0,
            "created": now.isoformat(),
            "deadline": (now + timedelta(hours=10)).isoformat(),
            "payload": {"by": self.name},
            "metadata": {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
            "tags": {},
        }


class TaskWorker(Http):
    protocol = "taskcluster"

    def go_on(self) -> None:
        worker = {"worker_group": "crash", "worker_id": self.name}
        while self.going():
            found = self.post(f"/0.2.0/claim-work/default/{QUEUE}?wait=1", worker)
            if found is None:
                continue
            task_id = found["status"]["task_id"]
            body = {**worker, "run_id": found["run_id"]}
            if self.post(f"/0.2.0/task/{task_id}/completed", body) is not None:
                self.ledger.note_completed(task_id.replace("-", ""), self)


class Gearman(Client):
    protocol = "gearman"

    def talk(self) -> None:
        with closing(GearmanTalk(self.served)) as self.gearman:
            self.gearman.socket.settimeout(PATIENCE_SECONDS)
            try:
                self.go_on()
            except TimeoutError:
                raise AssertionError("no answer") from None

    def go_on(self) -> None:
        raise NotImplementedError

    def next(self) -> tuple[int, list[bytes]]:
        kind, args = self.gearman.next()
        if kind == wire.ERROR:
            raise GoneError
        return kind, args


def _id_of(handle: bytes) -> str:
    return handle.rpartition(b":")[2].decode()


class GearmanSubmitter(Gearman):
    """In the background, and now and then it waits for the end."""

    def go_on(self) -> None:
        number = 0
        while self.going():
            number += 1
            waits = number % 4 == 0
            kind = wire.SUBMIT_JOB if waits else wire.SUBMIT_JOB_BG
            self.gearman.put(kind, QUEUE.encode(), b"", b"%d" % number)
            kind, (handle, *_) = self.next()
            assert kind == wire.JOB_CREATED
            if waits:
                self._await_end(handle)
            else:
                self.ledger.note_submitted(_id_of(handle), self.protocol)
            self.pace()

    def _await_end(self, handle: bytes) -> None:
        kind, (ended, *_) = self.next()
        while kind not in (wire.WORK_COMPLETE, wire.WORK_FAIL):
            kind, (ended, *_) = self.next()
        assert ended == handle
        if kind == wire.WORK_COMPLETE:
            with self.ledger.lock:
                self.ledger.fleeting.add(_id_of(handle))
                self.ledger.by_protocol["gearman waited for"] += 1


class GearmanWorker(Gearman):
    """Nobody tells it that its completions are recorded."""

    def go_on(self) -> None:
        self.gearman.can_do(QUEUE.encode())
        while self.going():
            self.gearman.put(wire.GRAB_JOB)
            kind, args = self.next()
            if kind == wire.NO_JOB:
                self.pace()
            elif kind == wire.JOB_ASSIGN:
                self.gearman.put(wire.WORK_COMPLETE, args[0], b"done")
                self.ledger.count("gearman completed")


class DworkSubmitter(Client):
    protocol = "dwork"

    def talk(self) -> None:
        with DworkTalk(self.served) as talk:
            while self.going():
                name = f"{self.name}-{time.monotonic_ns()}"
                talk.socket.send(_query(Kind.CREATE, a_task(name)))
                self.wait_for_socket(talk.socket)
                if _answer(talk).kind is Kind.OK:
                    with self.ledger.lock:
                        self.ledger.named.add(name)
                        self.ledger.by_protocol["dwork submitted"] += 1
                self.pace()


class DworkWorker(Client):
    protocol = "dwork"

    def talk(self) -> None:
        with DworkTalk(self.served) as talk:
            while self.going():
                talk.socket.send(_query(Kind.STEAL, location=self.name))
                self.wait_for_socket(talk.socket)
                reply = _answer(talk)
                if reply.kind is not Kind.TRANSFER:
                    self.pace()
                    continue
                for task in reply.tasks:
                    done = _query(Kind.COMPLETE, a_task(task.name), location=self.name)
                    talk.socket.send(done)
                    self.wait_for_socket(talk.socket)
                    if _answer(talk).kind is Kind.OK:
                        self.ledger.note_completed_name(task.name, self)


def _query(kind: Kind, *tasks: Any, **fields: Any) -> bytes:
    return encode_query(Query(kind=kind, tasks=tasks, **fields))


def _answer(talk: DworkTalk) -> Any:
    reply = decode_query(talk.socket.recv())
    if reply.kind is Kind.ERROR:
        raise GoneError
    return reply


class WmpSubmitter(Client):
    protocol = "wmp"

    def talk(self) -> None:
        with WmpTalk(self.served.addresses["wmp"] or "") as talk:
            while self.going():
                talk.say(Command.SUBMIT, b"1", request="r", role=QUEUE)
                self.wait_for_socket(talk.socket)
                reply = talk.hear()
                if reply["code"] != b"200":
                    raise GoneError
                self.ledger.note_submitted((reply["job"] or b"").decode(), self.protocol)
                self.pace()


class WmpWorker(Client):
    protocol = "wmp"

    def talk(self) -> None:
        with WmpTalk(self.served.addresses["wmp"] or "") as talk:
            while self.going():
                talk.say(Command.GIVE, lock="L", role=QUEUE, wait=300)
                taken = self._hear(talk)
                if taken.command is not Command.TAKE:
                    continue
                talk.done(taken, b"done")
                answer = self._hear(talk)
                if answer["reason"] == b"recorded":
                    self.ledger.note_completed((taken["job"] or b"").decode(), self)

    def _hear(self, talk: WmpTalk) -> Heard:
        self.wait_for_socket(talk.socket)
        return talk.hear()


class Stream(Client):
    """Several jobs in a note."""

    protocol = "stream"

    def talk(self) -> None:
        worker = self.name if isinstance(self, StreamWorker) else None
        with talking(self.served, worker) as talk:
            self.go_on(talk)

    def go_on(self, talk: StreamTalk) -> None:
        raise NotImplementedError

    def ask(self, talk: StreamTalk, kind: int, *fields: Any) -> list[list[Any]]:
        """The items that were refused for a reason that there may be."""
        error, refused = talk.ask(kind, *fields)
        if error is not None or any("unavailable" in row for row in refused or ()):
            raise GoneError
        return refused or []

    def hear(self, talk: StreamTalk, kind: int) -> list[Any]:
        """What the next note of a kind says."""
        while self.going():
            with suppress(TimeoutError):
                return talk.next(kind, seconds=_POLL_MS / 1000)[1]
        raise GoneError


class StreamSubmitter(Stream):
    """In turns it goes on at once, and waits until it hears of the end."""

    def go_on(self, talk: StreamTalk) -> None:
        number = 0
        while self.going():
            number += 1
            watches = number % 4 == 0
            ids = [uuid.uuid4().hex for _ in range(2)]
            assert not self.ask(talk, SUBMIT, [[one, QUEUE, b"1"] for one in ids], False, watches)
            for job_id in ids:
                self.ledger.note_submitted(job_id, self.protocol)
            left = set(ids) if watches else set()
            while left:
                left.discard(self.hear(talk, ENDED)[0])
            with self.ledger.lock:
                self.ledger.reported.update(ids if watches else ())
            self.pace()


class StreamWorker(Stream):
    def go_on(self, talk: StreamTalk) -> None:
        self.ask(talk, WANT, [QUEUE])
        self.ask(talk, WORK, [], [], [], [], [3, 0])
        while self.going():
            rows = self.hear(talk, JOBS)
            done = [[row[0], row[2], b"1", "json"] for row in rows]
            lost = {row[0] for row in self.ask(talk, WORK, done, [], [], [], [len(rows), 0])}
            for row in rows:
                if row[0] not in lost:
                    self.ledger.note_completed(row[0], self)


class AmqpWatcher(Client):
    """Of a durable queue: what it has not acknowledged comes again, perhaps from another server."""

    protocol = "amqp"

    def __init__(self, clients: "Clients", place: int) -> None:
        super().__init__(clients, place)
        self.over = threading.Event()  # later than for those whose jobs it watches
        self.has_bound = threading.Event()

    def last_look(self, seconds: float) -> None:
        """Ends once everything that was acknowledged has been watched, or nothing more comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.ledger.unwatched():
            time.sleep(_POLL_MS / 1000)
        self.over.set()

    def talk(self) -> None:
        options = {"blocked_connection_timeout": PATIENCE_SECONDS, "connection_attempts": 1}
        with (
            suppress(pika.exceptions.ConnectionWrongStateError),
            connect(url_of(self.served), **options) as connection,
        ):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=200)
            bind_all(channel, WATCHER, durable=True)
            self.has_bound.set()
            for method, _, body in channel.consume(WATCHER, inactivity_timeout=0.2):
                if method is not None:
                    status = json.loads(body)["status"]
                    with self.ledger.lock:
                        states = self.ledger.events.setdefault(
                            status["task_id"].replace("-", ""), []
                        )
                        states.append(method.exchange)
                        self.ledger.by_protocol["amqp watched"] += 1
                    channel.basic_ack(method.delivery_tag)
                elif self.is_gone():
                    raise GoneError


SUBMITTERS: tuple[type[Client], ...] = (
    *(NativeSubmitter, QlessSubmitter, TaskSubmitter),
    *(GearmanSubmitter, DworkSubmitter, WmpSubmitter, StreamSubmitter),
)
WORKERS: tuple[type[Client], ...] = (
    *(NativeWorker, QlessWorker, TaskWorker),
    *(GearmanWorker, DworkWorker, WmpWorker, StreamWorker),
)


class Clients:
    """One of each, for the length of a block: a submitter and a worker of one protocol begin at
    different servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.over = threading.Event()
        kinds: list[Callable[[Clients, int], Client]] = [*SUBMITTERS, *WORKERS]
        # As many servers as three divide both, so the second half is moved on by one.
        self._clients = [
            kind(self, place + place // len(SUBMITTERS)) for place, kind in enumerate(kinds)
        ]
        self._watcher = AmqpWatcher(self, 0)

    def __enter__(self) -> Ledger:
        self._watcher.thread.start()  # so that it gets to know every job
        self._watcher.has_bound.wait(PATIENCE_SECONDS)
        for client in self._clients:
            client.thread.start()
        return self.ledger

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._join(*self._clients)
        self._watcher.last_look(2 * PATIENCE_SECONDS)
        self._join(self._watcher)

    def _join(self, *clients: Client) -> None:
        for client in clients:
            client.thread.join(2 * PATIENCE_SECONDS)
            if client.thread.is_alive():
                self.ledger.errors.append(f"{client.name} did not end")
