"""The native API's commands: jobs are submitted, claimed, worked on, finished and changed."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from manyhands.model.commands import (
    Command,
    ForgetQueue,
    PutSchedule,
    RemoveSchedule,
    SetLimit,
    Submit,
)
from manyhands.model.job import Job, Origin
from manyhands.model.outcome import (
    Changed,
    ChangedMany,
    Claimed,
    Refusal,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.native import answers, bodies, operations, settings
from manyhands.protocols.native.reading import Batch, OneOrMany, check_payload, decode
from manyhands.protocols.native.refusals import item_error, problem
from manyhands.server.asking import ask, ask_all
from manyhands.server.handing_out import HandingOut
from manyhands.server.http_exchange import Exchange, HungUpError
from manyhands.server.schedules import CalendarError, first_cron_at

if TYPE_CHECKING:
    from manyhands.server.app import Server

Handler = Callable[[Exchange], Awaitable[None]]


class ApiCommands:
    """Requests that change something."""

    def __init__(self, server: "Server", handing_out: HandingOut) -> None:
        self._server = server
        self._dispatcher = server.dispatcher
        self._handing_out = handing_out
        self._payload_bytes_max = server.config.payload_bytes_max
        self.by_path: dict[str, Handler] = {
            "/api/submit": self._submit,
            "/api/claim": self._claim,
            "/api/cancel": self._cancel,
        }
        for name, reader in operations.OPERATIONS.items():
            self.by_path[f"/api/{name}"] = functools.partial(self._operate, reader)

    # Submitting.

    async def _submit(self, exchange: Exchange) -> None:
        found = bodies.SUBMIT.read(await exchange.body())
        origin = Origin(bodies.REALM, "", exchange.address)
        ids, now = self._server.ids, self._server.clock.now()
        items = found.items if isinstance(found, Batch) else [found]
        new = tuple(item.new_job(ids.job_id(now), origin) for item in items)
        for job in new:
            check_payload(job, self._payload_bytes_max)
        together = isinstance(found, Batch) and found.all_or_nothing
        reply = await ask(self._dispatcher, Submit(new, together))
        if isinstance(reply, Refusal):
            raise problem(reply)
        assert isinstance(reply, SubmittedMany)
        if not isinstance(found, Batch):
            only = reply.items[0]
            if isinstance(only, Refusal):
                raise problem(only)
            await exchange.answer(_submitted(only))
            return
        chosen = [item.job_id if item.id_chosen else None for item in new]
        await _answer_many(exchange, chosen, reply.items, _submitted)

    # Claiming.

    async def _claim(self, exchange: Exchange) -> None:
        body = decode(bodies.CLAIM, await exchange.body())
        body.check()
        token = self._server.ids.token
        tokens = tuple(token() for _ in range(body.count))
        command = body.claim(tokens, exchange.address)
        if body.wait:
            connection = exchange.connection
            reply = await self._handing_out.claim_patiently(connection, command, body.wait)
        else:
            reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise problem(reply)
        assert isinstance(reply, Claimed)
        await self._hand_over(exchange, reply.jobs)

    async def _hand_over(self, exchange: Exchange, jobs: tuple[Job, ...]) -> None:
        connection = exchange.connection
        if connection.is_gone:
            self._handing_out.take_back(jobs)
            raise HungUpError
        jobs = self._handing_out.fit(jobs)
        await exchange.answer([answers.claimed(job) for job in jobs])
        await self._handing_out.watch_delivery(connection, jobs)

    # Working on jobs, and changing them.

    async def _operate(self, reader: OneOrMany[Any], exchange: Exchange) -> None:
        found = reader.read(await exchange.body())
        items = found.items if isinstance(found, Batch) else [found]
        commands = [item.command() for item in items]
        for command in commands:
            check_payload(command, self._payload_bytes_max)
        if not isinstance(found, Batch):
            reply = await ask(self._dispatcher, commands[0])
            if isinstance(reply, Refusal):
                raise problem(reply)
            assert isinstance(reply, Changed)
            await exchange.answer(_changed(reply))
            return
        if not commands:
            raise problem(Refusal(Why.EMPTY_BATCH, "there is nothing in this batch"))
        if found.all_or_nothing:
            raise Problem(400, "invalid_body", "all_or_nothing is for submits")
        replies = await ask_all(self._dispatcher, commands)
        await _answer_many(exchange, [item.id for item in items], replies, _changed)

    async def _cancel(self, exchange: Exchange) -> None:
        command = decode(bodies.CANCEL, await exchange.body()).cancel()
        reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise problem(reply)
        assert isinstance(reply, ChangedMany)
        await exchange.answer([answers.brief(job) for job in reply.jobs])

    # Queues, limits and schedules.

    async def _accepted(self, exchange: Exchange, command: Command, results: object) -> None:
        reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise problem(reply)
        await exchange.answer(results)

    async def put_queue(self, exchange: Exchange, name: str) -> None:
        """Create, pause, resume a queue, or set its policy."""
        command = decode(settings.QUEUE, await exchange.body()).command(name)
        await self._accepted(exchange, command, {"name": name})

    async def delete_queue(self, exchange: Exchange, name: str) -> None:
        """Forget a queue that has nothing left to do."""
        await self._accepted(exchange, ForgetQueue(name), {"name": name})

    async def put_limit(self, exchange: Exchange, name: str) -> None:
        """Set a named limit."""
        command = decode(settings.LIMIT, await exchange.body()).command(name)
        await self._accepted(exchange, command, {"name": name})

    async def delete_limit(self, exchange: Exchange, name: str) -> None:
        """Remove a named limit."""
        if name not in self._dispatcher.store.index.limits:
            raise Problem(404, "unknown_limit", f"there is no limit {name!r}")
        await self._accepted(exchange, SetLimit(name, None), {"name": name})

    async def put_schedule(self, exchange: Exchange, name: str) -> None:
        """Create or replace a schedule."""
        body = decode(settings.SCHEDULE, await exchange.body())
        body.check()
        now = self._server.clock.now()
        if body.cron is not None:
            try:
                next_at = first_cron_at(body.cron, body.time_zone, now)
            except CalendarError as error:
                raise Problem(400, "bad_schedule", str(error)) from None
        elif body.first_at is not None:
            next_at = body.first_at
        else:
            next_at = now + (body.interval_ms or 0)
        schedule = body.schedule(name, next_at)
        await self._accepted(exchange, PutSchedule(schedule), {"id": name, "next_at": next_at})

    async def delete_schedule(self, exchange: Exchange, name: str) -> None:
        """No further jobs from it."""
        await self._accepted(exchange, RemoveSchedule(name), {"id": name})


def _submitted(reply: Submitted) -> dict[str, Any]:
    job = reply.job
    return {
        "id": job.job_id,
        "queue": job.queue,
        "state": job.state.value,
        "created": reply.created,
    }


def _changed(reply: Changed) -> dict[str, Any]:
    found = answers.brief(reply.job)
    if reply.repeated:
        found["repeated"] = True
    return found


async def _answer_many(
    exchange: Exchange,
    ids: Sequence[str | None],
    replies: Sequence[Any],
    show: Callable[[Any], dict[str, Any]],
) -> None:
    """A result for each item, null for those that were refused; these are listed beside."""
    results: list[dict[str, Any] | None] = []
    errors: list[dict[str, Any]] = []
    for index, reply in enumerate(replies):
        if isinstance(reply, Refusal):
            results.append(None)
            errors.append(item_error(index, ids[index], reply))
        else:
            results.append(show(reply))
    await exchange.answer(results, {"errors": errors} if errors else None)
