"""Peers that are wrong, greedy or gone: each hears why, and nobody else notices."""

import struct

import httpx
import pytest
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue, Tx
from pamqp.heartbeat import Heartbeat

from manyhands.net.amqp import HEARTBEAT
from manyhands.protocols.amqp.deliveries import UNACKED_COUNT_MAX
from tests.amqp.raw import raw_client
from tests.amqp.watching import (
    bind_all,
    collect_count,
    connect,
    run_jobs,
    until,
    url_of,
)
from tests.e2e.serving import serving

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):  # noqa: ARG001 - which is chosen first
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, "--amqp", "127.0.0.1:0", "--store", "memory") as server:
        yield server


@pytest.fixture
def raw(served):
    with raw_client(served) as client:
        yield client


def test_another_protocol_is_told_which_one_is_spoken(raw):
    raw.send(b"GET / HTTP/1.1\r\n\r\n")
    assert raw.socket.recv(100) == b"AMQP\x00\x00\x09\x01"
    assert raw.socket.recv(100) == b""


def test_what_is_no_header_of_this_protocol_is_logged_once_and_counted(tmp_path):
    """T16."""
    with serving(tmp_path, "--amqp", "127.0.0.1:0", "--store", "memory") as served:
        for _ in range(20):
            with raw_client(served) as peer:
                peer.send(b"AMQP\x00\x01\x00\x00")
                assert peer.socket.recv(100) == b"AMQP\x00\x00\x09\x01"
        metrics = httpx.get(f"{served.url}/metrics").text

    assert "manyhands_amqp_refused_headers_total 20.0" in metrics
    assert served.log().count("a peer does not speak AMQP 0-9-1") == 1


def test_refused_logins_do_not_fill_the_log(tmp_path):
    """T16."""
    with serving(tmp_path, "--amqp", "127.0.0.1:0", "--store", "memory") as served:
        for _ in range(20):
            with raw_client(served) as peer:
                peer.start()
                peer.log_in("\0guest\0wrong")
                assert peer.hear() is None
        metrics = httpx.get(f"{served.url}/metrics").text

    assert "manyhands_amqp_refused_logins_total 20.0" in metrics
    assert served.log().count("a login was refused") == 1


def test_both_mechanisms_are_offered(raw):
    start = raw.start()

    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert start.server_properties["capabilities"]["basic.nack"] is True


def test_wrong_credentials_close_with_403_where_that_is_understood(raw):
    """T16."""
    raw.start()
    raw.log_in("\0guest\0wrong", capabilities={"authentication_failure_close": True})
    assert "mechanism PLAIN" in raw.expect_close(403)


def test_wrong_credentials_close_without_a_word_where_it_is_not(raw):
    raw.start()
    raw.log_in("\0root\0guest")
    assert raw.hear() is None


@pytest.mark.parametrize(
    ("response", "mechanism", "code"),
    [("\0guest", "PLAIN", 502), ("nonsense", "AMQPLAIN", 502), ("x", "GSSAPI", 530)],
)
def test_credentials_that_cannot_be_read(raw, response, mechanism, code):
    raw.start()
    raw.log_in(response, mechanism)
    raw.expect_close(code)


def test_steps_of_the_hand_shake_come_in_order(raw):
    raw.start()
    raw.say(Connection.Open("/"))
    assert "Connection.StartOk" in raw.expect_close(503)


def test_a_channel_before_the_connection_is_open(raw):
    raw.start()
    raw.say(Channel.Open(), 1)
    raw.expect_close(503)


@pytest.mark.parametrize(("frame_max", "channel_max"), [(100, 0), (10_000_000, 0), (0, 60_000)])
def test_limits_beyond_what_was_offered_are_refused(raw, frame_max, channel_max):
    raw.start()
    raw.log_in()
    raw.expect(Connection.Tune)
    raw.say(Connection.TuneOk(channel_max, frame_max, 0))
    raw.expect_close(530)


def test_an_unknown_virtual_host_is_refused(raw):
    raw.start()
    raw.log_in()
    raw.expect(Connection.Tune)
    raw.say(Connection.TuneOk(0, 0, 0))
    raw.say(Connection.Open("elsewhere"))
    assert "elsewhere" in raw.expect_close(530)


