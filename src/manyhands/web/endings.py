"""HTTP requests that wait for jobs to finish. Each costs one entry in a table until then."""

from typing import Final

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.job import FINISHED
from manyhands.store.batch import Batch
from manyhands.web.naps import Nap

# A waiting request also holds a connection, which has its own limit; this one is for the table.
WAITING_COUNT_MAX: Final = 50_000


class Endings:
    """Wakes the waiters of a job when its end is committed."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.count = 0
        self._naps: dict[str, dict[Nap, None]] = {}
        dispatcher.on_batch.append(self._note)

    def add(self, job_id: str, nap: Nap) -> None:
        """Ends the nap when the job finishes."""
        self._naps.setdefault(job_id, {})[nap] = None
        self.count += 1

    def remove(self, job_id: str, nap: Nap) -> None:
        """Removes a nap that no longer waits."""
        naps = self._naps[job_id]
        del naps[nap]
        self.count -= 1
        if not naps:
            del self._naps[job_id]

    def _note(self, batch: Batch, _elapsed_ms: float) -> None:
        waiting = self._naps
        if not waiting:
            return
        jobs = batch.values
        fewer, more = (waiting, jobs) if len(waiting) < len(jobs) else (jobs, waiting)
        for job_id in fewer:
            if job_id in more and jobs[job_id].state in FINISHED:
                for nap in waiting[job_id]:
                    nap.end()
