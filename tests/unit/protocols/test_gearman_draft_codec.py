"""The packet protocol of Gearman's first design note: bytes to packets and back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.gearman import draft_codec as draft
from manyhands.protocols.gearman.draft_codec import Decoder, Error, Fault, Message, Packet

GOLDEN: list[tuple[Packet, bytes]] = [
    (draft.Noop(), b"\0GM0\x00\0\0\0\0"),
    (draft.WorkerConnect((b"resize", b"mail")), b"\0GM0\x01\0\0\0\x0bresize\0mail"),
    (draft.WorkerConnect(()), b"\0GM0\x01\0\0\0\0"),
    (draft.WorkerDisconnect(), b"\0GM0\x02\0\0\0\0"),
    (draft.WorkerSleep(), b"\0GM0\x03\0\0\0\0"),
    (
        draft.JobCreateReq(b"mail", b"key", draft.ASYNC_HANDLE, b"\0args"),
        b"\0GM0\x04\0\0\0\x10mail\0key\0\x00\x01\0args",
    ),
    (
        draft.JobCreateReq(b"m", b"", draft.SYNC_WAIT, b""),
        b"\0GM0\x04\0\0\0\x05m\0\0\x00\x00",
    ),
    (draft.JobCreateRes(b"H:a:1"), b"\0GM0\x05\0\0\0\x05H:a:1"),
    (draft.JobCreateRes(b""), b"\0GM0\x05\0\0\0\0"),
    (draft.JobAssignReq(), b"\0GM0\x06\0\0\0\0"),
    (draft.JobAssignRes(b"mail", b"a\0b"), b"\0GM0\x07\0\0\0\x08mail\0a\0b"),
    (draft.JobAssignRes(), b"\0GM0\x07\0\0\0\0"),
    (
        draft.JobStatusAnnounce(1, 100, 9),
        b"\0GM0\x08\0\0\0\x0c\0\0\0\x01\0\0\0\x64\0\0\0\x09",
    ),
    (draft.JobStatusReq(b"H:a:1"), b"\0GM0\x09\0\0\0\x05H:a:1"),
    (
        draft.JobStatusRes(1, 100),
        b"\0GM0\x0a\0\0\0\x0c\0\0\0\x01\0\0\0\x64\0\0\0\0",
    ),
    (draft.JobCompleteAnnounce(0, b"done"), b"\0GM0\x0b\0\0\0\x05\x00done"),
    (draft.JobCompleteReq(b"H:a:1"), b"\0GM0\x0c\0\0\0\x05H:a:1"),
    (
        draft.JobCompleteRes(7, 255, b"unknown job"),
        b"\0GM0\x0d\0\0\0\x10\0\0\0\x07\xffunknown job",
    ),
    (Error(draft.REFUSED, 4, b"full"), b"\0GM0\x0e\0\0\0\x06\x06\x04full"),
]
REQUEST_TYPES = (0x00, 0x01, 0x02, 0x03, 0x04, 0x06, 0x08, 0x09, 0x0B, 0x0C)
RESPONSE_TYPES = (0x00, 0x05, 0x07, 0x0A, 0x0D, 0x0E)

# One of everything that a server can meet without losing the stream.
MIXED = b"".join(
    (
        draft.encode(draft.WorkerConnect((b"mail",))),
        b"\0GM0\x0f\0\0\0\x03new",
        draft.encode(draft.JobCreateReq(b"mail", b"", draft.ASYNC_THROW_AWAY, b"to\0you")),
        b"\0GM0\x05\0\0\0\x05H:a:1",
        b"\0GM0\x04\0\0\0\x04mail",
        draft.encode(draft.JobAssignReq()),
    )
)
MIXED_DECODED: list[Message] = [
    draft.WorkerConnect((b"mail",)),
    Fault(Error(draft.UNKNOWN_TYPE, 0x0F, b"unknown packet type"), closes=False),
    draft.JobCreateReq(b"mail", b"", draft.ASYNC_THROW_AWAY, b"to\0you"),
    Fault(Error(draft.WRONG_DIRECTION, 0x05, b"not for this side to send"), closes=False),
    Fault(
        Error(draft.MALFORMED_BODY, 0x04, b"a job name and a duplicate key must each end in a NUL"),
        closes=False,
    ),
    draft.JobAssignReq(),
]


def packet(kind: int, body: bytes) -> bytes:
    return b"\0GM0" + bytes([kind]) + len(body).to_bytes(4, "big") + body


def code_of(message: Message) -> int:
    assert isinstance(message, Fault)
    return message.error.code


@pytest.mark.parametrize(("value", "data"), GOLDEN)
def test_packets_are_written_as_and_read_from_their_known_bytes(value: Packet, data: bytes) -> None:
    assert draft.encode(value) == data
    decoder = Decoder(responses=draft.TYPES[type(value)] in RESPONSE_TYPES)
    assert decoder.feed(data) == [value]


@pytest.mark.parametrize("kind", range(0x0F))
def test_a_type_of_the_other_direction_is_a_fault_that_stays(kind: int) -> None:
    for is_client, allowed in ((False, REQUEST_TYPES), (True, RESPONSE_TYPES)):
        decoder = Decoder(responses=is_client)
        message = decoder.feed(packet(kind, b""))[0]
        wrong = isinstance(message, Fault) and message.error.code == draft.WRONG_DIRECTION
        assert wrong == (kind not in allowed)
        assert not decoder.closed


def test_faults_that_keep_the_framing_keep_the_stream() -> None:
    assert Decoder().feed(MIXED) == MIXED_DECODED


def test_a_stream_may_be_split_at_any_byte() -> None:
    for cut in range(len(MIXED) + 1):
        decoder = Decoder()
        assert decoder.feed(MIXED[:cut]) + decoder.feed(MIXED[cut:]) == MIXED_DECODED


def test_a_stream_may_come_one_byte_at_a_time() -> None:
    decoder = Decoder()
    messages = [message for byte in MIXED for message in decoder.feed(bytes([byte]))]
    assert messages == MIXED_DECODED


@pytest.mark.parametrize("body", [b"a\0b", b"a\0b\0", b"\0a\0\0b\0\0"])
def test_capabilities_may_be_separated_or_terminated_and_empty_ones_are_skipped(
    body: bytes,
) -> None:
    assert Decoder().feed(packet(0x01, body)) == [draft.WorkerConnect((b"a", b"b"))]


@pytest.mark.parametrize("name", [b"two words", b"\x7f", b"caf\xc3\xa9", b"n" * 256])
def test_a_job_name_is_up_to_255_bytes_of_printable_ascii_without_spaces(name: bytes) -> None:
    stream = packet(0x01, b"good\0" + name) + packet(0x04, name + b"\0\0\0\0")
    assert [code_of(message) for message in Decoder().feed(stream)] == [draft.MALFORMED_BODY] * 2
    longest = draft.JobCreateReq(b"n" * 255, b"\xff" * 255, 0, b"")
    assert Decoder().feed(draft.encode(longest)) == [longest]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"mail",
        b"mail\0key",
        b"mail\0key\0",
        b"mail\0key\0\0",
        b"mail\0key\0\0\x03",
        b"\0key\0\0\0",
        b"mail\0" + b"k" * 256 + b"\0\0\0",
    ],
)
def test_a_job_create_req_that_lacks_a_part_is_malformed(body: bytes) -> None:
    assert [code_of(message) for message in Decoder().feed(packet(0x04, body))] == [
        draft.MALFORMED_BODY
    ]


def test_the_reserved_flags_are_ignored() -> None:
    assert Decoder().feed(packet(0x04, b"mail\0\0\xff\x01x")) == [
        draft.JobCreateReq(b"mail", b"", draft.ASYNC_HANDLE, b"x")
    ]


def test_an_announced_status_may_leave_out_the_time_remaining() -> None:
    assert Decoder().feed(packet(0x08, b"\0\0\0\x01\0\0\0\x02")) == [draft.JobStatusAnnounce(1, 2)]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0x00, b"x"),
        (0x03, b"x"),
        (0x06, b"x"),
        (0x08, b"\0" * 11),
        (0x0B, b""),
        (0x07, b"mail"),
        (0x07, b"\0args"),
        (0x0A, b"\0" * 8),
        (0x0D, b"\0" * 4),
        (0x0E, b"\x01"),
    ],
)
def test_a_body_that_its_type_does_not_allow_is_malformed(kind: int, body: bytes) -> None:
    decoder = Decoder(responses=kind in RESPONSE_TYPES)
    assert [code_of(message) for message in decoder.feed(packet(kind, body))] == [
        draft.MALFORMED_BODY
    ]
    assert not decoder.closed


def test_a_wrong_magic_ends_the_stream_as_soon_as_it_is_seen() -> None:
    decoder = Decoder()
    assert decoder.feed(draft.encode(draft.WorkerSleep()) + b"\0RE") == [draft.WorkerSleep()]
    assert decoder.feed(b"Q") == [
        Fault(Error(draft.BAD_MAGIC, 0, b"not the start of a packet"), closes=True)
    ]
    assert decoder.closed
    assert decoder.feed(draft.encode(draft.WorkerSleep())) == []


def test_an_oversized_packet_ends_the_stream_before_its_body_is_held() -> None:
    decoder = Decoder(max_packet=100)
    text = b"a body of 101 bytes, the limit is 100"
    assert decoder.feed(b"\0GM0\x04\0\0\0\x65") == [
        Fault(Error(draft.TOO_LARGE, 0x04, text), closes=True)
    ]
    assert decoder.closed


names = st.binary(min_size=1, max_size=40).map(lambda raw: raw.hex().encode())
numbers = st.integers(0, 2**32 - 1)
octets = st.integers(0, 255)
dupkeys = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b""))
payloads = st.binary(max_size=60)
request_packets = st.one_of(
    st.just(draft.Noop()),
    st.builds(draft.WorkerConnect, st.lists(names, max_size=4).map(tuple)),
    st.just(draft.WorkerDisconnect()),
    st.just(draft.WorkerSleep()),
    st.builds(draft.JobCreateReq, names, dupkeys, st.integers(0, 2), payloads),
    st.just(draft.JobAssignReq()),
    st.builds(draft.JobStatusAnnounce, numbers, numbers, numbers),
    st.builds(draft.JobStatusReq, payloads),
    st.builds(draft.JobCompleteAnnounce, octets, payloads),
    st.builds(draft.JobCompleteReq, payloads),
)
response_packets = st.one_of(
    st.just(draft.Noop()),
    st.builds(draft.JobCreateRes, payloads),
    st.just(draft.JobAssignRes()),
    st.builds(draft.JobAssignRes, names, payloads),
    st.builds(draft.JobStatusRes, numbers, numbers, numbers),
    st.builds(draft.JobCompleteRes, numbers, octets, payloads),
    st.builds(Error, octets, octets, payloads),
)
nearly_streams = st.lists(
    st.one_of(
        st.binary(max_size=30),
        request_packets.map(draft.encode),
        response_packets.map(draft.encode),
        st.builds(packet, st.integers(0, 17), payloads),
        st.sampled_from([b"\0GM0", b"\0GM0\x04\xff\0\0\0"]),
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


@given(packets=st.lists(request_packets), cuts=st.lists(st.integers(0, 1000)))
def test_encoded_requests_decode_to_themselves(packets: list[Packet], cuts: list[int]) -> None:
    data = b"".join(draft.encode(value) for value in packets)
    assert fed_in_pieces(Decoder(), data, cuts) == packets


@given(packets=st.lists(response_packets), cuts=st.lists(st.integers(0, 1000)))
def test_encoded_responses_decode_to_themselves(packets: list[Packet], cuts: list[int]) -> None:
    data = b"".join(draft.encode(value) for value in packets)
    assert fed_in_pieces(Decoder(responses=True), data, cuts) == packets


@given(data=nearly_streams, cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_how_a_stream_is_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    whole = Decoder(max_packet=1000)
    cut = Decoder(max_packet=1000)
    assert fed_in_pieces(cut, data, cuts) == whole.feed(data)
    assert cut.closed == whole.closed


@given(data=nearly_streams, as_client=st.booleans())
def test_arbitrary_bytes_give_messages_and_never_raise(data: bytes, as_client: bool) -> None:
    decoder = Decoder(max_packet=1000, responses=as_client)
    messages = decoder.feed(data)
    closing = [at for at, m in enumerate(messages) if isinstance(m, Fault) and m.closes]
    assert closing == ([len(messages) - 1] if decoder.closed else [])
    for message in messages:
        if isinstance(message, Fault):
            assert (message.error.code in (draft.BAD_MAGIC, draft.TOO_LARGE)) == message.closes
            assert Decoder(responses=True).feed(draft.encode(message.error)) == [message.error]
