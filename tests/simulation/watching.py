"""A watcher with a durable queue: the real broker's place in the event log, through all faults.

Whatever was announced since its queue was acknowledged it hears at least once, and what is on disk
of its place in the log never claims more than it has acknowledged.
"""

from typing import TYPE_CHECKING

import msgspec

from manyhands.model import commands as c
from manyhands.net.amqp import Message
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.queues import Saved, Traits, WatchQueue
from tests.simulation.actors import Actor

if TYPE_CHECKING:
    from tests.simulation.simulate import Server, Simulation

QUEUE = "watcher"
CURSOR = f"amqp.queue:{QUEUE}"
EXCHANGES = ("ready", "leased", "completed", "failed", "cancelled")
_decode = msgspec.json.Decoder(Saved).decode


class Log:
    """The server's own log, with states for exchanges."""

    first_seq = 1

    def __init__(self, server: "Server") -> None:
        self._events = server.dispatcher.events

    @property
    def last_seq(self) -> int:
        return self._events.last_seq

    def read(
        self, seq: int, count_max: int, exchanges: frozenset[str] | None
    ) -> tuple[list[Message], int]:
        found = self._events.after(seq, count_max)
        messages = [
            Message(one.seq, one.event.state.value, one.event.job_id, b"", b"")
            for one in found
            if exchanges is None or one.event.state.value in exchanges
        ]
        return messages, found[-1].seq if found else max(seq, self.last_seq)

    def seq_before(self, at: int) -> int:
        raise NotImplementedError


class Watcher(Actor):
    """Takes messages, acknowledges them late, gives some back, and comes again after crashes."""

    pause_us = (20_000, 900_000)
    tag = "watcher"
    exclusive = False

    def __init__(self, simulation: "Simulation") -> None:
        self.since: int | None = None  # the queue was acknowledged, and hears what comes after
        self.acknowledged: set[int] = set()
        self._served: Server | None = None
        self._broker: Broker | None = None
        self._open: list[int] = []  # delivered, and neither acknowledged nor given back
        self._last = 0  # the newest message of this life of the server
        self._promised: set[str] = set()  # other durable queues that were acknowledged
        super().__init__(simulation)

    def act(self) -> None:
        # All of this is the server's own work: none of it happens while the server stands still.
        server = self.simulation.server
        server.loop.arrive(0, lambda: self._work() if server is self.simulation.server else None)

    def _work(self) -> None:
        queue = self._queue()
        if queue is None:
            return
        rng = self.rng
        broker = self._broker
        assert broker is not None
        rng.shuffle(self._open)
        for _ in range(rng.randint(0, len(self._open))):
            seq = self._open.pop()
            if rng.random() < 0.85:
                queue.settle(seq)
                self.acknowledged.add(seq)
            else:
                queue.give_back(seq)
            broker.changed(queue)
        if rng.random() < 0.3:
            self._declare_another(broker)
        broker.feed_soon(queue)
        broker.feed()
        broker.tick(self.simulation.server.clock.now())

    def _declare_another(self, broker: Broker) -> None:
        """A durable queue that nobody reads, or the end of one."""
        name = f"unread-{self.rng.randint(1, 5)}"
        known = broker.queues.get(name)
        if known is not None:
            self._promised.discard(name)
            broker.delete(known)
            return
        queue = broker.declare(name, Traits(durable=True), self.simulation.server.clock.now())

        def declared(refusal: object) -> None:
            # One of the same name that came after it has an answer of its own.
            if refusal is None and broker.queues.get(name) is queue and broker is self._broker:
                self._promised.add(name)

        broker.save(queue, declared)

    def _queue(self) -> WatchQueue | None:
        server = self.simulation.server
        if self._served is not server:
            self._arrive(server)
        assert self._broker is not None
        return self._broker.queues.get(QUEUE)

    def _arrive(self, server: "Server") -> None:
        """A server that was just started."""
        self._served = server
        self._open.clear()
        self._last = 0
        now = server.clock.now()
        broker = self._broker = Broker(EXCHANGES, Log(server), self._ask, lambda: None)
        broker.restore(tuple(server.store.live.cursors.values()), now)
        queue = broker.queues.get(QUEUE)
        if queue is None:
            self.simulation.require(self.since is None, "a durable queue is gone")
            queue = broker.declare(QUEUE, Traits(durable=True), now)
            for exchange in EXCHANGES:
                queue.bind(exchange, "#")
            since = queue.position

            def declared(refusal: object) -> None:
                if refusal is None and self.since is None:
                    self.since = since

            broker.save(queue, declared)
        elif self.since is None:
            self.since = queue.bindings[0].since  # it was on disk before the answer was lost
        queue.consumers.append(self)

    def _ask(self, command: c.Command, settle=None, refused=None) -> None:  # noqa: ARG002
        self.simulation.ask(command, settle)

    # A consumer.

    def can_take(self) -> bool:
        return len(self._open) < 20

    def deliver(self, message: Message, *, redelivered: bool) -> None:
        seq = message.seq
        self.simulation.count("redelivered" if redelivered else "delivered")
        self.simulation.require(seq not in self._open, f"message {seq} was delivered twice at once")
        if not redelivered:
            self.simulation.require(seq > self._last, f"message {seq} came after {self._last}")
            self._last = seq
        self._open.append(seq)

    def end(self) -> None:
        raise AssertionError("nobody deletes this queue")

    # What must hold.

    def check_saved(self) -> None:
        """After a crash: what counts as dealt with was acknowledged by this watcher."""
        for name in sorted(self._promised):
            on_disk = f"amqp.queue:{name}" in self.simulation.disk.settings["cursors"]
            self.simulation.require(on_disk, f"the durable queue {name} was not on disk")
        body = self.simulation.disk.settings["cursors"].get(CURSOR)
        if body is None:
            self.simulation.require(self.since is None, "a durable queue was not on disk")
            return
        if self.since is None:
            return
        saved = _decode(msgspec.json.decode(body)["notes"])
        open_still = set(saved.owed)
        for seq in self._wanted(saved.position):
            heard = seq in self.acknowledged or seq in open_still
            self.simulation.require(heard, f"message {seq} counts as heard, and was not")

    def _wanted(self, last: int) -> list[int]:
        assert self.since is not None
        states = self.simulation.record.states()
        return [seq for seq in range(self.since + 1, last + 1) if states.get(seq, "") in EXCHANGES]

    def check_complete(self) -> None:
        """At the end of the world: read on until there is nothing more."""
        if self.since is None:
            return
        queue = self._queue()
        assert queue is not None
        assert self._broker is not None
        for seq in self._open:
            queue.settle(seq)
        self.acknowledged.update(self._open)
        self._open.clear()
        while (taken := queue.take()) is not None:
            self.acknowledged.add(taken[0].seq)
            queue.settle(taken[0].seq)
        last = self.simulation.server.dispatcher.events.last_seq
        missed = [seq for seq in self._wanted(last) if seq not in self.acknowledged]
        self.simulation.require(not missed, f"messages {missed[:5]} were never delivered")
