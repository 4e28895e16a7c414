"""Kill the real server again and again, and hold it to everything it acknowledged.

Clients keep a ledger: what they sent and what was acknowledged. After each restart the server is
asked, from the outside, for all of it. What was not acknowledged may be there or not, never half.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import secrets
import signal
import socket
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from manyhands.access.callers import token_digest
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.wmp.codec import Command
from tests.e2e import stream_talk as stream
from tests.e2e.serving import SECONDS_MAX, Served, start
from tests.e2e.stream_talk import talking_to
from tests.e2e.wmp_talk import Heard, Talk

CYCLES = 50
QUEUE = "crash"
# Who the clients are: what a worker may not do passes the gate, what an operator does needs none.
TOKENS = {name: secrets.token_urlsafe(32) for name in ("operate", "worker", "spare")}
LOGIN = ("worker", TOKENS["worker"])


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def write_access(file: Path, *, has_spare: bool) -> None:
    """In place of the former file, as `manyhands access` does it."""
    draft = file.with_name("draft")
    entries = [
        f'[[caller]]\nname = "{name}"\nrole = "{"read" if name == "spare" else name}"\n'
        f'token = "sha256:{token_digest(token).hex()}"\n'
        for name, token in TOKENS.items()
        if has_spare or name != "spare"
    ]
    draft.write_text("\n".join(entries))
    draft.chmod(0o600)
    draft.replace(file)


class Ledger:
    """What clients were told. Shared by their threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.submitted: set[str] = set()
        self.completed: dict[str, str] = {}  # id -> result
        self.failed: set[str] = set()
        self.cancelled: set[str] = set()
        # What WMP workers held when the server died: they have a lease that is still good.
        self.held: list[tuple[Heard, str, str]] = []
        self.broken: set[str] = set()  # leases that were not good any more
        # Submits with a key, by that; None: the answer was lost, so it is to be sent again.
        self.keyed: dict[str, str | None] = {}
        self.killed = threading.Event()
        self.count = 0
        self.news = threading.Condition(self.lock)

    def note(self, what: str, job_id: str, result: str = "") -> None:
        with self.news:
            if what == "completed":
                self.completed[job_id] = result
            else:
                getattr(self, what).add(job_id)
            self.count += 1
            self.news.notify_all()

    def wait_for(self, count: int, seconds: float) -> None:
        with self.news:
            self.news.wait_for(lambda: self.count >= count, seconds)


def submit_over_gearman(address: str, ledger: Ledger, seed: int) -> None:
    """Background jobs, some in flight at once, until the connection breaks."""
    rng = random.Random(seed)
    host, port = address.rsplit(":", 1)
    decoder = wire.Decoder(responses=True)
    kinds = (wire.SUBMIT_JOB_BG, wire.SUBMIT_JOB_HIGH_BG, wire.SUBMIT_JOB_LOW_BG)
    number = 0
    try:
        with socket.create_connection((host, int(port)), 90) as connection:
            token = f"token:{TOKENS['worker']}".encode()
            connection.sendall(wire.encode_request(wire.OPTION_REQ, token))
            while True:
                burst = rng.choice((1, 3, 20))
                packets = []
                for _ in range(burst):
                    number += 1
                    unique = rng.choice((b"", b"-", os.urandom(12).hex().encode()))
                    data = b"%d/%d" % (seed, number)
                    packets.append(
                        wire.encode_request(rng.choice(kinds), QUEUE.encode(), unique, data)
                    )
                connection.sendall(b"".join(packets))
                created = 0
                while created < burst:
                    chunk = connection.recv(65536)
                    if not chunk:
                        return
                    for kind, args in decoder.feed(chunk):
                        if kind == wire.JOB_CREATED:
                            created += 1
                            ledger.note("submitted", args[0].rpartition(b":")[2].decode())
                        elif kind == wire.ERROR and args[0] == b"SHUTTING_DOWN":
                            return
    except OSError:
        return


