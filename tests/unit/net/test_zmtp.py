"""ZMTP as a ROUTER speaks it: bytes to messages and back, whatever comes."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.net import zmtp
from manyhands.net.zmtp import (
    COMMAND_BYTES_MAX,
    FRAMES_MAX,
    GREETING,
    HEAD_BYTES,
    HEADS,
    Decoder,
    Handshake,
    RefusedError,
    command,
    encode,
    ready,
)

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
BYTES_MAX = 100_000
ID = b"id"


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\3\1") -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes(32)


def hello(socket_type: bytes = b"REQ", identity: bytes = b"") -> bytes:
    return greeting() + ready(socket_type, identity)


def old_hello(socket_type: int = 3, identity: bytes = b"", revision: int = 1) -> bytes:
    return SIGNATURE + bytes((revision, socket_type, 0, len(identity))) + identity


def long_frame(body: bytes, *, more: bool = False) -> bytes:
    return bytes((3 if more else 2,)) + len(body).to_bytes(8, "big") + body


def message(*frames: bytes) -> bytes:
    """As a peer writes it."""
    return encode((ID, *frames[:-1]), frames[-1])


def decoder(**options) -> Decoder:
    return Decoder(ID, BYTES_MAX, **options)


# The handshake.


def test_z1_a_peer_of_version_3_is_greeted_and_known():
    """Golden bytes, as libzmq 4.3 sends them."""
    theirs = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + bytes(16 + 32)
    theirs += b"\x04\x2b\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02me"
    handshake = Handshake()
    rest = handshake.feed(theirs + b"\0\1x")

    assert rest == b"\0\1x"
    assert (handshake.identity, handshake.has_commands) == (b"me", True)
    assert GREETING + b"".join(handshake.replies) == (
        b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL"
        + bytes(16 + 32)
        + b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0"
    )


def test_z1_a_peer_of_version_3_0_need_not_have_heartbeats():
    handshake = Handshake()
    assert handshake.feed(greeting(version=b"\3\0") + ready(b"REQ", b"")) == b""


@pytest.mark.parametrize("revision", [1, 2])
def test_z1_a_peer_of_version_2_is_answered_in_its_own_words(revision):
    handshake = Handshake()
    assert handshake.feed(old_hello(5, b"me", revision) + b"\0\1x") == b"\0\1x"
    assert (handshake.identity, handshake.has_commands) == (b"me", False)
    assert handshake.replies == [b"\6\0\0"]


@pytest.mark.parametrize("text", [hello(b"DEALER", b"me") + b"\1\0", old_hello(5, b"me") + b"\1\0"])
def test_z1_a_handshake_may_come_in_any_pieces(text):
    for cut in range(len(text) + 1):
        handshake = Handshake()
        first = handshake.feed(text[:cut])
        rest = handshake.feed(text[cut:]) if first is None else first + text[cut:]
        assert (rest, handshake.identity) == (b"\1\0", b"me")
    handshake = Handshake()
    given_back = [handshake.feed(bytes((byte,))) for byte in text[:-2]]
    assert given_back == [None] * (len(text) - 3) + [b""]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"\x01\0", "this is not ZMTP 2 or 3"),  # ZMTP 1, without an identity
        (b"GET / HTTP/1.1\r\n", "this is not ZMTP 2 or 3"),
        (b"\xff" + bytes(9), "this is not ZMTP 2 or 3"),
        (SIGNATURE + b"\0", "ZMTP 1 is not served"),
        (greeting(b"CURVE"), "the mechanism 'CURVE' is not served here, only NULL"),
        (greeting(b"PLAIN"), "the mechanism 'PLAIN' is not served here, only NULL"),
        (greeting(b"\xff\n"), r"the mechanism '\\xff\n' is not served here, only NULL"),
        (old_hello(2), "a socket of type 2 cannot talk to a ROUTER"),
        (SIGNATURE + b"\1\3\2\0", "an identity is one short frame"),
    ],
)
def test_z1_who_speaks_otherwise_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(RefusedError) as refused:
        Handshake().feed(text)
    assert str(refused.value) == sentence.replace("\n", "\\n")
    assert refused.value.answer == b""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ready(b"SUB", b""), "a socket of type 'SUB' cannot talk to a ROUTER"),
        (ready(b"REP", b""), "a socket of type 'REP' cannot talk to a ROUTER"),
        (command(b"READY", b""), "a socket of type '' cannot talk to a ROUTER"),
        (message(b"", b"early"), "a message before READY"),
        (command(b"HELLO", b""), "READY was expected, not 'HELLO'"),
        (command(b"READY", b"\x0bSocket-Type\0\0"), "a command that ends too early"),
        (command(b"READY", b"\x0bSocket-Type\0\0\0\xffREQ"), "a command that ends too early"),
        (ready(b"REQ", b"x" * 256), "an identity of more than 255 bytes"),
        (b"\x06" + (2**60).to_bytes(8, "big"), f"a command of {2**60} bytes"),
    ],
)
def test_z2_a_wrong_introduction_is_answered_with_an_error(text, sentence):
    with pytest.raises(RefusedError) as refused:
        Handshake().feed(greeting() + text)
    assert str(refused.value) == sentence
    assert refused.value.answer == command(b"ERROR", bytes((len(sentence),)) + sentence.encode())


def test_z2_a_peer_that_refuses_us_is_not_answered():
    with pytest.raises(RefusedError, match="the peer does not want us: 'no'") as refused:
        Handshake().feed(greeting() + command(b"ERROR", b"\2no"))
    assert refused.value.answer == b""


def test_z2_properties_have_no_case_and_unknown_ones_do_not_matter():
    body = b"\x0bSOCKET-TYPE\0\0\0\3REQ" + b"\1X\0\0\1\0" + b"x" * 256
    handshake = Handshake()
    assert handshake.feed(greeting() + command(b"READY", body)) == b""


@given(st.binary(max_size=300))
def test_z1_any_first_bytes_are_taken_or_refused(data):
    for text in (data, SIGNATURE + data, greeting() + data, greeting() + command(b"READY", data)):
        handshake = Handshake()
        rest, sentence = None, ""
        try:
            for at in range(len(text)):
                rest = handshake.feed(text[at : at + 1])
                if rest is not None:
                    break
        except RefusedError as error:
            sentence = str(error)
        unfinished = rest is None and not sentence
        assert not unfinished or len(text) < 64 + COMMAND_BYTES_MAX


# Messages.


def test_z5_a_message_is_told_with_the_identity_in_front():
    assert decoder().feed(message(b"", b"body")) == [[ID, b"", b"body"]]
    assert decoder().feed(b"\1\0\0\4body" * 2) == [[ID, b"", b"body"]] * 2


SAMPLE = (
    message(b"", b"short")
    + command(b"PING", b"\0\0ctx")
    + message(b"", b"x" * 300)
    + message(b"hop" * 100, b"", b"y" * 300)
    + b"\1\1z" * FRAMES_MAX  # too many
    + long_frame(b"w" * 260, more=True)
    + command(b"SUBSCRIBE", b"")
    + b"\0\0"
    + command(b"PONG", b"")
    + command(b"NEWS", b"n" * 260)
    + message(b"")
)
TOLD = [
    [ID, b"", b"short"],
    [ID, b"", b"x" * 300],
    [ID, b"hop" * 100, b"", b"y" * 300],
    [ID],
    [ID, b""],
]


def test_z5_messages_may_come_in_any_pieces():
    for cut in range(len(SAMPLE) + 1):
        one = decoder()
        assert one.feed(SAMPLE[:cut]) + one.feed(SAMPLE[cut:]) == TOLD
        assert one.replies == [command(b"PONG", b"ctx")]
        assert (one.pings_count, one.fault) == (1, None)
    for size in (1, 2, 3, 7):
        one = decoder()
        pieces = [SAMPLE[at : at + size] for at in range(0, len(SAMPLE), size)]
        assert [told for piece in pieces for told in one.feed(piece)] == TOLD


frames_of_a_message = st.lists(
    st.binary(max_size=8) | st.integers(250, 700).map(lambda size: b"f" * size),
    min_size=1,
    max_size=FRAMES_MAX,
)


@given(st.lists(frames_of_a_message, max_size=4), st.integers(1, 400))
def test_z5_what_is_written_is_read(messages, size):
    text = b"".join(message(*frames) for frames in messages)
    one = decoder()
    told = [m for at in range(0, len(text), size) for m in one.feed(text[at : at + size])]

    assert told == [[ID, *frames] for frames in messages]
    assert one.fault is None


def test_z5_a_head_is_all_that_comes_before_a_short_body():
    for size, head in enumerate(HEADS):
        assert len(head) == HEAD_BYTES
        assert head + bytes(size) == message(b"", bytes(size))
        assert decoder().feed(head + bytes(size)) == [[ID, b"", bytes(size)]]
    assert len(HEADS) == 256


@given(
    st.lists(frames_of_a_message.map(lambda frames: message(*frames)) | st.binary(max_size=5)),
    st.integers(1, 400),
)
@example([b"\1\0" * 70], 400)
def test_z5_a_decoder_at_rest_takes_what_comes_for_a_new_message(parts, size):
    text = b"".join(parts)
    one = decoder()
    for at in range(0, len(text), size):
        one.feed(text[at : at + size])
    if one.is_at_rest():
        assert one.feed(HEADS[1] + b"x") == [[ID, b"", b"x"]]
        assert one.is_at_rest()


@pytest.mark.parametrize("cut", range(1, 12))
def test_z5_in_a_message_a_decoder_is_not_at_rest(cut):
    text = message(b"", b"abc", b"def")
    one = decoder()
    assert one.is_at_rest()
    one.feed(text[:cut])
    assert not one.is_at_rest()
    one.feed(text[cut:])
    assert one.is_at_rest()


@given(st.lists(st.binary(max_size=40), max_size=20))
@example([b"\1\0" * 70 + b"\2", b"\0" * 20])
@example([b"\1\0" * 70 + b"\4\1", b"\0" * 20])
def test_z5_any_bytes_are_messages_or_a_fault(pieces):
    for has_commands in (True, False):
        one = Decoder(ID, 1000, has_commands=has_commands)
        for piece in pieces:
            told = one.feed(piece)
            assert all(found[0] == ID for found in told)
        if one.fault is not None:
            assert one.feed(message(b"", b"more")) == []


@pytest.mark.parametrize("size", [BYTES_MAX + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("flags", [b"\2", b"\3"])
def test_z5_a_message_that_is_too_large_is_known_by_its_header(flags, size):
    one = decoder()
    assert one.feed(message(b"", b"x") + flags + size.to_bytes(8, "big")) == [[ID, b"", b"x"]]
    assert one.fault == "a message of more than 100000 bytes"
    assert one.feed(message(b"", b"x")) == []


def test_z5_all_frames_of_a_message_count():
    one = decoder()
    assert one.feed(message(b"x" * 50_000, b"y" * 50_000)) == [[ID, b"x" * 50_000, b"y" * 50_000]]
    one.feed(message(b"x" * 50_000, b"y" * 50_001))
    assert one.fault == "a message of more than 100000 bytes"


def test_z5_a_message_of_64_frames_is_told_and_of_one_more_nothing_is_kept():
    many = [b"%d" % number for number in range(FRAMES_MAX)]
    one = decoder()

    assert one.feed(message(*many)) == [[ID, *many]]
    assert one.feed(message(*many, b"last") + message(b"", b"next")) == [[ID], [ID, b"", b"next"]]
    assert one.fault is None


@pytest.mark.parametrize("frame", [b"\1\0", b"\1\xff" + bytes(255), b"\3\0\0\0\0\0\0\0\0"])
def test_z5_frames_without_end_take_no_memory_and_are_cut_off(frame):
    one = Decoder(ID, 500_000)
    piece = frame * (3_000 // len(frame))
    tracemalloc.start()
    told, count = [], 0
    while one.fault is None:
        told += one.feed(piece)
        count += 1
        assert count < 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert told == [[ID]]
    assert one.fault == "a message of more than 500000 bytes"
    assert count > 100
    assert peak < 100_000


class Counting(Decoder):
    """Notes how often it looks at what it holds."""

    looks = 0

    @property
    def _identity(self):
        self.looks += 1
        return ID

    @_identity.setter
    def _identity(self, identity):
        pass


def test_z5_a_large_frame_in_small_pieces_is_looked_at_twice_whatever_its_size():
    body = bytes(range(256)) * (40 * 1024)
    text = long_frame(body) + message(b"next")
    one = Counting(ID, 11 * 1024 * 1024)
    told = [m for at in range(0, len(text), 1024) for m in one.feed(text[at : at + 1024])]

    assert told == [[ID, body], [ID, b"next"]]
    assert one.looks < 10


def test_z5_only_what_was_sent_is_held():
    one = Decoder(ID, 1 << 40)
    tracemalloc.start()
    one.feed(b"\2" + (1 << 39).to_bytes(8, "big") + bytes(1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert one.fault is None
    assert peak < 10_000


@pytest.mark.parametrize("flags", [5, 7, 8, 0x80, 0xFF])
def test_z5_a_frame_with_unknown_flags_is_a_fault(flags):
    one = decoder()
    assert one.feed(bytes((flags, 0))) == []
    assert one.fault == f"a frame with flags {flags:#04x}"


def test_z1_a_peer_of_version_2_has_no_commands():
    one = decoder(has_commands=False)
    one.feed(command(b"PING", b"\0\0"))
    assert one.fault == "a frame with flags 0x04"


# Signs of life.


def test_z6_a_ping_is_answered_with_what_it_carries():
    one = decoder()
    for context in (b"", b"c", b"c" * 16, b"c" * 40):
        one.feed(command(b"PING", b"\0\x0a" + context))
        assert one.replies.pop() == command(b"PONG", context[:16])
    one.feed(command(b"PING", b"\0"))  # half of one
    one.feed(command(b"PINGS", b"\0\0"))
    assert one.replies == []


def test_z6_a_command_may_stand_between_frames():
    one = decoder()
    assert one.feed(b"\1\0" + command(b"PING", b"\0\0") + b"\0\1x") == [[ID, b"", b"x"]]
    assert one.replies == [command(b"PONG", b"")]


def test_z6_a_command_that_is_too_large_is_a_fault():
    one = decoder()
    assert one.feed(command(b"NEWS", bytes(COMMAND_BYTES_MAX - 5))) == []
    assert one.fault is None
    one.feed(b"\6" + (COMMAND_BYTES_MAX + 1).to_bytes(8, "big"))
    assert one.fault == f"a command of {COMMAND_BYTES_MAX + 1} bytes"


def test_z6_a_ping_of_ours_asks_for_a_pong_and_for_nothing_else():
    assert zmtp.PING == b"\x04\x07\x04PING\0\0"
