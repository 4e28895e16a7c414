"""Queries of the native API: jobs, queues, workers, events, settings, the server itself."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from manyhands import __version__
from manyhands.config import OPTIONS
from manyhands.dispatch.ask import settled
from manyhands.dispatch.lookup import find_job
from manyhands.dispatch.obstacles import why_held_back, why_waiting
from manyhands.model.filter import CONDITIONS, FilterError, Order, read_filter
from manyhands.model.job import FINISHED, Job
from manyhands.model.replies import Refusal, Why
from manyhands.observe.idle import Idle, idle_workers
from manyhands.protocols.native import answers, builders
from manyhands.protocols.native.bodies import WAIT_SECONDS_MAX
from manyhands.protocols.native.refusals import problem
from manyhands.store.contract import QueueFacts
from manyhands.web.draining import drain_server
from manyhands.web.endings import WAITING_COUNT_MAX, Endings
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange, HungUpError
from manyhands.web.naps import Naps
from manyhands.web.query import Query
from manyhands.web.sources import Sources

_COUNT: Final = 100
_COUNT_MAX: Final = 1_000
_LEASES_SHOWN_MAX: Final = 100
_IDLE_MAX: Final = 10_000
_NEVER: Final = 1 << 62


class ApiQueries:
    """Requests that change nothing."""

    def __init__(self, sources: Sources, naps: Naps) -> None:
        self._sources = sources
        self._dispatcher = sources.dispatcher
        self._naps = naps
        self.endings = Endings(sources.dispatcher)

    # Jobs.

    async def job(self, exchange: Exchange, name: str) -> None:
        """One job by its id, uid, UUID, or a handle that ends in its uid; with ``wait``, once it
        has finished.
        """
        query = Query(exchange.query_string)
        wait = query.seconds("wait", WAIT_SECONDS_MAX) or 0.0
        query.finish()
        job = await self._find(name)
        if wait and job.state not in FINISHED and await self._ends(exchange, job.job_id, wait):
            job = await self._find(job.job_id)
        if await exchange.room_for(len(job.payload) + len(job.result or b"")):
            job = await self._find(name)  # it may have changed meanwhile
        await exchange.answer(builders.whole(job, why_waiting(self._sources.dispatcher, job)))

    async def _ends(self, exchange: Exchange, job_id: str, seconds: float) -> bool:
        """Waits for the end of a job. Returns False if the server cannot wait any longer."""
        if self._naps.over or self.endings.count >= WAITING_COUNT_MAX:
            return False
        known = self._sources.store.live.live_job(job_id)
        if known is None or known.state in FINISHED:
            return True  # finished meanwhile
        with self._naps.nap(exchange.connection) as nap:
            self.endings.add(job_id, nap)
            try:
                await nap.sleep(seconds)
            finally:
                self.endings.remove(job_id, nap)
        if exchange.connection.is_gone:
            raise HungUpError
        return True

    async def partials(self, exchange: Exchange, name: str) -> None:
        """The stored partial results of a job."""
        Query(exchange.query_string).finish()
        job = await self._find(name)
        found = await asyncio.to_thread(self._sources.store.partials, job.job_id)
        await exchange.answer(
            [
                builders.partial(piece.number, piece.at, piece.payload, warning=piece.warning)
                for piece in found
                if not piece.is_log
            ]
        )

    async def log(self, exchange: Exchange, name: str) -> None:
        """Everything that workers reported about a job while they worked on it."""
        query = Query(exchange.query_string)
        text = (query.text("text") or "").encode()
        after = query.whole("after", 0, 0, _NEVER) or 0
        query.finish()
        job = await self._find(name)
        found = await asyncio.to_thread(self._sources.store.partials, job.job_id)
        await exchange.answer(
            [
                answers.LogEntry(
                    piece.number,
                    piece.at,
                    "warning" if piece.warning else "log" if piece.is_log else "data",
                    builders.bytes_value(piece.payload),
                )
                for piece in found
                if piece.number > after and text in piece.payload
            ]
        )

    async def _find(self, name: str) -> Job:
        job = await find_job(self._sources.dispatcher, name)
        if job is None:
            job = Refusal(Why.UNKNOWN_JOB, f"there is no job {name[:200]}")
        if isinstance(job, Refusal):
            raise problem(job)
        return job

    async def jobs(self, exchange: Exchange) -> None:
        """Answers with a page of search results."""
        query = Query(exchange.query_string)
        try:
            wanted = read_filter(
                {name: query.text(name) for name in CONDITIONS}, self._sources.clock.now()
            )
        except FilterError as error:
            raise Problem(400, "invalid_query", str(error)) from None
        wanted = replace(
            wanted,
            order=_order(query.text("order")),
            after=query.whole("after", None, 0, _NEVER),
            count_max=query.count(_COUNT, _COUNT_MAX),
            payload_bytes=0,
            seen_by=None if exchange.caller.is_unrestricted else exchange.caller,
        )
        query.finish()
        page = await asyncio.to_thread(self._sources.store.search, wanted)
        beside = {"next": page.next, "complete": page.complete}
        await exchange.answer([builders.listed(job) for job in page.jobs], beside)

    # Queues and workers.

    async def queues(self, exchange: Exchange) -> None:
        """Queues ordered by name."""
        known = self._sources.of_caller.store.live.queues
        polled = await self._sources.of_caller.attention.polled(self._sources.clock.now())
        query = Query(exchange.query_string)
        await _answer_named(exchange, query, known, lambda name: self._queue(known[name], polled))

    async def queue(self, exchange: Exchange, name: str) -> None:
        """One queue."""
        Query(exchange.query_string).finish()
        known = self._sources.of_caller.store.live.queues.get(name)
        if known is None:
            raise problem(Refusal(Why.UNKNOWN_QUEUE, f"there is no queue {name!r}"))
        polled = await self._sources.of_caller.attention.polled(self._sources.clock.now())
        await exchange.answer(self._queue(known, polled))

    def _queue(self, known: QueueFacts, polled: Collection[str]) -> answers.Queue:
        awaited = self._dispatcher.sleepers.is_wanted(known.queue.name)
        ready_at, now = known.oldest_ready_at(), self._sources.clock.now()
        retrying = sum(self._sources.store.live.retrying_counts(known.queue.name).values())
        return builders.queue(
            known.queue,
            known.counts,
            ready_at,
            now,
            awaited=awaited,
            retrying=retrying,
            polled=known.queue.name in polled,
            waits=why_held_back(self._dispatcher, known.queue.name),
        )

    async def workers(self, exchange: Exchange) -> None:
        """Workers that hold a lease, by protocol and name; with ``idle``, the others as well."""
        query = Query(exchange.query_string)
        sources = self._sources.of_caller
        holders = sources.store.live.holders()
        found: dict[tuple[str, str | None], list[Job] | Idle] = dict(holders)
        if query.flag("idle"):
            idle, _ = idle_workers(
                sources.sleepers,
                sources.worker_books.values(),
                holders,
                sources.clock.now(),
                _IDLE_MAX,
            )
            found |= {(one.holder.realm, one.holder.name): one for one in idle}
        named = {
            realm if name is None else f"{realm}/{name}": known
            for (realm, name), known in found.items()
        }

        def show(key: str) -> answers.Worker:
            known = named[key]
            if isinstance(known, Idle):
                return builders.idle_worker(
                    known.holder, known.awaits, known.seen_at, known.last_queue
                )
            lease = known[0].lease
            assert lease is not None
            return builders.worker(lease.holder, known[:_LEASES_SHOWN_MAX], len(known))

        await _answer_named(exchange, query, named, show)

    # Events.

    async def events(self, exchange: Exchange) -> None:
        """The log from a given number on; with ``wait``, once it has something new."""
        query = Query(exchange.query_string)
        after = query.whole("after", 0, 0, _NEVER) or 0
        count = query.count(_COUNT, _COUNT_MAX)
        wait = query.seconds("wait", WAIT_SECONDS_MAX) or 0.0
        query.finish()
        log = self._dispatcher.events
        if wait and after >= log.last_seq:
            with self._naps.nap(exchange.connection) as nap:
                log.watch(nap.end)
                try:
                    if not self._naps.over:
                        await nap.sleep(wait)
                finally:
                    log.unwatch(nap.end)
            if exchange.connection.is_gone:
                raise HungUpError
        if log.is_recent(after):
            found = log.after(after, count)
        else:
            async with self._sources.past.turn():
                found = await self._sources.past.read(after, count)
        beside = {
            "next": found[-1].seq if found else after,
            "first_seq": self._sources.store.first_seq(),
            "last_seq": log.last_seq,
        }
        seen = [row for row in found if exchange.caller.may_use(row.event.queue)]
        await exchange.answer([builders.event(row.seq, row.event) for row in seen], beside)

    # Settings, and the server.

    async def schedules(self, exchange: Exchange) -> None:
        """Schedules ordered by name."""
        rows = self._sources.of_caller.store.live.schedules
        query = Query(exchange.query_string)
        await _answer_named(exchange, query, rows, lambda name: builders.schedule(rows[name]))

    async def limits(self, exchange: Exchange) -> None:
        """Named limits."""
        rows, used = self._sources.store.live.limits, self._sources.store.live.limit_used
        query = Query(exchange.query_string)
        await _answer_named(
            exchange, query, rows, lambda name: builders.limit(rows[name], used(name))
        )

    async def servers(self, exchange: Exchange) -> None:
        """All servers on this store, the longest running first."""
        Query(exchange.query_string).finish()
        await exchange.answer([builders.server(row) for row in self._sources.servers()])

    async def drain(self, exchange: Exchange, name: str) -> None:
        """Has a server hand over and stop."""
        Query(exchange.query_string).finish()
        sources = self._sources
        drain_server(sources, name)
        await settled(sources.dispatcher)
        await exchange.answer(answers.Draining(name))

    async def about(self, exchange: Exchange) -> None:
        """About this server."""
        Query(exchange.query_string).finish()
        sources = self._sources
        values = {name: getattr(sources.config, name) for name in OPTIONS}
        plain = {
            name: value if isinstance(value, bool | int | None) else str(value)
            for name, value in values.items()
        }
        budget = sources.budget
        await exchange.answer(
            answers.About(
                version=__version__,
                server_name=sources.config.server_name,
                started_at=sources.condition.started_at,
                uptime_ms=sources.clock.now() - sources.condition.started_at,
                addresses=sources.condition.addresses,
                store=sources.store.facts(),
                memory=answers.Memory(budget.bytes_max, budget.held_bytes(), budget.waiting_count),
                relay=sources.relay_facts(),
                config=plain,
            )
        )


async def _answer_named(
    exchange: Exchange, query: Query, names: Iterable[str], show: Callable[[str], object]
) -> None:
    """Answers with a page of a list ordered by name."""
    page, last = query.names(names, _COUNT_MAX)
    query.finish()
    await exchange.answer([show(name) for name in page], {"next": last})


def _order(text: str | None) -> Order:
    try:
        return msgspec.convert(text or "newest", Order)
    except msgspec.ValidationError:
        raise Problem(400, "invalid_query", "order is newest or oldest") from None
