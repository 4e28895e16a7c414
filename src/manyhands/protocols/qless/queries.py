"""Queries of the qless API: queues, jobs, failures, workers, tags, limits, recurring jobs."""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from manyhands.dispatch.lookup import find_job
from manyhands.engine.retry import attempts_max
from manyhands.model.filter import Filter, Order
from manyhands.model.job import Holder, Job, State
from manyhands.model.policy import NO_POLICY
from manyhands.model.reasons import LOST_CODE
from manyhands.model.replies import Refusal
from manyhands.protocols.qless import answers, builders, settings
from manyhands.protocols.qless.envelope import Answering
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.items import REALM
from manyhands.protocols.qless.paths import plain_text, queue_name
from manyhands.protocols.qless.refusals import problem
from manyhands.store.contract import Live, Page, Store
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange
from manyhands.web.query import Query
from manyhands.web.sources import Sources

if TYPE_CHECKING:
    from manyhands.observe.workers import WorkerRecord

_COUNT: Final = 25
_COUNT_MAX: Final = 1_000
_CURSOR_MAX: Final = 1 << 62
_STATES: Final[dict[str, tuple[State, ...]]] = {
    "waiting": (State.READY,),
    "scheduled": (State.DELAYED,),
    "blocked": (State.BLOCKED,),
    "pending": (State.LEASED,),
    "complete": (State.COMPLETED,),
    "failed": (State.FAILED,),
    "cancelled": (State.CANCELLED,),
}
_NOT_CANCELLED: Final = tuple(state for state in State if state is not State.CANCELLED)


