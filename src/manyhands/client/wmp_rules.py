"""What a WMP worker does, without sockets, threads or a clock: messages in, messages out.

Slots are free, locked (a GIVE is under way) or busy (a job). A worker sends READY to each manager
that has no valid READY of it, remembers which managers have more work and asks those first, in
turns, and keeps each result until the manager has recorded it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from manyhands.client.wmp_held import End, Held, Where
from manyhands.protocols.wmp.codec import (
    MANAGER,
    Command,
    Control,
    Malformation,
    Packet,
    Property,
    WireError,
    decimal,
    decode,
    encode,
    pack,
    signature_of,
    unpack,
)

LOCK_MS: Final = 5_000
TTL_MS: Final = 60_000
_READY_MS: Final = 5_000  # before READY is repeated; doubled each time, up to half the ttl
_RESEND_MS: Final = 1_000  # before DONE is repeated; doubled each time
_RESEND_MS_MAX: Final = 30_000
_JITTER: Final = 0.2
# Unacknowledged results kept; above that, the oldest are dropped.
_KEPT_COUNT_MAX: Final = 10_000
# A WAKE that came while all slots were busy is worth a GIVE for that long.
_WANTED_MS: Final = 30_000


class Outside(Protocol):
    """Carries out what the rules decide."""

    def send(self, link: int, frames: list[bytes]) -> bool:
        """Sends a message; returns False if there is no connection."""

    def begin(self, job: Held) -> None:
        """Starts the job; ``finish`` is called when it is done."""

    def cancel(self, job: Held) -> None:
        """The job's result is no longer wanted."""

    def recorded(self, job: Held, reason: bytes) -> None:
        """The manager's answer to a result: ``recorded``, or why not."""


class _Link:
    """One connection, to a manager or to a device."""

    __slots__ = ("ready_at", "ready_ms", "standing")

    def __init__(self) -> None:
        self.standing = False  # it has a valid READY, as far as we know
        self.ready_at = 0  # when READY is repeated anyway
        self.ready_ms = _READY_MS


class _Lock:
    """Slots that wait for the answer to a GIVE."""

    __slots__ = ("expires_at", "is_fresh", "left", "where")

    def __init__(self, where: Where, left: int, expires_at: int) -> None:
        self.where = where
        self.left = left
        self.expires_at = expires_at
        self.is_fresh = True  # no TAKE yet


class _Kept:
    """A result that is not acknowledged yet."""

    __slots__ = ("job", "packet", "resend_at", "resend_ms")

    def __init__(self, job: Held, packet: Packet, resend_at: int) -> None:
        self.job = job
        self.packet = packet
        self.resend_at = resend_at
        self.resend_ms = _RESEND_MS


