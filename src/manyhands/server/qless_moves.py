"""Leases that their own holder ended by moving the job: nobody needs to be told of those."""

from typing import Final

from manyhands.model.job import Job, Lease
from manyhands.protocols.qless.items import REALM

_EXPECTED_MAX: Final = 10_000


class OwnMoves:
    """Moves that were asked for by the holders themselves, until their news come by."""

    def __init__(self) -> None:
        self._tokens: dict[str, None] = {}

    def expect(self, job: Job | None, name: str | None, address: str) -> None:
        """Somebody is about to move this job."""
        lease = job.lease if job is not None else None
        if lease is None or lease.holder.realm != REALM:
            return
        if (lease.holder.name or lease.holder.address) in (name, address):
            self._tokens[lease.token] = None
            if len(self._tokens) > _EXPECTED_MAX:  # of moves that were refused
                del self._tokens[next(iter(self._tokens))]

    def covers(self, lease: Lease) -> bool:
        """Whether the end of this lease is its holder's own doing."""
        return lease.token in self._tokens and self._tokens.pop(lease.token, None) is None
