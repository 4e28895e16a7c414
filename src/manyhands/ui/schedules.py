"""Schedules: what is submitted repeatedly, last and next time, and forms to change it."""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from manyhands.dispatch.ask import ask
from manyhands.model.commands import Command, NewJob, PutSchedule, RemoveSchedule, Submit
from manyhands.model.job import Origin, Schedule
from manyhands.model.payload import Encoding
from manyhands.model.replies import Refusal, SubmittedMany
from manyhands.operate.schedules import CalendarError, first_cron_at, resumed_at
from manyhands.ui import listings, words
from manyhands.ui.actions import carry_out
from manyhands.ui.page import Confirm, Done, Page, Shown, confirm_again, url
from manyhands.ui.queue_settings import read_duration
from manyhands.ui.visit import Form, Visit
from manyhands.web.envelope import Problem

_ROWS: Final = 100
_FIELDS: Final = ("id", "queue", "when", "zone", "priority", "tags", "payload", "unique")
_PAYLOAD_SHOWN: Final = 64 * 1024


class Schedules(Page):
    """All schedules."""

    name = "schedules"
    title = "Schedules"

    async def show(self, visit: Visit) -> Shown:
        chosen = self.live.schedules.get(visit.raw("id") or "")
        if chosen is not None:
            given = _given(chosen)
        else:
            given = dict.fromkeys(_FIELDS, "") | {"queue": visit.text("queue"), "zone": "UTC"}
        return self._shown(visit, given, chosen)

    def _shown(self, visit: Visit, given: dict[str, str], chosen: Schedule | None) -> Shown:
        known = self.live.schedules
        span = visit.span_of(len(known), _ROWS)
        values = {
            "rows": [_row(known[name]) for name in sorted(known)[span["first"] :][:_ROWS]],
            "span": span,
            "given": given,
            "chosen": chosen,
        }
        return Shown("schedules.html", values, self.title)

    async def act(self, visit: Visit, form: Form) -> Done | Confirm | Shown:
        if form.text("action") == "put":
            return await self._put(visit, form)
        schedule = self.live.schedules.get(form.raw("schedule"))
        if schedule is None:
            raise Problem(404, "unknown_schedule", "this schedule no longer exists")
        name = words.shown(schedule.schedule_id)
        here = url("schedules")
        command: Command
        match form.text("action"):
            case "run":
                return await self._run(visit, schedule)
            case "pause":
                paused = replace(schedule, paused=True)
                command, outcome = PutSchedule(paused, fields=("paused",)), "is paused"
            case "resume":
                next_at = _first_at(schedule, visit.now)
                resumed = replace(schedule, paused=False, next_at=next_at)
                command = PutSchedule(resumed, fields=("paused", "next_at"))
                outcome = "is resumed"
            case "remove":
                if not form.confirmed:
                    question = f"Remove the schedule {name}? Jobs that it submitted stay."
                    return confirm_again(
                        form, question=question, button="Remove the schedule", back=here
                    )
                command, outcome = RemoveSchedule(schedule.schedule_id), "is removed"
            case _:
                raise Problem(400, "invalid_body", "this action does not exist for a schedule")
        return await carry_out(visit, command, f"The schedule {name} {outcome}.", here)

    async def _run(self, visit: Visit, schedule: Schedule) -> Done:
        """Submits one job now, besides those that are due anyway."""
        job_id = self.sources.ids.job_id(visit.now)
        item = NewJob(
            job_id=job_id,
            queue=schedule.queue,
            payload=schedule.payload,
            encoding=schedule.encoding,
            terms=schedule.terms,
            origin=Origin("native", "ui", visit.exchange.address),
            priority=schedule.priority,
            tags=schedule.tags,
            limits=schedule.limits,
            headers=schedule.headers,
            schedule=schedule.schedule_id,
        )
        reply = await ask(self.sources.dispatcher, Submit((item,)))
        if isinstance(reply, SubmittedMany):
            first = reply.items[0]
            if not isinstance(first, Refusal):
                sentence = f"The schedule {words.shown(schedule.schedule_id)} made job {job_id}."
                return Done(url("schedules"), sentence)
            reply = first
        why = reply.sentence if isinstance(reply, Refusal) else "the job was not accepted"
        return Done(url("schedules"), f"Refused: {why}.", failed=True)

    async def _put(self, visit: Visit, form: Form) -> Done | Shown:
        given = {name: form.text(name) for name in _FIELDS}
        before = self.live.schedules.get(given["id"])
        schedule = _read(given, before, visit)
        if schedule is None:
            return self._shown(visit, given, before)
        sentence = f"The schedule {words.shown(schedule.schedule_id)} is set."
        done = await carry_out(visit, PutSchedule(schedule), sentence, url("schedules"))
        if done.failed:
            visit.problems["id"] = done.sentence
            return self._shown(visit, given, before)
        return done


