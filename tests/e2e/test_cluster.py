"""Several real servers on one PostgreSQL: what one is told, all know; what one is asked is done,
whichever of them dies.
"""

import signal
import subprocess
import time
from contextlib import ExitStack, closing

import httpx
import pytest

from tests.amqp.watching import connect, url_of
from tests.e2e.cluster import ALL, is_ready, running
from tests.e2e.peers import FAILURE_TEXT, PEERS, SAMPLES
from tests.e2e.serving import Api, command, environment, run, wait_until
from tests.e2e.test_every_pair import PENDING, RUNNING, Pair, every_pair

FENCED = 4


@pytest.fixture(scope="module")
def three(postgresql, tmp_path_factory):
    """One decides, two do not."""
    with running(tmp_path_factory.mktemp("three"), postgresql, "a", "b", "c") as cluster:
        yield cluster


@pytest.fixture
def two(postgresql, tmp_path):
    with running(tmp_path, postgresql, "a", "b") as cluster:
        yield cluster


def submit(server, payload: str = "x", queue: str = "q") -> str:
    with closing(Api(server)) as api:
        return api.results("submit", queue=queue, payload=payload)["id"]


def claim(server, count: int = 1, queue: str = "q") -> list[dict]:
    with closing(Api(server)) as api:
        return api.results("claim", queues=[queue], worker="w", count=count)


def complete(server, job: dict) -> None:
    with closing(Api(server)) as api:
        api.results("complete", id=job["id"], token=job["token"], result="done")


def state(server, job_id: str) -> str:
    with closing(Api(server)) as api:
        return api.get(f"jobs/{job_id}")["state"]


# Every protocol, each side at a server of its own.


class Spread(Pair):
    """The submitter at one server, the worker at another, who watches at the third."""

    def __init__(self, cluster, connection, submitter, worker, stack: ExitStack) -> None:
        a, b, c = (cluster.servers[name] for name in "bca")
        super().__init__(a, connection, submitter, submitter, stack)
        queue = "dwork" if "dwork" in (submitter, worker) else f"{submitter}-{worker}"
        soon = {"first_ms": 1, "factor": 1.0, "ms_max": 1, "jitter": 0.0}
        self.api.http.put(f"/api/queues/{queue}", json={"policy": {"backoff": soon}})
        self.submitter = stack.enter_context(closing(PEERS[submitter](a, queue)))
        self.worker = stack.enter_context(closing(PEERS[worker](b, queue)))
        self._watched = (c, connection, stack)


@pytest.fixture(scope="module")
def connection(three):
    with connect(url_of(three.servers["a"])) as found:
        yield found


@pytest.fixture
def pair(three, connection, submitter, worker):
    with ExitStack() as stack:
        yield Spread(three, connection, submitter, worker, stack)


@every_pair
def test_a_job_is_submitted_here_worked_there_and_watched_elsewhere(pair):
    sample = SAMPLES[2]
    payload, watch = pair.submit(sample)

    seen = pair.worker.claim()
    pair.worker.complete(sample)
    story = watch.until_ended()

    assert seen == pair.worker.sees(payload)
    answer = pair.worker.answers(sample, payload)
    assert pair.submitter.result() == pair.submitter.sees(answer)
    assert story == (PENDING, RUNNING, "task_completed_v1")


@every_pair
def test_a_failure_reported_there_reaches_the_submitter_here(pair):
    _, watch = pair.submit(SAMPLES[1])

    pair.worker.claim()
    pair.worker.fail(FAILURE_TEXT)
    story = watch.until_ended()

    assert pair.submitter.failure() == FAILURE_TEXT
    assert story == (PENDING, RUNNING, "task_failed_v1")


# What everybody sees.


def test_all_servers_show_the_same_queues_and_jobs(three):
    job_id = submit(three.servers["b"], queue="shown")
    for server in three.servers.values():
        assert wait_until(lambda server=server: state(server, job_id)) == "ready"
        queues = httpx.get(f"{server.url}/api/queues").json()["results"]
        (shown,) = [queue for queue in queues if queue["name"] == "shown"]
        assert shown["counts"]["ready"] == 1


def test_the_servers_are_listed_with_the_one_that_decides(three):
    for name in three.servers:
        seen = three.servers_seen(name)
        assert {row["name"] for row in seen} == {"a", "b", "c"}
        assert [row["name"] for row in seen if row["here"]] == [name]
        assert sum(row["decides"] for row in seen) == 1


def test_metrics_tell_who_decides_and_what_was_passed_on(three):
    submit(three.servers["b"])
    decides = 0
    for server in three.servers.values():
        text = httpx.get(f"{server.url}/metrics").text
        assert 'manyhands_cluster_servers{state="serving"} 3.0' in text
        assert "manyhands_forwarded_total" in text
        decides += "manyhands_cluster_decides 1.0" in text
    assert decides == 1


