"""The paths to the holders of leases, as far as known, for CANCEL.

A lease is proved by its token only. The path is a hint: that of TAKE, or of a later STATUS, which
may have taken another one. After a restart it is known again with the next STATUS.
"""

from msgspec import Struct

from manyhands.model.events import Event
from manyhands.model.job import Job, State
from manyhands.model.reasons import Reason
from manyhands.protocols.wmp.codec import Command, Path, Property, encode
from manyhands.protocols.wmp.hub import Hub, way_back

_LOST = b"lost"


class Holding(Struct, frozen=True, gc=False):
    """A lease, and the path to its holder."""

    number: int
    lease: bytes
    path: Path


class Holdings:
    """Leases of one socket's workers, by job."""

    def __init__(self, hub: Hub, manager: bytes) -> None:
        self._hub = hub
        self._manager: Property = (b"manager", manager)
        self._known: dict[str, Holding] = {}
        # Leases reported from another path, until it is on disk that they are valid.
        self._learning: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def hold(self, job: Job, path: Path) -> None:
        """Notes a lease, and the path it was handed out or reported on."""
        lease = job.lease
        assert lease is not None
        known = self._known.get(job.job_id)
        if known is not None and known.number < lease.number:
            self.cancel(known.path, job.job_id, known.lease, _LOST)
        self._known[job.job_id] = Holding(lease.number, bytes.fromhex(lease.token), path)

    def is_at(self, job_id: str, path: Path) -> bool:
        """Whether that path is already known."""
        known = self._known.get(job_id)
        return known is not None and known.path == path

    def begin_learning(self, lease: bytes) -> None:
        """Notes that a message which may prove a lease came along an unknown path."""
        self._learning.add(lease)

    def learn(self, job: Job | None, lease: bytes, path: Path) -> None:
        """The lease was proved or, with None, was not. A report of its end may have
        overtaken this.
        """
        if lease in self._learning:
            self._learning.discard(lease)
            if job is not None and job.lease is not None:
                self.hold(job, path)

    def drop(self, job_id: str, number: int) -> None:
        """That lease, or an earlier one, has ended."""
        known = self._known.get(job_id)
        if known is not None and known.number <= number:
            del self._known[job_id]

    def reported(self, job_id: str, lease: bytes) -> None:
        """The holder itself ends the lease, so it needs no CANCEL."""
        self._learning.discard(lease)
        known = self._known.get(job_id)
        if known is not None and known.lease == lease:
            del self._known[job_id]

    def committed(self, event: Event) -> None:
        """A state change is on disk. A worker that lost its lease by it gets CANCEL (W38, W39)."""
        known = self._known.get(event.job_id)
        if known is None or known.number > event.lease_number:
            return
        if event.state is State.LEASED:
            if known.number == event.lease_number:
                return  # this lease began, or was revived
        elif event.reason is Reason.LAPSED:
            return  # it may still go on
        del self._known[event.job_id]
        reason = b"cancelled" if event.state is State.CANCELLED else _LOST
        self.cancel(known.path, event.job_id, known.lease, reason)

    def cancel(self, path: Path, job_id: str, lease: bytes, reason: bytes) -> None:
        """Sends CANCEL: nothing more is expected."""
        control = encode(
            Command.CANCEL,
            self._manager,
            (b"job", job_id.encode()),
            (b"lease", lease),
            (b"reason", reason),
        )
        self._hub.send(way_back(path), control, None)
