"""The whole server below its listeners, in virtual time, with faults. A seed tells everything.

python tests/simulation/simulate.py [SEED] [--seeds N] [--steps N]
"""

import argparse
import contextlib
import hashlib
import random
import sys
import time as real_time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import structlog
from msgspec import Struct, structs

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from manyhands.dispatch import dispatcher
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleeper
from manyhands.engine.effects import Effects
from manyhands.loggers import PROCESSORS
from manyhands.model import commands as c
from manyhands.model import limits
from manyhands.model.events import Signal
from manyhands.model.job import Holder, Job, State
from manyhands.model.replies import Claimed, Refusal, Reply
from manyhands.operate.clock_steps import ClockSteps
from manyhands.operate.schedules import Calendar
from manyhands.store.batch import Batch
from tests.simulation import actors, cautious, checkers, stream_peers, watching, wmp_peers
from tests.simulation.world import Disk, FaultyStore, SeededIds, ServerLoop, Time, VirtualClock

_SECOND_US = 1_000_000
_HOUR_MS = 3_600_000
_DRIFT_MS = 2_000
# When the faults are over, all work ends within this much virtual time.
_DRAIN_US = 900 * _SECOND_US
FAULTS = ("crash", "commit failure", "packing failure", "stall", "clock set", "disk full")


class Options(Struct, frozen=True, kw_only=True):
    """Everything about a run, worked out from its seed."""

    seed: int
    steps: int
    queues: int
    submitters: int
    bound_workers: int
    free_workers: int
    named_workers: int
    open_workers: int
    operators: int
    commit_us: tuple[int, int]
    pace_ms: float
    ride_ms: float
    told_max: int  # dependants that hear of an end in one command
    seen_max: int  # those that are held, and looked at all the same
    full_count: int  # answers that are sent to the disk without waiting for more
    crash: float  # chances for each look at the faults, once a second
    commit_failure: float
    stall: float
    clock_set: float
    disk_full: float
    wmp_workers: int
    packing_failure: float
    cautious: int
    streams: int


