"""Several servers in one virtual world: a database that knows who lives and who decides, links that
are slow, break and are cut, servers that crash, stand still and return.
"""

import random
from collections import Counter
from collections.abc import Callable

from manyhands.cluster.clock import STEP_MS, DatabaseClock
from manyhands.cluster.contract import ANOTHER, REFUSED, FencedError
from manyhands.cluster.link import Hello, Link, LinkError, Message, OtherServerError
from manyhands.cluster.member import Member
from manyhands.cluster.membership import Beat, Tenure
from manyhands.cluster.router import Router
from manyhands.model import commands as c
from manyhands.model import replies as r
from manyhands.model.job import FINISHED, Holder, State
from manyhands.store.mirror import Mirror, Original
from tests.simulation.world import (
    Disk,
    FaultyStore,
    Image,
    SeededIds,
    ServerLoop,
    Time,
)

SECRET = b"known to all"
LEASE_MS = 5_000


class Base:
    """The database: its tables, and the rows that say who lives and who decides."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.disk = Disk()
        self.rows: dict[int, dict] = {}
        self.owner: int | None = None
        self.epoch = 0
        self.is_away = False
        self._last = 0

    def join(self, server: str, incarnation: str, address: str) -> int:
        self._last += 1
        self.rows[self._last] = {
            "server": server,
            "incarnation": incarnation,
            "address": address,
            "beats": 0,
            "state": "serving",
            "beat_ms": self.time.now_us / 1000,
            "load": "",
        }
        return self._last

    def is_closed(self, tenure: int) -> bool:
        return tenure not in self.rows

    def close(self, tenure: int) -> None:
        del self.rows[tenure]

    def give(self, tenure: int | None) -> None:
        self.owner = tenure
        self.epoch += 1

    def beat(self, tenure: int, load: str) -> Beat:
        if self.is_closed(tenure):
            raise FencedError("another server has taken over")
        row = self.rows[tenure]
        row["beats"] += 1
        row["load"] = load
        row["beat_ms"] = self.time.now_us / 1000
        tenures = tuple(
            Tenure(
                number,
                each["server"],
                each["incarnation"],
                each["address"],
                each["beats"],
                each["state"],
                load=each["load"],
            )
            for number, each in self.rows.items()
        )
        now = self.time.wall_ms + self.time.now_us // 1000
        return Beat(tenures, self.owner, self.epoch, now)


class SharedStore(FaultyStore):
    """The store of one server on the database. The live jobs are filled when it takes over."""

    def __init__(self, base: Base, tenure: int, loop: ServerLoop, rng: random.Random) -> None:
        self.base = base
        self.tenure = tenure
        self.on_fenced: Callable[[], None] = lambda: None
        super().__init__(base.disk, loop, rng, (200, 3_000))
        self.live.clear()

    def _read_off(self) -> None:
        """Nothing is known yet."""

    def fill(self) -> None:
        self.live.clear()
        super()._read_off()

    def mirror(self) -> Mirror:
        return Mirror(self.live)

    def original(self) -> Original:
        return Original(self.live)

    def applied_number(self) -> int:
        return self.durable

    def applied_seq(self) -> int:
        return self.last_seq()

    def hurry(self) -> int:
        return self.durable

    def apply_lag_seconds(self) -> float:
        return 0.0

    def follow(self, last_seq: int, applied_seq: int) -> None:
        """Everything is read from the disk."""

    def whole(self, job):
        return job  # payloads stay in memory here

    def _finish_first(self) -> None:
        if self.base.is_away:
            self._loop.time.after(50_000, self._finish_first)
            return
        if self.base.is_closed(self.tenure):
            self._loop.arrive(0, self.on_fenced)
            return
        super()._finish_first()

    def _keep(self, image: Image) -> None:
        if self.base.is_closed(self.tenure):
            return  # the journal is closed: this was never acknowledged
        super()._keep(image)


class SkewedClock(DatabaseClock):
    """That of a server whose machine shows another time, and runs faster or slower."""

    def __init__(self, time: Time, rng: random.Random) -> None:
        self._time = time
        self._rate = 1 + rng.uniform(-0.02, 0.02)
        self._since_ms = rng.uniform(0, 1e9)
        self.machine_ms = time.wall_ms + rng.uniform(-12, 12) * 3_600_000
        super().__init__(time.wall_ms + time.now_us / 1000 - self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return self._since_ms + self._time.now_us / 1000 * self._rate

    def machine_ahead_ms(self) -> int:
        return int(self.machine_ms - self._time.wall_ms)


class Shared:
    """The database as one server talks to it."""

    def __init__(self, server: "Node") -> None:
        self._server = server
        self._base = server.world.base
        self.tenure = server.tenure
        self.cluster = "one"

    def _later(self, work: Callable, done: Callable) -> None:
        """Takes effect, if at all, while the call is under way; the answer comes later."""
        server, base, world = self._server, self._base, self._server.world

        def act() -> None:
            if not server.loop.alive:
                return
            if base.is_away:
                found: object = ConnectionError("the database is away")
            else:
                try:
                    found = work()
                except FencedError as error:
                    found = error
            server.loop.arrive(world.rng.randint(100, 2_000), lambda: done(found))

        world.time.after(world.rng.randint(100, 2_000), act)

    def beat(self, load, done) -> None:
        self._later(lambda: self._base.beat(self.tenure, load), done)

    def take_over(self, dead, done) -> None:
        base = self._base

        def work() -> bool:
            row = base.rows.get(dead.tenure)
            if base.is_closed(self.tenure) or row is None or row["beats"] != dead.beats:
                return False
            world = self._server.world
            world.outage_ms = base.time.now_us / 1000 - row["beat_ms"]
            base.close(dead.tenure)
            if base.owner == dead.tenure:
                base.give(self.tenure)
            return True

        self._later(work, done)

    def claim(self, done) -> None:
        base = self._base

        def work() -> bool:
            if base.owner in base.rows or base.is_closed(self.tenure):
                return False
            base.give(self.tenure)
            return True

        self._later(work, done)

    def load(self, done) -> None:
        def work() -> int:
            if self._base.owner != self.tenure:
                raise FencedError("another server has taken over")
            return int(self._server.world.outage_ms)

        def filled(found) -> None:
            if not isinstance(found, Exception):
                self._server.store.fill()
            done(found)

        self._later(work, filled)

    def hand_over(self, to, done, *, leaves) -> None:
        base = self._base

        def work() -> bool:
            if base.owner != self.tenure:
                return False
            base.give(to if to in base.rows else None)
            if leaves:
                base.rows[self.tenure]["state"] = "leaving"
            return True

        self._later(work, done)

    def leave(self) -> None:
        if not self._base.is_closed(self.tenure):
            self._base.close(self.tenure)


class End:
    """One end of a connection between two servers."""

    def __init__(self, node: "Node", link: Link, *, is_caller: bool) -> None:
        self.node = node
        self.link = link
        self.is_caller = is_caller
        self.other: End | None = None
        self.is_lost = False
        self.arrives_us = 0
        self.on_open: Callable = lambda _: None
        self.on_message: Callable = lambda _peer, _message: None
        self.on_lost: Callable = lambda _peer, _reason: None
        self.announced = False

    @property
    def hello(self) -> Hello:
        assert self.link.peer is not None
        return self.link.peer

    def send(self, message: Message) -> None:
        self.link.send(message)
        self.flush()

    def flush(self) -> None:
        data = self.link.take()
        other = self.other
        assert other is not None
        if not data or self.is_lost:
            return
        world = self.node.world
        delay_us = world.rng.randint(50, 3_000)
        # Nothing overtakes what was sent before.
        self.arrives_us = max(world.time.now_us + delay_us, self.arrives_us)
        other.node.loop.arrive(self.arrives_us - world.time.now_us, lambda: other.feed(data))

    def feed(self, data: bytes) -> None:
        if self.is_lost:
            return
        if self.node.world.is_cut(self.node, self.other.node):
            self.lose("it timed out")  # nothing can be missing in the middle of a stream
            return
        try:
            messages = self.link.feed(data)
        except OtherServerError:
            self.lose(ANOTHER)
            return
        except LinkError as error:
            self.lose(str(error))
            return
        self.flush()
        if self.link.is_open and not self.announced:
            self.announced = True
            self.on_open(self)
        for message in messages:
            if not self.is_lost:
                self.on_message(self, message)

    def close(self, sentence: str) -> None:  # noqa: ARG002
        self.lose("closed")

    def lose(self, reason: str) -> None:
        for end in (self, self.other):
            if end is not None and not end.is_lost:
                end.is_lost = True
                end.node.loop.arrive(200, lambda end=end: end.tell_loss(reason))

    def tell_loss(self, reason: str) -> None:
        if self.announced:
            self.on_lost(self, reason)
        elif self.is_caller:
            self.on_lost(None, reason)


class Node:
    """One server process."""

    def __init__(self, world: "Cluster", name: str) -> None:
        self.world = world
        self.name = name
        self.loop = ServerLoop(world.time)
        self.clock = SkewedClock(world.time, world.rng)
        self.ids = SeededIds(world.rng)
        self.tenure = world.base.join(name, self.ids.incarnation, name)
        self.store = SharedStore(world.base, self.tenure, self.loop, world.rng)
        self.store.on_fenced = lambda: self.fence("the journal is closed")
        self.ends: list[End] = []
        self.router = Router(
            self.store,
            self.clock,
            self.loop,
            self.ids.incarnation,
            on_failure=lambda text: world.broken.append(f"{name}: {text}"),
            check_invariants=True,
        )
        self.member = Member(
            self.router,
            Shared(self),
            self,
            lease_ms=LEASE_MS,
            on_fenced=self.fence,
            heed=self.clock.heed,
            machine_ahead_ms=self.clock.machine_ahead_ms,
        )
        self.member.start()
        self.keep_house()
        self.fenced: str | None = None

    @property
    def alive(self) -> bool:
        return self.loop.alive

    def keep_house(self) -> None:
        self.router.keep_house()
        drift_ms = self.clock.drift_ms()
        if abs(drift_ms) > STEP_MS:
            self.clock.follow(drift_ms)
            self.router.prolong(drift_ms)
        self.loop.call_later(1.0, self.keep_house)

    def hello(self, wanted: str = "") -> Hello:
        nonce = self.world.rng.randbytes(32)
        return Hello(1, 1, "one", self.tenure, self.ids.incarnation, self.name, nonce, wanted)

    def call(self, address, incarnation, on_open, on_message, on_lost) -> None:
        world = self.world
        other = world.nodes.get(address)

        def arrive() -> None:
            if world.is_cut(self, other):
                self.loop.call_later(1.0, lambda: on_lost(None, "timed out"))
            elif other is None or not other.alive:
                on_lost(None, REFUSED)
            else:
                here = End(
                    self, Link(self.hello(incarnation), SECRET, calling=True), is_caller=True
                )
                there = End(other, Link(other.hello(), SECRET, calling=False), is_caller=False)
                here.other, there.other = there, here
                here.on_open, here.on_message, here.on_lost = on_open, on_message, on_lost
                there.on_open = other.member.welcome
                there.on_message = other.member.hear_guest
                there.on_lost = lambda peer, _reason: other.member.lose_guest(peer)
                self.ends.append(here)
                other.ends.append(there)
                here.flush()
                there.flush()

        self.loop.call_later(0.0005, arrive)

    def crash(self) -> None:
        self.loop.alive = False
        self.store.crash()
        for end in self.ends:
            end.lose("the peer is gone")

    def fence(self, sentence: str) -> None:
        self.fenced = sentence
        self.world.fenced += 1
        self.crash()

    def stall(self, seconds: float) -> None:
        self.loop.stalled_until_us = self.world.time.now_us + int(seconds * 1e6)


class Cluster:
    """The world."""

    def __init__(self, seed: int, names: str = "abc") -> None:
        self.rng = random.Random(seed)
        self.time = Time()
        self.base = Base(self.time)
        self.nodes: dict[str, Node] = {}
        self.cuts: set[frozenset[str]] = set()
        self.broken: list[str] = []
        self.fenced = 0
        self.outage_ms = 0.0
        self.ledger = Ledger(self)
        for name in names:
            self.start(name)

    def start(self, name: str) -> Node:
        node = self.nodes[name] = Node(self, name)
        return node

    def is_cut(self, one: Node, other: Node | None) -> bool:
        return other is not None and frozenset((one.name, other.name)) in self.cuts

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self.cuts.clear()

    def run(self, seconds: float) -> None:
        self.time.run(int(seconds * 1e6))
        assert not self.broken, self.broken

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        began_us = self.time.now_us
        while not condition():
            assert self.time.now_us - began_us < seconds * 1e6, "it never came true"
            self.run(0.01)
        return (self.time.now_us - began_us) / 1e6

    def owner(self) -> Node | None:
        return next((n for n in self.nodes.values() if n.alive and n.router.decides), None)

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def is_settled(self) -> bool:
        return all(node.member.is_ready for node in self.living())


class Ledger:
    """Clients at all servers, and what they were told."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.submitted: dict[str, str] = {}  # acknowledged
        self.completed: Counter[str] = Counter()  # acknowledged
        self.handed_out: dict[str, set[str]] = {}
        self.refused: Counter[r.Why] = Counter()
        self.ended: Counter[str] = Counter()
        self.open = 0
        self.out_of_order = 0

    def ask(self, node: Node, command, settle=None) -> None:
        self.open += 1
        was = node

        def settled(reply) -> None:
            if not was.alive:
                return
            self.open -= 1
            if isinstance(reply, r.Refusal):
                self.refused[reply.why] += 1
            if settle is not None:
                settle(reply)

        node.router.ask(command, settled)

    def submit(self, node: Node, queue: str = "q", *, waiter: str | None = None) -> str:
        job_id = node.ids.job_id(node.clock.now())
        item = c.NewJob(job_id=job_id, queue=queue, payload=b"x", waiter=waiter)

        def settle(reply) -> None:
            if isinstance(reply, r.SubmittedMany):
                assert reply.items[0].job.job_id == job_id
                self.submitted[job_id] = queue

        self.ask(node, c.Submit((item,)), settle)
        return job_id

    def work(self, node: Node, queue: str = "q", count: int = 1) -> None:
        tokens = tuple(node.ids.token() for _ in range(count))
        holder = Holder("native", f"{node.name}{self.world.rng.randint(0, 3)}")

        def settle(reply) -> None:
            if isinstance(reply, r.Claimed):
                for job in reply.jobs:
                    self.handed_out.setdefault(job.job_id, set()).add(job.lease.token)
                    self._complete(node, job)

        command = c.Claim(queues=(queue,), holder=holder, tokens=tokens, term_ms=60_000)
        self.ask(node, command, settle)

    def _complete(self, node: Node, job) -> None:
        def settle(reply) -> None:
            if isinstance(reply, r.Changed) and not reply.repeated:
                self.completed[job.job_id] += 1

        proof = c.ByToken(job.lease.token)
        command = c.Complete(job_id=job.job_id, proof=proof, result=b"done")
        delay = self.world.rng.uniform(0.0, 0.05)
        node.loop.call_later(delay, lambda: self.ask(node, command, settle))

    def check(self) -> None:
        """From outside: what was acknowledged is there, and was done once."""
        rows = {job_id: row.job() for job_id, row in self.world.base.disk.rows.items()}
        for job_id in self.submitted:
            assert job_id in rows, f"{job_id} was acknowledged and is lost"
        for job_id, count in self.completed.items():
            assert count == 1, f"{job_id} was completed {count} times"
            assert rows[job_id].state is State.COMPLETED, f"{job_id}: a completion is lost"
        seqs = [seq for seq, _ in self.world.base.disk.events]
        assert seqs == list(range(1, len(seqs) + 1)), "events have gaps or are out of order"
        live = [job for job in rows.values() if job.state not in FINISHED]
        for job in live:
            assert job.job_id not in self.completed
