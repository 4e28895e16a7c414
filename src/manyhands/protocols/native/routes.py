"""The endpoints of the native API."""

import functools
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from manyhands.model import limits
from manyhands.model.job import State
from manyhands.protocols.native import answers, bodies, bulk, settings
from manyhands.protocols.native.answers import Batched, Found, Named
from manyhands.protocols.native.bulk_routes import ApiBulk
from manyhands.protocols.native.commands import ApiCommands
from manyhands.protocols.native.operations import OPERATIONS
from manyhands.protocols.native.queries import ApiQueries
from manyhands.protocols.native.reports import ApiOperating
from manyhands.protocols.native.stream_routes import StreamRoutes
from manyhands.web.envelope import Answer
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import ONCE, ONCE_ERRORS
from manyhands.web.naps import Naps
from manyhands.web.openapi import Api
from manyhands.web.routes import Further, Parameter, Route, bind
from manyhands.web.sources import Sources

_WORK, _LOOK, _OPERATE = "api-work", "api-look", "api-operate"

_Age = Annotated[float, Meta(ge=0, le=1e9)]
_Number = Annotated[int, Meta(ge=0, le=10**15)]
_QUEUE: Final = Parameter("queue", str)
_COUNT: Final = Parameter("count", Annotated[int, Meta(ge=1, le=1000)], "Maximum number to return.")
_AFTER_NAME: Final = Parameter("after", str, "The last name of the previous page.")
_AFTER: Final = Parameter("after", _Number, "The `next` of the previous page.")
_IF_ABSENT: Final = Parameter("if_absent", bool, "Leave it as it is if there is one.")
_WAIT: Final = Parameter(
    "wait",
    Annotated[float, Meta(ge=0, le=bodies.WAIT_SECONDS_MAX)],
    "Maximum seconds to wait for it.",
)
_SEARCH: Final = (
    Parameter("state", State, "One state, or several separated by commas."),
    _QUEUE,
    Parameter("tag", str),
    Parameter("worker", str, "The name of its worker, current or past."),
    Parameter("realm", str, "The protocol it was submitted over."),
    Parameter("unique_key", str),
    Parameter("name", str),
    Parameter("task", str, "The task in its headers."),
    Parameter("id_tail", str, "The last digits of its id."),
    Parameter("age_min", _Age, "Minimum seconds since submission."),
    Parameter("age_max", _Age, "Maximum seconds since submission."),
    Parameter("failure", str, "The group of its failure."),
    Parameter("failure_code", str),
    Parameter("text", str, "Text contained in its payload, name or failure; or the end of its id."),
    Parameter("retrying", bool, "Whether it failed and is tried again."),
    Parameter("order", Literal["newest", "oldest"]),
    _AFTER,
    _COUNT,
)


def _look(path: str, handler: Any, summary: str, answer: Any, *query: Parameter) -> Route:  # noqa: ANN401
    return Route("GET", f"/api/{path}", handler, summary, _LOOK, answer, query=query)


def _by_name(path: str, handler: Any, summary: str, row: Any, *query: Parameter) -> Route:  # noqa: ANN401
    """A list ordered by name, a page at a time."""
    return _look(path, handler, summary, Named[list[row]], *query, _AFTER_NAME, _COUNT)


def _operation(name: str, summary: str, *, work: bool = False) -> Route:
    """The body is one item or several, and so is the answer."""
    reader = OPERATIONS[name]
    handler = functools.partial(ApiCommands.operate, reader=reader)
    answer = Batched[answers.Changed | list[answers.Changed | None]]
    return Route("POST", f"/api/{name}", handler, summary, _WORK, answer, reader.kinds, work=work)


def _set(path: str, handler: Any, summary: str, answer: Any, body: Any) -> Route:  # noqa: ANN401
    query = (_IF_ABSENT,)
    return Route("PUT", f"/api/{path}", handler, summary, _OPERATE, Answer[answer], body, query)


def _remove(path: str, handler: Any, summary: str, answer: Any) -> Route:  # noqa: ANN401 - types
    return Route("DELETE", f"/api/{path}", handler, summary, _OPERATE, Answer[answer])


