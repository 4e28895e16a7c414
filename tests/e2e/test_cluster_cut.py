"""Real servers behind networks that go silent: towards each other, and towards the database."""

import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from manyhands import App
from tests.e2e.cluster import is_ready, running
from tests.e2e.cutting_proxy import cutting
from tests.e2e.serving import SECONDS_MAX, own_address, wait_until

FENCED = 4
UNAVAILABLE = 503
UNANSWERED_SECONDS = 10  # after which a command that nobody can decide is refused


@pytest.fixture
def cluster(postgresql, tmp_path):
    with running(tmp_path, postgresql) as found:
        yield found


def submit(server) -> httpx.Response:
    return httpx.post(f"{server.url}/api/submit", json={"queue": "q"}, timeout=60.0)


def has_decider(cluster, seen_by: str, name: str) -> bool:
    return name in {row["name"] for row in cluster.servers_seen(seen_by) if row["decides"]}


@contextlib.contextmanager
def apart(cluster):
    """Two servers; the later one, and what freezes and thaws their links."""
    with contextlib.ExitStack() as stack:
        links = []
        for name in "ab":
            address = own_address()
            proxy, cuts = stack.enter_context(cutting(address))
            links.append(cuts)
            cluster.start(name, "--advertise", proxy, address=address)
        cluster.until_ready()
        yield cluster.servers["b"], links


def test_of_two_servers_that_cannot_reach_each_other_the_earlier_one_goes_on(cluster):
    """S40, S63 and S70: commands at the other one are refused in time, and it says it is not
    ready, until the link is back.
    """
    with apart(cluster) as (late, proxies):
        early = cluster.servers["a"]
        assert submit(late).status_code == 200

        for cuts in proxies:
            cuts.freeze()
        began = time.monotonic()
        sent, waited = submit(late), time.monotonic() - began
        unsent = submit(late)

        assert waited > UNANSWERED_SECONDS / 2
        assert "whether it did this is not known" in sent.json()["error"]["message"]
        assert "no server decides about jobs at present" in unsent.json()["error"]["message"]
        for refused in (sent, unsent):
            assert refused.status_code == UNAVAILABLE
            assert int(refused.headers["Retry-After"]) > 0
        wait_until(lambda: not is_ready(late))
        assert submit(early).status_code == 200
        assert is_ready(early)
        states = {row["name"]: row["state"] for row in cluster.servers_seen("b")}
        assert states["b"] == "parted"

        for cuts in proxies:
            cuts.thaw()
        wait_until(lambda: is_ready(late))
        assert submit(late).status_code == 200


def test_a_python_worker_at_a_server_that_cannot_decide_keeps_its_report(cluster):
    """P35: the end of its job is accepted when the link is back; it ran once, uncharged."""
    with apart(cluster) as (late, links):
        app = App(late.url, timeout=SECONDS_MAX)
        began, may_end = threading.Event(), threading.Event()
        ran = []

        @app.task(name="q", retries=0)
        def work() -> str:
            ran.append(1)
            began.set()
            may_end.wait(SECONDS_MAX)
            return "done"

        with app.worker():
            handle = work.submit()
            assert began.wait(SECONDS_MAX)
            for link in links:
                link.freeze()
            may_end.set()
            assert submit(late).status_code == UNAVAILABLE  # and so was the end of the job
            assert submit(late).status_code == UNAVAILABLE
            for link in links:
                link.thaw()
            assert handle.result(SECONDS_MAX) == "done"
            assert handle.status().attempts == 0
        assert ran == [1]
        app.close()


def test_a_server_that_is_cut_off_from_the_database_is_taken_over_and_ends(cluster):
    """S20, S71: it decides nothing that others do not know of, and says so."""
    with cutting(f"127.0.0.1:{cluster.database.port}") as (proxy, cuts):
        store = cluster.database.url(cluster.schema)
        direct = f"127.0.0.1:{cluster.database.port}"
        cut_off = cluster.start("a", store=store.replace(direct, proxy))
        cluster.start("b")
        cluster.until_ready()
        assert has_decider(cluster, "b", "a")

        cuts.freeze()
        wait_until(lambda: not is_ready(cut_off))
        refused = submit(cut_off)
        wait_until(lambda: has_decider(cluster, "b", "b"))

        assert refused.status_code == UNAVAILABLE
        assert submit(cluster.servers["b"]).status_code == 200
        cuts.thaw()
        assert cluster.servers.pop("a").process.wait(90) == FENCED
        assert "another server has taken over" in cut_off.log()
        jobs = httpx.get(f"{cluster.servers['b'].url}/api/jobs?queue=q").json()["results"]
        assert len(jobs) == 1


def test_commits_of_many_seconds_kill_nobody_and_cost_no_lease(cluster):
    """S72: beats have a connection of their own, and leases are prolonged."""
    for name in "ab":
        cluster.start(name)
    cluster.until_ready()
    since = {row["name"]: row["since"] for row in cluster.servers_seen("a")}
    owner = cluster.decider()
    assert submit(cluster.servers[owner]).status_code == 200
    body = {"queues": ["q"], "worker": "w", "term_ms": 7_000}
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=cluster.servers[owner].url, timeout=60))
        (held,) = http.post("/api/claim", json=body).json()["results"]
        connection = stack.enter_context(cluster.database.connect())
        threads = stack.enter_context(ThreadPoolExecutor())
        connection.execute("BEGIN")
        connection.execute(f"LOCK TABLE {cluster.schema}.journal IN EXCLUSIVE MODE")
        waiting = [threads.submit(submit, server) for server in cluster.servers.values()]
        wait_until(lambda: "the store does not answer" in cluster.servers[owner].log())
        time.sleep(3)  # longer than the lease in all
        assert not any(one.done() for one in waiting)
        assert not is_ready(cluster.servers[owner])
        connection.execute("ROLLBACK")

        assert [one.result().status_code for one in waiting] == [200, 200]
        done = {"id": held["id"], "token": held["token"]}
        assert http.post("/api/complete", json=done).status_code == 200
    assert {row["name"]: row["since"] for row in cluster.servers_seen("a")} == since
    assert cluster.decider() == owner
    assert "leases prolonged" in cluster.servers[owner].log()


def test_a_server_whose_link_is_silent_is_drained_all_the_same(cluster):
    """S23: it hands over by way of the database."""
    address = own_address()
    with cutting(address) as (proxy, cuts):
        cluster.start("a", "--advertise", proxy, address=address)
        cluster.start("b")
        cluster.until_ready()
        cuts.freeze()

        assert cluster.servers.pop("a").stop(signal.SIGTERM) == 0

        wait_until(lambda: has_decider(cluster, "b", "b"))
        assert submit(cluster.servers["b"]).status_code == 200
