"""The relay against a real RabbitMQ: through its absence, its death, its alarms."""

import httpx
import pytest

from tests.amqp.watching import (
    EXCHANGES,
    bind_all,
    collect,
    collect_count,
    connect,
    run_jobs,
    until,
)
from tests.e2e.serving import own_address, serving, start

WINDOW = 2_000  # messages that may come twice after a failure


@pytest.fixture
def broker(rabbit):
    """A channel to the node, and no exchanges and queues of earlier tests."""
    with connect(rabbit.url) as connection:
        channel = connection.channel()
        for exchange in EXCHANGES:
            channel.exchange_delete(exchange)
        channel.queue_delete("all")
        channel.queue_delete("full")
    return rabbit


def all_seen(count: int):
    def is_enough(found: list[tuple]) -> bool:
        return len({properties.message_id for _, properties, _ in found}) >= count

    return is_enough


def check_complete(found: list[tuple], count: int) -> int:
    """Nothing is missing, first sights are in order; gives how many came twice."""
    numbers = [int(properties.message_id) for _, properties, _ in found]
    firsts = list(dict.fromkeys(numbers))
    assert firsts == sorted(firsts)
    assert firsts == list(range(firsts[0], firsts[0] + count))
    return len(numbers) - len(firsts)


def test_every_event_reaches_the_broker_in_order_and_once(broker, tmp_path):
    """T31."""
    with connect(broker.url) as connection:
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        with serving(tmp_path, "--amqp-relay", broker.url) as served:
            run_jobs(served, "relayed", 200)
            found = collect_count(channel, "all", 600)

    assert check_complete(found, 600) == 0
    assert {method.exchange for method, _, _ in found} == set(EXCHANGES[:3])
    assert all(properties.type == method.exchange for method, properties, _ in found)
    assert all(properties.delivery_mode == 2 for _, properties, _ in found)


def test_the_server_works_with_no_broker_in_reach_and_its_events_arrive_later(broker, tmp_path):
    """T32, T33."""
    nowhere = own_address()
    with connect(broker.url) as connection:
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        with serving(tmp_path, "--amqp-relay", f"amqp://{nowhere}/") as served:
            run_jobs(served, "relayed", 50)
        again = ("--amqp-relay", broker.url, "--amqp-relay-from", "earliest")
        with serving(tmp_path, *again):
            found = collect_count(channel, "all", 150)

    assert check_complete(found, 150) == 0


def test_a_new_broker_is_told_what_happens_from_now_on(broker, tmp_path):
    """T33."""
    with serving(tmp_path) as served:
        run_jobs(served, "before", 5)
    with connect(broker.url) as connection:
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        with serving(tmp_path, "--amqp-relay", broker.url) as served:
            run_jobs(served, "after", 5)
            found = collect_count(channel, "all", 15)

    assert all(".default.after." in method.routing_key for method, _, _ in found)


def test_a_graceful_stop_of_the_broker_loses_nothing(broker, tmp_path):
    """T31."""
    with connect(broker.url) as connection:
        bind_all(connection.channel(), "all", durable=True)
    with serving(tmp_path, "--amqp-relay", broker.url) as served:
        run_jobs(served, "relayed", 200)
        broker.stop()
        run_jobs(served, "relayed", 200)
        broker.start()
        with connect(broker.url) as connection:
            run_jobs(served, "relayed", 200)
            found = collect(connection.channel(), "all", all_seen(1800))

    assert check_complete(found, 1800) <= WINDOW


def test_a_killed_broker_loses_nothing(broker, tmp_path):
    """T31."""
    with connect(broker.url) as connection:
        bind_all(connection.channel(), "all", durable=True)
    with serving(tmp_path, "--amqp-relay", broker.url) as served:
        run_jobs(served, "relayed", 400)
        broker.kill()
        run_jobs(served, "relayed", 100)
        broker.start()
        with connect(broker.url) as connection:
            found = collect(connection.channel(), "all", all_seen(1500))

    assert check_complete(found, 1500) <= WINDOW


