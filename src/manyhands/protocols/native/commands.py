"""Commands of the native API: submit, claim, work on, finish and change jobs."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from manyhands.dispatch.ask import ask, ask_all
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.commands import (
    Command,
    ForgetQueue,
    PutSchedule,
    RemoveLimit,
    RemoveSchedule,
    Submit,
)
from manyhands.model.job import Job, Origin
from manyhands.model.receipts import ReceiptItem
from manyhands.model.replies import (
    Accepted,
    Changed,
    ChangedMany,
    Claimed,
    QueueSet,
    Refusal,
    Repeated,
    Reply,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.model.roles import Caller
from manyhands.operate.schedules import CalendarError, first_firing_at, resumed_at
from manyhands.protocols.native import answers, bodies, builders, settings
from manyhands.protocols.native.decoder import (
    Batch,
    OneOrMany,
    check_payload,
    decode,
    read_id,
)
from manyhands.protocols.native.refusals import item_error, problem, spelt
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange, Headers, HungUpError
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import REPLAYED, read_once, refusal_of
from manyhands.web.query import Query

_UID_DIGITS: Final = 32


class ApiCommands:
    """Requests that change something."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        payload_bytes_max: int,
        handing_out: HandingOut,
        dismiss: Callable[[str, Caller], None],
    ) -> None:
        """``dismiss`` ends the stream of a worker, if that caller may."""
        self._dispatcher = dispatcher
        self._dismiss = dismiss
        self._clock = dispatcher.clock
        self._ids = ids
        self._handing_out = handing_out
        self._payload_bytes_max = payload_bytes_max

    # Submitting.

    async def submit(self, exchange: Exchange) -> None:
        """Submits one job or several."""
        body = await exchange.body()
        found = bodies.SUBMIT.read(body)
        once = read_once(exchange.headers, bodies.REALM, exchange.raw_path, body, exchange.caller)
        origin = Origin(bodies.REALM, "", exchange.address)
        ids, now = self._ids, self._clock.now()
        items = found.items if isinstance(found, Batch) else [found]
        new = tuple(item.new_job(ids.job_id(now), origin) for item in items)
        for job in new:
            check_payload(job, self._payload_bytes_max)
        together = isinstance(found, bodies.SubmitBatch) and found.all_or_nothing
        reply = await ask(self._dispatcher, Submit(new, together, once=once, lone=True))
        if isinstance(reply, Refusal):
            raise problem(reply)
        more: Headers = ()
        replies: Sequence[Submitted | ReceiptItem | Refusal]
        if isinstance(reply, Repeated):
            more = (REPLAYED,)
            replies = [refusal_of(item) or item for item in reply.receipt.items]
        else:
            assert isinstance(reply, SubmittedMany)
            replies = reply.items
        if not isinstance(found, Batch):
            only = replies[0]
            if isinstance(only, Refusal):
                raise problem(only)
            await exchange.answer(builders.submitted(only), more=more)
            return
        chosen = [item.job_id if item.id_chosen else None for item in new]
        await _answer_many(exchange, chosen, replies, builders.submitted, more)

    # Claiming.

    async def claim(self, exchange: Exchange) -> None:
        """Hands work to a worker."""
        body = decode(bodies.CLAIM, await exchange.body())
        body.check()
        token = self._ids.token
        tokens = tuple(token() for _ in range(body.count))
        command = body.claim(tokens, exchange.address)
        if body.wait:
            connection = exchange.connection
            reply = await self._handing_out.claim_patiently(connection, command, body.wait)
        else:
            reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise problem(spelt(reply, () if body.id is None else (body.id,)))
        assert isinstance(reply, Claimed)
        await self._hand_over(exchange, reply.jobs)

    async def _hand_over(self, exchange: Exchange, jobs: tuple[Job, ...]) -> None:
        connection = exchange.connection
        if connection.is_gone:
            self._handing_out.take_back(jobs)
            raise HungUpError
        jobs = self._handing_out.fit(jobs)
        await exchange.answer([builders.claimed(job) for job in jobs])
        await self._handing_out.watch_delivery(connection, jobs)

    # Working on jobs, and changing them.

    async def operate(self, exchange: Exchange, *, reader: OneOrMany[Any]) -> None:
        """Changes one or several existing jobs."""
        found = reader.read(await exchange.body())
        items = found.items if isinstance(found, Batch) else [found]
        for item in items:
            if item.links() and not self._has_namespace(item.id):
                item.read_links()
        given = [item.id for item in items]
        commands = [item.command() for item in items]
        for command in commands:
            check_payload(command, self._payload_bytes_max)
        if not isinstance(found, Batch):
            replies = [await ask(self._dispatcher, commands[0])]
        else:
            if not commands:
                raise problem(Refusal(Why.EMPTY_BATCH, "the batch is empty"))
            replies = await ask_all(self._dispatcher, commands)
        await self._ask_by_own_ids(items, replies)
        if isinstance(found, Batch):
            await _answer_many(exchange, given, replies, builders.changed)
            return
        reply = replies[0]
        if isinstance(reply, Refusal):
            raise problem(spelt(reply, given))
        assert isinstance(reply, Changed)
        await exchange.answer(builders.changed(reply))

    async def _ask_by_own_ids(self, items: list[Any], replies: list[Reply]) -> None:
        """A finished job may be named by the uid derived from its own, shorter id; only the store
        can resolve that.
        """
        uids = {
            index: uid
            for index, reply in enumerate(replies)
            if isinstance(reply, Refusal)
            and reply.why is Why.UNKNOWN_JOB
            and len(uid := read_id(items[index].id)) == _UID_DIGITS
        }
        if uids:
            find = self._dispatcher.store.find
            found = await asyncio.to_thread(lambda: [find(uid) for uid in uids.values()])
            for index, job in zip(uids, found, strict=True):
                if job is not None:
                    items[index].id = job.job_id
                    replies[index] = await ask(self._dispatcher, items[index].command())

    def _has_namespace(self, name: str) -> bool:
        job = self._dispatcher.store.live.live_job(read_id(name))
        return job is not None and job.namespace is not None

    async def cancel(self, exchange: Exchange) -> None:
        """Cancels jobs and those that depend on them."""
        body = decode(bodies.CANCEL, await exchange.body())
        reply = await ask(self._dispatcher, body.cancel())
        if isinstance(reply, Refusal):
            raise problem(spelt(reply, body.given_ids()))
        assert isinstance(reply, ChangedMany)
        await exchange.answer([builders.brief(job) for job in reply.jobs])

    async def depart(self, exchange: Exchange) -> None:
        """A worker leaves or is dead: what it held goes back, what it was running fails."""
        body = decode(bodies.DEPART, await exchange.body())
        body.check()
        command, more = body.commands()
        # First: what it were still handed would stay with the dead.
        self._dismiss(body.worker, exchange.caller)
        count = await self._count(command)
        last = count
        while last == bodies.GOODBYES_COUNT_MAX:
            last = await self._count(more)
            count += last
        await exchange.answer(answers.Departed(body.worker, count))

    # Queues, limits and schedules.

    async def _count(self, command: Command) -> int:
        """How many things a command changed."""
        reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise problem(reply)
        if isinstance(reply, QueueSet):
            return int(reply.applied)
        assert isinstance(reply, Accepted)
        return reply.count

    async def put_queue(self, exchange: Exchange, name: str) -> None:
        """Creates, pauses or resumes a queue, or sets its policy."""
        body = decode(settings.QUEUE, await exchange.body())
        command = body.command(name, if_absent=_if_absent(exchange))
        await exchange.answer(answers.Set(name, await self._count(command) > 0))

    async def delete_queue(self, exchange: Exchange, name: str) -> None:
        """Removes a queue that has nothing left to do."""
        await self._count(ForgetQueue(name))
        await exchange.answer(answers.Removed(name))

    async def put_limit(self, exchange: Exchange, name: str) -> None:
        """Sets a named limit."""
        body = decode(settings.LIMIT, await exchange.body())
        command = body.command(name, if_absent=_if_absent(exchange))
        await exchange.answer(answers.Set(name, await self._count(command) > 0))

    async def delete_limit(self, exchange: Exchange, name: str) -> None:
        """Removes a named limit."""
        await self._count(RemoveLimit(name))
        await exchange.answer(answers.Removed(name))

    async def put_schedule(self, exchange: Exchange, name: str) -> None:
        """Creates or replaces a schedule."""
        body = decode(settings.SCHEDULE, await exchange.body())
        if body.pauses_only:
            await self._pause_schedule(exchange, name, paused=body.paused)
            return
        body.check()
        schedule = body.schedule(name, body.first_at or 0)
        if body.first_at is None:
            try:
                first_at = first_firing_at(schedule, self._clock.now())
            except CalendarError as error:
                raise Problem(400, "bad_schedule", str(error)) from None
            schedule = replace(schedule, next_at=first_at)
        command = PutSchedule(schedule, if_absent=_if_absent(exchange))
        applied = await self._count(command) > 0
        answer = answers.ScheduleSet(name, applied, schedule.next_at if applied else UNSET)
        await exchange.answer(answer)

    async def _pause_schedule(self, exchange: Exchange, name: str, *, paused: bool) -> None:
        known = self._dispatcher.store.live.schedules.get(name)
        if known is None:
            raise problem(Refusal(Why.UNKNOWN_SCHEDULE, f"there is no schedule {name!r}"))
        try:
            next_at = known.next_at if paused else resumed_at(known, self._clock.now())
        except CalendarError as error:
            raise Problem(409, "bad_schedule", str(error)) from None
        changed = replace(known, paused=paused, next_at=next_at)
        await self._count(PutSchedule(changed, fields=("paused", "next_at")))
        await exchange.answer(answers.ScheduleSet(name, applied=True, next_at=next_at))

    async def delete_schedule(self, exchange: Exchange, name: str) -> None:
        """Removes a schedule."""
        await self._count(RemoveSchedule(name))
        await exchange.answer(answers.ScheduleRemoved(name))


def _if_absent(exchange: Exchange) -> bool:
    """Whether an existing setting is to stay as it is."""
    query = Query(exchange.query_string)
    found = query.flag("if_absent")
    query.finish()
    return found


async def _answer_many(
    exchange: Exchange,
    ids: Sequence[str | None],
    replies: Sequence[Any],
    show: Callable[[Any], object],
    more: Headers = (),
) -> None:
    """One result per item, null for refused items, which are listed beside."""
    results: list[object] = []
    errors: list[answers.ItemError] = []
    for index, reply in enumerate(replies):
        if isinstance(reply, Refusal):
            results.append(None)
            given = ids[index]
            refusal = reply if given is None else spelt(reply, (given,))
            errors.append(item_error(index, given, refusal))
        else:
            results.append(show(reply))
    await exchange.answer(results, {"errors": errors} if errors else None, more=more)
