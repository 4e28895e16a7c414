"""A stream whose commits happen when a test says so: nothing is told before them."""

from types import SimpleNamespace

import msgspec
import pytest

from manyhands.model.commands import SetQueue
from manyhands.model.job import State
from manyhands.model.roles import ANYBODY, Caller, Role
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_routes import StreamRoutes
from manyhands.protocols.native.stream_session import StreamSession
from tests.unit.protocols.gearman_room import Line, Room


class Streamer(Line):
    """A client or worker, and its socket."""

    def __init__(
        self,
        room: Room,
        hub: StreamRoutes,
        worker: str | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        super().__init__(room, "10.0.0.1", caller)
        self.is_behind = False
        self.close_code: int | None = None
        self.messages: list[bytes] = []
        socket = SimpleNamespace(send=self.messages.append, close=self.closes, soon=self.soon)
        self._socket = socket
        self.read(reads=True)
        self.session = StreamSession(self, socket, hub, room.dispatcher.ask, self.address)
        self.tell([wire.HELLO, 1, 1, "test", worker])
        assert [note[:3] for note in self.notes()] == [[wire.ANSWER, 1, None]]

    def soon(self, call) -> None:
        self.room.loop.call_soon(call)

    def closes(self, code: int | None = None, _sentence: str = "") -> None:
        self.close_code = 1000 if code is None else code

    def read(self, *, reads: bool) -> None:
        self._socket.is_behind = not reads

    def give_notes(self, *notes: list) -> None:
        """A message arrives; nothing is committed yet."""
        self.session.receive([msgspec.msgpack.encode(notes)])

    def tell(self, *notes: list) -> None:
        self.give_notes(*notes)
        self.room.run()

    def _go_on(self) -> None:
        if self._undone and not self.session.is_overwhelmed():
            self._undone = False
            self.session.receive([])

    def come_back(self) -> None:
        self._undone = True
        self.room.loop.call_soon(self._go_on)

    def notes(self) -> list[list]:
        """What was said since the last time."""
        found = [note for message in self.messages for note in msgspec.msgpack.decode(message)]
        self.messages.clear()
        return found

    def jobs(self) -> list[list]:
        return [row for note in self.notes() if note[0] == wire.JOBS for row in note[1]]


@pytest.fixture
def room():
    return Room()


@pytest.fixture
def hub(room):
    config = SimpleNamespace(payload_bytes_max=1_000, drain_seconds=5)
    return StreamRoutes(room.dispatcher, room.ids, config, None)


def items(count: int, queue: str = "q", start: int = 0) -> list[list]:
    return [[f"{number:032x}", queue, b"x"] for number in range(start, start + count)]


def states(room: Room) -> list[State]:
    return [job.state for job in room.dispatcher.store.live.jobs.values()]


def test_st6_nothing_is_answered_before_it_is_committed(room, hub):
    """P14, P23."""
    client = Streamer(room, hub)

    client.give_notes([wire.SUBMIT, 2, items(1)])
    assert client.messages == []
    room.run()

    assert client.notes() == [[wire.ANSWER, 2, None, []]]


def test_st6_a_peer_that_is_owed_too_many_answers_is_not_read_from(room, hub):
    """P23: ten thousand."""
    waiting = []
    hub.look = lambda _ids, _bytes_max, found: waiting.append(found)
    client = Streamer(room, hub)

    for number in range(1, 10_002):
        client.tell([wire.LOOK, number, []])
    assert client.session.is_overwhelmed()
    for found in reversed(waiting):
        found([])
    room.run()

    assert not client.session.is_overwhelmed()
    assert [note[1] for note in client.notes()] == list(range(1, 10_002))


def test_st7_a_message_of_many_notes_is_dealt_with_in_turns(room, hub):
    client = Streamer(room, hub)

    client.give_notes(
        *([wire.SUBMIT, number, items(200, start=number * 1_000)] for number in range(1, 6))
    )
    assert client.session.held_bytes() > 0
    room.run()

    assert client.session.held_bytes() == 0
    assert [note[1] for note in client.notes()] == [1, 2, 3, 4, 5]
    assert len(states(room)) == 5 * 200


def test_st12_jobs_are_handed_out_after_the_commit_of_their_claim(room, hub):
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    client.tell([wire.SUBMIT, 2, items(3)])

    worker.give_notes([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [2, 0]])
    assert states(room) == [State.LEASED, State.LEASED, State.READY]
    assert worker.messages == []
    room.run()

    assert [row[0] for row in worker.jobs()] == [item[0] for item in items(2)]


def test_a_job_that_was_on_its_way_to_a_stream_that_is_gone_goes_back_uncharged(room, hub):
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    client.tell([wire.SUBMIT, 2, items(1)])
    worker.give_notes([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    worker.hang_up()

    [job] = room.dispatcher.store.live.jobs.values()
    assert (job.state, job.attempts_used) == (State.READY, 0)
    assert job.attempts[-1].reason == "released"


def test_st13_a_job_that_was_handed_out_stays_with_its_worker(room, hub):
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    client.tell([wire.SUBMIT, 2, items(1)])
    worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])
    [row] = worker.jobs()

    worker.hang_up()
    again = Streamer(room, hub)
    assert states(room) == [State.LEASED]
    again.tell([wire.WORK, 2, [[row[0], row[2]]]])

    assert again.notes() == [[wire.ANSWER, 2, None, []]]
    assert states(room) == []


def test_st3_a_worker_that_does_not_read_leaves_the_work_to_others(room, hub):
    client = Streamer(room, hub)
    first, second = Streamer(room, hub, "w1"), Streamer(room, hub, "w2")
    for worker in (first, second):
        worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [5, 0]])
    first.read(reads=False)

    client.tell([wire.SUBMIT, 2, items(3)])
    assert (len(first.jobs()), len(second.jobs())) == (0, 3)
    first.read(reads=True)
    first.session.go_on()
    client.tell([wire.SUBMIT, 3, items(5, start=10)])

    assert len(first.jobs()) + len(second.jobs()) == 5


