"""Who is alive: beats, the observation of death, suspension, and the time of the database.

Pure: instants come in with each call, in milliseconds of the server's own monotonic clock. Nothing
here trusts the clock of another machine.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

# A server is suspended after this share of the time after which others may declare it dead: their
# clocks may run faster than ours, but not by so much.
_SUSPENDED_SHARE: Final = 0.7
# How often a server must have beaten itself while another did not, to call it dead.
_BEATS_MIN: Final = 3
_OFFSETS_KEPT: Final = 16
# Between two beats the database's clock was set, or it is another database's.
_OFFSET_STEP_MS: Final = 2_000.0
# How fast server time follows that of the database.
_SLEW_SHARE: Final = 0.01


class Tenure(Struct, frozen=True):
    """One life of one server, as its row in the database shows it."""

    tenure: int
    server: str
    incarnation: str
    address: str  # of its cluster listener; empty: it has none
    beats: int
    state: str  # joining, serving, leaving, closing
    version: str = ""
    began_at: int = 0
    closed_by: int | None = None
    process: str = ""  # lets a server on the same machine see whether it is gone
    load: str = ""  # what it last said of itself


class Beat(Struct, frozen=True):
    """What one beat brought back."""

    tenures: tuple[Tenure, ...]  # all that are not closed
    owner: int | None  # the tenure that owns the queues; None: nobody does
    epoch: int  # raised with each change of the owner
    now: int  # the database's time in milliseconds


class _Observed:
    """What was seen of another server."""

    __slots__ = ("beats", "own_beats", "since_ms")

    def __init__(self, beats: int, since_ms: float) -> None:
        self.beats = beats
        self.since_ms = since_ms
        self.own_beats = 0  # of ours, since then


class Membership:
    """What a server knows of itself and the others by its beats."""

    def __init__(self, tenure: int, lease_ms: float, now_ms: float) -> None:
        self.tenure = tenure
        self.tenures: dict[int, Tenure] = {}
        self.owner: int | None = None
        self.epoch = 0
        self.beaten_ms = now_ms  # when the last beat that succeeded was sent
        self._lease_ms = lease_ms
        self._observed: dict[int, _Observed] = {}
        self._certain: set[int] = set()
        # Of recent beats: the length of the round trip, and how far the database's time was ahead
        # of the monotonic clock.
        self._offsets: deque[tuple[float, float]] = deque(maxlen=_OFFSETS_KEPT)

    # Beats.

    def take(self, beat: Beat, sent_ms: float, received_ms: float) -> None:
        """A beat succeeded."""
        self.beaten_ms = sent_ms
        self.tenures = {row.tenure: row for row in beat.tenures}
        self.owner, self.epoch = beat.owner, beat.epoch
        observed = self._observed
        for number, row in self.tenures.items():
            seen = observed.get(number)
            if seen is None or seen.beats != row.beats:
                # By the time it was sent: the row may have changed at any moment since.
                observed[number] = _Observed(row.beats, sent_ms)
                self._certain.discard(number)
            else:
                seen.own_beats += 1
        for number in [number for number in observed if number not in self.tenures]:
            del observed[number]
            self._certain.discard(number)
        round_trip_ms = received_ms - sent_ms
        offset_ms = beat.now - (sent_ms + round_trip_ms / 2)
        known_ms = self.offset_ms()
        if known_ms is not None and abs(offset_ms - known_ms) > _OFFSET_STEP_MS + round_trip_ms:
            self._offsets.clear()
        self._offsets.append((round_trip_ms, offset_ms))

    def fail(self) -> None:
        """A beat failed: what others did meanwhile is unknown, so observation begins anew."""
        self._observed.clear()

    def suspended_ms(self) -> float:
        """From this instant on nothing may be decided, unless a beat succeeds before."""
        return self.beaten_ms + self._lease_ms * _SUSPENDED_SHARE

    # Death.

    def make_certain(self, tenure: int) -> None:
        """Its address refuses connections: it is dead, whatever its beats were."""
        if tenure in self.tenures:
            self._certain.add(tenure)

    def is_dead(self, tenure: int, now_ms: float) -> bool:
        """Whether a server may be taken over, as far as this one has seen."""
        if tenure == self.tenure:
            return False
        if tenure in self._certain:
            return True
        seen = self._observed.get(tenure)
        return (
            seen is not None
            and seen.own_beats >= _BEATS_MIN
            and now_ms - seen.since_ms >= self._lease_ms
        )

    def dead(self, now_ms: float) -> Sequence[Tenure]:
        """Those that may be taken over, the longest in office first; not those that another server
        is taking over.
        """
        rows = sorted(self.tenures.values(), key=lambda row: row.tenure)
        return [
            row
            for row in rows
            if self.is_dead(row.tenure, now_ms)
            and (
                row.closed_by in (None, self.tenure)
                or row.closed_by not in self.tenures
                or self.is_dead(row.closed_by, now_ms)
            )
        ]

    def others(self) -> Sequence[Tenure]:
        """All other servers that are not closed, dead or alive."""
        return [row for row in self.tenures.values() if row.tenure != self.tenure]

    # Time.

    def offset_ms(self) -> float | None:
        """How far the database's time is ahead of the monotonic clock, by the quickest of the
        recent round trips; None before the first beat.
        """
        return min(self._offsets)[1] if self._offsets else None


def slewed(ahead_ms: float, elapsed_ms: float) -> float:
    """How much of a difference to follow now, so that time neither jumps nor stands still."""
    step_max = elapsed_ms * _SLEW_SHARE
    return max(-step_max, min(step_max, ahead_ms))
