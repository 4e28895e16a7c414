"""WMP's frames: golden bytes, the envelopes through devices, and everything that is malformed."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.wmp.codec import (
    CONTROL_BYTES_MAX,
    SIGNATURE_OF,
    Command,
    Malformation,
    Packet,
    WireError,
    decode,
    encode,
    pack,
    signature_of,
    unpack,
)

LEASE = bytes.fromhex("a1b2c3d4e5f60718")
HELD = ((b"manager", b"M1"), (b"job", b"j1"), (b"lease", LEASE))


def on_tcp(frames: list[bytes]) -> bytes:
    """As ZMTP 3 writes short frames: flags (1: more), length, body."""
    last = len(frames) - 1
    return b"".join(
        bytes((int(index != last), len(frame))) + frame for index, frame in enumerate(frames)
    )


def prop(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


GOLDEN = [
    (
        Command.READY,
        [(b"role", b"mail"), (b"slots", b"1")],
        None,
        "01000100001f" + b"WMPW01\x01".hex(),
        37,
    ),
    (
        Command.WAKE,
        [(b"manager", b"M1"), (b"role", b"mail"), (b"count", b"1")],
        None,
        "01000100002d" + b"WMPM01\x02".hex(),
        51,
    ),
    (
        Command.GIVE,
        [(b"lock", b"L1"), (b"timeout", b"2000")],
        None,
        "010001000022" + b"WMPW01\x03".hex(),
        40,
    ),
    (
        Command.TAKE,
        [*HELD, (b"lock", b"L1"), (b"role", b"mail"), (b"timeout", b"60000")],
        b"hello",
        "01000100015a" + b"WMPM01\x04".hex(),
        103,
    ),
    (
        Command.NO,
        [(b"manager", b"M1"), (b"lock", b"L1")],
        None,
        "010001000020" + b"WMPM01\x05".hex(),
        38,
    ),
    (
        Command.DONE,
        [*HELD, (b"status", b"ok"), (b"ack", b"1")],
        b"HELLO",
        "010001000147" + b"WMPW01\x06".hex(),
        84,
    ),
    (
        Command.STATUS,
        [*HELD, (b"progress", b"1/2")],
        None,
        "010001000041" + b"WMPW01\x07".hex(),
        71,
    ),
    (
        Command.CANCEL,
        [*HELD, (b"reason", b"recorded")],
        None,
        "010001000044" + b"WMPM01\x08".hex(),
        74,
    ),
]


@pytest.mark.parametrize(
    ("command", "properties", "payload", "head", "size"), GOLDEN, ids=lambda value: str(value)[:6]
)
def test_w10_every_command_has_these_bytes(command, properties, payload, head, size):
    """W4, W6, W7 and W10."""
    control = encode(command, *properties)
    written = on_tcp(pack(Packet((), (), control, payload)))

    body = b"".join(prop(*pair) for pair in properties)
    tail = b"" if payload is None else bytes((0, len(payload))) + payload
    assert written == bytes.fromhex(head) + body + tail
    assert len(written) == size
    read = decode(control)
    assert read.command is command
    assert [(name, value) for name, (value,) in read.properties.items()] == list(properties)


def test_w10_a_whole_message_byte_by_byte():
    control = encode(Command.READY, (b"role", b"mail"), (b"slots", b"1"))

    assert on_tcp(pack(Packet((), (), control))).hex(" ") == (
        "01 00 01 00 00 1f 57 4d 50 57 30 31 01 04 72 6f 6c 65 00 00 00 04 6d 61 69 6c "
        "05 73 6c 6f 74 73 00 00 00 01 31"
    )


hops = st.lists(st.binary(min_size=1, max_size=255), max_size=8).map(tuple)
frames = st.binary(max_size=300)


@given(hops, hops, frames, st.one_of(st.none(), frames))
def test_w2_a_packed_message_is_unpacked_the_same(route, trail, control, payload):
    """W2 and W3."""
    packet = Packet(route, trail, control, payload)

    assert unpack(pack(packet)) == packet


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255).map(
    lambda text: text.encode().lower()
)


@given(st.sampled_from(Command), st.lists(st.tuples(names, st.binary(max_size=400)), max_size=20))
def test_w4_an_encoded_command_is_decoded_the_same(command, properties):
    expected: dict[bytes, list[bytes]] = {}
    for name, value in properties:
        expected.setdefault(name, []).append(value)

    control = encode(command, *properties)

    assert signature_of(control) == SIGNATURE_OF[command]
    assert decode(control).command is command
    assert decode(control).properties == expected


@given(st.lists(st.binary(max_size=40), max_size=25))
def test_w9_any_frames_are_a_message_or_malformed(raw):
    read = None
    with contextlib.suppress(WireError):  # and nothing else
        read = decode(unpack(raw).control)

    assert read is None or read.command in Command


@given(st.sampled_from(Command), st.binary(max_size=60))
def test_w9_any_properties_are_read_or_malformed(command, rest):
    head = encode(command)
    read = None
    with contextlib.suppress(WireError):
        read = decode(head + rest)

    if read is not None:
        size = sum(
            5 + len(name) + len(value) for name, found in read.properties.items() for value in found
        )
        assert size == len(rest)


@given(st.sampled_from(Command), st.lists(st.tuples(names, frames), min_size=1), st.data())
def test_w9_a_command_that_is_cut_off_is_never_mistaken_for_another(command, properties, data):
    control = encode(command, *properties)
    cut = control[: data.draw(st.integers(0, len(control) - 1))]
    try:
        read = decode(cut)
    except WireError:
        return
    # Only a cut between two properties can be read.
    assert cut == encode(
        command,
        *[(name, value) for name, value in properties[: sum(map(len, read.properties.values()))]],
    )


READY = encode(Command.READY)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ([], Malformation.FRAMES),
        ([b""], Malformation.FRAMES),
        ([b"", b""], Malformation.FRAMES),
        ([b"", READY], Malformation.FRAMES),
        ([b"", b"", READY, b"p", b"q"], Malformation.FRAMES),
        ([*[b"h"] * 9, b"", b"", READY], Malformation.HOPS),
        ([b"", *[b"h"] * 9, b"", READY], Malformation.HOPS),
        ([b"", b"h" * 256, b"", READY], Malformation.HOPS),
        ([b"", b"", b"WMPW01"], Malformation.CONTROL),
        ([b"", b"", b""], Malformation.CONTROL),
        ([b"", b"", READY + prop(b"role", b"x" * CONTROL_BYTES_MAX)], Malformation.CONTROL),
        ([b"", b"", b"MDPW01\x01"], Malformation.SIGNATURE),
        ([b"", b"", b"WMPM01\x01"], Malformation.SIGNATURE),
        ([b"", b"", b"WMPW01\x04"], Malformation.SIGNATURE),
        ([b"", b"", b"WMPW01\x00"], Malformation.COMMAND),
        ([b"", b"", b"WMPW01\x63"], Malformation.COMMAND),
        ([b"", b"", READY + b"\x04role\x00\x00\x00\x05mail"], Malformation.PROPERTY),
        ([b"", b"", READY + b"\x04role\x00\x00"], Malformation.PROPERTY),
        ([b"", b"", READY + b"\xff"], Malformation.PROPERTY),
        ([b"", b"", READY + prop(b"", b"x")], Malformation.PROPERTY),
        ([b"", b"", READY + prop(b"r\xf6le", b"x")], Malformation.PROPERTY),
    ],
)
def test_w9_what_is_malformed_says_in_which_way(raw, kind):
    """W8 and W9."""
    with pytest.raises(WireError) as raised:
        decode(unpack(raw).control)

    assert raised.value.kind is kind


def test_w5_names_have_no_case_and_repeated_ones_are_lists():
    read = decode(
        encode(Command.READY, (b"Role", b"a"), (b"ROLE", b"b"), (b"role", b"a"), (b"Slots", b"3"))
    )

    assert read.texts(b"role") == ("a", "b")
    assert read.number(b"slots", 1, 10) == 3
    assert read.number(b"ttl", 60_000, 10) == 60_000
    assert read.get(b"identity") is None


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"x", b"1" * 19, "٣".encode()])
def test_w5_a_number_is_decimal_digits(value):
    with pytest.raises(WireError, match="slots is no number") as raised:
        decode(encode(Command.READY, (b"slots", value))).number(b"slots", 1, 9)

    assert raised.value.kind is Malformation.VALUE


def test_w5_a_single_property_given_twice_is_malformed():
    read = decode(encode(Command.DONE, (b"lease", b"a"), (b"lease", b"b")))

    with pytest.raises(WireError, match="lease is given twice"):
        read.need(b"lease")
    with pytest.raises(WireError, match="job is missing in DONE"):
        read.need(b"job")
    with pytest.raises(WireError, match="identity is not UTF-8"):
        decode(encode(Command.READY, (b"identity", b"\xff"))).text(b"identity")