class QlessPages:
    """Requests that change nothing."""

    def __init__(self, sources: Sources, rules: Rules, answering: Answering) -> None:
        self._sources = sources
        self._dispatcher = sources.dispatcher
        self._rules = rules
        self._answering = answering

    @property
    def _store(self) -> Store:
        """Records and live jobs, as far as the sender of the request may see them."""
        return self._sources.of_caller.store

    @property
    def _live(self) -> Live:
        return self._store.live

    async def answer(
        self, exchange: Exchange, results: object, beside: dict[str, Any] | None = None
    ) -> None:
        """Answers with success, and with the load if requested."""
        if self._answering.wants_load(exchange.query_string):
            beside = {**(beside or {}), "load": self._answering.load()}
        await exchange.answer(results, beside)

    async def _answer_named(
        self, exchange: Exchange, names: Iterable[str], show: Callable[[str], object]
    ) -> None:
        """Answers with a page of a list ordered by name."""
        page, last = Query(exchange.query_string).names(names, _COUNT_MAX)
        await self.answer(exchange, [show(name) for name in page], {"next": last})

    # Queues.

    async def queues(self, exchange: Exchange, rest: list[bytes]) -> None:
        known = self._live.queues
        if not rest:
            facts = self._facts()
            await self._answer_named(exchange, known, lambda name: self._queue(name, facts))
            return
        name = queue_name(rest[0])
        if name not in known:
            raise Problem(404, "not_found", f"there is no queue {name!r}")
        policy = known[name].queue.policy
        shown = self._queue(name, self._facts())
        await self.answer(exchange, {**shown, "settings": settings.shown_policy(policy)})

    def _facts(self) -> tuple[dict[str, tuple[int, int]], Counter[str]]:
        """Facts about all queues at once: leases, and the number of recurring jobs in each."""
        recurring = Counter(row.queue for row in self._live.schedules.values())
        return self._lease_facts(), recurring

    def _queue(
        self, name: str, facts: tuple[dict[str, tuple[int, int]], Counter[str]]
    ) -> answers.Queue:
        known = self._live.queues[name]
        stalled, workers = facts[0].get(name, (0, 0))
        beside = (stalled, workers, facts[1][name])
        now = self._dispatcher.clock.now()
        return builders.queue(known.queue, known.counts, known.oldest_ready_at(), beside, now)

    def _lease_facts(self) -> dict[str, tuple[int, int]]:
        """For each queue with leases: how many lapsed, and how many workers hold the others."""
        found: dict[str, tuple[int, int]] = {}
        for jobs in self._live.holders().values():
            live: dict[str, bool] = {}
            for job in jobs:
                stalled, workers = found.get(job.queue, (0, 0))
                if job.state is not State.LEASED:
                    stalled += 1
                elif job.queue not in live:
                    live[job.queue] = True
                    workers += 1
                found[job.queue] = (stalled, workers)
        return found

    # Jobs.

    async def job(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = plain_text(rest[0])
        job = await self._find(name)
        if isinstance(job, Refusal):
            raise problem(job)
        if job is None or rest[1:] not in ([], [b"partials"]):
            raise Problem(404, "not_found", f"there is no job {name[:200]}")
        if rest[1:]:
            pieces = await asyncio.to_thread(self._store.partials, job.job_id)
            shown = [
                builders.partial(piece.number, piece.at, piece.payload, warning=piece.warning)
                for piece in pieces
                if not piece.is_log
            ]
            await self.answer(exchange, shown)
            return
        known = self._live.queue(job.queue)
        budget = attempts_max(job, known.policy if known is not None else NO_POLICY)
        # The number of dependants has no bound, that of dependencies has one.
        dependants = self._live.dependants(job.job_id)
        edges = builders.Edges(
            self._ids(job.depends_on), self._ids(dependants[:_COUNT_MAX]), len(dependants)
        )
        now = self._dispatcher.clock.now()
        await self.answer(exchange, builders.whole(job, budget, edges, now))

    async def _find(self, name: str) -> Job | Refusal | None:
        """Finds a job by its id in this API, or by its name in any other protocol."""
        job_id = name
        with contextlib.suppress(WrongItemError):
            job_id = self._rules.read_id(name)
        found = await find_job(self._dispatcher, job_id)
        return (
            found if found is not None or job_id == name else await find_job(self._dispatcher, name)
        )

    def _ids(self, job_ids: Iterable[str]) -> list[str]:
        """Ids as their submitters wrote them; those of finished jobs as stored, which finds them as
        well.
        """
        jobs = ((job_id, self._live.live_job(job_id)) for job_id in job_ids)
        return [job_id if job is None else shown_id(job) for job_id, job in jobs]

    async def jobs(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """Answers with a page of search results."""
        query = Query(exchange.query_string)
        queue = query.text("queue")
        wanted = Filter(
            states=_states(query.text("state")),
            queue=queue,
            tag=query.text("tag"),
            worker=query.text("host"),
            realm=query.text("protocol"),
            text=query.text("text"),
            **_paging(query),
        )
        await self._answer_page(exchange, wanted)

    async def tags(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Jobs with a tag; cancelled jobs have lost theirs."""
        query = Query(exchange.query_string)
        wanted = Filter(states=_NOT_CANCELLED, tag=plain_text(rest[0]), **_paging(query))
        await self._answer_page(exchange, wanted)

    async def _answer_page(self, exchange: Exchange, wanted: Filter) -> None:
        page = await asyncio.to_thread(self._store.search, wanted)
        beside = {"next": page.next, "complete": page.complete}
        await self.answer(exchange, [builders.listed(job) for job in page.jobs], beside)

    async def failed(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Counts of failed jobs by group; or the failed jobs of one group, newest first."""
        query = Query(exchange.query_string)
        if not rest:
            counts = await asyncio.to_thread(self._groups)
            names, last = query.names(counts, _COUNT_MAX)
            await self.answer(exchange, {name: counts[name] for name in names}, {"next": last})
            return
        group = plain_text(rest[0])
        paging = _paging(query)
        find = functools.partial(self.failed_jobs, group, paging["count_max"])
        page = await asyncio.to_thread(find, order=paging["order"], after=paging["after"])
        beside = {"next": page.next, "complete": page.complete}
        await self.answer(exchange, [builders.listed(job) for job in page.jobs], beside)

    def _groups(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for code, queue, count in self._store.failure_codes():
            group = builders.group_of_code(queue, code)
            counts[group] = counts.get(group, 0) + count
        return counts

    def failed_jobs(self, group: str, count: int, *, order: Order, after: int | None) -> Page:
        """Failed jobs of a group. Slow: call it in a thread."""
        wanted = Filter(failure_code=group, order=order, after=after, count_max=count)
        pages = [self._store.search(wanted)]
        queue = builders.queue_of_group(group)
        if queue is not None:
            lost = replace(wanted, failure_code=LOST_CODE, queue=queue)
            pages.append(self._store.search(lost))
        return _joined(pages, count, order)

    # Workers, limits, recurring jobs.

    async def workers(self, exchange: Exchange, rest: list[bytes]) -> None:
        now = self._dispatcher.clock.now()
        book = self._sources.of_caller.worker_books[REALM]
        records = book.records(now)
        if not rest:
            by_name = {record.name: record for record in records}
            nameless = self._nameless()
            await self._answer_named(
                exchange, by_name, lambda name: self._worker(by_name[name], nameless)
            )
            return
        name = plain_text(rest[0])
        nameless = self._nameless()
        held = self._held_by(name, nameless)
        record = book.record(name)
        if record is None and not held:
            raise Problem(404, "not_found", f"there is no worker {name[:200]!r}")
        states = {shown_id(job): job.state for job in held}
        page, last = Query(exchange.query_string).names(states, _COUNT_MAX)
        known: dict[str, Any] = (
            {"name": name} if record is None else {**self._worker(record, nameless)}
        )
        shown = {
            **known,
            "jobs": [job_id for job_id in page if states[job_id] is State.LEASED],
            "stalled": [job_id for job_id in page if states[job_id] is not State.LEASED],
        }
        await self.answer(exchange, shown, {"next": last})

    def _nameless(self) -> dict[str, list[Job]]:
        """Jobs held by unnamed workers, by address."""
        found: dict[str, list[Job]] = {}
        for job in self._held(Holder(REALM, None)):
            if job.lease is not None:
                found.setdefault(job.lease.holder.address, []).append(job)
        return found

    def _held(self, holder: Holder) -> list[Job]:
        jobs = map(self._live.live_job, self._live.leased_by_holder(holder))
        return [job for job in jobs if job is not None]

    def _held_by(self, name: str, nameless: dict[str, list[Job]]) -> list[Job]:
        return self._held(Holder(REALM, name)) + nameless.get(name, [])

    def _worker(self, record: "WorkerRecord", nameless: dict[str, list[Job]]) -> answers.Worker:
        held = [job.state for job in self._held_by(record.name, nameless)]
        return {
            "name": record.name,
            "address": record.address,
            "seen": record.seen_at / 1000,
            "pending": sum(state is State.LEASED for state in held),
            "stalled": sum(state is not State.LEASED for state in held),
            "taken": record.taken,
            "completed": record.completed,
            "failed": record.failed,
            "lost": record.lost,
        }

    async def limits(self, exchange: Exchange, _rest: list[bytes]) -> None:
        rows, used = self._live.limits, self._live.limit_used
        await self._answer_named(
            exchange,
            rows,
            lambda name: {"name": name, "max": rows[name].concurrency_max, "used": used(name)},
        )

    async def recurring(self, exchange: Exchange, rest: list[bytes]) -> None:
        rows = self._live.schedules
        if not rest:
            await self._answer_named(
                exchange, rows, lambda name: settings.shown_schedule(rows[name])
            )
            return
        name = plain_text(rest[0])
        if name not in rows:
            raise Problem(404, "not_found", f"there is no recurring job {name[:200]!r}")
        await self.answer(exchange, settings.shown_schedule(rows[name]))


def _joined(pages: list[Page], count: int, order: Order) -> Page:
    """Merges pages of one order. Nothing is known beyond the end of a page that stopped early."""
    newest = order is Order.NEWEST
    ends = [page.next for page in pages if page.next is not None]
    end = (max(ends) if newest else min(ends)) if ends else None
    jobs = sorted((job for page in pages for job in page.jobs), key=_serial, reverse=newest)
    if end is not None:
        jobs = [job for job in jobs if (job.serial >= end if newest else job.serial <= end)]
    complete = all(page.complete for page in pages)
    if len(jobs) > count:
        return Page(tuple(jobs[:count]), jobs[count - 1].serial, complete)
    return Page(tuple(jobs), end, complete)


def _serial(job: Job) -> int:
    return job.serial


def _paging(query: Query) -> dict[str, Any]:
    order = query.text("order") or "newest"
    if order not in ("newest", "oldest"):
        raise Problem(400, "invalid_query", "order is newest or oldest")
    return {
        "order": Order(order),
        "after": query.whole("after", None, 0, _CURSOR_MAX),
        "count_max": query.count(_COUNT, _COUNT_MAX),
    }


def _states(text: str | None) -> tuple[State, ...]:
    if text is None:
        return ()
    try:
        return tuple(state for word in text.split(",") for state in _STATES[word])
    except KeyError:
        known = ", ".join(_STATES)
        raise Problem(400, "invalid_query", f"state is one or more of {known}") from None
