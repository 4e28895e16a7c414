"""The router takes the dispatcher's place on a server of a cluster.

One server decides: the owner. There the router is the dispatcher, and commands of other servers
come in through their ``Guest``. On all others it is a front: it sends what its own clients ask to
the owner, over the link that the owner announced itself on, and keeps a mirror of the owner's jobs
to show them. When the owner changes, what was not answered is asked again, in the same order, so
that each connection gets its replies in the order of its requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from manyhands.cluster.again import UNKNOWN_OUTCOME, earlier_answer, may_repeat, repeated
from manyhands.cluster.guest import Guest
from manyhands.cluster.hands import CountedSleepers
from manyhands.cluster.link import (
    GATHERED_BYTES_MAX,
    Answers,
    Ask,
    Asks,
    Begin,
    Counts,
    End,
    LinkError,
    Message,
    News,
    Packed,
    Sent,
    Signals,
    Undecided,
    Wake,
    Want,
)
from manyhands.cluster.news import batch_of, news_of, steps_of, take_steps
from manyhands.cluster.signals import FarListeners
from manyhands.cluster.waits import Waits
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher, Refused, Settle
from manyhands.dispatch.judge import Judge
from manyhands.dispatch.loops import Loop
from manyhands.loggers import get_logger
from manyhands.model.commands import (
    Attach,
    Claim,
    Command,
    Complete,
    Conclude,
    Fire,
    FollowClock,
    Look,
    NewJob,
    NotifyDependants,
    Prolong,
    Proof,
    Recover,
    Resume,
    Submit,
    Tick,
)
from manyhands.model.events import Signal
from manyhands.model.job import FINISHED, Holder, Job
from manyhands.model.plain import PlainLeased
from manyhands.model.replies import Accepted, Found, Refusal, Reply, Why
from manyhands.model.roles import Sender
from manyhands.store.batch import Batch
from manyhands.store.contract import Mirrored

_log = get_logger("manyhands.router")

# Commands that wait for an owner, or for this server to go on.
WAITING_COUNT_MAX: Final = 10_000
_OWNERLESS_MS_MAX: Final = 10_000
# What a server asks of itself. A front has nothing to do then: the owner asks the same.
_OWN: Final = frozenset({Fire, FollowClock, NotifyDependants, Prolong, Recover, Tick})
_ASKED_AGAIN: Final = frozenset({Fire, NotifyDependants, Tick})  # when time goes on
_NEW_WORK: Final = frozenset({Submit, Claim, Resume})
_NEVER: Final = float("inf")
_NO_JOB: Final = "0" * 32
# Why nothing falls due.
_PAUSED: Final = "this server may have been taken over"
_ELSEWHERE: Final = "another server decides"
_SHUTTING_DOWN: Final = Refusal(Why.SHUTTING_DOWN, "the server is shutting down")
_CROWDED: Final = Refusal(
    Why.UNAVAILABLE, "too many commands wait for the server that decides; try again later"
)
_SUSPENDED: Final = Refusal(
    Why.UNAVAILABLE, "the database does not answer this server; try again in a few seconds"
)
_TOO_LARGE: Final = Refusal(
    Why.PAYLOAD_TOO_LARGE, "the request is too large to be passed on to the server that decides"
)
_OWNERLESS: Final = Refusal(
    Why.UNAVAILABLE, "no server decides about jobs at present; try again in a few seconds"
)


class Forwarding:
    """What a front did, for the metrics."""

    __slots__ = ("answered", "forwarded", "held_ms", "repeated", "unavailable")

    def __init__(self) -> None:
        self.forwarded: Counter[str] = Counter()  # by the incarnation of the owner
        self.answered = 0
        self.repeated = 0  # asked again, of another owner
        self.unavailable = 0
        self.held_ms = 0.0  # the time that commands waited for an owner


class _Waiting:
    """A command of a client here that is not answered yet."""

    __slots__ = (
        "again",
        "asked_ms",
        "command",
        "is_doubtful",
        "judge",
        "refused",
        "sent",
        "settle",
        "weight",
    )

    def __init__(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
        asked_ms: float,
    ) -> None:
        self.command = command
        self.judge = judge
        self.settle = settle
        self.refused = refused
        self.asked_ms = asked_ms
        self.sent = False  # to the present owner, or the last one
        self.is_doubtful = False  # an owner before that one may have decided it
        self.again = False  # asked over more than one link
        self.weight = _weight_of(command)

    @property
    def may_be_decided(self) -> bool:
        """Whether some owner may have decided it."""
        return self.sent or self.is_doubtful


def _weight_of(command: Command) -> int:
    """Its bytes, as far as they may be many."""
    if type(command) is Submit:
        return sum(len(item.payload) for item in command.items)
    if type(command) is Complete:
        return len(command.result or b"")
    if type(command) is Conclude:
        return sum(len(item.result or b"") for item in command.items if type(item) is Complete)
    return 0


def _waiters_of(command: Command) -> frozenset[str]:
    """The connections that hear of what becomes of its jobs."""
    if type(command) is Submit:
        return frozenset(item.waiter for item in command.items if item.waiter is not None)
    if type(command) is Attach and command.waiter is not None:
        return frozenset((command.waiter,))
    return frozenset()


class Router(Dispatcher):
    """A dispatcher that decides only if it owns the queues."""

    def __init__(
        self,
        store: Mirrored,
        clock: Clock,
        loop: Loop,
        incarnation: str,
        **options: Any,  # noqa: ANN401 - as a dispatcher takes them
    ) -> None:
        self.far_listeners = FarListeners(incarnation)
        self.counted_sleepers = CountedSleepers(self._want_soon)
        super().__init__(
            store,
            clock,
            loop,
            sleepers=self.counted_sleepers,
            listeners=self.far_listeners,
            **options,
        )
        self.loop = loop
        self.incarnation = incarnation
        # Who judges what a caller of another server asks.
        self.judge_of: Callable[[Sender], Judge | None] = lambda _sender: None
        self._waits = Waits(store.live, self.on_signal.__contains__)
        self.far_listeners.on_end = self._waits.reported
        self.mirror = store.mirror()
        self.original = store.original()
        self._mirrored = store
        store.passed_on_bytes = lambda: self._waiting_bytes
        self.decides = False
        self.is_loading = False  # this server is about to decide
        self.epoch = 0  # of the present owner, this server or another
        self.epoch_ms = 0.0  # when this server learnt who that is
        self.owner: str | None = None  # its incarnation, if it has announced itself
        self.on_deciding: list[Callable[[], None]] = []  # called when this server begins to
        # Called with the incarnations that are left, where this server decides and others are gone.
        self.on_gone: list[Callable[[tuple[str, ...]], None]] = []
        # Called with each commit of this server, and with each that another one announces.
        self.on_own: list[Callable[[Batch, float], None]] = []
        self.on_news: list[Callable[[Batch, float], None]] = []
        self.forwarding = Forwarding()
        self.guests: dict[str, Guest] = {}
        # From this instant on, by the monotonic clock, nothing may be decided.
        self.suspended_ms = _NEVER
        self._paused: deque[_Waiting] = deque()  # until this server goes on
        self._own_paused: list[_Waiting] = []  # what it asked of itself meanwhile
        # The front's side.
        self.is_mirrored = False  # all that the owner knows has come
        self._host: Callable[[Sent], None] | None = None
        self._waiting: dict[int, _Waiting] = {}  # by number, in order
        self._waiting_bytes = 0
        self._number = 0
        self._unsent: list[int] = []
        # Clients that wait for a job and have no answer to their submit yet, by its number; and
        # signals that have to wait for that answer.
        self._unheard: dict[int, frozenset[str]] = {}
        self._held_signals: list[Signal] = []
        self._asked: str | None = None  # the owner that has what was sent
        self._ownerless_ms = clock.monotonic_ms()
        self._flush_asks_soon = False
        self._idle_waiters: list[Callable[[], None]] = []
        self._released_number = 0  # of the last batch whose answers have left
        self.hold_time(_ELSEWHERE)

    # Asking.

    def ask(
        self,
        command: Command,
        settle: Settle | None = None,
        refused: Refused | None = None,
        judge: Judge | None = None,
    ) -> None:
        """Decides here, or has the owner decide."""
        if self.decides:
            if self.clock.monotonic_ms() < self.suspended_ms:
                super().ask(command, settle, refused, judge)
            else:
                self._suspend(command, settle, refused, judge)
        else:
            self._forward(command, settle, refused, judge)

    def ask_later(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
    ) -> None:
        if self.decides and not self.is_suspended:
            super().ask_later(command, settle, refused, judge)
        else:
            self.ask(command, settle, refused, judge)

    def submit_at_once(
        self, items: Sequence[NewJob], settle: Callable[[list[str] | Refusal], None], *, early: bool
    ) -> bool:
        if not self.decides or self.is_suspended:
            return False
        return super().submit_at_once(items, settle, early=early)

    def claim_at_once(
        self, queue: str, holder: Holder, token: str, connection: str
    ) -> Job | PlainLeased | None:
        if not self.decides or self.is_suspended:
            return None
        return super().claim_at_once(queue, holder, token, connection)

    def complete_at_once(self, job_id: str, proof: Proof, result: bytes) -> bool:
        if not self.decides or self.is_suspended:
            return False
        return super().complete_at_once(job_id, proof, result)

    def _suspend(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None,
        judge: Judge | None,
    ) -> None:
        """This server may have been declared dead: until a beat shows that it was not, it decides
        nothing.
        """
        if not self._paused:
            self.hold_time(_PAUSED)
        if type(command) in _ASKED_AGAIN:
            return
        waiting = _Waiting(command, settle, refused, judge, self.clock.monotonic_ms())
        if type(command) in _OWN:
            self._own_paused.append(waiting)
        elif len(self._paused) >= WAITING_COUNT_MAX:
            self._refuse(_CROWDED, settle, refused)
        else:
            self._paused.append(waiting)

    def suspend_from(self, instant_ms: float) -> None:
        """A beat succeeded: until this instant nobody takes over."""
        was_ms, self.suspended_ms = self.suspended_ms, instant_ms
        now_ms = self.clock.monotonic_ms()
        if now_ms < was_ms or now_ms >= instant_ms or not self.decides:
            return
        _log.warning(
            "suspended until now", milliseconds=int(now_ms - was_ms), held=len(self._paused)
        )
        self.prolong(int(now_ms - was_ms))
        self.release_time(_PAUSED)
        paused = [*self._own_paused, *self._paused]
        self._own_paused.clear()
        self._paused.clear()
        for each in paused:
            self.ask_later(each.command, each.settle, each.refused, each.judge)

    def _refuse_paused(self) -> None:
        """Those that have waited for long: the database does not answer this server."""
        oldest_ms = self.clock.monotonic_ms() - _OWNERLESS_MS_MAX
        while self._paused and self._paused[0].asked_ms < oldest_ms:
            each = self._paused.popleft()
            self.forwarding.held_ms += _OWNERLESS_MS_MAX
            self._refuse(_SUSPENDED, each.settle, each.refused)

    @property
    def is_suspended(self) -> bool:
        """Whether nothing may be decided, although this server is the owner."""
        return self.decides and self.clock.monotonic_ms() >= self.suspended_ms

    def _refuse(self, refusal: Refusal, settle: Settle | None, refused: Refused | None) -> None:
        self._count_refusal(refusal)
        self.forwarding.unavailable += refusal.why is Why.UNAVAILABLE
        if settle is None and refused is not None:
            settle = refused()
        if settle is not None:
            settle(refusal)

    # The front.

    def _forward(
        self,
        command: Command,
        settle: Settle | None = None,
        refused: Refused | None = None,
        judge: Judge | None = None,
        *,
        is_doubtful: bool = False,
    ) -> None:
        if type(command) in _OWN:
            if settle is not None:
                settle(Accepted())
            return
        if self.failed is not None:
            self._refuse(self._store_failed(), settle, refused)
            return
        if self.draining and type(command) in _NEW_WORK:
            self._refuse(_SHUTTING_DOWN, settle, refused)
            return
        if len(self._waiting) >= WAITING_COUNT_MAX:
            self._refuse(_CROWDED, settle, refused)
            return
        self._number += 1
        waiting = _Waiting(command, settle, refused, judge, self.clock.monotonic_ms())
        waiting.is_doubtful = is_doubtful
        self._waiting[self._number] = waiting
        self._waiting_bytes += waiting.weight
        self._unsent.append(self._number)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._flush_asks_soon:
            self._flush_asks_soon = True
            self.loop.call_soon(self._send_asks)

    def _send_asks(self) -> None:
        """Whatever gathered in a turn is one message."""
        self._flush_asks_soon = False
        host = self._host
        if host is None:
            return
        unsent, self._unsent = self._unsent, []
        asks: list[Ask] = []
        weight = 0
        for number in unsent:
            waiting = self._waiting.get(number)
            if waiting is None:
                continue
            judge = waiting.judge
            sender = None if judge is None else judge.sender
            asks.append(Ask(number, waiting.command, waiting.is_doubtful, sender))
            waiting.sent = True
            weight += waiting.weight
            if weight > GATHERED_BYTES_MAX:
                self._send_some(host, asks)
                asks, weight = [], 0
        if asks:
            self._send_some(host, asks)
        changes = self.counted_sleepers.changes()
        if changes:
            host(Want(changes))

    def _send_some(self, host: Callable[[Sent], None], asks: list[Ask]) -> None:
        assert self.owner is not None
        try:
            host(Asks(tuple(asks), self.confirmed()))
        except LinkError:
            last = asks.pop()  # the one that made it so large
            waiting = self._drop(last.number)
            if waiting is not None:
                self._refuse(_TOO_LARGE, waiting.settle, waiting.refused)
            if asks:
                self._send_some(host, asks)
            return
        self.forwarding.forwarded[self.owner] += len(asks)

    def _drop(self, number: int) -> _Waiting | None:
        """Takes a command off the list of those that wait."""
        waiting = self._waiting.pop(number, None)
        self._unheard.pop(number, None)
        if waiting is not None:
            self._waiting_bytes -= waiting.weight
        return waiting

    def _want_soon(self) -> None:
        if not self.decides:
            self._send_soon()

    def confirmed(self) -> int:
        """All commands below this number are answered."""
        return next(iter(self._waiting), self._number + 1)

    def take(self, incarnation: str, send: Callable[[Sent], None], message: Message) -> None:
        """Takes a message of a server that was called."""
        if self.is_loading and isinstance(message, Begin | News | End | Counts):
            return  # what is loaded is what holds
        if isinstance(message, Begin):
            self._begin(incarnation, send, message)
            return
        if incarnation != self.owner or self.decides:
            return  # it has not announced itself, or another one has since
        if isinstance(message, Answers):
            self._take_answers(message)
        elif isinstance(message, News):
            self._take_news(message)
        elif isinstance(message, Signals):
            self._take_signals(message.signals)
        elif isinstance(message, Wake):
            self._take_wakes(message)
        elif isinstance(message, Undecided):
            self._take_back(message.numbers)
        elif isinstance(message, Counts):
            self.mirror.count(message.finished)
            self.mirror.applied(message.applied)
            self._mirrored.follow(self.events.published_seq, message.applied_seq)
            self.events.stored(message.applied_seq)
        elif isinstance(message, End):
            self.mirror.end(message.graphs)
            self.is_mirrored = True
            self._tell_ends()

    def _begin(self, incarnation: str, send: Callable[[Sent], None], begin: Begin) -> None:
        """A server announces that it decides."""
        if self.decides or begin.epoch < self.epoch or self._has_seen_more(begin.last_seq):
            return
        if begin.epoch > self.epoch or incarnation != self.owner:
            self.epoch_ms = self.clock.monotonic_ms()
        self.epoch = begin.epoch
        self.owner = incarnation
        self._host = send
        self.is_mirrored = False
        self.remember_waits()
        self.mirror.begin()
        stored_seq = self._mirrored.applied_seq()
        self._mirrored.follow(begin.last_seq, stored_seq)
        self.events.restart(begin.last_seq, stored_seq)
        self._ask_again(incarnation)
        self.counted_sleepers.forget_changes()
        self._send_soon()

    def _has_seen_more(self, last_seq: int) -> bool:
        """Whether the next owner knows of fewer events than were published here: it has what the
        database has, so what the last one acknowledged is lost. Then this server ends. If it went
        on, whoever watches here would pass over events that get the same numbers.
        """
        seen_seq = self.events.published_seq
        if last_seq < seen_seq:
            self._fail(
                f"the database has gone back: it ends at event {last_seq}, and {seen_seq} was"
                f" acknowledged. What came after event {last_seq} is lost. Start this server again"
            )
        return last_seq < seen_seq

    def remember_waits(self) -> None:
        """What is known of the jobs is about to be replaced by what the next owner knows."""
        self._waits.remember(list(self.on_signal))

    def begin_loading(self) -> None:
        """This server is about to decide: what it knows is replaced by what the tables hold."""
        self.is_loading = True
        self.remember_waits()

    def _tell_ends(self) -> None:
        """What the owner knows is known here: looks up the jobs that have ended meanwhile, and
        notifies the clients that wait for them.
        """
        for job_id, names in self._waits.ended():

            def tell(reply: Reply, job_id: str = job_id, names: tuple[str, ...] = names) -> None:
                job = reply.job if type(reply) is Found else None
                unreported = self._waits.is_unreported(job_id)
                if unreported and job is not None and job.state in FINISHED:
                    self.far_listeners.deliver_here(Signal(job, "ended", b"", names), once=True)

            self.ask(Look(job_id), tell)

    def _submit_unwritten(self) -> None:
        """Jobs that an owner that is gone had accepted, and perhaps not written down."""
        for command in self._waits.unwritten():
            if self.decides:
                self.ask_again(command, None)
            else:
                self._forward(command, is_doubtful=True)

    def _ask_again(self, incarnation: str) -> None:
        """What was not answered is asked once more. If the owner is the same, it knows the numbers
        of what it was asked; another one looks for traces first.
        """
        same, self._asked = self._asked == incarnation, incarnation
        now_ms = self.clock.monotonic_ms()
        unknown: list[_Waiting] = []
        for number, waiting in list(self._waiting.items()):
            self.forwarding.held_ms += now_ms - max(waiting.asked_ms, self._ownerless_ms)
            if not waiting.may_be_decided:
                continue
            waiting.again = True
            names = _waiters_of(waiting.command)
            if names:
                self._unheard[number] = names
            if same:
                continue  # a number that it has seen is not decided again
            if may_repeat(waiting.command):
                waiting.is_doubtful = True
                self.forwarding.repeated += 1
            else:
                self._drop(number)
                unknown.append(waiting)
        self._unsent = list(self._waiting)
        for waiting in unknown:
            self._refuse(UNKNOWN_OUTCOME, waiting.settle, waiting.refused)
        self._release_signals()
        if not same:
            self._submit_unwritten()

    def lose_host(self, send: Callable[[Sent], None], since_ms: float) -> None:
        """A link to another server broke; it was silent since that instant."""
        if self._host == send:
            self._host = None
            self._ownerless_ms = since_ms

    @property
    def has_host(self) -> bool:
        """Whether there is a link to the owner."""
        return self._host is not None

    def _take_answers(self, message: Answers) -> None:
        answers: list[tuple[Settle, Reply]] = []
        looks = False
        for number, reply in message.replies:
            waiting = self._drop(number)
            if waiting is None:
                continue  # answered before
            settle = waiting.settle
            if type(reply) is Refusal and settle is None and waiting.refused is not None:
                settle = waiting.refused()
            if settle is not None:
                answers.append((settle, reply))
            if waiting.again:
                self._waits.asked_again(waiting.command, reply)
                looks = self.is_mirrored
            if type(waiting.command) is Submit and waiting.command.early:
                self._waits.accepted(waiting.command, reply)
        self.forwarding.answered += len(message.replies)
        self._listeners.answer(answers)
        self._release_signals()
        if looks:
            self._tell_ends()
        for notify in self.on_progress:
            notify()
        if not self._waiting and self._idle_waiters:
            callbacks, self._idle_waiters = self._idle_waiters, []
            for callback in callbacks:
                self.when_idle(callback)

    def _take_signals(self, signals: Sequence[Signal]) -> None:
        """Delivers to clients here. No client gets news of a job before the answer to its
        submit, which may have to be asked again of the next owner.
        """
        unheard = frozenset().union(*self._unheard.values())
        for signal in signals:
            if unheard.isdisjoint(signal.waiters):
                self.far_listeners.deliver_here(signal)
            else:
                self._held_signals.append(signal)

    def _release_signals(self) -> None:
        if self._held_signals:
            held, self._held_signals = self._held_signals, []
            self._take_signals(held)

    def _take_back(self, numbers: tuple[int, ...]) -> None:
        """The owner has handed over; these it did not decide."""
        for number in numbers:
            waiting = self._waiting.get(number)
            if waiting is not None:
                waiting.sent = False

    def _take_news(self, news: News) -> None:
        batch: Batch | None
        if news.steps:
            batch = take_steps(news, self.mirror)
            if batch is None:
                _log.error("what the server that decides announced does not follow; asking anew")
                self.owner = None  # the next beat makes a new link, and everything comes anew
                self._host = None
                return
        else:
            batch = batch_of(news)
            self.mirror.take(batch, news.serial, news.position)
        self._waits.written(batch)
        self.mirror.applied(news.applied)
        if news.number:
            self._mirrored.follow(batch.last_seq, news.applied_seq)
            self.events.publish(batch.entries, batch.last_seq)
            self.events.stored(news.applied_seq)
            self._listeners.committed(batch, 0.0)
            for listener in self.on_news:
                listener(batch, 0.0)

    def _take_wakes(self, message: Wake) -> None:
        unused = []
        for queue, hands in message.hands:
            woken = self.sleepers.wake(queue, hands)
            if woken < hands:
                unused.append((queue, hands - woken))
        if unused and self._host is not None:
            # Perhaps they are awake by now because of another queue: others may take the work.
            self._host(Want(self.counted_sleepers.changes(), tuple(unused)))

    def look(self) -> None:
        """Once a second: commands that have had no owner for long are refused."""
        if self.decides or self._host is not None:
            return
        now_ms = self.clock.monotonic_ms()
        for number, waiting in list(self._waiting.items()):
            since_ms = max(waiting.asked_ms, self._ownerless_ms)
            if now_ms - since_ms < _OWNERLESS_MS_MAX:
                continue
            self._drop(number)
            self.forwarding.held_ms += now_ms - since_ms
            refusal = UNKNOWN_OUTCOME if waiting.may_be_decided else _OWNERLESS
            self._refuse(refusal, waiting.settle, waiting.refused)

    def when_idle(self, callback: Callable[[], None]) -> None:
        if self._waiting and self.failed is None:
            self._idle_waiters.append(callback)
        else:
            super().when_idle(callback)

    def when_decided(self, callback: Callable[[], None]) -> None:
        """Calls back once everything decided here is on disk, whatever waits for another owner."""
        super().when_idle(callback)

    def keep_house(self) -> None:
        if self.decides:
            self._refuse_paused()
            super().keep_house()
            self._send_counts()
            return
        self.look()
        self._look_at_commits()
        self.waking.where_there_is_work()

    # The owner.

    def begin_deciding(self, epoch: int, alive: tuple[str, ...], outage_ms: int) -> None:
        """Everything is loaded, and this server decides from now on. ``alive`` are the incarnations
        of the servers whose clients still wait and work.
        """
        assert not self.decides
        if self._has_seen_more(self.store.last_seq()):
            return
        self.is_loading = False
        self.decides = True
        self.epoch = epoch
        self.epoch_ms = self.clock.monotonic_ms()
        self.owner = self.incarnation
        self._host = None
        self.is_mirrored = True
        self.events.restart(self.store.last_seq())
        super().ask(Recover(self.incarnation, outage_ms, alive))
        self.release_time(_ELSEWHERE)
        if self._unnotified:
            self._spreading.go_on()
        waiting, self._waiting, self._unsent = self._waiting, {}, []
        self._waiting_bytes = 0
        for each in waiting.values():
            self._decide_again(each)
        self._unheard.clear()
        if self._held_signals:  # after these answers
            self.ask(Look(_NO_JOB, brief=True), lambda _found: self._release_signals())
        self._submit_unwritten()
        self._tell_ends()
        for guest in self.guests.values():
            self._listen_to(guest)
        self.waking.where_there_is_work()
        for callback in self._idle_waiters:
            super().when_idle(callback)
        self._idle_waiters.clear()
        for callback in self.on_deciding:
            callback()
        for look in self.on_gone:
            look(alive)

    def stop_deciding(self) -> None:
        """From now on commands wait for the next owner. What was decided is still committed and
        answered.
        """
        assert self.decides
        self.decides = False
        self.owner = None
        self._ownerless_ms = self.clock.monotonic_ms()
        self.hold_time(_ELSEWHERE)
        self.release_time(_PAUSED)
        paused = [*self._own_paused, *self._paused]
        self._own_paused.clear()
        self._paused.clear()
        for each in paused:
            # A front whose command this is asks the next owner too.
            doubtful = may_repeat(each.command)
            self._forward(each.command, each.settle, each.refused, each.judge, is_doubtful=doubtful)

    def retire(self) -> None:
        """What was decided here is on disk: the fronts get their last answers."""
        for guest in self.guests.values():
            guest.retire()
        self.far_listeners.fronts.clear()

    def _decide_again(self, waiting: _Waiting) -> None:
        """What a client here asked of the owner before."""
        command, settle, refused = waiting.command, waiting.settle, waiting.refused
        judge = waiting.judge
        if waiting.may_be_decided:
            if not may_repeat(command):
                self._refuse(UNKNOWN_OUTCOME, settle, refused)
                return
            self.forwarding.repeated += 1

            def settled(reply: Reply) -> None:
                if settle is not None:
                    settle(reply)
                self._waits.asked_again(command, reply)
                self._tell_ends()

            self.ask_again(command, settled, refused, judge)
        else:
            self.ask_later(command, settle, refused, judge)

    def ask_again(
        self,
        command: Command,
        settle: Settle | None,
        refused: Refused | None = None,
        judge: Judge | None = None,
    ) -> None:
        """Decides what an owner that is gone was asked: if it had committed that, the answer is the
        same.
        """
        earlier: Reply | None = None
        if judge is not None:
            earlier = judge.refusal_of(command, self.store.live.view)
        earlier = earlier or earlier_answer(command, self.store.live)
        if earlier is None:
            self.ask_later(repeated(command), settle, refused, judge)
        elif settle is not None and (self._held or self.is_suspended):
            # In its turn: earlier ones wait for a record, or for this server to go on.
            self.ask(Look(_NO_JOB, brief=True), lambda _found: settle(earlier))
        elif settle is not None:
            # After what was decided before.
            self._open.answers.append((settle, earlier))
            self._open.urgent = True
            self._arm_flush()

    def greet(self, incarnation: str, send: Callable[[Sent], None]) -> None:
        """A front has called."""
        guest = self.guests.get(incarnation)
        if guest is None:
            guest = self.guests[incarnation] = Guest(self, incarnation)
        guest.call(send)
        if self.decides:
            self._listen_to(guest)

    def _listen_to(self, guest: Guest) -> None:
        self.far_listeners.fronts[guest.incarnation] = guest.signal
        guest.attach()

    def hear(self, incarnation: str, message: Message) -> None:
        """Takes a message of a server that has called."""
        guest = self.guests.get(incarnation)
        if guest is None:
            return  # its tenure is closed: it may not ask any more
        if self.decides:
            guest.take(message)
        else:
            guest.decline(message)

    def lose_guest(self, incarnation: str, send: Callable[[Sent], None]) -> None:
        """A link of a front broke; it may come back, or have called again already."""
        guest = self.guests.get(incarnation)
        if guest is not None and guest.is_linked_by(send):
            guest.detach()
            self.far_listeners.fronts.pop(incarnation, None)

    def forget_guest(self, incarnation: str, alive: tuple[str, ...]) -> None:
        """That server is closed: leases and waiters of its connections end."""
        guest = self.guests.pop(incarnation, None)
        if guest is not None:
            guest.detach()
        self.far_listeners.fronts.pop(incarnation, None)
        if self.decides:
            self.ask(Recover(self.incarnation, 0, alive))
            for look in self.on_gone:
                look(alive)

    def _release(self, gathering: Any) -> None:  # noqa: ANN401 - the dispatcher's own
        super()._release(gathering)
        batch = gathering.batch
        if batch is None:
            return
        self._released_number = batch.number
        elapsed_ms = self.clock.monotonic_ms() - gathering.started_ms
        for listener in self.on_own:
            listener(batch, elapsed_ms)
        if self.guests:
            self._publish(batch)

    def open_number(self) -> int:
        """Of the batch that takes in what is decided now."""
        return self._released_number + len(self._in_flight) + 1

    def _publish(self, batch: Batch) -> None:
        """Sends what was committed to the fronts, packed once."""
        steps = steps_of(batch, self)
        short = [Packed(steps)] if steps is not None else None
        whole: list[Packed] | None = None
        for guest in self.guests.values():
            if short is not None and guest.follows(batch):
                guest.publish(short)
                continue
            if whole is None:
                whole = [Packed(each) for each in news_of(batch, self)]
            guest.publish(whole)

    def hurry(self) -> int:
        """Has everything durable applied soon; returns the number of its last batch."""
        return self._mirrored.hurry()

    def apply_lag_ms(self) -> int:
        """The age of the oldest batch that searches do not find yet."""
        return int(self._mirrored.apply_lag_seconds() * 1000)

    def applied_number(self) -> int:
        """The last batch whose records can be read in the database."""
        return self._mirrored.applied_number()

    def applied_seq(self) -> int:
        """The last event that can be read there."""
        return self._mirrored.applied_seq()

    def _send_counts(self) -> None:
        if self.guests:
            is_settled = not self._in_flight and not self._open.changed
            counts = self.original.counts(is_settled=is_settled)
            for guest in self.guests.values():
                guest.count(counts)
