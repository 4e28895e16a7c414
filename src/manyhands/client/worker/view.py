"""A line on the terminal that shows what a worker does."""

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from manyhands.client.worker import terminal
from manyhands.client.worker.tallies import Tally

if TYPE_CHECKING:
    from manyhands.client.worker.supervisor import Supervisor

_SECONDS: Final = 1.0


def line(processes: int, running: int, tallies: Iterable[Tally], rate: float, deaths: int) -> str:
    """The state of a worker in one line."""
    sums = Tally()
    for tally in tallies:
        sums.completed += tally.completed
        sums.failed += tally.failed
        sums.given_back += tally.given_back
    noun = "process" if processes == 1 else "processes"
    return (
        f"{processes} {noun} · {running} running · {rate:,.0f}/s · {sums.completed:,} completed · "
        f"{sums.failed:,} failed · {sums.given_back:,} given back"
        f"{f' · {deaths:,} died' if deaths else ''}"
    )


class LiveView:
    """Draws the line again and again, at the place of the cursor."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self._supervisor = supervisor
        self._last = 0
        self._task = asyncio.get_running_loop().create_task(self._draw())

    async def _draw(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS)
            children = self._supervisor.children
            by_task = self._supervisor.totals.by_task(children)
            done = sum(tally.completed + tally.failed for tally in by_task.values())
            running = sum(child.figures.running for child in children if child.figures is not None)
            rate = (done - self._last) / _SECONDS
            deaths = self._supervisor.totals.deaths
            text = line(len(children), running, by_task.values(), rate, deaths)
            self._last = done
            # A line that fills the last column would go on in the next row.
            sys.stderr.write(f"{text[: terminal.columns() - 1]}\r")
            sys.stderr.flush()

    def close(self) -> None:
        """Leaves an empty line."""
        self._task.cancel()
        sys.stderr.write(terminal.CLEAR)
        sys.stderr.flush()
