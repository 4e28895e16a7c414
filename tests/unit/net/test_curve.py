"""CURVE: what a peer has to know, and what happens to those that do not."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.access.curve_keys import new_keys
from manyhands.net.curve import CurveDecoder, CurveHandshake
from manyhands.net.plain import PlainHandshake
from manyhands.net.zmtp import (
    COMMAND_BYTES_MAX,
    GREETING,
    PING,
    Handshake,
    RefusedError,
    command,
    properties,
    ready,
)
from tests.unit.net import curve_client
from tests.unit.net.curve_client import CurveClient

SERVER, CLIENT, OTHER = new_keys(), new_keys(), new_keys()
ID = b"id"
BYTES_MAX = 100_000


class Room:
    """A handshake of the server, and a client before it."""

    def __init__(self, keys=CLIENT, server_key=SERVER.public, admit=lambda _mechanism: None):
        self.client = CurveClient(keys, server_key)
        self.handshake = Handshake({b"CURVE": lambda: CurveHandshake(SERVER)}, admit)
        self.rest = self.handshake.feed(curve_client.GREETING)

    def feed(self, data: bytes) -> bytes:
        """What the server answers."""
        self.handshake.replies.clear()
        self.rest = self.handshake.feed(data)
        return b"".join(self.handshake.replies)

    def greet(self) -> None:
        self.client.take_welcome(self.feed(self.client.hello()))

    def complete(self) -> "Room":
        self.greet()
        self.ready = self.feed(self.client.initiate())
        assert self.rest == b""
        mechanism = self.handshake.mechanism
        assert isinstance(mechanism, CurveHandshake)
        assert mechanism.box is not None
        self.box = mechanism.box
        self.decoder = CurveDecoder(self.box, ID, BYTES_MAX)
        return self

    def refusal_of(self, data: bytes) -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            self.feed(data)
        return caught.value


def test_a_peer_proves_its_key_and_learns_that_of_the_connection():
    seen = []
    room = Room(admit=lambda mechanism: seen.append(mechanism.peer_key)).complete()

    assert seen == [CLIENT.public]
    assert room.handshake.identity == b"me"
    assert b"ROUTER" in room.client.read_ready(room.ready)


def test_the_greeting_offers_curve_as_a_server():
    room = Room()

    rest = room.handshake.replies[0]

    assert len(GREETING) + len(rest) == 64
    assert rest[1:6] == b"CURVE"
    assert rest[21] == 1


def test_messages_of_any_size_go_both_ways():
    room = Room().complete()
    for frames in ([b"", b"short"], [b"", b"x" * 300], [b"a", b"", b"y" * 70_000]):
        assert room.decoder.feed(room.client.message(*frames)) == [[ID, *frames]]

        sent = room.box.encode((ID, *frames[:-1]), frames[-1])

        flags = [1] * (len(frames) - 1) + [0]
        assert room.client.read(sent) == list(zip(flags, frames, strict=True))


@given(st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=4), max_size=5), st.data())
@settings(max_examples=50)
def test_messages_arrive_however_they_are_cut(messages, data):
    room = Room().complete()
    stream = b"".join(room.client.message(*frames) for frames in messages)
    found = []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        found += room.decoder.feed(stream[:count])
        assert room.decoder.held_bytes() < 2_500
        stream = stream[count:]

    assert found == [[ID, *frames] for frames in messages]
    assert room.decoder.is_at_rest()


def test_pings_are_encrypted_too():
    room = Room().complete()

    assert room.decoder.feed(room.client.frame(2, b"\x04PING\0\0ctx")) == []

    (reply,) = room.decoder.replies
    assert room.client.read(room.box.encode_command(reply)) == [(2, b"\x04PONGctx")]
    assert room.client.read(room.box.encode_command(PING)) == [(2, b"\x04PING\0\0")]


# Peers that are refused.


def test_a_peer_with_another_servers_key_is_refused_at_hello():
    room = Room(server_key=OTHER.public)

    refusal = room.refusal_of(room.client.hello())

    assert "another server's key" in str(refusal)
    assert refusal.answer.startswith(b"\x04")
    assert b"\x05ERROR" in refusal.answer


def test_a_peer_that_does_not_have_the_key_it_claims_is_refused():
    room = Room()
    room.greet()

    refusal = room.refusal_of(room.client.initiate(vouch=room.client.vouch(secret=OTHER.secret)))

    assert "cannot be decrypted" in str(refusal)


@pytest.mark.parametrize("what", ["short key", "server"])
def test_a_vouch_for_another_connection_or_server_is_refused(what):
    room = Room()
    room.greet()
    vouch = {
        "short key": lambda: room.client.vouch(short_key=OTHER.public),
        "server": lambda: room.client.vouch(server_key=OTHER.public),
    }[what]()

    assert "vouch of another" in str(room.refusal_of(room.client.initiate(vouch=vouch)))


def test_a_recorded_handshake_cannot_be_replayed():
    first = Room()
    hello = first.client.hello()
    first.client.take_welcome(first.feed(hello))
    initiate = first.client.initiate()
    first.feed(initiate)

    second = Room()
    second.feed(hello)

    assert "another handshake" in str(second.refusal_of(initiate))


def test_a_cookie_of_another_connection_is_refused_even_with_the_right_keys():
    first, second = Room(), Room()
    first.greet()
    second.greet()

    refusal = second.refusal_of(second.client.initiate(cookie=first.client.cookie))

    assert "another handshake" in str(refusal)


@pytest.mark.parametrize("nonce", [0, 1])
def test_nonces_of_the_handshake_must_grow(nonce):
    room = Room()
    room.greet()

    assert "used before" in str(room.refusal_of(room.client.initiate(nonce=nonce)))


def test_a_hello_without_a_nonce_is_refused():
    room = Room()

    assert "used before" in str(room.refusal_of(room.client.hello(nonce=0)))


def test_steps_in_the_wrong_order_are_refused():
    room = Room()
    room.client.server_short_key, room.client.cookie = OTHER.public, bytes(96)
    assert "HELLO was expected" in str(room.refusal_of(room.client.initiate()))
    room = Room()
    room.greet()
    assert "INITIATE was expected" in str(room.refusal_of(room.client.hello(nonce=5)))
    room = Room()
    assert "a message before HELLO" in str(room.refusal_of(b"\0\5hello"))
    room = Room()
    assert "HELLO was expected" in str(room.refusal_of(ready(b"REQ", b"")))


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"CURVES", b""])
def test_a_peer_without_encryption_is_refused_and_sees_what_is_wanted(mechanism):
    handshake = Handshake({b"CURVE": lambda: CurveHandshake(SERVER)})
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)

    with pytest.raises(RefusedError, match="only CURVE"):
        handshake.feed(greeting + ready(b"REQ", b""))

    assert b"CURVE" in b"".join(handshake.replies)
    assert b"READY" not in b"".join(handshake.replies)


def test_an_old_version_cannot_be_used_to_avoid_encryption():
    handshake = Handshake({b"CURVE": lambda: CurveHandshake(SERVER)})

    with pytest.raises(RefusedError, match="has no encryption"):
        handshake.feed(b"\xff" + bytes(8) + b"\x7f\x01\x03\x00\x00")

    assert handshake.replies == []


def test_a_caller_that_is_not_accepted_gets_an_error_and_no_ready():
    def admit(_mechanism):
        raise RefusedError("the peer is not accepted", reply=True, code="400")

    room = Room(admit=admit)
    room.greet()
    room.handshake.replies.clear()

    refusal = room.refusal_of(room.client.initiate())

    assert refusal.answer == b"\x04\x0a\x05ERROR\x03400"
    assert room.handshake.replies == []


# After the handshake.


def test_a_message_that_is_sent_again_or_out_of_order_ends_the_connection():
    for numbers in ((5, 5), (7, 6)):
        room = Room().complete()
        first, second = (room.client.message(b"m", nonce=number) for number in numbers)

        assert room.decoder.feed(first + second) == [[ID, b"m"]]

        assert room.decoder.fault == "a nonce that was used before"
        assert room.decoder.feed(room.client.message(b"more")) == []


def test_the_nonce_of_the_handshake_cannot_be_used_again():
    room = Room().complete()

    room.decoder.feed(room.client.message(b"m", nonce=2))

    assert room.decoder.fault == "a nonce that was used before"


def test_what_is_not_encrypted_ends_the_connection():
    unsealed = b"\0\x20" + b"\x07MESSAGE" + bytes(24)
    for data in (b"\0\5hello", b"\1\0", b"\x04\x07\x04PING\0\0", unsealed):
        room = Room().complete()

        assert room.decoder.feed(data) == []

        assert room.decoder.fault is not None


def test_a_changed_bit_anywhere_ends_the_connection():
    sealed = Room().complete().client.message(b"content")
    for index in range(2, len(sealed)):
        room = Room().complete()
        data = bytearray(room.client.message(b"content"))
        data[index] ^= 1

        assert room.decoder.feed(bytes(data)) == []

        assert room.decoder.fault is not None


def test_a_message_that_is_too_large_is_not_waited_for():
    room = Room().complete()

    room.decoder.feed(b"\x02" + (BYTES_MAX * 2).to_bytes(8, "big"))

    assert room.decoder.fault == f"a message of more than {BYTES_MAX} bytes"
    assert room.decoder.held_bytes() <= 9 + len(ID)


def test_the_same_content_never_looks_the_same():
    room = Room().complete()

    sent = {room.box.encode((ID, b""), b"same") for _ in range(100)}

    assert len(sent) == 100


# Anything at all.


@given(st.binary(max_size=400), st.integers(0, 2))
def test_garbage_is_refused_or_waited_for_at_every_step(data, step):
    room = Room()
    if step == 1:
        room.greet()
    if step == 2:
        room.complete()
        room.decoder.feed(data)
        return
    with contextlib.suppress(RefusedError):
        assert room.feed(data) == b""
        assert len(room.handshake._held) <= COMMAND_BYTES_MAX + 9


@given(st.sampled_from(["hello", "initiate"]), st.integers(0, 10_000), st.integers(1, 255))
def test_a_spoiled_byte_of_the_handshake_never_completes_it(step, index, change):
    room = Room()
    if step == "initiate":
        room.greet()
    sound = room.client.hello() if step == "hello" else room.client.initiate()
    spoiled = bytearray(sound)
    at = index % len(spoiled)
    spoiled[at] ^= change
    if step == "hello" and 10 <= at < 82:
        return  # padding, which is not looked at

    with contextlib.suppress(RefusedError):
        assert b"READY" not in room.feed(bytes(spoiled))
        assert room.rest is None
        assert b"WELCOME" not in b"".join(room.handshake.replies)


@given(st.sampled_from(["hello", "initiate"]), st.integers(0, 300))
def test_a_truncated_step_is_waited_for(step, count):
    room = Room()
    if step == "initiate":
        room.greet()
    sound = room.client.hello() if step == "hello" else room.client.initiate()

    assert room.feed(sound[: min(count, len(sound) - 1)]) == b""

    assert room.rest is None


# PLAIN.


def plain_hello(user: bytes, password: bytes) -> bytes:
    return command(b"HELLO", bytes((len(user),)) + user + bytes((len(password),)) + password)


def test_plain_carries_a_user_and_a_password():
    seen = []
    handshake = Handshake(
        {b"NULL": None, b"PLAIN": PlainHandshake},
        lambda mechanism: seen.append((mechanism.user, mechanism.password)),
    )
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)

    assert handshake.feed(greeting + plain_hello(b"ada", "gehäuse".encode())) is None
    assert handshake.replies[-1] == b"\x04\x08\x07WELCOME"
    assert seen == []
    rest = handshake.feed(command(b"INITIATE", properties(b"REQ", b"")) + b"\0\1x")

    assert rest == b"\0\1x"
    assert seen == [("ada", "gehäuse")]
    assert b"READY" in handshake.replies[-1]


@pytest.mark.parametrize(
    "body", [b"", b"\3ad", b"\3ada", b"\3ada\5pass", b"\3ada\4password", b"\1\xff\1x"]
)
def test_a_hello_of_plain_that_is_not_one_is_refused(body):
    handshake = Handshake({b"PLAIN": PlainHandshake})
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)

    with pytest.raises(RefusedError) as caught:
        handshake.feed(greeting + command(b"HELLO", body))

    assert caught.value.answer
