"""Sleepers: workers of every protocol that wait for work. Waiting is not job state.

As many hands are woken as there are jobs, the longest asleep first; a sleeper may have several. A
woken sleeper is removed from the list; it has to sleep again by itself.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from manyhands.model.job import Holder


class Sleeper:
    """A worker that waits for work in some queues, to be woken once. None means any queue; an empty
    list means no queue. ``hands`` is the number of jobs that it can take.
    """

    __slots__ = ("anywhere", "asleep", "hands", "holder", "queues", "wake")

    def __init__(
        self,
        queues: Iterable[str] | None,
        wake: Callable[[str], None],
        holder: Holder | None = None,
        hands: int = 1,
    ) -> None:
        self.queues = () if queues is None else tuple(queues)
        self.anywhere = queues is None
        self.wake = wake  # called with the queue that has work
        self.hands = hands
        self.asleep = False
        self.holder = holder  # the worker, if it is known; for display


class Sleepers:
    """Sleepers by queue."""

    def __init__(self) -> None:
        self._asleep: dict[str, dict[Sleeper, None]] = {}
        self.anywhere: dict[Sleeper, None] = {}  # those who do any work
        self._known: dict[Sleeper, None] = {}  # those whose worker is known
        self.count = 0

    def sleep(self, sleeper: Sleeper) -> None:
        """Adds a sleeper."""
        if sleeper.asleep:
            return
        sleeper.asleep = True
        self.count += 1
        if sleeper.holder is not None:
            self._known[sleeper] = None
        if sleeper.anywhere:
            self.anywhere[sleeper] = None
        for queue in sleeper.queues:
            self._asleep.setdefault(queue, {})[sleeper] = None

    def leave(self, sleeper: Sleeper) -> None:
        """Removes a sleeper."""
        if not sleeper.asleep:
            return
        sleeper.asleep = False
        self.count -= 1
        self._known.pop(sleeper, None)
        self.anywhere.pop(sleeper, None)
        for queue in sleeper.queues:
            found = self._asleep.get(queue)
            if found is not None:
                found.pop(sleeper, None)
                if not found:
                    del self._asleep[queue]

    @property
    def own_count(self) -> int:
        """Those that are connected to this server."""
        return self.count

    def is_wanted(self, queue: str) -> bool:
        """Whether this queue has a sleeper."""
        return queue in self._asleep or bool(self.anywhere)

    def known(self, count_max: int) -> list[Sleeper]:
        """Sleepers whose worker is known, the longest asleep first."""
        return list(islice(self._known, count_max))

    def queues(self) -> list[str]:
        """Queues that have a sleeper."""
        return list(self._asleep)

    def wake(self, queue: str, count: int) -> int:
        """Wakes sleepers for so many jobs; returns how many they can take."""
        woken = 0
        while woken < count:
            found = self._asleep.get(queue) or self.anywhere
            if not found:
                break
            sleeper = next(iter(found))
            self.leave(sleeper)
            woken += sleeper.hands
            sleeper.wake(queue)
        return woken
