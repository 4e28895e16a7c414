"""Several real servers on one PostgreSQL: what one is told, all know; what one is asked is done,
whichever of them dies.
"""

import signal
import subprocess
import time
from contextlib import ExitStack, closing

import httpx
import pytest

from manyhands.protocols.gearman import codec as wire
from tests.amqp.watching import connect, url_of
from tests.e2e.cluster import ALL, is_ready, running
from tests.e2e.gearman_talk import GearmanTalk
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


# Each of the three decides, in turns: for a submitter, a worker, and those who watch.
TRIOS = ("abc", "bca", "cab")
_NUMBERS = {name: number for number, name in enumerate(PEERS)}


class Spread(Pair):
    """The submitter at one server, the worker at another, who watches at the third."""

    def __init__(self, cluster, connections, submitter, worker, stack: ExitStack) -> None:
        names = TRIOS[(_NUMBERS[submitter] + _NUMBERS[worker]) % len(TRIOS)]
        a, b, c = (cluster.servers[name] for name in names)
        connection = connections[names[2]]
        super().__init__(a, connection, submitter, submitter, stack)
        queue = "dwork" if "dwork" in (submitter, worker) else f"{submitter}-{worker}"
        soon = {"first_ms": 1, "factor": 1.0, "ms_max": 1, "jitter": 0.0}
        self.api.http.put(f"/api/queues/{queue}", json={"policy": {"backoff": soon}})
        self.submitter = stack.enter_context(closing(PEERS[submitter](a, queue)))
        self.worker = stack.enter_context(closing(PEERS[worker](b, queue)))
        self._watched = (c, connection, stack)


@pytest.fixture(scope="module")
def connections(three):
    """Over AMQP, one to each server."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(connect(url_of(server)))
            for name, server in three.servers.items()
        }


@pytest.fixture
def pair(three, connections, submitter, worker):
    with ExitStack() as stack:
        yield Spread(three, connections, submitter, worker, stack)


@every_pair
def test_a_job_is_submitted_here_worked_there_and_watched_elsewhere(pair):
    """S36 and S47."""
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
    """S47."""
    _, watch = pair.submit(SAMPLES[1])

    pair.worker.claim()
    pair.worker.fail(FAILURE_TEXT)
    story = watch.until_ended()

    assert pair.submitter.failure() == FAILURE_TEXT
    assert story == (PENDING, RUNNING, "task_failed_v1")


# What everybody sees.


def test_all_servers_show_the_same_queues_and_jobs(three):
    """S43."""
    job_id = submit(three.servers["b"], queue="shown")
    for server in three.servers.values():
        assert wait_until(lambda server=server: state(server, job_id)) == "ready"
        queues = httpx.get(f"{server.url}/api/queues").json()["results"]
        (shown,) = [queue for queue in queues if queue["name"] == "shown"]
        assert shown["counts"]["ready"] == 1


def test_the_servers_are_listed_with_the_one_that_decides(three):
    """S64."""
    for name in three.servers:
        seen = three.servers_seen(name)
        assert {row["name"] for row in seen} == {"a", "b", "c"}
        assert [row["name"] for row in seen if row["here"]] == [name]
        assert sum(row["decides"] for row in seen) == 1


def test_each_server_shows_what_all_of_them_do(three):
    """S64: figures come with the beats, so whichever server is asked knows them all."""
    owner = three.decider()
    (front, other) = (name for name in three.servers if name != owner)

    def load() -> bool:
        submit(three.servers[front], queue="loaded")
        rows = {row["name"]: row for row in three.servers_seen(other)}
        links = [link["linked"] for row in rows.values() for link in row["links"]]
        rates = (rows[owner]["decided_per_second"], rows[front]["forwarded_per_second"])
        return min(rates) > 0 and len(links) == 6 and all(links)

    wait_until(load)
    rows = {row["name"]: row for row in three.servers_seen(other)}

    assert rows[owner]["unfinished_jobs"] > 0
    assert rows[front]["unfinished_jobs"] == 0
    assert 0 < rows[owner]["commit_p50_ms"] <= rows[owner]["commit_p99_ms"]
    assert rows[owner]["apply_lag_ms"] >= 0
    for name, row in rows.items():
        assert abs(row["clock_offset_ms"]) < 1_000
        links = {link["to"]: link for link in row["links"]}
        assert set(links) == set(rows) - {name}
        assert all(link["linked"] for link in links.values())


def numbers(server) -> dict[str, float]:
    """The metrics of a server, by name and labels."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_metrics_tell_who_decides_and_what_was_passed_on(three):
    """S65."""
    owner = three.decider()
    fronts = [server for name, server in three.servers.items() if name != owner]
    for front in fronts:
        submit(front)

    for name, server in three.servers.items():
        found = numbers(server)
        assert found['manyhands_cluster_servers{state="serving"}'] == 3
        assert found["manyhands_cluster_families"] == (name == owner)
        assert found["manyhands_cluster_suspended"] == 0
        assert found["manyhands_cluster_links"] == 2
        assert found["manyhands_takeovers_total"] == found["manyhands_handovers_total"] == 0
        assert found["manyhands_held_seconds_total"] >= 0
        assert abs(found["manyhands_clock_offset_seconds"]) < 1  # one machine: one clock
        others = [other for other in three.servers if other != name]
        assert all(0 < found[f'manyhands_link_seconds{{to="{one}"}}'] < 5 for one in others)
        if name != owner:
            assert found[f'manyhands_forwarded_total{{to="{owner}"}}'] >= 1