def test_a_killed_server_goes_on_where_the_broker_had_confirmed(broker, tmp_path):
    """T31."""
    with connect(broker.url) as connection:
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        served = start(tmp_path, "--amqp-relay", broker.url)
        run_jobs(served, "relayed", 300)
        served.process.kill()
        served.process.wait()
        with serving(tmp_path, "--amqp-relay", broker.url):
            found = collect(channel, "all", all_seen(900))

    assert check_complete(found, 900) <= WINDOW


def test_a_broker_that_is_out_of_memory_is_waited_for(broker, tmp_path):
    """T34."""
    with serving(tmp_path, "--amqp-relay", broker.url) as served:
        with connect(broker.url) as connection:
            bind_all(connection.channel(), "all", durable=True)
        run_jobs(served, "relayed", 10)
        broker.control("set_vm_memory_high_watermark", "0.00001")
        try:
            run_jobs(served, "relayed", 300)
            until(lambda: "the broker's wish" in served.log(), "the broker never blocked us")
        finally:
            broker.control("set_vm_memory_high_watermark", "0.4")
        with connect(broker.url) as connection:
            found = collect(connection.channel(), "all", all_seen(930))

    assert check_complete(found, 930) == 0
    assert "no broker to relay to" not in served.log()


FULL = {"x-max-length": 50, "x-overflow": "reject-publish"}


def relay_facts(served) -> dict:
    return httpx.get(f"{served.url}/api/about").json()["results"]["relay"]


def test_a_full_queue_that_rejects_keeps_nobody_else_waiting(broker, tmp_path):
    """T31, T34."""
    with (
        connect(broker.url) as connection,
        serving(tmp_path, "--amqp-relay", broker.url) as served,
    ):
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        bind_all(channel, "full", durable=True, arguments=FULL)
        until(lambda: relay_facts(served)["connected"], "there was no connection")
        run_jobs(served, "relayed", 100)
        until(lambda: relay_facts(served)["refused"] == 250, "they were never given up")
        run_jobs(served, "later", 10)
        found = collect(channel, "all", all_seen(330))
        facts = relay_facts(served)
        refused = figure(served, "manyhands_relay_refused_events_total")
        page = httpx.get(f"{served.url}/ui/about").text

    assert check_complete(found, 330) <= 6  # five tries of the oldest, and perhaps one more
    assert facts["connected"]
    assert refused >= 250
    assert "refused for good" in page
    assert served.log().count("the broker refused messages; they are sent again") == 1
    assert served.log().count("the broker refused messages for good") == 1
    assert "no broker to relay to" not in served.log()


def test_a_queue_that_has_room_again_gets_what_it_had_rejected(broker, tmp_path):
    """T34."""
    with (
        connect(broker.url) as connection,
        serving(tmp_path, "--amqp-relay", broker.url) as served,
    ):
        channel = connection.channel()
        bind_all(channel, "full", durable=True, arguments=FULL)
        until(lambda: relay_facts(served)["connected"], "there was no connection")
        run_jobs(served, "relayed", 20)
        until(lambda: relay_facts(served)["retrying"] == 10, "nothing was rejected")
        found = collect_count(channel, "full", 60)
        until(lambda: relay_facts(served)["backlog"] == 0, "something is still owed")
        facts = relay_facts(served)

    assert check_complete(found, 60) == 0
    assert facts["refused"] == facts["retrying"] == 0


def all_completed(found: list[tuple]) -> bool:
    exchanges = [method.exchange for method, _, _ in found if ".relayed." in method.routing_key]
    return exchanges.count("task_completed_v1") >= 10


