"""The seat of this server in the cluster: what the application starts, asks and stops."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from manyhands.cluster.clock import DatabaseClock
from manyhands.cluster.database import Database
from manyhands.cluster.link import VERSION_MAX, VERSION_MIN, Hello
from manyhands.cluster.load import read_load
from manyhands.cluster.member import Member
from manyhands.cluster.membership import Tenure
from manyhands.cluster.network import Encryption, Network, Warn, bind
from manyhands.cluster.router import Router
from manyhands.config import Address, Config, DatabaseAddress
from manyhands.model.servers import Drained, LinkFacts, ServerFacts
from manyhands.store.bulk import Bulk
from manyhands.store.contract import StoreError
from manyhands.store.postgres.shared import SharedStore
from manyhands.store.postgres.store import Joining
from manyhands.store.retention import Retention

_SECRET_BYTES_MIN: Final = 16
_HURRY_SECONDS_MAX: Final = 5.0  # the loop answers sooner, unless it stands still


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
        warn: Warn,
        encryption: Encryption | None = None,
    ) -> None:
        self.router = router
        self.address = store.address
        self._loop = loop
        assert isinstance(router.clock, DatabaseClock)
        self._clock = router.clock
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
        self._network = Network(hello, store.secret, warn, encryption)
        self.member = Member(
            router,
            self._database,
            self._network,
            lease_ms=config.cluster_lease_seconds * 1000.0,
            on_fenced=on_fenced,
            heed=self._clock.heed,
            machine_ahead_ms=self._clock.machine_ahead_ms,
        )
        store.hurry_others = self.hurry_others

    async def start(self, stopping: asyncio.Event) -> None:
        """Takes its place; returns when clients can be served, or the server is to stop."""
        member = self.member
        assert self._store.listening is not None
        self._network.listen(
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

    def hurry_others(self) -> tuple[dict[int, int], bool]:
        """Implements ``hurry_others`` of the store. Waits, so the event loop itself may not ask."""
        if asyncio._get_running_loop() is not None or self._loop.is_closed():  # noqa: SLF001
            return {}, True
        found: Future[tuple[dict[int, int], bool]] = Future()

        def done(batches: dict[int, int], is_known: bool) -> None:  # noqa: FBT001
            if not found.done():
                found.set_result((batches, is_known))

        self._loop.call_soon_threadsafe(self.member.hurry, done)
        try:
            return found.result(_HURRY_SECONDS_MAX)
        except TimeoutError:
            return {}, False

    def drain(self, name: str, sentence: str) -> Drained:
        """Has a server stop in order."""
        membership = self.member.membership
        now_ms = self.router.clock.monotonic_ms()
        alive = [
            row
            for row in membership.tenures.values()
            if row.state == "serving" and not membership.is_dead(row.tenure, now_ms)
        ]
        found = [row.tenure for row in alive if row.server == name]
        if not found:
            return Drained.UNKNOWN
        if len(alive) == 1:
            return Drained.ALONE
        begun = self.member.drain(max(found), sentence)
        return Drained.BEGUN if begun else Drained.UNREACHED

    def read_bulks(self) -> dict[str, Bulk]:
        """All bulk operations on record, of any server. Waits for the database."""
        return self._store.read_bulks()

    def stop_bulk(self, server: str, bulk_id: str) -> bool:
        """Has the server that runs it stop a bulk operation; False if there is no link to it."""
        return self.member.stop_bulk(server, bulk_id)

    def servers(self) -> list[ServerFacts]:
        """All servers, the longest running first."""
        tenures = self.member.membership.tenures
        return [self._facts(tenures[number]) for number in sorted(tenures)]

    def _facts(self, row: Tenure) -> ServerFacts:
        member = self.member
        membership = member.membership
        is_here = row.tenure == membership.tenure
        other = member.others.get(row.tenure)
        load = member.own_load() if is_here else read_load(row.load)
        state = row.state
        if membership.is_dead(row.tenure, self.router.clock.monotonic_ms()):
            state = "dead"
        elif is_here and member.is_suspended:
            state = "suspended"
        elif is_here and member.is_parted:
            state = "parted"
        return ServerFacts(
            name=row.server,
            address=row.address,
            version=row.version,
            state=state,
            since=row.began_at,
            decides=row.tenure == membership.owner,
            here=is_here,
            linked=is_here or (other is not None and other.peer is not None),
            round_trip_ms=None if other is None else other.round_trip_ms,
            unfinished_jobs=load.unfinished_jobs,
            decided_per_second=load.decided_per_second,
            forwarded_per_second=load.forwarded_per_second,
            commit_p50_ms=load.commit_p50_ms,
            commit_p99_ms=load.commit_p99_ms,
            apply_lag_ms=load.apply_lag_ms,
            clock_offset_ms=load.clock_offset_ms,
            links=tuple(
                LinkFacts(membership.tenures[number].server, ms is not None, ms)
                for number, ms in sorted(load.links.items())
                if number in membership.tenures
            ),
        )

    def metrics(self) -> Iterator[Metric]:
        """The metrics of the cluster as this server sees it."""
        member, router = self.member, self.router
        names = {row.incarnation: row.server for row in member.membership.tenures.values()}
        states = Counter(row.state for row in self.servers())
        servers = GaugeMetricFamily(
            "manyhands_cluster_servers", "Servers on the same database.", labels=["state"]
        )
        for state, count in sorted(states.items()):
            servers.add_metric([state], count)
        yield servers
        seconds = GaugeMetricFamily(
            "manyhands_link_seconds", "The last round trip to another server.", labels=["to"]
        )
        linked = [other for other in member.others.values() if other.peer is not None]
        for other in linked:
            if other.round_trip_ms is not None:
                seconds.add_metric([other.row.server], other.round_trip_ms / 1000)
        yield seconds
        ahead_ms = self._clock.machine_ahead_ms()
        for name, words, value in (
            (
                "manyhands_cluster_families",
                "Families of queues that this server decides about; all queues are one.",
                int(router.decides),
            ),
            (
                "manyhands_cluster_suspended",
                "Whether this server decides nothing until the database answers it.",
                int(member.is_suspended),
            ),
            ("manyhands_cluster_links", "Links from this server to others.", len(linked)),
            (
                "manyhands_clock_offset_seconds",
                "How far the machine's clock is ahead of the database's.",
                ahead_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(name, words, value)
        forwarding, counters = router.forwarding, member.counters
        forwarded = CounterMetricFamily(
            "manyhands_forwarded",
            "Commands that this server passed on to the one that decides.",
            labels=["to"],
        )
        by_name: Counter[str] = Counter()
        for incarnation, count in forwarding.forwarded.items():
            by_name[names.get(incarnation, "gone")] += count
        for to, count in sorted(by_name.items()):
            forwarded.add_metric([to], count)
        yield forwarded
        for name, words, total in (
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
                "manyhands_links_refused",
                "Connections of strangers to the cluster address.",
                self._network.refused_count,
            ),
            (
                "manyhands_held_seconds",
                "Time that commands waited for a server to decide.",
                forwarding.held_ms / 1000,
            ),
        ):
            yield CounterMetricFamily(name, words, total)
