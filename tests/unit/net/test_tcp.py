"""One peer's bytes beside everybody else's time."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from manyhands.access.callers import Callers
from manyhands.dispatch.sleepers import Sleepers
from manyhands.model.job import Holder
from manyhands.net.tcp import OUTPUT_BYTES_MAX, Connection
from manyhands.protocols.amqp.listener import _WatcherConnection
from tests.unit.net.transport import Transport, ample_budget


class Session:
    """Answers each byte; notes how many came in one turn of the loop."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.heard = b""
        self.answers: list[bytes] = []
        self.overwhelmed = False

    def receive(self, data):
        self.heard += data
        self.turns.append(len(data))
        if b"wrong" in data:
            self.peer.close()
        if b"more" in data:
            self.peer.come_back()
        for answer in self.answers:
            self.peer.send(answer)

    def is_overwhelmed(self):
        return self.overwhelmed

    def lost(self, *, blameless=False):
        pass

    def held_bytes(self):
        return 0


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(params=[Connection, _WatcherConnection])
def opened(loop, request):
    session, transport = Session(), Transport()
    ids = SimpleNamespace(connection=lambda: "c/1", token=lambda: "token")
    dispatcher = SimpleNamespace(
        ask=None, on_signal={}, draining=False, failed=None, owed_bytes=0, clock=None
    )
    listener = SimpleNamespace(
        backplane=SimpleNamespace(
            ids=ids,
            dispatcher=dispatcher,
            budget=ample_budget(),
            logins=SimpleNamespace(callers=Callers()),
        ),
        endpoint=SimpleNamespace(leave=lambda _watcher: None),
        is_debugging=False,
        connections={},
        accepted_count=0,
        is_silent=False,
        loop=loop,
        make_session=lambda _connection: session,
        forget=lambda _connection: None,
        flush_later=lambda connection: loop.call_soon(connection.flush),
        name="test",
        tls=None,
    )
    connection = request.param(listener)
    session.peer = connection
    connection.connection_made(transport)
    return connection, session, transport


