"""The codec of links: every command and reply there and back, and peers that are not ours."""

import contextlib
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cluster import link as wire
from manyhands.cluster.link import (
    Answers,
    Ask,
    Asks,
    Hello,
    Link,
    LinkError,
    OtherServerError,
    Packed,
    Ping,
)
from manyhands.model.commands import Command, NewJob, Submit
from manyhands.model.events import Event, Signal
from manyhands.model.job import Job, State
from manyhands.model.policy import Terms
from manyhands.model.replies import Reply
from manyhands.model.roles import Caller, Role, Sender

SECRET = b"a secret"


def hello(number: int, **changes: object) -> Hello:
    mine = Hello(
        1, 1, "cluster", number, f"incarnation{number}", f"s{number}", bytes([number]) * 32
    )
    return msgspec.structs.replace(mine, **changes)


def pair(**changes: object) -> tuple[Link, Link]:
    """Two ends that believe each other."""
    caller = Link(hello(1, **changes), SECRET, calling=True)
    called = Link(hello(2), SECRET, calling=False)
    greet(caller, called)
    return caller, called


def greet(caller: Link, called: Link) -> None:
    called.feed(caller.take())
    caller.feed(called.take())
    called.feed(caller.take())


finite = st.floats(allow_nan=False)
st.register_type_strategy(float, finite)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
st.register_type_strategy(bytes, st.binary(max_size=40))
st.register_type_strategy(
    typing.Mapping, st.dictionaries(st.text("ab", max_size=3), st.text("xy", max_size=3))
)


def values(kind: type) -> st.SearchStrategy[object]:
    return st.from_type(kind)


@pytest.mark.parametrize("kind", typing.get_args(Command), ids=lambda kind: kind.__name__)
def test_a_command_arrives_as_it_was_sent(kind: type) -> None:
    caller, called = pair()

    @settings(max_examples=25, deadline=None)
    @given(values(kind))
    def check(command: typing.Any) -> None:
        sender = Sender(Caller("x", Role.WORKER, ("mail.*",)), "192.0.2.7", "gearman")
        caller.send(Asks((Ask(7, command, again=True, sender=sender),), 5))
        (message,) = called.feed(caller.take())
        assert message == Asks((Ask(7, command, again=True, sender=sender),), 5)

    check()


@pytest.mark.parametrize("kind", typing.get_args(Reply), ids=lambda kind: kind.__name__)
def test_a_reply_arrives_as_it_was_sent(kind: type) -> None:
    caller, called = pair()

    @settings(max_examples=25, deadline=None)
    @given(values(kind))
    def check(reply: typing.Any) -> None:
        called.send(Answers(3, ((7, reply),)))
        assert caller.feed(called.take()) == [Answers(3, ((7, reply),))]

    check()


@pytest.mark.parametrize("kind", [Job, Event, Signal])
def test_what_was_decided_arrives_as_it_was_sent(kind: type) -> None:
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(kind).decode

    @settings(max_examples=50, deadline=None)
    @given(values(kind))
    def check(value: object) -> None:
        assert decode(encode(value)) == value

    check()


def test_messages_arrive_whole_however_the_bytes_are_cut() -> None:
    caller, called = pair()
    for number in range(20):
        caller.send(Ping(number))
    data = caller.take()
    messages = [message for byte in data for message in called.feed(bytes([byte]))]
    assert messages == [Ping(number) for number in range(20)]


def test_jobs_of_several_submits_share_equal_terms() -> None:
    caller, called = pair()
    for number in range(2):
        job = NewJob(job_id=f"{number:032}", queue="q", terms=Terms(attempts_max=3))
        caller.send(Asks((Ask(number + 1, Submit((job,))),)))
    first, second = called.feed(caller.take())
    assert first.asks[0].command.items[0].terms is second.asks[0].command.items[0].terms


def test_a_peer_with_another_secret_is_refused_and_learns_nothing() -> None:
    """S45."""
    caller = Link(hello(1), b"another", calling=True)
    called = Link(hello(2), SECRET, calling=False)
    called.feed(caller.take())
    caller_hears = called.take()
    with pytest.raises(LinkError, match="secret"):
        caller.feed(caller_hears)
    with pytest.raises(LinkError, match="secret"):
        called.feed(caller.take())
    assert not called.is_open