def test_metrics_of_all_servers_add_up_to_the_whole(three):
    """S52: each counts what it decided."""
    counted = (
        'manyhands_jobs_entered_total{state="ready"}',
        'manyhands_jobs_entered_total{state="completed"}',
        'manyhands_realm_jobs_total{realm="native",way="in"}',
        'manyhands_refusals_total{reason="unknown_job"}',
        "manyhands_answers_total",
        "manyhands_commands_total",
    )

    def total(name: str) -> float:
        return sum(numbers(server).get(name, 0.0) for server in three.servers.values())

    before = {name: total(name) for name in counted}
    ids = [submit(server, queue="summed") for server in three.servers.values()]
    (done, *_) = claim(three.servers["a"], queue="summed")
    complete(three.servers["b"], done)
    for server in three.servers.values():
        nobody = {"id": "0" * 32, "token": "t"}
        assert httpx.post(f"{server.url}/api/complete", json=nobody).status_code == 404

    assert total(counted[0]) == before[counted[0]] + len(ids)
    assert total(counted[1]) == before[counted[1]] + 1
    assert total(counted[2]) == before[counted[2]] + len(ids)
    assert total(counted[3]) == before[counted[3]] + 3
    for name in counted[4:]:
        assert 8 <= total(name) - before[name] < 30, name
    assert total('manyhands_queue_jobs{queue="summed",state="ready"}') == 2


# Searching.


@pytest.mark.parametrize("round_number", range(3))
def test_a_search_finds_what_was_acknowledged_before_at_any_other_server(three, round_number):
    """S51: whoever searches is shown all of it, wherever it was submitted."""
    queue = f"sought{round_number}"
    with ExitStack() as stack:
        apis = [stack.enter_context(closing(Api(server))) for server in three.servers.values()]
        ids = set()
        for number in range(30):
            here, there = apis[number % 3], apis[(number + 1) % 3]
            ids.add(here.results("submit", queue=queue, payload=number)["id"])
            answer = there.http.get("/api/jobs", params={"queue": queue, "count": 100}).json()
            assert {job["id"] for job in answer["results"]} == ids
            assert answer["complete"] is True


def test_an_audited_change_is_on_record_everywhere_at_once(three):
    for number, server in enumerate(three.servers.values()):
        name = f"noted{number}"
        httpx.put(f"{server.url}/api/limits/{name}", json={"concurrency_max": 1})
        for other in three.servers.values():
            found = httpx.get(f"{other.url}/api/audit", params={"target": name}).json()["results"]
            assert [entry["what"] for entry in found] == ["set limit"], other.url


def test_a_search_beside_a_silent_owner_says_that_it_may_be_incomplete(two):
    """S51: it waits 2 s at most."""
    owner = two.decider()
    (front,) = (server for name, server in two.servers.items() if name != owner)
    job_id = submit(front)
    sleeper = two.servers[owner]
    sleeper.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        answer = httpx.get(f"{front.url}/api/jobs", params={"queue": "q"}, timeout=20.0).json()
    finally:
        sleeper.process.send_signal(signal.SIGCONT)

    assert answer["complete"] is False
    assert time.monotonic() - began < 5
    assert [job["id"] for job in answer["results"]] in ([], [job_id])


