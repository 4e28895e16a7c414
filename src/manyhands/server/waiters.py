"""Who sleeps for work: the one place, for every protocol. Waiting is not job state.

Sleepers are woken as many as there are jobs, the longest asleep first. A woken sleeper is out of
the list; it sleeps again or leaves by its own word.
"""

from collections.abc import Callable, Iterable


class Sleeper:
    """Somebody who wants to hear of work in some queues, once. None: in whatever queue there is;
    an empty list is no queue at all.
    """

    __slots__ = ("anywhere", "asleep", "queues", "wake")

    def __init__(self, queues: Iterable[str] | None, wake: Callable[[str], None]) -> None:
        self.queues = () if queues is None else tuple(queues)
        self.anywhere = queues is None
        self.wake = wake  # called with the queue that has work
        self.asleep = False


class Waiters:
    """Sleepers by queue."""

    def __init__(self) -> None:
        self._asleep: dict[str, dict[Sleeper, None]] = {}
        self.anywhere: dict[Sleeper, None] = {}  # those who do any work
        self.count = 0

    def sleep(self, sleeper: Sleeper) -> None:
        """From now on it hears of work."""
        if sleeper.asleep:
            return
        sleeper.asleep = True
        self.count += 1
        if sleeper.anywhere:
            self.anywhere[sleeper] = None
        for queue in sleeper.queues:
            self._asleep.setdefault(queue, {})[sleeper] = None

    def leave(self, sleeper: Sleeper) -> None:
        """It does not want to hear any more."""
        if not sleeper.asleep:
            return
        sleeper.asleep = False
        self.count -= 1
        self.anywhere.pop(sleeper, None)
        for queue in sleeper.queues:
            found = self._asleep.get(queue)
            if found is not None:
                found.pop(sleeper, None)
                if not found:
                    del self._asleep[queue]

    def is_wanted(self, queue: str) -> bool:
        """Whether anybody sleeps for this queue."""
        return queue in self._asleep or bool(self.anywhere)

    def queues(self) -> list[str]:
        """Queues that somebody sleeps for."""
        return list(self._asleep)

    def wake(self, queue: str, count: int) -> int:
        """Wake up to ``count`` sleepers; gives how many were woken."""
        woken = 0
        while woken < count:
            found = self._asleep.get(queue) or self.anywhere
            if not found:
                break
            sleeper = next(iter(found))
            self.leave(sleeper)
            woken += 1
            sleeper.wake(queue)
        return woken
