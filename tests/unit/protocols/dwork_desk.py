"""A dwork endpoint on a desk: a memory store, a clock that is moved by hand, peers by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manyhands.engine.decide import decide
from manyhands.engine.invariants import check_job
from manyhands.model.commands import Command, Tick
from manyhands.model.job import Holder, Job, State
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.dwork.codec import Dep, Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode
from manyhands.protocols.dwork.session import DworkSession, Settings
from manyhands.store.memory import MemoryStore

START = 1_700_000_000_000


def a_task(name: str, *preds: str, **fields: Any) -> Task:
    return Task(name=name, origin="client", preds=tuple(map(Dep, preds)), **fields)


class Desk:
    """The hub of a session, and its peers."""

    def __init__(self, queue: str = "dwork", store: MemoryStore | None = None, **settings: Any):
        self.store = store or MemoryStore()
        self.clock = START
        self.draining = False
        self.dropped_reported = 0
        self.unreachable: set[bytes] = set()
        self.replies: dict[bytes, list[bytes]] = {}
        self.asked: list[Command] = []
        self._ids = 0
        self._sleepers: dict[int, Callable[[], None]] = {}
        self._timers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._numbers = 0
        self.queue = queue
        self.session = DworkSession(self, Settings(queue=queue, **settings))

    # The hub.

    def send(self, route, body, undelivered) -> None:
        if route[0] in self.unreachable:
            if undelivered is not None:
                undelivered()
            return
        assert route[-1] == b""
        self.replies.setdefault(route[0], []).append(body)

    def send_alone(self, route, body, undelivered) -> None:
        self.send(route, body, undelivered)

    def report_dropped(self, count: int) -> None:
        self.dropped_reported = count

    def ask(self, command, settle=None, refused=None) -> None:
        self.asked.append(command)
        reply, effects = decide(command, self.store.load(command), self.clock)
        if self.draining and type(command).__name__ in ("Submit", "Resume", "Claim"):
            reply = Refusal(Why.SHUTTING_DOWN, "stopping")
        elif not effects.is_empty():
            self.store.write(effects)
            for job in effects.jobs.values():
                check_job(job)
            self.store.begin_commit(self.clock)
        if settle is None and refused is not None and isinstance(reply, Refusal):
            settle = refused()
        if settle is not None:
            settle(reply)
        if any(event.state is State.READY for event in effects.events):
            for sleeper in list(self._sleepers.values()):
                sleeper()
        if not effects.is_empty():
            self.session.look_up_from_work()

    def now(self) -> int:
        return self.clock

    def job_id(self) -> str:
        self._ids += 1
        return f"{len(self.queue):02x}{self._ids:030x}"

    def token(self) -> str:
        self._ids += 1
        return f"token-{self._ids}"

    def counts(self, queue: str) -> Mapping[State, int] | None:
        known = self.store.live.queues.get(queue)
        return known.counts if known is not None else None

    def endings(self, queue: str) -> Mapping[State, int]:
        return self.store.live.graph_endings(queue)

    def known(self, name: str) -> Job | None:
        return self.store.live.job(f"{self.queue}\0{name}")

    def held_count(self, queue: str, *, exactly: bool) -> int:  # noqa: ARG002
        held = set(self.store.live.namespaces.lost.get(queue, ()))
        lost_count = len(held)
        for _ in self.store.live.jobs:  # as long as a path may be
            held |= {
                job.job_id
                for job in self.store.live.live_jobs()
                if any(
                    (other := self.store.live.job(key)) is not None and other.job_id in held
                    for key in job.waits_for
                )
            }
        return len(held) - lost_count

    def leased_ids(self, holder: Holder) -> Sequence[str]:
        return self.store.live.leased_by_holder(holder)

    def name_of(self, key: str) -> str:
        job = self.store.live.live_job(key)
        return (job.name or key) if job is not None else key.rpartition("\0")[2]

    def forgotten_count(self, namespace: str) -> int:
        return self.store.live.forgotten_count(namespace)

    def sees(self, job) -> bool:  # noqa: ARG002
        return True

    def find_ended(self, namespace: str, names: Sequence[str], then) -> None:
        then(self.store.find_ended(namespace, names))

    def sleep(self, queue: str, wake, holder=None) -> Callable[[], None]:  # noqa: ARG002
        return self._remember(self._sleepers, wake)

    def later(self, seconds: float, call) -> Callable[[], None]:
        return self._remember(self._timers, (self.clock + int(seconds * 1000), call))

    def _remember(self, table: dict[int, Any], value: Any) -> Callable[[], None]:
        self._numbers += 1
        number = self._numbers
        table[number] = value
        return lambda: table.pop(number, None)

    # What tests do.

    def pass_time(self, ms: int) -> None:
        self.clock += ms
        self.ask(Tick(100))
        for at, call in list(self._timers.values()):
            if at <= self.clock:
                call()

    def tell(self, frames: Sequence[bytes]) -> None:
        """A message as it comes from the socket."""
        self.session.receive(list(frames))

    def post(self, peer: bytes, kind: Kind, *tasks: Task, **fields: Any) -> None:
        self.tell([peer, b"", encode(Query(kind=kind, tasks=tasks, **fields))])

    def read(self, peer: bytes = b"p") -> Query | None:
        """The next reply to a peer; None: there is none yet."""
        waiting = self.replies.get(peer)
        return decode(waiting.pop(0)) if waiting else None

    def raw(self, body: bytes, peer: bytes = b"p") -> bytes:
        """The one reply to a body, as bytes."""
        self.tell([peer, b"", body])
        (reply,) = self.replies.pop(peer)
        return reply

    def query(self, kind: Kind, *tasks: Task, **fields: Any) -> Query:
        """One request, its one reply."""
        self.post(b"p", kind, *tasks, **fields)
        reply = self.read()
        assert reply is not None, "there is no reply"
        assert not self.replies.get(b"p"), "there are two replies"
        return reply

    def create(self, *tasks: Task) -> Kind:
        return self.query(Kind.CREATE, *tasks).kind

    def steal(self, location: str = "w1", n: int | None = None) -> list[str] | Kind:
        """Names that were handed out, or the answer without any."""
        reply = self.query(Kind.STEAL, location=location, n=n)
        return [task.name for task in reply.tasks] if reply.kind is Kind.TRANSFER else reply.kind

    def complete(self, *names: str, location: str = "w1") -> Kind | list[str]:
        """OK, or the names that were not found."""
        tasks = [a_task(name) for name in names]
        reply = self.query(Kind.COMPLETE, *tasks, location=location)
        if reply.kind is Kind.NOT_FOUND:
            return [task.name for task in reply.tasks]
        return reply.kind

    def transfer(self, *tasks: Task, location: str = "w1") -> Kind:
        return self.query(Kind.TRANSFER, *tasks, location=location).kind

    def status(self) -> tuple[int, int]:
        """Active and ready, as the sentence says."""
        reply = self.query(Kind.OK)
        assert reply.name is not None
        words = reply.name.split()
        assert reply.name == f"dhub: {words[1]} active tasks, {words[4]} ready."
        assert reply.n == int(words[4])
        return int(words[1]), int(words[4])

    def job(self, name: str) -> Job:
        job = self.store.live.job(f"{self.queue}\0{name}")
        assert job is not None, f"there is no {name}"
        return job

    def state(self, name: str) -> State:
        return self.job(name).state