class Rules:
    """One worker. Every call gets the time in milliseconds, from whatever start."""

    def __init__(
        self,
        outside: Outside,
        links_count: int,
        *,
        roles: tuple[str, ...] = (),
        slots: int = 1,
        identity: str = "",
        chance: Callable[[], float],
    ) -> None:
        self.jobs: dict[bytes, Held] = {}  # by lease
        self.kept: dict[bytes, _Kept] = {}
        self.stopping = False
        self.dropped_count = 0
        self._outside = outside
        self._slots = slots
        self._roles = roles
        self._chance = chance  # a random number from 0 to 1
        self._links = [_Link() for _ in range(links_count)]
        self._locks: dict[bytes, _Lock] = {}
        self._locked = 0
        self._lock_number = 0
        self._wanted: dict[
            Where, tuple[int, int]
        ] = {}  # managers with more work: how much, until when
        self._role_properties = [(b"role", role.encode()) for role in roles]
        self._identity: list[Property] = [(b"identity", identity.encode())] if identity else []

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._slots - len(self.jobs) - self._locked

    def is_through(self) -> bool:
        """Whether no job is held and none is in flight."""
        return not self.jobs and not self._locks

    # Input.

    def connected(self, link: int, now: int) -> None:
        """A connection was made, perhaps again: the peer knows nothing of us."""
        self._links[link].standing = False
        self._links[link].ready_ms = _READY_MS
        self._links[link].ready_at = 0
        for kept in self.kept.values():
            if kept.job.where[0] == link:
                kept.resend_at = now

    def receive(self, link: int, frames: list[bytes], now: int) -> None:
        """Handles a message from a manager. Malformed ones are dropped and counted."""
        try:
            packet = unpack(frames)
            if packet.route or signature_of(packet.control) != MANAGER:
                raise WireError(Malformation.SIGNATURE, "this is not for a worker")
            control = decode(packet.control)
            self._take((link, packet.trail), control, packet.payload or b"", now)
        except WireError:
            self.dropped_count += 1
            return
        known = self._links[link]
        known.ready_ms = _READY_MS
        known.ready_at = now + self._shaken(_READY_MS)

    def _take(self, where: Where, control: Control, payload: bytes, now: int) -> None:
        command = control.command
        control.need(b"manager")
        if command is Command.TAKE:
            self._on_take(where, control, payload, now)
        elif command is Command.WAKE:
            self._on_wake(where, control, now)
        elif command is Command.NO:
            self._unlock(control.get(b"lock") or b"", control.number(b"n", 1, 2**31))
        else:
            self._on_cancel(control)

    def _on_wake(self, where: Where, control: Control, now: int) -> None:
        if self.stopping:
            return
        count = max(1, control.number(b"count", 1, self._slots))
        if self.free > 0:
            self._give(where, count, now)
        else:
            self._links[where[0]].standing = False
            self._wanted[where] = (count, now + _WANTED_MS)

    def _give(self, where: Where, count: int, now: int) -> None:
        count = min(count, self.free)
        self._lock_number += 1
        lock = b"%x" % self._lock_number
        properties: list[Property] = [(b"lock", lock), (b"timeout", decimal(LOCK_MS))]
        properties += self._role_properties
        if count > 1:
            properties.append((b"n", decimal(count)))
        control = encode(Command.GIVE, *properties, *self._identity)
        if self._say(where, control):
            self._locks[lock] = _Lock(where, count, now + LOCK_MS)
            self._locked += count

    def _unlock(self, lock: bytes, count: int) -> None:
        found = self._locks.get(lock)
        if found is None:
            return
        count = min(count, found.left)
        self._locked -= count
        found.left -= count
        if not found.left:
            del self._locks[lock]

    def _on_take(self, where: Where, control: Control, payload: bytes, now: int) -> None:
        job = Held(where, control, payload)
        if job.lease in self.jobs or job.lease in self.kept:
            return
        name = control.get(b"lock") or b""
        lock = self._locks.get(name)
        if lock is None or lock.is_fresh:
            # A TAKE uses up the READY of its link.
            self._links[where[0]].standing = False
        if lock is not None:
            lock.is_fresh = False
            self._unlock(name, 1)
        elif self.free <= 0:
            self._report(job, End.REFUSED, None, now)
            return
        # A job requested before the stop is given back, rather than left to time out.
        if self.stopping or (self._roles and job.role and job.role not in self._roles):
            self._report(job, End.REFUSED, None, now)
            return
        more = control.number(b"more", 0, self._slots)
        if more:
            # This manager has more: ask it again, but after all others that have work.
            self._wanted.pop(where, None)
            self._wanted[where] = (more, now + _WANTED_MS)
        self.jobs[job.lease] = job
        job.status_at = now + job.lease_ms // 3 if job.lease_ms else 0
        self._outside.begin(job)

    def _on_cancel(self, control: Control) -> None:
        lease = control.need(b"lease")
        reason = control.get(b"reason") or b"cancelled"
        kept = self.kept.pop(lease, None)
        if kept is not None:
            self._outside.recorded(kept.job, reason)
            return
        job = self.jobs.get(lease)
        if job is not None and reason != b"recorded" and not job.cancelled:
            job.cancelled = True
            self._outside.cancel(job)

    # Work.

    def finish(self, job: Held, end: End, data: bytes | None, now: int) -> None:
        """An attempt has ended. It is not reported if it is no longer wanted."""
        if self.jobs.pop(job.lease, None) is not None and not job.cancelled:
            self._report(job, end, data, now)

    def _report(self, job: Held, end: End, data: bytes | None, now: int) -> None:
        control = encode(Command.DONE, *job.proof(), (b"status", end.value), (b"ack", b"1"))
        link, trail = job.where
        packet = Packet(trail, (), control, data or None)
        self._outside.send(link, pack(packet))
        self.kept[job.lease] = _Kept(job, packet, now + self._shaken(_RESEND_MS))
        if len(self.kept) > _KEPT_COUNT_MAX:
            oldest = self.kept.pop(next(iter(self.kept)))
            self._outside.recorded(oldest.job, b"unconfirmed")

    def progress(
        self, job: Held, numerator: int, denominator: int, data: bytes | None, now: int
    ) -> None:
        """Reports progress of a job, which also renews its lease."""
        if job.lease in self.jobs and not job.cancelled:
            fraction = b"%d/%d" % (max(0, numerator), max(0, denominator))
            self._status(job, now, data, (b"progress", fraction))

    def _status(self, job: Held, now: int, data: bytes | None, *more: Property) -> None:
        control = encode(Command.STATUS, *job.proof(), *more)
        self._say(job.where, control, data)
        if job.lease_ms:
            job.status_at = now + job.lease_ms // 3

    def _say(self, where: Where, control: bytes, data: bytes | None = None) -> bool:
        link, trail = where
        return self._outside.send(link, pack(Packet(trail, (), control, data)))

    # Time.

    def turn(self, now: int) -> int:
        """Does everything that is due; called after input and when the time has come.

        Returns the milliseconds until something is due again.
        """
        for lock, found in list(self._locks.items()):
            if found.expires_at <= now:
                self._unlock(lock, found.left)
        due = now + _RESEND_MS_MAX
        for job in self.jobs.values():
            if job.lease_ms and not job.cancelled:
                if job.status_at <= now:
                    self._status(job, now, None)
                due = min(due, job.status_at)
        for kept in self.kept.values():
            if kept.resend_at <= now:
                self._outside.send(kept.job.where[0], pack(kept.packet))
                kept.resend_ms = min(kept.resend_ms * 2, _RESEND_MS_MAX)
                kept.resend_at = now + self._shaken(kept.resend_ms)
            due = min(due, kept.resend_at)
        if not self.stopping:
            self._invite(now)
            self._use_slots(now)
            due = min(due, self._announce(now))
        for found in self._locks.values():
            due = min(due, found.expires_at)
        return max(0, due - now)

    def _invite(self, now: int) -> None:
        """Sends READY to managers that are not in line before the free slots are used up: those in
        line might always have more.
        """
        if self._wanted and self.free > 0:
            in_line = {link for link, _ in self._wanted}
            ready = self._ready()
            for number, link in enumerate(self._links):
                if not link.standing and number not in in_line:
                    self._say_ready(number, ready, now)

    def _use_slots(self, now: int) -> None:
        """Sends GIVE to managers that have work and were put off, in the order of their WAKEs."""
        while self._wanted and self.free > 0:
            where = next(iter(self._wanted))
            count, until = self._wanted.pop(where)
            if until > now:
                self._give(where, count, now)

    def _announce(self, now: int) -> int:
        """Sends READY where none is valid, and repeats it at times: a manager may have forgotten
        it.
        """
        if self.free <= 0:
            return now + _RESEND_MS_MAX
        due = now + _RESEND_MS_MAX
        ready: bytes | None = None
        for number, link in enumerate(self._links):
            if not link.standing or link.ready_at <= now:
                ready = ready or self._ready()
                if link.standing:
                    link.ready_ms = min(link.ready_ms * 2, TTL_MS // 2)
                self._say_ready(number, ready, now)
            due = min(due, link.ready_at)
        return due

    def _ready(self) -> bytes:
        slots = (b"slots", decimal(self.free))
        return encode(Command.READY, *self._role_properties, slots, *self._identity)

    def _say_ready(self, number: int, ready: bytes, now: int) -> None:
        link = self._links[number]
        # Without a connection there is nothing to wait for until `connected`.
        self._outside.send(number, pack(Packet((), (), ready)))
        link.standing = True
        link.ready_at = now + self._shaken(link.ready_ms)

    def _shaken(self, ms: int) -> int:
        """Adds jitter, so that many workers do not send at the same time."""
        return int(ms * (1 + _JITTER * (2 * self._chance() - 1)))
