"""Three servers under load from clients of every protocol, killed, stopped and woken, on a database
that crashes and fails over: whatever was acknowledged is there, and nothing was done twice.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.databases import Replicated, replicated
from tests.e2e.cluster import Cluster, is_ready, running
from tests.e2e.cluster_clients import (
    DWORK_QUEUE,
    QUEUE,
    SUBMITTERS,
    WORKERS,
    Clients,
    Ledger,
)
from tests.e2e.serving import SECONDS_MAX, wait_until

CYCLES = int(os.environ.get("MANYHANDS_CLUSTER_CYCLES", "50"))
SEED = int(os.environ.get("MANYHANDS_CLUSTER_SEED", "1"))
NAMES = ("a", "b", "c")
LEASE_SECONDS = 3
FENCED = 4
RECONNECTS = "manyhands_pg_reconnects_total"
# Everything is to be there at the end, however long it runs.
OPTIONS = {
    "cluster_lease_seconds": str(LEASE_SECONDS),
    "retention_count": "10000000",
    "retention_events": "100000000",
}


class Faults:
    """One after the other; each leaves three servers behind."""

    def __init__(self, cluster: Cluster, database: Replicated, rng: random.Random) -> None:
        self.cluster = cluster
        self.database = database
        self.rng = rng
        self.happened: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._healing: threading.Thread | None = None
        self._deck: list[str] = []

    def happen(self) -> None:
        if not self._deck:  # so many of each, in any order
            self._deck = 2 * ["kill", "kill_decider", "crash_database", "snap"]
            self._deck += ["kill_without_database", "stop", "doze", "stall", "cut", "fail_over"]
            self._deck += ["lose_tail"]
            self.rng.shuffle(self._deck)
        name = self._deck.pop()
        self.happened[name] += 1
        began = time.monotonic()
        getattr(self, name)()
        wait_until(self._all_are_ready)
        self.seconds[name] += time.monotonic() - began

    def _all_are_ready(self) -> bool:
        """Starts again what has ended. Where the machine stands still for longer than a lease, so
        may be a server that nobody stopped.
        """
        for name, server in list(self.cluster.servers.items()):
            if server.process.poll() == FENCED:
                self.happened["fenced by the way"] += 1
                del self.cluster.servers[name]
                self.cluster.unwire(name)
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.cluster.start, set(NAMES) - self.cluster.servers.keys()))
        return all(is_ready(server) for server in self.cluster.servers.values())

    def _one(self) -> str:
        return self.rng.choice(NAMES)

    def kill(self) -> None:
        self.cluster.kill(self._one())

    def kill_decider(self) -> None:
        self.cluster.kill(self.cluster.decider())

    def kill_without_database(self) -> None:
        """Nobody can take over before the database is back."""
        self.heal()
        self.database.primary.stop(signal.SIGQUIT)
        self.cluster.kill(self._one())
        self.database.primary.start()

    def snap(self) -> None:
        """Links break, and are made again."""
        self.cluster.wires[self._one()].snap()

    def cut(self) -> None:
        """Nothing arrives for a while, in one direction or both."""
        wire = self.cluster.wires[self._one()]
        wire.cut(*self.rng.choice([(0,), (1,), (0, 1)]))
        time.sleep(self.rng.uniform(0.2, 3.0))
        wire.mend()

    def stop(self) -> None:
        assert self.cluster.stop(self._one()) == 0

    def doze(self) -> None:
        """Too short for the others to mind."""
        server = self.cluster.servers[self._one()]
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.05, 0.5))
        server.process.send_signal(signal.SIGCONT)

    def stall(self) -> None:
        """Until it is taken over: it must not do harm when it wakes."""
        name = self._one()
        server = self.cluster.servers.pop(name)
        other = next(iter(self.cluster.servers))
        server.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(
                lambda: name not in {row["name"] for row in self.cluster.servers_seen(other)}
            )
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert server.process.wait(SECONDS_MAX) == FENCED, server.log()
        self.cluster.unwire(name)

    def crash_database(self) -> None:
        self.heal()
        self.database.restart()

    def fail_over(self) -> None:
        """The next standby is made meanwhile."""
        self.heal()
        self._fail_over()

    def lose_tail(self) -> None:
        """The standby that is promoted lacks what was committed last. Until it is written again,
        whoever wrote it must live.
        """
        self.heal()
        before = self._reconnects()
        self.database.part()
        time.sleep(self.rng.uniform(0.1, 0.5))
        self._fail_over()
        wait_until(lambda: self._have_found_back(before))

    def _have_found_back(self, before: dict[int, float]) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            now = self._reconnects()
            return all(count > before.get(pid, 0) for pid, count in now.items())
        return False

    def _reconnects(self) -> dict[int, float]:
        """How often each server has found back to the database, and to what it had written."""
        servers = [one for one in self.cluster.servers.values() if one.process.poll() is None]
        return {one.process.pid: metric(one.url, RECONNECTS) for one in servers}

    def _fail_over(self) -> None:
        self.database.fail_over()
        self._healing = threading.Thread(target=self.database.heal)
        self._healing.start()

    def heal(self) -> None:
        """Waits until there is a standby."""
        if self._healing is not None:
            self._healing.join()


@pytest.mark.timeout(24 * 3600 if CYCLES > 50 else 900)
def test_nothing_acknowledged_is_lost_whichever_server_or_database_dies(tmp_path):
    rng = random.Random(SEED)
    with (
        replicated() as both,
        running(tmp_path, both, *NAMES, wired=True, **OPTIONS) as cluster,
    ):
        faults = Faults(cluster, both, rng)
        with Clients(cluster) as ledger:
            for _ in range(CYCLES):
                time.sleep(rng.uniform(0.05, 0.4))
                faults.happen()
            faults.heal()
        print(dict(faults.happened), dict(faults.seconds), dict(ledger.by_protocol))  # noqa: T201
        assert not ledger.errors, ledger.errors[:5]
        check_load(ledger)
        check(cluster, ledger)


def check_load(ledger: Ledger) -> None:
    """Every protocol took part on both sides."""
    for kind in SUBMITTERS:
        assert ledger.by_protocol[f"{kind.protocol} submitted"] > CYCLES
    for kind in WORKERS:
        assert ledger.by_protocol[f"{kind.protocol} completed"] > CYCLES // 2
    assert ledger.reported


def check(cluster: Cluster, ledger: Ledger) -> None:
    """From outside, at every server, once the tables hold everything."""
    wait_until(lambda: all(is_applied(server.url) for server in cluster.servers.values()))
    for name in NAMES:
        url = cluster.servers[name].url
        found = {job["id"]: job["state"] for job in listed(url, QUEUE)}
        tasks = listed(url, DWORK_QUEUE)
        found |= {job["id"]: job["state"] for job in tasks}
        # A task that dwork did not make goes by its id.
        named = {job.get("name") or job["id"]: job["state"] for job in tasks}
        check_states(found, set(ledger.submitted), [*ledger.completed, *ledger.reported])
        check_states(named, ledger.named, list(ledger.completed_names))
    for completed in (ledger.completed, ledger.completed_names):
        twice = [job_id for job_id, count in completed.items() if count > 1]
        stories = [(ledger.completed_by[one], story(url, one)) for one in twice[:3]]
        assert not twice, f"completed more than once: {stories}"
    check_events(url)
    check_watched(ledger)


def story(url: str, job_id: str) -> str:
    """What a server knows of a job."""
    return httpx.get(f"{url}/api/jobs/{job_id}", timeout=60.0).text


def is_applied(url: str) -> bool:
    return metric(url, "manyhands_apply_lag_seconds") == 0


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=60.0).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def check_states(found: dict[str, str], submitted: set[str], completed: list[str]) -> None:
    missing = submitted - found.keys()
    assert not missing, f"{len(missing)} acknowledged jobs are lost: {sorted(missing)[:3]}"
    undone = [one for one in completed if found.get(one) != "completed"]
    assert not undone, f"{len(undone)} acknowledged completions are lost: {undone[:3]}"


def listed(url: str, queue: str) -> list[dict]:
    """All jobs of a queue."""
    found: list[dict] = []
    after = ""
    while True:
        answer = httpx.get(
            f"{url}/api/jobs?queue={queue}&order=oldest&count=1000{after}", timeout=60.0
        ).json()
        found += answer["results"]
        if answer["next"] is None:
            return found
        after = f"&after={answer['next']}"


def check_events(url: str) -> None:
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


def check_watched(ledger: Ledger) -> None:
    """The watcher was told of everything, and of states in their order."""
    unwatched = ledger.unwatched()
    assert not unwatched, f"{len(unwatched)} events were not delivered: {unwatched[:3]}"
    for job_id, states in ledger.events.items():
        first = {state: states.index(state) for state in states}
        if "task_completed_v1" in first:
            assert first.get("task_pending_v1", -1) < first["task_completed_v1"], job_id
