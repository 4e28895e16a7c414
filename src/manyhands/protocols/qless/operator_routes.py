"""The qless API for operators: cancel, requeue, change jobs; set queues, limits, recurring jobs."""

import asyncio
import functools
from typing import Any, Final

from manyhands.dispatch.ask import ask, ask_all
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.commands import (
    Cancel,
    ForgetQueue,
    Only,
    PutSchedule,
    RemoveSchedule,
    Requeue,
    SetQueue,
)
from manyhands.model.filter import Order
from manyhands.model.job import Job, Schedule, State
from manyhands.model.replies import Changed, ChangedMany, QueueSet, Refusal, Reply, Why
from manyhands.operate.schedules import CalendarError, first_cron_at
from manyhands.protocols.qless import items, settings
from manyhands.protocols.qless.answers import ItemError
from manyhands.protocols.qless.batch import Batch, refuse_whole
from manyhands.protocols.qless.decoder import BadItem, Items, read_value
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.operations import Operation, Sender
from manyhands.protocols.qless.paths import check_queue, plain_text, queue_name
from manyhands.protocols.qless.queries import QlessPages
from manyhands.protocols.qless.refusals import CODES, entry, item_error, problem
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange

_UNFAIL_MAX: Final = 1_000


class QlessOperating:
    """Requests that change jobs without working on them."""

    def __init__(
        self, dispatcher: Dispatcher, batch_max: int, rules: Rules, pages: QlessPages
    ) -> None:
        self._dispatcher = dispatcher
        self._live = dispatcher.store.live
        self._pages = pages
        self._batch_max = batch_max
        self._rules = rules

    async def _items(self, exchange: Exchange, kind: Items[Any]) -> tuple[list[Any], str | None]:
        return kind.read(await exchange.body(), self._batch_max)

    async def _answer(self, exchange: Exchange, results: object, errors: list[ItemError]) -> None:
        errors.sort(key=lambda error: error["index"])
        await self._pages.answer(exchange, results, {"errors": errors} if errors else None)

    # Jobs.

    async def operate(
        self, exchange: Exchange, _rest: list[bytes], *, operation: Operation
    ) -> None:
        """Answers each item with its new value, or false."""
        found, host = await self._items(exchange, operation.items)
        sender = Sender(host, exchange.address, self._rules)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            try:
                batch.ask(index, item.id, item.command(sender))
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

    async def cancel(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """Answers with the cancelled ids. Jobs that depend on each other are cancelled together;
        nothing is cancelled while a job outside the batch depends on one of them.
        """
        found, _ = await self._items(exchange, settings.NAMES)
        errors: list[ItemError] = []
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

    def _not_cancelled(self, refusal: Refusal, places: dict[str, int]) -> list[ItemError]:
        """The refused job and those it kept from being cancelled."""
        known = refusal.job
        culprit = known.job_id if known is not None else next(iter(places))
        shown = shown_id(known) if known is not None else culprit
        found = [item_error(places.get(culprit, 0), shown, refusal)]
        sentence = f"not cancelled because of job {shown}"
        for job_id, index in places.items():
            if job_id != culprit:
                found.append(entry(index, job_id, CODES[Why.OTHER_ITEM_REFUSED], sentence))
        return found

    async def unfail(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Requeues the longest failed jobs of a group into the queue in the path."""
        queue = queue_name(rest[0])
        data, _ = read_value(await exchange.body(), settings.UNFAIL)
        if not 1 <= data.count <= _UNFAIL_MAX:
            raise Problem(400, "invalid_body", f"count must be between 1 and {_UNFAIL_MAX}")
        find = functools.partial(self._pages.failed_jobs, data.group, data.count)
        page = await asyncio.to_thread(find, order=Order.OLDEST, after=None)
        still = Only((State.FAILED,))
        commands = [Requeue(job_id=job.job_id, queue=queue, only=still) for job in page.jobs]
        replies = await ask_all(self._dispatcher, commands)
        await self._answer(
            exchange, [shown_id(reply.job) for reply in replies if isinstance(reply, Changed)], []
        )

    # Queues.

    async def pause(self, exchange: Exchange, _rest: list[bytes], *, paused: bool) -> None:
        """Pauses or resumes queues."""
        found, _ = await self._items(exchange, settings.NAMES)
        for name in found:
            if isinstance(name, BadItem):
                raise Problem(400, "invalid_body", "data must be an array of queue names")
            check_queue(name)
        commands = [SetQueue(queue=name, paused=paused) for name in found]
        _check(await ask_all(self._dispatcher, commands))
        await self._answer(exchange, found, [])

    async def set_queue(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = queue_name(rest[0])
        data, _ = read_value(await exchange.body(), settings.QUEUE)
        reply = await ask(self._dispatcher, data.command(name))
        _check([reply])
        assert isinstance(reply, QueueSet)
        await self._answer(exchange, settings.shown_policy(reply.queue.policy), [])

    async def forget_queue(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Removes an empty queue from the lists."""
        name = queue_name(rest[0])
        _check([await ask(self._dispatcher, ForgetQueue(name))])
        await self._answer(exchange, name, [])

    # Limits and recurring jobs.

    async def set_limit(self, exchange: Exchange, rest: list[bytes]) -> None:
        name = plain_text(rest[0])
        data, _ = read_value(await exchange.body(), settings.LIMIT)
        reply = await ask(self._dispatcher, data.command(name))
        if not (isinstance(reply, Refusal) and reply.why is Why.UNKNOWN_LIMIT):  # gone either way
            _check([reply])
        await self._answer(exchange, {"name": name, "max": data.max}, [])

    async def recur(self, exchange: Exchange, rest: list[bytes]) -> None:
        """Creates or changes recurring jobs of a queue; answers with ids, or false."""
        queue = queue_name(rest[0])
        found, _ = await self._items(exchange, settings.RECUR)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            try:
                schedule = self._schedule(queue, item)
                command = PutSchedule(
                    schedule, self._job_id_of(item.id), in_step=item.offset is None
                )
                batch.ask(index, item.id, command)
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
        now = self._dispatcher.clock.now()
        if item.cron is not None and item.interval is None:
            try:
                next_at = first_cron_at(item.cron, item.time_zone, now)
            except CalendarError as error:
                raise WrongItemError("invalid_option", str(error)) from None
        else:
            next_at = item.next_at(now)
        return item.schedule(queue, next_at, self._rules.meta_bytes_max)

    def _job_id_of(self, text: str) -> str | None:
        """The id of the job that could be added under this text, or None."""
        try:
            return self._rules.read_id(text)
        except WrongItemError:
            return None

    async def unrecur(self, exchange: Exchange, _rest: list[bytes]) -> None:
        """Removes recurring jobs and answers with their ids. The jobs they added stay."""
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
