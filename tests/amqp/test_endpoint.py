"""The embedded endpoint with real clients: pika, aio-pika and Node's amqplib."""

import asyncio
import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aio_pika
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from manyhands.config.database import read_address
from manyhands.store.postgres.sessions import connect as connect_database
from tests.amqp.watching import (
    EXCHANGES,
    bind_all,
    collect_count,
    connect,
    run_jobs,
    until,
    url_of,
)
from tests.e2e import serving as serving_tools
from tests.e2e.serving import Api, serving, start

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

CLIENTS = Path(__file__).parent / "clients"
NODE_FOLDER = Path(__file__).parents[2] / ".test-clients"
PENDING = EXCHANGES[0]


@pytest.fixture
def connection(served):
    with connect(url_of(served)) as opened:
        yield opened


@pytest.fixture
def channel(connection):
    return connection.channel()


def numbers(found) -> list[int]:
    return [int(properties.message_id) for _, properties, _ in found]


# Clients.


def test_pika_hears_every_event_in_order(served, channel):
    """T15."""
    queue = bind_all(channel)

    run_jobs(served, "work", 50)

    assert numbers(collect_count(channel, queue, 150)) == list(range(1, 151))


def test_aio_pika_hears_every_event_in_order(served):
    """T15."""

    async def watch() -> list[int]:
        async with await aio_pika.connect(url_of(served)) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue(exclusive=True)
            for exchange in EXCHANGES:
                await queue.bind(await channel.get_exchange(exchange), "#")
            await asyncio.to_thread(run_jobs, served, "work", 50)
            heard = []
            async with queue.iterator(timeout=90) as messages:
                async for message in messages:
                    heard.append(int(message.message_id))
                    await message.ack()
                    if len(heard) == 150:
                        return heard
        return heard

    assert asyncio.run(watch()) == list(range(1, 151))


