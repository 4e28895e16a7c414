"""Sleepers on several servers: a front reports to the owner how many hands sleep for which queue,
and the owner wakes as many as there is work, its own and those of the fronts in turns.
"""

from collections.abc import Callable

from manyhands.dispatch.sleepers import Sleeper, Sleepers

ANYWHERE = ""  # stands for any queue: no queue has this name


class CountedSleepers(Sleepers):
    """Sleepers of this server, counted by queue."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self.far_count = 0  # of those that sleep at other servers
        self._hands: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._on_change = on_change

    def sleep(self, sleeper: Sleeper) -> None:
        if not sleeper.asleep:
            super().sleep(sleeper)
            self._count(sleeper, sleeper.hands)

    def leave(self, sleeper: Sleeper) -> None:
        if sleeper.asleep:
            super().leave(sleeper)
            self._count(sleeper, -sleeper.hands)

    def _count(self, sleeper: Sleeper, by: int) -> None:
        if type(sleeper) is FarHand:
            self.far_count += by
            return  # it sleeps at another server
        hands = self._hands
        for queue in (ANYWHERE,) if sleeper.anywhere else dict.fromkeys(sleeper.queues):
            count = hands[queue] = hands.get(queue, 0) + by
            if not count:
                del hands[queue]
            self._changed[queue] = None
        if self._changed:
            self._on_change()

    @property
    def own_count(self) -> int:
        return self.count - self.far_count

    def changes(self) -> tuple[tuple[str, int], ...]:
        """Queues where the number of hands has changed since the last call."""
        changed, self._changed = self._changed, {}
        return tuple((queue, self._hands.get(queue, 0)) for queue in changed)

    def forget_changes(self) -> None:
        """The next call of ``changes`` lists all hands, for an owner that knows of none."""
        self._changed = dict.fromkeys(self._hands)


class FarHand(Sleeper):
    """One hand that sleeps at another server."""

    __slots__ = ()


class FarHands:
    """The hands of one front, as they sleep at the owner."""

    def __init__(self, sleepers: Sleepers, wake: Callable[[str], None]) -> None:
        self._sleepers = sleepers
        self._wake = wake
        self._asleep: dict[str, dict[FarHand, None]] = {}

    def want(self, queue: str, hands: int) -> bool:
        """Has so many asleep for a queue; returns whether these are more than before."""
        asleep = self._asleep.setdefault(queue, {})
        before = len(asleep)
        while len(asleep) < hands:
            hand = self._hand(queue, asleep)
            asleep[hand] = None
            self._sleepers.sleep(hand)
        while len(asleep) > hands:
            hand, _ = asleep.popitem()
            self._sleepers.leave(hand)
        if not asleep:
            del self._asleep[queue]
        return hands > before

    def _hand(self, queue: str, asleep: dict[FarHand, None]) -> FarHand:
        def wake(found: str) -> None:
            asleep.pop(hand, None)
            self._wake(found)

        hand = FarHand(None if queue == ANYWHERE else (queue,), wake)
        return hand

    def leave(self) -> None:
        """The front is gone."""
        for queue in list(self._asleep):
            self.want(queue, 0)
