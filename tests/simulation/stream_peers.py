"""The stream in the simulation: the real session, and clients that reconnect, repeat and die.

Every client keeps a ledger of what it was promised: an acknowledged job is on disk, an accepted
report has ended its lease, every watched job is reported once, and answers come in order.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from manyhands.dispatch.sleepers import Sleeper
from manyhands.model import commands as c
from manyhands.model.job import FINISHED, EndReason, Job
from manyhands.model.replies import Found, Reply
from manyhands.model.roles import ANYBODY
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_routes import StreamRoutes
from manyhands.protocols.native.stream_session import StreamSession

if TYPE_CHECKING:
    from tests.simulation.simulate import Server, Simulation

_CONFIG = SimpleNamespace(payload_bytes_max=1_000, drain_seconds=5)
_CUT = 0.01  # of the messages from the server: the connection breaks instead
_KILL = 0.002  # the server dies between a commit and its answer
_POLICY_VIOLATION = 1008
_HANDS = 3  # jobs that a worker works on at once


class Hub(StreamRoutes):
    """What all streams of one server process share, on its simulated loop."""

    def __init__(self, server: "Server") -> None:
        super().__init__(server.dispatcher, server.ids, _CONFIG, None)  # type: ignore[arg-type]
        self._server = server

    def look(self, ids, bytes_max: int, found) -> None:  # noqa: ARG002 - results are small here
        jobs: list[Job | None] = []
        simulation, live = self._server.simulation, self._server.store.live

        def go_on() -> None:
            if len(jobs) == len(ids):
                found(jobs)
                return
            job_id = ids[len(jobs)]
            if live.live_job(job_id) is not None:
                simulation.ask(c.Look(job_id), settle)
            else:
                jobs.append(simulation.disk.job(job_id))
                go_on()

        def settle(reply: Reply) -> None:
            if isinstance(reply, Found):
                jobs.append(reply.job)
                go_on()
            else:
                found(jobs)

        self._server.loop.call_later(0.001, go_on)

    def _look_later(self, seconds: float) -> None:
        self._surplus_timer = self._server.loop.call_later(seconds, self._look_at_surplus)


class Line:
    """One connection, as the session in one server process sees it."""

    def __init__(self, server: "Server", client: "StreamPeer") -> None:
        self.server = server
        self.simulation = server.simulation
        self.client = client
        self.connection = server.ids.connection()
        self.number = 0
        self.address = f"10.0.1.{client.number}"
        self.caller = ANYBODY
        self.token = server.ids.token
        self.is_open = True  # as the client knows
        self.is_behind = False
        self._is_lost = False  # as the server knows
        self._sleeper: Sleeper | None = None
        self._arrives_us = 0
        self._returns_us = 0
        self.session = StreamSession(self, self, server.streams, self.operate, self.address)

    # The client's side.

    def tell(self, message: bytes) -> None:
        self._to_server(lambda: self._take([message]))

    def cut(self) -> None:
        """What was sent arrives before that, or not at all. It may take the server a while to
        notice.
        """
        if not self.is_open:
            return
        self.is_open = False
        self._arrives_us += self.client.rng.choice((0, 0, 2_500_000))
        self._to_server(self._lose)

    def leave(self) -> None:
        """Closed in good order: what was sent is still answered."""
        self._to_server(self.session.ended)

    def _to_server(self, what: Callable[[], None]) -> None:
        time = self.simulation.time
        self._arrives_us = max(self._arrives_us, time.now_us + self.client.rng.randint(50, 3_000))
        self.server.loop.arrive(self._arrives_us - time.now_us, what)

    def _take(self, messages: list[bytes]) -> None:
        if not self._is_lost:
            self.session.receive(messages)

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.stay_awake()
            self.session.lost()

    def read_again(self) -> None:
        self.is_behind = False
        if not self._is_lost:
            self.session.go_on()

    # The socket.

    def soon(self, call: Callable[[], None]) -> None:
        self.server.loop.call_soon(call)

    def send(self, message: bytes) -> None:
        simulation, rng = self.simulation, self.client.rng
        if self._is_lost or not self.is_open:
            return
        notes = msgspec.msgpack.decode(message)
        for note in notes:
            self.client.check_on_disk(self, note)
        if not simulation.faults_over:
            fate = rng.random()
            if fate < _KILL:
                simulation.count("stream answer lost with the server")
                simulation.time.after(0, simulation.crash)
                self.is_open = False
                return
            if fate < _KILL + _CUT:
                simulation.count("stream cut before an answer")
                self.cut()
                return
        self._returns_us = max(self._returns_us, simulation.time.now_us + rng.randint(50, 3_000))
        simulation.time.at(self._returns_us, lambda: self._deliver(notes))

    def _deliver(self, notes: list[list[Any]]) -> None:
        if self.is_open and self.client.line is self:
            for note in notes:
                self.client.hear(note)

    def close(self, code: int | None = None, sentence: str = "") -> None:
        dismissed = code == _POLICY_VIOLATION and not (self.is_open and self.client.line is self)
        self.simulation.require(
            code is None or dismissed, f"a stream was closed with {code}: {sentence}"
        )
        if dismissed:
            self.simulation.count("stream dismissed")
        self.is_open = False
        self.server.loop.call_soon(self._lose)

    # The peer.

    def ask(self, command, settle=None, refused=None) -> None:
        told = settle or (None if refused is None else refused())
        self.simulation.ask(command, told, owed=settle is not None)

    operate = ask

    def now(self) -> int:
        return self.server.clock.now()

    @property
    def owed_bytes(self) -> int:
        return self.server.dispatcher.owed_bytes

    def come_back(self) -> None:
        self.server.loop.call_soon(lambda: self._take([]))

    def sees(self, job) -> bool:  # noqa: ARG002
        return True

    def has_work(self, queues) -> bool:
        return self.server.dispatcher.has_work(queues)

    def sleep(self, queues, wake, holder, hands=1) -> None:
        self.stay_awake()
        self._sleeper = Sleeper(queues, lambda _queue: wake(), holder, hands)
        self.server.dispatcher.sleepers.sleep(self._sleeper)

    def refusal_to_work(self, queue) -> None:  # noqa: ARG002
        """Everybody may work."""
        return

    def stay_awake(self) -> None:
        if self._sleeper is not None:
            self.server.dispatcher.sleepers.leave(self._sleeper)
            self._sleeper = None


class Held:
    """A job that a worker was handed."""

    def __init__(self, row: list[Any]) -> None:
        self.job_id, _, self.token, self.number = row[:4]
        self.report: tuple[int, list[Any]] | None = None  # which list of a work note, and the item


class StreamPeer:
    """Submits, works and watches over one stream at a time."""

    def __init__(self, simulation: "Simulation", number: int) -> None:
        self.simulation = simulation
        self.rng = random.Random(simulation.rng.getrandbits(64))
        self.number = number
        self.line: Line | None = None
        self._lives = 0
        self._numbers = 0
        self._is_greeted = False
        self._silent_until_us = 0
        self._waiting: dict[int, tuple[list[Any], Callable[[list[Any]], None]]] = {}
        self._unsure: dict[str, list[Any]] = {}  # submitted, and not acknowledged
        self._asked: set[str] = set()  # of these, on this line
        self._acknowledged: set[str] = set()
        self._watched: dict[str, None] = {}
        self._jobs: dict[str, Held] = {}
        self._given = 0  # credit that no job was handed out for yet
        self._begin_life()
        self._turn()

    def _begin_life(self) -> None:
        """Another process under another name; it knows nothing of the jobs of the last one."""
        self._lives += 1
        self.name = f"stream-{self.number}/{self._lives}"
        self.term_ms = self.rng.choice((None, 0, 2_000, 6_000))
        self._jobs.clear()

    def is_settled(self) -> bool:
        return not (self._unsure or self._watched or self._jobs or self._waiting)

    # Turns.

    def _turn(self) -> None:
        simulation, rng = self.simulation, self.rng
        if simulation.is_over:
            return
        simulation.steps_done += 1
        simulation.time.after(rng.randint(5_000, 300_000), self._turn)
        if not simulation.server.ready or simulation.time.now_us < self._silent_until_us:
            return
        line = self.line
        if line is None or not line.is_open or line.server is not simulation.server:
            self._connect()
        elif not self._is_greeted:
            pass
        elif simulation.faults_over:
            self._work_on()
        else:
            self._misbehave(line)
            self._work_on()
            rng.choice((self._submit, self._submit, self._look, self._cancel, self._news))()

    def _misbehave(self, line: Line) -> None:
        simulation, rng = self.simulation, self.rng
        fate = rng.random()
        if fate < 0.03:
            simulation.count("stream cut")
            line.cut()
        elif fate < 0.04:
            line.leave()
        elif fate < 0.06:
            simulation.count("stream worker died")
            running = [[held.job_id, held.token] for held in self._jobs.values()]
            simulation.dead_streams.append((self.name, running[: rng.randint(0, 2)]))
            line.cut()
            self._begin_life()
        elif fate < 0.08:
            self._silent_until_us = simulation.time.now_us + rng.randint(1, 9) * 1_000_000
        elif fate < 0.1 and not line.is_behind:
            line.is_behind = True
            line.server.loop.call_later(rng.random() * 2, line.read_again)

    def _connect(self) -> None:
        if self.line is not None:
            self.line.cut()
            self.simulation.count("stream reconnected")
        self.line = Line(self.simulation.server, self)
        self._waiting.clear()
        self._asked.clear()
        self._is_greeted = False
        self._given = 0
        held = [[held.job_id, held.token] for held in self._jobs.values()]
        self._say([wire.HELLO, 0, 1, "simulated", self.name, held], self._greeted)

    def _greeted(self, answer: list[Any]) -> None:
        self.simulation.require(answer[2] is None, f"a hello was refused: {answer[2]}")
        self._is_greeted = True
        for job_id in answer[3]["gone"]:
            self.simulation.count("stream lease gone")
            self._jobs.pop(job_id, None)
        if self._watched:
            self._say([wire.WATCH, 0, list(self._watched)])
        queues = list(self.simulation.queues)
        if not self.simulation.faults_over:
            queues = self.rng.sample(queues, self.rng.randint(1, len(queues)))
        self._say([wire.WANT, 0, queues, "priority_in_turns", self.term_ms])

    # Sending.

    def _say(self, note: list[Any], then: Callable[[list[Any]], None] = lambda _: None) -> None:
        line = self.line
        assert line is not None
        self._numbers += 1
        note[1] = self._numbers
        self._waiting[self._numbers] = (note, then)
        line.tell(msgspec.msgpack.encode([note]))

    def _say_perhaps_twice(
        self, note: list[Any], then: Callable[[list[Any]], None] = lambda _: None
    ) -> None:
        self._say(list(note), then)
        if self.rng.random() < 0.1 and not self.simulation.faults_over:
            self.simulation.count("stream note doubled")
            self._say(list(note))

    def _submit(self) -> None:
        simulation, rng = self.simulation, self.rng
        for _ in range(rng.randint(1, 3)):
            job_id = simulation.server.ids.job_id(simulation.server.clock.now())
            options: dict[str, Any] = {"on_existing": "keep", "priority": rng.choice((0, 0, 5))}
            if rng.random() < 0.3:
                options["attempts_max"] = 2
            queue = simulation.any_queue(rng)
            self._unsure[job_id] = [job_id, queue, b"x", "binary", options]

    def _send_unsure(self) -> None:
        items = [item for job_id, item in self._unsure.items() if job_id not in self._asked][:3]
        if not items:
            return
        self._asked.update(item[0] for item in items)
        watch = self.rng.random() < 0.6

        def answered(answer: list[Any]) -> None:
            _, _, error, others = answer
            refused = {} if error is not None else {row[0]: row[1] for row in others if row[1]}
            for index, item in enumerate(items):
                self._asked.discard(item[0])
                if error is not None or index in refused:
                    self.simulation.count(f"stream submit refused: {error or refused[index]}")
                    if refused.get(index) == "queue_full":
                        self._unsure.pop(item[0], None)  # it gives up
                    elif refused.get(index) == "in_other_queue":
                        self._unsure.pop(item[0], None)  # an operator has moved the job meanwhile
                    continue
                if self._unsure.pop(item[0], None) is not None:
                    self.simulation.count("stream submitted")
                    self._acknowledged.add(item[0])
                    self.simulation.known_ids.append(item[0])
                    if watch:
                        self._watched[item[0]] = None

        self._say_perhaps_twice([wire.SUBMIT, 0, items, False, watch], answered)

    def _work_on(self) -> None:
        """Reports, renewals, credit; and what is owed to the dead."""
        simulation, rng = self.simulation, self.rng
        self._send_unsure()
        lists: list[list[list[Any]]] = [[], [], [], []]
        for held in self._jobs.values():
            if held.report is not None:
                kind, item = held.report
                lists[kind].append(item)
            elif simulation.faults_over or rng.random() < 0.3:
                lists[3].append([held.job_id, held.token])
        reported = [item for items in lists[:3] for item in items]
        room = _HANDS - (len(self._jobs) - len(reported)) - self._given
        credit = None
        if room > 0:
            ahead = rng.randint(0, room) if rng.random() < 0.3 else 0
            credit = [room - ahead, ahead]
            self._given += room
        if reported or lists[3] or credit is not None:
            note = [wire.WORK, 0, *lists, credit]
            self._say(note, lambda answer: self._reported(reported, answer))
            if reported and rng.random() < 0.1 and not simulation.faults_over:
                simulation.count("stream note doubled")
                self._say([wire.WORK, 0, *lists[:3], [], None])
        if rng.random() < 0.1:
            self._say([wire.VOUCH, 0, [self.name]])
        if simulation.dead_streams and rng.random() < 0.5:
            self._bury(*simulation.dead_streams[0])

    def _reported(self, reported: list[list[Any]], answer: list[Any]) -> None:
        """Whatever was answered, the worker has nothing to do with these jobs any more."""
        if answer[2] is not None:
            self.simulation.count(f"stream work refused: {answer[2][0]}")
            return
        for job_id, token, *_ in reported:
            held = self._jobs.get(job_id)
            if held is not None and held.token == token:
                del self._jobs[job_id]
        self.simulation.count("stream reported")

    def _bury(self, name: str, running: list[list[str]]) -> None:
        """A supervisor reports a death, until it knows that this was heard."""

        def answered(answer: list[Any]) -> None:
            self.simulation.require(answer[2] is None, f"a departure was refused: {answer[2]}")
            self.simulation.count("stream departed")
            if (name, running) in self.simulation.dead_streams:
                self.simulation.dead_streams.remove((name, running))

        self._say([wire.DEPART, 0, name, "it died", running], answered)

    def _look(self) -> None:
        self._say([wire.LOOK, 0, [self.simulation.any_id(self.rng)]])

    def _cancel(self) -> None:
        if self.rng.random() < 0.2:
            self._say([wire.CANCEL, 0, [self.simulation.any_id(self.rng)]])

    def _news(self) -> None:
        pieces = [[held.job_id, held.token, [1, 2], b"part"] for held in self._jobs.values()]
        if pieces:
            self._say([wire.NEWS, 0, pieces])

    # Hearing.

    def hear(self, note: list[Any]) -> None:
        match note[0]:
            case wire.ANSWER:
                self.simulation.require(
                    next(iter(self._waiting), None) == note[1], "an answer overtook another one"
                )
                _, then = self._waiting.pop(note[1])
                then(note)
            case wire.JOBS:
                for row in note[1]:
                    self._begin(Held(row))
            case wire.NOTICE:
                held = self._jobs.get(note[1])
                if held is not None and held.number == note[2]:
                    self.simulation.count("stream lease lost")
                    del self._jobs[note[1]]
            case wire.ENDED:
                self.simulation.count("stream ended")
                self._watched.pop(note[1][0], None)

    def _begin(self, held: Held) -> None:
        self.simulation.count("stream take")
        self._given -= 1
        self._jobs[held.job_id] = held
        delay_us = self.rng.choice((1_000, 50_000, 900_000))
        self.simulation.time.after(delay_us, lambda: self._finish(held))

    def _finish(self, held: Held) -> None:
        proof = [held.job_id, held.token]
        fate = 0.0 if self.simulation.faults_over else self.rng.random()
        if fate < 0.7:
            held.report = (0, [*proof, b"result", "binary"])
        elif fate < 0.9:
            held.report = (1, [*proof, "broken", "it broke", b"", fate < 0.85])
        else:
            held.report = (2, proof)

    # The ledger.

    def check_on_disk(self, line: Line, note: list[Any]) -> None:
        """Called when the server sends a note: what it says is on disk."""
        if note[0] == wire.ENDED:
            job_id, state = note[1][:2]
            stored = self.simulation.disk.job(job_id)
            if state == "unknown":
                told = job_id not in self._acknowledged
                self.simulation.require(told, f"{job_id} was acknowledged and is unknown")
            else:
                # Meanwhile it may have been put to work again, or, having failed, been cancelled.
                fine = stored is not None and (
                    stored.state.value == state
                    or stored.incarnation > 0
                    or (state, stored.state.value) == ("failed", "cancelled")
                )
                self.simulation.require(fine, f"{job_id} was reported as {state}, not {stored}")
        if note[0] != wire.ANSWER or note[2] is not None or line is not self.line:
            return
        asked, _ = self._waiting[note[1]]
        refused = {tuple(row[:2]) for row in note[3]} if asked[0] == wire.WORK else set()
        if asked[0] == wire.SUBMIT:
            others = {row[0] for row in note[3] if row[1]}
            for index, item in enumerate(asked[2]):
                there = index in others or self.simulation.disk.job(item[0]) is not None
                self.simulation.require(there, f"{item[0]} was acknowledged and is not on disk")
        elif asked[0] == wire.WORK:
            for index, (job_id, token, *_) in enumerate(asked[2]):
                if ("done", index) not in refused:
                    self._check_done(job_id, token)

    def _check_done(self, job_id: str, token: str) -> None:
        stored = self.simulation.disk.job(job_id)
        self.simulation.require(stored is not None, "a job that was handed out is unknown")
        assert stored is not None
        ended = [each.reason for each in stored.attempts if each.token == token]
        fine = EndReason.COMPLETED in ended or stored.state in FINISHED
        self.simulation.require(fine, f"a completion was accepted and is not on disk: {stored}")
