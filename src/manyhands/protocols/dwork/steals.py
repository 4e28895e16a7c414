"""Steal: hands out work, holds a steal while there is none, and reports when all is finished."""

from collections.abc import Callable
from typing import Final

from manyhands.model.commands import ByToken, Claim, Release, ReportDrained
from manyhands.model.job import Holder, Job, State
from manyhands.model.replies import Claimed, Refusal, Reply
from manyhands.protocols.dwork.codec import Kind, encode_given
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import Giver
from manyhands.protocols.dwork.turns import Turn

# D18: long enough to spare both sides a busy loop, short enough for any client's timeout.
HOLD_SECONDS: Final = 1.0
_READY: Final = State.READY
_ANYBODY: Final = Holder("dwork", None)
# D19: when workers get EXIT for lack of work.
_REPORTS: Final = {
    "auto": ReportDrained.KNOWN,
    "always": ReportDrained.ALWAYS,
    "never": ReportDrained.NEVER,
}


class Steal:
    """A worker's request for up to so many tasks."""

    __slots__ = ("count", "holder", "rest", "term_ms")

    def __init__(self, holder: Holder, count: int, term_ms: int | None, rest: bytes = b"") -> None:
        self.holder = holder
        self.count = count
        self.term_ms = term_ms  # None: unlimited
        self.rest = rest  # of the reply, behind the tasks


class _Held:
    """A steal that waits for work."""

    __slots__ = ("call_off", "leave", "steal", "turn", "until")

    def __init__(self, turn: Turn, steal: Steal, until: int) -> None:
        self.turn = turn
        self.steal = steal
        self.until = until
        self.leave: Callable[[], None] = _nothing
        self.call_off: Callable[[], None] = _nothing


def _nothing() -> None:
    """Not asleep."""


class Stealing:
    """Steals of one endpoint."""

    def __init__(self, hub: Hub, queue: str, exit_when: str) -> None:
        self.held: dict[Turn, _Held] = {}
        self._hub = hub
        self._queue = queue
        self._queues = (queue,)
        self._report_drained = _REPORTS[exit_when]
        self._pack = Giver(queue, hub).pack
        self._is_asked = False  # whether a check that all is finished is pending

    def steal(self, turn: Turn, steal: Steal, until: int | None = None) -> None:
        """Hands tasks to a worker, perhaps after holding the steal for a while. ``until``: how long
        it may be held; None for a new request.
        """
        hub = self._hub
        counts = hub.counts(self._queue)
        ready = counts[_READY] if counts is not None else 0
        count = min(steal.count, ready)
        token = hub.token
        claim = Claim(
            queues=self._queues,
            holder=steal.holder,
            tokens=(token(),) if count <= 1 else tuple([token() for _ in range(count)]),
            term_ms=steal.term_ms,
            early=ready > 0,  # a negative answer waits for the disk, since it may be the last one
            report_drained=self._report_drained,
        )

        def settle(reply: Reply) -> None:
            if type(reply) is not Claimed:
                assert isinstance(reply, Refusal)
                turn.refuse_by(reply)
            elif reply.jobs:
                self._give(turn, reply.jobs, steal.rest)
            elif reply.drained:  # D19 and D20
                turn.say(Kind.EXIT)
            else:
                self._hold_or_refuse(turn, steal, until)

        hub.ask(claim, settle)

    def _give(self, turn: Turn, jobs: tuple[Job, ...], rest: bytes) -> None:
        hub = self._hub
        pack = self._pack
        tasks = (pack(jobs[0]),) if len(jobs) == 1 else [pack(job) for job in jobs]

        def undelivered() -> None:
            # Never seen by the worker: they go back without a charged attempt.
            for job in jobs:
                assert job.lease is not None
                hub.ask(Release(job_id=job.job_id, proof=ByToken(job.lease.token)))

        turn.answer(encode_given(tasks, rest), undelivered)

    # Holding.

    def _hold_or_refuse(self, turn: Turn, steal: Steal, until: int | None) -> None:
        if until is None:
            until = self._hub.now() + int(HOLD_SECONDS * 1000)
        if self._may_hold(steal.holder, until):
            self._hold(_Held(turn, steal, until))
        else:
            turn.say(Kind.NOT_FOUND)

    def _may_hold(self, holder: Holder, until: int) -> bool:
        """D18: a worker that holds work may be about to report it over the same socket."""
        hub = self._hub
        return hub.now() < until and not hub.draining and not hub.leased_ids(holder)

    def _hold(self, held: _Held) -> None:
        self.held[held.turn] = held
        seconds = (held.until - self._hub.now()) / 1000
        held.leave = self._hub.sleep(
            self._queue, lambda: self._try_again(held, held.until), held.steal.holder
        )
        held.call_off = self._hub.later(seconds, lambda: self._try_again(held, 0))

    def _try_again(self, held: _Held, until: int) -> None:
        if self.held.pop(held.turn, None) is None:
            return
        held.leave()
        held.call_off()
        self.steal(held.turn, held.steal, until)

    def let_go(self, turn: Turn | None) -> None:
        """Answers this steal now, if it is held."""
        held = self.held.get(turn) if turn is not None else None
        if held is not None:
            self._try_again(held, 0)

    def let_all_go(self) -> None:
        """Answers all held steals."""
        for held in list(self.held.values()):
            self._try_again(held, 0)

    def look(self) -> None:
        """After a commit: answers at once if there is nothing left to wait for."""
        if not self.held or self._is_asked or self._report_drained is ReportDrained.NEVER:
            return
        counts = self._hub.counts(self._queue)
        if counts is None:
            if self._report_drained is ReportDrained.KNOWN:
                return
        elif counts[_READY] or counts[State.LEASED] or counts[State.DELAYED]:
            return  # as nearly always; saves the query
        self._is_asked = True
        question = Claim(
            queues=self._queues,
            holder=_ANYBODY,
            tokens=(),
            report_drained=self._report_drained,
        )
        self._hub.ask(question, self._looked)

    def _looked(self, reply: Reply) -> None:
        self._is_asked = False
        if type(reply) is Claimed and reply.drained:
            self.let_all_go()
