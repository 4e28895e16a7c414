"""The shipped Gearman protocol: bytes to messages and back."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.gearman import codec as gearman
from manyhands.protocols.gearman.codec import (
    ADMIN_LINE,
    FATAL,
    FAULT,
    LINE_TOO_LONG,
    Decoder,
    Message,
)
from manyhands.protocols.gearman.dialect import Dialect, sniff


def packet(magic: bytes, kind: int, body: bytes) -> bytes:
    return magic + kind.to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def request(kind: int, body: bytes = b"") -> bytes:
    return packet(b"\0REQ", kind, body)


def response(kind: int, body: bytes = b"") -> bytes:
    return packet(b"\0RES", kind, body)


def decode(data: bytes, *, responses: bool = False) -> list[Message]:
    return Decoder(responses=responses).feed(data)


def example_args(arguments: str) -> list[bytes]:
    """One value for each argument of a packet; data gets the NULs that only data may have."""
    return [b"\0a\0b\0" if name == "data" else name.encode() for name in arguments.split()]


requests = [row for row in gearman.PACKETS if row[2] in (gearman.REQUEST, gearman.EITHER)]
responses = [row for row in gearman.PACKETS if row[2] in (gearman.RESPONSE, gearman.EITHER)]

# One of everything that a server can meet without losing the stream.
MIXED = b"".join(
    (
        request(gearman.SUBMIT_JOB_BG, b"resize\0key\0a\0b"),
        b"status\r\n",
        request(gearman.GRAB_JOB),
        request(77, b"from the future"),
        b"workers\n",
        request(gearman.WORK_COMPLETE, b"H:x:1"),
        response(gearman.NOOP),
        request(gearman.SUBMIT_REDUCE_JOB, b"map\0u\0reduce\0\0data"),
        request(gearman.ECHO_REQ),
        b"\n",
        request(gearman.CAN_DO, b"resize\0"),
    )
)
MIXED_DECODED: list[Message] = [
    (gearman.SUBMIT_JOB_BG, [b"resize", b"key", b"a\0b"]),
    (ADMIN_LINE, [b"status"]),
    (gearman.GRAB_JOB, []),
    (FAULT, [b"INVALID_COMMAND", b"packet type 77 is not expected here"]),
    (ADMIN_LINE, [b"workers"]),
    (FAULT, [b"INVALID_PACKET", b"WORK_COMPLETE needs 2 arguments and has 1"]),
    (FAULT, [b"INVALID_MAGIC", b"NOOP came with the magic of the other direction"]),
    (gearman.SUBMIT_REDUCE_JOB, [b"map", b"u", b"reduce", b"data"]),
    (gearman.ECHO_REQ, [b""]),
    (ADMIN_LINE, [b""]),
    (gearman.CAN_DO, [b"resize"]),
]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\0REQ\0\0\0\x12\0\0\0\x0eresize\0u1\0\x00\x01\x02\x03",
            (gearman.SUBMIT_JOB_BG, [b"resize", b"u1", b"\x00\x01\x02\x03"]),
        ),
        (b"\0REQ\0\0\0\x09\0\0\0\0", (gearman.GRAB_JOB, [])),
        (b"\0REQ\0\0\0\x27\0\0\0\0", (gearman.GRAB_JOB_ALL, [])),
        (b"\0REQ\0\0\0\x0d\0\0\0\x08H:a:1\0ok", (gearman.WORK_COMPLETE, [b"H:a:1", b"ok"])),
        (b"\0REQ\0\0\0\x17\0\0\0\x06f\x001000", (gearman.CAN_DO_TIMEOUT, [b"f", b"1000"])),
    ],
)
def test_requests_are_read_from_their_known_bytes(data: bytes, message: Message) -> None:
    assert decode(data) == [message]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (gearman.NOOP_PACKET, b"\0RES\0\0\0\x06\0\0\0\0"),
        (gearman.NO_JOB_PACKET, b"\0RES\0\0\0\x0a\0\0\0\0"),
        (gearman.encode_job_created(b"H:a:1"), b"\0RES\0\0\0\x08\0\0\0\x05H:a:1"),
        (
            gearman.encode_job_assign(b"H:a:1", b"f", b"d\0d"),
            b"\0RES\0\0\0\x0b\0\0\0\x0bH:a:1\0f\0d\0d",
        ),
        (
            gearman.encode_job_assign_uniq(b"H:a:1", b"f", b"u", b"d"),
            b"\0RES\0\0\0\x1f\0\0\0\x0bH:a:1\0f\0u\0d",
        ),
        (gearman.encode_work_complete(b"H:a:1", b"d"), b"\0RES\0\0\0\x0d\0\0\0\x07H:a:1\0d"),
        (
            gearman.encode_response(gearman.ERROR, b"QUEUE_ERROR", b"full"),
            b"\0RES\0\0\0\x13\0\0\0\x10QUEUE_ERROR\0full",
        ),
        (
            gearman.encode_request(gearman.SUBMIT_JOB, b"f", b"", b""),
            b"\0REQ\0\0\0\x07\0\0\0\x03f\0\0",
        ),
    ],
)
def test_packets_are_written_as_their_known_bytes(data: bytes, expected: bytes) -> None:
    assert data == expected


@pytest.mark.parametrize(("kind", "name", "_direction", "arguments"), requests)
def test_every_request_of_the_table_survives_the_round_trip(
    kind: int, name: str, _direction: str, arguments: str
) -> None:
    args = example_args(arguments)
    assert decode(gearman.encode_request(kind, *args)) == [(kind, args)]
    assert getattr(gearman, name) == kind


@pytest.mark.parametrize(("kind", "name", "_direction", "arguments"), responses)
def test_every_response_of_the_table_survives_the_round_trip(
    kind: int, name: str, _direction: str, arguments: str
) -> None:
    args = example_args(arguments)
    assert decode(gearman.encode_response(kind, *args), responses=True) == [(kind, args)]
    assert getattr(gearman, name) == kind


def test_the_table_has_every_packet_type_but_the_unused_fifth() -> None:
    assert [row[0] for row in gearman.PACKETS] == [n for n in range(1, 43) if n != 5]


@pytest.mark.parametrize("size", [0, 100, 511, 512, 5000])
def test_the_quick_encoders_agree_with_the_general_one_at_any_size(size: int) -> None:
    handle, data = b"H:a:1", b"\0" * size
    assert gearman.encode_job_assign(handle, b"f", data) == gearman.encode_response(
        gearman.JOB_ASSIGN, handle, b"f", data
    )
    assert gearman.encode_job_assign_uniq(handle, b"f", b"u", data) == gearman.encode_response(
        gearman.JOB_ASSIGN_UNIQ, handle, b"f", b"u", data
    )
    assert gearman.encode_work_complete(handle, data) == gearman.encode_response(
        gearman.WORK_COMPLETE, handle, data
    )


def test_text_and_packets_and_faults_may_alternate_on_one_connection() -> None:
    assert decode(MIXED) == MIXED_DECODED


def test_a_stream_may_be_split_at_any_byte() -> None:
    for cut in range(len(MIXED) + 1):
        decoder = Decoder()
        assert decoder.feed(MIXED[:cut]) + decoder.feed(MIXED[cut:]) == MIXED_DECODED


def test_a_stream_may_come_one_byte_at_a_time() -> None:
    decoder = Decoder()
    messages = [message for byte in MIXED for message in decoder.feed(bytes([byte]))]
    assert messages == MIXED_DECODED


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        (gearman.SUBMIT_JOB, b"f", b"SUBMIT_JOB needs 3 arguments and has 1"),
        (gearman.SUBMIT_JOB_EPOCH, b"f\0u\x001", b"SUBMIT_JOB_EPOCH needs 4 arguments and has 3"),
        (gearman.CAN_DO_TIMEOUT, b"f", b"CAN_DO_TIMEOUT needs 2 arguments and has 1"),
        (gearman.SUBMIT_REDUCE_JOB, b"f\0u\0r", b"SUBMIT_REDUCE_JOB needs 4 arguments and has 3"),
    ],
)
def test_too_few_arguments_are_a_fault_and_the_next_packet_is_in_step(
    kind: int, body: bytes, sentence: bytes
) -> None:
    assert decode(request(kind, body) + request(gearman.PRE_SLEEP)) == [
        (FAULT, [b"INVALID_PACKET", sentence]),
        (gearman.PRE_SLEEP, []),
    ]


@pytest.mark.parametrize("kind", [0, 5, 43, 2**32 - 1, gearman.NOOP, gearman.JOB_CREATED])
def test_a_type_that_is_no_request_is_a_fault_and_is_skipped(kind: int) -> None:
    messages = decode(request(kind, b"\0REQ") + request(gearman.PRE_SLEEP))
    assert [(messages[0][0], messages[0][1][0]), messages[1]] == [
        (FAULT, b"INVALID_COMMAND"),
        (gearman.PRE_SLEEP, []),
    ]


def test_a_request_met_by_a_client_is_a_fault_and_is_skipped() -> None:
    stream = response(gearman.GRAB_JOB) + request(gearman.NOOP) + response(gearman.NOOP)
    messages = decode(stream, responses=True)
    assert [kind for kind, _ in messages] == [FAULT, FAULT, gearman.NOOP]
    assert [messages[0][1][0], messages[1][1][0]] == [b"INVALID_COMMAND", b"INVALID_MAGIC"]


@pytest.mark.parametrize("magic", [b"\0REX", b"\0\0\0\0", b"\0GM0"])
def test_a_wrong_magic_ends_the_stream_as_soon_as_it_is_seen(magic: bytes) -> None:
    decoder = Decoder()
    assert decoder.feed(request(gearman.PRE_SLEEP) + magic[:3]) == [(gearman.PRE_SLEEP, [])]
    assert decoder.feed(magic[3:]) == [
        (FATAL, [b"INVALID_MAGIC", b"Not the start of a Gearman packet"])
    ]
    assert decoder.closed
    assert decoder.feed(request(gearman.PRE_SLEEP)) == []


@pytest.mark.parametrize("magic", [b"\0REQ", b"\0RES"])
def test_an_oversized_packet_ends_the_stream_before_its_body_is_held(magic: bytes) -> None:
    decoder = Decoder(max_data=1000)
    header = magic + b"\0\0\0\x12" + (5097).to_bytes(4, "big")
    assert decoder.feed(header) == [
        (
            FATAL,
            [b"ARGUMENT_TOO_LARGE", b"SUBMIT_JOB_BG of 5097 bytes, the limit is 1000"],
        )
    ]
    assert decoder.closed


@given(
    kind=st.sampled_from([gearman.WORK_COMPLETE, gearman.WORK_DATA, gearman.WORK_WARNING]),
    size=st.integers(990, 6000),
    cuts=st.lists(st.integers(0, 7000), max_size=20),
)
def test_a_report_with_too_much_data_is_skipped_and_the_stream_goes_on(
    kind: int, size: int, cuts: list[int]
) -> None:
    decoder = Decoder(max_data=1000)
    data = b"x" * size
    stream = request(kind, b"H:x:1\0" + data) + request(gearman.GRAB_JOB) + b"status\n"

    first, *others = fed_in_pieces(decoder, stream, cuts)

    if size <= 1000:
        assert first == (kind, [b"H:x:1", data])
    else:
        sentence = f"{gearman.packet_name(kind)} of {size} bytes, the limit is 1000"
        assert first == (gearman.REPORT_TOO_LARGE, [b"H:x:1", sentence.encode()])
    assert others == [(gearman.GRAB_JOB, []), (ADMIN_LINE, [b"status"])]


def test_nothing_is_held_of_a_report_with_too_much_data() -> None:
    decoder = Decoder(max_data=1000)
    header = b"\0REQ" + gearman.WORK_COMPLETE.to_bytes(4, "big") + (1 << 31).to_bytes(4, "big")
    assert decoder.feed(header + b"H:x:1\0" + bytes(100))[0][0] == gearman.REPORT_TOO_LARGE

    for _ in range(100):
        assert decoder.feed(bytes(10_000)) == []

    assert not decoder._held


def test_a_packet_of_exactly_the_limit_is_taken() -> None:
    decoder = Decoder(max_data=1000)
    assert decoder.feed(request(gearman.ECHO_REQ, b"x" * 1000)) == [
        (gearman.ECHO_REQ, [b"x" * 1000])
    ]


def test_a_line_of_exactly_the_limit_is_taken_and_one_byte_more_ends_the_stream() -> None:
    decoder = Decoder(max_line=10)
    assert decoder.feed(b"0123456789\n") == [(ADMIN_LINE, [b"0123456789"])]
    assert decoder.feed(b"0123456789") == []
    assert decoder.feed(b"0") == [
        (LINE_TOO_LONG, [b"LINE_TOO_LONG", b"No line end within 10 bytes"])
    ]
    assert decoder.closed


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_may_end_in_lf_or_crlf(end: bytes) -> None:
    assert decode(b"create function fooz" + end) == [(ADMIN_LINE, [b"create function fooz"])]


def test_a_body_where_none_belongs_is_ignored() -> None:
    assert decode(request(gearman.GRAB_JOB, b"abc")) == [(gearman.GRAB_JOB, [])]


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0\0"])
def test_nuls_behind_a_last_argument_that_is_no_data_are_stripped(tail: bytes) -> None:
    assert decode(response(gearman.WORK_FAIL, b"H:a:1" + tail), responses=True) == [
        (gearman.WORK_FAIL, [b"H:a:1"])
    ]


def test_a_nul_inside_a_last_argument_that_is_no_data_is_a_fault() -> None:
    assert decode(request(gearman.CAN_DO, b"a\0b")) == [
        (FAULT, [b"INVALID_PACKET", b"CAN_DO has a NUL inside its last argument"])
    ]


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"f\0u\0r\0\0a\0b", b"a\0b"),
        (b"f\0u\0r\0a\0b", b"a\0b"),
        (b"f\0u\0r\0\0", b""),
        (b"f\0u\0r\0", b""),
        (b"f\0u\0r\0\0\0a", b"\0a"),
    ],
)
@pytest.mark.parametrize("kind", [gearman.SUBMIT_REDUCE_JOB, gearman.SUBMIT_REDUCE_JOB_BACKGROUND])
def test_reduce_packets_are_read_with_and_without_the_empty_aggregator(
    kind: int, body: bytes, data: bytes
) -> None:
    assert decode(request(kind, body)) == [(kind, [b"f", b"u", b"r", data])]


def test_reduce_packets_are_written_with_the_empty_aggregator() -> None:
    data = gearman.encode_request(gearman.SUBMIT_REDUCE_JOB, b"f", b"u", b"r", b"d")
    assert data == request(gearman.SUBMIT_REDUCE_JOB, b"f\0u\0r\0\0d")


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (gearman.NOOP, ()),
        (gearman.SUBMIT_JOB, (b"f", b"u")),
        (gearman.SUBMIT_JOB, (b"f\0", b"u", b"d")),
        (gearman.CAN_DO, (b"f\0g",)),
    ],
)
def test_a_request_that_a_server_would_refuse_is_not_encoded(
    kind: int, args: tuple[bytes, ...]
) -> None:
    with pytest.raises(ValueError, match=gearman.packet_name(kind)):
        gearman.encode_request(kind, *args)


def test_admin_answers_look_like_those_of_gearmand() -> None:
    assert gearman.encode_listing([b"f\t1\t0\t2", b"g\t0\t0\t0"]) == b"f\t1\t0\t2\ng\t0\t0\t0\n.\n"
    assert gearman.encode_listing([]) == b".\n"
    assert gearman.encode_value(b"1.1.20") == b"OK 1.1.20\n"
    assert gearman.OK_LINE == b"OK\r\n"
    assert gearman.encode_refusal(b"UNKNOWN_JOB") == b"ERR UNKNOWN_JOB\r\n"
    assert gearman.encode_refusal(b"A", b"b c d") == b"ERR A b+c+d\r\n"


def test_admin_answers_are_read_by_a_client_line_by_line() -> None:
    commands = gearman.encode_line(b"status") + gearman.encode_line(b"version")
    assert decode(commands) == [(ADMIN_LINE, [b"status"]), (ADMIN_LINE, [b"version"])]
    answer = gearman.encode_listing([b"f\t1\t0\t2"]) + gearman.OK_LINE
    assert [args for _, args in decode(answer, responses=True)] == [
        [b"f\t1\t0\t2"],
        [b"."],
        [b"OK"],
    ]


def test_a_trickle_is_linear_in_time_and_bounded_in_memory() -> None:
    size = 200_000
    data = request(gearman.ECHO_REQ, b"x" * size)
    pieces = [data[at : at + 2] for at in range(0, len(data), 2)]
    decoder = Decoder()
    tracemalloc.start()
    try:
        started = time.process_time()
        messages = [message for piece in pieces for message in decoder.feed(piece)]
        # Joining anew for each piece would copy 10 GB and take seconds.
        assert time.process_time() - started < 2.0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert messages == [(gearman.ECHO_REQ, [b"x" * size])]
    assert peak < 5 * size


@pytest.mark.parametrize(
    ("first", "dialect"),
    [
        (b"", None),
        (b"\0", None),
        (b"\0G", None),
        (b"\0GM", None),
        (b"\0GM0", Dialect.DRAFT),
        (b"\0GM0\0\0\0\0\0", Dialect.DRAFT),
        (b"\0GMx", Dialect.SHIPPED),
        (b"\0R", Dialect.SHIPPED),
        (b"\0REQ\0\0\0\x09\0\0\0\0", Dialect.SHIPPED),
        (b"\0\0", Dialect.SHIPPED),
        (b"s", Dialect.ADMIN_TEXT),
        (b"\n", Dialect.ADMIN_TEXT),
        (b"G", None),
        (b"POST", None),
        (b"GETPID\r\n", Dialect.ADMIN_TEXT),
        (b"get / HTTP/1.1\r\n", Dialect.ADMIN_TEXT),
        (b"GET / HTTP/1.1\r\n", Dialect.HTTP),
        (b"POST /x", Dialect.HTTP),
    ],
)
def test_the_first_bytes_tell_the_dialects_apart(first: bytes, dialect: Dialect | None) -> None:
    assert sniff(first) is dialect


# Bytes that often are, or nearly are, packets and lines: random ones alone would rarely get far.
nearly_streams = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.builds(
            packet,
            st.sampled_from([b"\0REQ", b"\0REQ", b"\0RES"]),
            st.integers(0, 45),
            st.lists(st.binary(max_size=8), max_size=6).map(b"\0".join),
        ),
        st.sampled_from([b"status\n", b"\r\n", b"\0REQ", b"\0REQ\0\0\0\x12\xff\0\0\0"]),
    ),
    max_size=12,
).map(b"".join)


def fed_in_pieces(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Message]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [
        message
        for start, stop in itertools.pairwise(edges)
        for message in decoder.feed(data[start:stop])
    ]


@given(data=nearly_streams, as_client=st.booleans())
def test_arbitrary_bytes_give_messages_and_never_raise(data: bytes, as_client: bool) -> None:
    decoder = Decoder(max_data=1000, max_line=100, responses=as_client)
    messages = decoder.feed(data)
    for kind, args in messages:
        assert gearman.REPORT_TOO_LARGE <= kind <= gearman.LAST_KIND
        assert all(isinstance(arg, bytes) for arg in args)
        if kind in (FAULT, FATAL, LINE_TOO_LONG):
            assert len(args) == 2
    closing = [at for at, (kind, _) in enumerate(messages) if kind in (FATAL, LINE_TOO_LONG)]
    assert closing == ([len(messages) - 1] if decoder.closed else [])


@given(data=nearly_streams, cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_how_a_stream_is_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    whole = Decoder(max_data=1000, max_line=100)
    cut = Decoder(max_data=1000, max_line=100)
    assert fed_in_pieces(cut, data, cuts) == whole.feed(data)
    assert cut.closed == whole.closed


@st.composite
def well_formed(draw: st.DrawFn, direction: str) -> Message:
    rows = requests if direction == gearman.REQUEST else responses
    kind, _, _, arguments = draw(st.sampled_from(rows))
    plain = st.binary(max_size=300).map(lambda value: value.replace(b"\0", b""))
    opaque = st.binary(max_size=600)
    return kind, [draw(opaque if name == "data" else plain) for name in arguments.split()]


@given(messages=st.lists(well_formed(gearman.REQUEST)), cuts=st.lists(st.integers(0, 5000)))
def test_encoded_requests_decode_to_themselves(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(gearman.encode_request(kind, *args) for kind, args in messages)
    assert fed_in_pieces(Decoder(), data, cuts) == messages


@given(messages=st.lists(well_formed(gearman.RESPONSE)), cuts=st.lists(st.integers(0, 5000)))
def test_encoded_responses_decode_to_themselves(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(gearman.encode_response(kind, *args) for kind, args in messages)
    assert fed_in_pieces(Decoder(responses=True), data, cuts) == messages
