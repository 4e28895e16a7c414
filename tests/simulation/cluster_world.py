"""Several servers in one virtual world: a database that knows who lives and who decides, links that
are slow, break and are cut, servers that crash, stand still and return.
"""

import copy
import random
from collections.abc import Callable, Sequence

from manyhands.cluster.clock import STEP_MS, DatabaseClock
from manyhands.cluster.contract import ANOTHER, REFUSED, FencedError
from manyhands.cluster.link import Hello, Link, LinkError, OtherServerError, Sent
from manyhands.cluster.member import Member
from manyhands.cluster.membership import Beat, Tenure
from manyhands.cluster.router import Router
from manyhands.engine.effects import Effects
from manyhands.model.commands import Command
from manyhands.store.mirror import Mirror, Original
from tests.simulation import checkers
from tests.simulation.world import (
    SETTINGS,
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
        self.has_lost = False  # some of what was acknowledged, at some time
        self._last = 0
        self._copied: tuple | None = None  # what a standby has that follows no more
        self._tails: dict[int, list[Image]] = {}  # what each server has written since
        # Jobs of records that were lost, by who wrote them; what is written again is taken out.
        self._lost: dict[int, set[str]] = {}

    def part(self) -> None:
        """From now on the standby follows no more."""
        self._copied = copy.deepcopy((self.disk, self.rows, self.owner, self.epoch))
        self._tails = {}

    @property
    def is_parted(self) -> bool:
        return self._copied is not None

    def note(self, tenure: int, image: Image) -> None:
        """A record is in the journal."""
        if self.is_parted:
            self._tails.setdefault(tenure, []).append(image)

    def fail_over(self) -> dict[int, list[Image]]:
        """The standby is promoted. Gives what it lacks, by the server that wrote it."""
        assert self._copied is not None
        (disk, rows, self.owner, self.epoch), self._copied = self._copied, None
        vars(self.disk).update(vars(disk))
        self.rows = rows
        tails, self._tails = self._tails, {}
        self.has_lost = self.has_lost or bool(tails)
        for tenure, tail in tails.items():
            ids = {job_id for image in tail for job_id, *_ in image.jobs}
            self._lost[tenure] = self._lost.get(tenure, set()) | ids
        return tails

    def find(self, tenure: int) -> None:
        """A server has written again what was lost of it."""
        self._lost.pop(tenure, None)

    def lost_ids(self) -> set[str]:
        """Jobs of records that nobody wrote again."""
        return set().union(*self._lost.values())

    def now_ms(self) -> int:
        """What its clock shows."""
        return self.time.wall_ms + self.time.now_us // 1000

    def join(self, server: str, incarnation: str, address: str) -> int:
        self._last += 1
        self.rows[self._last] = {
            "server": server,
            "incarnation": incarnation,
            "address": address,
            "beats": 0,
            "state": "serving",
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
        return Beat(tenures, self.owner, self.epoch, self.now_ms())


class SharedStore(FaultyStore):
    """The store of one server on the database. The live jobs are filled when it takes over."""

    def __init__(self, base: Base, tenure: int, loop: ServerLoop, rng: random.Random) -> None:
        self.base = base
        self.tenure = tenure
        self.on_fenced: Callable[[], None] = lambda: None
        self.has_lost_touch = False  # the database has failed over, and was not looked at since
        self.record = checkers.Record()  # of the time in which this server decides
        super().__init__(base.disk, loop, rng, (200, 3_000), 1 << 62)
        self.live.clear()
        self.on_load = self._loaded
        self.on_write = self._write
        self.on_written = self._written
        self.on_durable = lambda batch: checkers.note_durable(self.record, batch)

    def _read_off(self) -> None:
        """Nothing is known yet."""

    def fill(self) -> None:
        self.live.clear()
        super()._read_off()
        record = self.record = checkers.Record()
        record.jobs = {job_id: row.job() for job_id, row in self.disk.rows.items()}
        record.events = [body for _, body in self.disk.events]
        record.settings = {
            name: dict(getattr(self.live, name)) if name != "queues" else {} for name in SETTINGS
        }
        record.forget_undecided(self.disk, 0)

    # What is decided is looked at, as in the world of one server.

    def _loaded(self, command: Command) -> None:
        self.record.command = command

    def _write(self, effects: Effects) -> None:
        record = self.record
        record.before = {job_id: self.live.job(job_id) for job_id in effects.jobs}
        checkers.check_proof(record, self, effects)
        checkers.check_transitions(self, effects)
        checkers.check_finished_stay(record, self, effects)
        checkers.check_leases(self, effects)

    def _written(self, effects: Effects) -> None:
        checkers.note_written(self.record, self, effects, self._loop.time.now_us / 1000)

    def check_at_end(self) -> None:
        """Nothing is on its way any more."""
        checkers.check_disk(self.record, self.disk)
        checkers.check_finished_once(self.record)
        checkers.check_index(self.record, self)

    def write_again(self, tail: Sequence[Image]) -> None:
        """The database that was promoted lacks these records."""
        for image in tail:
            self.base.note(self.tenure, image)
            image.apply(self.disk)
        self.base.find(self.tenure)
        self.has_lost_touch = False

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
        if not self._loop.alive:
            return
        if self.base.is_away or self.has_lost_touch:
            self._loop.time.after(50_000, self._finish_first)
            return
        if self.base.is_closed(self.tenure):
            self._loop.arrive(0, self.on_fenced)
            return
        super()._finish_first()

    def _keep(self, image: Image) -> None:
        if self.base.is_closed(self.tenure):
            return  # the journal is closed: this was never acknowledged
        if self.base.is_away or self.has_lost_touch:
            return  # it crashes before it reaches the database
        self.base.note(self.tenure, image)
        super()._keep(image)


class SkewedClock(DatabaseClock):
    """That of a server whose machine shows another time, and runs faster or slower."""

    def __init__(self, time: Time, rng: random.Random) -> None:
        self._time = time
        share = rng.choice((0.0001, 0.02, 0.1))
        self._rate = 1 + rng.uniform(-share, share)
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
        server = self._server

        def work() -> None:
            if self._base.owner != self.tenure:
                raise FencedError("another server has taken over")

        def filled(found: Exception | None) -> None:
            if found is not None:
                done(found)
                return
            server.store.fill()
            alive_at = self._base.disk.alive_at
            done(server.clock.now() - alive_at if alive_at else 0)

        self._later(work, filled)

    def hand_over(self, to, done, *, leaves) -> None:
        base = self._base

        def work() -> bool:
            if base.owner != self.tenure or self._server.store.has_lost_touch:
                return False  # it lacks some of what was decided
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
        self._held: list[Callable[[], None]] = []  # on its way, while nothing arrives
        self.on_open: Callable = lambda _: None
        self.on_message: Callable = lambda _peer, _message: None
        self.on_lost: Callable = lambda _peer, _reason: None
        self.announced = False

    @property
    def hello(self) -> Hello:
        assert self.link.peer is not None
        return self.link.peer

    def send(self, message: Sent) -> None:
        self.link.send(message)
        self.flush()

    def flush(self) -> None:
        data = self.link.take()
        other = self.other
        assert other is not None
        if not data or self.is_lost:
            return
        self._pass_on(lambda: other.feed(data))

    def _pass_on(self, arrive: Callable[[], None]) -> None:
        """To the other end, which gets it after what was sent before."""
        world, other = self.node.world, self.other
        assert other is not None
        if self._held or world.is_cut(self.node, other.node):
            self._held.append(arrive)
            return
        slow_us = world.slow_us if self.node.name in world.slow else 3_000
        self.arrives_us = max(world.time.now_us + world.rng.randint(50, slow_us), self.arrives_us)
        other.node.loop.arrive(self.arrives_us - world.time.now_us, arrive)

    def forget(self) -> None:
        """What was held never arrives."""
        self._held.clear()

    def mend(self) -> None:
        """What was held goes on."""
        held, self._held = self._held, []
        for arrive in held:
            self._pass_on(arrive)

    def feed(self, data: bytes) -> None:
        if self.is_lost:
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
        """Ends here; the other end hears of it if anything arrives there."""
        if self.is_lost:
            return
        self.is_lost = True
        self.node.loop.arrive(200, lambda: self.tell_loss(reason))
        if self.other is not None:
            self._pass_on(lambda: self.other.lose(reason))

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
            on_failure=self._fail,
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
        self.fenced: str | None = None
        self.ended: str | None = None  # why it ended by itself
        self.member.start()
        self.keep_house()

    def _fail(self, text: str) -> None:
        if not self.world.base.has_lost or "the database has gone back" not in text:
            self.world.broken.append(f"{self.name}: {text}")
        self.ended = text
        self.crash()

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
            if world.is_cut(self, other) or (other is not None and world.is_cut(other, self)):
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

    def look_at_database(self, tail: Sequence[Image]) -> None:
        """It has failed over, and is connected again."""
        base = self.world.base
        if (
            self.tenure not in base.rows
            or self.member.membership.epoch > base.epoch
            or (self.router.decides and base.owner != self.tenure)
        ):
            self.fence("the database has gone back")
        else:
            self.store.write_again(tail)

    def stall(self, seconds: float) -> None:
        until_us = self.world.time.now_us + int(seconds * 1e6)
        # Never shorter than before: what came later would overtake what waits.
        self.loop.stalled_until_us = max(self.loop.stalled_until_us, until_us)


class Cluster:
    """The world."""

    def __init__(self, seed: int, names: str = "abc") -> None:
        self.rng = random.Random(seed)
        self.time = Time()
        self.base = Base(self.time)
        self.nodes: dict[str, Node] = {}
        self.cuts: set[tuple[str, str]] = set()  # nothing that one sends arrives at the other
        self.slow: set[str] = set()  # servers whose words take their time
        self.slow_us = 400_000
        self.broken: list[str] = []
        self.fenced = 0
        self.dead: list[Node] = []
        for name in names:
            self.start(name)

    def start(self, name: str) -> Node:
        if name in self.nodes:
            self.dead.append(self.nodes[name])
        node = self.nodes[name] = Node(self, name)
        return node

    def is_cut(self, one: Node, other: Node | None) -> bool:
        return other is not None and (one.name, other.name) in self.cuts

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        self.cuts.add((one, other))
        if both_ways:
            self.cuts.add((other, one))

    def heal(self) -> None:
        self.cuts.clear()
        self.slow.clear()
        for node in (*self.dead, *self.nodes.values()):
            for end in node.ends:
                end.mend()

    def fail_over(self) -> None:
        """Servers that stand still look at the database when they go on."""
        tails = self.base.fail_over()
        for node in self.living():
            node.store.has_lost_touch = True
            tail = tails.get(node.tenure, ())
            delay_us = self.rng.randint(100, 300_000)
            node.loop.arrive(delay_us, lambda n=node, tail=tail: n.look_at_database(tail))

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