def test_a_worker_whose_hands_are_full_is_not_called(room, hub):
    client = Streamer(room, hub)
    first, second = Streamer(room, hub, "w1"), Streamer(room, hub, "w2")
    first.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])
    second.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    client.tell([wire.SUBMIT, 2, items(1)], [wire.SUBMIT, 3, items(1, start=5)])

    assert (len(first.jobs()), len(second.jobs())) == (1, 1)
    assert room.dispatcher.sleepers.count == 0


def test_a_paused_queue_gives_nothing_and_nobody_asks_in_a_circle(room, hub):
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    room.dispatcher.ask(SetQueue(queue="q", paused=True))
    client.tell([wire.SUBMIT, 2, items(3)])
    before = room.dispatcher.counts.commands

    worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [5, 0]])
    assert worker.jobs() == []
    assert room.dispatcher.counts.commands - before <= 3
    room.dispatcher.ask(SetQueue(queue="q", paused=False))
    room.run()

    assert len(worker.jobs()) == 3


def test_st22_a_server_that_stops_refuses_submits(room, hub):
    client = Streamer(room, hub)
    room.dispatcher.draining = True

    client.session.announce_stop(5)
    client.tell([wire.SUBMIT, 2, items(1)])

    assert client.notes() == [
        [wire.CLOSING, 5],
        [wire.ANSWER, 2, ["shutting_down", "the server is shutting down"], None],
    ]


def test_st22_a_server_that_stops_hands_out_nothing_and_nobody_asks_in_a_circle(room, hub):
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    client.tell([wire.SUBMIT, 2, items(3)])
    room.dispatcher.draining = True
    before = room.dispatcher.counts.commands

    worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [5, 0]])

    assert worker.jobs() == []
    assert room.dispatcher.counts.commands - before == 1


def test_a_claim_of_some_queues_is_not_repeated_for_the_work_of_others(room, hub):
    """One that others wait for has work, and one that is paused."""
    client, worker = Streamer(room, hub), Streamer(room, hub, "w1")
    room.dispatcher.ask(SetQueue(queue="paused", paused=True))
    client.tell([wire.SUBMIT, 2, items(3, "paused")], [wire.SUBMIT, 3, items(3, "q", 10)])
    hub.is_wanted = lambda queue: queue == "q"
    before = room.dispatcher.counts.commands

    worker.tell([wire.WANT, 2, ["paused", "q"]], [wire.WORK, 3, [], [], [], [], [0, 5]])

    assert worker.jobs() == []
    assert room.dispatcher.counts.commands - before == 1


