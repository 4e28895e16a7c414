"""Operations on many jobs, requested by a form: counted, confirmed, then watched while they run."""

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from manyhands.model.failures import headline
from manyhands.model.filter import Filter, Order
from manyhands.model.job import FINISHED, State
from manyhands.operate.bulk import POSSIBLE, BulkError, usual_states
from manyhands.store.bulk import Bulk, BulkAction, BulkState
from manyhands.store.contract import FailureQuestion
from manyhands.ui import words
from manyhands.ui.graph import DEPENDANTS_MAX, dependants_of_all
from manyhands.ui.job import read_priority
from manyhands.ui.page import Confirm, Done, Shown, url
from manyhands.ui.query import Query, read_query, state_word, written
from manyhands.ui.visit import Form, Visit, back_to
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

_ACTIONS: Final = (BulkAction.RETRY, BulkAction.CANCEL, BulkAction.MOVE, BulkAction.PRIORITY)
_BUTTONS: Final = {
    BulkAction.RETRY: "Retry",
    BulkAction.CANCEL: "Cancel",
    BulkAction.MOVE: "Move",
    BulkAction.PRIORITY: "Set the priority of",
}
_DONE: Final = {
    BulkAction.RETRY: "retried",
    BulkAction.CANCEL: "cancelled",
    BulkAction.MOVE: "moved",
    BulkAction.PRIORITY: "given another priority",
    BulkAction.EXPIRE: "taken from their holders",
}


def choices(query: Query) -> list[BulkAction]:
    """The actions for jobs in the states of the search."""
    states = query.filter.states
    if query.filter.retrying and not states:
        states = tuple(state for state in State if state not in FINISHED)
    if not states:
        return list(_ACTIONS)
    return [action for action in _ACTIONS if set(states) & set(POSSIBLE[action])]


