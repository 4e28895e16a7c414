"""The qless API's questions: queues, jobs, failures, workers, tags, limits, recurring jobs."""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from manyhands.engine.retry import attempts_max
from manyhands.model.job import Holder, Job, State
from manyhands.model.outcome import Refusal
from manyhands.model.policy import NO_POLICY
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless import answers, settings
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.items import REALM
from manyhands.protocols.qless.paths import plain_text, queue_name
from manyhands.protocols.qless.refusals import problem
from manyhands.server.api_query import Query
from manyhands.server.finding import find_job
from manyhands.server.http_exchange import Exchange
from manyhands.server.qless_answer import Answering
from manyhands.store.store import Filter, Order, Page

if TYPE_CHECKING:
    from manyhands.server.app import Server
    from manyhands.server.workers import WorkerBook, WorkerRecord

Answer = Callable[[Exchange, list[bytes]], Awaitable[None]]
Route = tuple[str, int]

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

    def __init__(
        self, server: "Server", rules: Rules, answering: Answering, book: "WorkerBook"
    ) -> None:
        self._server = server
        self._rules = rules
        self._index = server.store.index
        self._answering = answering
        self._book = book
        # By the first segment, and how many follow.
        self.routes: dict[Route, Answer] = {
            ("queues", 0): self._queues,
            ("queues", 1): self._queues,
            ("job", 1): self._job,
            ("job", 2): self._job,
            ("jobs", 0): self._jobs,
            ("failed", 0): self._failed,
            ("failed", 1): self._failed,
            ("workers", 0): self._workers,
            ("workers", 1): self._workers,
            ("tags", 1): self._tags,
            ("limits", 0): self._limits,
            ("recurring", 0): self._recurring,
            ("recurring", 1): self._recurring,
        }

    async def answer(
        self, exchange: Exchange, results: object, beside: dict[str, Any] | None = None
    ) -> None:
        """Success, with the load if it is wanted."""
        if self._answering.wants_load(exchange.scope["query_string"]):
            beside = {**(beside or {}), "load": self._answering.load()}
        await exchange.answer(results, beside)

    async def _answer_named(
        self, exchange: Exchange, names: Iterable[str], show: Callable[[str], dict[str, Any]]
    ) -> None:
        """A page of what goes by names."""
        page, last = Query(exchange.scope["query_string"]).names(names, _COUNT_MAX)
        await self.answer(exchange, [show(name) for name in page], {"next": last})

    # Queues.

    async def _queues(self, exchange: Exchange, rest: list[bytes]) -> None:
        known = self._index.queues
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
        """What is known of all queues at once: leases, and how many jobs recur in each."""
        recurring = Counter(row.queue for row in self._index.schedules.values())
        return self._lease_facts(), recurring

    def _queue(
        self, name: str, facts: tuple[dict[str, tuple[int, int]], Counter[str]]
    ) -> dict[str, Any]:
        known = self._index.queues[name]
        stalled, workers = facts[0].get(name, (0, 0))
        beside = (stalled, workers, facts[1][name])
        now = self._server.clock.now()
        return answers.queue(known.queue, known.counts, known.ready.oldest_at(), beside, now)

    def _lease_facts(self) -> dict[str, tuple[int, int]]:
        """For each queue with leases: how many of them lapsed, how many workers hold the others."""
        found: dict[str, tuple[int, int]] = {}
        for jobs in self._index.holders().values():
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

    async def _job(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = plain_text(rest[0])
        job = await self._find(name)
        if isinstance(job, Refusal):
            raise problem(job)
        if job is None or rest[1:] not in ([], [b"partials"]):
            raise Problem(404, "not_found", f"there is no job {name[:200]}")
        if rest[1:]:
            pieces = await asyncio.to_thread(self._server.store.partials, job.job_id)
            shown = [
                answers.partial(piece.number, piece.at, piece.payload, warning=piece.warning)
                for piece in pieces
            ]
            await self.answer(exchange, shown)
            return
        known = self._index.queue(job.queue)
        budget = attempts_max(job, known.policy if known is not None else NO_POLICY)
        # A job has as many dependants as others like; what they wait for is bounded.
        dependants = self._index.dependants(job.job_id)
        edges = answers.Edges(
            self._ids(job.depends_on), self._ids(dependants[:_COUNT_MAX]), len(dependants)
        )
        now = self._server.clock.now()
        await self.answer(exchange, answers.whole(job, budget, edges, now))

    async def _find(self, name: str) -> Job | Refusal | None:
        """By the id as this API knows it, or by any name that another protocol has for the job."""
        job_id = name
        with contextlib.suppress(WrongItemError):
            job_id = self._rules.read_id(name)
        found = await find_job(self._server, job_id)
        return found if found is not None or job_id == name else await find_job(self._server, name)

    def _ids(self, job_ids: Iterable[str]) -> list[str]:
        """As they were chosen; of finished jobs as they are kept, which finds them as well."""
        jobs = self._index.jobs
        return [shown_id(jobs[job_id]) if job_id in jobs else job_id for job_id in job_ids]

    async def _jobs(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """A page of a search."""
        query = Query(exchange.scope["query_string"])
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

    async def _tags(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Jobs with a tag; cancelled ones have lost theirs."""
        query = Query(exchange.scope["query_string"])
        wanted = Filter(states=_NOT_CANCELLED, tag=plain_text(rest[0]), **_paging(query))
        await self._answer_page(exchange, wanted)

    async def _answer_page(self, exchange: Exchange, wanted: Filter) -> None:
        page = await asyncio.to_thread(self._server.store.search, wanted)
        beside = {"next": page.next, "complete": page.complete}
        await self.answer(exchange, [answers.listed(job) for job in page.jobs], beside)

    async def _failed(self, exchange: Exchange, rest: list[bytes]) -> None:
        """How many failed in each group; or the failed jobs of one group, newest first."""
        query = Query(exchange.scope["query_string"])
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
        await self.answer(exchange, [answers.listed(job) for job in page.jobs], beside)

    def _groups(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for code, queue, count in self._server.store.failure_codes():
            group = answers.group_of_code(queue, code)
            counts[group] = counts.get(group, 0) + count
        return counts

    def failed_jobs(self, group: str, count: int, *, order: Order, after: int | None) -> Page:
        """Failed jobs of a group. Takes a while: call it in a thread."""
        wanted = Filter(failure_code=group, order=order, after=after, count_max=count)
        pages = [self._server.store.search(wanted)]
        queue = answers.queue_of_group(group)
        if queue is not None:
            lost = replace(wanted, failure_code=answers.LOST_CODE, queue=queue)
            pages.append(self._server.store.search(lost))
        return _joined(pages, count, order)

    # Workers, limits, recurring jobs.

    async def _workers(self, exchange: Exchange, rest: list[bytes]) -> None:
        now = self._server.clock.now()
        records = self._book.records(now)
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
        record = self._book.record(name)
        if record is None and not held:
            raise Problem(404, "not_found", f"nobody was heard of by the name {name[:200]!r}")
        shown: dict[str, Any] = {"name": name}
        if record is not None:
            shown = self._worker(record, nameless)
        states = {shown_id(job): job.state for job in held}
        page, last = Query(exchange.scope["query_string"]).names(states, _COUNT_MAX)
        shown["jobs"] = [job_id for job_id in page if states[job_id] is State.LEASED]
        shown["stalled"] = [job_id for job_id in page if states[job_id] is not State.LEASED]
        await self.answer(exchange, shown, {"next": last})

    def _nameless(self) -> dict[str, list[Job]]:
        """What is held by workers without a name, by their addresses."""
        found: dict[str, list[Job]] = {}
        for job_id in self._index.leased_by_holder(Holder(REALM, None)):
            job = self._index.jobs[job_id]
            if job.lease is not None:
                found.setdefault(job.lease.holder.address, []).append(job)
        return found

    def _held_by(self, name: str, nameless: dict[str, list[Job]]) -> list[Job]:
        index = self._index
        own = [index.jobs[job_id] for job_id in index.leased_by_holder(Holder(REALM, name))]
        return own + nameless.get(name, [])

    def _worker(self, record: "WorkerRecord", nameless: dict[str, list[Job]]) -> dict[str, Any]:
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

    async def _limits(self, exchange: Exchange, _rest: list[bytes]) -> None:
        rows, used = self._index.limits, self._index.limit_used
        await self._answer_named(
            exchange,
            rows,
            lambda name: {"name": name, "max": rows[name].concurrency_max, "used": used(name)},
        )

    async def _recurring(self, exchange: Exchange, rest: list[bytes]) -> None:
        rows = self._index.schedules
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
    """Pages of one order as one. Beyond the end of a page that stopped early nothing is known."""
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
