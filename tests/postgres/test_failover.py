"""A real primary and a real standby: what a server does when the database fails over."""

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from manyhands.config.database import read_address
from manyhands.store.postgres.sessions import connect
from tests.databases import replicated
from tests.e2e.cluster import running
from tests.e2e.serving import Api, start, wait_until


@pytest.fixture
def synchronous():
    with replicated() as both:
        yield both


@pytest.fixture
def asynchronous():
    with replicated(synchronous=False) as both:
        yield both


@pytest.fixture
def opened():
    """Starts servers and opens their API; whatever happens, they end."""
    with ExitStack() as stack:

        def open_one(folder: Path, *arguments: str) -> Api:
            folder.mkdir(exist_ok=True)
            served = start(folder, *arguments)
            stack.callback(served.process.wait)
            stack.callback(served.process.kill)
            api = Api(served)
            stack.callback(api.close)
            return api

        yield open_one


def submit(api: Api, count: int) -> list[str]:
    items = [{"queue": "q", "payload": number} for number in range(count)]
    return [row["id"] for row in api.results("submit", items=items)]


def listed(api: Api) -> set[str]:
    return {job["id"] for job in api.get("jobs?queue=q&count=1000")}


def metric(api: Api, name: str) -> float:
    text = httpx.get(f"{api.served.url}/metrics").text
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def test_an_address_with_several_hosts_leads_to_the_one_that_can_be_written_to(synchronous):
    """S7."""
    address = read_address(synchronous.url())
    with connect(address) as connection:
        assert connection.info.port == synchronous.primary.port

    synchronous.fail_over()

    with connect(address) as connection:
        assert connection.info.port == synchronous.primary.port


def test_nothing_is_lost_or_repeated_when_a_synchronous_standby_is_promoted(
    tmp_path, synchronous, opened
):
    """S55 and S69."""
    api = opened(tmp_path, "--store", synchronous.url())
    ids = submit(api, 50)
    for _ in range(2):
        synchronous.fail_over()
        ids += submit(api, 10)
        synchronous.heal()
        ids += submit(api, 10)

    assert listed(api) == set(ids)
    assert metric(api, "manyhands_records_rewritten_total") == 0
    assert metric(api, "manyhands_pg_reconnects_total") >= 2
    assert api.served.stop() == 0


def test_what_a_promoted_standby_lacks_is_written_again(tmp_path, asynchronous, opened):
    """S55 and S69."""
    api = opened(tmp_path, "--store", asynchronous.url())
    ids = submit(api, 20)
    wait_until(lambda: has_caught_up(asynchronous))
    asynchronous.part()
    for _ in range(5):
        ids += submit(api, 4)
    # Or the process that applies them would have them still.
    wait_until(lambda: metric(api, "manyhands_apply_lag_seconds") == 0)
    asynchronous.fail_over()
    ids += submit(api, 10)

    assert listed(api) == set(ids)
    assert metric(api, "manyhands_records_rewritten_total") >= 5
    assert metric(api, "manyhands_lost_records_total") == 0
    assert "they are written again" in api.served.log()
    api.served.process.kill()  # the next start has only what is in the database
    api.served.process.wait()
    heir = opened(tmp_path / "next", "--store", asynchronous.url())

    assert listed(heir) == set(ids)
    events = heir.get("events?after=0&count=1000")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert heir.served.stop() == 0


def test_a_server_that_the_promoted_standby_never_knew_ends_with_the_numbers(
    tmp_path, asynchronous, opened
):
    """S77."""
    before = opened(tmp_path / "before", "--store", asynchronous.url())
    assert before.served.stop() == 0
    wait_until(lambda: has_caught_up(asynchronous))
    asynchronous.part()
    api = opened(tmp_path, "--store", asynchronous.url())
    submit(api, 5)
    asynchronous.fail_over()

    assert api.served.process.wait(90) == 1
    assert "it does not know tenure 2" in api.served.log()
    assert "was acknowledged" in api.served.log()