class BulkForm:
    """One form that was sent."""

    def __init__(self, sources: Sources, visit: Visit, form: Form) -> None:
        self._sources = sources
        self._visit = visit
        self._form = form
        self._back = back_to(form, url("jobs"))

    async def answer(self) -> Done | Confirm | None:
        """Asks for a confirmation, or starts; None if the form has mistakes."""
        bulk = self._read()
        if bulk is None:
            return None
        try:
            if self._form.confirmed:
                bulk = await self._sources.bulk.begin(bulk)
                return Done(url(f"bulk/{bulk.bulk_id}"), "")  # the page shows how far it is
            return await self._confirm(bulk)
        except BulkError as error:
            return Done(self._back, f"Refused: {error}.", failed=True)

    def _read(self) -> Bulk | None:
        form, problems = self._form, self._visit.problems
        try:
            action = BulkAction(form.text("action"))
        except ValueError:
            raise Problem(400, "invalid_body", "there is no such operation") from None
        to_queue = form.text("to_queue") or None
        priority = read_priority(form.text("priority")) if action is BulkAction.PRIORITY else 0.0
        if action is BulkAction.MOVE and to_queue is None:
            problems["to_queue"] = "Name the queue to move the jobs to."
        if priority is None:
            problems["priority"] = "A priority is a number, such as 10 or -2.5."
        job_ids = tuple(dict.fromkeys(form.all("job")))
        wanted: Filter | None = None
        if form.text("all") == "yes":
            wanted, job_ids = self._filter(action), ()
        elif not job_ids:
            problems["bulk"] = "Choose some jobs first, or all that match."
        if problems:
            return None
        return Bulk(
            bulk_id=self._sources.ids.token()[:16],
            action=action,
            created_at=self._visit.now,
            filter=wanted,
            job_ids=job_ids,
            to_queue=to_queue if action in (BulkAction.MOVE, BulkAction.RETRY) else None,
            priority=priority or 0.0,
        )

    def _filter(self, action: BulkAction) -> Filter | None:
        """The filter of all that match. An age counts from the time of the question, not from
        now.
        """
        asked_at = int(self._form.text("asked_at") or 0)
        query = read_query(self._form.text("q"), asked_at or self._visit.now)
        wanted = query.filter
        if query.problems or query.job_id is not None:
            self._visit.problems["q"] = " ".join(query.problems) or "Choose the job itself."
            return None
        possible = tuple(state for state in wanted.states if state in POSSIBLE[action])
        try:
            states = usual_states(action, possible or wanted.states)
        except BulkError as error:
            self._visit.problems["bulk"] = f"{str(error).capitalize()}."
            return None
        return replace(wanted, states=states, order=Order.OLDEST)

    async def _confirm(self, bulk: Bulk) -> Confirm:
        count, counted_all = await self._sources.bulk.count(bulk)
        jobs = words.plural(count, "job")
        if not counted_all:
            jobs = f"{words.plural(count, 'job')} or more"
        notes: list[str] = []
        where = ""
        if bulk.action is BulkAction.MOVE:
            where = f" to queue {words.shown(bulk.to_queue or '')}"
        elif bulk.action is BulkAction.PRIORITY:
            where = f" to {bulk.priority:g}"
        if bulk.filter is not None and bulk.filter.failure is not None:
            notes += await self._group(bulk.filter)
        elif bulk.filter is not None:
            notes.append(f"Only jobs that are {_or(bulk.filter.states)} and match the search.")
        if bulk.action is BulkAction.CANCEL:
            notes.append(self._dependants(bulk))
            notes.append("Workers that hold one of them lose their lease.")
        if bulk.action is BulkAction.RETRY:
            notes.append("Each gets a fresh number of attempts.")
        if not count:
            notes = ["Nothing would change."]
        fields = [pair for pair in self._form.items() if pair[0] != "asked_at"]
        fields.append(("asked_at", str(self._visit.now)))
        return Confirm(
            f"{_BUTTONS[bulk.action]} {jobs}{where}?",
            f"{_BUTTONS[bulk.action]} {jobs}",
            tuple(fields),
            self._back,
            notes,
        )

    async def _group(self, wanted: Filter) -> list[str]:
        """What the jobs of a group of failures have in common, and in which queues they are."""
        question = FailureQuestion(
            now=self._visit.now, group_id=wanted.failure, queue=wanted.queue, count_max=1
        )
        found = await asyncio.to_thread(self._sources.store.failures, question)
        if not found.groups:
            return []
        row = found.groups[0]
        name = words.shown(headline(row.group.code, row.group.line), 200)
        queues = [f"{words.shown(queue)} ({words.number(count)})" for queue, count in row.queues]
        notes = [f"They failed with “{name}”.", f"Queues: {', '.join(queues)}."]
        if wanted.queue is not None:
            notes[1] = f"Only those of queue {words.shown(wanted.queue)}."
        return notes

    def _dependants(self, bulk: Bulk) -> str:
        """What happens to the dependants, with their number if the jobs are known."""
        if bulk.filter is not None:
            return "Jobs that depend on one of them are cancelled too."
        live = self._sources.store.live
        jobs = [job for job in map(live.live_job, bulk.job_ids) if job is not None]
        count, counted_all = dependants_of_all(live, jobs, DEPENDANTS_MAX)
        if not count:
            return "No other job depends on one of them."
        waiting = "job that depends" if count == 1 else "jobs that depend"
        more = "" if counted_all else " or more"
        are = "is" if count == 1 else "are"
        return f"{words.number(count)}{more} {waiting} on one of them {are} cancelled too."

    async def stop(self, bulk_id: str) -> Done:
        """Stops a running operation."""
        await self._sources.bulk.refresh()
        try:
            found = self._sources.bulk.cancel(bulk_id)
        except BulkError as error:
            return Done(url(f"bulk/{bulk_id}"), f"{error}.", failed=True)
        if found is None:
            raise Problem(404, "unknown_bulk", "there is no such operation")
        return Done(url(f"bulk/{bulk_id}"), "It stops after the current slice of jobs.")


def _or(states: tuple[State, ...]) -> str:
    return " or ".join(", ".join(map(state_word, states)).rsplit(", ", 1))


async def described(sources: Sources, bulk: Bulk) -> dict[str, Any]:
    """What an operation does to which jobs, for people."""
    wanted = bulk.filter
    search = "" if wanted is None else written(wanted)
    what = search
    if wanted is not None and wanted.failure is not None:
        question = FailureQuestion(now=bulk.created_at, group_id=wanted.failure, count_max=1)
        found = await asyncio.to_thread(sources.store.failures, question)
        if found.groups:
            group = found.groups[0].group
            what = search.replace(
                f"failure:{wanted.failure}", f"failed with “{headline(group.code, group.line)}”"
            )
    return {
        "looked_at": bulk.changed + bulk.passed + sum(bulk.refused.values()),
        "verb": _BUTTONS.get(bulk.action, bulk.action.value.capitalize()),
        "done": _DONE[bulk.action],
        "what": what or ("jobs that were chosen one by one" if bulk.job_ids else ""),
        "search": search,
    }


async def bulk_shown(sources: Sources, bulk_id: str) -> Shown:
    """The page of one operation."""
    await sources.bulk.refresh()
    bulk = sources.store.bulks.get(bulk_id)
    if bulk is None:
        raise Problem(404, "unknown_bulk", "there is no such operation; old ones are forgotten")
    values: dict[str, Any] = {
        "bulk": bulk,
        "is_active": bulk.state is BulkState.ACTIVE,
        **await described(sources, bulk),
    }
    return Shown("bulk.html", values, "Operation", "any")
