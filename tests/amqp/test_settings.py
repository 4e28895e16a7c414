"""Bounds of queues, second keys and other names of exchanges: the same here and on RabbitMQ."""

import httpx
import pytest

from tests.amqp.watching import (
    EXCHANGES,
    bind_all,
    collect_count,
    connect,
    run_jobs,
    until,
    url_of,
)
from tests.e2e.serving import Served, serving, start

PENDING = EXCHANGES[0]
ALIAS = "v1/queue:task-pending"


class Place:
    """Where to watch a server: at its own endpoint, or at the RabbitMQ that it relays to."""

    def __init__(self, served: Served, url: str) -> None:
        self.served = served
        self.url = url


@pytest.fixture(params=["endpoint", "rabbit"])
def place(request, tmp_path):
    options = ("--amqp-cc", "--amqp-aliases", "--store", "memory")
    if request.param == "endpoint":
        with serving(tmp_path, "--amqp", "127.0.0.1:0", *options) as served:
            yield Place(served, url_of(served))
        return
    rabbit = request.getfixturevalue("rabbit")
    with connect(rabbit.url) as connection:
        for exchange in (*EXCHANGES, ALIAS):
            connection.channel().exchange_delete(exchange)
    with serving(tmp_path, "--amqp-relay", rabbit.url, *options) as served:
        until(lambda: "relaying" in served.log(), "the relay is not connected")
        yield Place(served, rabbit.url)


def numbers(found) -> list[int]:
    return [int(properties.message_id) for _, properties, _ in found]


def read_all(channel, name: str) -> list[tuple]:
    found = []
    while (message := channel.basic_get(name, auto_ack=True))[0] is not None:
        found.append(message)
    return found


def told_last(channel, served: Served, count: int) -> None:
    """Wait until the last of so many jobs' messages is where queues hear it."""
    everything = bind_all(channel)
    run_jobs(served, "work", count)
    collect_count(channel, everything, 3 * count)


def test_a_bounded_queue_lets_go_of_the_oldest(place):
    """T45"""
    with connect(place.url) as connection:
        channel = connection.channel()
        bounds = {"x-max-length": 7, "x-overflow": "drop-head"}
        name = bind_all(channel, "", arguments=bounds)
        told_last(channel, place.served, 20)

        until(lambda: ready(channel, name) == 7, "the bound does not hold")
        assert numbers(read_all(channel, name)) == list(range(54, 61))


def ready(channel, name: str) -> int:
    return channel.queue_declare(name, passive=True).method.message_count


def test_a_queue_is_bounded_in_bytes(place):
    """T45"""
    with connect(place.url) as connection:
        channel = connection.channel()
        everything = bind_all(channel)
        name = bind_all(channel, "", arguments={"x-max-length-bytes": 4_000})
        run_jobs(place.served, "work", 10)
        bodies = [body for _, _, body in collect_count(channel, everything, 30)]
        until(lambda: ready(channel, name) < 30, "the bound does not hold")
        kept = [body for _, _, body in read_all(channel, name)]

    assert kept == bodies[-len(kept) :]
    assert sum(map(len, kept)) <= 4_000 < sum(map(len, bodies[-len(kept) - 1 :]))


def test_what_is_handed_out_does_not_count_and_what_comes_back_goes_first(place):
    """T45"""
    with connect(place.url) as connection:
        channel = connection.channel()
        name = bind_all(channel, "", arguments={"x-max-length": 5})
        told_last(channel, place.served, 2)
        until(lambda: ready(channel, name) == 5, "the bound does not hold")
        taken = [channel.basic_get(name) for _ in range(3)]
        told_last(channel, place.served, 1)
        until(lambda: ready(channel, name) == 5, "the bound does not hold")
        for method, _, _ in taken:
            channel.basic_nack(method.delivery_tag, requeue=True)
        until(lambda: ready(channel, name) == 5, "the bound does not hold")

        assert numbers(read_all(channel, name)) == [5, 6, 7, 8, 9]


def test_a_consumer_of_a_bounded_queue_hears_the_rest_in_order(place):
    """T45"""
    with connect(place.url) as connection:
        channel = connection.channel()
        name = bind_all(channel, "", arguments={"x-max-length": 10})
        told_last(channel, place.served, 10)
        until(lambda: ready(channel, name) == 10, "the bound does not hold")
        found = collect_count(channel, name, 10)

    assert numbers(found) == list(range(21, 31))


def test_a_durable_bounded_queue_keeps_its_bound_over_a_kill_and_tells_what_it_dropped(tmp_path):
    """T45"""
    served = start(tmp_path, "--amqp", "127.0.0.1:0")
    with connect(url_of(served)) as connection:
        bind_all(connection.channel(), "kept", durable=True, arguments={"x-max-length": 4})
        run_jobs(served, "work", 5)
    overflow = "manyhands_amqp_overflowed_messages_total 11.0"
    until(lambda: overflow in httpx.get(f"{served.url}/metrics").text, "nothing was counted")
    served.process.kill()
    served.process.wait()

    with serving(tmp_path, "--amqp", "127.0.0.1:0") as again, connect(url_of(again)) as connection:
        channel = connection.channel()
        declared = channel.queue_declare("kept", durable=True, arguments={"x-max-length": 4})
        assert declared.method.message_count == 4
        run_jobs(again, "work", 1)
        found = collect_count(channel, "kept", 4)

    # After a kill numbers may be reached again, but what is kept is the newest.
    assert numbers(found)[-1] == 18
    assert len(found) == 4


def test_the_literal_bindings_of_the_use_cases_work_with_the_setting(place):
    """T44"""
    with connect(place.url) as connection:
        channel = connection.channel()
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, PENDING, "default.#")
        channel.queue_bind(name, PENDING, "default.work.#")
        channel.queue_bind(name, PENDING, "*.*.*.*.default.#")
        other = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(other, PENDING, "nowhere.#")
        told_last(channel, place.served, 4)
        found = collect_count(channel, name, 4)

        # Three bindings fit; each message comes once, with the header to be seen.
        assert read_all(channel, name) == []
        assert read_all(channel, other) == []
    assert all(properties.headers["CC"] == ["default.work."] for _, properties, _ in found)


def test_without_the_setting_they_match_nothing(served):
    """T3"""
    with connect(url_of(served)) as connection:
        channel = connection.channel()
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, PENDING, "default.#")
        told_last(channel, served, 2)
        assert read_all(channel, name) == []
        with pytest.raises(Exception, match="404"):
            channel.exchange_declare(ALIAS, passive=True)


def test_exchanges_have_their_later_names_with_the_setting(place):
    """T44"""
    with connect(place.url) as connection:
        channel = connection.channel()
        channel.exchange_declare(ALIAS, "topic", durable=True)
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, ALIAS, "*.*.*.*.default.work.#")
        channel.queue_bind(name, PENDING, "*.*.*.*.default.work.#")
        told_last(channel, place.served, 3)
        found = collect_count(channel, name, 3)
        assert read_all(channel, name) == []

        assert [method.exchange for method, _, _ in found] == [PENDING] * 3
        channel.queue_unbind(name, ALIAS, "*.*.*.*.default.work.#")
