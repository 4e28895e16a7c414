"""Operations on many jobs: counted beforehand, done in slices so that others get their turn, kept
in the store, and gone on with after a restart.

The place that an operation has come to is written with the last commit of each slice. So a crash
makes it repeat a part of one slice at most, and a job is touched again only if it fits again.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from manyhands.model import limits
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import Cancel, Command, ExpireLease, Move, Requeue, SetPriority
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.outcome import Refusal, Why
from manyhands.server.asking import ask_many
from manyhands.server.audit import current_action
from manyhands.store.bulk import Bulk, BulkAction, BulkState
from manyhands.store.store import Order

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.bulk")

# Jobs decided at once: a few milliseconds.
SLICE_COUNT: Final = 200
_ACTIVE_AT_ONCE: Final = 2
_COUNT_SECONDS_MAX: Final = 15.0
_UNFINISHED: Final = tuple(state for state in State if state not in FINISHED)
# The states of jobs that an action is for if the filter names none, and all that it can be for.
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
_STOPPED: Final = (Why.SHUTTING_DOWN, Why.INTERNAL)


class BulkError(Exception):
    """An operation that cannot be begun. Its text is a sentence."""


class BulkRunner:
    """All operations of this server."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._store = server.store
        self._turns = asyncio.Semaphore(_ACTIVE_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()

    # Beginning.

    async def count(self, bulk: Bulk) -> tuple[int, bool]:
        """How many jobs it would be tried on; False: there are more than could be counted."""
        wanted = bulk.filter
        if wanted is None:
            return len(bulk.job_ids), True
        found = await asyncio.to_thread(self._store.count, wanted, _COUNT_SECONDS_MAX)
        return sum(found.counts[state] for state in wanted.states), found.complete

    async def begin(self, bulk: Bulk) -> Bulk:
        """Keep it, and set it going. Gives it as it is kept; it is on disk by then."""
        running = [row for row in self._store.bulks.values() if row.state is BulkState.ACTIVE]
        if len(running) >= limits.BULKS_ACTIVE_MAX:
            raise BulkError(f"{len(running)} operations are going on already; wait for one to end")
        expected, counted_all = await self.count(bulk)
        bulk = replace(
            bulk,
            expected=expected,
            expected_all=counted_all,
            until=self._store.index.serial,
        )
        action = current_action()
        if action is not None:
            action.finish(action.note(f"bulk {bulk.action.value}", _what(bulk), expected), 0)
        self._keep(bulk)
        await self._server.settled()
        self._start(bulk.bulk_id)
        return bulk

    def resume(self) -> None:
        """After a start: go on with what was going on."""
        for bulk in self._store.bulks.values():
            if bulk.state is BulkState.ACTIVE:
                _log.info("an operation goes on", id=bulk.bulk_id, action=bulk.action.value)
                self._start(bulk.bulk_id)

    def cancel(self, bulk_id: str) -> Bulk | None:
        """Stop it after the slice that it is at. What was done stays done."""
        bulk = self._store.bulks.get(bulk_id)
        if bulk is not None and bulk.state is BulkState.ACTIVE:
            self._cancelled.add(bulk_id)
            action = current_action()
            if action is not None:
                action.finish(action.note("cancel bulk", bulk_id, 1), 1)
        return bulk

    def _start(self, bulk_id: str) -> None:
        task = asyncio.create_task(self._run(bulk_id))
        self._tasks[bulk_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(bulk_id, None))

    def _keep(self, bulk: Bulk) -> None:
        self._store.keep_bulk(bulk)
        self._server.dispatcher.touch()

    # Running.

    async def _run(self, bulk_id: str) -> None:
        try:
            async with self._turns:
                while await self._step(bulk_id):
                    pass  # each step waits for its commit, and others have their turn
        except Exception:  # noqa: BLE001 - it stays as it is, and is tried again at the next start
            _log.exception("an operation on many jobs stopped", id=bulk_id)

    async def _step(self, bulk_id: str) -> bool:
        """One slice. False: it has ended, or the server is about to."""
        bulk = self._store.bulks[bulk_id]
        dispatcher = self._server.dispatcher
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
        fitting = [job_id for job_id in found if self._still_fits(bulk, job_id)]
        replies: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        # Decided at once; the place goes with their commit, or right behind it.
        ask_many(dispatcher, [make(bulk, job_id) for job_id in fitting], replies.set_result)
        bulk = replace(
            bulk,
            after=bulk.until if after is None else after,
            passed=bulk.passed + len(found) - len(fitting),
        )
        self._keep(bulk)
        refused = dict(bulk.refused)
        changed = bulk.changed
        for reply in await replies:
            if not isinstance(reply, Refusal):
                changed += 1
            elif reply.why in _STOPPED:
                return False  # as far as it has come; the rest at the next start
            else:
                refused[reply.why.value] = refused.get(reply.why.value, 0) + 1
        bulk = replace(bulk, changed=changed, refused=refused)
        if after is None:
            self._end(bulk, BulkState.COMPLETED)
            return False
        self._keep(bulk)
        return True

    async def _next(self, bulk: Bulk) -> tuple[list[str], int | None]:
        """The next jobs, and the place behind them; None: there are no more."""
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

    def _still_fits(self, bulk: Bulk, job_id: str) -> bool:
        """What the search saw was committed; meanwhile the job may have gone on."""
        wanted = bulk.filter
        if wanted is None:
            return True
        job: Job | None = self._store.index.job(job_id)
        return job is not None and job.state in wanted.states and wanted.queue in (None, job.queue)

    def _end(self, bulk: Bulk, state: BulkState) -> None:
        now = self._server.clock.now()
        bulk = replace(bulk, state=state, finished_at=now, job_ids=())
        self._cancelled.discard(bulk.bulk_id)
        self._keep(bulk)
        self._server.audit.note(
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
            "an operation on many jobs ended",
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
    """The states that an action is for: those asked for, as far as it is possible in them."""
    if not states:
        return _USUAL[action]
    possible = POSSIBLE[action]
    for state in states:
        if state not in possible:
            words = ", ".join(possible)
            raise BulkError(f"{action.value} is for jobs that are {words}, not {state.value}")
    return tuple(dict.fromkeys(states))


def _cancel(bulk: Bulk, job_id: str) -> Command:
    return Cancel(
        job_ids=(job_id,),
        with_dependants=bulk.with_dependants,
        reason=bulk.reason or "cancelled",
    )


def _move(bulk: Bulk, job_id: str) -> Command:
    assert bulk.to_queue is not None
    return Move(job_id=job_id, queue=bulk.to_queue, delay_ms=bulk.delay_ms)


_COMMANDS: Final[dict[BulkAction, Callable[[Bulk, str], Command]]] = {
    BulkAction.RETRY: lambda bulk, job_id: Requeue(
        job_id=job_id, queue=bulk.to_queue, delay_ms=bulk.delay_ms
    ),
    BulkAction.CANCEL: _cancel,
    BulkAction.MOVE: _move,
    BulkAction.PRIORITY: lambda bulk, job_id: SetPriority(job_id, bulk.priority),
    BulkAction.EXPIRE: lambda _bulk, job_id: ExpireLease(job_id),
}
