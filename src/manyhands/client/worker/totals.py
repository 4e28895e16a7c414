"""What all children of a worker have done, the dead ones included."""

from collections.abc import Iterable

from manyhands.client.worker.child_process import ChildProcess
from manyhands.client.worker.messages import Figures
from manyhands.client.worker.tallies import OUTCOMES, Tally


def add(sums: dict[str, Tally], figures: Figures) -> None:
    """Adds the figures of a child."""
    for task, tally in figures.by_task.items():
        total = sums.setdefault(task, Tally())
        for name in (*OUTCOMES, "seconds"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))


class Totals:
    """Figures over the whole life of a supervisor."""

    def __init__(self) -> None:
        self.deaths = 0
        self._reconnects = 0
        self._ended: dict[str, Tally] = {}  # of children that are no more

    def keep(self, figures: Figures | None) -> None:
        """A child has ended."""
        if figures is not None:
            add(self._ended, figures)
            self._reconnects += figures.reconnects

    def by_task(self, children: Iterable[ChildProcess]) -> dict[str, Tally]:
        """Jobs by task."""
        sums: dict[str, Tally] = {}
        add(sums, Figures(self._ended, 0, 0, 0, is_connected=False))
        for child in children:
            if child.figures is not None:
                add(sums, child.figures)
        return sums

    def reconnects(self, children: Iterable[ChildProcess]) -> int:
        """Connections that were made again."""
        return self._reconnects + sum(
            child.figures.reconnects for child in children if child.figures is not None
        )
