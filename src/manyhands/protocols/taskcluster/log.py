"""The event log as messages: rendered when first read, cached for the next reader."""

import ipaddress
from collections.abc import Mapping
from typing import Final

from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.job import Job
from manyhands.net.amqp import Message
from manyhands.protocols.taskcluster.messages import (
    ALIASES,
    EXCHANGE_OF,
    EXCHANGES,
    Extras,
    Renderer,
)

# Readers at the end of the log follow each other closely, so the newest messages suffice.
_KEPT_MAX: Final = 4_096


class MessageLog:
    """The log as the AMQP endpoint and the relay read it."""

    def __init__(
        self, dispatcher: Dispatcher, config: Config, addresses: Mapping[str, str | None]
    ) -> None:
        self._events = dispatcher.events
        self._store = dispatcher.store
        extras = Extras(config.amqp_cloudevents, config.amqp_cc)
        where = base_url(config.server_name, addresses)
        self._renderer = Renderer(config.server_name, where, self._find, extras)
        self.exchanges = EXCHANGES
        self.aliases = ALIASES if config.amqp_aliases else {}
        self._kept: dict[int, Message] = {}

    @property
    def last_seq(self) -> int:
        """The number of the newest event that may be shown."""
        return self._events.last_seq

    @property
    def first_seq(self) -> int:
        """The number of the oldest stored event."""
        return self._store.first_seq()

    def read(
        self, seq: int, count_max: int, exchanges: frozenset[str] | None
    ) -> tuple[list[Message], int]:
        """Messages of these exchanges (None: all) among the next so many events, and the number
        read up to.
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
        """The last number before an instant. Events are ordered by time."""
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
        return self._store.live.live_job(job_id) or self._store.find(job_id)


def base_url(server_name: str, addresses: Mapping[str, str | None]) -> str:
    """Where the documents linked in messages are served."""
    for scheme, listener in (("http", "http"), ("https", "http_tls")):
        address = addresses.get(listener)
        if address is not None:
            return f"{scheme}://{reachable(server_name, address)}"
    return f"http://{server_name}"


def reachable(server_name: str, address: str) -> str:
    """The address a listener is bound to, as others can reach it."""
    host, _, port = address.rpartition(":")
    if ipaddress.ip_address(host.strip("[]")).is_unspecified:
        return f"{server_name}:{port}"
    return address
