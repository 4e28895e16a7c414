"""Who is read from, and who waits, while memory is short."""

import asyncio
from types import SimpleNamespace

import pytest

from manyhands.dispatch.budget import GRANT_BYTES, Budget
from manyhands.model import limits

MIB = 1024 * 1024
# A fourth of this is for what peers have us hold, and so much that a few of them reach it.
BUDGET = 64 * MIB
TRAFFIC = BUDGET // 4


class Peer:
    def __init__(self) -> None:
        self.held_bytes = 0
        self.granted_at = 0.0
        self.granted = 0
        self.unread = 0
        self.closed_for = ""

    def go_on(self, count):
        self.granted += count

    def unread_bytes(self):
        return self.unread

    def give_up(self, reason):
        self.closed_for = reason


class Room:
    """A budget, and what tests may set: the time, and how far the disk is behind."""

    def __init__(self) -> None:
        self.now = 0.0
        self.backlog = 0
        store = SimpleNamespace(
            backlog_bytes=lambda: self.backlog, held_bytes=lambda: {"jobs": 7, "frames": 5}
        )
        self.budget = Budget(BUDGET, store, lambda: self.now)

    def holding(self, count: int) -> Peer:
        peer = Peer()
        self.budget.note_held(peer, count)
        return peer


@pytest.fixture
def room():
    return Room()


def test_everybody_is_read_from_while_there_is_room(room):
    peers = [Peer(), Peer()]

    assert all(room.budget.may_read(peer) for peer in peers * 3)


def test_nobody_who_sends_much_is_read_from_while_the_disk_is_behind(room):
    peer = Peer()
    room.backlog = room.budget.backlog_max
    assert not room.budget.may_read(peer)

    room.budget.relieve()
    assert not peer.granted
    room.backlog -= 1
    room.budget.relieve()

    assert peer.granted == GRANT_BYTES
    assert room.budget.waiting_count == 0


def test_a_peer_that_sends_little_does_not_wait_for_those_that_send_much(room):
    peer = Peer()
    room.backlog = room.budget.backlog_max
    room.now = 1.0
    assert room.budget.may_read(peer)

    assert not room.budget.may_read(peer)  # it is no longer one of those
    room.backlog *= 2
    room.now = 2.0
    assert not room.budget.may_read(Peer())  # the disk is too far behind for anybody


def test_those_that_wait_go_on_in_their_order_as_far_as_there_is_room(room):
    room.backlog = room.budget.backlog_max
    peers = [Peer() for _ in range(4)]
    assert not any(room.budget.may_read(peer) for peer in peers)

    room.backlog -= 2 * GRANT_BYTES
    room.budget.relieve()

    assert [peer.granted for peer in peers] == [GRANT_BYTES, GRANT_BYTES, 0, 0]


def test_nobody_goes_on_before_those_that_wait(room):
    room.backlog = room.budget.backlog_max
    waiting, later = Peer(), Peer()
    room.budget.may_read(waiting)
    room.backlog = 0
    assert not room.budget.may_read(later)

    room.budget.relieve()

    assert (waiting.granted, later.granted) == (GRANT_BYTES, GRANT_BYTES)


def test_one_peer_at_a_time_may_finish_its_message_where_there_is_no_room(room):
    first, second = room.holding(TRAFFIC // 2), room.holding(TRAFFIC // 2)
    assert room.budget.may_read(first)
    assert not room.budget.may_read(second)
    assert room.budget.may_read(first)

    room.budget.note_held(first, 0)

    assert second.granted == GRANT_BYTES


def test_a_peer_without_a_half_message_is_read_from_where_there_is_no_room(room):
    room.holding(TRAFFIC)
    room.now = 1.0

    assert room.budget.may_read(Peer())


def test_a_peer_that_does_not_use_its_turn_loses_it(room):
    first, second = room.holding(TRAFFIC // 2), room.holding(TRAFFIC // 2)
    room.budget.may_read(first)
    room.budget.may_read(second)
    room.now = 6.0
    room.budget.look()

    assert second.granted == GRANT_BYTES
    assert not first.closed_for


def test_a_peer_that_does_not_use_its_turn_is_let_go_where_memory_is_short(room):
    first, second = room.holding(2 * TRAFFIC), room.holding(GRANT_BYTES)
    room.budget.may_read(first)
    room.budget.may_read(second)
    room.now = 6.0
    room.budget.look()

    assert "memory is short" in first.closed_for
    assert second.granted == GRANT_BYTES


def test_no_turn_is_longer_than_the_largest_message(room):
    first, second = room.holding(TRAFFIC), room.holding(GRANT_BYTES)
    assert room.budget.may_read(first)
    room.budget.may_read(second)
    count = 1
    while room.budget.may_read(first):
        count += 1

    assert count * GRANT_BYTES == limits.PAYLOAD_BYTES_MAX
    room.budget.relieve()
    assert second.granted == GRANT_BYTES


def test_what_a_peer_held_is_gone_with_it(room):
    first, second = room.holding(TRAFFIC), room.holding(GRANT_BYTES)
    room.budget.note_behind(first)
    first.unread = 5
    room.budget.may_read(first)
    room.budget.may_read(second)

    room.budget.forget(first)

    assert room.budget.traffic_bytes() == GRANT_BYTES
    assert second.granted == GRANT_BYTES


def test_those_that_leave_most_unread_are_let_go_where_memory_is_short(room):
    peers = [Peer() for _ in range(4)]
    for number, peer in enumerate(peers):
        peer.unread = TRAFFIC // 2 + number
        room.budget.note_behind(peer)
    room.budget.look()
    assert [bool(peer.closed_for) for peer in peers] == [False, False, False, True]

    room.budget.look()
    assert [bool(peer.closed_for) for peer in peers] == [False, False, False, True]


def test_a_large_answer_waits_until_others_were_read(room):
    peer = Peer()
    peer.unread = TRAFFIC
    room.budget.note_behind(peer)
    made = []

    async def answer(name: str) -> None:
        await room.budget.room_for_answer()
        made.append(name)

    async def both() -> None:
        tasks = [asyncio.create_task(answer(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert made == []
        room.budget.note_caught_up(peer)
        await tasks[0]
        room.budget.look()
        await tasks[1]

    asyncio.run(both())

    assert made == ["a", "b"]


def test_all_that_counts_is_shown_by_kind(room):
    peer = room.holding(3)
    peer.unread = 2
    room.budget.note_behind(peer)

    assert room.budget.held_bytes() == {"jobs": 7, "frames": 5, "messages": 3, "answers": 2}