def options_of(seed: int, steps: int | None = None) -> Options:
    rng = random.Random(seed)
    slow = rng.choice((1_000, 8_000, 60_000))
    return Options(
        seed=seed,
        steps=steps or rng.choice((800, 1_500, 3_000)),
        queues=rng.randint(1, 4),
        submitters=rng.randint(1, 4),
        bound_workers=rng.randint(0, 3),
        free_workers=rng.randint(0, 2),
        named_workers=rng.randint(0, 2),
        open_workers=rng.randint(1, 2),
        operators=rng.randint(0, 2),
        commit_us=(rng.choice((0, slow // 4)), slow),
        pace_ms=rng.choice((0.0, 1.0, 3.0)),
        ride_ms=rng.choice((0.0, 5.0)),
        full_count=rng.choice((1, 2, 64)),
        crash=rng.choice((0.0, 0.03, 0.1)),
        commit_failure=rng.choice((0.0, 0.0, 0.04)),
        stall=rng.choice((0.0, 0.03, 0.06)),
        clock_set=rng.choice((0.0, 0.02)),
        disk_full=rng.choice((0.0, 0.0, 0.03)),
        wmp_workers=rng.randint(0, 2),
        told_max=rng.choice((1, 2, 500)),
        seen_max=rng.choice((1, 2, 10_000)),
        # In some worlds, none of them in seeds.txt: those tell the stories that failed once.
        packing_failure=0.1 if seed % 6 == 2 else 0.0,
        cautious=2 if seed % 6 in (2, 3) else 0,
        streams=3 if seed % 12 in (0, 8, 10) else 0,
    )


class Server:
    """One server process: what ``app.py`` puts together, without listeners."""

    def __init__(self, simulation: "Simulation") -> None:
        options, rng = simulation.options, simulation.rng
        self.simulation = simulation
        self.loop = ServerLoop(simulation.time)
        self.clock = VirtualClock(simulation.time)
        self.ids = SeededIds(random.Random(rng.getrandbits(64)))
        self.store = FaultyStore(
            simulation.disk, self.loop, random.Random(rng.getrandbits(64)), options.commit_us
        )
        self.store.at_once_share = 0.5
        self.ready = False
        self.sleepers: dict[Sleeper, None] = {}
        self.dispatcher = Dispatcher(
            self.store,
            self.clock,
            self.loop,
            pace_ms=options.pace_ms,
            ride_ms=options.ride_ms,
            on_failure=simulation.store_failed,
            check_invariants=True,
        )
        self.calendar = Calendar(self.dispatcher, self.ids)
        self.clock_steps = ClockSteps(self.dispatcher, self.calendar, self.loop)
        self.wmp = wmp_peers.Manager(self)
        self.streams = stream_peers.Hub(self)
        self.cursor = self.dispatcher.events.last_seq  # how far a watcher has read the log
        self._expected_ms = 0.0
        self._sleepers_check = checkers.Sleepers()

    def start(self) -> None:
        now = self.clock.now()
        outage_ms = 0
        if self.store.alive_at is not None:
            # Less than nothing if the clock was set back meanwhile: leases keep what was left.
            outage_ms = now - self.store.alive_at
        self.simulation.ask(c.Recover(self.ids.incarnation, outage_ms), None)
        if outage_ms < -_DRIFT_MS:
            self.clock_steps.follow(outage_ms)
        self.dispatcher.when_idle(self._recovered)
        self._expected_ms = self.clock.monotonic_ms() + 1_000
        self.loop.call_later(1.0, self._keep_house)

    def _recovered(self) -> None:
        self.ready = self.dispatcher.failed is None

    def _keep_house(self) -> None:
        dispatcher = self.dispatcher
        dispatcher.notice_stall(self._expected_ms)
        self._expected_ms = self.clock.monotonic_ms() + 1_000
        drift_ms = self.clock.drift_ms()
        if abs(drift_ms) > _DRIFT_MS:
            self.clock.follow(drift_ms)
            dispatcher.prolong(drift_ms)
            self.clock_steps.follow(drift_ms)
        if dispatcher.failed is None:
            self.calendar.look()
            dispatcher.keep_house()
            self.simulation.check_terms()
            if self.ready:
                now_ms = self.clock.monotonic_ms()
                asleep = [s for s in self.sleepers if s.asleep]
                self.sleepers = dict.fromkeys(asleep)
                self._sleepers_check.check(dispatcher, now_ms, asleep, self.simulation.woken_at)
        self.loop.call_later(1.0, self._keep_house)


class Simulation:
    """A server, its disk, its clients, and what goes wrong."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = random.Random(options.seed ^ 0x5EED)
        self.time = Time()
        self.disk = Disk()
        self.record = checkers.Record()
        self.counts: Counter[str] = Counter()
        self._needed: dict[int, int] = {}  # batches that answers wait for, by command
        self.queues = [f"queue-{number}" for number in range(options.queues)]
        self.known_ids: list[str] = []
        self.vanished: list[Holder] = []  # workers without a term that never come back
        self.woken_at: dict[str, float] = {}
        self.steps_done = 0
        self._checked_at = 0
        self.faults_over = False
        self.is_over = False
        self.require = checkers.require
        self._digest = hashlib.sha256()
        self._lost_us = 0  # virtual time in which the server was down or stood still
        self._stalls: list[checkers.Stall] = []
        self._wall_ms_max = self.time.wall_ms
        self.server = self._new_server()
        self.time.after(_SECOND_US, self._look_at_faults)
        for _ in range(options.submitters):
            actors.Submitter(self)
        for kind, count in (
            (actors.BoundWorker, options.bound_workers),
            (actors.Worker, options.free_workers),
            (actors.NamedWorker, options.named_workers),
            (actors.OpenWorker, options.open_workers),
        ):
            for number in range(count):
                kind(self, f"{kind.realm}-{number}")
        for number in range(options.wmp_workers):
            wmp_peers.WmpWorker(self, number)
        for _ in range(options.operators):
            actors.Operator(self)
        for number in range(options.cautious):
            cautious.Cautious(self)
            cautious.CautiousWorker(self, f"cautious-{number}")
        self.dead_streams: list[tuple[str, list[list[str]]]] = []  # and what they ran at the end
        self.streams = [stream_peers.StreamPeer(self, number) for number in range(options.streams)]
        self.watcher = watching.Watcher(self)

    # Running.

    def run(self) -> str:
        """The digest of everything that happened."""
        while self.steps_done < self.options.steps and self.time.step():
            pass
        self._end()
        self._digest.update(repr(sorted(self.counts.items())).encode())
        return self._digest.hexdigest()

    def _end(self) -> None:
        """Faults stop; honest workers go on; everything must end."""
        self.faults_over = True
        # Somebody sets the clock right: what was to run at a certain time need not wait for hours.
        self.time.wall_ms = self._wall_ms_max
        if not self.options.operators:
            actors.Operator(self)
        if not self.options.free_workers:
            actors.Worker(self, "last")
        end_us = self.time.now_us + _DRAIN_US
        while self.time.now_us < end_us and self.time.step():
            if self.server.ready and self._is_quiet():
                break
        self.is_over = True
        self.check_now_and_then()
        checkers.check_all_ended(self.server.store)
        checkers.check_disk(self.record, self.disk)
        checkers.check_acknowledged(self.record, self.disk)
        checkers.check_finished_once(self.record)
        self.watcher.check_complete()
        for peer in self.streams:
            self.require(peer.is_settled(), f"{peer.name} waits for something: {vars(peer)}")

    def _is_quiet(self) -> bool:
        index = self.server.store.live
        dispatcher = self.server.dispatcher
        return not (
            index.schedules
            or any(known.unfinished_count for known in index.queues.values())
            or dispatcher._in_flight
            or dispatcher._open.changed
            or not all(peer.is_settled() for peer in self.streams)
        )

    def note(self, *what: object) -> None:
        self._digest.update(repr((self.time.now_us, *what)).encode())

    def count(self, what: str) -> None:
        self.counts[what] += 1

    # Asking, under the eyes of the checkers.

    def ask(self, command: c.Command, settle, *, owed: bool = True) -> None:
        server = self.server
        self.count(type(command).__name__)
        self.note("ask", command)
        before: dict[str, Job | None] = {}
        # Known before the answer: a session that is answered may ask more at once.
        self._needed[id(command)] = server.store.unsaved_number()
        drained: checkers.Drained | None = None
        if (
            isinstance(command, c.Claim)
            and command.report_drained is not c.ReportDrained.NEVER
            and command.job_id is None  # such a claim gets its job or is refused
        ):
            drained = checkers.find_drained(server.store, command)

        def told(reply: Reply) -> None:
            self.note("told", type(command).__name__, reply)
            checkers.check_reply(reply, server.dispatcher.failed)
            if isinstance(reply, Refusal):
                self.count(f"refused {reply.why}")
            if server.dispatcher.failed is None:
                number = self._needed.pop(id(command))
                checkers.check_told(server.store, command, reply, number, before)
                if drained is not None and isinstance(reply, Claimed):
                    checkers.check_drained(command, reply, drained)
                    self.count(f"claim of {drained.value} queues")
                if server.store.durable >= number or not isinstance(command, c.Submit):
                    checkers.note_acknowledged(self.record, command, reply)
            if settle is not None:
                settle(reply)

        if isinstance(command, c.Claim) and command.early:
            before.update(
                (job.job_id, server.store.whole(job))
                for job in server.store.live.live_jobs()
                if job.state is State.READY
            )
        if settle is None:
            server.dispatcher.ask(command)
        elif owed:
            server.dispatcher.ask(command, told)
        else:
            server.dispatcher.ask(command, None, lambda: told)
        if self.steps_done >= self._checked_at + 20:
            self._checked_at = self.steps_done
            self.check_now_and_then()

    def heard(self, signal: Signal) -> None:
        self.note("signal", signal.what, signal.job.job_id)
        self.count(f"signal {signal.what}")
        checkers.check_signal(self.record, self.server.store, signal)

    def _load(self, command: c.Command) -> None:
        self.record.command = command
        if id(command) in self._needed:
            self._needed[id(command)] = self.server.store.unsaved_number()
        if isinstance(command, c.Tick | c.Prolong | c.FollowClock | c.Fire | c.NotifyDependants):
            self.count(type(command).__name__)

    def _write(self, effects: Effects) -> None:
        record, store = self.record, self.server.store
        record.before = {job_id: store.live.job(job_id) for job_id in effects.jobs}
        checkers.check_proof(record, store, effects)
        checkers.check_transitions(store, effects)
        checkers.check_finished_stay(record, store, effects)
        checkers.check_leases(store, effects)
        checkers.check_dependencies(record, effects)
        checkers.check_doomed(record, effects)
        checkers.check_settings_kept(record, store, effects)
        checkers.check_resumed(record, store, effects)
        if checkers.check_in_step(record, store, effects):
            self.count("schedule moved into step")
        checkers.check_expiry(record, effects, self._awake_ms(), self._stalls)

    def _written(self, effects: Effects) -> None:
        if id(self.record.command) in self._needed:
            self._needed[id(self.record.command)] = self.server.store.unsaved_number()
        checkers.note_written(self.record, self.server.store, effects, self._awake_ms())

    def _durable(self, batch: Batch) -> None:
        self.note("durable", batch.number, list(batch.jobs), len(batch.events))
        checkers.note_durable(self.record, batch)

    def check_now_and_then(self) -> None:
        server = self.server
        if server.loop.alive:
            checkers.check_index(self.record, server.store)
            if self.rng.random() < 0.7:
                read = server.dispatcher.events.after(server.cursor, self.rng.randint(1, 50))
                checkers.check_log(self.record, server.cursor, read)
                server.cursor += len(read)

    def check_terms(self) -> None:
        checkers.check_terms(self.record, self.server.store, self.server.clock.now(), self._stalls)

    def _awake_ms(self) -> float:
        return (self.time.now_us - self._lost_us) / 1000

    # Faults.

    def _look_at_faults(self) -> None:
        if self.faults_over:
            return
        self.time.after(_SECOND_US, self._look_at_faults)
        options, rng = self.options, self.rng
        if not self.server.loop.alive:
            return
        if rng.random() < options.crash:
            self.count("crash")
            if rng.random() < 0.6:
                self.server.store.on_start = self._crash_soon  # with something on its way
            else:
                self.crash()
        elif rng.random() < options.commit_failure:
            self.server.store.fails_next = True
        elif rng.random() < options.stall and self.server.ready:
            self._stall(rng.randint(1_200, 20_000) * 1_000)
        elif rng.random() < options.disk_full:
            self.count("disk full")
            self._fill_disk(rng.randint(1, 5) * _SECOND_US)
        elif rng.random() < options.clock_set:
            self.count("clock set")
            self.time.wall_ms += rng.choice((-1, 1)) * rng.randint(3_000, 2 * _HOUR_MS)
            self._wall_ms_max = max(self._wall_ms_max, self.time.wall_ms)
        # Without a draw where it never happens, so that the stories of older seeds stay the same.
        elif options.packing_failure and rng.random() < options.packing_failure:
            self.server.store.packing_fails_next = True

    def _stall(self, duration_us: int) -> None:
        self.count("stall")
        self.note("stall", duration_us)
        now_us, loop = self.time.now_us, self.server.loop
        if loop.stalled_until_us < now_us:
            loop.stalled_until_us = now_us + duration_us
            self._stalls.append(checkers.Stall(self._awake_ms(), duration_us / 1000))
            self._lost_us += duration_us

    def _crash_soon(self) -> None:
        self.time.after(self.rng.randint(0, self.options.commit_us[1]), self.crash)

    def _fill_disk(self, duration_us: int) -> None:
        full = self.server.dispatcher

        def clear() -> None:
            full.store_full = False

        full.store_full = True
        self.time.after(duration_us, clear)

    def store_failed(self, text: str) -> None:
        self.require("invariant" not in text, text)
        self.count("packing failure" if "MemoryError" in text else "commit failure")
        self.note("store failed", text)
        self.server.ready = False
        self.time.after(1_000, self.crash)

    def crash(self) -> None:
        """The process is gone. A while later another one opens what is on the disk."""
        server = self.server
        if not server.loop.alive:
            return
        lost = server.store.crash()
        server.loop.alive = False
        server.ready = False
        self.note("crash", lost)
        self.count("crash with a commit on its way" if lost else "crash at rest")
        stalled_us = max(0, server.loop.stalled_until_us - self.time.now_us)
        away_us = self.rng.randint(50, 20_000) * 1_000
        unseen_ms = checkers.UNSEEN_MS
        if stalled_us == 0 and self.time.now_us - server.loop.stalled_until_us < 2 * _SECOND_US:
            # It stood still, went on, committed, and died before it had made up for that.
            unseen_ms = self._lost_us / 1000
        self._stalls.append(checkers.Stall(self._awake_ms(), away_us / 1000, unseen_ms))
        self._lost_us += away_us - stalled_us
        self.time.after(away_us, self._restart)

    def _restart(self) -> None:
        checkers.check_disk(self.record, self.disk)
        checkers.check_acknowledged(self.record, self.disk)
        checkers.check_finished_once(self.record)
        self.watcher.check_saved()
        self.record.forget_undecided(self.disk, self.server.store.durable)
        self.server = self._new_server()
        self.check_now_and_then()

    def _new_server(self) -> Server:
        server = Server(self)
        self.server = server
        checkers.check_settings(self.record, server.store)
        checkers.check_names(self.record, server.store)
        server.store.on_load = self._load
        server.store.on_write = self._write
        server.store.on_written = self._written
        server.store.on_durable = self._durable
        server.start()
        return server

    # What actors choose from.

    def any_queue(self, rng: random.Random) -> str:
        return rng.choice(self.queues)

    def all_queues(self) -> list[str]:
        return list(self.server.store.live.queues) or self.queues

    def any_id(self, rng: random.Random) -> str:
        if not self.known_ids:
            return "0"
        return rng.choice(self.known_ids[-40:])

    def any_leased(self, rng: random.Random) -> str | None:
        held = list(self.server.store.live.view.leased())
        return rng.choice(held) if held else None

    def never_ready(self) -> list[str]:
        """Jobs that wait for something that cannot come any more."""
        index = self.server.store.live
        found = []
        for job in index.jobs.values():
            if job.state is not State.BLOCKED:
                continue
            for key in job.waits_for:
                if "\0" in key:
                    named = index.named(*key.split("\0", 1))
                    other = index.job(named) if named is not None else None
                    # A name of an earlier, finished graph: the job waits for the next of that name.
                    old = (
                        other is not None
                        and (other.finished_at or 0) > 0
                        and (other.serial < job.serial)
                    )
                else:
                    other, old = index.job(key), False
                if other is None or old or other.state in (State.FAILED, State.CANCELLED):
                    found.append(job.job_id)
                    break
        return found


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The server's log is of no interest here, unless it tells of an error of the server's."""
    kept = list(PROCESSORS)

    def drop(_: object, level: str, entry: dict[str, object]) -> dict[str, object]:
        # A stall in the middle of a commit looks like a disk that does not answer, and is reported.
        if level == "error" and "the store does not answer" not in str(entry):
            raise checkers.Violation(f"{entry}: {sys.exc_info()[1]!r}")
        raise structlog.DropEvent

    PROCESSORS[:] = [drop]
    try:
        yield
    finally:
        PROCESSORS[:] = kept


def simulate(seed: int, steps: int | None = None) -> tuple[str, Counter[str]]:
    """Run one seed: the digest of its trace, and how often what happened."""
    options = options_of(seed, steps)
    with (
        silence(),
        mock.patch.object(dispatcher, "_FULL_COUNT", options.full_count),
        mock.patch.object(limits, "DEPENDANTS_NOTIFIED_MAX", options.told_max),
        mock.patch.object(limits, "DEPENDANTS_SEEN_MAX", options.seen_max),
    ):
        simulation = Simulation(options)
        return simulation.run(), simulation.counts


def say(text: object) -> None:
    """For people: this is a command, not a library."""
    sys.stdout.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate the server with random faults")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--steps", type=int, default=None, help="actions of clients in each run")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    total: Counter[str] = Counter()
    started = real_time.perf_counter()
    for seed in range(first, first + arguments.seeds):
        options = options_of(seed, arguments.steps)
        if arguments.seeds == 1:
            for name, value in structs.asdict(options).items():
                say(f"{name} = {value}")
        try:
            digest, counts = simulate(seed, arguments.steps)
        except Exception:  # noqa: BLE001 - whatever it is, the seed is what counts
            say(traceback.format_exc())
            say(structs.asdict(options))
            say(f"make simulate SEED={seed}")
            return 1
        total += counts
        if arguments.seeds == 1:
            say(f"trace = {digest}")
    elapsed = real_time.perf_counter() - started
    for name, count in sorted(total.items()):
        say(f"{count:8} {name}")
    say(f"{arguments.seeds} seeds from {first} on, {elapsed:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
