"""Which workers are ready: the paths to them, and which gets WAKE when there is work (W21 to W28).

Nothing of this is stored: a living worker repeats READY. A path is one entry however often it is
announced; it lasts until TAKE, its expiry, or the discovery that the peer is unreachable.
"""

import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from manyhands.protocols.wmp.codec import Command, Path, Property, decimal, encode
from manyhands.protocols.wmp.hub import Hub, Nothing, way_back

# A woken worker that does not ask within this time is busy or gone, and others get their turn.
WAKE_SECONDS: Final = 0.5
# A quiet worker is retried while there is unannounced work, since its WAKE may have been lost:
# after this time, then after twice as long each, up to the maximum.
_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 32.0
# Quiet workers that are checked in one go.
_RETRIES_COUNT_MAX: Final = 500
# Paths that are remembered: in all, and behind one peer, which may be a device.
ENTRIES_COUNT_MAX: Final = 100_000
ENTRIES_OF_PEER_MAX: Final = 20_000
_SWEEP_SECONDS: Final = 5.0


class Phase(enum.Enum):
    """The phase of an entry."""

    READY = enum.auto()
    WOKEN = enum.auto()  # WAKE was sent
    QUIET = enum.auto()  # no answer: woken only if no other worker is left


class Entry:
    """A worker that may be woken."""

    __slots__ = (
        "expires_at", "identity", "number", "path", "phase", "retry_seconds", "roles", "since",
        "slots", "woken_count", "woken_for",
    )  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path = path
        self.roles: tuple[str, ...] = ()  # empty: any
        self.slots = 1  # jobs it can take at once
        self.identity = ""
        self.since = 0  # order of readiness: lower is older
        self.expires_at = 0
        self.phase = Phase.QUIET
        self.number = 0  # of its latest WAKE
        self.woken_for = ""
        self.woken_count = 0
        self.retry_seconds = _RETRY_SECONDS  # until the next try, if it does not answer


Choose = Callable[[Iterable[Entry], str], Entry | None]


def oldest(candidates: Iterable[Entry], role: str) -> Entry | None:  # noqa: ARG001 - a `Choose`
    """The worker that has been ready longest. Candidates come in that order, and each has the role;
    any other function of this form may replace it.
    """
    return next(iter(candidates), None)


def _nothing() -> None:
    """There is no timer."""


