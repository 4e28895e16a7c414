"""Leases in the index: which worker holds which jobs, and the use of named limits."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from manyhands.model.job import Holder, Job, Lease, State
from manyhands.store.index.tables import Table, add, discard

_LEASED: Final = State.LEASED


class Leases:
    """Leased jobs by what ends the lease: the end of a connection, or a request of a worker."""

    __slots__ = ("by_connection", "by_holder", "limits_used")

    def __init__(self) -> None:
        self.by_connection: Table[str] = {}
        self.by_holder: Table[tuple[str, str | None]] = {}  # realm and name
        self.limits_used: dict[str, int] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self.by_connection.clear()
        self.by_holder.clear()
        self.limits_used.clear()

    def put(self, old: Job | None, job: Job) -> None:
        """Takes a job whose lease changed or ended."""
        before = old.lease if old is not None else None
        after = job.lease
        if before is not None:
            if before.connection is not None:
                discard(self.by_connection, before.connection, job.job_id)
            else:
                holder = before.holder
                discard(self.by_holder, (holder.realm, holder.name), job.job_id)
        if after is not None:
            if after.connection is not None:
                bound = self.by_connection.get(after.connection)
                if bound is None:  # not `add`: this is the hot path
                    self.by_connection[after.connection] = {job.job_id: None}
                else:
                    bound[job.job_id] = None
            else:
                holder = after.holder
                add(self.by_holder, (holder.realm, holder.name), job.job_id)
        if job.limits:
            held_before = old is not None and old.state is _LEASED
            held = job.state is _LEASED
            if held != held_before:
                for name in job.limits:
                    step = 1 if held else -1
                    self.limits_used[name] = self.limits_used.get(name, 0) + step

    def begin(self, job_id: str, lease: Lease) -> None:
        """Takes the first lease of a job without named limits."""
        connection = lease.connection
        if connection is None:
            add(self.by_holder, (lease.holder.realm, lease.holder.name), job_id)
            return
        bound = self.by_connection.get(connection)
        if bound is None:
            self.by_connection[connection] = {job_id: None}
        else:
            bound[job_id] = None

    def end(self, job_id: str, lease: Lease) -> None:
        """Forgets a lease of such a job."""
        connection = lease.connection
        if connection is None:
            discard(self.by_holder, (lease.holder.realm, lease.holder.name), job_id)
            return
        bound = self.by_connection.get(connection)
        if bound is not None:
            bound.pop(job_id, None)
            if not bound:
                del self.by_connection[connection]

    def of_connection(self, connection: str) -> Sequence[str]:
        """Jobs that go back to their queue when the connection ends."""
        return tuple(self.by_connection.get(connection, ()))

    def of_holder(self, holder: Holder) -> Sequence[str]:
        """Jobs of a worker that is known by name."""
        return tuple(self.by_holder.get((holder.realm, holder.name), ()))

    def all(self) -> list[str]:
        """All leased jobs."""
        return [job_id for ids in self._groups() for job_id in ids]

    def some(self, workers_max: int, jobs_max: int) -> Iterator[tuple[int, list[str]]]:
        """For some workers, the number of jobs each holds and a few of them. A connection counts as
        one worker.
        """
        for ids in islice(self._groups(), workers_max):
            yield len(ids), list(islice(ids, jobs_max))

    def workers_count(self) -> int:
        """The number of workers that hold leases."""
        return len(self.by_holder) + len(self.by_connection)

    def _groups(self) -> Iterator[dict[str, None]]:
        return chain(self.by_holder.values(), self.by_connection.values())