def need(is_there: object, reason: str) -> None:
    """Without it there is nothing to test, which is no excuse where everything is installed."""
    if not is_there:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def check_hears_every_event(served, *command: str) -> None:
    """A program that prints `ready`, and then each message as a line of JSON."""
    with subprocess.Popen(
        command,
        env={**os.environ, "NODE_PATH": str(NODE_FOLDER / "node_modules")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        run_jobs(served, "work", 50)
        lines, errors = process.communicate(timeout=90)

    assert process.returncode == 0, errors
    told = [json.loads(line) for line in lines.splitlines()]
    assert [int(line["id"]) for line in told] == list(range(1, 151))
    assert told[0]["state"] == "pending"
    assert told[-1]["exchange"] == "task_completed_v1"


@pytest.mark.parametrize(
    ("package", "script"),
    [("amqplib", "watch.js"), ("@cloudamqp/amqp-client", "watch_cloudamqp.mjs")],
)
def test_clients_of_node_hear_every_event_in_order(served, package, script):
    """T15."""
    installed = shutil.which("node") and (NODE_FOLDER / "node_modules" / package).is_dir()
    need(installed, f"{package} for node is not installed")

    check_hears_every_event(served, "node", str(CLIENTS / script), url_of(served), "150")


def test_anyevent_rabbitmq_of_perl_hears_every_event_in_order(served):
    """T15."""
    found = subprocess.run(
        ["perl", "-MAnyEvent::RabbitMQ", "-e", "1"], check=False, capture_output=True, timeout=90
    )
    need(found.returncode == 0, "AnyEvent::RabbitMQ for Perl is not installed")
    host, _, port = served.addresses["amqp"].rpartition(":")

    check_hears_every_event(served, "perl", str(CLIENTS / "watch.pl"), host, port, "150")


# Queues.


def test_a_binding_holds_for_what_comes_after_it_and_an_unbinding_for_what_came_before(
    served, channel
):
    """T17."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    run_jobs(served, "early", 1)
    channel.queue_bind(queue, PENDING, "#")
    run_jobs(served, "middle", 2)
    channel.queue_unbind(queue, PENDING, "#")
    run_jobs(served, "late", 1)
    channel.queue_bind(queue, PENDING, "#")
    run_jobs(served, "last", 1)

    types = [m.routing_key.split(".")[5] for m, _, _ in collect_count(channel, queue, 3)]

    assert types == ["middle", "middle", "last"]


def test_a_durable_queue_goes_on_after_the_server_was_killed(tmp_path):
    """T18."""
    served = start(tmp_path, "--amqp", "127.0.0.1:0")
    with connect(url_of(served)) as connection:
        channel = connection.channel()
        bind_all(channel, "mine", durable=True)
        run_jobs(served, "work", 10)
        found = [channel.basic_get("mine") for _ in range(12)]
        for index, (method, _, _) in enumerate(found):
            if index not in (3, 11):  # these two stay open
                channel.basic_ack(method.delivery_tag)
        channel.queue_declare("mine", durable=True, passive=True)
        position = '"owed":[4,12]'
        until(lambda: position in saved_cursor(served), "the acknowledgements were not written")
    served.process.kill()
    served.process.wait()
    with serving(tmp_path, "--amqp", "127.0.0.1:0") as again, connect(url_of(again)) as connection:
        channel = connection.channel()
        assert channel.queue_declare("mine", durable=True).method.message_count == 20
        found = collect_count(channel, "mine", 20)

    assert numbers(found) == [4, 12, *range(13, 31)]
    assert [method.redelivered for method, _, _ in found] == [True, True, *[False] * 18]


def saved_cursor(served) -> str:
    if serving_tools.store_of is not None:
        address = read_address(serving_tools.store_of(served.folder))
        with connect_database(address) as connection:
            table = f"{address.schema}.cursors"
            found = connection.execute(f"SELECT record FROM {table}").fetchall()
    else:
        import apsw

        file = served.data / "manyhands.db"
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            found = connection.execute("SELECT record FROM cursors").fetchall()
        finally:
            connection.close()
    return json.loads(found[0][0])["notes"] if found else ""


def test_a_deleted_durable_queue_does_not_come_back(tmp_path):
    """T18."""
    with (
        serving(tmp_path, "--amqp", "127.0.0.1:0") as served,
        connect(url_of(served)) as connection,
    ):
        channel = connection.channel()
        bind_all(channel, "mine", durable=True)
        channel.queue_delete("mine")
    with (
        serving(tmp_path, "--amqp", "127.0.0.1:0") as served,
        connect(url_of(served)) as connection,
        pytest.raises(ChannelClosedByBroker, match="404"),
    ):
        connection.channel().queue_declare("mine", passive=True)


def test_a_queue_that_nobody_uses_expires(served, channel):
    """T19."""
    channel.queue_declare("short", durable=True, arguments={"x-expires": 1})

    def is_gone() -> bool:
        with connect(url_of(served)) as other:
            try:
                other.channel().queue_declare("short", passive=True)
            except ChannelClosedByBroker as error:
                return error.reply_code == 404
        return False

    until(is_gone, "the queue is still there")


def test_an_exclusive_queue_is_locked_and_ends_with_its_connection(served, channel):
    """T20."""
    with connect(url_of(served)) as other:
        theirs = other.channel()
        name = bind_all(theirs)
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.basic_get(name)
    assert refused.value.reply_code == 405
    with connect(url_of(served)) as other, pytest.raises(ChannelClosedByBroker) as refused:
        other.channel().queue_declare(name, passive=True)
    assert refused.value.reply_code == 404


def test_an_auto_delete_queue_ends_with_its_last_consumer(channel):
    """T20."""
    channel.queue_declare("fleeting", auto_delete=True)
    tag = channel.basic_consume("fleeting", lambda *_: None)
    channel.basic_cancel(tag)

    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("fleeting", passive=True)
    assert refused.value.reply_code == 404


def test_consumers_of_one_queue_take_turns(served, connection):
    """T21."""
    channel = connection.channel()
    queue = bind_all(channel)
    heard: dict[str, list[int]] = {"a": [], "b": []}

    def listen(name: str) -> None:
        def hear(_channel, _method, properties, _body) -> None:
            heard[name].append(int(properties.message_id))

        channel.basic_consume(queue, hear, auto_ack=True)

    listen("a")
    listen("b")
    run_jobs(served, "work", 10)
    until(
        lambda: connection.process_data_events(0.1) or sum(map(len, heard.values())) == 30,
        "not all came",
    )

    assert len(heard["a"]) == len(heard["b"]) == 15
    assert sorted(heard["a"] + heard["b"]) == list(range(1, 31))


def test_deleting_a_queue_tells_its_consumers(served, connection):
    """T20."""
    channel = connection.channel()
    bind_all(channel, "shared", durable=True)
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume("shared", lambda *_: None)
    with connect(url_of(served)) as other:
        other.channel().queue_delete("shared")

    until(lambda: connection.process_data_events(0.1) or cancelled, "nothing was said")
    assert cancelled == [tag]


# Acknowledging.


def test_prefetch_bounds_what_is_not_acknowledged(served, connection):
    """T21."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=3)
    queue = bind_all(channel)
    tags: list[int] = []
    channel.basic_consume(queue, lambda _c, method, _p, _b: tags.append(method.delivery_tag))
    run_jobs(served, "work", 5)
    until(lambda: connection.process_data_events(0.1) or len(tags) >= 3, "nothing came")
    channel.queue_declare(queue, passive=True)  # whatever else was sent, came before this answer
    connection.process_data_events(0)
    assert tags == [1, 2, 3]

    channel.basic_ack(2, multiple=True)
    until(lambda: connection.process_data_events(0.1) or len(tags) >= 5, "nothing more came")
    assert tags == [1, 2, 3, 4, 5]


def test_what_is_given_back_is_delivered_again_and_marked(served, channel):
    """T22."""
    queue = bind_all(channel)
    run_jobs(served, "work", 2)
    first = [channel.basic_get(queue) for _ in range(6)]
    channel.basic_nack(first[1][0].delivery_tag, requeue=True)
    channel.basic_reject(first[3][0].delivery_tag, requeue=True)
    channel.basic_nack(first[4][0].delivery_tag, requeue=False)

    again = [channel.basic_get(queue) for _ in range(3)]

    assert [int(p.message_id) for _, p, _ in again[:2]] == [2, 4]
    assert all(method.redelivered for method, _, _ in again[:2])
    assert again[2] == (None, None, None)


def test_recover_gives_everything_back(served, channel):
    queue = bind_all(channel)
    run_jobs(served, "work", 1)
    for _ in range(3):
        channel.basic_get(queue)
    channel.basic_recover(requeue=True)

    assert numbers(collect_count(channel, queue, 3)) == [1, 2, 3]


def test_a_channel_that_closes_gives_back_what_it_had(served, connection):
    channel = connection.channel()
    queue = bind_all(channel)
    run_jobs(served, "work", 1)
    channel.basic_get(queue)
    channel.close()

    found = collect_count(connection.channel(), queue, 3)
    assert [method.redelivered for method, _, _ in found] == [True, False, False]


def test_a_tag_that_was_never_given_closes_the_channel(channel):
    """T22."""
    channel.basic_ack(7)
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("", exclusive=True)
    assert refused.value.reply_code == 406


def test_purging_forgets_what_waits(served, channel):
    """T24."""
    queue = bind_all(channel)
    run_jobs(served, "work", 4)
    assert channel.queue_purge(queue).method.message_count == 12
    run_jobs(served, "more", 1)

    assert numbers(collect_count(channel, queue, 3)) == [13, 14, 15]


# Replay.


@pytest.mark.parametrize(
    ("offset", "expected"),
    [("first", range(1, 16)), ("last", [15]), (11, range(11, 16)), (10_000, []), ("next", [])],
)
def test_a_consumer_can_start_anywhere_in_the_log(served, channel, offset, expected):
    """T23."""
    run_jobs(served, "work", 5)
    queue = bind_all(channel)
    heard: list[int] = []
    channel.basic_consume(
        queue,
        lambda _c, _m, properties, _b: heard.append(int(properties.message_id)),
        auto_ack=True,
        arguments={"x-stream-offset": offset},
    )
    run_jobs(served, "mark", 1)
    until(
        lambda: channel.connection.process_data_events(0.1) or (heard and heard[-1] == 18),
        "the mark did not come",
    )

    assert heard == [*expected, 16, 17, 18]


def test_a_consumer_can_start_at_a_time(served, channel):
    with Api(served).http as http:
        http.post("/api/submit", json={"queue": "work"})
    queue = bind_all(channel)
    started = datetime.now(UTC)
    for offset, count in ((started - timedelta(hours=1), 1), (started + timedelta(hours=1), 0)):
        tag = channel.basic_consume(
            queue, lambda *_: None, auto_ack=True, arguments={"x-stream-offset": offset}
        )
        channel.basic_cancel(tag)
        left = channel.queue_declare(queue, passive=True).method.message_count
        assert left in (0, count)


def test_a_stream_offset_that_means_nothing_is_refused(channel):
    queue = bind_all(channel)
    with pytest.raises(ChannelClosedByBroker, match="x-stream-offset"):
        channel.basic_consume(queue, print, arguments={"x-stream-offset": "yesterday"})


# Refusals.


def test_nothing_can_be_published(channel):
    """T25."""
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish(PENDING, "a.b", b"{}")
    assert refused.value.reply_code == 403


REFUSED = {
    "another exchange is made": (403, lambda c: c.exchange_declare("mine", "topic")),
    "an exchange is deleted": (403, lambda c: c.exchange_delete(PENDING)),
    "exchanges are bound": (403, lambda c: c.exchange_bind(PENDING, EXCHANGES[1], "#")),
    "an exchange is of another type": (406, lambda c: c.exchange_declare(PENDING, "fanout")),
    "an unknown exchange is looked for": (
        404,
        lambda c: c.exchange_declare("nothing", passive=True),
    ),
    "an unknown exchange is bound": (404, lambda c: c.queue_bind(bind_all(c), "nothing", "#")),
    "an unknown queue is read": (404, lambda c: c.basic_get("nothing")),
    "an unknown queue is bound": (404, lambda c: c.queue_bind("nothing", PENDING, "#")),
    "a reserved name is taken": (403, lambda c: c.queue_declare("amq.mine")),
    "a queue changes its nature": (
        406,
        lambda c: (c.queue_declare("one", durable=True), c.queue_declare("one")),
    ),
    "an argument is not honoured": (
        406,
        lambda c: c.queue_declare("two", arguments={"x-message-ttl": 5}),
    ),
    "a bound is no number above 0": (
        406,
        lambda c: c.queue_declare("two", arguments={"x-max-length": 0}),
    ),
    "a bound on bytes is no number": (
        406,
        lambda c: c.queue_declare("two", arguments={"x-max-length-bytes": "all"}),
    ),
    "what is too much is to be rejected": (
        406,
        lambda c: c.queue_declare("two", arguments={"x-overflow": "reject-publish"}),
    ),
    "a queue changes its bounds": (
        406,
        lambda c: (
            c.queue_declare("four", arguments={"x-max-length": 5}),
            c.queue_declare("four", arguments={"x-max-length": 6}),
        ),
    ),
    "an expiry is no number": (
        406,
        lambda c: c.queue_declare("two", arguments={"x-expires": "soon"}),
    ),
    "a busy queue is deleted if unused": (
        406,
        lambda c: (
            (c.basic_consume(bind_all(c), print), c.queue_delete(bind_all(c, "three")))
            and (
                c.basic_consume(bind_all(c, "three"), print),
                c.queue_delete("three", if_unused=True),
            )
        ),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_channel_closes_with_a_sentence_when(served, what):
    """T19, T25, T27."""
    code, act = REFUSED[what]
    with connect(url_of(served)) as connection:
        with pytest.raises(ChannelClosedByBroker) as refused:
            act(connection.channel())
        assert refused.value.reply_code == code
        assert len(refused.value.reply_text) > 10
        connection.channel().queue_declare("", exclusive=True)  # the connection goes on


NAMES = ["a*b", "$!%{('=&~|;?", "é中", "a\0b", "\x7f\x1b", "x" * 255]


def test_a_durable_queue_may_have_any_name_and_keeps_it_over_a_restart(tmp_path):
    """T17, T18."""
    options = ("--amqp", "127.0.0.1:0")
    with serving(tmp_path, *options) as served, connect(url_of(served)) as connection:
        channel = connection.channel()
        declared = [channel.queue_declare(name, durable=True).method.queue for name in NAMES]
        for name in NAMES:
            channel.queue_bind(name, PENDING, "#")
    with serving(tmp_path, *options) as served, connect(url_of(served)) as connection:
        run_jobs(served, "work", 1)
        channel = connection.channel()
        found = [collect_count(channel, name, 1) for name in NAMES]

    assert declared == NAMES
    assert [method.exchange for [(method, _, _)] in found] == [PENDING] * len(NAMES)


def test_amqplain_is_understood(served):
    """T16."""

    class Amqplain(pika.credentials.PlainCredentials):
        TYPE = "AMQPLAIN"

        def response_for(self, _start):
            def text(value: str) -> bytes:
                return b"S" + len(value).to_bytes(4, "big") + value.encode()

            return "AMQPLAIN", b"\x05LOGIN" + text("guest") + b"\x08PASSWORD" + text("guest")

    with connect(url_of(served), credentials=Amqplain("guest", "guest")) as connection:
        connection.channel().queue_declare("", exclusive=True)
