"""Outcomes on their way to the server: gathered by threads, sent by the loop (P46, P47)."""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from manyhands.client.errors import Refused
from manyhands.client.worker.execution import BAD_RESULT, Outcome, refused
from manyhands.client.worker.run import Run
from manyhands.client.worker.tallies import COMPLETED, FAILED, GIVEN_BACK
from manyhands.client.worker_stream import WorkerStream

_log: Final = logging.getLogger("manyhands.worker")
GATHERED_MAX: Final = 64
GATHERED_SECONDS: Final = 0.001
_UNANSWERED_MAX: Final = 4
_LISTS: Final = {COMPLETED: "done", FAILED: "failed", GIVEN_BACK: "released"}


class Reports:
    """Sends outcomes in groups. ``settle`` is called in the loop for each group that leaves,
    ``was_refused`` for each report that the server did not take.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: WorkerStream,
        settle: Callable[[Sequence[tuple[Run, Outcome]]], None],
        sent: Callable[[], None],
        was_refused: Callable[[Run], None],
    ) -> None:
        self._loop = loop
        self._context = contextvars.copy_context()  # not that of a job
        self._stream = stream
        self._settle = settle
        self._sent = sent
        self._was_refused = was_refused
        self._gathered: deque[tuple[Run, Outcome]] = deque()
        self._is_woken = False
        self._left_at = 0.0
        self._unanswered = 0
        self._answered = asyncio.Event()
        self._answered.set()

    def add(self, run: Run, outcome: Outcome, *, is_last: bool) -> None:
        """From any thread. ``is_last``: there is nothing else to do."""
        self._gathered.append((run, outcome))
        if self._is_woken:
            return
        if (
            is_last
            or len(self._gathered) >= GATHERED_MAX
            or perf_counter() - self._left_at >= GATHERED_SECONDS
        ):
            self._is_woken = True
            self._loop.call_soon_threadsafe(self.flush, context=self._context)

    def flush(self) -> None:
        """Sends what was gathered. In the loop."""
        self._is_woken = False
        while self._gathered and self._unanswered < _UNANSWERED_MAX:
            self._send()
        self._left_at = perf_counter()
        self._sent()

    def _send(self) -> None:
        take = self._gathered.popleft
        ended = [take() for _ in range(min(len(self._gathered), self._stream.limits.items))]
        self._settle(ended)
        self._report(ended)

    def _report(self, ended: Sequence[tuple[Run, Outcome]]) -> None:
        reports: dict[str, list[Any]] = {}
        runs: dict[str, list[Run]] = {}
        for kind, name in _LISTS.items():
            if own := [each for each in ended if each[1].kind is kind]:
                reports[name] = [outcome.report for _, outcome in own]
                runs[name] = [run for run, _ in own]
        if not reports:
            return
        self._unanswered += 1
        self._answered.clear()
        answer = self._stream.report(**reports)
        answer.add_done_callback(lambda future: self._on_answer(future, runs, ended))

    def _on_answer(
        self,
        answer: "asyncio.Future[Any]",
        runs: dict[str, list[Run]],
        ended: Sequence[tuple[Run, Outcome]],
    ) -> None:
        self._unanswered -= 1
        if not answer.cancelled():
            try:
                refusals = answer.result()
            except Refused as error:
                self._on_refusal(error, ended)
            else:
                for each in refusals:
                    self._warn(runs[each.list][each.index], each.sentence)
        if self._gathered and not self._is_woken:
            self.flush()
        elif not self._unanswered:
            self._answered.set()

    def _on_refusal(self, error: Refused, ended: Sequence[tuple[Run, Outcome]]) -> None:
        """A whole note was refused, so that nothing in it was carried out."""
        if error.code == "closed":
            # Jobs that came while the worker left are not lost: it gives back all that it holds.
            if any(outcome.kind != GIVEN_BACK for _, outcome in ended):
                _log.warning("a report on %d jobs was refused: %s", len(ended), error)
        elif len(ended) > 1:
            # One of them is to blame, or they are too large together.
            half = len(ended) // 2
            self._report(ended[:half])
            self._report(ended[half:])
        else:
            [(run, outcome)] = ended
            self._warn(run, str(error))
            if outcome.kind != GIVEN_BACK and outcome.report[2] != BAD_RESULT:
                sentence = f"the outcome cannot be stored: {error.message}"
                self._report([(run, refused(run, BAD_RESULT, sentence, retry=True))])

    def _warn(self, run: Run, sentence: str) -> None:
        """P47: the lease was lost, and nobody had said so in time."""
        _log.warning(
            "the report on job %s of task %s, which ran %.3f s, was refused: %s",
            run.given.id,
            run.task.name,
            run.took,
            sentence,
        )
        self._was_refused(run)

    async def wait(self) -> None:
        """Until everything that was reported is on the server's disk."""
        while self._gathered or self._unanswered:
            self.flush()
            await self._answered.wait()