def test_an_exchange_that_somebody_deleted_comes_back(broker, tmp_path):
    """T34."""
    with (
        serving(tmp_path, "--amqp-relay", broker.url) as served,
        connect(broker.url) as connection,
    ):
        channel = connection.channel()
        bind_all(channel, "all", durable=True)
        run_jobs(served, "relayed", 10)
        collect_count(channel, "all", 30)
        channel.exchange_delete("task_pending_v1")

        def comes_back() -> bool:
            run_jobs(served, "lost", 1)
            try:
                connection.channel().exchange_declare("task_pending_v1", passive=True)
            except Exception:  # noqa: BLE001 - the channel closes if it is not there
                return False
            return True

        until(comes_back, "the exchange was not declared again")
        channel.queue_bind("all", "task_pending_v1", "#.relayed.#")
        run_jobs(served, "relayed", 10)
        found = collect(channel, "all", all_completed)

    told = [(m.exchange, m.routing_key) for m, _, _ in found if ".relayed." in m.routing_key]
    assert len(set(told)) == 30


def test_wrong_credentials_are_told_once_and_hurt_nobody(broker, tmp_path):
    """T32."""
    password = "not-that-of-the-guest"
    url = broker.url.replace("guest:guest", f"guest:{password}")
    with serving(tmp_path, "--amqp-relay", url) as served:
        run_jobs(served, "relayed", 5)
        until(lambda: "403" in served.log(), "nothing was said")
        metrics = httpx.get(f"{served.url}/metrics").text
        assert "manyhands_relay_connected 0.0" in metrics
        assert "manyhands_relay_backlog 15.0" in metrics
        relay = httpx.get(f"{served.url}/api/about").json()["results"]["relay"]
        assert relay["connected"] is False
        assert relay["backlog"] == 15
        assert relay["oldest_age_ms"] >= 0
        assert relay["dropped"] == 0
        assert "403" in relay["failure"]
        page = httpx.get(f"{served.url}/ui/about").text
        assert "Relay" in page
        assert "403" in page
        assert password not in page + str(relay)

    assert password not in served.log()


def figure(served, name: str) -> float:
    text = httpx.get(f"{served.url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_a_broker_that_was_away_for_too_long_is_told_what_the_log_still_has(broker, tmp_path):
    """T17, T32."""
    with connect(broker.url) as connection:
        bind_all(connection.channel(), "all", durable=True)
    options = ("--amqp-relay", broker.url, "--retention-events", "60")
    with serving(tmp_path, *options) as served:
        run_jobs(served, "before", 1)
        until(lambda: figure(served, "manyhands_relay_backlog") == 0, "it was not relayed")
        broker.stop()
        try:
            run_jobs(served, "meanwhile", 100)
            until(lambda: figure(served, "manyhands_relay_connected") == 0, "nobody noticed")
            until(lambda: events_kept(served) <= 60, "the log was not cut")
        finally:
            broker.start()
        until(lambda: figure(served, "manyhands_relay_backlog") == 0, "it did not catch up")
        dropped = figure(served, "manyhands_relay_dropped_events_total")
        with connect(broker.url) as connection:
            found = collect(connection.channel(), "all", all_seen(63))

    numbers = sorted({int(properties.message_id) for _, properties, _ in found})
    assert numbers == [1, 2, 3, *range(244, 304)]
    assert dropped == 240
    assert "events were gone before the broker took them" in served.log()


def events_kept(served) -> int:
    facts = httpx.get(f"{served.url}/api/about").json()["results"]["store"]
    return int(facts["events"])


def test_an_exchange_that_is_something_else_is_told_once_and_hurts_nobody(broker, tmp_path):
    """T32."""
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.exchange_declare("task_pending_v1", "fanout", durable=True)
        with serving(tmp_path, "--amqp-relay", broker.url) as served:
            run_jobs(served, "relayed", 5)
            until(lambda: "406" in served.log(), "nothing was said")
            assert figure(served, "manyhands_relay_connected") == 0
            assert figure(served, "manyhands_relay_backlog") == 15
        channel.exchange_delete("task_pending_v1")

    told = [line for line in served.log().splitlines() if "no broker to relay to" in line]
    assert len([line for line in told if "406" in line]) == 1
