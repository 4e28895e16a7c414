"""The event log as messages: rendered when first read, kept for the next reader."""

import ipaddress
from typing import TYPE_CHECKING, Final

from manyhands.model.job import Job
from manyhands.protocols.taskcluster.messages import EXCHANGE_OF, Extras, Renderer
from manyhands.wire.amqp import Message

if TYPE_CHECKING:
    from manyhands.server.app import Server

# Readers at the end of the log follow each other closely: the newest messages are enough.
_KEPT_MAX: Final = 4_096


class MessageLog:
    """What the AMQP endpoint and the relay read."""

    def __init__(self, server: "Server") -> None:
        self._events = server.dispatcher.events
        self._store = server.store
        config = server.config
        extras = Extras(config.amqp_cloudevents, config.amqp_cc)
        self._renderer = Renderer(config.server_name, base_url(server), self._find, extras)
        self._kept: dict[int, Message] = {}

    @property
    def last_seq(self) -> int:
        """Of the newest event that may be shown."""
        return self._events.last_seq

    @property
    def first_seq(self) -> int:
        """Of the oldest event that is kept."""
        return self._store.first_seq()

    def read(
        self, seq: int, count_max: int, exchanges: frozenset[str] | None
    ) -> tuple[list[Message], int]:
        """Messages of these exchanges (None: of all) among the next so many events, and up to
        where that was.
        """
        events = self._events.after(seq, count_max)
        if not events:
            return [], max(seq, self.last_seq)
        messages = []
        for stored in events:
            exchange = EXCHANGE_OF.get(stored.event.state)
            if exchange is None or (exchanges is not None and exchange not in exchanges):
                continue
            message = self._kept.get(stored.seq)
            if message is None:
                message = self._renderer.render(stored.seq, stored.event)
                assert message is not None
                self._keep(message)
            messages.append(message)
        return messages, events[-1].seq

    def _keep(self, message: Message) -> None:
        kept = self._kept
        kept[message.seq] = message
        if len(kept) > _KEPT_MAX:
            del kept[next(iter(kept))]

    def seq_before(self, at: int) -> int:
        """The last place in the log before an instant. Events lie in order of time."""
        low, high = self.first_seq, self.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            found = self._events.after(middle - 1, 1)
            if found and found[0].event.at < at:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _find(self, job_id: str) -> Job | None:
        return self._store.index.jobs.get(job_id) or self._store.find(job_id)


def base_url(server: "Server") -> str:
    """Where the documents that messages name are to be had."""
    address = server.addresses["http"]
    if address is None:
        return f"http://{server.config.server_name}"
    return f"http://{reachable(server, address)}"


def reachable(server: "Server", address: str) -> str:
    """An address that a listener was bound to, as others may call it."""
    host, _, port = address.rpartition(":")
    if ipaddress.ip_address(host.strip("[]")).is_unspecified:
        return f"{server.config.server_name}:{port}"
    return address
