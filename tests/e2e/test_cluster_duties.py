"""What servers on one PostgreSQL take on from each other: operations, queues of watchers, payloads.

The servers are real, and so is the database.
"""

import signal
from contextlib import closing
from random import Random

import httpx
import pytest
from pika.exceptions import ChannelClosedByBroker

from manyhands.model import limits
from tests.amqp.watching import bind_all, collect, collect_count, connect, run_jobs, url_of
from tests.e2e.cluster import running
from tests.e2e.serving import Api, wait_until

COUNT = 6_000  # jobs of an operation: some thirty slices
EVENTS = 3  # of a job that is submitted, claimed and completed


@pytest.fixture
def three(postgresql, tmp_path):
    with running(tmp_path, postgresql, "a", "b", "c") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two(postgresql, tmp_path_factory):
    with running(tmp_path_factory.mktemp("two"), postgresql, "a", "b") as cluster:
        yield cluster


def apart(cluster) -> tuple[str, ...]:
    """The name of the server that decides, then the others."""
    owner = cluster.decider()
    return owner, *sorted(name for name in cluster.servers if name != owner)


def begin(cluster, name: str) -> str:
    """Submits many jobs, and has a server cancel them all."""
    with closing(Api(cluster.servers[name])) as api:
        for _ in range(COUNT // 2_000):
            api.results("submit", items=[{"queue": "many"}] * 2_000)
        return api.results("bulk", action="cancel", filter={"queue": "many"})["id"]


def shown(cluster, name: str, bulk_id: str) -> dict:
    found = httpx.get(f"{cluster.servers[name].url}/api/bulk/{bulk_id}", timeout=60.0)
    if found.status_code == 404:  # its server is dead, and not taken over yet
        return {"state": "unknown"}
    assert found.status_code == 200, found.text
    return found.json()["results"]


# Operations on many jobs.


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_an_operation_of_a_server_that_ends_is_gone_on_with(three, ends):
    """S52."""
    owner, front, other = apart(three)
    bulk_id = begin(three, front)
    three.servers[front].process.send_signal(ends)

    wait_until(lambda: shown(three, other, bulk_id)["state"] == "completed")

    counts = httpx.get(f"{three.servers[owner].url}/api/queues/many").json()["results"]["counts"]
    assert counts["cancelled"] == COUNT
    assert counts["ready"] == 0
    pages = httpx.get(f"{three.servers[other].url}/ui/bulk/{bulk_id}")
    assert pages.status_code == 200


def test_an_operation_goes_on_although_the_server_that_decides_is_killed(three):
    """S52: it waits while nobody decides, and leaves nothing out."""
    owner, front, other = apart(three)
    bulk_id = begin(three, front)
    three.kill(owner)

    wait_until(lambda: shown(three, other, bulk_id)["state"] == "completed")

    counts = httpx.get(f"{three.servers[front].url}/api/queues/many").json()["results"]["counts"]
    assert counts["cancelled"] == COUNT


def test_an_operation_is_listed_and_cancelled_at_any_server(three):
    """S52."""
    _, front, other = apart(three)
    bulk_id = begin(three, front)

    asked = httpx.post(f"{three.servers[other].url}/api/bulk/{bulk_id}/cancel", timeout=60.0)

    assert asked.status_code == 200, asked.text
    ended = wait_until(lambda: _ended(shown(three, other, bulk_id)))
    assert ended["state"] == "cancelled"
    assert ended["done"] < COUNT
    for server in three.servers.values():
        listed = httpx.get(f"{server.url}/api/bulk", timeout=60.0).json()["results"]
        assert [row["id"] for row in listed] == [bulk_id]


def _ended(bulk: dict) -> dict | None:
    return bulk if bulk["state"] not in ("active", "unknown") else None


# Queues of watchers.


def test_a_durable_queue_of_watchers_is_served_by_one_server_at_a_time(three):
    """S50: elsewhere it is locked, until its server is gone."""
    owner, front, other = apart(three)
    with connect(url_of(three.servers[front])) as connection:
        channel = connection.channel()
        bind_all(channel, "mine", durable=True)
        run_jobs(three.servers[other], "work", 2)
        assert len(collect_count(channel, "mine", 2 * EVENTS)) == 2 * EVENTS

        for name in (owner, other):
            with connect(url_of(three.servers[name])) as elsewhere:
                for options in ({"passive": True}, {"durable": True}):
                    with pytest.raises(ChannelClosedByBroker) as refused:
                        elsewhere.channel().queue_declare("mine", **options)
                    assert refused.value.reply_code == 405
                    assert f"is served by server {front}" in refused.value.reply_text
    three.kill(front)
    run_jobs(three.servers[owner], "later", 1)
    wait_until(lambda: front not in {row["name"] for row in three.servers_seen(other)})
    with connect(url_of(three.servers[other])) as connection:
        channel = connection.channel()
        channel.queue_declare("mine", durable=True)
        found = collect(channel, "mine", lambda found: len(_later(found)) == EVENTS)

    # Earlier ones may come again: positions are kept once a second.
    assert _later(found) == ["task_pending_v1", "task_running_v1", "task_completed_v1"]


def _later(found: list[tuple]) -> list[str]:
    return [method.exchange for method, _, _ in found if ".later." in method.routing_key]


# Payloads.


def test_a_large_payload_is_whole_wherever_it_is_looked_at_or_claimed(two):
    """S43: fronts keep only how large it is."""
    owner, front = apart(two)
    text = Random(1).randbytes(limits.PAYLOAD_BYTES_IN_MEMORY).hex()
    with closing(Api(two.servers[owner])) as here, closing(Api(two.servers[front])) as there:
        job_id = here.results("submit", queue="large", payload=text)["id"]
        wait_until(lambda: there.get("queues/large")["counts"]["ready"] == 1)
        before = there.get(f"jobs/{job_id}")
        (claimed,) = there.results("claim", queue="large", worker="w", count=1)
        there.results("complete", id=job_id, token=claimed["token"], result="done")
        after = there.get(f"jobs/{job_id}")

    assert before["payload"] == claimed["payload"] == after["payload"] == text
    assert before["payload_bytes"] == len(text) + len('""')