def test_a_client_that_closes_is_closed_when_it_has_its_answers(room, hub):
    client = Streamer(room, hub)
    client.give_notes([wire.SUBMIT, 2, items(1)])

    client.session.ended()
    assert client.close_code is None
    room.run()

    assert client.close_code == 1000
    assert client.notes() == [[wire.ANSWER, 2, None, []]]


def test_st15_a_worker_that_reconnects_takes_over_from_its_older_stream(room, hub):
    old = Streamer(room, hub, "w1")
    old.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    new = Streamer(room, hub, "w1")
    new.tell([wire.SUBMIT, 2, items(1)])

    assert old.close_code == 1008
    assert old.jobs() == []
    assert states(room) == [State.READY], "nobody asked for it who could get it"


def test_st15_a_claim_of_the_older_stream_that_is_under_way_goes_back(room, hub):
    old = Streamer(room, hub, "w1")
    old.tell([wire.SUBMIT, 2, items(1)])
    old.give_notes([wire.WANT, 3, ["q"]], [wire.WORK, 4, [], [], [], [], [1, 0]])

    new = Streamer(room, hub, "w1")
    new.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    assert [row[3] for row in new.jobs()] == [2], "handed out again, under another lease"


def test_st15_streams_of_other_names_and_without_one_are_left_alone(room, hub):
    streams = [Streamer(room, hub, name) for name in ("w1", "w2", None, None)]

    streams[0].session.lost()
    Streamer(room, hub, "w1")

    assert [stream.close_code for stream in streams] == [None] * 4


def test_st15_workers_of_different_callers_may_have_one_name(room, hub):
    callers = (ANYBODY, Caller("ada", Role.WORKER), Caller("eve", Role.WORKER))
    streams = [Streamer(room, hub, "w1", caller) for caller in callers]

    latest = Streamer(room, hub, "w1", callers[1])

    assert [stream.close_code for stream in streams] == [None, 1008, None]
    assert latest.close_code is None


@pytest.mark.parametrize(
    ("caller", "dismissed"),
    [
        (Caller("ada", Role.WORK), True),
        (Caller("eve", Role.WORKER), False),
        (Caller("eve", Role.SUBMIT), False),
        (Caller("eve", Role.OPERATE), True),
        (Caller("eve", Role.OPERATE, ("q",)), True),
        (Caller("eve", Role.OPERATE, ("other",)), False),
    ],
)
def test_st16_only_its_caller_and_operators_of_its_queues_report_a_worker_dead(
    room, hub, caller, dismissed
):
    worker = Streamer(room, hub, "w1", Caller("ada", Role.WORK))
    worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    Streamer(room, hub, None, caller).tell([wire.DEPART, 2, "w1"])

    assert worker.close_code == (1008 if dismissed else None)


def test_st16_a_worker_that_is_reported_dead_gets_no_more_work(room, hub):
    dead, supervisor = Streamer(room, hub, "w1"), Streamer(room, hub)
    dead.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])

    supervisor.tell([wire.DEPART, 2, "w1"])
    supervisor.tell([wire.SUBMIT, 3, items(1)])

    assert dead.close_code == 1008
    assert dead.jobs() == []
    assert states(room) == [State.READY]


def test_st16_a_worker_that_leaves_gets_its_answer_and_no_more_work(room, hub):
    worker = Streamer(room, hub, "w1")
    worker.tell([wire.WANT, 2, ["q"]], [wire.WORK, 3, [], [], [], [], [1, 0]])
    worker.notes()

    worker.tell([wire.DEPART, 4, "w1"])
    worker.tell([wire.SUBMIT, 5, items(1)])

    assert [note[:3] for note in worker.notes()] == [
        [wire.ANSWER, 4, None],
        [wire.ANSWER, 5, None],
    ]
    assert worker.close_code is None
    assert states(room) == [State.READY]
