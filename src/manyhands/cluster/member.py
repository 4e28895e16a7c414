"""This server among the others: it beats, calls the others, watches for their death, takes over,
and hands over before it leaves.
"""

from collections.abc import Callable
from typing import Final

from manyhands.cluster.contract import (
    ANOTHER,
    REFUSED,
    Caller,
    FencedError,
    Peer,
    Shared,
)
from manyhands.cluster.link import Goodbye, Message, Ping, Pong
from manyhands.cluster.membership import Beat, Membership, Tenure
from manyhands.cluster.router import Router
from manyhands.loggers import get_logger

_log = get_logger("manyhands.cluster")

_BEAT_SECONDS: Final = 1.0
_CALL_AGAIN_SECONDS: Final = 0.5
# Two refused connections this far apart mean that a process is gone.
_REFUSED_SECONDS: Final = 0.25
_UNLINKED_MS_MAX: Final = 10_000


class Counters:
    """What happened, for the metrics."""

    __slots__ = ("beats_failed", "handovers", "takeovers")

    def __init__(self) -> None:
        self.takeovers = 0
        self.handovers = 0
        self.beats_failed = 0


class Other:
    """Another server, and the link to it."""

    def __init__(self, row: Tenure, now_ms: float) -> None:
        self.row = row
        self.peer: Peer | None = None
        self.calling = False  # or about to
        self.said_goodbye = False  # it stops in order, and closes its tenure by itself
        self.unlinked_ms = now_ms  # since when there is no link
        self.round_trip_ms: float | None = None
        self.pinged: dict[int, float] = {}
        self.refusals = 0  # of connections in a row, after the link broke


