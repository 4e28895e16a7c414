"""Jobs whose arguments are outputs of others, which are fetched before the task runs (P19)."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from manyhands.client.errors import Refused
from manyhands.client.notes import View
from manyhands.client.outputs import HEADER, filled, references, settled
from manyhands.client.worker.execution import BAD_ARGUMENTS, Outcome, refused
from manyhands.client.worker.run import Run
from manyhands.client.worker_stream import WorkerStream

_LOOK_COUNT_MAX: Final = 500


class Dependencies:
    """Asks for the outputs that a message of jobs needs, all at once."""

    def __init__(
        self,
        stream: WorkerStream,
        admit: Callable[[Run], None],
        refuse: Callable[[Run, Outcome], None],
    ) -> None:
        self._stream = stream
        self._admit = admit
        self._refuse = refuse
        self._waiting: list[tuple[Run, list[str]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def await_outputs(self, run: Run) -> bool:
        """Whether the job has to wait for outputs; it is admitted when they are there."""
        headers = run.given.headers or {}
        if HEADER not in headers:
            return False
        try:
            run.payload = settled(run.payload, headers)
            needed = references(run.payload)
        except (msgspec.MsgspecError, RecursionError):
            return False  # the arguments do not fit, which the task's decoder says best
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._fetch())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting.append((run, needed))
        return True

    async def _fetch(self) -> None:
        waiting, self._waiting = self._waiting, []
        needed = list(dict.fromkeys(job_id for _, ids in waiting for job_id in ids))
        views: dict[str, View] = {}
        problem = ""
        while needed:
            try:
                found = await self._stream.look(needed[:_LOOK_COUNT_MAX])
            except Refused as error:
                problem = str(error)
                break
            if not found:
                break
            views.update((view.id, view) for view in found)
            needed = [job_id for job_id in needed if job_id not in views]
        for run, _ in waiting:
            try:
                run.payload = filled(run.payload, views)
            except LookupError as error:
                sentence = problem or str(error)
                self._refuse(run, refused(run, BAD_ARGUMENTS, sentence, retry=bool(problem)))
            else:
                self._admit(run)
