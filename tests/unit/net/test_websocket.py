"""WebSocket frames, written by another implementation's code and read by ours, and the reverse."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from manyhands.net import websocket as wire
from manyhands.net.websocket import Close, Decoder, Fault, Message, Ping, Pong
from manyhands.web.envelope import Problem

BYTES_MAX = 200_000
MASK = b"\x01\x02\x03\x04"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    """As a client of other people writes it."""
    return Frame(Opcode(opcode), data, fin).serialize(mask=mask)


def raw_frame(first: int, length: bytes, data: bytes = b"") -> bytes:
    """Bytes that no client writes."""
    body = bytes(byte ^ MASK[index % 4] for index, byte in enumerate(data))
    return bytes((first, length[0] | 0x80)) + length[1:] + MASK + body


def read(data: bytes, bytes_max: int = BYTES_MAX) -> list[wire.Event]:
    return Decoder(bytes_max).feed(data)


def faults(data: bytes, bytes_max: int = BYTES_MAX) -> list[int]:
    """The codes of the faults, each with a sentence."""
    found = [event for event in read(data, bytes_max) if isinstance(event, Fault)]
    assert all(fault.sentence for fault in found)
    return [fault.code for fault in found]


# Messages.


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 150_000])
def test_messages_of_any_length_are_read_and_written(length):
    data = bytes(range(256)) * (length // 256 + 1)
    data = data[:length]

    assert read(frame(2, data)) == [Message(data)]
    peer = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)
    peer.receive_data(wire.frame_head(length) + data)
    assert [event.data for event in peer.events_received()] == [data]


@given(
    st.lists(
        st.one_of(
            st.builds(Message, st.binary(max_size=300)),
            st.builds(Message, st.text(max_size=100).map(str.encode), is_text=st.just(True)),
            st.builds(Ping, st.binary(max_size=125)),
            st.builds(Pong, st.binary(max_size=125)),
        ),
        max_size=8,
    ),
    st.lists(st.integers(1, 40)),
    st.randoms(use_true_random=False),
)
def test_however_the_bytes_arrive_the_same_messages_are_read(events, sizes, random):
    sent = b""
    expected = []
    for event in events:
        if isinstance(event, Message):
            opcode = 1 if event.is_text else 2
            cuts = sorted(random.sample(range(len(event.data) + 1), min(2, len(event.data))))
            pieces = [
                event.data[start:stop]
                for start, stop in zip([0, *cuts], [*cuts, len(event.data)], strict=True)
            ]
            for index, piece in enumerate(pieces):
                last = index == len(pieces) - 1
                sent += frame(0 if index else opcode, piece, fin=last)
                if not last:  # control frames may stand between fragments
                    sent += frame(9, b"amid")
                    expected.append(Ping(b"amid"))
        else:
            sent += frame(9 if isinstance(event, Ping) else 10, event.data)
        expected.append(event)

    decoder = Decoder(BYTES_MAX)
    found = []
    at = 0
    for size in [*sizes, len(sent)]:
        found += decoder.feed(sent[at : at + size])
        at += size

    assert found == expected
    assert decoder.held_bytes() == 0


@given(st.binary(max_size=400), st.integers(1, 50))
def test_whatever_bytes_arrive_there_are_events_or_one_fault_and_memory_is_bounded(data, size):
    decoder = Decoder(1_000)
    found = []
    for at in range(0, len(data), size):
        found += decoder.feed(data[at : at + size])
        assert decoder.held_bytes() <= 1_000 + 14

    ends = [index for index, event in enumerate(found) if isinstance(event, Fault | Close)]
    assert ends in ([], [len(found) - 1])


@given(st.lists(st.tuples(st.sampled_from(range(256)), st.binary(max_size=130)), max_size=5))
def test_what_another_implementation_refuses_is_refused(frames):
    sent = b"".join(
        raw_frame(first, bytes((len(data),)) if len(data) < 126 else b"\x7e\0%c" % len(data), data)
        for first, data in frames
    )
    peer = ServerProtocol(state=State.OPEN, max_size=BYTES_MAX)
    peer.receive_data(sent)
    refused = peer.close_sent is not None and peer.close_rcvd is None

    found = read(sent)

    if refused:
        assert isinstance(found[-1], Fault)
    elif not any(isinstance(event, Fault) for event in found):
        theirs = [event for event in peer.events_received() if event.opcode in (1, 2, 9, 10)]
        whole = [event.data for event in theirs if event.fin and event.opcode != 0]
        assert [event.data for event in found if isinstance(event, Ping | Pong)] == [
            event.data for event in theirs if event.opcode in (9, 10)
        ]
        assert len(found) >= len(whole)


# What clients must not do.


FORBIDDEN = [
    (frame(2, b"x", mask=False), 1002),
    (raw_frame(0xC2, b"\x01", b"x"), 1002),
    (raw_frame(0xA2, b"\x01", b"x"), 1002),
    (raw_frame(0x92, b"\x01", b"x"), 1002),
    *((raw_frame(0x80 | opcode, b"\x00"), 1002) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 15)),
    (frame(0, b"x"), 1002),
    (frame(2, b"x", fin=False) + frame(2, b"y"), 1002),
    (frame(1, b"x", fin=False) + frame(2, b"y"), 1002),
    (raw_frame(0x09, b"\x00"), 1002),
    (raw_frame(0x08, b"\x00"), 1002),
    (raw_frame(0x89, b"\x7e\x00\x7e", b"x" * 126), 1002),
    (raw_frame(0x82, b"\x7e\x00\x7d", b"x" * 125), 1002),
    (raw_frame(0x82, b"\x7f" + (65_535).to_bytes(8, "big")), 1002),
    (raw_frame(0x82, b"\x7f" + (1 << 63).to_bytes(8, "big")), 1009),
    (raw_frame(0x82, b"\x7f" + (BYTES_MAX + 1).to_bytes(8, "big")), 1009),
    (frame(1, b"\xff"), 1007),
    (frame(1, b"\xc3", fin=False) + frame(0, b"\x28"), 1007),
    (frame(8, b"\x03"), 1002),
    *((frame(8, code.to_bytes(2, "big")), 1002) for code in (0, 999, 1004, 1005, 1006, 1015)),
    (frame(8, (2999).to_bytes(2, "big")), 1002),
    (frame(8, (5000).to_bytes(2, "big")), 1002),
    (frame(8, b"\x03\xe8\xff"), 1007),
]


@pytest.mark.parametrize(("sent", "code"), FORBIDDEN, ids=map(str, range(len(FORBIDDEN))))
def test_st2_what_the_standard_forbids_is_a_fault_and_nothing_is_read_after_it(sent, code):
    assert faults(sent + frame(2, b"after")) == [code]
    assert Message(b"after") not in read(sent + frame(2, b"after"))


def test_a_fault_is_found_before_the_payload_has_arrived():
    assert faults(b"\x82\xff" + (1 << 40).to_bytes(8, "big")) == [1009]


def test_a_message_is_bounded_over_all_its_fragments():
    piece = frame(0, b"x" * 400, fin=False)

    assert faults(frame(2, b"x" * 400, fin=False) + piece, 1_000) == []
    assert faults(frame(2, b"x" * 400, fin=False) + 2 * piece, 1_000) == [1009]


def test_a_ping_within_a_message_of_the_largest_size_is_no_fault():
    sent = frame(2, b"x" * 1_000, fin=False) + frame(9, b"x" * 125) + frame(0)

    assert read(sent, 1_000) == [Ping(b"x" * 125), Message(b"x" * 1_000)]


def test_empty_fragments_without_end_are_a_fault():
    decoder = Decoder(BYTES_MAX)
    decoder.feed(frame(2, fin=False))
    fragments = frame(0, fin=False) * 1_000

    found = [event for _ in range(11) for event in decoder.feed(fragments)]

    assert [event.code for event in found] == [1009]
    assert decoder.held_bytes() == 0


def test_a_message_that_arrives_byte_by_byte_takes_no_more_memory_than_its_bytes():
    data = frame(2, bytes(100_000))
    decoder = Decoder(BYTES_MAX)
    tracemalloc.start()

    found = [event for at in range(len(data)) for event in decoder.feed(data[at : at + 1])]

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [Message(bytes(100_000))]
    assert peak < 500_000


# The end.


def test_a_close_has_a_code_and_a_reason_or_neither():
    assert read(frame(8, b"\x03\xe9away")) == [Close(1001, "away")]
    assert read(frame(8)) == [Close(wire.NO_CODE, "")]


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1011, 1014, 3000, 4999])
def test_a_code_that_clients_may_use_is_accepted(code):
    assert read(frame(8, code.to_bytes(2, "big"))) == [Close(code, "")]


def test_nothing_is_read_after_a_close():
    decoder = Decoder(BYTES_MAX)

    assert decoder.feed(frame(8) + frame(2, b"after")) == [Close(wire.NO_CODE, "")]
    assert decoder.feed(frame(2, b"after")) == []


def test_a_reason_that_is_too_long_is_cut_between_two_characters():
    peer = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)

    peer.receive_data(wire.close_frame(1002, "ä" * 100))

    assert peer.close_rcvd.code == CloseCode.PROTOCOL_ERROR
    assert peer.close_rcvd.reason == "ä" * 61


def test_control_frames_are_read_by_other_people():
    peer = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)

    peer.receive_data(wire.ping_frame(b"?") + wire.pong_frame(b"!"))
    peer.receive_data(wire.close_frame(wire.NO_CODE))

    assert [event.opcode for event in peer.events_received()] == [9, 10, 8]
    assert peer.close_rcvd.code == CloseCode.NO_STATUS_RCVD


# The handshake.

HEADERS = {
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
    b"sec-websocket-protocol": b"manyhands.2, manyhands.1",
}


def test_the_key_is_answered_as_the_standard_shows():
    offer = wire.read_offer(HEADERS)

    assert offer.subprotocols == ("manyhands.2", "manyhands.1")
    headers = dict(wire.answer_headers(offer, "manyhands.1"))
    assert headers[b"sec-websocket-accept"] == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert headers[b"sec-websocket-protocol"] == b"manyhands.1"


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        (b"sec-websocket-version", b"8", 426),
        (b"sec-websocket-version", b"13, 8", 426),
        (b"sec-websocket-version", None, 426),
        (b"sec-websocket-key", None, 400),
        (b"sec-websocket-key", b"", 400),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZ", 400),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ", 400),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZSE=", 400),
        (b"sec-websocket-key", b"\xff\xfe", 400),
    ],
)
def test_a_handshake_with_another_version_or_an_odd_key_is_refused(header, value, status):
    headers = {name: text for name, text in {**HEADERS, header: value}.items() if text is not None}

    with pytest.raises(Problem) as found:
        wire.read_offer(headers)

    assert found.value.status == status
    assert found.value.message


# The client's side.


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 150_000])
def test_masked_frames_of_any_length_are_read_by_servers_of_other_people(length):
    data = (bytes(range(256)) * (length // 256 + 1))[:length]
    peer = ServerProtocol(state=State.OPEN, max_size=None)

    peer.receive_data(wire.masked(wire.frame_head(length) + data, MASK))

    assert [event.data for event in peer.events_received()] == [data]


@given(st.binary(max_size=300), st.integers(1, 40))
def test_frames_of_a_server_are_read_in_pieces_of_any_size(data, size):
    decoder = Decoder(BYTES_MAX, of_server=True)
    sent = frame(2, data, mask=False) + frame(9, b"x", mask=False)
    found = []

    for start in range(0, len(sent), size):
        found += decoder.feed(sent[start : start + size])

    assert found == [Message(data), Ping(b"x")]


def test_a_server_that_masks_is_at_fault():
    [fault] = Decoder(BYTES_MAX, of_server=True).feed(frame(2, b"x", mask=True))

    assert fault == Fault(wire.PROTOCOL_ERROR, "a server must not mask its frames")


def test_the_accept_header_is_that_of_the_standard():
    assert wire.accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