class Client:
    """The native API over one connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=90)

    def post(self, path: str, body: object, **headers: str):
        headers = {**headers, **bearer("operate"), "Content-Type": "application/json"}
        self.connection.request("POST", path, json.dumps(body), headers)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def get(self, path: str):
        self.connection.request("GET", path, headers=bearer("operate"))
        return json.loads(self.connection.getresponse().read())


def work_over_http(address: str, ledger: Ledger, seed: int) -> None:
    """Claim, then complete, fail, cancel or forget; until the connection breaks."""
    rng = random.Random(seed)
    client = Client(address)
    try:
        while True:
            body = {"queues": [QUEUE], "worker": f"w{seed}", "count": rng.choice((1, 5)), "wait": 1}
            status, answer = client.post("/api/claim", body)
            if status != 200:
                return
            for job in answer["results"]:
                job_id, token = job["id"], job["token"]
                choice = rng.random()
                if choice < 0.7:
                    result = f"by {seed}"
                    body = {"id": job_id, "token": token, "result": result}
                    if client.post("/api/complete", body)[0] == 200:
                        ledger.note("completed", job_id, result)
                elif choice < 0.85:
                    body = {"id": job_id, "token": token, "code": "x", "retry": False}
                    if client.post("/api/fail", body)[0] == 200:
                        ledger.note("failed", job_id)
                elif choice < 0.95 and client.post("/api/cancel", {"ids": [job_id]})[0] == 200:
                    ledger.note("cancelled", job_id)
    except (OSError, http.client.HTTPException):
        return
    finally:
        client.connection.close()


def submit_with_keys(address: str, ledger: Ledger, seed: float) -> None:
    """First what was not answered by the server that died; then more of it."""
    client = Client(address)
    lost = [key for key, job_id in ledger.keyed.items() if job_id is None]
    more = (f"{seed}-{number}" for number in itertools.count())
    try:
        for key in itertools.chain(lost, more):
            ledger.keyed[key] = None
            body = {"queue": QUEUE, "tags": [key]}
            status, answer = client.post("/api/submit", body, **{"Idempotency-Key": key})
            if status != 200:
                return
            ledger.keyed[key] = answer["results"]["id"]
            ledger.note("submitted", answer["results"]["id"])
    except (OSError, http.client.HTTPException):
        return
    finally:
        client.connection.close()


def submit_over_wmp(address: str, ledger: Ledger, seed: float) -> None:
    """One job after the other, until the server is gone."""
    with Talk(address, login=LOGIN) as talk, contextlib.suppress(GoneError):
        while True:
            talk.say(Command.SUBMIT, f"{seed}".encode(), request="r", role=QUEUE)
            reply = hear(talk, ledger)
            if reply["code"] != b"200":
                return  # its writer is dead, and it says so
            ledger.note("submitted", (reply["job"] or b"").decode())


def work_over_wmp(address: str, ledger: Ledger, seed: float) -> None:
    """Report what was held when the server died; then take and report, until it dies again."""
    rng = random.Random(seed)
    with Talk(address, login=LOGIN) as talk, contextlib.suppress(GoneError):
        while True:
            while ledger.held:
                report(talk, ledger, *ledger.held[0])
                ledger.held.pop(0)
            count = rng.choice((1, 4))
            talk.say(Command.GIVE, lock="L", role=QUEUE, n=count, wait=300)
            while count and (heard := hear(talk, ledger)).command is Command.TAKE:
                count -= 1
                status = "ok" if rng.random() < 0.8 else "fail"
                ledger.held.append((heard, status, f"by {seed}"))


def is_over(error: object, refused: list[list[object]] | None) -> bool:
    """Whether the server says that its writer is dead; there is no other reason to refuse."""
    assert all("store_failed" in row for row in refused or ())
    return error is not None or bool(refused)


def stream_of(address: str, worker: str | None = None) -> AbstractContextManager[stream.Talk]:
    return talking_to(address, worker, additional_headers=bearer("worker"))


def submit_over_stream(address: str, ledger: Ledger, seed: float) -> None:
    """Several jobs a note, until the server is gone."""
    rng = random.Random(seed)
    with contextlib.suppress(OSError, WebSocketException, EOFError), stream_of(address) as talk:
        while True:
            items = [[f"{rng.getrandbits(128):032x}", QUEUE, b"1"] for _ in range(5)]
            error, refused = talk.ask(stream.SUBMIT, items)
            if is_over(error, refused):
                return
            for item in items:
                ledger.note("submitted", item[0])


def work_over_stream(address: str, ledger: Ledger, seed: float) -> None:
    """Complete and fail what comes, several jobs a note."""
    rng = random.Random(seed)
    result = f"by {seed}"
    with (
        contextlib.suppress(OSError, WebSocketException, EOFError),
        stream_of(address, f"w{seed}") as talk,
    ):
        talk.ask(stream.WANT, [QUEUE])
        done: list[list[object]] = []
        failed: list[list[object]] = []
        credit = 4
        while True:
            error, refused = talk.ask(stream.WORK, done, failed, [], [], [credit, 0])
            if is_over(error, refused):
                return
            for row in done:
                ledger.note("completed", row[0], result)
            for row in failed:
                ledger.note("failed", row[0])
            done, failed = [], []
            rows = talk.next(stream.JOBS)[1]
            credit = len(rows)
            for row in rows:
                if rng.random() < 0.8:
                    done.append([row[0], row[2], json.dumps(result).encode(), "json"])
                else:
                    failed.append([row[0], row[2], "x", "", b"", False])


class GoneError(Exception):
    """The server was killed."""


def hear(talk: Talk, ledger: Ledger) -> Heard:
    while not talk.socket.poll(20):
        if ledger.killed.is_set():
            raise GoneError
    return talk.hear()


def report(talk: Talk, ledger: Ledger, taken: Heard, status: str, result: str) -> None:
    """Until it is recorded. The claim was on disk before it was handed out, so the lease is good
    whatever happened since.
    """
    talk.done(taken, result.encode(), status=status)
    answer = hear(talk, ledger)
    job_id = (taken["job"] or b"").decode()
    if answer["lease"] != taken["lease"] or answer["reason"] != b"recorded":
        ledger.note("broken", f"{job_id}: {answer.control}")
    ledger.note("completed" if status == "ok" else "failed", job_id, result)


def everything(client: Client) -> dict[str, str]:
    """All jobs of the queue and their states, as the server lists them."""
    found: dict[str, str] = {}
    after = ""
    while True:
        page = client.get(f"/api/jobs?queue={QUEUE}&count=1000{after}")
        found.update((job["id"], job["state"]) for job in page["results"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def check(ledger: Ledger, address: str, rng: random.Random) -> None:
    assert not ledger.broken
    client = Client(address)
    states = everything(client)
    missing = ledger.submitted - states.keys()
    assert not missing, f"{len(missing)} acknowledged jobs are lost, such as {min(missing)}"
    for state in ("completed", "failed", "cancelled"):
        for job_id in getattr(ledger, state):
            assert states[job_id] == state, f"{job_id} was {state} and is {states[job_id]}"
    failed = sum(state == "failed" for state in states.values())
    assert client.get(f"/api/failures?queue={QUEUE}")["failed"] == failed
    for job_id in rng.sample(sorted(ledger.completed), min(25, len(ledger.completed))):
        job = client.get(f"/api/jobs/{job_id}")["results"]
        ends = [attempt["reason"] for attempt in job["attempts"]]
        assert job["result"] == ledger.completed[job_id], f"{job_id} has another result"
        assert ends.count("completed") == 1, f"{job_id} ended {ends}"
    client.connection.close()


def check_keys(ledger: Ledger, address: str) -> int:
    """What was sent again because its answer was lost ran once; gives how many that were."""
    client = Client(address)
    for key in ledger.keyed:
        found = client.get(f"/api/jobs?tag={key}")["results"]
        assert len(found) <= 1, f"{key} became {len(found)} jobs"
    client.connection.close()
    return len(ledger.keyed)


def check_audit(ledger: Ledger, address: str) -> None:
    """Nothing that an operator did and was told of is missing from the log."""
    client = Client(address)
    noted: set[str] = set()
    before = ""
    while True:
        page = client.get(f"/api/audit?count=1000{before}")
        noted.update(entry["target"] for entry in page["results"] if entry["what"] == "cancel")
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    client.connection.close()
    assert not set(ledger.cancelled) - noted


def is_known(address: str, name: str) -> bool:
    """Whether the server lets a caller in."""
    host, port = address.rsplit(":", 1)
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=90)) as connection:
        connection.request("GET", "/api/me", headers=bearer(name))
        return connection.getresponse().status == 200


def writer_of(server: Served) -> int | None:
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_over_fifty_kills(tmp_path):
    seed = int(os.environ.get("CRASH_SEED", random.SystemRandom().randrange(2**31)))
    print(f"CRASH_SEED={seed}")  # noqa: T201 - shown when it fails, to run it again
    rng = random.Random(seed)
    ledger = Ledger()
    arguments = ("--gearman", "127.0.0.1:0", "--wmp", "127.0.0.1:0", "--log-format", "json")
    # What was held when the server died is reported to the next one, however long that takes.
    arguments += ("--wmp-lease-seconds", "3600")
    access = tmp_path / "access.toml"
    write_access(access, has_spare=False)
    arguments += ("--access", str(access))
    server = start(tmp_path, *arguments)
    held_count = 0
    for cycle in range(CYCLES):
        ledger.killed.clear()
        threads = [
            threading.Thread(target=target, args=(server.addresses[name], ledger, rng.random()))
            for target, name in (
                (submit_over_gearman, "gearman"),
                (submit_over_gearman, "gearman"),
                (work_over_http, "http"),
                (work_over_http, "http"),
                (submit_with_keys, "http"),
                (submit_over_wmp, "wmp"),
                (work_over_wmp, "wmp"),
                (submit_over_stream, "http"),
                (work_over_stream, "http"),
            )
        ]
        for thread in threads:
            thread.start()
        ledger.wait_for(ledger.count + rng.randrange(1, 400), 5)
        # A caller comes or goes; the blow falls before, in or after the reload.
        write_access(access, has_spare=cycle % 2 == 0)
        server.process.send_signal(signal.SIGHUP)
        time.sleep(rng.random() * 0.01)  # so that the blow falls anywhere in a commit

        victim = rng.random()
        writer = writer_of(server) if victim < 0.2 else None
        os.kill(writer or server.process.pid, signal.SIGKILL)
        code = server.process.wait(SECONDS_MAX)
        if writer is not None:
            assert code == 1, "a server whose writer died ends with an error"
        ledger.killed.set()
        for thread in threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        held_count += len(ledger.held)

        server = start(tmp_path, *arguments)
        check(ledger, server.addresses["http"], rng)
        assert is_known(server.addresses["http"], "spare") is (cycle % 2 == 0)

    check_audit(ledger, server.addresses["http"])
    assert check_keys(ledger, server.addresses["http"]) > CYCLES
    assert server.stop() == 0
    assert len(ledger.submitted) > CYCLES * 10
    assert ledger.completed
    assert ledger.failed
    assert ledger.cancelled
    assert held_count, "no WMP worker ever held a job when the server died"
