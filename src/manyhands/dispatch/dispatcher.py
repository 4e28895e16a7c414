"""The one writer: takes commands as they arrive, lets the engine decide, commits in groups, and
releases answers, signals, events and wake-ups only when what they report is on disk.

A command is decided at once, on the state in memory. Its answer waits for the commit of its batch
(rule 23). While one batch is being written, the next one gathers: there is no timer when few
clients wait, so a lone client waits for one flush and no more.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from manyhands.dispatch.checks import BrokenInvariantError, Checks
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.delivery import Answer, Listeners
from manyhands.dispatch.events import EventLog
from manyhands.dispatch.judge import Judge
from manyhands.dispatch.lookups import ids_of
from manyhands.dispatch.loops import Loop, Timer
from manyhands.dispatch.sleepers import Sleepers
from manyhands.dispatch.slices import Spreading
from manyhands.dispatch.timer import DISK_STALL_MS, Timekeeper
from manyhands.dispatch.wakeups import Waking
from manyhands.engine import plain
from manyhands.engine.decide import decide
from manyhands.engine.effects import Effects
from manyhands.engine.view import MissingError, View
from manyhands.loggers import get_logger
from manyhands.model.commands import (
    Claim,
    Command,
    Complete,
    Conclude,
    Look,
    LookByKey,
    NewJob,
    Proof,
    Resume,
    Submit,
)
from manyhands.model.events import Signal
from manyhands.model.job import Holder, Job
from manyhands.model.payload import Encoding
from manyhands.model.plain import PlainCompleted, PlainLeased, PlainReady, job_of
from manyhands.model.replies import (
    Changed,
    Claimed,
    Concluded,
    Found,
    Refusal,
    Reply,
    Reported,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.store.batch import Batch
from manyhands.store.contract import Store, StoreFailedError, StoreFencedError

Settle = Callable[[Reply], None]
Created = list[str] | Refusal  # the ids of new jobs; or the store has failed
Refused = Callable[[], Settle | None]
_Held = tuple[Command, Settle | None, Refused | None, Judge | None]

_log = get_logger("manyhands.dispatcher")
# After a commit with this many answers, the next one keeps a minimum distance from it.
_BUSY_COUNT: Final = 4
# A batch with this many waiting answers is sent at once, even if more is to come: the writer
# commits all batches that have reached it together, and works while the rest is still being
# decided.
_FULL_COUNT: Final = 64
# So is a batch of this many bytes: the next client need not wait until tens of megabytes are on
# disk, and a batch of this size, with its last change, mostly fits into a journal file.
_FULL_BYTES: Final = 1024 * 1024
_IN_FLIGHT_MAX: Final = 8
# With so many events a commit is not put off for longer than others: packing it takes time.
_FLEETING_COUNT_MAX: Final = 512
# Of so many commands that wait for a record the records are read together.
_LOOK_AHEAD: Final = 256
# How often a commit is put off because more requests arrived meanwhile.
_LOOKS_MAX: Final = 3
_NOT_AWAITED: Final = 1 << 62
_BINARY: Final = Encoding.BINARY
# This few clients are answered sooner without a round trip to the writer, although the event loop
# stands still for the sync. So are more, if no other client was active: then there is nothing else
# to do.
_FEW_COUNT: Final = 2
# The writer need not be woken for each of these commits.
_SEND_SECONDS: Final = 0.005
# How old the stored time may be from which, after a crash, the server knows how long it was down,
# or that its clock was set back meanwhile.
_TOUCH_MS: Final = 5_000
_INTERNAL: Final = Refusal(Why.INTERNAL, "an internal error; the command was undone, see the log")
_STORE_FULL: Final = Refusal(Why.STORE_FULL, "the disk is nearly full; nothing new is accepted")
_MEMORY_FULL: Final = Refusal(
    Why.STORE_FULL,
    "the jobs that wait take up the memory that the server may use; try again when workers have"
    " finished some, or start the server with more (--memory)",
)
_NOTHING: Final = LookByKey(b"", "")  # its reply comes after all earlier ones
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

    __slots__ = (
        "answers",
        "batch",
        "changed",
        "fleeting",
        "more_count",
        "others_count",
        "started_ms",
        "steps_count",
        "urgent",
    )

    def __init__(self, others_count: int) -> None:
        # Commands whose peers do not wait for this commit: earlier ones, and those of its own that
        # were answered at once.
        self.others_count = others_count
        self.answers: list[Answer] = []  # in the order of the decisions
        self.more_count = 0  # requests that share an answer with another one
        self.changed = False  # there is something to write
        self.steps_count = 0  # of plain jobs
        self.fleeting = True  # and all of it is about jobs that end with their waiters (rule 22)
        self.urgent = False  # somebody waits for the commit
        self.batch: Batch | None = None  # once it is on its way
        self.started_ms = 0.0

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for this commit."""
        return len(self.answers) + self.more_count


