"""Steal: handing out work, holding a steal while there is none, telling when all is finished."""

from collections.abc import Callable
from typing import Final

from manyhands.model.commands import ByToken, Claim, Release
from manyhands.model.job import Holder, Job, State
from manyhands.model.outcome import Claimed, Refusal, Reply
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import Giver
from manyhands.protocols.dwork.turns import Turn
from manyhands.wire.dwork import Kind, encode_given

# D18: long enough to spare both sides a busy loop, short enough for any client's patience.
HOLD_SECONDS: Final = 1.0
_READY: Final = State.READY


class Steal:
    """What a worker asks for: up to so many tasks."""

    __slots__ = ("count", "holder")

    def __init__(self, holder: Holder, count: int) -> None:
        self.holder = holder
        self.count = count


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

    def __init__(self, hub: Hub, queue: str, exit_when: str, lease_ms: int | None) -> None:
        self.held: dict[Turn, _Held] = {}
        self._hub = hub
        self._queue = queue
        self._queues = (queue,)
        self._exit_when = exit_when
        self._lease_ms = lease_ms
        self._pack = Giver(queue, hub).pack

    def steal(self, turn: Turn, steal: Steal, until: int | None = None) -> None:
        """Tasks for a worker; if there are none, perhaps a little later. ``until``: how long it may
        be held; None: it has just been asked.
        """
        hub = self._hub
        counts = hub.counts(self._queue)
        ready = counts[_READY] if counts is not None else 0
        # Seen before it is asked, so that the answer tells of nothing that is not on disk then.
        drained = not ready and self.is_drained()
        count = min(steal.count, ready)
        token = hub.token
        claim = Claim(
            queues=self._queues,
            holder=steal.holder,
            tokens=(token(),) if count <= 1 else tuple([token() for _ in range(count)]),
            term_ms=self._lease_ms,
            early=ready > 0,  # a no waits for the disk, since it may be the last word
        )

        def settle(reply: Reply) -> None:
            if type(reply) is not Claimed:
                assert isinstance(reply, Refusal)
                turn.tell(reply)
            elif reply.jobs:
                self._give(turn, reply.jobs)
            elif drained:
                turn.say(Kind.EXIT)
            else:
                self._hold_or_refuse(turn, steal, until)

        hub.ask(claim, settle)

    def _give(self, turn: Turn, jobs: tuple[Job, ...]) -> None:
        hub = self._hub
        pack = self._pack
        tasks = (pack(jobs[0]),) if len(jobs) == 1 else [pack(job) for job in jobs]

        def undelivered() -> None:
            # Nobody saw them: they go back, and no attempt is charged.
            for job in jobs:
                assert job.lease is not None
                hub.ask(Release(job_id=job.job_id, proof=ByToken(job.lease.token)))

        turn.answer(encode_given(tasks), undelivered)

    # Holding.

    def _hold_or_refuse(self, turn: Turn, steal: Steal, until: int | None) -> None:
        if until is None:
            until = self._hub.now() + int(HOLD_SECONDS * 1000)
        if self._may_hold(steal.holder, until):
            self._hold(_Held(turn, steal, until))
        else:
            turn.say(Kind.NOT_FOUND)

    def _may_hold(self, holder: Holder, until: int) -> bool:
        """D18: a worker that has work may be about to report it over the very same socket."""
        hub = self._hub
        return hub.now() < until and not hub.draining and not hub.leased_ids(holder)

    def _hold(self, held: _Held) -> None:
        self.held[held.turn] = held
        seconds = (held.until - self._hub.now()) / 1000
        held.leave = self._hub.sleep(self._queue, lambda: self._try_again(held, held.until))
        held.call_off = self._hub.later(seconds, lambda: self._try_again(held, 0))

    def _try_again(self, held: _Held, until: int) -> None:
        if self.held.pop(held.turn, None) is None:
            return
        held.leave()
        held.call_off()
        self.steal(held.turn, held.steal, until)

    def let_go(self, turn: Turn | None) -> None:
        """Answer this steal now, if it is held."""
        held = self.held.get(turn) if turn is not None else None
        if held is not None:
            self._try_again(held, 0)

    def let_all_go(self) -> None:
        """Answer all that are held."""
        for held in list(self.held.values()):
            self._try_again(held, 0)

    def look(self) -> None:
        """After a commit: if there is nothing left to wait for, say so at once."""
        if self.held and self._exit_when != "never" and self.is_drained():
            self.let_all_go()

    # The end of a graph.

    def is_drained(self) -> bool:
        """D19 and D20: nothing is left that could ever be handed out."""
        if self._exit_when == "never":
            return False
        counts = self._hub.counts(self._queue)
        if counts is None:
            return self._exit_when == "always"
        if counts[State.READY] or counts[State.LEASED] or counts[State.DELAYED]:
            return False
        return not counts[State.BLOCKED] or self._hub.is_stuck(self._queue)
