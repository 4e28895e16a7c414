"""Framing of AMQP: whatever is cut, wrong or too large is told apart."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic, Queue
from pamqp.heartbeat import Heartbeat

from manyhands.net.amqp import (
    HEARTBEAT,
    AmqpError,
    Code,
    Delivery,
    FrameReader,
    HeaderTemplate,
    Message,
    pack_deliver,
    pack_get_ok,
    pack_headers,
    pack_method,
    short,
)

TEMPLATE = HeaderTemplate(
    content_type="application/json", kind="kind", app_id="app", headers=pack_headers([("a", "b")])
)


def a_message(body: bytes) -> Message:
    return Message(7, "exchange", "a.b.c", TEMPLATE.pack(len(body), b"", "7", 1), body)


def read_all(data: bytes, frame_bytes_max: int = 4096):
    return list(FrameReader(frame_bytes_max).feed(data))


def raw_frame(kind: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + end


@given(st.integers(1, 40))
def test_frames_come_whole_however_they_are_cut(step):
    data = (
        pack_method(3, Queue.Declare(0, "name"))
        + HEARTBEAT
        + pack_method(3, Basic.Ack(2**40, multiple=True))
    )
    reader = FrameReader(4096)
    found = []
    for start in range(0, len(data), step):
        found += list(reader.feed(data[start : start + step]))

    (_, declare), (_, beat), (channel, ack) = found
    assert declare.queue == "name"
    assert isinstance(beat, Heartbeat)
    assert (channel, ack.delivery_tag, ack.multiple) == (3, 2**40, True)


@pytest.mark.parametrize("size", [1, 4088, 4089, 20_000])
def test_a_body_is_cut_into_frames_that_fit(size):
    message = a_message(bytes(size))
    delivered = pack_deliver(1, short("tag"), Delivery(5, True, message), 4096)
    method, header, *bodies = (read for _, read in read_all(delivered))

    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("tag", 5, True)
    assert (method.exchange, method.routing_key) == ("exchange", "a.b.c")
    assert header.properties.headers == {"a": "b"}
    assert header.body_size == size == sum(len(body.value) for body in bodies)


def test_a_message_that_was_asked_for_tells_how_many_are_left():
    data = pack_get_ok(1, Delivery(5, False, a_message(b"{}")), 9, 4096)
    method = read_all(data)[0][1]

    assert (method.delivery_tag, method.message_count, method.redelivered) == (5, 9, False)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">BHI", 1, 1, 5000), Code.FRAME_ERROR),
        (raw_frame(1, b"\x00\x3c\x00\x50" + bytes(9), b"\x00"), Code.FRAME_ERROR),
        (raw_frame(9, b"what"), Code.FRAME_ERROR),
        (raw_frame(1, b""), Code.SYNTAX_ERROR),
        (raw_frame(1, b"\x00"), Code.SYNTAX_ERROR),
        (raw_frame(1, struct.pack(">HH", 99, 1)), Code.NOT_IMPLEMENTED),
        (raw_frame(1, struct.pack(">HHH", 50, 10, 0) + b"\xffshort"), Code.SYNTAX_ERROR),
    ],
)
def test_what_is_wrong_is_told_apart(data, code):
    with pytest.raises(AmqpError) as wrong:
        read_all(data)
    assert wrong.value.code == code


@given(st.binary(max_size=200), st.sampled_from([1, 2, 3, 8]))
def test_no_bytes_do_more_than_raise_an_amqp_error(payload, kind):
    with contextlib.suppress(AmqpError):
        read_all(raw_frame(kind, payload))


@given(st.binary(max_size=300))
def test_no_table_does_more_than_raise_an_amqp_error(table):
    fields = struct.pack(">HHH", 50, 10, 0) + b"\x01q\x00" + struct.pack(">I", len(table)) + table
    with contextlib.suppress(AmqpError):
        read_all(raw_frame(1, fields))


def test_deeply_nested_tables_are_refused_or_read_but_never_fatal():
    table = b""
    for _ in range(500):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
        if len(table) > 3900:
            break
    fields = struct.pack(">HHH", 50, 10, 0) + b"\x01q\x00" + struct.pack(">I", len(table)) + table
    with contextlib.suppress(AmqpError):
        read_all(raw_frame(1, fields))


def test_a_short_string_is_bounded_in_bytes():
    assert short("é" * 127) == b"\xfe" + "é".encode() * 127
    with pytest.raises(AmqpError):
        short("é" * 128)


def test_methods_are_read_as_pamqp_reads_them():
    data = frame.marshal(Basic.Ack(1, False), 2)
    [(channel, ack)] = read_all(data)

    assert (channel, ack.delivery_tag, ack.multiple) == (2, 1, False)
