"""The native API's bulk operations: start, show, cancel."""

from typing import Any

from msgspec.structs import replace

from manyhands.dispatch.ask import settled
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.filter import CONDITIONS, Filter, Order
from manyhands.operate.bulk import BulkError, BulkRunner, usual_states
from manyhands.protocols.native import answers
from manyhands.protocols.native.bulk import BULK, BulkBody
from manyhands.protocols.native.decoder import decode
from manyhands.store.bulk import Bulk, BulkAction
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange
from manyhands.web.query import Query


class ApiBulk:
    """Bulk operations; the operators' pages use them, too."""

    def __init__(self, dispatcher: Dispatcher, ids: Ids, bulk: BulkRunner) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._bulk = bulk

    async def begin(self, exchange: Exchange) -> None:
        """Counts the jobs and, unless only the count was wanted, starts the operation."""
        body = decode(BULK, await exchange.body())
        body.check()
        try:
            bulk = self.bulk_of(body, exchange.caller.name)
            if body.dry_run:
                count, complete = await self._bulk.count(bulk)
                await exchange.answer(answers.BulkCount(bulk.action.value, count, complete))
                return
            bulk = await self._bulk.begin(bulk)
        except BulkError as error:
            raise Problem(409, "bulk_refused", str(error)) from None
        await exchange.answer(view(bulk))

    def bulk_of(self, body: BulkBody, who: str = "") -> Bulk:
        """The operation described by a body."""
        try:
            action = BulkAction(body.action)
        except ValueError:
            known = ", ".join(BulkAction)
            raise Problem(400, "invalid_body", f"action is one of {known}") from None
        now = self._dispatcher.clock.now()
        wanted = None
        if body.filter is not None:
            wanted = body.filter.filter(now)
            states = usual_states(action, wanted.states)
            wanted = replace(wanted, states=states, order=Order.OLDEST)
        return Bulk(
            bulk_id=self._ids.token()[:16],
            action=action,
            created_at=now,
            who=who,
            filter=wanted,
            job_ids=body.job_ids,
            to_queue=body.queue,
            delay_ms=body.delay_ms,
            priority=body.priority or 0.0,
            with_dependants=body.with_dependants,
            reason=body.reason,
        )

    async def list_all(self, exchange: Exchange) -> None:
        """All stored operations, newest first."""
        Query(exchange.query_string).finish()
        await self._bulk.refresh()
        bulks = reversed(self._dispatcher.store.bulks.values())
        shown = [] if exchange.caller.queues else [view(row) for row in bulks]
        await settled(self._dispatcher)  # answers only report what is on disk
        await exchange.answer(shown)

    async def show(self, exchange: Exchange, name: str) -> None:
        """Shows one operation."""
        Query(exchange.query_string).finish()
        if exchange.caller.queues:  # an operation concerns all queues
            raise _unknown(name)
        shown = view(await self._find(name))
        await settled(self._dispatcher)
        await exchange.answer(shown)

    async def cancel(self, exchange: Exchange, name: str) -> None:
        """Stops one operation. Changes already made stay."""
        await self._find(name)
        try:
            self._bulk.cancel(name)
        except BulkError as error:
            raise Problem(503, "unavailable", str(error)) from None
        await exchange.answer(view(await self._find(name)))

    async def _find(self, name: str) -> Bulk:
        await self._bulk.refresh()
        found = self._dispatcher.store.bulks.get(name)
        if found is None:
            raise _unknown(name)
        return found


def _unknown(name: str) -> Problem:
    return Problem(404, "unknown_bulk", f"there is no operation {name[:200]!r}")


def view(bulk: Bulk) -> answers.Bulk:
    """An operation as shown."""
    refused = sum(bulk.refused.values())
    return answers.Bulk(
        id=bulk.bulk_id,
        action=bulk.action.value,
        state=bulk.state.value,
        who=bulk.who,
        filter=_conditions(bulk.filter) if bulk.filter is not None else None,
        queue=bulk.to_queue,
        expected=bulk.expected,
        expected_all=bulk.expected_all,
        done=bulk.changed + bulk.passed + refused,
        changed=bulk.changed,
        passed=bulk.passed,
        refused=bulk.refused,
        created_at=bulk.created_at,
        finished_at=bulk.finished_at,
    )


def _conditions(wanted: Filter) -> answers.Conditions:
    found: dict[str, Any] = {}
    for condition in CONDITIONS.values():
        value = getattr(wanted, condition.field)
        if value is not None and condition.field != "states":
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            found[condition.field] = text
    return answers.Conditions(state=list(wanted.states), **found)