def test_a_worker_that_waits_at_one_server_is_woken_by_a_job_at_another(three):
    with (
        httpx.Client(base_url=three.servers["c"].url, timeout=60.0) as waiting,
        ExitStack() as stack,
    ):
        import threading

        found: list[dict] = []

        def wait() -> None:
            body = {"queues": ["woken"], "worker": "sleeper", "wait": 30}
            found.extend(waiting.post("/api/claim", json=body).json()["results"])

        thread = threading.Thread(target=wait)
        thread.start()
        stack.callback(thread.join)
        wait_until(
            lambda: "manyhands_sleepers 1.0" in httpx.get(f"{three.servers['c'].url}/metrics").text
        )
        began = time.monotonic()
        job_id = submit(three.servers["b"], queue="woken")
        thread.join(30)
        assert [job["id"] for job in found] == [job_id]
        assert time.monotonic() - began < 10


# Death, and other ends.


def test_when_the_server_that_decides_is_killed_another_takes_over_and_nothing_is_lost(two):
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    server = two.servers[front]
    ids = [submit(server, str(number)) for number in range(30)]
    (held,) = claim(two.servers[owner])
    (done,) = claim(server)
    complete(server, done)
    two.kill(owner)

    ids.append(submit(server, "afterwards"))  # it waits, and is not refused

    assert {state(server, job_id) for job_id in ids} == {"ready", "leased", "completed"}
    assert state(server, done["id"]) == "completed"
    complete(server, held)  # its lease outlived the server that gave it
    rest = claim(server, 100)
    assert len(rest) == len(ids) - 2
    two.start(owner)
    assert state(two.servers[owner], held["id"]) == "completed"


def test_a_front_that_is_killed_disturbs_nobody(two):
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    job_id = submit(two.servers[front])
    two.kill(front)
    assert state(two.servers[owner], job_id) == "ready"
    wait_until(lambda: len(two.servers_seen(owner)) == 1)
    assert is_ready(two.servers[owner])


def test_a_stopped_server_hands_over_without_a_refusal(two):
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    ids = [submit(two.servers[front], str(number)) for number in range(5)]
    assert two.stop(owner) == 0
    ids.append(submit(two.servers[front], "afterwards"))
    assert {state(two.servers[front], job_id) for job_id in ids} == {"ready"}
    assert two.decider() == front


def test_a_server_that_slept_through_its_takeover_ends_with_code_4(two):
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    sleeper = two.servers.pop(owner)
    sleeper.process.send_signal(signal.SIGSTOP)
    try:
        job_id = submit(two.servers[front])
    finally:
        sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.process.wait(30) == FENCED
    assert "taken over" in sleeper.log()
    assert state(two.servers[front], job_id) == "ready"


def test_a_restart_of_the_database_kills_nobody(two, postgresql):
    owner = two.decider()
    before = {row["tenure"] if "tenure" in row else row["since"] for row in two.servers_seen(owner)}
    ids = [submit(server) for server in two.servers.values()]
    postgresql.restart()
    ids += [submit(server) for server in two.servers.values()]
    for server in two.servers.values():
        assert {state(server, job_id) for job_id in ids} == {"ready"}
    after = {row["tenure"] if "tenure" in row else row["since"] for row in two.servers_seen(owner)}
    assert after == before


# Bad input.


def test_a_server_with_another_secret_is_refused_by_the_others(two, tmp_path):
    secret = tmp_path / "another.secret"
    secret.write_text("another secret than the others have")
    secret.chmod(0o600)
    owner = two.servers[two.decider()]
    words = ["serve", "--store", two.database.url(two.schema), "--cluster", "127.0.0.1:0"]
    words += ["--cluster-secret-file", str(secret), "--server-name", "stranger", "--http", "off"]
    words += [word for name in ALL for word in (f"--{name}", "off")]
    with (tmp_path / "stranger.log").open("wb") as log:
        stranger = subprocess.Popen(
            command(*words), env=environment(), stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        wait_until(lambda: "does not know the secret" in owner.log())
        assert stranger.poll() is None  # it goes on trying, and serves nobody
        assert is_ready(owner)
    finally:
        stranger.kill()
        stranger.wait()


def test_two_servers_of_one_name_are_refused(two):
    url = two.database.url(two.schema)
    ended = run(
        "serve", "--store", url, "--cluster", "127.0.0.1:0", "--server-name", "a", "--http", "off"
    )
    assert ended.returncode == 1
    assert "a server named a is up" in ended.stderr


def test_a_server_without_a_cluster_address_is_refused_beside_others(two):
    ended = run("serve", "--store", two.database.url(two.schema), "--http", "off")
    assert ended.returncode == 1
    assert "has to be alone" in ended.stderr


def test_several_servers_need_a_database():
    ended = run("serve", "--store", "memory", "--cluster", "127.0.0.1:0")
    assert ended.returncode != 0
    assert "share a PostgreSQL database" in ended.stderr
