"""The seat of this server in the cluster: what the application starts, asks and stops."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from manyhands.cluster.database import Database
from manyhands.cluster.link import VERSION_MAX, VERSION_MIN, Hello
from manyhands.cluster.member import Member
from manyhands.cluster.network import Network, bind
from manyhands.cluster.router import Router
from manyhands.config import Address, Config, DatabaseAddress
from manyhands.model.servers import ServerFacts
from manyhands.store.contract import StoreError
from manyhands.store.postgres.shared import SharedStore
from manyhands.store.postgres.store import Joining
from manyhands.store.retention import Retention

_SECRET_BYTES_MIN: Final = 16


def read_secret(file: Path | None) -> bytes:
    """The secret of the cluster; empty if there is none. Raises StoreError."""
    if file is None:
        return b""
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise StoreError(f"cluster_secret_file {file} cannot be read: {error.strerror}") from None
    if len(secret) < _SECRET_BYTES_MIN:
        raise StoreError(
            f"cluster_secret_file {file} is too short: a secret has at least {_SECRET_BYTES_MIN}"
            " bytes (openssl rand -hex 32)"
        )
    return secret


def open_shared(config: Config, address: DatabaseAddress, retention: Retention) -> SharedStore:
    """Binds the listener, then joins: others call as soon as they see this server."""
    assert config.cluster is not None
    secret = read_secret(config.cluster_secret_file)
    try:
        listening = bind(config.cluster)
    except OSError as error:
        raise StoreError(f"cannot listen on {config.cluster}: {error.strerror}") from None
    listening.listen()
    host, port = listening.getsockname()[:2]
    reached = config.advertise or Address(config.cluster.host or host, port)
    if not reached.port:
        reached = Address(reached.host, port)
    joining = Joining(
        config.server_name,
        os.urandom(8).hex(),
        lease_seconds=float(config.cluster_lease_seconds),
        address=str(reached),
    )
    try:
        store = SharedStore(
            address, retention, joining=joining, unsafe_commits=config.unsafe_commits
        )
    except BaseException:
        listening.close()
        raise
    store.listening, store.secret = listening, secret
    return store


class Seat:
    """Membership, links and the router, put together."""

    def __init__(
        self,
        router: Router,
        store: SharedStore,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        on_fenced: Callable[[str], None],
    ) -> None:
        self.router = router
        self.address = store.address
        self._store = store
        self._database = Database(store, loop, router.clock.now)
        hello = Hello(
            VERSION_MIN,
            VERSION_MAX,
            self._database.cluster,
            store.tenure,
            store.incarnation,
            config.server_name,
            bytes(32),
        )
        self._network = Network(hello, store.secret)
        self.member = Member(
            router,
            self._database,
            self._network,
            lease_ms=config.cluster_lease_seconds * 1000.0,
            on_fenced=on_fenced,
        )

    async def start(self, stopping: asyncio.Event) -> None:
        """Takes its place; returns when clients can be served, or the server is to stop."""
        member = self.member
        assert self._store.listening is not None
        await self._network.listen(
            self._store.listening,
            member.welcome,
            member.hear_guest,
            lambda peer, _reason: None if peer is None else member.lose_guest(peer),
        )
        ready = asyncio.Event()
        member.on_ready.append(ready.set)
        member.start()
        waiting = [asyncio.create_task(event.wait()) for event in (ready, stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def leave(self) -> None:
        """Hands over, if this server decides."""
        left = asyncio.Event()
        self.member.leave(left.set)
        await left.wait()

    async def close(self) -> None:
        """Ends all links."""
        self.member.end()
        await self._network.close()
        await asyncio.to_thread(self._database.close)

    def servers(self) -> list[ServerFacts]:
        """All servers, the longest running first."""
        member = self.member
        membership = member.membership
        now_ms = self.router.clock.monotonic_ms()
        shown = []
        for row in sorted(membership.tenures.values(), key=lambda row: row.tenure):
            is_here = row.tenure == membership.tenure
            other = member.others.get(row.tenure)
            is_dead = membership.is_dead(row.tenure, now_ms)
            shown.append(
                ServerFacts(
                    name=row.server,
                    address=row.address,
                    version=row.version,
                    state="dead" if is_dead else row.state,
                    since=row.began_at,
                    decides=row.tenure == membership.owner,
                    here=is_here,
                    linked=is_here or (other is not None and other.peer is not None),
                    round_trip_ms=None if other is None else other.round_trip_ms,
                )
            )
        return shown

    def metrics(self) -> Iterator[Metric]:
        """The metrics of the cluster as this server sees it."""
        member, router = self.member, self.router
        states = Counter(row.state for row in self.servers())
        servers = GaugeMetricFamily(
            "manyhands_cluster_servers", "Servers on the same database.", labels=["state"]
        )
        for state, count in sorted(states.items()):
            servers.add_metric([state], count)
        yield servers
        linked = sum(other.peer is not None for other in member.others.values())
        seconds = [
            other.round_trip_ms / 1000
            for other in member.others.values()
            if other.round_trip_ms is not None
        ]
        for name, words, value in (
            ("manyhands_cluster_decides", "Whether this server decides.", int(router.decides)),
            (
                "manyhands_cluster_suspended",
                "Whether this server decides nothing until the database answers it.",
                int(router.is_suspended),
            ),
            ("manyhands_cluster_links", "Links from this server to others.", linked),
            (
                "manyhands_link_seconds",
                "The slowest round trip to another.",
                max(seconds, default=0),
            ),
        ):
            yield GaugeMetricFamily(name, words, value)
        forwarding, counters = router.forwarding, member.counters
        for name, words, total in (
            (
                "manyhands_forwarded",
                "Commands that this server passed on to the one that decides.",
                forwarding.forwarded,
            ),
            (
                "manyhands_forwarded_again",
                "Commands that were asked again because the server that decided was gone.",
                forwarding.repeated,
            ),
            (
                "manyhands_unavailable",
                "Commands that were refused because no server decided.",
                forwarding.unavailable,
            ),
            ("manyhands_takeovers", "Dead servers taken over by this one.", counters.takeovers),
            ("manyhands_handovers", "Times this server handed over.", counters.handovers),
            ("manyhands_beats_failed", "Beats that the database missed.", counters.beats_failed),
            (
                "manyhands_held_seconds",
                "Time that commands waited for a server to decide.",
                forwarding.held_ms / 1000,
            ),
        ):
            yield CounterMetricFamily(name, words, total)