WRONG = {
    "a frame is too large": (501, struct.pack(">BHI", 1, 1, 1 << 20)),
    "a frame does not end": (501, struct.pack(">BHI", 1, 1, 4) + b"\x00\x3c\x00\x0a" + b"\x00"),
    "a method is unknown": (540, struct.pack(">BHIHH", 1, 1, 4, 99, 9) + b"\xce"),
    "a frame is unknown": (501, struct.pack(">BHI", 5, 1, 1) + b"x\xce"),
    "a table is broken": (
        502,
        struct.pack(">BHI", 1, 1, 17)
        + struct.pack(">HHH", 50, 10, 0)
        + b"\x01q\x00\x00\x00\x00\xff1234\xce",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_connection_closes_when(raw, what):
    """T27."""
    code, data = WRONG[what]
    raw.open()
    raw.send(data)
    assert raw.expect_close(code)


def test_what_a_peer_did_wrong_is_logged(served, raw):
    """T27."""
    raw.open()
    raw.say(Tx.Select(), 1)
    raw.expect_close(540)

    assert "a connection was closed for an error" in served.log()


@pytest.mark.parametrize(
    ("method", "channel", "code"),
    [
        (Queue.Declare(0, "q"), 2, 504),
        (Channel.Open(), 300, 530),
        (Channel.Open(), 1, 504),
        (Tx.Select(), 1, 540),
        (Connection.TuneOk(0, 0, 0), 0, 503),
        (Basic.Qos(prefetch_size=10), 1, 540),
    ],
)
def test_methods_out_of_place_close_the_connection(raw, method, channel, code):
    """T27."""
    raw.open()
    raw.say(method, channel)
    raw.expect_close(code)


def test_content_out_of_place_closes_the_connection(raw):
    raw.open()
    raw.send(struct.pack(">BHI", 3, 1, 1) + b"x\xce")
    raw.expect_close(505)


def test_what_follows_a_refused_publish_is_ignored_until_the_channel_is_closed(raw):
    raw.open()
    raw.say(Basic.Publish(0, "task_pending_v1", "key"), 1)
    raw.send(struct.pack(">BHI", 2, 1, 14) + struct.pack(">HHQH", 60, 0, 1, 0) + b"\xce")
    raw.send(struct.pack(">BHI", 3, 1, 1) + b"x\xce")
    raw.say(Queue.Declare(0, "ignored"), 1)
    close = raw.expect(Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (403, 60, 40)
    raw.say(Channel.CloseOk(), 1)
    raw.say(Channel.Open(), 1)
    raw.expect(Channel.OpenOk)
    raw.say(Exchange.Declare(0, "task_pending_v1", passive=True), 1)
    raw.expect(Exchange.DeclareOk)


def test_a_silent_peer_is_let_go_and_hears_heartbeats_before(raw):
    """T26."""
    raw.open(heartbeat=3)  # a server that is slow itself has six seconds for a beat
    beats = 0
    while (heard := raw.hear()) is not None:
        assert isinstance(heard[1], Heartbeat)
        beats += 1
    assert beats >= 1


def test_a_peer_that_never_acknowledges_gets_no_more_than_the_bound(served, raw):
    """T21, T24."""
    raw.open()
    raw.say(Queue.Declare(0, "", exclusive=True), 1)
    name = raw.expect(Queue.DeclareOk).queue
    raw.say(Queue.Bind(0, name, "task_pending_v1", "#.unacked."), 1)
    raw.expect(Queue.BindOk)
    raw.say(Basic.Consume(0, name, "tag"), 1)
    raw.expect(Basic.ConsumeOk)
    for _ in range(3):
        run_jobs(served, "unacked", UNACKED_COUNT_MAX // 2)
    count = 0
    while count < UNACKED_COUNT_MAX:
        heard = raw.hear()
        assert heard is not None
        count += isinstance(heard[1], Basic.Deliver)
    for _ in range(2):  # header and body of the last one
        raw.hear()
    raw.say(Queue.Declare(0, name, passive=True), 1)
    assert raw.expect(Queue.DeclareOk).message_count >= 1_000
    raw.say(Basic.Ack(0, multiple=True), 1)
    raw.expect(Basic.Deliver)


def test_a_peer_that_never_reads_costs_nobody_anything(served, raw):
    """T28."""
    raw.open()
    raw.say(Queue.Declare(0, "", exclusive=True), 1)
    name = raw.expect(Queue.DeclareOk).queue
    raw.say(Queue.Bind(0, name, "task_pending_v1", "#"), 1)
    raw.expect(Queue.BindOk)
    raw.say(Basic.Consume(0, name, "tag", no_ack=True), 1)
    raw.expect(Basic.ConsumeOk)
    with connect(url_of(served)) as connection:
        channel = connection.channel()
        reading = bind_all(channel, key="#.unread.")
        for _ in range(4):
            run_jobs(served, "unread", 5_000)
        assert len(collect_count(channel, reading, 60_000)) == 60_000
        # Whoever begins to read gets it all, from the log.
        count = 0
        while count < 20_000:
            heard = raw.hear()
            assert heard is not None
            count += isinstance(heard[1], Basic.Deliver)
    status = (f"/proc/{served.process.pid}/status",)
    with open(*status) as lines:  # noqa: PTH123
        resident_kib = int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    assert resident_kib < 600 * 1024


def test_a_flood_of_requests_is_answered_in_order(raw):
    raw.open()
    for number in range(3_000):
        raw.say(Queue.Declare(0, f"flood-{number % 50}", durable=True), 1)
    names = [raw.expect(Queue.DeclareOk).queue for _ in range(3_000)]
    assert names == [f"flood-{number % 50}" for number in range(3_000)]


def test_too_many_queues_are_refused_with_a_sentence(served):
    """T29."""
    with connect(url_of(served)) as connection:
        channel = connection.channel()
        for _ in range(1_001):
            try:
                channel.queue_declare("", exclusive=True)
            except Exception as error:  # noqa: BLE001 - looked at below
                refused = error
                break
    assert refused.reply_code == 406
    assert "queues already" in refused.reply_text


def test_identifiers_with_dots_and_underscores_cannot_shift_the_words_of_a_key(served):
    with connect(url_of(served)) as connection:
        channel = connection.channel()
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, "task_pending_v1", "*.*.*.*.default.*.*")
        for queue in ("a.b.c", "_", "x" * 200, "ö", "sp ace"):
            run_jobs(served, queue, 1)
        found = collect_count(channel, name, 5)

    assert len({method.routing_key.split(".")[5] for method, _, _ in found}) == 5
    until(lambda: served.process.poll() is None, "the server is gone")


def test_a_peer_that_beats_is_kept(raw):
    """T26."""
    raw.open(heartbeat=4)
    for _ in range(5):  # each of theirs comes after two seconds or more; silence may last eight
        assert isinstance(raw.hear()[1], Heartbeat)
        raw.send(HEARTBEAT)
    raw.say(Queue.Declare(0, "", exclusive=True), 1)
    raw.expect(Queue.DeclareOk)
