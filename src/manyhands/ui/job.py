"""One job: why it waits, its contents, its history, and actions on it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from msgspec.structs import replace

from manyhands.dispatch.lookup import find_job
from manyhands.dispatch.obstacles import why_waiting
from manyhands.model import limits
from manyhands.model.commands import (
    Cancel,
    Command,
    ExpireLease,
    Move,
    Requeue,
    SetPriority,
    SetTags,
)
from manyhands.model.filter import Order
from manyhands.model.identity import uid_of
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.obstacles import Wait
from manyhands.model.payload import Encoding, guess_encoding
from manyhands.model.replies import Refusal
from manyhands.model.traces import own_frame
from manyhands.ui import graph, listings, timeline, words
from manyhands.ui.actions import carry_out
from manyhands.ui.content import content, file_name
from manyhands.ui.page import Confirm, Done, File, Page, Shown, url
from manyhands.ui.query import Query, read_query
from manyhands.ui.visit import Form, Visit
from manyhands.web.envelope import Problem

_ENTRIES_MAX: Final = 60
_PARTIALS_MAX: Final = 100
_PARTIAL_LENGTH: Final = 2_000
_REASON_NAME_LENGTH: Final = 80
_QUEUES_OFFERED: Final = 200
_STEP_SECONDS: Final = 0.01  # to find the job before or after, in a search
_Action = Callable[["JobPage", Visit, Form, Job], Awaitable[Done | Confirm | Shown]]


class JobPage(Page):
    """The page of a job, found by any of its names; its contents have addresses below it."""

    name = "job"
    title = "Job"

    async def show(self, visit: Visit) -> Shown | File:
        job = await self._find(visit)
        if len(visit.rest) > 1 and visit.rest[1]:
            return await self._file(visit, job)
        return await self._shown(visit, job)

    async def _find(self, visit: Visit) -> Job:
        name = visit.rest[0] if visit.rest else ""
        job = await find_job(self.sources.dispatcher, name)
        if job is None or isinstance(job, Refusal):
            sentence = f"there is no job {words.shown(name) or 'without an id'}; perhaps it"
            raise Problem(404, "unknown_job", f"{sentence} was dropped by retention")
        return job

    async def _file(self, visit: Visit, job: Job) -> File:
        """The whole of a content that the page may have cut."""
        what, *more = visit.rest[1:]
        data: bytes | None = None
        encoding = Encoding.BINARY
        if what == "payload" and not more:
            data, encoding = job.payload, job.encoding
        elif what == "result" and not more:
            data, encoding = job.result, job.result_encoding
        elif what == "failure" and not more and job.failure is not None:
            data = job.failure.payload
        elif what == "partials" and len(more) == 1:
            found = await asyncio.to_thread(self.sources.store.partials, job.job_id)
            data = next((row.payload for row in found if str(row.number) == more[0]), None)
            what = f"partial-{more[0]}"
        if data is None:
            raise Problem(404, "not_found", "this job has no content of that name")
        return File(file_name(what, job.job_id, encoding), data)

    async def _shown(self, visit: Visit, job: Job) -> Shown:
        partials: list[Any] = []
        if job.partials_count:
            partials = list(await asyncio.to_thread(self.sources.store.partials, job.job_id))
        wanted = visit.text("log").encode()
        shown = [row for row in partials if wanted in row.payload]
        around = await graph.gather(self.sources.store, job)
        story = timeline.entries(job, self.sources.dispatcher.events.of_job(job.job_id), visit.now)
        entries, left_out = timeline.newest_first(story, _ENTRIES_MAX)
        budget = job.terms.attempts_max
        if budget is None:
            known = self.live.queues.get(job.queue)
            budget = known.queue.policy.attempts_max if known is not None else None
        if budget is None:
            budget = job.terms.defaults.attempts_max
        values = {
            "job": job,
            "steps": await self._steps(visit, job),
            "uid": uid_of(job.job_id),
            "here": f"/ui/job/{job.job_id}",
            "reasons": why_waiting(self.sources.dispatcher, job),
            "sentence_of": _sentence_of,
            "budget": budget,
            "error": listings.last_error(job),
            "frame": "" if job.failure is None else own_frame(job.failure.message),
            "contents": self._contents(visit, job),
            "log": [_partial(row) for row in shown[-_PARTIALS_MAX:]],
            "log_found": len(shown),
            "log_kept": len(partials),
            "log_text": visit.text("log"),
            "graph": graph.draw(around) if around is not None else None,
            "entries": entries,
            "left_out": left_out,
            "trail": timeline.trail(job),
            "strip": timeline.strip(job, visit.now),
            "is_finished": job.state in FINISHED,
            "queue_names": self._offered(),
            "dependants": len(graph.dependants(self.live, job)),
            "bytes_shown": _bytes_shown,
            "view_url": _view_url,
        }
        title = f"{job.job_id[:12]} · Job"
        return Shown("job.html", values, title, f"job:{job.job_id}")

    async def _steps(self, visit: Visit, job: Job) -> dict[str, str | None] | None:
        """The jobs before and after this one in the search that led here."""
        text = visit.raw("within")
        if text is None:
            return None
        order = Order(visit.chosen("order", (Order.NEWEST.value, Order.OLDEST.value)))
        query = read_query(text, visit.now)
        back = Order.OLDEST if order is Order.NEWEST else Order.NEWEST
        previous, following = await asyncio.gather(
            self._neighbour(query, job, back), self._neighbour(query, job, order)
        )
        here = {"within": text, "order": order.value}
        return {
            "text": text,
            "all": url("jobs", q=text or None, order=order.value),
            "previous": previous and url(f"job/{previous}", **here),
            "next": following and url(f"job/{following}", **here),
        }

    async def _neighbour(self, query: Query, job: Job, order: Order) -> str | None:
        if query.problems or query.job_id is not None:
            return None
        wanted = replace(query.filter, order=order, after=job.serial, count_max=1)
        found = await listings.find(self.sources.store, wanted, _STEP_SECONDS)
        return found.jobs[0].job_id if found.jobs else None

    def _offered(self) -> list[str]:
        """Queues to move to, whose names a browser can show unchanged."""
        names = islice(self.live.queues, _QUEUES_OFFERED)
        return sorted(name for name in names if words.visible(name) == name)

    def _contents(self, visit: Visit, job: Job) -> list[dict[str, Any]]:
        """The contents of the job, each in its chosen view."""
        given: list[tuple[str, str, bytes, Encoding]] = []
        if job.failure is not None and job.failure.payload:
            data, encoding = job.failure.payload, job.failure.encoding
            if encoding is Encoding.BINARY:
                encoding = guess_encoding(data)
            given.append(("failure", "Sent with the failure", data, encoding))
        if job.result is not None:
            given.append(("result", "Result", job.result, job.result_encoding))
        given.append(("payload", "Payload", job.payload, job.encoding))
        chosen = {what: visit.text(what) for what, *_ in given}
        search = visit.raw("within")
        within = {} if search is None else {"within": search, "order": visit.text("order")}
        return [
            {
                "what": what,
                "title": title,
                "content": content(data, encoding, chosen[what]),
                "others": {key: value for key, value in chosen.items() if key != what and value}
                | within,
            }
            for what, title, data, encoding in given
        ]

    # Actions.

    async def act(self, visit: Visit, form: Form) -> Done | Confirm | Shown:
        job = await self._find(visit)
        action = _ACTIONS.get(form.text("action"))
        if action is None:
            known = ", ".join(_ACTIONS)
            raise Problem(400, "invalid_body", f"the actions on a job are {known}")
        return await action(self, visit, form, job)

    async def _do(self, visit: Visit, job: Job, command: Command, sentence: str) -> Done:
        return await carry_out(visit, command, sentence, f"/ui/job/{job.job_id}")

    async def _retry(self, visit: Visit, form: Form, job: Job) -> Done | Confirm:
        if job.state is State.COMPLETED and not form.confirmed:
            return self._confirm_again(visit, form, job)
        sentence = "The job is requeued."
        return await self._do(visit, job, Requeue(job_id=job.job_id), sentence)

    async def _cancel(self, visit: Visit, form: Form, job: Job) -> Done | Confirm:
        if form.confirmed:
            command = Cancel(job_ids=(job.job_id,))
            return await self._do(visit, job, command, "The job is cancelled.")
        notes = []
        count, counted_all = graph.dependants_of_all(self.live, (job,), graph.DEPENDANTS_MAX)
        if count:
            waiting = "job that depends on it is" if count == 1 else "jobs that depend on it are"
            more = "" if counted_all else " or more"
            notes.append(f"{words.number(count)}{more} {waiting} cancelled too.")
        if job.lease is not None and job.state is State.LEASED:
            who = words.shown(job.lease.holder.name or job.lease.holder.address or "Its worker")
            notes.append(f"{who} works on it now and loses the lease.")
        notes.append("It can be requeued later.")
        question = f"Cancel job {job.job_id} in queue {words.shown(job.queue)}?"
        back = f"/ui/job/{job.job_id}"
        return Confirm(question, "Cancel the job", tuple(form.items()), back, notes)

    async def _expire(self, visit: Visit, _form: Form, job: Job) -> Done:
        sentence = "The lease was expired."
        return await self._do(visit, job, ExpireLease(job.job_id), sentence)

    async def _run_now(self, visit: Visit, _form: Form, job: Job) -> Done:
        if job.state is not State.DELAYED:
            return Done(f"/ui/job/{job.job_id}", f"Refused: the job is {job.state}.", failed=True)
        command = Move(job_id=job.job_id, queue=job.queue)
        return await self._do(visit, job, command, "The job no longer waits.")

    def _confirm_again(self, visit: Visit, form: Form, job: Job, queue: str = "") -> Confirm:
        """Work that was done is not done again by one click."""
        where = f" in queue {words.shown(queue)}" if queue else ""
        consequence = "What it did is done a second time, and its result is replaced."
        ago = words.ago(job.finished_at, visit.now)
        return Confirm(
            f"Run job {job.job_id} again{where}?",
            "Run it again",
            tuple(form.items()),
            f"/ui/job/{job.job_id}",
            (f"It was {job.state} {ago}.", consequence),
        )

    async def _move(self, visit: Visit, form: Form, job: Job) -> Done | Confirm | Shown:
        queue = form.text("queue")
        if not queue:
            visit.problems["queue"] = "Enter the name of a queue."
            return await self._shown(visit, job)
        if job.state is State.COMPLETED and not form.confirmed:
            return self._confirm_again(visit, form, job, queue)
        sentence = f"The job is now in queue {words.shown(queue)}."
        if job.state in FINISHED:
            command: Command = Requeue(job_id=job.job_id, queue=queue)
        else:
            command = Move(job_id=job.job_id, queue=queue)
        return await self._do(visit, job, command, sentence)

    async def _priority(self, visit: Visit, form: Form, job: Job) -> Done | Shown:
        found = read_priority(form.text("priority"))
        if found is None:
            visit.problems["priority"] = "A priority is a number, such as 10 or -2.5."
            return await self._shown(visit, job)
        sentence = f"The priority is now {found:g}."
        return await self._do(visit, job, SetPriority(job.job_id, found), sentence)

    async def _tag(self, visit: Visit, form: Form, job: Job) -> Done | Shown:
        tag = form.text("tag")
        if not tag:
            visit.problems["tag"] = "Enter a tag."
            return await self._shown(visit, job)
        sentence = f"The job now has the tag {words.shown(tag)}."
        return await self._do(visit, job, SetTags(job.job_id, (tag,)), sentence)

    async def _untag(self, visit: Visit, form: Form, job: Job) -> Done:
        tag = next(iter(form.all("tag")), "")
        sentence = f"The tag {words.shown(tag)} is removed."
        return await self._do(visit, job, SetTags(job.job_id, (), (tag,)), sentence)


_ACTIONS: Final[Mapping[str, _Action]] = {
    "retry": JobPage._retry,  # noqa: SLF001
    "cancel": JobPage._cancel,  # noqa: SLF001
    "expire": JobPage._expire,  # noqa: SLF001
    "run_now": JobPage._run_now,  # noqa: SLF001
    "move": JobPage._move,  # noqa: SLF001
    "priority": JobPage._priority,  # noqa: SLF001
    "tag": JobPage._tag,  # noqa: SLF001
    "untag": JobPage._untag,  # noqa: SLF001
}


def read_priority(text: str) -> float | None:
    """Reads a priority."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and abs(found) <= limits.PRIORITY_MAX else None


def _sentence_of(reason: Wait) -> str:
    """The sentence of a reason, with its name shown as on all pages."""
    name = words.shown(reason.name, _REASON_NAME_LENGTH)
    sentence = reason.sentence.replace(repr(reason.name), f"“{name}”") if name else reason.sentence
    return words.visible(sentence[:1].upper() + sentence[1:])


def _bytes_shown(data: bytes) -> str:
    text = words.decoded(data)
    return data.hex(" ") if text is None else words.shown(text, 255)


def _view_url(here: str, what: str, view: str, others: dict[str, str]) -> str:
    return f"{here}?{urlencode({**others, what: view})}"


def _partial(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a PartialResult
    shown = content(row.payload, guess_encoding(row.payload), "text")
    brief = str(shown.shown)[:_PARTIAL_LENGTH] if shown.view == "text" else shown.shown
    cut = shown.cut_at is not None or len(str(shown.shown)) > len(str(brief))
    return {
        "number": row.number,
        "at": row.at,
        "warning": row.warning,
        "kind": "warning" if row.warning else "log" if row.is_log else "data",
        "shown": brief,
        "cut": cut,
        "size": shown.size,
    }
