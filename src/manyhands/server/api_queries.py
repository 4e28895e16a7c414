"""The native API's questions: jobs, queues, workers, events, settings, the server itself."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from manyhands import __version__
from manyhands.config import OPTIONS
from manyhands.model import limits
from manyhands.model.job import Job, State
from manyhands.model.outcome import Refusal, Why
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.native import answers
from manyhands.protocols.native.bodies import WAIT_SECONDS_MAX
from manyhands.protocols.native.refusals import problem
from manyhands.server.api_query import Query
from manyhands.server.finding import find_job
from manyhands.server.http_exchange import Exchange, HungUpError
from manyhands.server.naps import Naps
from manyhands.server.waiting import why_waiting
from manyhands.store.index import QueueIndex
from manyhands.store.store import Filter, Order

if TYPE_CHECKING:
    from manyhands.server.app import Server

_COUNT: Final = 100
_COUNT_MAX: Final = 1_000
_LEASES_SHOWN_MAX: Final = 100
_NEVER: Final = 1 << 62


class ApiQueries:
    """Requests that change nothing."""

    def __init__(self, server: "Server", naps: Naps) -> None:
        self._server = server
        self._dispatcher = server.dispatcher
        self._naps = naps

    # Jobs.

    async def job(self, exchange: Exchange, name: str) -> None:
        """One job, by its id, its uid, its UUID, or a handle that ends in its uid."""
        Query(exchange.scope["query_string"]).finish()
        job = await self._find(name)
        await exchange.answer(answers.whole(job, why_waiting(self._server, job)))

    async def partials(self, exchange: Exchange, name: str) -> None:
        """The kept pieces of a job's result."""
        Query(exchange.scope["query_string"]).finish()
        job = await self._find(name)
        found = await asyncio.to_thread(self._server.store.partials, job.job_id)
        await exchange.answer(
            [
                answers.partial(piece.number, piece.at, piece.payload, warning=piece.warning)
                for piece in found
            ]
        )

    async def _find(self, name: str) -> Job:
        job = await find_job(self._server, name)
        if job is None:
            job = Refusal(Why.UNKNOWN_JOB, f"there is no job {name[:200]}")
        if isinstance(job, Refusal):
            raise problem(job)
        return job

    async def jobs(self, exchange: Exchange) -> None:
        """A page of a listing."""
        query = Query(exchange.scope["query_string"])
        now = self._server.clock.now()
        age_min = query.seconds("age_min", limits.TIME_MS_MAX / 1000)
        age_max = query.seconds("age_max", limits.TIME_MS_MAX / 1000)
        key = query.text("unique_key")
        wanted = Filter(
            states=_states(query.text("state")),
            queue=query.text("queue"),
            tag=query.text("tag"),
            worker=query.text("worker"),
            realm=query.text("realm"),
            unique_key=key.encode() if key is not None else None,
            name=query.text("name"),
            submitted_before=None if age_min is None else now - int(age_min * 1000),
            submitted_after=None if age_max is None else now - int(age_max * 1000),
            failure=query.text("failure"),
            failure_code=query.text("failure_code"),
            text=query.text("text"),
            order=_order(query.text("order")),
            after=query.whole("after", None, 0, _NEVER),
            count_max=query.count(_COUNT, _COUNT_MAX),
        )
        query.finish()
        page = await asyncio.to_thread(self._server.store.search, wanted)
        beside = {"next": page.next, "complete": page.complete}
        await exchange.answer([answers.listed(job) for job in page.jobs], beside)

    # Queues and workers.

    async def queues(self, exchange: Exchange) -> None:
        """Queues by name."""
        known = self._server.store.index.queues
        await _answer_named(exchange, known, lambda name: self._queue(known[name]))

    async def queue(self, exchange: Exchange, name: str) -> None:
        """One queue."""
        Query(exchange.scope["query_string"]).finish()
        known = self._server.store.index.queues.get(name)
        if known is None:
            raise problem(Refusal(Why.UNKNOWN_QUEUE, f"there is no queue {name!r}"))
        await exchange.answer(self._queue(known))

    def _queue(self, known: QueueIndex) -> dict[str, Any]:
        ready_at = known.ready.oldest_at()
        view = answers.queue(known.queue, known.counts, ready_at, self._server.clock.now())
        view["awaited"] = self._dispatcher.waiters.is_wanted(known.queue.name)
        return view

    async def workers(self, exchange: Exchange) -> None:
        """Everybody who holds a lease, by protocol and name."""
        found = {
            realm if name is None else f"{realm}/{name}": jobs
            for (realm, name), jobs in self._server.store.index.holders().items()
        }

        def show(key: str) -> dict[str, Any]:
            jobs = found[key]
            lease = jobs[0].lease
            assert lease is not None
            return answers.worker(lease.holder, jobs[:_LEASES_SHOWN_MAX], len(jobs))

        await _answer_named(exchange, found, show)

    # Events.

    async def events(self, exchange: Exchange) -> None:
        """The log from a cursor on; with ``wait``, not before there is something in it."""
        query = Query(exchange.scope["query_string"])
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
        found = log.after(after, count)
        beside = {
            "next": found[-1].seq if found else after,
            "first_seq": self._server.store.first_seq(),
            "last_seq": log.last_seq,
        }
        await exchange.answer([answers.event(row.seq, row.event) for row in found], beside)

    # Settings, and the server.

    async def schedules(self, exchange: Exchange) -> None:
        """Schedules by name."""
        rows = self._server.store.index.schedules
        await _answer_named(exchange, rows, lambda name: answers.schedule(rows[name]))

    async def limits(self, exchange: Exchange) -> None:
        """Named limits."""
        rows, used = self._server.store.index.limits, self._server.store.index.limit_used
        await _answer_named(exchange, rows, lambda name: answers.limit(rows[name], used(name)))

    async def about(self, exchange: Exchange) -> None:
        """What runs here."""
        Query(exchange.scope["query_string"]).finish()
        server = self._server
        values = {name: getattr(server.config, name) for name in OPTIONS}
        plain = {
            name: value if isinstance(value, bool | int | None) else str(value)
            for name, value in values.items()
        }
        await exchange.answer(
            {
                "version": __version__,
                "server_name": server.config.server_name,
                "started_at": server.started_at,
                "uptime_ms": server.clock.now() - server.started_at,
                "addresses": server.addresses,
                "store": server.store.facts(),
                "relay": server.relay_facts(),
                "config": plain,
            }
        )


async def _answer_named(
    exchange: Exchange, names: Iterable[str], show: Callable[[str], dict[str, Any]]
) -> None:
    """A page of what goes by names."""
    query = Query(exchange.scope["query_string"])
    page, last = query.names(names, _COUNT_MAX)
    query.finish()
    await exchange.answer([show(name) for name in page], {"next": last})


def _states(text: str | None) -> tuple[State, ...]:
    if text is None:
        return ()
    try:
        return tuple(State(word) for word in text.split(","))
    except ValueError:
        known = ", ".join(State)
        raise Problem(400, "invalid_query", f"state is one or more of {known}") from None


def _order(text: str | None) -> Order:
    try:
        return msgspec.convert(text or "newest", Order)
    except msgspec.ValidationError:
        raise Problem(400, "invalid_query", "order is newest or oldest") from None