class Dispatcher:
    """Commands in, answers out, in the order of the commits. After a start the first command must
    be ``Recover``, before the event loop runs.
    """

    decides = True  # another server may do that instead

    def __init__(  # noqa: PLR0913, PLR0915 - one statement an attribute
        self,
        store: Store,
        clock: Clock,
        loop: Loop,
        *,
        pace_ms: float = 1.0,
        ride_ms: float = 5.0,
        long_ride_ms: float = 50.0,
        on_failure: Callable[[str], None] | None = None,
        check_invariants: bool = False,
        sleepers: Sleepers | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.sleepers = sleepers or Sleepers()
        self.events = EventLog(store)
        self.counts = Counts()
        # Bytes of payloads and results in all answers so far: what a request added is its share.
        self.owed_bytes = 0
        self._listeners = listeners or Listeners()
        self.on_signal = self._listeners.on_signal
        self.on_notice = self._listeners.on_notice
        self.on_batch = self._listeners.on_batch
        # Called when the store has made progress: less may be waiting for it.
        self.on_progress: list[Callable[[], None]] = []
        self.store_full = False
        self.jobs_bytes_max = 1 << 62  # for jobs that are not finished; above it none is accepted
        self.stalled = False  # the disk has not answered for long
        self.draining = False
        self.failed: str | None = None
        self.fenced = False  # because another server has taken over
        checked = Checks(store) if check_invariants else store
        self._load: Callable[[Command], View] = checked.load
        self._write: Callable[[Effects], int] = checked.write
        self._write_plain = checked.write_plain
        # The short way of plain jobs, by command.
        self.steps: dict[type, Callable[[Any, Settle | None], bool]] = {
            Submit: self._submit,
            Claim: self._claim,
            Complete: self._complete,
            Conclude: self._conclude,
        }
        self._live = store.live
        self._due_entries = store.live.due_entries
        self._unnotified = store.live.unnotified
        self._loop = loop
        self._pace_ms = pace_ms
        self._ride_ms = ride_ms
        self._long_ride_ms = long_ride_ms
        self._on_failure = on_failure
        self._open = _Gathering(0)
        self._in_flight: deque[_Gathering] = deque()
        # Commands that wait until a record has been read, and all that came after them: decisions
        # are made in order.
        self._held: deque[_Held] = deque()
        self._resumed: Command | None = None  # the one that goes on now
        self._flush_timer: Timer | None = None
        self._rides_long = False  # the flush timer is set for a long ride
        self._flush_soon = False
        self._send_timer: Timer | None = None
        self._durable = 0  # the number of the last batch that is on disk
        self._delivering = False  # answers of a commit are being given out
        self._last_flush_ms = 0.0
        self._was_busy = False
        # While a commit keeps its distance, this many waiting answers end that: all clients that
        # were answered recently have asked again, so there is none left to wait for.
        self._awaited_count = _NOT_AWAITED
        self._answered_count = 0  # the most in a commit, lately
        # While a commit is put off: how often, and how many requests there were the last time.
        self._looks_count = 0
        self._commands_seen = 0
        self._idle_callbacks: list[Callable[[], None]] = []
        fd = store.fileno()
        if fd is not None:
            loop.add_reader(fd, self._on_readable)
        self.waking = Waking(self._live, self.sleepers, clock, loop)
        self._timekeeper = Timekeeper(
            self._live, clock, loop, self.ask, lambda: self.counts.failures, self._commit_ms
        )
        self._spreading = Spreading(self._live, loop, self.ask, lambda: self.counts.failures)

    # Asking.

    def ask(
        self,
        command: Command,
        settle: Settle | None = None,
        refused: Refused | None = None,
        judge: Judge | None = None,
    ) -> None:
        """Decides now; ``settle`` gets the reply once it may leave. With ``settle=None`` the caller
        wants no reply. If ``refused`` is given, it is called on a refusal and returns the callback
        that gets it. A ``judge`` has let the command pass by what is in memory now; it is asked
        again if a record has to be read.
        """
        if self._held and command is not self._resumed:
            self._held.append((command, settle, refused, judge))
            return
        self.counts.commands += command.requests_count if type(command) is Submit else 1
        step = self.steps.get(type(command))
        if step is None or not step(command, settle):
            self._ask_rules(command, settle, refused, judge)

    def ask_later(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
    ) -> None:
        """The same for a command that has waited, so that it has to be judged again."""
        if judge is None or (self._held and command is not self._resumed):
            self.ask(command, settle, refused, judge)
            return
        self.counts.commands += command.requests_count if type(command) is Submit else 1
        self._ask_rules(command, settle, refused, judge, is_judged=False)

    def _ask_rules(  # noqa: C901, PLR0912, PLR0915 - all that may follow from a decision
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
        *,
        is_judged: bool = True,
    ) -> None:
        reply: Reply | None = None
        effects: Effects | None = None
        if self._takes_nothing_new():
            reply = self._refuses(command)
        if reply is None:
            try:
                view = self._load(command)
                if judge is not None and not is_judged:
                    reply = judge.refusal_of(command, view)
                if reply is None:
                    reply, effects = decide(command, view, self.clock.now())
            except MissingError as missing:
                self._hold(command, settle, refused, judge, missing)
                return
            except Exception:  # noqa: BLE001 - our own defect; that peer is informed, others go on
                self._report(command)
                reply = _INTERNAL
        # Rule 23: the answer to some claims may leave before the claim's own commit, though never
        # before the commit of the jobs it hands out. So this is checked before the write.
        at_once = False
        stored = False  # payloads are needed that are not in memory
        if type(reply) is Changed:
            pass  # nothing in it is looked at
        elif type(reply) is Claimed and type(command) is Claim:
            for claimed in reply.jobs:
                self.owed_bytes += len(claimed.payload)
                if claimed.stored_bytes:
                    stored = True
            # "Drained" may be the last answer a worker gets: it waits for the disk.
            at_once = command.early and not reply.drained and self._are_saved(reply.jobs)
            if reply.retry_at is not None:
                self.waking.later(command.queues, reply.retry_at)
        elif type(reply) is SubmittedMany or type(reply) is Concluded:
            for item in reply.items:
                if type(item) is Refusal:
                    self._count_refusal(item)
            if type(command) is Submit and command.early:
                at_once = _promises_nothing(reply)
        elif type(reply) is Refusal:
            self._count_refusal(reply, command.requests_count if type(command) is Submit else 1)
            if settle is None and refused is not None:
                settle = refused()
            # Of a store that failed nothing else leaves any more; of one that is full, not soon.
            at_once = self.failed is not None or (
                reply is _STORE_FULL and type(command) is Submit and command.lone
            )
        elif type(reply) is Found:
            stored = reply.job is not None and reply.job.stored_bytes > 0
            self._count_owed(reply.job)
        gathering = self._open
        weight = 0
        if effects is not None and (effects.jobs or effects.settings is not None):
            try:
                weight = self._write(effects)
            except BrokenInvariantError as error:
                self._fail(str(error), traceback.format_exc())
                return
            except Exception:  # noqa: BLE001 - half of it may be in memory: nothing can go on
                self._report(command)
                self._fail("a change could not be taken in; see the log")
                return
            gathering.changed = True
            gathering.fleeting = False
            if effects.signals:
                self._listeners.gather_lasting(effects.signals, gathering.answers)
            if self._due_entries:
                self._keep_time()
            if self._unnotified:
                self._spreading.go_on()
            if effects.urgent and not at_once:
                gathering.urgent = True
        if stored:
            reply = self._whole(command, reply)
            if reply is None:
                return
        answers, in_flight = gathering.answers, self._in_flight
        # Even an answer that waits for nothing itself goes after earlier ones: a peer gets them in
        # order.
        if (
            settle is not None
            and not at_once
            and (gathering.changed or answers or in_flight or self._delivering)
        ):
            answers.append((settle, reply))
            gathering.urgent = True
            settle = None
            if type(command) is Submit:
                gathering.more_count += command.requests_count - 1
        waiting = len(answers) + gathering.more_count
        if (waiting >= _FULL_COUNT or weight >= _FULL_BYTES) and len(in_flight) < _IN_FLIGHT_MAX:
            # The writer can work on this while the rest of the turn is still being decided.
            self._begin_commit()
            if self.failed is not None:  # just now: not even an answer without a promise leaves
                if settle is not None:
                    settle(self._store_failed())
                return
        elif in_flight or self._flush_soon:
            if waiting >= self._awaited_count:
                self._flush_now()
        elif (gathering.changed or answers) and (
            gathering.urgent or self._flush_timer is None or self._rides_long
        ):
            self._arm_flush()
        if settle is not None:
            self.counts.answers += 1
            gathering.others_count += 1
            settle(reply)
        if effects is not None and effects.signals:
            self._listeners.deliver_fleeting(effects.signals)
        if at_once and effects is not None and type(command) is Submit and self.sleepers.count:
            self.waking.before_commit(effects.events)

    # Asking, the short way of plain jobs. Each step returns whether it took the command; if not,
    # nothing has changed, and the rules decide.

    def _submit(self, command: Submit, settle: Settle | None) -> bool:
        if self._takes_nothing_new():
            return False
        try:
            changes = plain.submit(command, self._load(command), self.clock.now())
        except MissingError:
            return False  # the rules say which record
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(command)
            return False
        if changes is None:
            return False
        if not command.early or any(item.durable_interest for item in command.items):
            if settle is not None:
                self._open.more_count += command.requests_count - 1
            self._take_in(command, changes, settle, _created, is_urgent=True)
            return True
        self._take_in(command, changes)
        if settle is not None:
            self._answer_at_once(settle, _created(changes))
        if self.sleepers.count:
            self.waking.before_commit([plain.entry_of(change) for change in changes])
        return True

    def _takes_nothing_new(self) -> bool:
        return (
            self.failed is not None
            or self.draining
            or self.store_full
            or self._live.unfinished_bytes > self.jobs_bytes_max
        )

    def _claim(self, command: Claim, settle: Settle | None) -> bool:
        if self.failed is not None or self.draining:
            return False
        try:
            changes = plain.claim(command, self._load(command), self.clock.now())
        except MissingError:
            return False  # the rules say which record
        except Exception:  # noqa: BLE001 - our own defect; the rules may do better
            self._report(command)
            return False
        if changes is None:
            return False
        jobs = []
        for change in changes:
            job = change[1] if isinstance(change, tuple) else job_of(change)
            self.owed_bytes += len(job.payload)
            jobs.append(job)
        reply = Claimed(tuple(jobs))
        # Rule 23. Before the write, since it is about the commit of the jobs, not of the claim.
        if command.early and self._are_saved(jobs):
            self._take_in(command, changes)
            if settle is not None:
                self._answer_at_once(settle, reply)
        else:
            self._take_in(command, changes, settle, lambda _: reply)
        return True

    def _complete(self, command: Complete, settle: Settle | None) -> bool:
        if self.failed is not None:
            return False
        try:
            ending = plain.complete(command, self._load(command), self.clock.now())
        except MissingError:
            return False  # the rules say which record
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(command)
            return False
        if ending is None:
            return False
        change, reported = ending
        self._take_in(
            command,
            (change,),
            settle,
            lambda _: Changed(_reported(reported)),
            signals=_signals(reported),
        )
        return True

    def _conclude(self, command: Conclude, settle: Settle | None) -> bool:
        if self.failed is not None:
            return False
        try:
            endings = plain.conclude(command, self._load(command), self.clock.now())
        except MissingError:
            return False  # the rules say which record
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(command)
            return False
        if endings is None:
            return False
        changes: list[plain.Change] = []
        reports: list[Reported] = []
        signals: list[Signal] = []
        for change, job in endings:
            changes.append(change)
            reports.append(Reported(job.job_id, job.state, job.incarnation))
            if job.waiters:
                signals += _signals(job)
        reply = Concluded(tuple(reports))
        self._take_in(command, changes, settle, lambda _: reply, signals=signals)
        return True

    # The same for sessions that need less than a command says.

    def submit_at_once(
        self, items: Sequence[NewJob], settle: Callable[[Created], None], *, early: bool
    ) -> bool:
        """Submits plain jobs, each of which is a request of its own; ``settle`` gets their ids once
        they are on disk. False: nothing has changed; a ``Submit`` says more.
        """
        if self._held or not self.steps or self._takes_nothing_new():
            return False
        try:
            changes = plain.create(items, self._live.view, self.clock.now())
        except MissingError:
            return False  # the rules say which record
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(None)
            return False
        if changes is None:
            return False
        self.counts.commands += len(items)
        if not early:
            self._open.more_count += len(items) - 1
            self._take_in(None, changes, settle, _ids, is_urgent=True)
            return True
        self._take_in(None, changes)
        self._answer_at_once(settle, _ids(changes))
        if self.sleepers.count:
            self.waking.before_commit([plain.entry_of(change) for change in changes])
        return True

    def claim_at_once(
        self, queue: str, holder: Holder, token: str, connection: str
    ) -> Job | PlainLeased | None:
        """A job that may be handed out now (rule 23), leased for as long as the connection lasts.
        None: nothing has changed; a ``Claim`` says more.
        """
        if self._held or self.failed is not None or self.draining or not self.steps:
            return None
        known = self._live.view.known_queue(queue)
        job = None if known is None else plain.next_of(known)
        if job is None or (job.durable_interest and self.store.is_unsaved(job.job_id)):
            return None
        try:
            change = plain.lease(job, holder, token, connection, None, self.clock.now())
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(None)
            return None
        self.counts.commands += 1
        self.owed_bytes += len(job.payload)
        if not self._take_in(None, (change,)):
            return None
        self.counts.answers += 1
        self._open.others_count += 1
        after = plain.value_of(change)
        assert isinstance(after, (Job, PlainLeased))
        return after

    def complete_at_once(self, job_id: str, proof: Proof, result: bytes) -> bool:
        """Completes a job whose worker wants no answer. False: nothing has changed; a ``Complete``
        says more.
        """
        if self._held or self.failed is not None or not self.steps:
            return False
        view = self._live.view
        value = view.value(job_id)
        if value is None:
            return False
        try:
            ending = plain.end(value, proof, result, _BINARY, view, self.clock.now())
        except Exception:  # noqa: BLE001 - as in `_claim`
            self._report(None)
            return False
        if ending is None:
            return False
        change, reported = ending
        self.counts.commands += 1
        self._take_in(None, (change,), signals=_signals(reported))
        return True

    def _take_in(  # noqa: C901 - as in `_ask_rules`
        self,
        command: Command | None,
        changes: Sequence[plain.Change],
        settle: Callable[[Any], None] | None = None,
        answer: Callable[[Sequence[plain.Change]], Any] | None = None,
        *,
        is_urgent: bool = False,
        signals: Sequence[Signal] = (),
    ) -> bool:
        """Adds changes to the open batch, and what leaves with its commit. False: the store has
        failed just now, and nothing leaves any more.
        """
        try:
            weight = self._write_plain(changes, signals)
        except BrokenInvariantError as error:
            self._fail(str(error), traceback.format_exc())
            return False
        except Exception:  # noqa: BLE001 - half of it may be in memory: nothing can go on
            self._report(command)
            self._fail("a change could not be taken in; see the log")
            return False
        gathering = self._open
        gathering.changed = True
        gathering.steps_count += len(changes)
        if gathering.fleeting and not _are_fleeting(changes):
            gathering.fleeting = False
        answers, in_flight = gathering.answers, self._in_flight
        if self._due_entries:
            self._keep_time()
        if self._unnotified:
            self._spreading.go_on()
        if signals:
            self._listeners.gather_lasting(signals, answers)
            is_urgent = any(signal.job.durable_interest for signal in signals)
        if settle is not None and answer is not None:
            answers.append((settle, answer(changes)))
            is_urgent = True
        if is_urgent:
            gathering.urgent = True
        waiting = len(answers) + gathering.more_count
        if (waiting >= _FULL_COUNT or weight >= _FULL_BYTES) and len(in_flight) < _IN_FLIGHT_MAX:
            self._begin_commit()
        elif in_flight or self._flush_soon:
            if waiting >= self._awaited_count:
                self._flush_now()
        elif (
            gathering.urgent
            or self._flush_timer is None
            or (
                self._rides_long
                and not (gathering.fleeting and gathering.steps_count < _FLEETING_COUNT_MAX)
            )
        ):
            self._arm_flush()
        if self.failed is not None:
            return False
        if signals:
            self._listeners.deliver_fleeting(signals)
        return True

    def _answer_at_once(self, settle: Callable[[Any], None], reply: Reply | Created) -> None:
        """Gives an answer that promises nothing which is not on disk."""
        if self.failed is not None:  # just now: not even this leaves any more
            settle(self._store_failed())
            return
        self.counts.answers += 1
        self._open.others_count += 1
        settle(reply)

    def _hold(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
        missing: MissingError,
    ) -> None:
        """Has the missing record read, with all others that this command and those behind it will
        need.
        """
        self.counts.commands -= command.requests_count if type(command) is Submit else 1
        self._held.appendleft((command, settle, refused, judge))
        wanted = [missing.job_id]
        for held in islice(self._held, _LOOK_AHEAD):
            wanted += ids_of(held[0])
        self.store.begin_fetch(wanted)

    def _resume(self) -> None:
        """Decides what waited for records, until another one is missing."""
        held = self._held
        while held and self.store.has_fetched():
            command, settle, refused, judge = held.popleft()
            self._resumed = command
            self.ask_later(command, settle, refused, judge)
        self._resumed = None
        if not held:
            self.store.end_fetch()
            self._settle_down()

    def refuse(self, refusal: Refusal, settle: Settle | None, refused: Refused | None) -> None:
        """Answers a command that is not even decided, after all earlier answers."""
        self._count_refusal(refusal)
        if settle is None and refused is not None:
            settle = refused()
        if settle is not None:
            self.ask(_NOTHING, lambda _reply: settle(refusal))

    def _whole(self, command: Command, reply: Reply) -> Reply | None:
        """The reply with the payloads that are only on disk, or None if they cannot be read."""
        whole = self.store.whole
        try:
            if type(reply) is Claimed:
                jobs = tuple(whole(job) for job in reply.jobs)
                for job, before in zip(jobs, reply.jobs, strict=True):
                    self.owed_bytes += len(job.payload) - len(before.payload)
                return Claimed(jobs, reply.retry_at)
            if type(reply) is Found and not (type(command) is Look and command.brief):
                found = reply.job
                assert found is not None
                self.owed_bytes += found.stored_bytes
                return Found(whole(found))
        except Exception as error:  # noqa: BLE001 - nobody may be given a job without its payload
            self._fail_by(error)
            return None
        return reply

    def _keep_time(self) -> None:
        due_at = self._live.next_due_at()
        if due_at is not None:
            tick_at = self._timekeeper.tick_at
            if tick_at is None or due_at < tick_at:
                self._timekeeper.arm(due_at)

    def _refuses(self, command: Command) -> Refusal | None:
        if self.failed is not None:
            return self._store_failed()
        kind = type(command)
        if self.draining and (kind is Submit or kind is Claim or kind is Resume):
            return _SHUTTING_DOWN
        if kind is Submit or kind is Resume:
            return _STORE_FULL if self.store_full else _MEMORY_FULL
        return None

    def _store_failed(self) -> Refusal:
        return Refusal(Why.STORE_FAILED, f"the store failed: {self.failed}")

    def _are_saved(self, jobs: Sequence[Job]) -> bool:
        is_unsaved = self.store.is_unsaved
        for job in jobs:  # noqa: SIM110 - one, nearly always, on the hot path
            # A job that only waiters want may be worked on before it is on disk (rule 22): if the
            # server dies, its waiters are gone, and it is not handed out again.
            if is_unsaved(job.job_id) and job.durable_interest:
                return False
        return True

    def _count_owed(self, job: Job | None) -> None:
        if job is not None:
            self.owed_bytes += len(job.payload)
            if job.result is not None:
                self.owed_bytes += len(job.result)

    def _count_refusal(self, refusal: Refusal, count: int = 1) -> None:
        refusals = self.counts.refusals
        refusals[refusal.why] = refusals.get(refusal.why, 0) + count

    def _report(self, command: Command | None) -> None:
        self.counts.failures += 1
        job_id = getattr(command, "job_id", None)
        story = self.store.live.live_job(job_id) if isinstance(job_id, str) else None
        _log.error(
            "internal error",
            command=type(command).__name__,
            job_id=job_id,
            story=repr(story)[:2000] if story is not None else None,
            traceback=traceback.format_exc(),
        )

    # Committing.

    def _arm_flush(self) -> None:
        """Arranges the commit of the open batch: at once, in a moment, or with the next."""
        if self._in_flight or self._flush_soon:
            return
        if not self._open.urgent:
            self._ride()
            return
        self._flush_soon = True
        self._cancel_flush_timer()
        wait_ms = 0.0
        if self._was_busy:
            wait_ms = self._last_flush_ms + self._pace_ms - self.clock.monotonic_ms()
        if wait_ms <= 0.0 or self._open.waiting_count >= self._answered_count:
            self._loop.call_soon(self._flush)
        else:
            self._awaited_count = self._answered_count
            self._flush_timer = self._loop.call_later(wait_ms / 1000, self._flush)

    def _ride(self) -> None:
        """No client waits for it: it may share the next commit, for a while (rule 25)."""
        gathering = self._open
        # Of jobs that only waiters want nobody was promised a record. The longer it is put off, the
        # more of them are written once, at their end; but whoever watches events sees them at once.
        rides_long = (
            gathering.fleeting
            and not self.events.watchers_count
            and gathering.steps_count < _FLEETING_COUNT_MAX
        )
        if self._flush_timer is not None:
            if rides_long or not self._rides_long:
                return
            self._flush_timer.cancel()
        self._rides_long = rides_long
        ride_ms = self._long_ride_ms if rides_long else self._ride_ms
        self._flush_timer = self._loop.call_later(ride_ms / 1000, self._flush)

    def _flush_now(self) -> None:
        self._awaited_count = _NOT_AWAITED
        self._cancel_flush_timer()
        self._loop.call_soon(self._flush)

    def _cancel_flush_timer(self) -> None:
        self._rides_long = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _flush(self) -> None:
        self._awaited_count = _NOT_AWAITED
        self._cancel_flush_timer()
        if self._expects_more():
            self._loop.call_soon(self._flush)
            return
        self._flush_soon = False
        if not self._in_flight:
            self._begin_commit()

    def _expects_more(self) -> bool:
        """Whether to poll the sockets once more before the commit: while one request was decided,
        others may have arrived, and a request in this commit need not wait for the next.
        """
        commands = self.counts.commands
        if (
            self._in_flight
            or commands == self._commands_seen
            or self._looks_count >= _LOOKS_MAX
            or (self._answered_count <= 1 and self._open.waiting_count <= 1)
        ):
            self._looks_count = 0
            return False
        self._looks_count += 1
        self._commands_seen = commands
        return True

    def _begin_commit(self) -> None:
        """Starts the commit of the open batch; later commands go into the next."""
        if self.failed is not None:
            return
        gathering = self._open
        try:
            at_once = not self._in_flight and self._is_quiet(gathering)
            batch = gathering.batch = self.store.begin_commit(self.clock.now(), at_once=at_once)
        except Exception as error:  # noqa: BLE001 - the batch is gone, and must not be acknowledged
            self._fail_by(error)
            return
        if batch is None and (self._in_flight or self._delivering):
            return  # questions only: what they saw is still on its way, and so are their answers
        self._open = _Gathering(self.counts.commands)
        if batch is None:
            self._delivering = True
            try:
                self._release(gathering)
            finally:
                self._delivering = False
                self._release_durable()  # an answer may have brought about a commit
            return
        gathering.started_ms = self._last_flush_ms = self.clock.monotonic_ms()
        # A client that asks again may be late for one commit; one that is late for the next ones
        # too is no longer expected.
        self._answered_count = max(gathering.waiting_count, self._answered_count * 7 // 8)
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
        """Whether the event loop may stand still for a moment."""
        count = gathering.waiting_count
        if count <= _FEW_COUNT:
            return count > 0
        return count >= self.counts.commands - gathering.others_count

    def _send(self) -> None:
        """Sends a batch to the writer, also one that is already durable."""
        self._send_timer = None
        self._on_writable()

    def _on_writable(self) -> None:
        fd = self.store.fileno()
        assert fd is not None
        try:
            self.store.send_more()
        except Exception as error:  # noqa: BLE001 - as in `_begin_commit`
            self._fail_by(error)
            return
        if self.store.has_unsent():
            self._loop.add_writer(fd, self._on_writable)
        else:
            self._loop.remove_writer(fd)

    def _on_readable(self) -> None:
        try:
            self._durable = self.store.finish_commits()
        except Exception as error:  # noqa: BLE001 - as in `_begin_commit`
            self._fail_by(error)
            return
        if self._delivering:
            return  # that was committed at once, and is released after what is under way
        self._release_durable()
        if self._held and self.store.has_fetched():
            self._resume()
        for notify in self.on_progress:
            notify()

    def _release_durable(self) -> None:
        """Releases what is on disk, in order."""
        self._delivering = True
        try:
            while self._in_flight:
                gathering = self._in_flight[0]
                batch = gathering.batch
                assert batch is not None
                if batch.number > self._durable:
                    break
                self._in_flight.popleft()
                self.counts.batches += 1
                self.counts.jobs += len(batch.values)
                # Later commands are answered after it, but may already be on their way to the disk.
                self._release(gathering)
        finally:
            self._delivering = False
            self._settle_down()

    def _settle_down(self) -> None:
        """After a commit: starts the next one, or becomes idle."""
        if self._in_flight or self._flush_soon:
            return
        if self._open.answers or self._open.changed:
            self._arm_flush()
        elif self._idle_callbacks and not self._held:
            self._call_idle()

    def _release(self, gathering: _Gathering) -> None:
        """A batch is on disk: releases its answers, signals, events and wake-ups."""
        self.counts.answers += gathering.waiting_count
        self._listeners.answer(gathering.answers)
        batch = gathering.batch
        if batch is None:
            return
        self.events.publish(batch.entries, batch.last_seq)
        took_ms = self.clock.monotonic_ms() - gathering.started_ms
        self._listeners.committed(batch, took_ms)
        if took_ms > DISK_STALL_MS:
            self._timekeeper.notice_slow_commit(took_ms)
        if self.sleepers.count:
            self.waking.after_commit(batch)

    def has_work(self, queues: Sequence[str]) -> bool:
        """Whether a claim over these queues would get a job now."""
        return self.waking.has_work(queues)

    def ready_count(self, queue: str) -> int:
        """Jobs of a queue that are ready, committed or about to be."""
        return self.waking.ready_count(queue)

    def _fail_by(self, error: Exception) -> None:
        """The store raised this while it had a batch. That batch may be lost, so nothing after it
        may be acknowledged.
        """
        if isinstance(error, StoreFailedError):
            self.fenced = isinstance(error, StoreFencedError)
            self._fail(str(error))
            return
        text = f"a batch could not be written ({type(error).__name__}: {error}); see the log"
        self._fail(text, "".join(traceback.format_exception(error)))

    def fence(self, text: str) -> None:
        """Another server has taken over."""
        self.fenced = True
        self._fail(text)

    def _fail(self, text: str, story: str | None = None) -> None:
        """A write or a sync failed: no more answers leave, and the server ends (rule 24)."""
        if self.failed is not None:
            return
        self.failed = text
        try:
            _log.critical(
                "the store failed; nothing more is acknowledged", reason=text, traceback=story
            )
            fd = self.store.fileno()
            if fd is not None:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
            self._cancel_flush_timer()
            self._timekeeper.end()
            self._spreading.end()
            while self._held:
                _, settle, refused, _ = self._held.popleft()
                if settle is None and refused is not None:
                    settle = refused()
                if settle is not None:
                    settle(self._store_failed())
        finally:
            # Even if there is no memory left for that: the server must not continue like this.
            if self._on_failure is not None:
                self._on_failure(text)
            self._call_idle()

    def _call_idle(self) -> None:
        callbacks, self._idle_callbacks = self._idle_callbacks, []
        for callback in callbacks:
            callback()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once everything decided is on disk and delivered, or never will be because the
        store failed.
        """
        if self.failed is not None or not (
            self._in_flight
            or self._delivering
            or self._open.changed
            or self._open.answers
            or self._held
        ):
            callback()
            return
        self._idle_callbacks.append(callback)
        self._open.urgent = True
        self._arm_flush()

    def keep_house(self) -> None:
        """Once a second: wakes sleepers that were left out although there is work, and stores the
        time if leases depend on it.
        """
        self.waking.where_there_is_work()
        self._look_at_commits()
        now_ms = self.clock.monotonic_ms()
        idle = not self._in_flight and not self._open.changed
        if idle and now_ms - self._last_flush_ms > _TOUCH_MS and self._depends_on_time():
            self.touch()

    def _depends_on_time(self) -> bool:
        """Whether leases, delays or schedules need to know the time of a crash afterwards."""
        live = self.store.live
        return live.has_leases() or bool(self._due_entries) or bool(live.schedules)

    def has_commits(self) -> bool:
        """Whether a commit is pending."""
        return bool(self._in_flight)

    def _commit_ms(self) -> float:
        """The age of the oldest pending commit."""
        if not self._in_flight:
            return 0.0
        return self.clock.monotonic_ms() - self._in_flight[0].started_ms

    def _look_at_commits(self) -> None:
        """Warns the operator about a commit that takes long, since its clients only wait."""
        stalled = self._commit_ms() > DISK_STALL_MS
        if stalled != self.stalled:
            self.stalled = stalled
            if stalled:
                _log.error("the store does not answer; nothing is acknowledged meanwhile")
            else:
                _log.info("the store answers again")

    def touch(self) -> None:
        """Stores the present time, even if nothing else changed."""
        self.store.touch()
        self._open.changed = True
        self._open.fleeting = False
        self._arm_flush()

    # Time.

    def notice_stall(self, expected_ms: float) -> None:
        """A timer that was set to ``expected_ms`` (monotonic) fires now."""
        self._timekeeper.notice_stall(expected_ms)

    def hold_time(self, why: str) -> None:
        """Nothing falls due until time is released for this reason, and every other."""
        self._timekeeper.hold(why)

    def release_time(self, why: str) -> None:
        """That is no reason to hold time any more."""
        self._timekeeper.release(why)

    def prolong(self, outage_ms: int) -> None:
        """The server stalled, or its clock was set: leases keep their remaining time (rule 7)."""
        self._timekeeper.prolong(outage_ms)


def _created(changes: Sequence[plain.Change]) -> Reply:
    return SubmittedMany(tuple([Submitted(_job_of(change)) for change in changes]))


def _are_fleeting(changes: Sequence[plain.Change]) -> bool:
    """Whether all of these jobs end with their waiters (rule 22)."""
    for change in changes:
        if type(change) is PlainReady:
            wanted = change.durable_interest
        elif type(change) is PlainLeased:
            wanted = change.ready.durable_interest
        elif type(change) is PlainCompleted:
            wanted = change.leased.ready.durable_interest
        else:
            wanted = _job_of(change).durable_interest
        if wanted:
            return False
    return True


def _ids(changes: Sequence[plain.Change]) -> Created:
    return [plain.value_of(change).job_id for change in changes]


def _job_of(change: plain.Change) -> Job:
    return job_of(plain.value_of(change))


def _reported(job: Job | PlainCompleted) -> Job:
    return job.reported() if isinstance(job, PlainCompleted) else job


def _signals(job: Job | PlainCompleted) -> Sequence[Signal]:
    """The news of a completion for those who wait for it."""
    waiters = job.waiters
    return (Signal(_reported(job), "ended", b"", waiters),) if waiters else ()


def _promises_nothing(reply: Reply) -> bool:
    """Whether a submit made only jobs that end with their waiters (rule 22)."""
    return type(reply) is SubmittedMany and all(
        type(item) is Submitted and not item.job.durable_interest for item in reply.items
    )
