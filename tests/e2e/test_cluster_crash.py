"""Three servers under load, killed, stopped and woken, over a database that crashes: whatever was
acknowledged is there, and nothing was done twice.
"""

import os
import random
import signal
import threading
import time
from collections import Counter

import httpx

from tests.databases import database
from tests.e2e.cluster import running

CYCLES = int(os.environ.get("MANYHANDS_CLUSTER_CYCLES", "6"))
SEED = int(os.environ.get("MANYHANDS_CLUSTER_SEED", "1"))
NAMES = ("a", "b", "c")
QUEUE = "crash"
# What a client may be told while a server dies: it does not know what became of its request.
UNKNOWN = (httpx.TransportError,)


class Ledger:
    """Clients at all servers, and what they were told."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.submitted: dict[str, str] = {}
        self.completed: Counter[str] = Counter()
        self.errors: list[str] = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(name,), daemon=True)
            for name in NAMES
            for work in (self._submit, self._work)
        ]

    def __enter__(self) -> "Ledger":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)

    def _post(self, name: str, path: str, body: dict) -> httpx.Response | None:
        """The answer of a server; None if there is none."""
        server = self.cluster.servers.get(name)
        if server is None:
            time.sleep(0.05)
            return None
        try:
            answer = httpx.post(f"{server.url}/api/{path}", json=body, timeout=60.0)
        except UNKNOWN:
            time.sleep(0.05)
            return None
        if answer.status_code not in (200, 404, 409, 503):
            self.errors.append(f"{path}: {answer.status_code} {answer.text}")
        return answer if answer.status_code == 200 else None

    def _submit(self, name: str) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            payload = f"{name}{number}"
            answer = self._post(name, "submit", {"queue": QUEUE, "payload": payload})
            if answer is not None:
                with self.lock:
                    self.submitted[answer.json()["results"]["id"]] = payload
            time.sleep(0.005)

    def _work(self, name: str) -> None:
        while not self.over.is_set():
            body = {"queues": [QUEUE], "worker": name, "count": 5, "wait": 1}
            answer = self._post(name, "claim", body)
            for job in answer.json()["results"] if answer is not None else ():
                done = {"id": job["id"], "token": job["token"], "result": job["payload"]}
                reply = self._post(name, "complete", done)
                if reply is not None:
                    with self.lock:
                        self.completed[job["id"]] += 1


class Faults:
    """One after the other; each leaves three servers behind."""

    def __init__(self, cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.happened: Counter[str] = Counter()

    def happen(self) -> None:
        fault = self.rng.choice((self.kill, self.kill, self.stop, self.stall, self.crash_database))
        self.happened[fault.__name__] += 1
        fault()
        for name in NAMES:
            if name not in self.cluster.servers:
                self.cluster.start(name)
        self.cluster.until_ready()

    def _one(self) -> str:
        return self.rng.choice(NAMES)

    def kill(self) -> None:
        self.cluster.kill(self._one())

    def stop(self) -> None:
        assert self.cluster.stop(self._one()) == 0

    def stall(self) -> None:
        """Longer than the others wait: it must not do harm when it wakes."""
        name = self._one()
        server = self.cluster.servers[name]
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.5, 6.0))
        server.process.send_signal(signal.SIGCONT)
        time.sleep(2.0)
        if server.process.poll() is not None:
            assert server.process.returncode == 4, server.log()
            del self.cluster.servers[name]

    def crash_database(self) -> None:
        self.cluster.database.restart()


def test_nothing_acknowledged_is_lost_whichever_server_dies(tmp_path):
    rng = random.Random(SEED)
    with (
        database(durable=True) as one,
        running(tmp_path, one, *NAMES, cluster_lease_seconds="3") as cluster,
    ):
        faults = Faults(cluster, rng)
        with Ledger(cluster) as ledger:
            for _ in range(CYCLES):
                time.sleep(rng.uniform(0.1, 0.6))
                faults.happen()
        assert not ledger.errors, ledger.errors[:5]
        assert len(ledger.submitted) > 10 * CYCLES
        _check(cluster, ledger)
    print(dict(faults.happened), len(ledger.submitted), len(ledger.completed))  # noqa: T201


def _check(cluster, ledger: Ledger) -> None:
    """From outside, at every server."""
    for name in NAMES:
        url = cluster.servers[name].url
        found: dict[str, str] = {}
        after = ""
        while True:
            answer = httpx.get(
                f"{url}/api/jobs?queue={QUEUE}&order=oldest&count=500{after}", timeout=60.0
            ).json()
            found |= {job["id"]: job["state"] for job in answer["results"]}
            if answer["next"] is None:
                break
            after = f"&after={answer['next']}"
        missing = set(ledger.submitted) - set(found)
        assert not missing, f"{len(missing)} acknowledged jobs are lost: {sorted(missing)[:3]}"
        undone = [job_id for job_id in ledger.completed if found[job_id] != "completed"]
        assert not undone, f"{len(undone)} acknowledged completions are lost: {undone[:3]}"
    twice = [job_id for job_id, count in ledger.completed.items() if count > 1]
    assert not twice, f"completed more than once: {twice[:3]}"
    _check_events(url)


def _check_events(url: str) -> None:
    """In order, without a gap, and one end a job."""
    seq, ended, last = 0, Counter[str](), 0
    while True:
        answer = httpx.get(f"{url}/api/events?after={seq}&count=1000", timeout=60.0).json()
        if not answer["results"]:
            break
        for event in answer["results"]:
            assert event["seq"] == seq + 1, f"{event['seq']} follows {seq}"
            seq = event["seq"]
            if event["state"] == "completed":
                ended[event.get("job_id") or event["id"]] += 1
        last = answer["last_seq"]
    assert seq == last
    assert ended
    assert max(ended.values()) == 1, ended.most_common(3)
