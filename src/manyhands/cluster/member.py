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
from manyhands.cluster.link import (
    Goodbye,
    Hurried,
    Hurry,
    Leave,
    Message,
    Ping,
    Pong,
    StopBulk,
)
from manyhands.cluster.load import Load, Rates, as_text, read_load
from manyhands.cluster.membership import Beat, Membership, Tenure
from manyhands.cluster.router import Router
from manyhands.loggers import get_logger

_log = get_logger("manyhands.cluster")

_BEAT_SECONDS: Final = 1.0
_CALL_AGAIN_SECONDS: Final = 0.5
# Two refused connections this far apart mean that a process is gone.
_REFUSED_SECONDS: Final = 0.25
_UNLINKED_MS_MAX: Final = 10_000
_HURRY_MS_MAX: Final = 2_000
_LOOK_SECONDS: Final = 0.02
_CLOSED: Final = "your tenure is closed"
_GONE_BACK: Final = (
    "the database has gone back to an earlier state: it does not know who decides at present. Start"
    " this server again"
)


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
        self.linked_ms = now_ms  # since when there is one
        self.unlinked_ms = now_ms  # since when there is no link
        self.round_trip_ms: float | None = None
        self.pinged: dict[int, float] = {}
        self.refusals = 0  # of connections in a row, after the link broke
        self.load = Load()


