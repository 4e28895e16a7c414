"""Operations on many jobs: counted beforehand, done in slices so that others get their turn, kept
in the store, and continued after a restart.

The position of an operation is written with the last commit of each slice. So after a crash it
repeats at most a part of one slice, and a job is changed again only if it matches again.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from msgspec.structs import replace

from manyhands.access.audit import AuditLog, current_action
from manyhands.dispatch.ask import ask_many, settled
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.loggers import get_logger
from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import (
    Cancel,
    Command,
    ExpireLease,
    Move,
    Only,
    Requeue,
    SetPriority,
)
from manyhands.model.filter import Order
from manyhands.model.job import FINISHED, State
from manyhands.model.reasons import as_detail
from manyhands.model.replies import Refusal, Why
from manyhands.store.bulk import Bulk, BulkAction, BulkState

_log = get_logger("manyhands.bulk")

# Jobs decided in one slice: a few milliseconds.
SLICE_COUNT: Final = 200
_ACTIVE_AT_ONCE: Final = 2
_COUNT_SECONDS_MAX: Final = 15.0
_AGAIN_SECONDS: Final = 1.0
_UNFINISHED: Final = tuple(state for state in State if state not in FINISHED)
# The states an action applies to if the filter names none, and all states it can apply to.
_USUAL: Final[dict[BulkAction, tuple[State, ...]]] = {
    BulkAction.RETRY: (State.FAILED,),
    BulkAction.CANCEL: _UNFINISHED,
    BulkAction.MOVE: _UNFINISHED,
    BulkAction.PRIORITY: _UNFINISHED,
    BulkAction.EXPIRE: (State.LEASED,),
}
POSSIBLE: Final[dict[BulkAction, tuple[State, ...]]] = {
    **_USUAL,
    BulkAction.RETRY: (State.COMPLETED, State.FAILED, State.CANCELLED),
    BulkAction.CANCEL: (*_UNFINISHED, State.FAILED),
}
_STOPPED: Final = (
    Why.SHUTTING_DOWN,
    Why.STORE_FAILED,
    Why.INTERNAL,
)


class BulkError(Exception):
    """An operation cannot start. Its text is a sentence."""


class Others(Protocol):
    """The other servers on the same store, which have operations of their own."""

    def read_bulks(self) -> dict[str, Bulk]:
        """All operations on record. Waits for the store."""

    def stop_bulk(self, server: str, bulk_id: str) -> bool:
        """Has the server that runs it stop an operation; False if that one cannot be reached."""


class BulkRunner:
    """All operations of this server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        audit: AuditLog,
        incarnation: str = "",
        others: Others | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._audit = audit
        self._incarnation = incarnation
        self._others = others
        self._store = dispatcher.store
        self._turns = asyncio.Semaphore(_ACTIVE_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()

    # Beginning.

    async def count(self, bulk: Bulk) -> tuple[int, bool]:
        """The number of matching jobs, and False if there are more than could be counted."""
        wanted = bulk.filter
        if wanted is None:
            return len(bulk.job_ids), True
        found = await asyncio.to_thread(self._store.count, wanted, _COUNT_SECONDS_MAX)
        return sum(found.counts[state] for state in wanted.states), found.complete

    async def begin(self, bulk: Bulk) -> Bulk:
        """Stores and starts an operation. Returns it as stored; it is on disk by then."""
        await self.refresh()
        running = [row for row in self._store.bulks.values() if row.state is BulkState.ACTIVE]
        if len(running) >= limits.BULKS_ACTIVE_MAX:
            raise BulkError(f"{len(running)} operations are already active; wait for one to finish")
        expected, counted_all = await self.count(bulk)
        bulk = replace(
            bulk,
            expected=expected,
            expected_all=counted_all,
            until=self._store.live.last_serial(),
            server=self._incarnation,
        )
        action = current_action()
        if action is not None:
            action.finish(action.note(f"bulk {bulk.action.value}", _what(bulk), expected), 0)
        self._keep(bulk)
        await settled(self._dispatcher)
        self._start(bulk.bulk_id)
        return bulk

    async def refresh(self) -> None:
        """Learns of the operations of other servers, and how far they are."""
        if self._others is None:
            return
        found = await asyncio.to_thread(self._others.read_bulks)
        bulks = self._store.bulks
        for bulk_id, bulk in found.items():
            known = bulks.get(bulk_id)
            if known is None or (bulk_id not in self._tasks and not known.is_further(bulk)):
                bulks[bulk_id] = bulk
        in_order = sorted(bulks.items(), key=lambda item: item[1].created_at)
        bulks.clear()
        bulks.update(
            (bulk_id, bulk)
            for bulk_id, bulk in in_order
            if bulk_id in found or bulk.server == self._incarnation
        )

    def resume(self, alive: Collection[str] = ()) -> None:
        """Continues the unfinished operations that no other living server runs."""
        for bulk in tuple(self._store.bulks.values()):
            is_run = bulk.server in alive or bulk.bulk_id in self._tasks
            if bulk.state is BulkState.ACTIVE and not is_run:
                _log.info("a bulk operation continues", id=bulk.bulk_id, action=bulk.action.value)
                self._keep(replace(bulk, server=self._incarnation))
                self._start(bulk.bulk_id)

    def take_on(self, alive: tuple[str, ...]) -> None:
        """Servers are gone: continues what they ran."""

        async def run() -> None:
            await self.refresh()
            self.resume(alive)

        self._taking_on = asyncio.create_task(run())

    def cancel(self, bulk_id: str) -> Bulk | None:
        """Stops an operation after its current slice. What was done stays done. Raises BulkError if
        the server that runs it cannot be reached.
        """
        bulk = self._store.bulks.get(bulk_id)
        if bulk is not None and bulk.state is BulkState.ACTIVE:
            if self._others is None or bulk.server == self._incarnation:
                self.stop(bulk_id)
            elif not self._others.stop_bulk(bulk.server, bulk_id):
                raise BulkError("the server that runs it cannot be reached; try again in a moment")
            action = current_action()
            if action is not None:
                action.finish(action.note("cancel bulk", bulk_id, 1), 1)
        return bulk

    def stop(self, bulk_id: str) -> None:
        """Stops an operation that runs here after its current slice."""
        if bulk_id in self._tasks:
            self._cancelled.add(bulk_id)

    def _start(self, bulk_id: str) -> None:
        task = asyncio.create_task(self._run(bulk_id))
        self._tasks[bulk_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(bulk_id, None))

    def _keep(self, bulk: Bulk) -> None:
        self._store.keep_bulk(bulk)
        self._dispatcher.touch()

    # Running.

    async def _run(self, bulk_id: str) -> None:
        try:
            async with self._turns:
                while await self._step(bulk_id):
                    pass  # each step waits for its commit, so others get their turn
        except Exception:  # noqa: BLE001 - it stays as it is, and is tried again at the next start
            _log.exception("a bulk operation was stopped by an error", id=bulk_id)

    async def _step(self, bulk_id: str) -> bool:
        """Runs one slice. Returns False when the operation or the server ends."""
        bulk = self._store.bulks[bulk_id]
        dispatcher = self._dispatcher
        if bulk_id in self._cancelled:
            self._end(bulk, BulkState.CANCELLED)
            return False
        found, after = await self._next(bulk)
        if dispatcher.draining or dispatcher.failed is not None:
            return False
        if not found and after is None:
            self._end(bulk, BulkState.COMPLETED)
            return False
        make = _COMMANDS[bulk.action]
        only = _only(bulk)
        replies: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        # Decided at once; the position goes with their commit, or right after it.
        ask_many(dispatcher.ask, [make(bulk, job_id, only) for job_id in found], replies.set_result)
        before = bulk
        bulk = replace(bulk, after=bulk.until if after is None else after)
        if dispatcher.decides:  # otherwise they are committed elsewhere, perhaps never
            self._keep(bulk)
        refused = dict(bulk.refused)
        changed, passed = bulk.changed, bulk.passed
        for reply in await replies:
            if not isinstance(reply, Refusal):
                changed += 1
            elif reply.why is Why.UNAVAILABLE:  # no server decides just now
                self._keep(before)
                await asyncio.sleep(_AGAIN_SECONDS)
                return True
            elif reply.why in _STOPPED:
                return False  # the rest follows at the next start
            elif reply.why is Why.NO_LONGER_FITS:
                passed += 1
            else:
                refused[reply.why.value] = refused.get(reply.why.value, 0) + 1
        bulk = replace(bulk, changed=changed, passed=passed, refused=refused)
        if after is None:
            self._end(bulk, BulkState.COMPLETED)
            return False
        self._keep(bulk)
        return True

    async def _next(self, bulk: Bulk) -> tuple[list[str], int | None]:
        """The next jobs and the position after them, or None if there are no more."""
        if bulk.filter is None:
            stop = bulk.after + SLICE_COUNT
            return list(bulk.job_ids[bulk.after : stop]), (
                stop if stop < len(bulk.job_ids) else None
            )
        wanted = replace(
            bulk.filter, order=Order.OLDEST, after=bulk.after or None, count_max=SLICE_COUNT
        )
        found = await asyncio.to_thread(self._store.select, wanted)
        after = found.next if found.next is not None and found.next < bulk.until else None
        return [job_id for serial, job_id in found.jobs if serial <= bulk.until], after

    def _end(self, bulk: Bulk, state: BulkState) -> None:
        now = self._dispatcher.clock.now()
        bulk = replace(bulk, state=state, finished_at=now, job_ids=())
        self._cancelled.discard(bulk.bulk_id)
        self._keep(bulk)
        self._audit.note(
            AuditEntry(
                seq=0,
                at=0,
                who=bulk.who,
                what=f"bulk {bulk.action.value} {state.value}",
                target=bulk.bulk_id,
                asked=bulk.expected,
                changed=bulk.changed,
                refused=", ".join(bulk.refused),
                known=True,
            )
        )
        _log.info(
            "a bulk operation finished",
            id=bulk.bulk_id,
            action=bulk.action.value,
            state=state.value,
            changed=bulk.changed,
        )


def _what(bulk: Bulk) -> str:
    wanted = bulk.filter
    if wanted is None:
        return bulk.bulk_id
    states = ",".join(wanted.states)
    return f"{bulk.bulk_id} {wanted.queue or 'all queues'} {states}"


def usual_states(action: BulkAction, states: tuple[State, ...]) -> tuple[State, ...]:
    """The states that an action applies to: the requested ones, if the action is possible there."""
    if not states:
        return _USUAL[action]
    possible = POSSIBLE[action]
    for state in states:
        if state not in possible:
            words = ", ".join(possible)
            raise BulkError(f"{action.value} is for jobs that are {words}, not {state.value}")
    return tuple(dict.fromkeys(states))


def _only(bulk: Bulk) -> Only | None:
    """The search saw a committed state, which may have changed before the command."""
    wanted = bulk.filter
    return Only(wanted.states, wanted.queue) if wanted is not None else None


def _retry(bulk: Bulk, job_id: str, only: Only | None) -> Command:
    return Requeue(job_id=job_id, queue=bulk.to_queue, delay_ms=bulk.delay_ms, only=only)


def _cancel(bulk: Bulk, job_id: str, only: Only | None) -> Command:
    return Cancel(
        job_ids=(job_id,),
        with_dependants=bulk.with_dependants,
        detail=as_detail(bulk.reason),
        only=only,
    )


def _move(bulk: Bulk, job_id: str, only: Only | None) -> Command:
    assert bulk.to_queue is not None
    return Move(job_id=job_id, queue=bulk.to_queue, delay_ms=bulk.delay_ms, only=only)


_COMMANDS: Final[dict[BulkAction, Callable[[Bulk, str, Only | None], Command]]] = {
    BulkAction.RETRY: _retry,
    BulkAction.CANCEL: _cancel,
    BulkAction.MOVE: _move,
    BulkAction.PRIORITY: lambda bulk, job_id, only: SetPriority(job_id, bulk.priority, only),
    BulkAction.EXPIRE: lambda _bulk, job_id, only: ExpireLease(job_id, only),
}
