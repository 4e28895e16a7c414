"""What clients of this server wait for, over a change of the server that decides.

The previous one may not have reported the last ends that it wrote down: it died, or the link broke.
And it may have accepted jobs that end with their waiters (rule 22) before they were written down:
their waiters are here, and still wait.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from manyhands.model.commands import Attach, Command, NewJob, OnExisting, Submit
from manyhands.model.job import FINISHED
from manyhands.model.replies import Changed, Reply, Submitted, SubmittedMany
from manyhands.store.batch import Batch
from manyhands.store.contract import Live

_ACCEPTED_MAX: Final = 10_000


class Waits:
    """Kept while another server decides."""

    def __init__(self, live: Live, is_here: Callable[[str], bool]) -> None:
        """``is_here``: whether a connection is one of this server."""
        self._live = live
        self._is_here = is_here
        self._awaited: dict[str, dict[str, None]] = {}  # connections by the job they wait for
        self._looked_up: set[str] = set()
        self._accepted: dict[str, NewJob] = {}  # by the id of the job, until it is written down

    def remember(self, connections: list[str]) -> None:
        """What is known of the jobs is about to be replaced by what the next one knows."""
        for name in connections:
            for job_id in self._live.view.waited_by(name):
                self._expect(job_id, name)

    def _expect(self, job_id: str, name: str) -> None:
        self._awaited.setdefault(job_id, {})[name] = None

    def asked_again(self, command: Command, reply: Reply) -> None:
        """A command was answered that was asked before the change: since then what it is about may
        have ended.
        """
        if type(command) is Submit and type(reply) is SubmittedMany:
            for item, found in zip(command.items, reply.items, strict=True):
                if item.waiter is not None and type(found) is Submitted:
                    self._expect(found.job.job_id, item.waiter)
        elif type(command) is Attach and type(reply) is Changed and command.waiter is not None:
            self._expect(reply.job.job_id, command.waiter)

    def ended(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Jobs that are not waited for any more where all is known again, with who waited."""
        awaited, self._awaited = self._awaited, {}
        for job_id, names in awaited.items():
            job = self._live.live_job(job_id)
            left = tuple(name for name in names if self._is_here(name))
            if left and (job is None or job.state in FINISHED):
                self._looked_up.add(job_id)
                yield job_id, left

    def is_unreported(self, job_id: str) -> bool:
        """Whether the end of a job was not reported while it was looked up."""
        found = job_id in self._looked_up
        self._looked_up.discard(job_id)
        return found

    def reported(self, job_id: str) -> None:
        """The clients that wait for this job are notified of its end."""
        self._looked_up.discard(job_id)
        self._awaited.pop(job_id, None)
        self._accepted.pop(job_id, None)

    def accepted(self, command: Submit, reply: Reply) -> None:
        """A submit was answered early."""
        if type(reply) is not SubmittedMany:
            return
        accepted = self._accepted
        for item, found in zip(command.items, reply.items, strict=True):
            if type(found) is not Submitted or found.job.durable_interest:
                continue
            job_id = found.job.job_id
            if self._live.live_job(job_id) is None:
                accepted[job_id] = item
                if len(accepted) > _ACCEPTED_MAX:
                    del accepted[next(iter(accepted))]

    def written(self, batch: Batch) -> None:
        """These jobs are written down."""
        accepted = self._accepted
        if accepted:
            for job_id in batch.values:
                accepted.pop(job_id, None)

    def unwritten(self) -> list[Submit]:
        """Submits of the jobs that may be lost; those that are there are left as they are."""
        accepted, self._accepted = self._accepted, {}
        return [
            Submit(
                (replace(item, job_id=job_id, id_chosen=True, on_existing=OnExisting.KEEP),),
                early=True,
            )
            for job_id, item in accepted.items()
            if item.waiter is not None and self._is_here(item.waiter)
        ]
