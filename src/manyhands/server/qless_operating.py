"""The qless API's operators: cancel, requeue, change jobs; set queues, limits, recurring jobs."""

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from manyhands.model.commands import (
    Cancel,
    ForgetQueue,
    PutSchedule,
    RemoveSchedule,
    Requeue,
    SetQueue,
)
from manyhands.model.job import Job, Schedule
from manyhands.model.outcome import Changed, ChangedMany, Refusal, Reply, Why
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless import items, settings
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.operations import OPERATIONS, Operation, Sender
from manyhands.protocols.qless.paths import check_queue, plain_text, queue_name
from manyhands.protocols.qless.reading import BadItem, Items, read_value
from manyhands.protocols.qless.refusals import CODES, entry, item_error, problem
from manyhands.server.asking import ask, ask_all
from manyhands.server.http_exchange import Exchange
from manyhands.server.qless_batch import Batch, refuse_whole
from manyhands.server.qless_pages import Answer, QlessPages, Route
from manyhands.server.schedules import CalendarError, first_cron_at
from manyhands.store.store import Order

if TYPE_CHECKING:
    from manyhands.server.app import Server

_UNFAIL_MAX: Final = 1_000


class QlessOperating:
    """Requests that change jobs without working on them."""

    def __init__(self, server: "Server", rules: Rules, pages: QlessPages) -> None:
        config = server.config
        self._server = server
        self._dispatcher = server.dispatcher
        self._index = server.store.index
        self._pages = pages
        self._batch_max = config.qless_batch_max
        self._rules = rules
        self.routes: dict[Route, Answer] = {
            ("cancel", 0): self._cancel,
            ("unfail", 1): self._unfail,
            ("pause", 0): functools.partial(self._pause, paused=True),
            ("resume", 0): functools.partial(self._pause, paused=False),
            ("queues", 1): self._set_queue,
            ("limits", 1): self._set_limit,
            ("recurring", 1): self._recur,
            ("unrecur", 0): self._unrecur,
        }
        for name, operation in OPERATIONS.items():
            self.routes[name, 0] = functools.partial(self._operate, operation)

    async def _items(self, exchange: Exchange, kind: Items[Any]) -> tuple[list[Any], str | None]:
        return kind.read(await exchange.body(), self._batch_max)

    async def _answer(
        self, exchange: Exchange, results: object, errors: list[dict[str, Any]]
    ) -> None:
        errors.sort(key=lambda error: error["index"])
        await self._pages.answer(exchange, results, {"errors": errors} if errors else None)

    # Jobs.

    async def _operate(self, operation: Operation, exchange: Exchange, _rest: list[bytes]) -> None:
        """One answer for each item: what is so now, or false."""
        found, host = await self._items(exchange, operation.items)
        sender = Sender(host, exchange.address, self._rules)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            try:
                known = self._index.job(self._rules.read_id(item.id))
                batch.ask(index, item.id, item.command(known, sender))
            except WrongItemError as error:
                batch.refuse(index, items.bad(error, item.id))
            except Problem as error:
                batch.refuse(index, BadItem(error.code, error.message, item.id))
        results: list[object] = [False] * len(found)
        for index, job_id, reply in batch.told(await ask_all(self._dispatcher, batch.commands)):
            if isinstance(reply, Changed):
                results[index] = operation.show(reply.job)
            else:
                batch.refuse_by(index, job_id, reply)
        await self._answer(exchange, results, batch.errors)

    async def _cancel(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """The ids that are cancelled now. Jobs that depend on each other go together; nothing
        goes while a job that is to stay depends on one of them.
        """
        found, _ = await self._items(exchange, settings.NAMES)
        errors: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                errors.append(entry(index, None, "invalid_id", "an id is a string"))
                continue
            try:
                job_id = self._rules.read_id(item)
            except WrongItemError as error:
                errors.append(entry(index, item, error.code, str(error)))
                continue
            places.setdefault(job_id, index)
        cancelled: tuple[Job, ...] = ()
        if places:
            command = Cancel(job_ids=tuple(places), with_dependants=False)
            reply = await ask(self._dispatcher, command)
            if isinstance(reply, ChangedMany):
                cancelled = reply.jobs
            else:
                assert isinstance(reply, Refusal)
                refuse_whole(reply)
                errors += self._not_cancelled(reply, places)
        results = [shown_id(job) for job in cancelled]
        await self._answer(exchange, results, errors)

    def _not_cancelled(self, refusal: Refusal, places: dict[str, int]) -> list[dict[str, Any]]:
        """The one that stood in the way, and those that it kept from going."""
        known = refusal.job
        culprit = known.job_id if known is not None else next(iter(places))
        shown = shown_id(known) if known is not None else culprit
        found = [item_error(places.get(culprit, 0), shown, refusal)]
        sentence = f"not cancelled because of job {shown}"
        for job_id, index in places.items():
            if job_id != culprit:
                found.append(entry(index, job_id, CODES[Why.OTHER_ITEM_REFUSED], sentence))
        return found

    async def _unfail(self, exchange: Exchange, rest: list[bytes]) -> None:
        """The longest failed jobs of a group wait again, in the queue that the path names."""
        queue = queue_name(rest[0])
        data, _ = read_value(await exchange.body(), settings.UNFAIL)
        if not 1 <= data.count <= _UNFAIL_MAX:
            raise Problem(400, "invalid_body", f"count must be between 1 and {_UNFAIL_MAX}")
        find = functools.partial(self._pages.failed_jobs, data.group, data.count)
        page = await asyncio.to_thread(find, order=Order.OLDEST, after=None)
        commands = [Requeue(job_id=job.job_id, queue=queue) for job in page.jobs]
        replies = await ask_all(self._dispatcher, commands)
        await self._answer(
            exchange, [shown_id(reply.job) for reply in replies if isinstance(reply, Changed)], []
        )

    # Queues.

    async def _pause(self, exchange: Exchange, _rest: list[bytes], *, paused: bool) -> None:
        """Queues that hand nothing out until they are resumed."""
        found, _ = await self._items(exchange, settings.NAMES)
        for name in found:
            if isinstance(name, BadItem):
                raise Problem(400, "invalid_body", "data must be an array of queue names")
            check_queue(name)
        commands = [SetQueue(queue=name, paused=paused) for name in found]
        _check(await ask_all(self._dispatcher, commands))
        await self._answer(exchange, found, [])

    async def _set_queue(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = queue_name(rest[0])
        data, _ = read_value(await exchange.body(), settings.QUEUE)
        command = data.command(name, self._index.queue(name))
        _check([await ask(self._dispatcher, command)])
        policy = command.policy
        assert policy is not None
        await self._answer(exchange, settings.shown_policy(policy), [])

    async def forget_queue(self, exchange: Exchange, rest: list[bytes]) -> None:
        """A queue with nothing left to do is not listed any more."""
        name = queue_name(rest[0])
        _check([await ask(self._dispatcher, ForgetQueue(name))])
        await self._answer(exchange, name, [])

    # Limits and recurring jobs.

    async def _set_limit(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = plain_text(rest[0])
        data, _ = read_value(await exchange.body(), settings.LIMIT)
        _check([await ask(self._dispatcher, data.command(name))])
        await self._answer(exchange, {"name": name, "max": data.max}, [])

    async def _recur(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Recurring jobs of a queue, new ones or changed ones: their ids, or false."""
        queue = queue_name(rest[0])
        found, _ = await self._items(exchange, settings.RECUR)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            try:
                batch.ask(index, item.id, PutSchedule(self._schedule(queue, item)))
            except WrongItemError as error:
                batch.refuse(index, items.bad(error, item.id))
        results: list[object] = [False] * len(found)
        for index, job_id, reply in batch.told(await ask_all(self._dispatcher, batch.commands)):
            if isinstance(reply, Refusal):
                batch.refuse_by(index, job_id, reply)
            else:
                results[index] = found[index].id
        await self._answer(exchange, results, batch.errors)

    def _schedule(self, queue: str, item: settings.RecurItem) -> Schedule:
        known = self._index.schedules.get(item.id)
        if known is None and self._has_job(item.id):
            raise WrongItemError("duplicate", "a job has this id already")
        now = self._server.clock.now()
        if item.cron is not None and item.interval is None:
            try:
                next_at = first_cron_at(item.cron, item.time_zone, now)
            except CalendarError as error:
                raise WrongItemError("invalid_option", str(error)) from None
        else:
            next_at = item.next_at(known, now)
        return item.schedule(queue, next_at, self._rules.meta_bytes_max)

    def _has_job(self, text: str) -> bool:
        try:
            return self._index.job(self._rules.read_id(text)) is not None
        except WrongItemError:
            return False

    async def _unrecur(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """The ids of recurring jobs that are no more. What they added stays."""
        found, _ = await self._items(exchange, settings.NAMES)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
            else:
                batch.ask(index, item, RemoveSchedule(item))
        results: list[str] = []
        for index, _job_id, reply in batch.told(await ask_all(self._dispatcher, batch.commands)):
            if isinstance(reply, Refusal):
                batch.refuse_by(index, found[index], reply)
            else:
                results.append(found[index])
        await self._answer(exchange, results, batch.errors)


def _check(replies: list[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, Refusal):
            raise problem(reply)