def test_a_worker_that_waits_at_one_server_is_woken_by_a_job_at_another(three):
    """S46."""
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
    """S31, S39 and S66."""
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


def test_who_waits_at_one_server_hears_of_the_end_although_the_one_that_decides_is_killed(two):
    """S39 and S47: a job in the foreground, whose waiter is there all the time."""
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    with closing(GearmanTalk(two.servers[front])) as talk:
        talk.put(wire.SUBMIT_JOB, b"q", b"", b"x")
        kind, (handle, *_) = talk.next()
        assert kind == wire.JOB_CREATED
        two.kill(owner)
        (job,) = wait_until(lambda: claim(two.servers[front]))
        complete(two.servers[front], job)

        assert talk.next() == (wire.WORK_COMPLETE, [handle, b'"done"'])
        talk.put(wire.ECHO_REQ, b"nothing else came")
        assert talk.next() == (wire.ECHO_RES, [b"nothing else came"])


def test_a_front_that_is_killed_disturbs_nobody(two):
    """S66."""
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    job_id = submit(two.servers[front])
    two.kill(front)
    assert state(two.servers[owner], job_id) == "ready"
    wait_until(lambda: len(two.servers_seen(owner)) == 1)
    assert is_ready(two.servers[owner])


def test_a_stopped_server_hands_over_without_a_refusal(two):
    """S23 and S30."""
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    ids = [submit(two.servers[front], str(number)) for number in range(5)]
    assert two.stop(owner) == 0
    ids.append(submit(two.servers[front], "afterwards"))
    assert {state(two.servers[front], job_id) for job_id in ids} == {"ready"}
    assert two.decider() == front


def test_a_server_that_slept_through_its_takeover_ends_with_code_4(two):
    """S67."""
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
    """S19 and S68."""
    owner = two.decider()
    before = {row["tenure"] if "tenure" in row else row["since"] for row in two.servers_seen(owner)}
    ids = [submit(server) for server in two.servers.values()]
    postgresql.restart()
    ids += [submit(server) for server in two.servers.values()]
    for server in two.servers.values():
        assert {state(server, job_id) for job_id in ids} == {"ready"}
    after = {row["tenure"] if "tenure" in row else row["since"] for row in two.servers_seen(owner)}
    assert after == before


def test_a_server_is_drained_by_way_of_another_one_and_that_is_on_record(two):
    """S64: it hands over and exits with code 0, as with SIGTERM."""
    owner = two.decider()
    (front,) = (name for name in two.servers if name != owner)
    job_id = submit(two.servers[front])
    drained = two.servers[owner]

    answer = httpx.post(f"{two.servers[front].url}/api/servers/{owner}/drain")

    assert answer.status_code == 200, answer.text
    assert drained.process.wait(30) == 0
    del two.servers[owner]
    assert two.decider() == front
    assert state(two.servers[front], job_id) == "ready"
    (entry,) = httpx.get(
        f"{two.servers[front].url}/api/audit", params={"what": "drain server"}
    ).json()["results"]
    assert entry["target"] == owner
    alone = httpx.post(f"{two.servers[front].url}/api/servers/{front}/drain")
    assert alone.status_code == 409
    assert "no other server is up" in alone.text
    unknown = httpx.post(f"{two.servers[front].url}/api/servers/nobody/drain")
    assert unknown.status_code == 404


# Bad input.


def test_a_server_with_another_secret_is_refused_by_the_others(two, tmp_path):
    """S45."""
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
    """S76."""
    url = two.database.url(two.schema)
    ended = run(
        "serve", "--store", url, "--cluster", "127.0.0.1:0", "--server-name", "a", "--http", "off"
    )
    assert ended.returncode == 1
    assert "a server named a is up" in ended.stderr


def test_a_server_without_a_cluster_address_is_refused_beside_others(two):
    """S17."""
    ended = run("serve", "--store", two.database.url(two.schema), "--http", "off")
    assert ended.returncode == 1
    assert "has to be alone" in ended.stderr


def test_several_servers_need_a_database():
    ended = run("serve", "--store", "memory", "--cluster", "127.0.0.1:0")
    assert ended.returncode != 0
    assert "share a PostgreSQL database" in ended.stderr
