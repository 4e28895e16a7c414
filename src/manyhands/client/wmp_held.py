"""A job that a WMP worker has, and how an attempt at it may end."""

import enum

from manyhands.protocols.wmp.codec import Control, Path, Property


class End(enum.Enum):
    """How an attempt ended."""

    OK = b"ok"
    ERROR = b"error"  # to be retried
    FAIL = b"fail"  # for good
    REFUSED = b"refused"  # given back, not charged


Where = tuple[int, Path]  # a link and the trail after it


class Held:
    """A job that this worker has."""

    __slots__ = (
        "attempt", "cancelled", "data", "job_id", "lease", "lease_ms", "manager", "name", "role",
        "status_at", "where",
    )  # fmt: skip

    def __init__(self, where: Where, control: Control, data: bytes) -> None:
        self.where = where
        self.job_id = control.need(b"job")
        self.lease = control.need(b"lease")
        self.manager = control.need(b"manager")
        self.lease_ms = control.number(b"timeout", 0, 2**40)  # 0: no expiry
        self.role = control.text(b"role") or ""
        self.name = control.text(b"name") or ""
        self.attempt = control.number(b"attempt", 1, 2**31)
        self.data = data
        self.status_at = 0
        self.cancelled = False

    def proof(self) -> tuple[Property, Property, Property]:
        """The properties that every message about it starts with."""
        return (b"manager", self.manager), (b"job", self.job_id), (b"lease", self.lease)
