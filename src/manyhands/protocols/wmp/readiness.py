"""Who is ready: paths to workers, and which of them hears WAKE when there is work (W21 to W28).

None of this is stored: a worker that is alive says READY again. A path is one entry however often
it is announced; it stands until TAKE, the end of its time, or the news that nobody is there.
"""

import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from manyhands.protocols.wmp.hub import Hub, Nothing, way_back
from manyhands.wire.wmp import Command, Path, Property, decimal, encode

# A woken worker that does not ask within this time is busy or gone, and others get their turn.
WAKE_SECONDS: Final = 0.5
# Paths that are remembered: in all, and behind one peer, which may be a device.
ENTRIES_COUNT_MAX: Final = 100_000
ENTRIES_OF_PEER_MAX: Final = 20_000
_SWEEP_SECONDS: Final = 5.0


class Phase(enum.Enum):
    """Where an entry stands."""

    READY = enum.auto()
    WOKEN = enum.auto()  # WAKE was sent
    QUIET = enum.auto()  # it did not answer: not woken until it says READY again


class Entry:
    """A worker that may be woken."""

    __slots__ = (
        "expires_at", "identity", "number", "path", "phase", "roles", "since", "slots",
        "woken_count", "woken_for",
    )  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path = path
        self.roles: tuple[str, ...] = ()  # empty: any
        self.slots = 1  # jobs it could take at once
        self.identity = ""
        self.since = 0  # order of readiness: lower is older
        self.expires_at = 0
        self.phase = Phase.QUIET
        self.number = 0  # of its latest WAKE
        self.woken_for = ""
        self.woken_count = 0


Choose = Callable[[Iterable[Entry], str], Entry | None]


def oldest(candidates: Iterable[Entry], role: str) -> Entry | None:  # noqa: ARG001 - a `Choose`
    """The worker that has been ready for longest. Candidates come in that order, and each has the
    role; any other function of this form may take its place.
    """
    return next(iter(candidates), None)


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
        self._outstanding: dict[str, int] = {}  # jobs that woken workers were told of, by role
        self._wakes: deque[tuple[int, Entry, int]] = deque()  # when each WAKE runs out, in order
        self._of_peer: dict[bytes, int] = {}
        self._order = 0
        self._sweeping = False

    # What workers do.

    def announce(
        self, path: Path, roles: tuple[str, ...], slots: int, ttl_ms: int, identity: str
    ) -> bool:
        """READY; False if there are too many already."""
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
        entry.roles, entry.slots, entry.identity = roles, slots, identity
        entry.expires_at = self._hub.now() + ttl_ms
        self._arm(entry)
        self._look_for(entry)
        return True

    def asked(self, path: Path) -> Entry | None:
        """GIVE: whatever becomes of it, its WAKE is answered."""
        entry = self.entries.get(path)
        if entry is not None:
            self._settle(entry)
            if entry.phase is Phase.READY:
                self._disarm(entry)
            entry.phase = Phase.WOKEN
        return entry

    def given(self, path: Path) -> None:
        """TAKE was sent: its READY is used up."""
        entry = self.entries.get(path)
        if entry is not None:
            self._remove(entry)

    def refused(self, path: Path, queues: tuple[str, ...]) -> None:
        """NO was sent: it is ready as before. If it did not ask for what it was woken for it
        would be woken for that again and again, so it is left alone. One that was woken since it
        asked has still to answer that.
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
        """NO was sent because nothing is handed out at all: it is left alone."""
        entry = self.entries.get(path)
        if entry is not None and entry.phase is Phase.WOKEN:
            entry.phase = Phase.QUIET

    def forget(self, path: Path) -> None:
        """It cannot be reached."""
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
        """There is work. Sleep again only in the next turn, and look once more then: whoever
        calls goes on calling for each job, and one look covers all of them.
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
        """Wake as many as there are jobs that nobody was told of yet; or all, if that is wanted."""
        hub = self._hub
        if not (role in self._armed or None in self._armed) or hub.draining:
            return
        left = self.untold_count(role)
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

    def untold_count(self, role: str) -> int:
        """Jobs that wait although nobody was told of them yet."""
        return self._hub.ready_count(role) - self._outstanding.get(role, 0)

    def _candidates(self, role: str) -> Iterator[Entry]:
        """Those that can be woken for a role, oldest first."""
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
        """Its WAKE is answered, or not waited for any longer."""
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
        """Some WAKEs got no answer: those workers are quiet, and others hear of the work."""
        now = self._hub.now()
        roles: dict[str, None] = {}
        wakes = self._wakes
        while wakes and wakes[0][0] <= now:
            _, entry, number = wakes.popleft()
            if entry.woken_count and entry.number == number:
                self._settle(entry)
                entry.phase = Phase.QUIET
                roles[entry.woken_for] = None
        if wakes:
            self._hub.later((wakes[0][0] - now) / 1000, self._run_out)
        for role in roles:
            self.look(role)

    # Time.

    def _begin_sweeping(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._hub.later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Entries whose time is up are forgotten."""
        self._sweeping = False
        now = self._hub.now()
        for entry in [entry for entry in self.entries.values() if entry.expires_at <= now]:
            self._remove(entry)
        if self.entries:
            self._begin_sweeping()
