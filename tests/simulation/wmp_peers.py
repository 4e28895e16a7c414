"""WMP in the simulation: the real session and the real worker, over a net that loses things."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from manyhands.client.wmp_held import End, Held
from manyhands.client.wmp_rules import Rules
from manyhands.dispatch.sleepers import Sleeper
from manyhands.protocols.wmp.session import Settings, WmpSession
from manyhands.store.batch import Batch

if TYPE_CHECKING:
    from tests.simulation.simulate import Server, Simulation

_LOSS = 0.03
_LEASE_MS = 4_000


class Manager:
    """What the WMP listener puts together: the hub of a session, in one server process."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.simulation = server.simulation
        self.peers: dict[bytes, WmpWorker] = {}
        self.session = WmpSession(self, Settings(manager="M1", lease_ms=_LEASE_MS))
        server.dispatcher.on_batch.append(self._on_batch)

    def _on_batch(self, batch: Batch, _elapsed_ms: float) -> None:
        self.session.committed(batch.events)

    def receive(self, worker: "WmpWorker", frames: list[bytes]) -> None:
        self.peers[worker.routing_id] = worker
        self.session.receive([worker.routing_id, *frames])

    # The hub.

    @property
    def draining(self) -> bool:
        return self.server.dispatcher.draining

    def send(self, route, last, undelivered) -> None:
        worker = self.peers.get(route[0])
        if worker is None or worker.routing_id != route[0]:
            self.simulation.count("wmp unreachable")
            if undelivered is not None:
                # As the socket does it: with everything else that is said in this turn.
                self.server.loop.call_soon(undelivered)
            return
        worker.net(lambda: worker.hear(route[0], [*route[1:], last]))

    def report_dropped(self, kind: str, peer: bytes, sentence: str) -> None:
        raise AssertionError(f"{kind} from {peer!r}: {sentence}")

    def ask(self, command, settle=None, refused=None) -> None:
        told = settle or (None if refused is None else refused())
        self.simulation.ask(command, told, owed=settle is not None)

    def now(self) -> int:
        return self.server.clock.now()

    def job_id(self) -> str:
        return self.server.ids.job_id(self.now())

    def token(self) -> str:
        return self.server.ids.token()

    def ready_count(self, queue: str) -> int:
        return self.server.dispatcher.ready_count(queue)

    def operate(self, command, settle, peer) -> None:  # noqa: ARG002
        self.ask(command, settle)

    def refusal_to_work(self, queues) -> None:  # noqa: ARG002
        return None

    def has_work(self, queue: str) -> bool:
        return self.server.dispatcher.has_work((queue,))

    def queues_with_work(self) -> list[str]:
        return [name for name in self.server.store.live.queues if self.ready_count(name)]

    def sleep(self, queues, wake, holder=None) -> Callable[[], None]:
        sleeper = Sleeper(queues or None, wake, holder)
        waiters = self.server.dispatcher.sleepers
        waiters.sleep(sleeper)
        return lambda: waiters.leave(sleeper)

    def later(self, seconds: float, call) -> Callable[[], None]:
        if seconds <= 0.0:
            return self.server.loop.call_soon(call).cancel
        return self.server.loop.call_later(seconds, call).cancel


class WmpWorker:
    """Takes what it is given, works for a while, and sometimes dies or falls silent."""

    def __init__(self, simulation: "Simulation", number: int) -> None:
        self.simulation = simulation
        self.rng = random.Random(simulation.rng.getrandbits(64))
        self.number = number
        self.routing_id = b""
        self._lives = 0
        self._arrives_us = 0
        self._silent_until_us = 0
        self._server: Server | None = None
        self._begin_life()
        self._turn()

    def _begin_life(self) -> None:
        self._lives += 1
        self.routing_id = b"w%d/%d" % (self.number, self._lives)
        any_role = self.simulation.faults_over or self.rng.random() < 0.3
        roles = () if any_role else tuple(self.simulation.queues[: self.rng.randint(1, 3)])
        slots = self.rng.choice((1, 2, 4))
        self.rules = Rules(self, 1, roles=roles, slots=slots, chance=self.rng.random)
        self.is_honest = self.simulation.faults_over

    @property
    def now(self) -> int:
        return self.simulation.time.now_us // 1_000

    def net(self, arrive: Callable[[], None], loop=None) -> None:
        """What is sent arrives in order, or not at all."""
        time = self.simulation.time
        if not self.simulation.faults_over and self.rng.random() < _LOSS:
            self.simulation.count("wmp lost message")
            return
        self._arrives_us = max(self._arrives_us, time.now_us + self.rng.randint(50, 3_000))
        if loop is not None:
            loop.arrive(self._arrives_us - time.now_us, arrive)
        else:
            time.at(self._arrives_us, arrive)

    def hear(self, routing_id: bytes, frames: list[bytes]) -> None:
        if routing_id == self.routing_id and not self._is_silent():
            self.rules.receive(0, frames, self.now)
            self.rules.turn(self.now)

    def _is_silent(self) -> bool:
        return self.simulation.time.now_us < self._silent_until_us

    def _turn(self) -> None:
        simulation, rng = self.simulation, self.rng
        if simulation.is_over:
            return
        simulation.steps_done += 1
        simulation.time.after(rng.randint(5_000, 300_000), self._turn)
        server = simulation.server
        if not server.ready:
            return
        if server is not self._server:
            self._server = server
            self.rules.connected(0, self.now)
        if simulation.faults_over and not self.is_honest:
            self._begin_life()
        elif not simulation.faults_over:
            fate = rng.random()
            if fate < 0.01:
                simulation.count("wmp death")
                self._begin_life()
            elif fate < 0.03:
                self._silent_until_us = simulation.time.now_us + rng.randint(1, 9) * 1_000_000
        if not self._is_silent():
            self.rules.turn(self.now)

    # The outside of the rules.

    def send(self, _link: int, frames: list[bytes]) -> bool:
        server = self.simulation.server
        if not server.ready:
            return False
        self.net(lambda: server.wmp.receive(self, frames), server.loop)
        return True

    def begin(self, job: Held) -> None:
        self.simulation.count("wmp take")
        rules = self.rules
        delay_us = self.rng.choice((1_000, 50_000, 900_000))
        self.simulation.time.after(delay_us, lambda: self._finish(rules, job))

    def _finish(self, rules: Rules, job: Held) -> None:
        if rules is not self.rules or self.simulation.is_over:
            return
        if not self.simulation.faults_over and self.rng.random() < 0.2:
            rules.progress(job, self.rng.randint(0, 9), 9, None, self.now)
            self.simulation.time.after(2_000_000, lambda: self._finish(rules, job))
            return
        ends = (End.OK, End.OK, End.OK, End.ERROR, End.FAIL, End.REFUSED)
        end = End.OK if self.simulation.faults_over else self.rng.choice(ends)
        rules.finish(job, end, self.rng.randbytes(4), self.now)
        rules.turn(self.now)

    def cancel(self, _job: Held) -> None:
        self.simulation.count("wmp cancelled")

    def recorded(self, job: Held, reason: bytes) -> None:
        """What was recorded is on disk, and what was handed out was known to it."""
        self.simulation.count(f"wmp {reason.decode()}")
        stored = self.simulation.disk.job(job.job_id.decode())
        self.simulation.require(stored is not None, "a job that was handed out is unknown")
        assert stored is not None
        if reason == b"recorded":
            ended = [each for each in stored.attempts if each.token == job.lease.hex()]
            self.simulation.require(bool(ended), "a recorded result is not on disk")
