"""The dwork listener: a socket and a session per endpoint, and what the session needs."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, ParamSpec

from manyhands.access.curve_keys import CurveKeyFile
from manyhands.access.gate import Askers
from manyhands.config import Address, Config, Endpoint, Endpoints
from manyhands.config.kinds import DWORK_QUEUE
from manyhands.dispatch.session import Ask
from manyhands.dispatch.sleepers import Sleeper
from manyhands.loggers import get_logger
from manyhands.model.identity import name_key
from manyhands.model.job import Holder, Job, State
from manyhands.net.backplane import Backplane
from manyhands.net.zeromq import Places, RouterSocket
from manyhands.observe.traffic import Flow
from manyhands.protocols.dwork.session import DworkSession, Settings
from manyhands.store.batch import Batch
from manyhands.store.contract import Store

_log = get_logger("manyhands.dwork")
P = ParamSpec("P")
# Counting held tasks takes at most a twentieth of the time.
_HELD_PAUSE: Final = 20


class DworkListener:
    """All endpoints. Each is a namespace of its own, stored in the queue of its name."""

    def __init__(
        self,
        backplane: Backplane,
        config: Config,
        endpoints: Endpoints | None,
        key: CurveKeyFile | None = None,
    ) -> None:
        self.curve_address: str | None = None  # once it is bound
        plain, curve = (
            {} if each is None else {one.name: one.address for one in each.each}
            for each in (endpoints, config.dwork_curve)
        )
        self._hubs = [
            DworkHub(
                backplane,
                config,
                name,
                Places(plain.get(name), curve.get(name), key, config.zeromq_plain),
            )
            for name in {**plain, **curve}
        ]

    def flow(self) -> Flow:
        """Connections and errors so far."""
        return Flow(
            connections=sum(hub.socket.connections_count for hub in self._hubs),
            errors=sum(hub.errors_count for hub in self._hubs),
        )

    async def start(self) -> str | None:
        """Binds all endpoints; returns the addresses in the form of the option."""
        bound = [(hub.name, await hub.start()) for hub in self._hubs]
        self.curve_address = _listed((name, places.curve) for name, places in bound)
        return _listed((name, places.plain) for name, places in bound)

    async def drain(self) -> None:
        """Notifies all peers, on all sockets at once."""
        await asyncio.gather(*(hub.socket.drain() for hub in self._hubs))


def _listed(bound: Iterable[tuple[str, Address | None]]) -> str | None:
    """As in the option, or None if there are none."""
    each = tuple(Endpoint(name, address) for name, address in bound if address is not None)
    return str(Endpoints(each)) if each else None


class DworkHub:
    """One endpoint: the ``Hub`` of its session."""

    def __init__(self, backplane: Backplane, config: Config, name: str, places: Places) -> None:
        dispatcher, ids = backplane.dispatcher, backplane.ids
        self.name = name
        self._dispatcher = dispatcher
        self._live = dispatcher.store.live
        self._ids = ids
        self.socket = RouterSocket(backplane, _name(name), config.payload_bytes_max, places)
        self.send = self.socket.send
        self.send_alone = self.socket.send_alone
        # With an access file, commands are those of the peer whose message is handled.
        asks = backplane.logins.callers.asks_everyone
        self._askers = Askers(dispatcher.ask) if asks else None
        self.ask: Ask = dispatcher.ask if self._askers is None else self._askers.ask
        self._clock = dispatcher.clock
        self.now = dispatcher.clock.now
        self.token = ids.token
        self._held_at: tuple[int, int, int] | None = None  # what the last count was based on
        self._held = 0
        self._held_until_ms = 0.0
        self._records = _Records(dispatcher.store)
        self._session = DworkSession(
            self,
            Settings(
                queue=name,
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
        """Messages that were answered with an error or dropped."""
        return self._session.turns.errors_count + self._session.dropped_count

    async def start(self) -> Places:
        """Binds the socket; returns the actual addresses."""
        places = await self.socket.start(self._session, self._askers)
        self._dispatcher.on_batch.append(self._on_batch)
        return places

    def _on_batch(self, _batch: Batch, _elapsed_ms: float) -> None:
        self._session.look_up_from_work()

    def report_dropped(self, count: int) -> None:
        # Logs the first, second, fourth, … one, so that a peer cannot fill the disk.
        if count & (count - 1) == 0:
            _log.warning(
                "messages without delimiter or body were dropped",
                endpoint=self.name,
                count=count,
            )

    @property
    def draining(self) -> bool:
        return self._dispatcher.draining

    def job_id(self) -> str:
        return self._ids.job_id(self.now())

    def counts(self, queue: str) -> Mapping[State, int] | None:
        known = self._live.queues.get(queue)
        return known.counts if known is not None else None

    def endings(self, queue: str) -> Mapping[State, int]:
        return self._live.graph_endings(queue)

    def known(self, name: str) -> Job | None:
        return self._live.job(name_key(self.name, name))

    def held_count(self, queue: str, *, exactly: bool) -> int:
        """Follows the waiting tasks from the failed ones, once per state of the store; seldom,
        unless it must be exact, since very many may be held.
        """
        lost = self._live.graph_losses(queue)
        if not lost:
            return 0
        world = self._world()
        now = self._clock.monotonic_ms()
        if self._held_at != world and (exactly or now >= self._held_until_ms):
            self._held_at = world
            self._held = self._count_held(queue, list(lost))
            spent_ms = self._clock.monotonic_ms() - now
            self._held_until_ms = now + spent_ms * _HELD_PAUSE
        return self._held

    def _count_held(self, queue: str, lost: list[str]) -> int:
        live = self._live
        held: set[str] = set()
        while lost:
            key = lost.pop()
            job = live.live_job(key)
            waiting = list(live.dependants(key))
            if job is not None and job.name is not None:
                waiting += live.dependants(name_key(queue, job.name))
            for job_id in waiting:
                other = live.live_job(job_id)
                assert other is not None
                if job_id not in held and other.state is State.BLOCKED and other.queue == queue:
                    held.add(job_id)
                    lost.append(job_id)
        return len(held)

    def _world(self) -> tuple[int, int, int]:
        live = self._live
        return self._dispatcher.events.last_seq, live.last_serial(), live.position

    def forgotten_count(self, namespace: str) -> int:
        return self._live.forgotten_count(namespace)

    def leased_ids(self, holder: Holder) -> Sequence[str]:
        return self._live.leased_by_holder(holder)

    def name_of(self, key: str) -> str:
        job = self._live.live_job(key)
        if job is not None:
            return job.name or key
        return key.rpartition("\0")[2]

    def sees(self, job: Job) -> bool:
        guard = None if self._askers is None else self._askers.guard
        return guard is None or guard.sees(job)

    def find_ended(
        self, namespace: str, names: Sequence[str], then: Callable[[Mapping[str, Job]], None]
    ) -> None:
        self._records.find(namespace, names, self._bound(then))

    def sleep(self, queue: str, wake: Callable[[], None], holder: Holder) -> Callable[[], None]:
        named = holder if holder.name is not None else None
        wake = self._bound(wake)
        sleeper = Sleeper((queue,), lambda _queue: wake(), named)
        sleepers = self._dispatcher.sleepers
        sleepers.sleep(sleeper)
        return lambda: sleepers.leave(sleeper)

    def _bound(self, call: Callable[P, None]) -> Callable[P, None]:
        return call if self._askers is None else self._askers.bind(call)

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        return self.socket.loop.call_later(seconds, self._bound(call)).cancel


class _Records:
    """Looks up stored jobs of one endpoint, which takes a while: one lookup at a time, in a thread,
    and requests that arrive meanwhile are combined into the next one. So a flood costs one thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[str, Sequence[str], Callable[[Mapping[str, Job]], None]]] = []
        self._running: asyncio.Task[None] | None = None

    def find(
        self, namespace: str, names: Sequence[str], then: Callable[[Mapping[str, Job]], None]
    ) -> None:
        """Looks for the latest ends of these names, and calls back."""
        self._asked.append((namespace, names, then))
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            names = tuple(dict.fromkeys(name for _, some, _ in asked for name in some))
            try:
                found = await asyncio.to_thread(self._store.find_ended, asked[0][0], names)
            except Exception:  # noqa: BLE001 - then nothing is known, and callers get that
                _log.exception("records cannot be read")
                found = {}
            for _, _, then in asked:
                then(found)
        self._running = None


def _name(queue: str) -> str:
    """The listener's name; of several, each is called by its queue."""
    return "dwork" if queue == DWORK_QUEUE else f"dwork {queue}"