def test_a_database_that_forgot_who_decides_ends_the_server_with_the_numbers(
    tmp_path, asynchronous, opened
):
    """S55."""
    api = opened(tmp_path, "--store", asynchronous.url())
    submit(api, 5)
    with asynchronous.connect() as connection:
        connection.execute("UPDATE manyhands.facts SET value = '7' WHERE key = 'directory'")
        wait_until(lambda: has_caught_up(asynchronous))
        asynchronous.part()
        connection.execute("UPDATE manyhands.facts SET value = '9' WHERE key = 'directory'")
        asynchronous.primary.terminate()  # the server sees the number when it connects again
    submit(api, 1)
    asynchronous.fail_over()

    assert api.served.process.wait(90) == 1
    assert "it knows of 7 changes of who decides, and this server of 9" in api.served.log()


def test_a_backup_that_is_restored_under_a_live_server_ends_it(tmp_path, asynchronous, opened):
    """S77: the server finds another one under its own number, and does not take it for itself."""
    assert opened(tmp_path / "before", "--store", asynchronous.url()).served.stop() == 0
    wait_until(lambda: has_caught_up(asynchronous))
    asynchronous.part()  # the backup
    api = opened(tmp_path, "--store", asynchronous.url())
    submit(api, 5)
    api.served.process.send_signal(signal.SIGSTOP)
    asynchronous.fail_over()
    other = opened(tmp_path / "other", "--store", asynchronous.url())
    ids = submit(other, 1)
    api.served.process.send_signal(signal.SIGCONT)

    assert api.served.process.wait(90) == 1
    assert "restored from a backup" in api.served.log()
    assert listed(other) == set(ids)
    assert other.served.stop() == 0


def test_a_backup_that_is_restored_under_several_live_servers_ends_them_all(tmp_path, asynchronous):
    """S55, S77: none goes on from a state that others never saw, and each says why."""
    with running(tmp_path, asynchronous) as cluster:
        cluster.start("before")
        assert cluster.stop("before") == 0
        wait_until(lambda: has_caught_up(asynchronous))
        asynchronous.part()  # the backup
        servers = [cluster.start(name) for name in "ab"]
        cluster.until_ready()
        for served in servers:
            body = {"queue": "q"}
            assert httpx.post(f"{served.url}/api/submit", json=body, timeout=60).is_success

        asynchronous.fail_over()

        for served in servers:
            assert served.process.wait(90) == 1
            assert "restored from a backup" in served.log()
        cluster.servers.clear()
        again = cluster.start("a")
        assert httpx.post(f"{again.url}/api/submit", json={"queue": "q"}, timeout=60).is_success


def test_a_front_ends_when_what_it_has_shown_is_lost_with_the_server_that_wrote_it(
    tmp_path, asynchronous
):
    """S55, S77: watchers there would pass over what gets the same numbers."""
    with running(tmp_path, asynchronous, "a", "b") as cluster:
        owner = cluster.decider()
        (front,) = set(cluster.servers) - {owner}
        served = cluster.servers[front]
        body = {"queue": "q"}
        assert httpx.post(f"{served.url}/api/submit", json=body, timeout=60).is_success
        wait_until(lambda: has_caught_up(asynchronous))
        asynchronous.part()
        assert httpx.post(f"{served.url}/api/submit", json=body, timeout=60).is_success

        cluster.kill(owner)
        asynchronous.fail_over()

        assert served.process.wait(90) == 1
        assert "the database has gone back: it ends at event 1, and 2 was" in served.log()
        cluster.servers.clear()
        again = cluster.start("a")
        jobs = httpx.get(f"{again.url}/api/jobs?queue=q", timeout=60).json()["results"]
        assert len(jobs) == 1


def has_caught_up(both) -> bool:
    """Whether the standby has everything that the primary has committed."""
    with both.primary.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_replication"
            " WHERE replay_lsn >= pg_current_wal_flush_lsn()"
        ).fetchone()
    if row != (1,):
        time.sleep(0.02)
    return row == (1,)