_COMMANDS: Final = (
    Route(
        "POST",
        "/api/submit",
        ApiCommands.submit,
        "Submit jobs.",
        _WORK,
        Batched[answers.Submitted | list[answers.Submitted | None]],
        bodies.SUBMIT.kinds,
        (ONCE,),
        errors=ONCE_ERRORS,
        work=True,
    ),
    Route(
        "POST",
        "/api/claim",
        ApiCommands.claim,
        "Claim work.",
        _WORK,
        Answer[list[answers.Claimed]],
        bodies.ClaimBody,
        work=True,
    ),
    _operation("renew", "Renew a lease.", work=True),
    _operation("progress", "Report progress.", work=True),
    _operation("partial", "Send a partial result or a warning.", work=True),
    _operation("complete", "Complete a job.", work=True),
    _operation("fail", "Report a failed attempt.", work=True),
    _operation("release", "Give a job back without charging the attempt.", work=True),
    Route(
        "POST",
        "/api/depart",
        ApiCommands.depart,
        "A worker leaves or is dead: give its jobs back.",
        _WORK,
        Answer[answers.Departed],
        bodies.DepartBody,
    ),
    _operation(
        "log", "Write a line into the log of a job; it is kept, and sent to nobody.", work=True
    ),
    Route(
        "POST",
        "/api/cancel",
        ApiCommands.cancel,
        "Cancel jobs, and those that depend on them.",
        _WORK,
        Answer[list[answers.Changed]],
        bodies.CancelBody,
    ),
    _operation("requeue", "Run a finished job again."),
    _operation("move", "Move a job to another queue."),
    _operation("priority", "Set a priority."),
    _operation("tags", "Add and remove tags."),
    _operation("dependencies", "Add and remove dependencies."),
    _operation("expire", "End a lease as if it had expired."),
    _set(
        "queues/{name:path}",
        ApiCommands.put_queue,
        "Create, pause or configure a queue.",
        answers.Set,
        settings.QueueBody,
    ),
    _remove(
        "queues/{name:path}",
        ApiCommands.delete_queue,
        "Remove a queue that has nothing left to do.",
        answers.Removed,
    ),
    _set(
        "limits/{name:path}",
        ApiCommands.put_limit,
        "Set a named limit.",
        answers.Set,
        settings.LimitBody,
    ),
    _remove(
        "limits/{name:path}", ApiCommands.delete_limit, "Remove a named limit.", answers.Removed
    ),
    _set(
        "schedules/{name:path}",
        ApiCommands.put_schedule,
        "Create or replace a schedule.",
        answers.ScheduleSet,
        settings.ScheduleBody,
    ),
    _remove(
        "schedules/{name:path}",
        ApiCommands.delete_schedule,
        "Remove a schedule; its jobs stay.",
        answers.ScheduleRemoved,
    ),
)
_QUERIES: Final = (
    _look("jobs", ApiQueries.jobs, "Search jobs.", Found[list[answers.ListedJob]], *_SEARCH),
    _look(
        "jobs/{id}",
        ApiQueries.job,
        "One job, by any of its ids; with `wait`, once it has finished.",
        Answer[answers.Job],
        _WAIT,
    ),
    _look(
        "jobs/{id}/partials",
        ApiQueries.partials,
        "The stored partial results of a job.",
        Answer[list[answers.Partial]],
    ),
    _look(
        "jobs/{id}/log",
        ApiQueries.log,
        "What a worker reported about a job: log, warnings and partial results, in order.",
        Answer[list[answers.LogEntry]],
        Parameter("text", str, "Only entries that contain it."),
        Parameter("after", _Number, "Only entries with a higher number."),
    ),
    _by_name("queues", ApiQueries.queues, "List queues by name.", answers.Queue),
    _look("queues/{name:path}", ApiQueries.queue, "One queue.", Answer[answers.Queue]),
    _by_name(
        "workers",
        ApiQueries.workers,
        "List workers that hold a lease.",
        answers.Worker,
        Parameter("idle", bool, "Also those that wait for work or were seen in the last day."),
    ),
    _look(
        "events",
        ApiQueries.events,
        "The event log from a given number on.",
        answers.Logged[list[answers.Event]],
        _AFTER,
        _COUNT,
        _WAIT,
    ),
    _by_name("limits", ApiQueries.limits, "Named limits.", answers.Limit),
    _by_name("schedules", ApiQueries.schedules, "Schedules.", answers.Schedule),
    _look("servers", ApiQueries.servers, "Servers on this store.", Answer[list[answers.Server]]),
    Route(
        "POST",
        "/api/servers/{name}/drain",
        ApiQueries.drain,
        "Have a server hand over to the others and stop.",
        _OPERATE,
        Answer[answers.Draining],
    ),
    _look("about", ApiQueries.about, "About this server.", Answer[answers.About]),
)
_REPORTS: Final = (
    _look(
        "attention",
        ApiOperating.attention,
        "What needs a person, the worst first; empty if all is well.",
        Answer[list[answers.Note]],
    ),
    _look(
        "history",
        ApiOperating.history,
        "What happened in the last hour, day or week, step by step.",
        answers.Stepped[list[answers.Sample]],
        Parameter("range", Literal["1h", "24h", "7d"]),
        _QUEUE,
    ),
    _look(
        "failures",
        ApiOperating.failures,
        "Jobs that failed or are being retried, by group of failures.",
        answers.Grouped[list[answers.FailureGroup]],
        _QUEUE,
        Parameter("order", Literal["count", "latest"]),
        _COUNT,
        Parameter("group", str, "Only this group."),
    ),
    _look(
        "audit",
        ApiOperating.audit,
        "Who changed what, newest first.",
        answers.Numbered[list[answers.AuditEntry]],
        Parameter(
            "before", Annotated[int, Meta(ge=1, le=10**15)], "The `next` of the previous page."
        ),
        Parameter("who", str, "Only what this caller did."),
        Parameter("address", str, "Only what came from this address."),
        Parameter("protocol", str, "Only what came over this protocol, such as `gearman`."),
        Parameter("what", str, "Only this action, such as `cancel`."),
        Parameter("target", str, "Only what was done to this job, queue or setting."),
        Parameter("refused", str, "Only what was refused for this reason, such as `not_allowed`."),
        _COUNT,
    ),
    _look("me", ApiOperating.me, "Who sends this request, and its role.", Answer[answers.Me]),
    _look(
        "protocols",
        ApiOperating.protocols,
        "The traffic of each listener.",
        Answer[list[answers.Listener]],
    ),
)
_BULK: Final = (
    _look(
        "bulk",
        ApiBulk.list_all,
        "Bulk changes, newest first.",
        Answer[list[answers.Bulk]],
    ),
    Route(
        "POST",
        "/api/bulk",
        ApiBulk.begin,
        "Change all jobs that match a filter, or only count them.",
        _OPERATE,
        (Answer[answers.Bulk], Answer[answers.BulkCount]),
        bulk.BulkBody,
    ),
    _look("bulk/{id}", ApiBulk.show, "One bulk change.", Answer[answers.Bulk]),
    Route(
        "POST",
        "/api/bulk/{id}/cancel",
        ApiBulk.cancel,
        "Stop a bulk change; changes already made stay.",
        _OPERATE,
        Answer[answers.Bulk],
    ),
)
_STREAM: Final = (
    Route(
        "GET",
        "/api/stream",
        StreamRoutes.open,
        "Submit, work and watch over a WebSocket.",
        _WORK,
        None,
        further={101: Further("The WebSocket is open.")},
        errors={426: "The request does not ask for a WebSocket."},
        work=True,
    ),
)
API: Final = Api(
    "The native API",
    "Native",
    (*_QUERIES, *_COMMANDS, *_REPORTS, *_BULK, *_STREAM),
    {_WORK: "Work", _LOOK: "Look", _OPERATE: "Operate"},
    {
        "id": Annotated[str, Meta(min_length=1, max_length=limits.JOB_ID_DIGITS_MAX)],
        "name": Annotated[str, Meta(min_length=1, max_length=limits.QUEUE_NAME_BYTES_MAX)],
    },
)


class NativeRoutes:
    """The endpoints with their handlers."""

    def __init__(self, sources: Sources, handing_out: HandingOut, naps: Naps) -> None:
        dispatcher, ids, config = sources.dispatcher, sources.ids, sources.config
        self.stream = StreamRoutes(dispatcher, ids, config, sources.audit)
        bytes_max, dismiss = config.payload_bytes_max, self.stream.dismiss
        self._commands = ApiCommands(dispatcher, ids, bytes_max, handing_out, dismiss)
        self._queries = ApiQueries(sources, naps)
        self._reports = ApiOperating(sources)
        self._bulk = ApiBulk(dispatcher, ids, sources.bulk)
        self.endings = self._queries.endings

    def routes(self) -> Iterator[Route]:
        """The routes to serve."""
        yield from bind(_QUERIES, self._queries)
        yield from bind(_COMMANDS, self._commands)
        yield from bind(_REPORTS, self._reports)
        yield from bind(_BULK, self._bulk)
        yield from bind(_STREAM, self.stream)
