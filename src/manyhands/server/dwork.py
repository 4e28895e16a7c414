"""The dwork listener: a socket and a session for each endpoint, and what the session needs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from manyhands.config import Endpoint, Endpoints
from manyhands.model.job import FINISHED, Holder, Job, State
from manyhands.protocols.dwork.session import DworkSession, Settings
from manyhands.protocols.session import Ask
from manyhands.server.traffic import Flow
from manyhands.server.waiters import Sleeper
from manyhands.server.zeromq import RouterSocket
from manyhands.store.batch import Batch
from manyhands.store.store import Store

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.dwork")


class DworkListener:
    """All endpoints. Each is a namespace of its own, kept in the queue of its name."""

    def __init__(self, server: "Server", endpoints: Endpoints) -> None:
        self._hubs = [DworkHub(server, endpoint) for endpoint in endpoints.each]
        server.traffic.sources["dwork"] = self._flow

    def _flow(self) -> Flow:
        return Flow(
            connections=sum(hub.socket.connections_count for hub in self._hubs),
            errors=sum(hub.errors_count for hub in self._hubs),
        )

    async def start(self) -> str:
        """Bind all; gives the addresses in the form of the option."""
        return str(Endpoints(tuple([await hub.start() for hub in self._hubs])))

    async def drain(self) -> None:
        """Tell everybody, on all sockets at once."""
        await asyncio.gather(*(hub.socket.drain() for hub in self._hubs))


class DworkHub:
    """One endpoint. It is the ``Hub`` of its session."""

    def __init__(self, server: "Server", endpoint: Endpoint) -> None:
        config = server.config
        self._endpoint = endpoint
        self._dispatcher = server.dispatcher
        self._index = server.store.index
        self._ids = server.ids
        self.socket = RouterSocket(server, endpoint.address, f"dwork {endpoint.name}")
        self.send = self.socket.send
        self.send_alone = self.socket.send_alone
        self.ask: Ask = server.dispatcher.ask
        self.now = server.clock.now
        self.token = server.ids.token
        self._stuck_at: tuple[int, int, int] | None = None  # what was known when it was worked out
        self._stuck = False
        self._records = _Records(server.store)
        self._session = DworkSession(
            self,
            Settings(
                queue=endpoint.name,
                exit_when=config.dwork_exit,
                lease_ms=config.dwork_lease_seconds * 1000 or None,
                steal_max=config.dwork_steal_max,
                payload_bytes_max=config.payload_bytes_max,
                strict=config.dwork_strict,
                wait_for_unknown=config.dwork_unknown == "wait",
            ),
        )

    @property
    def errors_count(self) -> int:
        """Messages that were answered with an error, or dropped."""
        return self._session.turns.errors_count + self._session.dropped_count

    async def start(self) -> Endpoint:
        """Bind; gives the endpoint with the port that was bound."""
        address = await self.socket.start(self._session)
        self._dispatcher.on_batch.append(self._on_batch)
        return Endpoint(self._endpoint.name, address)

    def _on_batch(self, _batch: Batch, _elapsed_ms: float) -> None:
        self._session.look_up_from_work()

    def report_dropped(self, count: int) -> None:
        # The first one, the second, the fourth, …: a peer cannot fill the disk with this.
        if count & (count - 1) == 0:
            _log.warning(
                "messages without delimiter or body were dropped",
                endpoint=self._endpoint.name,
                count=count,
            )

    @property
    def draining(self) -> bool:
        return self._dispatcher.draining

    def job_id(self) -> str:
        return self._ids.job_id(self.now())

    def counts(self, queue: str) -> Mapping[State, int] | None:
        known = self._index.queues.get(queue)
        return known.counts if known is not None else None

    def is_stuck(self, queue: str) -> bool:
        """Looks at every blocked job, but only once for each state of the world."""
        index = self._index
        world = (self._dispatcher.events.last_seq, index.serial, index.position)
        if self._stuck_at != world:
            self._stuck_at = world
            self._stuck = all(
                self._is_lost(key, queue)
                for job in index.jobs.values()
                if job.state is State.BLOCKED and job.queue == queue
                for key in job.waits_for
            )
        return self._stuck

    def _is_lost(self, key: str, queue: str) -> bool:
        """Whether a dependency can never be met as things are; of blocked ones in the same queue
        their own dependencies tell.
        """
        other = self._index.job(key)
        if other is None:
            return False  # a name that is still to appear
        if other.state in FINISHED:
            return other.state is not State.COMPLETED
        return other.state is State.BLOCKED and other.queue == queue

    def leased_ids(self, holder: Holder) -> Sequence[str]:
        return self._index.leased_by_holder(holder)

    def name_of(self, key: str) -> str:
        job = self._index.jobs.get(key)
        if job is not None:
            return job.name or key
        return key.rpartition("\0")[2]

    def find_ended(
        self, namespace: str, names: Sequence[str], then: Callable[[Mapping[str, Job]], None]
    ) -> None:
        self._records.find(namespace, names, then)

    def sleep(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        sleeper = Sleeper((queue,), lambda _queue: wake())
        waiters = self._dispatcher.waiters
        waiters.sleep(sleeper)
        return lambda: waiters.leave(sleeper)

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        return self.socket.loop.call_later(seconds, call).cancel


class _Records:
    """Questions to the records of one endpoint, which take a while: one at a time, in a thread,
    and whatever is asked meanwhile is one question more. So a flood of them costs one thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[str, Sequence[str], Callable[[Mapping[str, Job]], None]]] = []
        self._running: asyncio.Task[None] | None = None

    def find(
        self, namespace: str, names: Sequence[str], then: Callable[[Mapping[str, Job]], None]
    ) -> None:
        """Look for the latest ends of these names, and tell."""
        self._asked.append((namespace, names, then))
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            names = tuple(dict.fromkeys(name for _, some, _ in asked for name in some))
            try:
                found = await asyncio.to_thread(self._store.find_ended, asked[0][0], names)
            except Exception:  # noqa: BLE001 - nobody knows then, and whoever asked is told so
                _log.exception("records cannot be read")
                found = {}
            for _, _, then in asked:
                then(found)
        self._running = None
