"""Leases ended by their own holder moving the job: no notice is needed for those."""

from typing import Final

from manyhands.model.job import Job, Lease
from manyhands.protocols.qless.items import REALM

_EXPECTED_MAX: Final = 10_000


class OwnMoves:
    """Moves requested by the holders themselves, until their signals arrive."""

    def __init__(self) -> None:
        self._tokens: dict[str, None] = {}

    def expect(self, job: Job | None, name: str | None, address: str) -> None:
        """Notes that this peer is about to move the job."""
        lease = job.lease if job is not None else None
        if lease is None or lease.holder.realm != REALM:
            return
        if (lease.holder.name or lease.holder.address) in (name, address):
            self._tokens[lease.token] = None
            if len(self._tokens) > _EXPECTED_MAX:  # left over from refused moves
                del self._tokens[next(iter(self._tokens))]

    def covers(self, lease: Lease) -> bool:
        """Whether the holder itself ended this lease."""
        return lease.token in self._tokens and self._tokens.pop(lease.token, None) is None
