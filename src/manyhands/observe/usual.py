"""How long attempts usually take, so that a worker that holds a job for much longer stands out."""

from typing import Final

from manyhands.model.history import merged, quantile
from manyhands.observe.history import History
from manyhands.observe.seen_history import SeenHistory

# What is usual for a queue: 99 of 100 attempts of the last hour took less.
_SHARE: Final = 0.99
_ATTEMPTS_MIN: Final = 20
_KEPT_MS: Final = 60_000
_KEPT_MAX: Final = 2_000
_READ_MAX: Final = 20  # queues that are read at a time


class Usual:
    """The usual duration of attempts in each queue, at most a minute old."""

    def __init__(self, history: History | SeenHistory) -> None:
        self._history = history
        self._kept: dict[str, tuple[int, float | None]] = {}

    async def read(self, queues: set[str], now: int) -> dict[str, float]:
        """The 99th percentile, in milliseconds, of the queues that had enough attempts."""
        old = [name for name in queues if self._kept.get(name, (0, None))[0] <= now]
        for name in sorted(old)[:_READ_MAX]:
            run = merged(point.sample for point in await self._history.read("1h", name)).run
            enough = sum(run) >= _ATTEMPTS_MIN
            self._kept[name] = (now + _KEPT_MS, quantile(run, _SHARE) if enough else None)
        if len(self._kept) > _KEPT_MAX:
            self._kept = {name: kept for name, kept in self._kept.items() if kept[0] > now}
        usual = {name: self._kept.get(name, (0, None))[1] for name in queues}
        return {name: ms for name, ms in usual.items() if ms is not None}