class Readiness:
    """All entries of one socket."""

    def __init__(self, hub: Hub, manager: bytes, choose: Choose, *, wake_all: bool) -> None:
        self.entries: dict[Path, Entry] = {}
        self.wakes_count = 0
        self._hub = hub
        self._manager: Property = (b"manager", manager)
        self._choose = choose
        self._wake_all = wake_all
        # Entries that can be woken, by role (None: any), in order of age.
        self._armed: dict[str | None, dict[Entry, None]] = {}
        self._asleep: dict[str | None, Nothing] = {}
        self._outstanding: dict[str, int] = {}  # jobs announced to woken workers, by role
        self._wakes: deque[tuple[int, Entry, int]] = deque()  # when each WAKE times out, in order
        # Quiet workers by when they may be tried again, with the number of their latest WAKE.
        self._retries: list[tuple[int, int, int, Entry]] = []
        self._retries_count = 0  # ever: breaks ties between equal times
        self._retry_at: int | None = None  # when the timer is due
        self._call_off_retry: Nothing = _nothing
        self._of_peer: dict[bytes, int] = {}
        self._order = 0
        self._sweeping = False

    # Messages of workers.

    def announce(
        self, path: Path, roles: tuple[str, ...], slots: int, ttl_ms: int, identity: str
    ) -> bool:
        """READY; returns False if there are too many entries already."""
        entry = self.entries.get(path)
        if entry is None:
            peer = path[0]
            beside = self._of_peer.get(peer, 0)
            if len(self.entries) >= ENTRIES_COUNT_MAX or beside >= ENTRIES_OF_PEER_MAX:
                return False
            entry = self.entries[path] = Entry(path)
            self._of_peer[peer] = beside + 1
            self._begin_sweeping()
        else:
            self._settle(entry)
            if entry.phase is Phase.READY and entry.roles != roles:
                self._disarm(entry)
                entry.phase = Phase.QUIET
        entry.retry_seconds = _RETRY_SECONDS
        entry.roles, entry.slots, entry.identity = roles, slots, identity
        entry.expires_at = self._hub.now() + ttl_ms
        self._arm(entry)
        self._look_for(entry)
        return True

    def asked(self, path: Path) -> Entry | None:
        """GIVE: it answers the WAKE, whatever its outcome."""
        entry = self.entries.get(path)
        if entry is not None:
            self._settle(entry)
            entry.retry_seconds = _RETRY_SECONDS
            if entry.phase is Phase.READY:
                self._disarm(entry)
            entry.phase = Phase.WOKEN
        return entry

    def given(self, path: Path) -> None:
        """TAKE was sent: the READY is used up."""
        entry = self.entries.get(path)
        if entry is not None:
            self._remove(entry)

    def refused(self, path: Path, queues: tuple[str, ...]) -> None:
        """NO was sent: the worker is ready as before. If it did not ask for the work it was woken
        for, it would be woken for that again and again, so it is left alone. A worker woken since
        it asked must still answer that WAKE.
        """
        entry = self.entries.get(path)
        if entry is None or entry.phase is not Phase.WOKEN or entry.woken_count:
            return
        if entry.woken_for and entry.woken_for not in queues:
            entry.phase = Phase.QUIET
            return
        self._arm(entry)
        self._look_for(entry)

    def silence(self, path: Path) -> None:
        """NO was sent because nothing is handed out at all: the worker is left alone."""
        entry = self.entries.get(path)
        if entry is not None and entry.phase is Phase.WOKEN:
            entry.phase = Phase.QUIET

    def forget(self, path: Path) -> None:
        """The worker cannot be reached."""
        entry = self.entries.get(path)
        if entry is None:
            return
        role = entry.woken_for
        self._remove(entry)
        if role:
            self.look(role)

    def _remove(self, entry: Entry) -> None:
        self._settle(entry)
        if entry.phase is Phase.READY:
            self._disarm(entry)
        entry.phase = Phase.QUIET
        del self.entries[entry.path]
        peer = entry.path[0]
        left = self._of_peer[peer] - 1
        if left:
            self._of_peer[peer] = left
        else:
            del self._of_peer[peer]

    # Waking.

    def _arm(self, entry: Entry) -> None:
        if entry.phase is Phase.READY:
            return
        entry.phase = Phase.READY
        entry.woken_for = ""
        self._order += 1
        entry.since = self._order
        for role in entry.roles or (None,):
            self._armed.setdefault(role, {})[entry] = None
            if role not in self._asleep:
                self._sleep(role)

    def _disarm(self, entry: Entry) -> None:
        for role in entry.roles or (None,):
            line = self._armed[role]
            del line[entry]
            if not line:
                del self._armed[role]
                leave = self._asleep.pop(role, None)
                if leave is not None:
                    leave()

    def _sleep(self, role: str | None) -> None:
        queues = () if role is None else (role,)
        self._asleep[role] = self._hub.sleep(queues, lambda queue: self._woken(role, queue))

    def _woken(self, role: str | None, queue: str) -> None:
        """There is work. Sleeps again only in the next turn and looks again then: the caller calls
        for each job, and one look covers all of them.
        """
        del self._asleep[role]
        self.look(queue)
        if role in self._armed:
            self._asleep[role] = self._hub.later(0.0, lambda: self._sleep_again(role, queue))

    def _sleep_again(self, role: str | None, queue: str) -> None:
        del self._asleep[role]
        if role in self._armed:
            self._sleep(role)
            self.look(queue)

    def _look_for(self, entry: Entry) -> None:
        for role in entry.roles or self._hub.queues_with_work():
            if entry.phase is not Phase.READY:
                return
            self.look(role)

    def look(self, role: str) -> None:
        """Wakes as many workers as there are unannounced jobs; or all, if configured."""
        hub = self._hub
        if not (role in self._armed or None in self._armed) or hub.draining:
            return
        left = self.unnotified_count(role)
        if left <= 0 or not hub.has_work(role):
            return
        while left > 0 or self._wake_all:
            entry = self._choose(self._candidates(role), role)
            if entry is None:
                return
            if entry.expires_at <= hub.now():
                self._remove(entry)
                continue
            count = max(1, min(left, entry.slots))
            self._wake(entry, role, count)
            left -= count

    def unnotified_count(self, role: str) -> int:
        """Ready jobs that were not announced to any worker."""
        return self._hub.ready_count(role) - self._outstanding.get(role, 0)

    def _candidates(self, role: str) -> Iterator[Entry]:
        """Entries that can be woken for a role, oldest first."""
        lines = [self._armed[key] for key in (role, None) if key in self._armed]
        if len(lines) == 1:
            return iter(lines[0])
        return heapq.merge(*lines, key=lambda entry: entry.since)

    def _wake(self, entry: Entry, role: str, count: int) -> None:
        hub = self._hub
        self._disarm(entry)
        entry.phase = Phase.WOKEN
        entry.number += 1
        entry.woken_for = role
        entry.woken_count = count
        self._outstanding[role] = self._outstanding.get(role, 0) + count
        self.wakes_count += 1
        if not self._wakes:
            hub.later(WAKE_SECONDS, self._run_out)
        self._wakes.append((hub.now() + int(WAKE_SECONDS * 1000), entry, entry.number))
        control = encode(
            Command.WAKE, self._manager, (b"role", role.encode()), (b"count", decimal(count))
        )
        path = entry.path
        hub.send(way_back(path), control, lambda: self.forget(path))

    def _settle(self, entry: Entry) -> None:
        """The WAKE of an entry is answered, or no longer waited for."""
        count, entry.woken_count = entry.woken_count, 0
        if not count:
            return
        role = entry.woken_for
        left = self._outstanding[role] - count
        if left:
            self._outstanding[role] = left
        else:
            del self._outstanding[role]

    def _run_out(self) -> None:
        """Some WAKEs got no answer: those workers become quiet, and others get WAKE."""
        now = self._hub.now()
        roles: dict[str, None] = {}
        wakes = self._wakes
        while wakes and wakes[0][0] <= now:
            _, entry, number = wakes.popleft()
            if entry.woken_count and entry.number == number:
                self._settle(entry)
                entry.phase = Phase.QUIET
                self._retry_later(entry, now)
                roles[entry.woken_for] = None
        if wakes:
            self._hub.later((wakes[0][0] - now) / 1000, self._run_out)
        for role in roles:
            self.look(role)

    def _retry_later(self, entry: Entry, now: int) -> None:
        self._retries_count += 1
        due_at = now + int(entry.retry_seconds * 1000)
        heapq.heappush(self._retries, (due_at, self._retries_count, entry.number, entry))
        self._set_retry_timer(now)

    def _set_retry_timer(self, now: int) -> None:
        due_at = self._retries[0][0]
        if self._retry_at is None or due_at < self._retry_at:
            self._call_off_retry()
            self._retry_at = due_at
            self._call_off_retry = self._hub.later(max(0, due_at - now) / 1000, self._retry)

    def _retry(self) -> None:
        """Wakes quiet workers again, if there is work not announced to others."""
        now = self._hub.now()
        retries = self._retries
        self._retry_at = None
        for _ in range(_RETRIES_COUNT_MAX):
            if not retries or retries[0][0] > now:
                break
            _, _, number, entry = heapq.heappop(retries)
            if entry.phase is not Phase.QUIET or entry.number != number:
                continue  # it has answered
            if self.entries.get(entry.path) is not entry:
                continue  # it is gone
            roles = entry.roles or self._hub.queues_with_work()
            if any(self.unnotified_count(role) > 0 for role in roles):
                entry.retry_seconds = min(2 * entry.retry_seconds, _RETRY_SECONDS_MAX)
                self._arm(entry)
                self._look_for(entry)
            else:
                self._retry_later(entry, now)
        if retries:
            self._set_retry_timer(now)

    # Time.

    def _begin_sweeping(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._hub.later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Removes expired entries."""
        self._sweeping = False
        now = self._hub.now()
        for entry in [entry for entry in self.entries.values() if entry.expires_at <= now]:
            self._remove(entry)
        if self.entries:
            self._begin_sweeping()