class Member:
    """Runs the life of this server in the cluster."""

    def __init__(
        self,
        router: Router,
        shared: Shared,
        caller: Caller,
        *,
        lease_ms: float,
        on_fenced: Callable[[str], None],
        load: Callable[[], str] = str,
    ) -> None:
        self.router = router
        self.membership = Membership(shared.tenure, lease_ms, router.clock.monotonic_ms())
        self.others: dict[int, Other] = {}
        self.counters = Counters()
        self.on_ready: list[Callable[[], None]] = []
        self.is_leaving = False
        self._shared = shared
        self._caller = caller
        self._clock = router.clock
        self._loop = router.loop
        self._on_fenced = on_fenced
        self._load_words = load
        self._ended = False
        self._beating = False
        self._busy = False  # a takeover, a claim, a load or a hand-over is under way
        self._pings = 0
        self._on_left: Callable[[], None] | None = None

    # Beats.

    def start(self) -> None:
        """Beats from now on."""
        self._beat()

    def end(self) -> None:
        """Beats no more."""
        self._ended = True
        for other in self.others.values():
            if other.peer is not None:
                other.peer.close("this server stops")

    def _beat(self) -> None:
        if self._ended:
            return
        self._loop.call_later(_BEAT_SECONDS, self._beat)
        self._ping()
        self.beat_now()

    def beat_now(self) -> None:
        """Beats out of turn: something has happened."""
        if self._beating or self._ended:
            return
        self._beating = True
        sent_ms = self._clock.monotonic_ms()

        def done(found: Beat | Exception) -> None:
            self._beating = False
            if not self._ended:
                self._beaten(found, sent_ms)

        self._shared.beat(self._load_words(), done)

    def _beaten(self, found: Beat | Exception, sent_ms: float) -> None:
        membership = self.membership
        if isinstance(found, FencedError):
            self._fence(found)
            return
        if isinstance(found, Exception):
            self.counters.beats_failed += 1
            membership.fail()
            return
        membership.take(found, sent_ms, self._clock.monotonic_ms())
        self.router.suspend_from(membership.suspended_ms())
        self._look_at_others()
        self._look_at_owner()
        if self.is_ready:
            callbacks, self.on_ready = self.on_ready, []
            for callback in callbacks:
                callback()

    def _fence(self, error: Exception) -> None:
        self._ended = True
        self._on_fenced(str(error))

    @property
    def is_ready(self) -> bool:
        """Whether clients are served: this server decides, or has a link to the one that does."""
        router = self.router
        if self.is_leaving:
            return False
        if router.decides:
            return not router.is_suspended
        return router.has_host and router.is_mirrored

    def alive(self) -> tuple[str, ...]:
        """The incarnations of all other servers that are not closed: their clients still wait."""
        return tuple(row.incarnation for row in self.membership.others())

    # Links.

    def _look_at_others(self) -> None:
        now_ms = self._clock.monotonic_ms()
        rows = {row.tenure: row for row in self.membership.others()}
        for number in [number for number in self.others if number not in rows]:
            other = self.others.pop(number)
            if other.peer is not None:
                other.peer.close("your tenure is closed")
            self.router.forget_guest(other.row.incarnation, self.alive())
        for number, row in rows.items():
            other = self.others.get(number) or Other(row, now_ms)
            other.row = row
            self.others[number] = other
            if other.peer is None and not other.calling and row.address:
                self._call(other)

    def _call(self, other: Other) -> None:
        other.calling = True

        def opened(peer: Peer) -> None:
            other.calling = False
            other.peer = peer
            other.refusals = 0
            other.said_goodbye = False
            _log.info("linked", server=other.row.server, address=other.row.address)

        def lost(peer: Peer | None, reason: str) -> None:
            other.calling = False
            if peer is None:
                self._not_reached(other, reason)
            elif peer is other.peer:
                self._unlinked(other, reason)

        row = other.row
        self._caller.call(row.address, row.incarnation, opened, self._hear, lost)

    def _hear(self, peer: Peer, message: Message) -> None:
        """A server that we called says something."""
        other = next((one for one in self.others.values() if one.peer is peer), None)
        if other is None:
            return
        if isinstance(message, Pong):
            sent_ms = other.pinged.pop(message.number, None)
            if sent_ms is not None:
                other.round_trip_ms = self._clock.monotonic_ms() - sent_ms
        elif isinstance(message, Goodbye):
            other.said_goodbye = True
            self.beat_now()
        else:
            was_ready = self.is_ready
            self.router.take(other.row.incarnation, peer.send, message)
            if not was_ready and self.is_ready:
                self.beat_now()

    def _unlinked(self, other: Other, reason: str) -> None:
        assert other.peer is not None
        self.router.lose_host(other.peer.send)
        other.peer = None
        other.pinged.clear()
        other.unlinked_ms = self._clock.monotonic_ms()
        _log.warning("a link broke", server=other.row.server, reason=reason)
        if not self._ended:
            self._call(other)  # at once: whether it is refused tells whether the process lives

    def _not_reached(self, other: Other, reason: str) -> None:
        if self._ended or self.others.get(other.row.tenure) is not other:
            return
        if reason == ANOTHER:
            self._is_gone(other)
            return
        other.calling = True  # not sooner than this
        if reason != REFUSED:
            other.refusals = 0
            self._loop.call_later(_CALL_AGAIN_SECONDS, lambda: self._call_again(other))
            return
        other.refusals += 1
        self._loop.call_later(_REFUSED_SECONDS, lambda: self._call_again(other))
        if other.refusals >= 2:
            self._is_gone(other)

    def _call_again(self, other: Other) -> None:
        other.calling = False
        known = self.others.get(other.row.tenure) is other
        if known and not self._ended and other.peer is None:
            self._call(other)

    def _is_gone(self, other: Other) -> None:
        """Nobody listens at its address any more, or another process does."""
        if other.row.state == "joining" or other.said_goodbye:
            return  # it may not listen yet, or closes its tenure by itself
        self.membership.make_certain(other.row.tenure)
        self._look_at_owner()

    def _ping(self) -> None:
        self._pings += 1
        now_ms = self._clock.monotonic_ms()
        for other in self.others.values():
            if other.peer is None:
                continue
            if len(other.pinged) > _UNLINKED_MS_MAX / 1000 / _BEAT_SECONDS:
                other.peer.close("it has not answered for long")
                continue
            other.pinged[self._pings] = now_ms
            other.peer.send(Ping(self._pings, self.router.confirmed()))

    def unreached(self) -> list[Other]:
        """Servers that live and have had no link from here for long."""
        now_ms = self._clock.monotonic_ms()
        return [
            other
            for other in self.others.values()
            if other.peer is None
            and other.row.address
            and now_ms - other.unlinked_ms > _UNLINKED_MS_MAX
        ]

    # Who called us.

    def welcome(self, peer: Peer) -> None:
        """A server has called."""
        self.router.greet(peer.hello.incarnation, peer.send)
        if peer.hello.tenure not in self.membership.tenures:
            self.beat_now()  # it has just joined

    def hear_guest(self, peer: Peer, message: Message) -> None:
        """A server that has called says something."""
        if isinstance(message, Ping):
            peer.send(Pong(message.number, self.router.epoch if self.router.decides else 0))
        elif isinstance(message, Goodbye):
            other = self.others.get(peer.hello.tenure)
            if other is not None:
                other.said_goodbye = True
            self.beat_now()  # it has handed over, perhaps to this server
        self.router.hear(peer.hello.incarnation, message)

    def lose_guest(self, peer: Peer) -> None:
        """The link of a server that has called broke."""
        self.router.lose_guest(peer.hello.incarnation, peer.send)

    # Who decides.

    def _look_at_owner(self) -> None:
        """Takes over from the dead, and becomes the owner where there is none."""
        if self._busy or self._ended or self.is_leaving:
            return
        membership = self.membership
        dead = membership.dead(self._clock.monotonic_ms())
        if dead:
            self._take_over(dead[0])
        elif membership.owner == membership.tenure:
            if not self.router.decides:
                self._load()
        elif membership.owner is None or membership.owner not in membership.tenures:
            self._busy = True
            self._shared.claim(self._claimed)

    def _take_over(self, dead: Tenure) -> None:
        self._busy = True
        _log.warning("a server is dead; taking over", server=dead.server, tenure=dead.tenure)

        def done(found: bool | Exception) -> None:  # noqa: FBT001
            self._busy = False
            if isinstance(found, Exception):
                self._failed("a takeover failed; it is tried again", found)
            elif found:
                self.counters.takeovers += 1
            self.beat_now()

        self._shared.take_over(dead, done)

    def _claimed(self, found: bool | Exception) -> None:  # noqa: FBT001
        self._busy = False
        if isinstance(found, Exception):
            self._failed("nobody could be made the owner; it is tried again", found)
        elif found:
            self.beat_now()

    def _load(self) -> None:
        self._busy = True

        def done(found: int | Exception) -> None:
            self._busy = False
            if self._ended:
                return
            if isinstance(found, Exception):
                self._failed("the jobs could not be loaded; it is tried again", found)
                return
            self.router.begin_deciding(self.membership.epoch, self.alive(), found)
            _log.info("this server decides now", epoch=self.membership.epoch)
            self.beat_now()

        self._shared.load(done)

    def _failed(self, sentence: str, error: Exception) -> None:
        if isinstance(error, FencedError):
            self._fence(error)
        else:
            _log.warning(sentence, reason=str(error))

    # Leaving.

    def leave(self, left: Callable[[], None]) -> None:
        """Hands over what this server decides; then calls back. Its clients are served until they
        have left.
        """
        self.is_leaving = True
        if not self.router.decides:
            left()
            return
        self.router.stop_deciding()
        heirs = [other.row for other in self.others.values() if other.peer is not None]
        heir = min(heirs, key=lambda row: row.tenure, default=None)

        def handed_over(found: bool | Exception) -> None:  # noqa: FBT001
            if isinstance(found, Exception):
                self._failed("handing over failed; another server will take over", found)
            else:
                self.counters.handovers += 1
            for other in self.others.values():
                if other.peer is not None:
                    other.peer.send(Goodbye("this server hands over"))
            left()

        def idle() -> None:
            self.router.retire()
            self._shared.hand_over(None if heir is None else heir.tenure, handed_over)

        self.router.when_decided(idle)
