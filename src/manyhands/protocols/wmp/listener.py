"""The WMP listener: a socket, a session, and what the session needs. The server is a manager."""

import importlib
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.access.curve_keys import CurveKeyFile
from manyhands.access.gate import Askers
from manyhands.config import Address, Config
from manyhands.dispatch.session import Ask, Settle
from manyhands.dispatch.sleepers import Sleeper
from manyhands.loggers import get_logger
from manyhands.model.commands import Command
from manyhands.model.identity import chosen_routing_id
from manyhands.model.job import Holder, State
from manyhands.model.plain import event_of
from manyhands.model.roles import ANYBODY
from manyhands.net.backplane import Backplane
from manyhands.net.zeromq import Places, RouterSocket
from manyhands.observe.repeats import Repeats
from manyhands.observe.traffic import Flow
from manyhands.protocols.wmp.readiness import Choose, oldest
from manyhands.protocols.wmp.session import Settings, WmpSession
from manyhands.store.batch import Batch

_log = get_logger("manyhands.wmp")
P = ParamSpec("P")

_READY: Final = State.READY


class WmpListener:
    """The ``Hub`` of its session."""

    def __init__(
        self,
        backplane: Backplane,
        config: Config,
        address: Address | None,
        key: CurveKeyFile | None = None,
    ) -> None:
        dispatcher, ids = backplane.dispatcher, backplane.ids
        self._dispatcher = dispatcher
        self._audit = backplane.audit
        self._live = dispatcher.store.live
        self._ids = ids
        self.curve_address: str | None = None  # once it is bound
        places = Places(address, config.wmp_curve, key, config.zeromq_plain)
        self._socket = RouterSocket(backplane, "wmp", config.payload_bytes_max, places)
        self._loop = self._socket.loop
        self.send = self._socket.send
        # With an access file, commands are those of the peer whose message is handled.
        asks = backplane.logins.callers.asks_everyone
        self._askers = Askers(dispatcher.ask) if asks else None
        self.ask: Ask = dispatcher.ask if self._askers is None else self._askers.ask
        self.now = dispatcher.clock.now
        self.token = ids.token
        self.ready_count = dispatcher.ready_count
        self._dropped: dict[str, int] = {}
        self._repeats = Repeats(_log)
        # Queues that may have ready jobs; those without any are removed on the next query.
        self._with_work = dict.fromkeys(
            name for name, known in self._live.queues.items() if known.ready_count
        )
        self._session = WmpSession(
            self,
            Settings(
                manager=config.server_name,
                lease_ms=config.wmp_lease_seconds * 1000,
                wake_all=config.wmp_wake == "all",
                choose=load_function(config.wmp_choose),
                payload_bytes_max=config.payload_bytes_max,
            ),
        )

    def flow(self) -> Flow:
        """Connections and errors so far."""
        return Flow(self._socket.connections_count, sum(self._dropped.values()))

    async def start(self) -> str | None:
        """Binds the socket; returns its actual address without encryption."""
        bound = await self._socket.start(self._session, self._askers)
        self._dispatcher.on_batch.append(self._on_batch)
        self.curve_address = None if bound.curve is None else str(bound.curve)
        return None if bound.plain is None else str(bound.plain)

    async def drain(self) -> None:
        """Answers all held requests; reports that arrive meanwhile are still accepted."""
        await self._socket.drain()

    def _on_batch(self, batch: Batch, _elapsed_ms: float) -> None:
        with_work = self._with_work
        for event in batch.entries:
            if event.state is _READY:
                with_work[event.queue] = None
        self._session.committed(map(event_of, batch.entries))

    # The session's side.

    def operate(self, command: Command, settle: Settle, peer: bytes) -> None:
        guard = self._socket.guard_of(peer)
        self._audit.ask(
            command,
            settle,
            self._socket.address_of(peer),
            "wmp",
            "",
            self._socket.caller_of(peer) or ANYBODY,
            None if guard is None else guard.ask_recorded,
        )

    @property
    def draining(self) -> bool:
        return self._dispatcher.draining

    def job_id(self) -> str:
        return self._ids.job_id(self.now())

    def has_work(self, queue: str) -> bool:
        return self._dispatcher.has_work((queue,))

    def queues_with_work(self) -> list[str]:
        found = []
        guard = None if self._askers is None else self._askers.guard
        for queue in list(self._with_work):
            if self.ready_count(queue):
                if guard is None or guard.caller.may_use(queue):
                    found.append(queue)
            else:
                del self._with_work[queue]
        return found

    def sleep(
        self, queues: tuple[str, ...], wake: Callable[[str], None], holder: Holder | None = None
    ) -> Callable[[], None]:
        sleeper = Sleeper(queues or None, self._bound(wake), holder)
        sleepers = self._dispatcher.sleepers
        sleepers.sleep(sleeper)
        return lambda: sleepers.leave(sleeper)

    def _bound(self, call: Callable[P, None]) -> Callable[P, None]:
        return call if self._askers is None else self._askers.bind(call)

    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        call = self._bound(call)
        if seconds <= 0.0:
            return self._loop.call_soon(call).cancel
        return self._loop.call_later(seconds, call).cancel

    def refusal_to_work(self, queues: tuple[str, ...]) -> str | None:
        guard = None if self._askers is None else self._askers.guard
        if guard is not None:
            for queue in queues or (None,):
                refusal = guard.refusal_to_work(queue)
                if refusal is not None:
                    return refusal.sentence
        return None

    def report_dropped(self, kind: str, peer: bytes, sentence: str) -> None:
        count = self._dropped[kind] = self._dropped.get(kind, 0) + 1
        # By address: a routing id costs its sender nothing.
        self._repeats.warn(
            "a message was dropped",
            self._socket.address_of(peer),
            kind=kind,
            identity=chosen_routing_id(peer).hex(),
            reason=sentence,
            count=count,
        )

    def metrics(self) -> Iterator[Metric]:
        """The metrics of this listener."""
        session = self._session
        messages = CounterMetricFamily(
            "manyhands_wmp_messages", "Messages of WMP peers.", labels=["command"]
        )
        for command, count in session.received.items():
            if count:
                messages.add_metric([command.name.lower()], count)
        yield messages
        yield CounterMetricFamily(
            "manyhands_wmp_wakes", "WAKE messages sent.", session.readiness.wakes_count
        )
        dropped = CounterMetricFamily(
            "manyhands_wmp_dropped", "Messages that were not understood.", labels=["kind"]
        )
        for kind, count in self._dropped.items():
            dropped.add_metric([kind], count)
        yield dropped
        numbers = {
            "ready": ("Paths to workers that are ready.", len(session.readiness.entries)),
            "held": ("GIVEs that wait for work.", len(session.giving.held)),
            "leases": ("Leases whose holders can be reached.", len(session.holdings)),
            "watches": ("FETCHes that wait.", session.submitting.watches_count),
        }
        for name, (text, number) in numbers.items():
            yield GaugeMetricFamily(f"manyhands_wmp_{name}", text, number)


def load_function(name: str | None) -> Choose:
    """The function of that name; raises OSError, with a sentence, if there is none."""
    if name is None:
        return oldest
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OSError(f"wmp_choose: {name} cannot be loaded: {error}") from None
    if not callable(found):
        raise OSError(f"wmp_choose: {name} is not a function")
    chosen: Choose = found
    return chosen
