"""Where the holders of leases are, as far as is known: the path that CANCEL takes.

A lease is proved by its token and by nothing else. The path is a hint: the one of TAKE, or of a
later STATUS, which may have come another way. After a restart it is known again with the next one.
"""

from msgspec import Struct

from manyhands.model.events import Signal
from manyhands.model.job import EndReason, Job, State
from manyhands.protocols.wmp.hub import Hub, way_back
from manyhands.wire.wmp import Command, Path, Property, encode

_TAKEN = frozenset({EndReason.EXPIRED.value, EndReason.CUTOFF.value})


class Holding(Struct, frozen=True, gc=False):
    """A lease, and the way to its holder."""

    number: int
    lease: bytes
    path: Path


class Holdings:
    """Leases of one socket's workers, by job."""

    def __init__(self, hub: Hub, manager: bytes) -> None:
        self._hub = hub
        self._manager: Property = (b"manager", manager)
        self._known: dict[str, Holding] = {}

    def __len__(self) -> int:
        return len(self._known)

    def hold(self, job: Job, path: Path) -> None:
        """A lease, and where it was taken to or heard from."""
        lease = job.lease
        assert lease is not None
        self._known[job.job_id] = Holding(lease.number, bytes.fromhex(lease.token), path)

    def is_at(self, job_id: str, path: Path) -> bool:
        """Whether that is the way already known."""
        known = self._known.get(job_id)
        return known is not None and known.path == path

    def drop(self, job_id: str, number: int) -> None:
        """That lease, or an earlier one, is over."""
        known = self._known.get(job_id)
        if known is not None and known.number <= number:
            del self._known[job_id]

    def told(self, signal: Signal) -> None:
        """A lease was taken away by somebody's word: its holder hears of it (W39)."""
        lease = signal.lease
        if lease is None or lease.holder.realm != "wmp" or signal.job.state is State.LEASED:
            return
        known = self._known.get(signal.job.job_id)
        if known is None or known.number != lease.number:
            return
        del self._known[signal.job.job_id]
        reason = b"cancelled" if signal.job.state is State.CANCELLED else b"lost"
        self.cancel(known.path, signal.job.job_id, known.lease, reason)

    def ended(self, job_id: str, number: int, reason: str) -> None:
        """A commit says that a job left its lease. One that ran out is told to its holder."""
        known = self._known.get(job_id)
        if known is None or known.number > number or reason == "lapsed":
            return
        del self._known[job_id]
        if reason in _TAKEN and known.number == number:
            self.cancel(known.path, job_id, known.lease, b"lost")

    def cancel(self, path: Path, job_id: str, lease: bytes, reason: bytes) -> None:
        """Say that nothing more is expected."""
        control = encode(
            Command.CANCEL,
            self._manager,
            (b"job", job_id.encode()),
            (b"lease", lease),
            (b"reason", reason),
        )
        self._hub.send(way_back(path), control, None)