def test_a_proof_is_of_no_use_in_the_other_direction() -> None:
    """S45: a stranger that sends back what it hears proves nothing."""
    called = Link(hello(2), SECRET, calling=False)
    greeting = called.take()
    with pytest.raises(LinkError, match="well formed"):
        called.feed(greeting)
    called = Link(hello(2), SECRET, calling=False)
    called.take()
    called.feed(b"".join(wire.frames(hello(1))))
    with pytest.raises(LinkError, match="secret"):
        called.feed(called.take())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster": "another"}, "another cluster"),
        ({"version_min": 2, "version_max": 3}, "speaks versions 2 to 3 of the link, we speak 1 to"),
        ({"nonce": b"short"}, "well formed"),
    ],
)
def test_a_stranger_is_refused_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    """S45 and S61."""
    called = Link(hello(2), SECRET, calling=False)
    with pytest.raises(LinkError, match=sentence):
        called.feed(b"".join(wire.frames(hello(1, **changes))))


def test_a_server_that_has_the_address_of_another_is_recognised_by_both() -> None:
    """S21."""
    caller = Link(hello(1, wanted="the one before"), SECRET, calling=True)
    called = Link(hello(2), SECRET, calling=False)
    called.feed(caller.take())
    with pytest.raises(OtherServerError):
        caller.feed(called.take())
    with pytest.raises(OtherServerError):
        called.feed(caller.take())


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_but_never_believed(data: bytes) -> None:
    """S45."""
    called = Link(hello(2), SECRET, calling=False)
    with contextlib.suppress(LinkError):
        assert called.feed(data) == []
    assert not called.is_open


def test_an_endless_frame_is_refused_before_it_is_read() -> None:
    """S45."""
    called = Link(hello(2), SECRET, calling=False)
    with pytest.raises(LinkError, match="at most 4096"):
        called.feed((5000).to_bytes(4, "big"))
    _, called = pair()
    with pytest.raises(LinkError, match="at most 16777216"):
        called.feed(b"\x7f\xff\xff\xff")


def test_a_large_message_travels_in_several_frames_and_arrives_whole(monkeypatch) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 100)
    caller, called = pair()
    jobs = tuple(NewJob(job_id=f"{n:032}", queue="q", payload=bytes([n]) * 99) for n in range(9))
    caller.send(Asks((Ask(1, Submit(jobs)),)))
    caller.send(Ping(2))
    data = caller.take()

    messages = [message for byte in data for message in called.feed(bytes([byte]))]

    assert messages == [Asks((Ask(1, Submit(jobs)),)), Ping(2)]


def test_a_message_that_never_ends_is_refused_before_it_fills_the_memory(monkeypatch) -> None:
    """S45."""
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 100)
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", 1_000)
    _, called = pair()
    part = (100 | 1 << 31).to_bytes(4, "big") + bytes(100)
    with pytest.raises(LinkError, match="more than 1000 bytes"):
        called.feed(part * 11)


def test_a_stranger_may_not_send_in_several_frames() -> None:
    """S45."""
    called = Link(hello(2), SECRET, calling=False)
    with pytest.raises(LinkError, match="at most 4096"):
        called.feed((10 | 1 << 31).to_bytes(4, "big"))


def test_what_goes_over_several_links_is_packed_once(monkeypatch) -> None:
    pairs = [pair() for _ in range(3)]
    packed, packings = Packed(Ping(7)), []
    pack = wire._encode

    def count(message: object) -> bytes:
        packings.append(message)
        return pack(message)

    monkeypatch.setattr(wire, "_encode", count)
    for caller, called in pairs:
        caller.send(packed)
        assert called.feed(caller.take()) == [Ping(7)]

    assert packings == [Ping(7)]


def test_a_message_that_is_too_large_is_not_sent(monkeypatch) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 100)
    caller, called = pair()
    job = NewJob(job_id="1" * 32, queue="q", payload=bytes(2_000))
    with pytest.raises(LinkError, match="too large"):
        caller.send(Asks((Ask(1, Submit((job,))),)))
    caller.send(Ping(3))
    assert called.feed(caller.take()) == [Ping(3)]


def test_garbage_after_the_greeting_ends_the_link_with_a_sentence() -> None:
    """S45."""
    _, called = pair()
    with pytest.raises(LinkError, match="no message of a link"):
        called.feed((3).to_bytes(4, "big") + b"abc")


def test_what_a_peer_says_before_its_proof_is_not_heard() -> None:
    """S45."""
    called = Link(hello(2), SECRET, calling=False)
    called.feed(b"".join(wire.frames(hello(1))))
    with pytest.raises(LinkError):
        called.feed(b"".join(wire.frames(Ping(1))))


def test_states_are_names_on_the_wire() -> None:
    """Numbers of an enumeration may move from version to version; names do not."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(State.READY)) == "ready"