def run_once(loop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_a_flood_is_looked_at_piece_by_piece_and_nothing_more_is_read_meanwhile(loop, opened):
    """T28, G9."""
    connection, session, transport = opened
    flood = bytes(range(256)) * (4 * connection.turn_bytes // 256) + b"end"
    connection.data_received(flood)
    assert session.turns == [connection.turn_bytes]

    for count in range(2, 5):
        assert not transport.reading
        run_once(loop)
        assert len(session.turns) == count
    run_once(loop)
    assert session.heard == flood
    assert transport.reading


class Socket:
    """Notes what was set."""

    def __init__(self) -> None:
        self.options: list[int] = []

    def setsockopt(self, _level, option, value):
        self.options.append(option)
        assert value == 1


def test_a_large_piece_is_acknowledged_at_once(opened):
    """G10: whoever sends with a small buffer waits for it before going on."""
    connection, _, _ = opened
    connection._socket = Socket()
    connection.data_received(b"a" * connection.turn_bytes)
    assert connection._socket.options == []

    connection.data_received(b"a" * (connection.turn_bytes + 1))

    assert connection._socket.options == [socket.TCP_QUICKACK]


def test_what_still_comes_keeps_its_order(loop, opened):
    connection, session, _ = opened
    connection.data_received(b"a" * connection.turn_bytes + b"b")
    connection.data_received(b"c")  # over TLS some may be on its way
    run_once(loop)

    assert session.heard == b"a" * connection.turn_bytes + b"bc"


def test_a_peer_that_does_not_take_its_answers_is_not_looked_at_further(loop, opened):
    """T28."""
    connection, session, transport = opened
    connection.data_received(b"a" * connection.turn_bytes * 2)
    connection.pause_writing()
    for _ in range(5):
        run_once(loop)
    assert session.turns == [connection.turn_bytes]
    assert not transport.reading

    connection.resume_writing()
    for _ in range(5):
        run_once(loop)
    assert session.turns == [connection.turn_bytes, connection.turn_bytes]
    assert transport.reading


def test_a_session_that_has_not_done_everything_is_asked_in_the_next_turn(loop, opened):
    """G9."""
    connection, session, transport = opened
    connection.data_received(b"more")
    assert session.turns == [4]
    assert not transport.reading

    run_once(loop)

    assert session.turns == [4, 0]
    assert transport.reading


@pytest.mark.parametrize("overwhelmed", [False, True])
def test_a_session_that_has_not_done_everything_waits_for_its_peer(loop, opened, overwhelmed):
    """G9."""
    connection, session, transport = opened
    connection.data_received(b"more")
    if overwhelmed:
        session.overwhelmed = True
    else:
        connection.pause_writing()
    for _ in range(3):
        run_once(loop)
    assert session.turns == [4]

    session.overwhelmed = False
    connection.resume_writing()
    for _ in range(3):
        run_once(loop)
    assert session.turns == [4, 0]
    assert transport.reading


def test_a_small_request_is_looked_at_at_once(opened):
    connection, session, transport = opened
    connection.data_received(b"small")

    assert session.turns == [5]
    assert transport.reading


def test_all_that_is_said_in_one_turn_is_one_write(loop, opened, monkeypatch):
    connection, session, transport = opened
    writes: list[bytes] = []
    monkeypatch.setattr(transport, "write", writes.append)
    for _ in range(2):
        session.answers = [b"a", b"b"]
        connection.data_received(b"asked")
        connection.send(b"c")
        assert writes == []
        run_once(loop)
        assert writes == [b"abc"]
        writes.clear()


def test_a_peer_that_leaves_more_unread_than_it_may_is_closed(loop, opened):
    connection, _, transport = opened
    connection.pause_writing()
    transport.unread_bytes = OUTPUT_BYTES_MAX
    connection.send(b"at most")
    run_once(loop)
    assert transport.state == "open"

    transport.unread_bytes += 1
    connection.send(b"too much")
    run_once(loop)
    assert transport.state == "aborted"


def test_a_peer_is_read_again_after_an_answer_that_it_was_owed(loop, opened):
    connection, session, transport = opened
    session.overwhelmed = True
    connection.data_received(b"asked")
    assert not transport.reading
    session.overwhelmed = False
    connection.send(b"answer")
    run_once(loop)
    assert transport.reading


def test_what_was_not_looked_at_is_forgotten_with_the_connection(loop, opened):
    connection, session, _ = opened
    connection.data_received(b"a" * connection.turn_bytes * 2)
    connection.connection_lost(None)
    for _ in range(3):
        run_once(loop)

    assert session.turns == [connection.turn_bytes]


@pytest.mark.parametrize("first", [b"wrong", b""])
def test_a_peer_that_is_being_closed_is_read_from_and_nothing_is_kept(loop, opened, first):
    """T27: else it would never read why."""
    connection, session, transport = opened
    connection.data_received(first.ljust(connection.turn_bytes) + b"a" * connection.turn_bytes)
    connection.close()
    for _ in range(3):
        connection.data_received(b"a" * connection.turn_bytes * 2)
        run_once(loop)

    assert session.turns == [connection.turn_bytes]
    assert transport.reading
    assert connection._unread == b""
    connection.connection_lost(None)


def test_a_peer_that_sends_much_is_not_read_from_until_there_is_room(opened, monkeypatch):
    connection, session, transport = opened
    budget = connection._budget
    connection.granted_at = 0.0  # it was let just now
    monkeypatch.setattr(budget, "_backlog_bytes", lambda: budget.backlog_max)
    connection.data_received(b"some")
    assert session.heard == b"some"
    assert not transport.reading
    assert budget.waiting_count == 1

    monkeypatch.setattr(budget, "_backlog_bytes", lambda: 0)
    budget.relieve()

    assert transport.reading
    assert budget.waiting_count == 0


def test_what_came_of_a_message_counts_until_it_is_whole(opened, monkeypatch):
    connection, session, _ = opened
    budget = connection._budget
    monkeypatch.setattr(session, "held_bytes", lambda: 300_000)
    connection.data_received(b"half")
    assert budget.held_bytes()["messages"] == 300_000

    monkeypatch.setattr(session, "held_bytes", lambda: 0)
    connection.data_received(b"whole")

    assert budget.held_bytes()["messages"] == 0


def test_what_a_peer_does_not_read_counts_until_it_is_gone(opened):
    connection, _, transport = opened
    budget = connection._budget
    connection.pause_writing()
    transport.unread_bytes = 5_000_000
    assert budget.held_bytes()["answers"] == 5_000_000

    connection.connection_lost(None)

    assert budget.held_bytes()["answers"] == 0


def test_large_answers_are_written_as_they_are(opened, monkeypatch):
    connection, _, transport = opened
    writes: list[bytes] = []
    monkeypatch.setattr(transport, "write", writes.append)
    large = bytes(2_000_000)
    connection.send(b"head")

    connection.send_large(large)

    assert writes[0] == b"head"
    assert writes[1] is large


def test_a_worker_is_neither_woken_nor_looked_for_in_queues_it_may_not_work(opened):
    connection = opened[0]
    asked, sleepers = [], Sleepers()
    connection._dispatcher.has_work = asked.append
    connection._dispatcher.sleepers = sleepers
    connection.guard = SimpleNamespace(may_work=lambda queue: queue == "mail")

    connection.has_work(("mail", "vault"))
    connection.sleep(("mail", "vault"), lambda: None, Holder("test", "w"))

    assert asked == [("mail",)]
    assert sleepers.is_wanted("mail")
    assert not sleepers.is_wanted("vault")
