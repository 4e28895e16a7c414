"""The history as a caller with queue patterns sees it."""

from collections.abc import Sequence

from manyhands.model.history import ALL_QUEUES, Sample
from manyhands.model.roles import Caller
from manyhands.observe.history import History, Point
from manyhands.store.contract import Live

# Queues that are added up for "all queues"; each is read by itself.
_QUEUES_MAX = 200


class SeenHistory:
    """Only samples of the queues that the caller may use."""

    def __init__(self, history: History, live: Live, caller: Caller) -> None:
        self._history = history
        self._live = live  # as the caller sees it
        self._may_use = caller.may_use

    async def read(self, name: str, queue: str = ALL_QUEUES) -> list[Point]:
        """The steps of a range; all queues are those that the caller may use."""
        if queue != ALL_QUEUES:
            points = await self._history.read(name, queue)
            return points if self._may_use(queue) else _added([points[:0]], points)
        known = self._live.queues
        busiest = sorted(known, key=lambda one: -sum(known[one].counts.values()))
        read = [await self._history.read(name, one) for one in busiest[:_QUEUES_MAX]]
        return _added(read, read[0] if read else await self._history.read(name))

    def rate(self) -> float | None:
        """It is measured for all queues together, so there is none here."""
        return None

    def handed_out(self, instants: Sequence[int], step_ms: int) -> dict[str, list[int]]:
        """It is counted by protocol only."""
        del instants, step_ms
        return {}

    async def recent(self, minutes: int) -> dict[str, Sample]:
        """What happened in each queue in the last minutes."""
        found = await self._history.recent(minutes)
        return {queue: sample for queue, sample in found.items() if self._may_use(queue)}


def _added(parts: Sequence[Sequence[Point]], steps: Sequence[Point]) -> list[Point]:
    """Several queues added up, step by step. A depth is that of its moment: depths add up, too."""
    totals = {point.at: Sample() for point in steps}
    for points in parts:
        for point in points:
            total = totals.get(point.at)
            if total is None:
                continue  # the range moved on between two reads
            depth = [
                one + other
                for one, other in zip(
                    total.depth or [0] * len(point.sample.depth), point.sample.depth, strict=False
                )
            ]
            total.add(point.sample)
            total.depth = depth
    return [Point(at, sample) for at, sample in totals.items()]