class _Hurrying:
    """A search that waits until others have applied what they made durable."""

    def __init__(self, done: Callable[[dict[int, int], bool], None]) -> None:
        self.asked: set[int] = set()  # by tenure, as the others
        self.batches: dict[int, int] = {}
        self.done = done


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
        heed: Callable[[float], None] = lambda _offset_ms: None,
        machine_ahead_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """``heed`` gets the offset of the database's time from the monotonic clock."""
        self.router = router
        self.membership = Membership(shared.tenure, lease_ms, router.clock.monotonic_ms())
        self.others: dict[int, Other] = {}
        self.counters = Counters()
        self.on_ready: list[Callable[[], None]] = []
        self.on_leave: list[Callable[[str], None]] = []  # an operator wants this server to stop
        self.on_stop_bulk: list[Callable[[str], None]] = []
        self.rates = Rates()
        self.is_leaving = False
        self._shared = shared
        self._caller = caller
        self._clock = router.clock
        self._loop = router.loop
        self._on_fenced = on_fenced
        self._heed = heed
        self._machine_ahead_ms = machine_ahead_ms
        self._silence_ms = lease_ms  # of a link, after which another one is tried
        self._callers: dict[int, Peer] = {}  # by tenure: the latest link that each made to here
        self._closed: set[int] = set()  # tenures that are gone: they may not ask any more
        self._ended = False
        self._beating = False
        self._busy = False  # a takeover, a claim, a load or a hand-over is under way
        self._taking_over = 0  # the tenure that is said to be dead
        self._failure = ""  # the last one that is said; the database may be away for long
        self._pings = 0
        self._hurries = 0
        self._hurrying: dict[int, _Hurrying] = {}
        router.on_own.append(lambda _batch, elapsed_ms: self.rates.note_commit(elapsed_ms))

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
        router = self.router
        forwarded = router.forwarding.forwarded.total()
        self.rates.note(self._clock.monotonic_ms(), router.counts.commands, forwarded)
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

        self._shared.beat(as_text(self.own_load()), done)

    def own_load(self) -> Load:
        """What this server does at present."""
        router, store = self.router, self.router.store
        decided, forwarded = self.rates.per_second()
        queues = store.live.queues.values() if router.decides else ()
        return Load(
            unfinished_jobs=sum(known.unfinished_count for known in queues),
            decided_per_second=decided,
            forwarded_per_second=forwarded,
            commit_p50_ms=self.rates.commit_ms(0.5),
            commit_p99_ms=self.rates.commit_ms(0.99),
            apply_lag_ms=router.apply_lag_ms(),
            clock_offset_ms=self._machine_ahead_ms(),
            links={
                number: (other.round_trip_ms or 0.0) if other.peer is not None else None
                for number, other in self.others.items()
            },
            unreached=tuple(other.row.tenure for other in self.unreached()),
        )

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
        self._failure = ""
        router = self.router
        displaced = router.decides and membership.owner != membership.tenure
        if displaced or (found.epoch < router.epoch and router.epoch_ms < sent_ms):
            self._fence(FencedError(_GONE_BACK))
            return
        offset_ms = membership.offset_ms()
        if offset_ms is not None:
            self._heed(offset_ms)
        self.router.suspend_from(membership.suspended_ms())
        self._look_at_others()
        self._look_at_host(sent_ms)
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
        if self.is_leaving or self.is_parted or self.is_suspended:
            return False
        if router.decides:
            return not router.is_suspended
        return router.has_host and router.is_mirrored

    @property
    def is_suspended(self) -> bool:
        """Whether others may have taken over: the database has not answered for long."""
        return self._clock.monotonic_ms() >= self.membership.suspended_ms()

    @property
    def is_parted(self) -> bool:
        """Whether this server and an earlier one cannot reach each other although both live: then
        the earlier one goes on, and this one serves nobody.
        """
        now_ms = self._clock.monotonic_ms()
        here = self.membership.tenure
        unreached = {other.row.tenure for other in self.unreached()}
        return any(
            other.row.tenure < here
            and other.row.state == "serving"
            and not self.membership.is_dead(other.row.tenure, now_ms)
            and (other.row.tenure in unreached or here in other.load.unreached)
            for other in self.others.values()
        )

    def alive(self) -> tuple[str, ...]:
        """The incarnations of all other servers that are not closed: their clients still wait."""
        return tuple(row.incarnation for row in self.membership.others())

    def peers(self) -> dict[str, str]:
        """The names of the other servers that live, by incarnation."""
        membership, now_ms = self.membership, self._clock.monotonic_ms()
        return {
            row.incarnation: row.server
            for row in membership.others()
            if not membership.is_dead(row.tenure, now_ms)
        }

    # Links.

    def _look_at_others(self) -> None:
        now_ms = self._clock.monotonic_ms()
        rows = {row.tenure: row for row in self.membership.others()}
        for number in [number for number in self.others if number not in rows]:
            other = self.others.pop(number)
            if other.peer is not None:
                other.peer.close(_CLOSED)
            self._closed.add(number)
            if number in self._callers:
                self._callers.pop(number).close(_CLOSED)
            self.router.forget_guest(other.row.incarnation, self.alive())
        self._closed.difference_update(rows)  # a database that has gone back may know one again
        for number, row in rows.items():
            other = self.others.get(number) or Other(row, now_ms)
            other.row = row
            other.load = read_load(row.load)
            self.others[number] = other
            if other.peer is None and not other.calling and row.address:
                self._call(other)

    def _call(self, other: Other) -> None:
        other.calling = True

        def opened(peer: Peer) -> None:
            other.calling = False
            other.peer = peer
            other.linked_ms = self._clock.monotonic_ms()
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
        elif isinstance(message, Hurried):
            self._take_hurried(other.row.tenure, message)
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
        # It was of no use since the first ping that has no answer.
        since_ms = min(other.pinged.values(), default=self._clock.monotonic_ms())
        self.router.lose_host(other.peer.send, since_ms)
        other.peer = None
        other.pinged.clear()
        other.unlinked_ms = since_ms
        _log.warning("a link broke", server=other.row.server, reason=reason)
        if self._ended:
            return
        if self._clock.monotonic_ms() - other.linked_ms < _CALL_AGAIN_SECONDS * 1000:
            # It does not want us: perhaps our tenure is closed.
            other.calling = True
            self._loop.call_later(_CALL_AGAIN_SECONDS, lambda: self._call_again(other))
            self.beat_now()
        else:
            self._call(other)  # at once: a refused connection means that the process is gone

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

    def _look_at_host(self, sent_ms: float) -> None:
        """A database that has gone back numbers owners again: one that it does not know any more
        may have announced itself here after the real one, with the same epoch. A new link lets the
        real one announce itself once more.
        """
        membership, router = self.membership, self.router
        owner = self.others.get(membership.owner or 0)
        if owner is None or owner.peer is None or router.decides:
            return
        is_another = router.owner != owner.row.incarnation
        if is_another and router.epoch == membership.epoch and router.epoch_ms < sent_ms:
            owner.peer.close("another server has announced itself instead")

    def _ping(self) -> None:
        self._pings += 1
        now_ms = self._clock.monotonic_ms()
        for other in self.others.values():
            if other.peer is None:
                continue
            if now_ms - min(other.pinged.values(), default=now_ms) > self._silence_ms:
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

    # Searches.

    def hurry(self, done: Callable[[dict[int, int], bool], None]) -> None:
        """Has all others apply what is durable there. Calls back with the last batch of each, and
        whether the server that decides is among them.
        """
        self._hurries += 1
        number = self._hurries
        self._hurrying[number] = _Hurrying(done)
        self._go_on_hurrying(number, self._clock.monotonic_ms() + _HURRY_MS_MAX)

    def _go_on_hurrying(self, number: int, until_ms: float) -> None:
        hurrying = self._hurrying.get(number)
        if hurrying is None:
            return
        for tenure, other in self.others.items():
            if other.peer is not None and tenure not in hurrying.asked:
                hurrying.asked.add(tenure)
                other.peer.send(Hurry(number))
        if self._clock.monotonic_ms() < until_ms and not self._has_hurried(hurrying):
            self._loop.call_later(_LOOK_SECONDS, lambda: self._go_on_hurrying(number, until_ms))
        else:
            self._end_hurrying(number)

    def _has_hurried(self, hurrying: _Hurrying) -> bool:
        """Whether all have answered, and the one that decides is among them."""
        linked = (tenure for tenure, other in self.others.items() if other.peer is not None)
        return self._knows_owner(hurrying) and all(one in hurrying.batches for one in linked)

    def _knows_owner(self, hurrying: _Hurrying) -> bool:
        if self.router.decides:
            return True
        owner = self.membership.owner
        return owner in hurrying.batches and self.router.has_host

    def _take_hurried(self, tenure: int, message: Hurried) -> None:
        hurrying = self._hurrying.get(message.number)
        if hurrying is not None:
            hurrying.batches[tenure] = message.batch
            if self._has_hurried(hurrying):
                self._end_hurrying(message.number)

    def _end_hurrying(self, number: int) -> None:
        hurrying = self._hurrying.pop(number)
        hurrying.done(hurrying.batches, self._knows_owner(hurrying))

    # Who called us.

    def welcome(self, peer: Peer) -> None:
        """A server has called."""
        number = peer.hello.tenure
        if number in self._closed:
            peer.close(_CLOSED)
            return
        self._callers[number] = peer
        if number in self.others:
            self.others[number].said_goodbye = False
        self.router.greet(peer.hello.incarnation, peer.send)
        if number not in self.membership.tenures:
            self.beat_now()  # it has just joined

    def hear_guest(self, peer: Peer, message: Message) -> None:
        """A server that has called says something."""
        if isinstance(message, Ping):
            peer.send(Pong(message.number, self.router.epoch if self.router.decides else 0))
        elif isinstance(message, Hurry):
            peer.send(Hurried(message.number, self.router.hurry()))
        elif isinstance(message, Leave):
            self.ask_to_leave(message.sentence)
        elif isinstance(message, StopBulk):
            for call in self.on_stop_bulk:
                call(message.bulk_id)
        elif isinstance(message, Goodbye):
            other = self.others.get(peer.hello.tenure)
            if other is not None:
                other.said_goodbye = True
            self.beat_now()  # it has handed over, perhaps to this server
        self.router.hear(peer.hello.incarnation, message)

    def lose_guest(self, peer: Peer) -> None:
        """The link of a server that has called broke."""
        if self._callers.get(peer.hello.tenure) is peer:
            del self._callers[peer.hello.tenure]
        self.router.lose_guest(peer.hello.incarnation, peer.send)

    # Who decides.

    def _look_at_owner(self) -> None:
        """Takes over from the dead, and becomes the owner where there is none."""
        if self._busy or self._ended or self.is_leaving:
            return
        membership = self.membership
        # The others are left to an earlier server that goes on.
        dead = () if self.is_parted else membership.dead(self._clock.monotonic_ms())
        if dead:
            self._take_over(dead[0])
        elif membership.owner == membership.tenure:
            if not self.router.decides:
                self._load()
            elif self.is_parted:
                self._step_down()
        elif not self.is_parted and membership.owner not in membership.tenures:
            self._busy = True
            self._shared.claim(self._claimed)

    def _take_over(self, dead: Tenure) -> None:
        self._busy = True
        if dead.tenure != self._taking_over:
            self._taking_over = dead.tenure
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
            if not self.router.decides:
                return  # what was loaded is less than what is known here
            _log.info("this server decides now", epoch=self.membership.epoch)
            self.beat_now()

        self.router.begin_loading()
        self._shared.load(done)

    def _failed(self, sentence: str, error: Exception) -> None:
        if isinstance(error, FencedError):
            self._fence(error)
        elif sentence != self._failure:
            self._failure = sentence
            _log.warning(sentence, reason=" ".join(str(error).split()))

    def _step_down(self) -> None:
        """The earliest server decides from now on; this one cannot reach all that live."""
        self._busy = True
        heir = min(row.tenure for row in self.membership.others() if row.state == "serving")
        _log.warning("this server cannot reach an earlier one; that one decides from now on")

        def handed_over(found: bool | Exception) -> None:  # noqa: FBT001
            self._busy = False
            if isinstance(found, Exception):
                self._failed("handing over failed; it is tried again", found)
            else:
                self.counters.handovers += 1
            self.beat_now()

        self._hand_over(heir, handed_over, leaves=False)

    def _hand_over(
        self, heir: int | None, done: Callable[[bool | Exception], None], *, leaves: bool
    ) -> None:
        self.router.stop_deciding()

        def idle() -> None:
            self.router.retire()
            self._shared.hand_over(heir, done, leaves=leaves)

        self.router.when_decided(idle)

    # Leaving.

    def ask_to_leave(self, sentence: str) -> None:
        """An operator wants this server to stop in order."""
        _log.info("this server is to stop", reason=sentence)
        for call in self.on_leave:
            call(sentence)

    def drain(self, tenure: int, sentence: str) -> bool:
        """Has a server stop in order; False if there is no link to it."""
        if tenure == self.membership.tenure:
            self.ask_to_leave(sentence)
            return True
        other = self.others.get(tenure)
        if other is None or other.peer is None:
            return False
        other.peer.send(Leave(sentence))
        return True

    def stop_bulk(self, incarnation: str, bulk_id: str) -> bool:
        """Has the server that runs it stop a bulk operation; False if there is no link to it."""
        for other in self.others.values():
            if other.row.incarnation == incarnation and other.peer is not None:
                other.peer.send(StopBulk(bulk_id))
                return True
        return False

    def leave(self, left: Callable[[], None]) -> None:
        """Hands over what this server decides; then calls back. Its clients are served until they
        have left.
        """
        self.is_leaving = True
        if not self.router.decides:
            left()
            return
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

        self._hand_over(None if heir is None else heir.tenure, handed_over, leaves=True)