def _read(given: dict[str, str], before: Schedule | None, visit: Visit) -> Schedule | None:
    """The schedule in the form, or None; then its fields show what is wrong."""
    problems = visit.problems
    if not given["id"]:
        problems["id"] = "A schedule needs a name."
    if not given["queue"]:
        problems["queue"] = "A schedule needs a queue."
    interval_ms, cron, next_at = None, None, visit.now
    try:
        interval_ms, cron, next_at = _read_when(given["when"], given["zone"] or "UTC", visit.now)
    except CalendarError as error:
        field = "zone" if "time zone" in str(error) else "when"
        problems[field] = f"{str(error)[:1].upper()}{str(error)[1:]}."
    except ValueError as error:
        problems["when"] = str(error)
    priority = 0.0
    try:
        priority = float(given["priority"] or 0)
    except ValueError:
        problems["priority"] = "A priority is a number; higher ones go first."
    payload, encoding = _read_payload(given["payload"], before)
    if problems:
        return None
    new: dict[str, Any] = {
        "queue": given["queue"],
        "interval_ms": interval_ms,
        "cron": cron,
        "time_zone": given["zone"] or "UTC",
        "next_at": next_at,
        "priority": priority,
        "tags": tuple(dict.fromkeys(given["tags"].split())),
        "payload": payload,
        "encoding": encoding,
        "unique": given["unique"] == "yes",
    }
    if before is not None:
        return replace(before, **new)
    return Schedule(schedule_id=given["id"], **new)


def _read_when(text: str, zone: str, now: int) -> tuple[int | None, str | None, int]:
    """``every 5 m``, or a cron line."""
    word, _, rest = text.partition(" ")
    if word.casefold() == "every":
        interval_ms = read_duration(rest)
        if interval_ms < 1_000:
            raise ValueError("The shortest interval is one second.")
        return interval_ms, None, now + interval_ms
    if not text:
        raise ValueError("Write every 5 m, or a cron line such as 0 3 * * *.")
    return None, text, first_cron_at(text, zone, now)


def _read_payload(text: str, before: Schedule | None) -> tuple[bytes, Encoding]:
    """JSON if it is valid JSON, otherwise text; a payload that cannot be shown stays unchanged."""
    if before is not None and text == _payload_text(before):
        return before.payload, before.encoding
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.encode(), Encoding.TEXT
    return text.encode(), Encoding.JSON


def _first_at(schedule: Schedule, now: int) -> int:
    """The next instant of a schedule after a pause: missed firings are not caught up."""
    try:
        return resumed_at(schedule, now)
    except CalendarError as error:
        raise Problem(409, "bad_schedule", str(error)) from None


def _payload_text(schedule: Schedule) -> str:
    text = words.decoded(schedule.payload)
    if text is None or len(text) > _PAYLOAD_SHOWN:
        return f"({words.size(len(schedule.payload))}, unchanged)"
    return text


def _given(schedule: Schedule) -> dict[str, str]:
    every = schedule.interval_ms
    return {
        "id": schedule.schedule_id,
        "queue": schedule.queue,
        "when": schedule.cron or f"every {(every or 0) / 1000:g} s",
        "zone": schedule.time_zone,
        "priority": f"{schedule.priority:g}",
        "tags": " ".join(schedule.tags),
        "payload": _payload_text(schedule),
        "unique": "yes" if schedule.unique else "",
    }


def _row(schedule: Schedule) -> dict[str, Any]:
    last = schedule.last_job_id
    return {
        "schedule": schedule,
        # A generated job id begins with the time of its creation.
        "last_at": int(last[:12], 16) if last is not None and len(last) == 32 else None,
        "preview": listings.preview(schedule.payload, schedule.encoding),
    }
