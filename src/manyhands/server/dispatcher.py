"""The one writer: takes commands as they arrive, lets the engine decide, commits in groups, and
releases answers, signals, events and wake-ups only when what they tell is on disk.

A command is decided at once, on the state in memory. Its answer waits for the commit of the batch
that it became part of (rule 23). While one batch is on its way to the disk the next one gathers:
there is no timer when few wait, so a lone client waits for one flush and no more.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from manyhands.engine.decide import decide
from manyhands.engine.effects import Effects
from manyhands.model.commands import Claim, Command, Submit
from manyhands.model.job import Job
from manyhands.model.outcome import (
    Changed,
    Claimed,
    Concluded,
    Refusal,
    Reply,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.server.clock import Clock
from manyhands.server.events import EventLog
from manyhands.server.loops import Loop, Timer
from manyhands.server.spreading import Spreading
from manyhands.server.telling import Answer, Telling
from manyhands.server.ticking import DISK_STALL_MS, Timekeeper
from manyhands.server.waiters import Waiters
from manyhands.server.waking import Waking
from manyhands.store.batch import Batch
from manyhands.store.store import Store, StoreFailedError

Settle = Callable[[Reply], None]
Refused = Callable[[], Settle | None]

_log = structlog.get_logger("manyhands.dispatcher")
# So many answers in a commit, and the next one keeps its distance from it.
_BUSY_COUNT: Final = 4
# As many waiting answers as this are sent on, whatever else is to come: the writer commits all
# batches that have reached it together, and works while the rest is still being decided.
_FULL_COUNT: Final = 64
_IN_FLIGHT_MAX: Final = 8
# How often a commit is put off because more was heard meanwhile.
_LOOKS_MAX: Final = 3
_NOT_AWAITED: Final = 1 << 62
# So few are answered sooner without the way to the writer and back, while the loop stands still.
# More of them too, if nobody else was heard of meanwhile: then there is nothing else to do.
_FEW_COUNT: Final = 2
# The writer need not be woken for each of those.
_SEND_SECONDS: Final = 0.005
# How stale the stored time may be that tells, after a crash, how long the server was away.
_TOUCH_MS: Final = 5_000
_INTERNAL: Final = Refusal(Why.INTERNAL, "an internal error; the command was undone, see the log")
_STORE_FULL: Final = Refusal(Why.STORE_FULL, "the disk is nearly full; nothing new is accepted")
_SHUTTING_DOWN: Final = Refusal(Why.SHUTTING_DOWN, "the server is shutting down")


class Counts:
    """What the dispatcher did, for the metrics."""

    __slots__ = ("answers", "batches", "commands", "failures", "jobs", "refusals")

    def __init__(self) -> None:
        self.commands = 0
        self.batches = 0
        self.jobs = 0  # job rows in all batches
        self.answers = 0
        self.failures = 0  # commands that ended in an assertion
        self.refusals: dict[Why, int] = {}


class _Gathering:
    """What is released with one commit."""

    __slots__ = ("answers", "batch", "changed", "others_count", "started_ms", "urgent")

    def __init__(self, others_count: int) -> None:
        # Commands whose peers do not wait for it: those before its own, and those of its own that
        # were answered at once.
        self.others_count = others_count
        self.answers: list[Answer] = []  # in the order of the decisions
        self.changed = False  # there is something to write
        self.urgent = False  # somebody waits for the commit
        self.batch: Batch | None = None  # once it is on its way
        self.started_ms = 0.0


class Dispatcher:
    """Commands in, answers out, in the order of the commits. After a start the first thing to ask
    is ``Recover``, before the loop turns.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        loop: Loop,
        *,
        pace_ms: float = 1.0,
        ride_ms: float = 5.0,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.waiters = Waiters()
        self.events = EventLog(store)
        self.counts = Counts()
        self._listeners = Telling()
        self.on_signal = self._listeners.on_signal
        self.on_told = self._listeners.on_told
        self.on_batch = self._listeners.on_batch
        self.store_full = False
        self.stalled = False  # the disk has not answered for long
        self.draining = False
        self.failed: str | None = None
        self._load = store.load
        self._write = store.write
        self._index = store.index
        self._due_entries = store.index.due_times.entries
        self._untold = store.index.untold
        self._loop = loop
        self._pace_ms = pace_ms
        self._ride_ms = ride_ms
        self._on_failure = on_failure
        self._open = _Gathering(0)
        self._in_flight: deque[_Gathering] = deque()
        self._flush_timer: Timer | None = None
        self._flush_soon = False
        self._send_timer: Timer | None = None
        self._durable = 0  # the number of the last batch that is on disk
        self._telling = False  # answers of a commit are being given out
        self._last_flush_ms = 0.0
        self._was_busy = False
        # While a commit keeps its distance: as many waiting answers as this end that. Whoever was
        # answered lately has asked again, and nobody is left to wait for.
        self._awaited_count = _NOT_AWAITED
        self._answered_count = 0  # the most in a commit, lately
        # While a commit is put off to listen: how often, and what was heard by the last time.
        self._looks_count = 0
        self._heard_count = 0
        self._idle_callbacks: list[Callable[[], None]] = []
        fd = store.fileno()
        if fd is not None:
            loop.add_reader(fd, self._on_readable)
        self.waking = Waking(self._index, self.waiters, clock, loop)
        self._timekeeper = Timekeeper(
            self._index, clock, loop, self.ask, lambda: self.counts.failures, self._commit_ms
        )
        self._spreading = Spreading(self._index, loop, self.ask, lambda: self.counts.failures)

    # Asking.

    def ask(  # noqa: C901, PLR0912, PLR0915 - the hot path: calls cost more than they explain
        self, command: Command, settle: Settle | None = None, refused: Refused | None = None
    ) -> None:
        """Decide now; ``settle`` gets the reply once it may be told. None: nobody is owed one,
        except, where ``refused`` is given, for a refusal: it is called at once, and gives who is.
        """
        self.counts.commands += 1
        reply: Reply | None = None
        effects: Effects | None = None
        if self.failed is not None or self.draining or self.store_full:
            reply = self._refuses(command)
        if reply is None:
            try:
                reply, effects = decide(command, self._load(command), self.clock.now())
            except Exception:  # noqa: BLE001 - our own defect; that peer hears of it, others go on
                self._report(command)
                reply = _INTERNAL
        # Rule 23: the answer to some claims may leave before the claim's own commit, though
        # never before the commit of the jobs it hands out. So this is asked before the write.
        at_once = False
        if type(reply) is Changed:
            pass  # as most are: nothing in it is looked at
        elif type(reply) is Claimed and type(command) is Claim:
            at_once = command.early and self._are_saved(reply.jobs)
            if reply.retry_at is not None:
                self.waking.later(command.queues, reply.retry_at)
        elif type(reply) is Refusal:
            self._count_refusal(reply)
            if settle is None and refused is not None:
                settle = refused()
            at_once = self.failed is not None  # nothing else leaves any more
        elif type(reply) is SubmittedMany or type(reply) is Concluded:
            for item in reply.items:
                if type(item) is Refusal:
                    self._count_refusal(item)
            if type(command) is Submit and command.early:
                at_once = _promises_nothing(reply)
        gathering = self._open
        if effects is not None and (effects.jobs or effects.settings is not None):
            try:
                self._write(effects)
            except Exception:  # noqa: BLE001 - half of it may be in memory: nothing can go on
                self._report(command)
                self._fail("a change could not be taken in; see the log")
                return
            gathering.changed = True
            if effects.signals:
                self._listeners.gather_lasting(effects.signals, gathering.answers)
            if self._due_entries:
                self._keep_time()
            if self._untold:
                self._spreading.go_on()
            if effects.urgent and not at_once:
                gathering.urgent = True
        answers = gathering.answers
        # Also behind answers that wait for nothing of their own: a peer hears in order.
        if (
            settle is not None
            and not at_once
            and (gathering.changed or answers or self._in_flight or self._telling)
        ):
            answers.append((settle, reply))
            gathering.urgent = True
            settle = None
        if len(answers) >= _FULL_COUNT and len(self._in_flight) < _IN_FLIGHT_MAX:
            # Let the writer work on this while the rest of the turn is still being decided.
            self._begin_commit()
        elif not (self._flush_soon or self._in_flight) and (gathering.changed or answers):
            if gathering.urgent or self._flush_timer is None:
                self._arm_flush()
        elif len(answers) >= self._awaited_count:
            self._flush_now()
        if settle is not None:
            self.counts.answers += 1
            gathering.others_count += 1
            settle(reply)
        if effects is not None and effects.signals:
            self._listeners.deliver_fleeting(effects.signals)
        if at_once and type(command) is Submit and self.waiters.count:
            self.waking.before_commit(effects)

    def _keep_time(self) -> None:
        due_at = self._index.due_times.next_at()
        if due_at is not None:
            tick_at = self._timekeeper.tick_at
            if tick_at is None or due_at < tick_at:
                self._timekeeper.arm(due_at)

    def _refuses(self, command: Command) -> Refusal | None:
        if self.failed is not None:
            return Refusal(Why.INTERNAL, f"the store failed: {self.failed}")
        kind = type(command)
        if self.draining and (kind is Submit or kind is Claim):
            return _SHUTTING_DOWN
        if self.store_full and kind is Submit:
            return _STORE_FULL
        return None

    def _are_saved(self, jobs: tuple[Job, ...]) -> bool:
        is_unsaved = self.store.is_unsaved
        for job in jobs:  # noqa: SIM110 - one, nearly always, on the hot path
            # A job that is only waited for may be worked on before it is on disk: if the server
            # dies, whoever waited for it is gone, and it is not handed out again.
            if is_unsaved(job.job_id) and job.durable_interest:
                return False
        return True

    def _count_refusal(self, refusal: Refusal) -> None:
        refusals = self.counts.refusals
        refusals[refusal.why] = refusals.get(refusal.why, 0) + 1

    def _report(self, command: Command) -> None:
        self.counts.failures += 1
        job_id = getattr(command, "job_id", None)
        story = self.store.index.jobs.get(job_id) if isinstance(job_id, str) else None
        _log.error(
            "internal error",
            command=type(command).__name__,
            job_id=job_id,
            story=repr(story)[:2000] if story is not None else None,
            traceback=traceback.format_exc(),
        )

    # Committing.

    def _arm_flush(self) -> None:
        """See to it that the open batch is committed: at once, in a moment, or with the next."""
        if self._in_flight or self._flush_soon:
            return
        if not self._open.urgent:
            # Nobody waits for it: it may ride with others, for a while (rule 25).
            if self._flush_timer is None:
                self._flush_timer = self._loop.call_later(self._ride_ms / 1000, self._flush)
            return
        self._flush_soon = True
        self._cancel_flush_timer()
        wait_ms = 0.0
        if self._was_busy:
            wait_ms = self._last_flush_ms + self._pace_ms - self.clock.monotonic_ms()
        if wait_ms <= 0.0 or len(self._open.answers) >= self._answered_count:
            self._loop.call_soon(self._flush)
        else:
            self._awaited_count = self._answered_count
            self._flush_timer = self._loop.call_later(wait_ms / 1000, self._flush)

    def _flush_now(self) -> None:
        self._awaited_count = _NOT_AWAITED
        self._cancel_flush_timer()
        self._loop.call_soon(self._flush)

    def _cancel_flush_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _flush(self) -> None:
        self._awaited_count = _NOT_AWAITED
        self._cancel_flush_timer()
        if self._has_more_to_hear():
            self._loop.call_soon(self._flush)
            return
        self._flush_soon = False
        if not self._in_flight:
            self._begin_commit()

    def _has_more_to_hear(self) -> bool:
        """Whether to listen once more before the commit: while one request was decided others
        have come, and whoever is in this commit need not wait for the next.
        """
        heard = self.counts.commands
        if (
            self._in_flight
            or heard == self._heard_count
            or self._looks_count >= _LOOKS_MAX
            or (self._answered_count <= 1 and len(self._open.answers) <= 1)
        ):
            self._looks_count = 0
            return False
        self._looks_count += 1
        self._heard_count = heard
        return True

    def _begin_commit(self) -> None:
        """Send the open batch on its way; what is asked from now on goes into the next."""
        if self.failed is not None:
            return
        gathering = self._open
        try:
            at_once = not self._in_flight and self._is_quiet(gathering)
            batch = gathering.batch = self.store.begin_commit(self.clock.now(), at_once=at_once)
        except StoreFailedError as error:
            self._fail(str(error))
            return
        if batch is None and (self._in_flight or self._telling):
            return  # questions only: what they saw is still on its way, and so are their answers
        self._open = _Gathering(self.counts.commands)
        if batch is None:
            self._telling = True
            try:
                self._release(gathering)
            finally:
                self._telling = False
                self._settle_down()
            return
        gathering.started_ms = self._last_flush_ms = self.clock.monotonic_ms()
        # Some of those who ask again are late for one commit; if they are late for the next ones,
        # too, they are not expected any more.
        self._answered_count = max(len(gathering.answers), self._answered_count * 7 // 8)
        self._was_busy = self._answered_count >= _BUSY_COUNT
        self._in_flight.append(gathering)
        if batch.is_durable:
            if self._send_timer is None and self.store.has_unsent():
                self._send_timer = self._loop.call_later(_SEND_SECONDS, self._send)
            self._on_readable()
        elif self.store.has_unsent():
            fd = self.store.fileno()
            assert fd is not None
            self._loop.add_writer(fd, self._on_writable)

    def _is_quiet(self, gathering: _Gathering) -> bool:
        """Whether the loop may stand still for a moment."""
        count = len(gathering.answers)
        if count <= _FEW_COUNT:
            return count > 0
        return count >= self.counts.commands - gathering.others_count

    def _send(self) -> None:
        """What is durable already goes to the writer as well."""
        self._send_timer = None
        self._on_writable()

    def _on_writable(self) -> None:
        fd = self.store.fileno()
        assert fd is not None
        try:
            self.store.send_more()
        except StoreFailedError as error:
            self._fail(str(error))
            return
        if self.store.has_unsent():
            self._loop.add_writer(fd, self._on_writable)
        else:
            self._loop.remove_writer(fd)

    def _on_readable(self) -> None:
        try:
            self._durable = self.store.finish_commits()
        except StoreFailedError as error:
            self._fail(str(error))
            return
        if self._telling:
            return  # that was committed at once: the loop below is under way
        self._telling = True
        try:
            while self._in_flight:
                gathering = self._in_flight[0]
                batch = gathering.batch
                assert batch is not None
                if batch.number > self._durable:
                    break
                self._in_flight.popleft()
                self.counts.batches += 1
                self.counts.jobs += len(batch.jobs)
                # What is asked meanwhile is told after it, but may be on its way to the disk.
                self._release(gathering)
        finally:
            self._telling = False
            self._settle_down()

    def _settle_down(self) -> None:
        """After a commit: begin the next one, or be idle."""
        if self._in_flight or self._flush_soon:
            return
        if self._open.answers or self._open.changed:
            self._arm_flush()
        elif self._idle_callbacks:
            self._call_idle()

    def _release(self, gathering: _Gathering) -> None:
        """It is on disk: tell everybody."""
        self.counts.answers += len(gathering.answers)
        self._listeners.answer(gathering.answers)
        batch = gathering.batch
        if batch is None:
            return
        self.events.publish(batch.events, batch.last_seq)
        took_ms = self.clock.monotonic_ms() - gathering.started_ms
        self._listeners.committed(batch, took_ms)
        if took_ms > DISK_STALL_MS:
            self._timekeeper.notice_slow_commit(took_ms)
        if self.waiters.count:
            self.waking.after_commit(batch)

    def has_work(self, queues: Sequence[str]) -> bool:
        """Whether a claim over these queues would be given something now."""
        return self.waking.has_work(queues)

    def ready_count(self, queue: str) -> int:
        """Jobs of a queue that are ready, committed or about to be."""
        return self.waking.ready_count(queue)

    def _fail(self, text: str) -> None:
        """A write or a sync failed: no answer leaves any more, and the server ends."""
        if self.failed is not None:
            return
        self.failed = text
        _log.critical("the store failed; nothing more is acknowledged", reason=text)
        fd = self.store.fileno()
        if fd is not None:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
        self._cancel_flush_timer()
        self._timekeeper.end()
        self._spreading.end()
        if self._on_failure is not None:
            self._on_failure(text)
        self._call_idle()

    def _call_idle(self) -> None:
        callbacks, self._idle_callbacks = self._idle_callbacks, []
        for callback in callbacks:
            callback()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once everything that was decided is on disk and told, or can never be
        because the store failed.
        """
        if self.failed is not None or not (
            self._in_flight or self._telling or self._open.changed or self._open.answers
        ):
            callback()
            return
        self._idle_callbacks.append(callback)
        self._open.urgent = True
        self._arm_flush()

    def keep_house(self) -> None:
        """Once a second: wake who was left out although there is work, and note the time where
        leases depend on it.
        """
        self.waking.where_there_is_work()
        self._look_at_commits()
        now_ms = self.clock.monotonic_ms()
        idle = not self._in_flight and not self._open.changed
        if idle and now_ms - self._last_flush_ms > _TOUCH_MS and self.store.index.has_leases():
            self.touch()

    def _commit_ms(self) -> float:
        """How long the oldest commit has been on its way."""
        if not self._in_flight:
            return 0.0
        return self.clock.monotonic_ms() - self._in_flight[0].started_ms

    def _look_at_commits(self) -> None:
        """Who waits for the disk hears nothing: the operator does."""
        stalled = self._commit_ms() > DISK_STALL_MS
        if stalled != self.stalled:
            self.stalled = stalled
            if stalled:
                _log.error("the disk does not answer; nothing is acknowledged meanwhile")
            else:
                _log.info("the disk answers again")

    def touch(self) -> None:
        """Have the present time on disk, even if nothing else changed."""
        self.store.touch()
        self._open.changed = True
        self._arm_flush()

    # Time.

    def notice_stall(self, expected_ms: float) -> None:
        """What was to happen at ``expected_ms`` (monotonic) happens now."""
        self._timekeeper.notice_stall(expected_ms)

    def prolong(self, outage_ms: int) -> None:
        """The server stood still, or its clock was set: leases keep their remaining time."""
        self._timekeeper.prolong(outage_ms)


def _promises_nothing(reply: Reply) -> bool:
    """Whether a submit made only jobs that end with those who wait for them (rule 22)."""
    return type(reply) is SubmittedMany and all(
        type(item) is Submitted and not item.job.durable_interest for item in reply.items
    )
