"""A WMP manager on a desk: a memory store, a clock that is moved by hand, peers by name."""

from collections.abc import Callable, Sequence
from typing import Any

from manyhands.dispatch.sleepers import Sleeper, Sleepers
from manyhands.engine.claim import Gate
from manyhands.engine.decide import decide as engine_decides
from manyhands.engine.effects import Effects
from manyhands.engine.invariants import check_job
from manyhands.model.commands import Command as EngineCommand
from manyhands.model.commands import NewJob, Submit, Tick
from manyhands.model.job import Job
from manyhands.model.policy import TERMS
from manyhands.model.replies import Refusal, SubmittedMany, Why
from manyhands.protocols.wmp.codec import (
    Command,
    Control,
    Packet,
    Path,
    decode,
    encode,
    pack,
    unpack,
)
from manyhands.protocols.wmp.session import Settings, WmpSession
from manyhands.store.memory import MemoryStore

START = 1_700_000_000_000


class Heard:
    """A message that the manager sent."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        packet = unpack(frames)
        self.route, self.trail, self.payload = packet.route, packet.trail, packet.payload
        self.control: Control = decode(packet.control)
        self.command = self.control.command

    def __getitem__(self, name: str) -> str | None:
        value = self.control.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def raw(self, name: str) -> bytes:
        return self.control.need(name.encode())


def properties(values: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    found = []
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            raw = each if isinstance(each, bytes) else str(each).encode()
            found.append((name.rstrip("_").replace("_", "-").encode(), raw))
    return found


class Desk:
    """The hub of a session, and its peers. Commits are put off while ``holding``."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.clock = START
        self.draining = False
        self.holding = False
        self.dropped: list[tuple[str, bytes]] = []
        self.unreachable: set[bytes] = set()
        self.sent: dict[bytes, list[Heard]] = {}
        self.asked: list[EngineCommand] = []
        self.waiters = Sleepers()
        self._put_off: list[Callable[[], None]] = []
        self._ids = 0
        self._numbers = 0
        self._timers: dict[int, tuple[int, Callable[[], None]]] = {}
        self.session = WmpSession(self, Settings(**{"manager": "M1", **settings}))

    # The hub.

    def send(self, route, last, undelivered) -> None:
        if route[0] in self.unreachable:
            if undelivered is not None:
                undelivered()
            return
        self.sent.setdefault(route[0], []).append(Heard([*route[1:], last]))

    def report_dropped(self, kind: str, peer: bytes, sentence: str) -> None:
        assert sentence
        self.dropped.append((kind, peer))

    def ask(self, command, settle=None, refused=None) -> None:
        self.asked.append(command)
        if self.draining and type(command).__name__ in ("Submit", "Claim"):
            reply, effects = Refusal(Why.SHUTTING_DOWN, "stopping"), None
        else:
            reply, effects = engine_decides(command, self.store.load(command), self.clock)
        if effects is not None and not effects.is_empty():
            self.store.write(effects)
            for job in effects.jobs.values():
                check_job(job)
            self.store.begin_commit(self.clock)
        if settle is None and refused is not None and isinstance(reply, Refusal):
            settle = refused()

        def tell() -> None:
            if settle is not None:
                settle(reply)
            counts: dict[str, int] = {}
            for event in effects.events if effects is not None else ():
                self.session.committed([event])
                if event.state.value == "ready":
                    counts[event.queue] = counts.get(event.queue, 0) + 1
            for queue, count in counts.items():
                if self.waiters.is_wanted(queue) and self.has_work(queue):
                    self.waiters.wake(queue, count)
            self._call_soon()

        if self.holding:
            self._put_off.append(tell)
        else:
            tell()

    def commit(self) -> None:
        """Let go of all answers that were put off."""
        self.holding = False
        put_off, self._put_off = self._put_off, []
        for tell in put_off:
            tell()

    def now(self) -> int:
        return self.clock

    def job_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def token(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def ready_count(self, queue: str) -> int:
        known = self.store.live.queues.get(queue)
        return known.ready.count if known is not None else 0

    def operate(self, command, settle, peer) -> None:  # noqa: ARG002
        self.ask(command, settle)

    def refusal_to_work(self, queues) -> None:  # noqa: ARG002
        return None

    def has_work(self, queue: str) -> bool:
        return Gate(Effects(self.store.live, self.clock)).first(queue) is not None

    def queues_with_work(self) -> list[str]:
        return [queue for queue in self.store.live.queues if self.ready_count(queue)]

    def sleep(self, queues, wake, holder=None) -> Callable[[], None]:
        sleeper = Sleeper(queues or None, wake, holder)
        self.waiters.sleep(sleeper)
        return lambda: self.waiters.leave(sleeper)

    def later(self, seconds: float, call) -> Callable[[], None]:
        self._numbers += 1
        number = self._numbers
        self._timers[number] = (self.clock + int(seconds * 1000), call)
        return lambda: self._timers.pop(number, None)

    def _call_soon(self) -> None:
        for number, (at, call) in list(self._timers.items()):
            if at <= self.clock and self._timers.pop(number, None) is not None:
                call()

    # What tests do.

    def pass_time(self, ms: int) -> None:
        """In small steps, so that timers follow each other."""
        end = self.clock + ms
        while self.clock < end:
            self.clock = min(end, self.clock + 100)
            self.ask(Tick(100))
            self._call_soon()

    def add(self, queue: str = "mail", payload: bytes = b"x", **fields: Any) -> str:
        """A job from anywhere."""
        job_id = self.job_id()
        fields.setdefault("terms", TERMS["wmp"])
        item = NewJob(job_id=job_id, queue=queue, payload=payload, **fields)
        replies: list[Any] = []
        self.ask(Submit((item,)), replies.append)
        if not self.holding:
            assert type(replies[0]) is SubmittedMany
        return job_id

    def job(self, job_id: str) -> Job:
        job = self.store.live.live_job(job_id) or self.store.find(job_id)
        assert job is not None
        return job

    def tell(self, *frames: bytes) -> None:
        """A message as it comes from the socket."""
        self.session.receive(list(frames))

    def say(
        self,
        peer: bytes,
        command: Command,
        payload: bytes | None = None,
        trail: Path = (),
        **values: Any,
    ) -> None:
        control = encode(command, *properties(values))
        self.tell(peer, *pack(Packet((), trail, control, payload)))

    def heard(self, peer: bytes) -> list[Heard]:
        """Everything sent to a peer since this was last asked."""
        return self.sent.pop(peer, [])

    def commands(self, peer: bytes) -> list[str]:
        return [heard.command.name for heard in self.heard(peer)]

    def one(self, peer: bytes, command: Command) -> Heard:
        (heard,) = self.heard(peer)
        assert heard.command is command, heard.command
        return heard

    def take(self, peer: bytes, role: str = "mail", lock: str = "L1") -> Heard:
        """GIVE, and the TAKE that answers it."""
        self.heard(peer)
        self.say(peer, Command.GIVE, lock=lock, role=role)
        return self.one(peer, Command.TAKE)

    def done(self, peer: bytes, taken: Heard, payload: bytes | None = b"R", **values: Any) -> None:
        known = {"manager": "M1", "job": taken.raw("job"), "lease": taken.raw("lease")}
        self.say(peer, Command.DONE, payload, **{**known, "status": "ok", "ack": 1, **values})

    def status(
        self, peer: bytes, taken: Heard, payload: bytes | None = None, **values: Any
    ) -> None:
        known = {"manager": "M1", "job": taken.raw("job"), "lease": taken.raw("lease")}
        self.say(peer, Command.STATUS, payload, **{**known, **values})

    def reason(self, peer: bytes) -> str | None:
        return self.one(peer, Command.CANCEL)["reason"]
