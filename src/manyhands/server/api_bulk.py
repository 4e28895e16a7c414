"""The native API's operations on many jobs: begin one, look at it, cancel it."""

from typing import TYPE_CHECKING, Any

from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.native.bulk import BULK, BulkBody
from manyhands.protocols.native.reading import decode
from manyhands.server.api_query import Query
from manyhands.server.bulk import BulkError, usual_states
from manyhands.server.http_exchange import Exchange
from manyhands.store.bulk import Bulk, BulkAction
from manyhands.store.store import Filter, Order

if TYPE_CHECKING:
    from manyhands.server.app import Server


class ApiBulk:
    """What the pages for operators use, too."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    async def begin(self, exchange: Exchange) -> None:
        """Count the jobs; then, unless that was all, set the operation going."""
        body = decode(BULK, await exchange.body())
        body.check()
        try:
            bulk = self.bulk_of(body, exchange.caller.name)
            if body.dry_run:
                count, complete = await self._server.bulk.count(bulk)
                shown = {"action": bulk.action.value, "expected": count, "expected_all": complete}
                await exchange.answer(shown)
                return
            bulk = await self._server.bulk.begin(bulk)
        except BulkError as error:
            raise Problem(409, "bulk_refused", str(error)) from None
        await exchange.answer(view(bulk))

    def bulk_of(self, body: BulkBody, who: str = "") -> Bulk:
        """The operation that a body describes."""
        try:
            action = BulkAction(body.action)
        except ValueError:
            known = ", ".join(BulkAction)
            raise Problem(400, "invalid_body", f"action is one of {known}") from None
        now = self._server.clock.now()
        found = body.filter
        wanted = None
        if found is not None:
            wanted = Filter(
                states=usual_states(action, found.states),
                queue=found.queue,
                tag=found.tag,
                worker=found.worker,
                realm=found.realm,
                unique_key=found.unique_key.encode() if found.unique_key is not None else None,
                name=found.name,
                submitted_before=found.submitted(found.age_min, now),
                submitted_after=found.submitted(found.age_max, now),
                failure=found.failure,
                failure_code=found.failure_code,
                text=found.text,
                order=Order.OLDEST,
            )
        return Bulk(
            bulk_id=self._server.ids.token()[:16],
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
        """All that are kept, the newest first."""
        Query(exchange.scope["query_string"]).finish()
        shown = [view(row) for row in reversed(self._server.store.bulks.values())]
        await self._server.settled()  # nothing is told that is not on disk
        await exchange.answer(shown)

    async def show(self, exchange: Exchange, name: str) -> None:
        """One of them."""
        Query(exchange.scope["query_string"]).finish()
        shown = view(self._find(name))
        await self._server.settled()
        await exchange.answer(shown)

    async def cancel(self, exchange: Exchange, name: str) -> None:
        """Stop one. What was done stays done."""
        self._find(name)
        self._server.bulk.cancel(name)
        await exchange.answer(view(self._find(name)))

    def _find(self, name: str) -> Bulk:
        found = self._server.store.bulks.get(name)
        if found is None:
            raise Problem(404, "unknown_bulk", f"there is no operation {name[:200]!r}")
        return found


def view(bulk: Bulk) -> dict[str, Any]:
    """An operation as JSON."""
    refused = sum(bulk.refused.values())
    return {
        "id": bulk.bulk_id,
        "action": bulk.action.value,
        "state": bulk.state.value,
        "who": bulk.who,
        "filter": _conditions(bulk.filter) if bulk.filter is not None else None,
        "queue": bulk.to_queue,
        "expected": bulk.expected,
        "expected_all": bulk.expected_all,
        "done": bulk.changed + bulk.passed + refused,
        "changed": bulk.changed,
        "passed": bulk.passed,
        "refused": bulk.refused,
        "created_at": bulk.created_at,
        "finished_at": bulk.finished_at,
    }


def _conditions(wanted: Filter) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: value
        for name in (
            *("queue", "tag", "worker", "realm", "name", "submitted_before", "submitted_after"),
            *("failure", "failure_code", "text"),
        )
        if (value := getattr(wanted, name)) is not None
    }
    if wanted.unique_key is not None:
        found["unique_key"] = wanted.unique_key.decode(errors="replace")
    return {"state": [state.value for state in wanted.states], **found}
