"""A WMP device without sockets: the envelopes on each wire, and what goes no further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.wmp.codec import Command, Packet, encode, pack, unpack
from manyhands.protocols.wmp.device import Device

W1, M1 = b"W1", b"m1"
READY, GIVE = encode(Command.READY), encode(Command.GIVE, (b"lock", b"L1"))
TAKE = encode(Command.TAKE, (b"manager", b"M1"))
UP = [GIVE, encode(Command.DONE), encode(Command.STATUS)]
DOWN = [encode(Command.WAKE), TAKE, encode(Command.NO), encode(Command.CANCEL)]


def chain() -> tuple[Device, Device]:
    """A worker speaks to D1, which knows D2 as d2, which knows the manager as m1."""
    return Device(b"D1", [b"d2"]), Device(b"D2", [M1])


def only(found: list[tuple[bytes, list[bytes]]]) -> tuple[bytes, list[bytes]]:
    (one,) = found
    return one


def test_w55_ready_through_one_and_two_devices():
    """W51 and W55."""
    one = Device(b"D1", [M1])
    assert only(one.up(W1, [b"", b"", READY])) == (M1, [b"", b"W1", b"", READY])

    near, far = chain()
    label, frames = only(near.up(W1, [b"", b"", READY]))
    assert (label, frames) == (b"d2", [b"", b"W1", b"", READY])
    assert only(far.up(b"D1", frames)) == (M1, [b"", b"D1", b"W1", b"", READY])


@pytest.mark.parametrize("control", UP)
@pytest.mark.parametrize("payload", [[], [b"result"]])
def test_w55_what_workers_say_through_one_and_two_devices(control, payload):
    """W52 and W55."""
    one = Device(b"D1", [M1])
    assert only(one.up(W1, [b"m1", b"", b"", control, *payload])) == (
        M1,
        [b"", b"W1", b"", control, *payload],
    )

    near, far = chain()
    label, frames = only(near.up(W1, [b"d2", b"m1", b"", b"", control, *payload]))
    assert (label, frames) == (b"d2", [b"m1", b"", b"W1", b"", control, *payload])
    assert only(far.up(b"D1", frames)) == (M1, [b"", b"D1", b"W1", b"", control, *payload])


@pytest.mark.parametrize("control", DOWN)
@pytest.mark.parametrize("payload", [[], [b"job"]])
def test_w55_what_managers_say_through_one_and_two_devices(control, payload):
    """W53 and W55. The first frame is the ROUTER's: it is not on the wire."""
    one = Device(b"D1", [M1])
    assert one.down(M1, [b"W1", b"", b"", control, *payload]) == (
        [b"W1", b"", b"m1", b"", control, *payload]
    )

    near, far = chain()
    frames = far.down(M1, [b"D1", b"W1", b"", b"", control, *payload])
    assert frames == [b"D1", b"W1", b"", b"m1", b"", control, *payload]
    assert near.down(b"d2", frames[1:]) == [b"W1", b"", b"d2", b"m1", b"", control, *payload]


def test_w51_ready_goes_to_every_manager_and_nothing_else_does():
    device = Device(b"D1", [b"m1", b"m2", b"m3"])

    assert [label for label, _ in device.up(W1, [b"", b"", READY])] == [b"m1", b"m2", b"m3"]
    assert device.up(W1, [b"", b"", GIVE]) == []
    assert device.dropped == {"dead_end": 1}
    assert only(device.up(W1, [b"m2", b"", b"", READY]))[0] == b"m2"


@pytest.mark.parametrize(
    ("peer", "frames", "kind"),
    [
        (b"D1", [b"", b"", READY], "loop"),
        (W1, [b"", b"x", b"D1", b"", READY], "loop"),
        (W1, [b"", *[b"h"] * 8, b"", READY], "hops"),
        (W1, [b"", *[b"h"] * 9, b"", READY], "hops"),
        (W1, [b"m9", b"", b"", GIVE], "dead_end"),
        (W1, [b"", b"", TAKE], "signature"),
        (W1, [b"", b"", encode(Command.SUBMIT)], "signature"),
        (W1, [b"", b"", b"MDPW01\x01"], "signature"),
        (W1, [b"", b"", b"WMPW01"], "control"),
        (W1, [b"", READY], "frames"),
        (W1, [b"", b"", READY, b"", b""], "frames"),
        (W1, [], "frames"),
    ],
)
def test_w54_on_the_way_up_these_are_dropped_and_counted(peer, frames, kind):
    device = Device(b"D1", [M1])

    assert device.up(peer, frames) == []
    assert device.dropped == {kind: 1}
    assert device.counts["up"] == 0


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([b"", b"", TAKE], "dead_end"),
        ([b"W1", b"", *[b"h"] * 8, b"", TAKE], "hops"),
        ([b"W1", b"", b"", READY], "signature"),
        ([b"W1", b"", b"", b""], "control"),
        ([b"W1"], "frames"),
    ],
)
def test_w54_on_the_way_down_these_are_dropped_and_counted(frames, kind):
    device = Device(b"D1", [M1])

    assert device.down(M1, frames) == []
    assert device.dropped == {kind: 1}


hops = st.lists(st.binary(min_size=1, max_size=9), max_size=4)
peers = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6, unique=True)


@given(peers, st.binary(max_size=50))
def test_w53_an_answer_finds_its_way_back_through_any_chain(chain_of_ids, payload):
    """Each device adds the hop back; following the trail undoes the way there."""
    devices = [Device(b"D" + own, [b"L" + own]) for own in chain_of_ids]
    peer, frames = W1, [b"", b"", READY]
    for device, own in zip(devices, chain_of_ids, strict=True):
        label, frames = only(device.up(peer, frames))
        assert label == b"L" + own
        peer = b"D" + own
    trail = unpack(frames).trail
    onward = pack(Packet((*trail,), (), TAKE, payload))
    for device, own in zip(reversed(devices), reversed(chain_of_ids), strict=True):
        sent = device.down(b"L" + own, onward)
        onward = sent[1:]
    arrived = unpack(onward)

    assert sent[0] == W1
    assert arrived.route == ()
    assert arrived.trail == tuple(b"L" + own for own in chain_of_ids)
    assert (arrived.control, arrived.payload) == (TAKE, payload)


@given(st.binary(max_size=9), st.lists(st.binary(max_size=12), max_size=20), st.booleans())
def test_w54_whatever_comes_is_carried_or_counted(peer, frames, upwards):
    device = Device(b"D1", [M1])
    carried = device.up(peer, frames) if upwards else device.down(M1, frames)

    assert bool(carried) != bool(device.dropped)
