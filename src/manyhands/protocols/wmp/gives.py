"""GIVE: a worker asks, and gets jobs (TAKE) or none (NO), perhaps after waiting a while.

A claim is on disk before its TAKE leaves, so a worker keeps its lease over a restart of the server.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from manyhands.model import limits
from manyhands.model.commands import ByToken, Claim, ClaimOrder, Release
from manyhands.model.job import Holder, Job
from manyhands.model.replies import Claimed, Refusal, Reply
from manyhands.protocols.wmp.codec import Command, Path, Property, decimal, encode
from manyhands.protocols.wmp.holdings import Holdings
from manyhands.protocols.wmp.hub import Hub, way_back
from manyhands.protocols.wmp.readiness import Readiness
from manyhands.protocols.wmp.submits import name_of

# GIVEs that are held while there is no work.
HELD_COUNT_MAX: Final = 50_000
_STOPPING_MS: Final = 1_000


class Give(Struct, frozen=True, kw_only=True):
    """A worker's request."""

    path: Path
    lock: bytes
    queues: tuple[str, ...]  # empty: any
    count: int
    until: int  # wait for work until then
    identity: str


class _Held:
    """A GIVE that waits for work."""

    __slots__ = ("call_off", "give", "leave")

    def __init__(self, give: Give) -> None:
        self.give = give
        self.leave: Callable[[], None] = _nothing
        self.call_off: Callable[[], None] = _nothing


def _nothing() -> None:
    """Not asleep."""


class Giving:
    """All GIVEs of one socket."""

    def __init__(
        self,
        hub: Hub,
        readiness: Readiness,
        holdings: Holdings,
        manager: bytes,
        lease_ms: int | None,
    ) -> None:
        self.held: dict[tuple[Path, bytes], _Held] = {}
        self.awaited_count = 0
        self._hub = hub
        self._readiness = readiness
        self._holdings = holdings
        self._manager: Property = (b"manager", manager)
        self._lease_ms = lease_ms
        self._turn = 0

    def give(self, give: Give) -> None:
        """Hands out up to the requested number of jobs."""
        earlier = self.held.get((give.path, give.lock))
        if earlier is not None:
            self._wake_up(earlier)  # repeated: the same locks, no new ones
        hub = self._hub
        self._turn += 1
        queues = give.queues or self._any_queues()
        token = hub.token
        claim = Claim(
            queues=queues,
            holder=Holder("wmp", give.identity),
            tokens=tuple([token() for _ in range(give.count)]),
            order=ClaimOrder.PRIORITY_IN_TURNS,
            turn=self._turn,
            term_ms=self._lease_ms,
        )
        self.awaited_count += 1
        hub.ask(claim, lambda reply: self._settle(give, queues, reply))

    def _any_queues(self) -> tuple[str, ...]:
        """Queues with work; if there are too many for one claim, different ones each time."""
        found = list(self._hub.queues_with_work())
        most = limits.CLAIM_QUEUES_MAX
        if len(found) > most:
            start = self._turn * most % len(found)
            found = (found[start:] + found[:start])[:most]
        return tuple(found)

    def _settle(self, give: Give, queues: tuple[str, ...], reply: Reply) -> None:
        self.awaited_count -= 1
        if type(reply) is not Claimed:
            self._readiness.silence(give.path)
            assert isinstance(reply, Refusal)
            self._say_no(give, queues, give.count, _STOPPING_MS, reply.sentence)
        elif reply.jobs:
            self._readiness.given(give.path)
            for job in reply.jobs:
                self._take(give, job)
            if len(reply.jobs) < give.count:
                self._say_no(give, queues, give.count - len(reply.jobs))
        elif self._may_hold(give):
            self._hold(give)
        else:
            retry_ms = 0
            if reply.retry_at is not None:
                retry_ms = max(1, reply.retry_at - self._hub.now())
            self._say_no(give, queues, give.count, retry_ms)

    def _take(self, give: Give, job: Job) -> None:
        lease = job.lease
        assert lease is not None
        path = give.path
        self._holdings.hold(job, path)
        properties: list[Property] = [
            self._manager,
            (b"job", job.job_id.encode()),
            (b"lease", bytes.fromhex(lease.token)),
            (b"lock", give.lock),
            (b"role", job.queue.encode()),
            (b"timeout", decimal(lease.term_ms or 0)),
            (b"attempt", decimal(lease.number)),
        ]
        more = self._readiness.unnotified_count(job.queue)
        if more > 0:
            # A worker with slots left need not wait to be woken.
            properties.append((b"more", decimal(more)))
        name = name_of(job)
        if name:
            properties.append((b"name", name))
        control = encode(Command.TAKE, *properties)

        def undelivered() -> None:
            # Never seen by the worker: it goes back without a charged attempt.
            self._readiness.forget(path)
            self._holdings.drop(job.job_id, lease.number)
            self._hub.ask(Release(job_id=job.job_id, proof=ByToken(lease.token)))

        if job.payload:
            self._hub.send((*way_back(path), control), job.payload, undelivered)
        else:
            self._hub.send(way_back(path), control, undelivered)

    def _say_no(
        self, give: Give, queues: tuple[str, ...], count: int, retry_ms: int = 0, reason: str = ""
    ) -> None:
        path = give.path
        properties: list[Property] = [self._manager, (b"lock", give.lock)]
        if count != 1:
            properties.append((b"n", decimal(count)))
        if retry_ms:
            properties.append((b"retry-after", decimal(retry_ms)))
        if reason:
            properties.append((b"reason", reason.encode("utf-8", "replace")))
        forget = self._readiness.forget
        self._hub.send(way_back(path), encode(Command.NO, *properties), lambda: forget(path))
        self._readiness.refused(path, queues)

    # Waiting.

    def _may_hold(self, give: Give) -> bool:
        hub = self._hub
        return (
            hub.now() < give.until
            and not hub.draining
            and len(self.held) < HELD_COUNT_MAX
            and (give.path, give.lock) not in self.held
        )

    def _hold(self, give: Give) -> None:
        hub = self._hub
        held = self.held[give.path, give.lock] = _Held(give)
        worker = Holder("wmp", give.identity) if give.identity else None
        held.leave = hub.sleep(give.queues, lambda _queue: self._try_again(held), worker)
        held.call_off = hub.later((give.until - hub.now()) / 1000, lambda: self._try_again(held))
        # Work may have arrived between the negative answer and now.
        if any(hub.has_work(queue) for queue in give.queues or hub.queues_with_work()):
            self._try_again(held)

    def _wake_up(self, held: _Held) -> bool:
        if self.held.pop((held.give.path, held.give.lock), None) is None:
            return False
        held.leave()
        held.call_off()
        return True

    def _try_again(self, held: _Held) -> None:
        if self._wake_up(held):
            self.give(held.give)

    def let_all_go(self) -> None:
        """The server is about to stop: answers all held GIVEs."""
        for held in list(self.held.values()):
            if self._wake_up(held):
                self.give(msgspec.structs.replace(held.give, until=0))
