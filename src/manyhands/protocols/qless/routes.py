"""The endpoints of the qless API, and the handler of each path."""

import asyncio
import functools
from collections.abc import Callable
from types import MethodType
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from manyhands.net.http_short_way import Head, Headers, Request, ShortWay
from manyhands.observe.workers import WorkerBook
from manyhands.protocols.qless import answers, items, operations, settings
from manyhands.protocols.qless.answers import Batched, Found, Ids, Named, Refused, Success
from manyhands.protocols.qless.decoder import Body
from manyhands.protocols.qless.envelope import Answering
from manyhands.protocols.qless.identifiers import READ_ID, Rules
from manyhands.protocols.qless.kinds import Host, Id, Name
from manyhands.protocols.qless.moves import OwnMoves
from manyhands.protocols.qless.operator_routes import QlessOperating
from manyhands.protocols.qless.paths import RESERVED, is_count, segments
from manyhands.protocols.qless.queries import QlessPages
from manyhands.protocols.qless.statistics_route import QlessStatistics
from manyhands.protocols.qless.stream import QlessEvents
from manyhands.protocols.qless.submission import QlessAdding
from manyhands.protocols.qless.work import QlessWork
from manyhands.web.exchange import Exchange
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import ONCE, ONCE_ERRORS
from manyhands.web.naps import Naps
from manyhands.web.openapi import Api
from manyhands.web.routes import Handler, Parameter, Route, bind, wrong_method
from manyhands.web.sources import Sources

_JSON_HEADERS: Final = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
]

# The endpoints. Frequent ones take a `Request` and answer from a callback; the others take an
# exchange and the remaining segments of the path.

_WORK, _LOOK, _OPERATE = "work", "look", "operate"
_TAKE: Final = (
    Parameter(
        "wait",
        Annotated[float, Meta(ge=0, le=items.WAIT_SECONDS_MAX)],
        "Maximum seconds to wait for work.",
    ),
    Parameter("host", Host, "The name of the worker."),
    Parameter("array", Literal["1"], "Always answer with an array."),
)
_BY_NAME: Final = (
    Parameter("after", str, "The last name of the previous page."),
    Parameter("count", Annotated[int, Meta(ge=1, le=1000)], "Maximum number to return."),
)
_PAGE: Final = (
    Parameter("order", Literal["newest", "oldest"]),
    Parameter("after", Annotated[int, Meta(ge=0, le=10**15)], "The `next` of the previous page."),
    Parameter("count", Annotated[int, Meta(ge=1, le=1000)], "Maximum number to return."),
)
_STATES = Literal["waiting", "scheduled", "blocked", "pending", "complete", "failed", "cancelled"]
_SEARCH: Final = (
    Parameter("state", _STATES, "One state, or several separated by commas."),
    Parameter("queue", str),
    Parameter("tag", str),
    Parameter("host", str, "The name of its worker, current or past."),
    Parameter("protocol", str, "The protocol it was submitted over."),
    Parameter("text", str, "Text contained in its meta."),
)
_TAKEN: Final = (Success[answers.Item | list[answers.Item] | None], Success[answers.Nothing])
_LISTED: Final = Found[list[answers.ListedJob]]
_IDS: Final = Batched[Ids]
_ID_EACH: Final = Batched[list[str | Refused]]
_NUMBER_EACH: Final = Batched[list[int | Refused]]


def _get(path: str, handler: Any, summary: str, answer: Any, *query: Parameter) -> Route:  # noqa: ANN401
    return Route("GET", path, handler, summary, _LOOK, answer, query=query)


def _take(method: str, path: str, summary: str, handler: Any = QlessWork.get) -> Route:  # noqa: ANN401
    if method == "GET":
        return Route(method, path, handler, summary, _WORK, _TAKEN, query=_TAKE, work=True)
    return Route(method, path, handler, summary, _WORK, _TAKEN, Body[items.TakeData], work=True)


def _work(path: str, handler: Any, summary: str, answer: Any, item: Any) -> Route:  # noqa: ANN401
    return Route("POST", path, handler, summary, _WORK, answer, Body[list[item]], work=True)


def _operate(path: str, handler: Any, summary: str, answer: Any, data: Any) -> Route:  # noqa: ANN401
    return Route("POST", path, handler, summary, _OPERATE, answer, Body[data])


def _change(name: str, summary: str, answer: Any, item: Any, *, work: bool = False) -> Route:  # noqa: ANN401
    """Changes jobs one by one: a result for each, or false."""
    tag = _WORK if work else _OPERATE
    operation = operations.OPERATIONS[name]
    handler = functools.partial(QlessOperating.operate, operation=operation)
    return Route("POST", f"/{name}", handler, summary, tag, answer, Body[list[item]], work=work)


_WORK_ROUTES: Final = (
    _take("GET", "/get/{queue}", "Take one item of work."),
    _take("POST", "/get/{queue}", "Take one item of work; safer than GET."),
    _take("GET", "/get/{queue}/{count}", "Take several items."),
    _take("POST", "/get/{queue}/{count}", "Take several items; safer than GET."),
    _take(
        "GET",
        "/{queue}/{count}",
        "Short form of taking several items; not for reserved first segments.",
        QlessWork.get_short,
    ),
    _work(
        "/heartbeat/{queue}",
        QlessWork.heartbeat,
        "Renew locks; returns the seconds until the next heartbeat is due, or false.",
        _NUMBER_EACH,
        Id | items.HeartbeatItem,
    ),
    _work(
        "/hearbeat/{queue}",
        QlessWork.heartbeat_misspelt,
        "The same, for clients that copied a typo of the first documentation.",
        _NUMBER_EACH,
        Id | items.HeartbeatItem,
    ),
    _work(
        "/complete/{queue}",
        QlessWork.complete,
        "Complete work; returns the ids.",
        _IDS,
        items.CompleteItem,
    ),
    _work("/fail/{queue}", QlessWork.fail, "Fail for good; returns ids.", _IDS, items.FailItem),
    _work("/retry/{queue}", QlessWork.retry, "Retry later; returns ids.", _IDS, items.RetryItem),
)
_ADD_ROUTES: Final = (
    Route(
        "POST",
        "/add/{queue}",
        QlessAdding.add,
        "Add work; returns an id for each item, or false.",
        _WORK,
        _ID_EACH,
        Body[list[items.AddItem]],
        (ONCE,),
        errors=ONCE_ERRORS,
        work=True,
    ),
)
_PAGE_ROUTES: Final = (
    _get("/queues", QlessPages.queues, "List queues.", Named[list[answers.Queue]], *_BY_NAME),
    _get("/queues/{queue}", QlessPages.queues, "One queue.", Success[answers.QueueWithSettings]),
    _get("/job/{id}", QlessPages.job, "One job.", Success[answers.Job]),
    _get("/job/{id}/partials", QlessPages.job, "Partial results.", Success[list[answers.Partial]]),
    _get("/jobs", QlessPages.jobs, "Search jobs.", _LISTED, *_SEARCH, *_PAGE),
    _get(
        "/failed",
        QlessPages.failed,
        "Count failed jobs by group.",
        Named[dict[str, int]],
        *_BY_NAME,
    ),
    _get("/failed/{name}", QlessPages.failed, "Failed jobs of a group.", _LISTED, *_PAGE),
    _get("/tags/{name}", QlessPages.tags, "Jobs with a tag.", _LISTED, *_PAGE),
    _get("/workers", QlessPages.workers, "List workers.", Named[list[answers.Worker]], *_BY_NAME),
    _get(
        "/workers/{name}",
        QlessPages.workers,
        "One worker, with its jobs ordered by id.",
        Named[answers.WorkerWithJobs],
        *_BY_NAME,
    ),
    _get("/limits", QlessPages.limits, "Named limits.", Named[list[answers.Limit]], *_BY_NAME),
    _get(
        "/recurring",
        QlessPages.recurring,
        "Recurring jobs.",
        Named[list[answers.Recurring]],
        *_BY_NAME,
    ),
    _get(
        "/recurring/{name}", QlessPages.recurring, "One recurring job.", Success[answers.Recurring]
    ),
)
_STATISTICS_ROUTES: Final = (
    _get(
        "/stats/{queue}",
        QlessStatistics.show,
        "How long jobs waited and ran on a day.",
        Success[answers.Statistics],
        Parameter(
            "date", Annotated[str, Meta(extra_json_schema={"format": "date"})], "Today, in UTC."
        ),
    ),
)
_EVENT_ROUTES: Final = (
    Route(
        "GET",
        "/events",
        QlessEvents.watch,
        "Stream events as server-sent events. Topics are AMQP patterns over "
        "<word>.<protocol>.<id>.<queue>.",
        _LOOK,
        str,
        query=(
            Parameter("topics", str),
            Parameter("after", Annotated[int, Meta(ge=0, le=10**15)]),
            Parameter(
                "Last-Event-ID", Annotated[str, Meta(pattern="^[0-9]{1,18}$")], place="header"
            ),
        ),
        media="text/event-stream",
    ),
)
_OPERATOR_ROUTES: Final = (
    _change(
        "partial",
        "Send partial results; returns how many there are, or false.",
        _NUMBER_EACH,
        operations.PartialItem,
        work=True,
    ),
    _operate(
        "/queues/{queue}",
        QlessOperating.set_queue,
        "Change settings of a queue; omitted ones stay.",
        Batched[answers.QueuePolicy],
        settings.QueueData,
    ),
    Route(
        "DELETE",
        "/queues/{queue}",
        QlessOperating.forget_queue,
        "Forget a queue.",
        _OPERATE,
        Success[str],
    ),
    _operate("/cancel", QlessOperating.cancel, "Cancel jobs; returns ids.", _IDS, list[Id]),
    _change("requeue", "Run finished jobs again.", _ID_EACH, operations.RequeueItem),
    _change("move", "Move jobs to another queue.", _ID_EACH, operations.MoveItem),
    _change("priority", "Set priorities.", Batched[list[float | Refused]], operations.PriorityItem),
    _change("tag", "Add and remove tags.", Batched[list[list[str] | Refused]], operations.TagItem),
    _change(
        "depends",
        "Add and remove dependencies.",
        Batched[list[Ids | Refused]],
        operations.DependsItem,
    ),
    _change("timeout", "End locks.", _ID_EACH, operations.TimeoutItem),
    _operate(
        "/unfail/{queue}",
        QlessOperating.unfail,
        "Requeue the longest failed jobs of a group.",
        _IDS,
        settings.UnfailData,
    ),
    _operate(
        "/pause",
        functools.partial(QlessOperating.pause, paused=True),
        "Pause queues.",
        Batched[list[str]],
        list[Name],
    ),
    _operate(
        "/resume",
        functools.partial(QlessOperating.pause, paused=False),
        "Resume queues.",
        Batched[list[str]],
        list[Name],
    ),
    _operate(
        "/limits/{name}",
        QlessOperating.set_limit,
        "Set or remove a named limit.",
        Batched[answers.LimitSet],
        settings.LimitData,
    ),
    _operate(
        "/recurring/{queue}",
        QlessOperating.recur,
        "Create or change recurring jobs.",
        _ID_EACH,
        list[settings.RecurItem],
    ),
    _operate(
        "/unrecur",
        QlessOperating.unrecur,
        "Stop recurring jobs.",
        Batched[list[str]],
        list[Name],
    ),
)
API: Final = Api(
    "The qless API",
    "",
    (
        *_WORK_ROUTES,
        *_ADD_ROUTES,
        *_PAGE_ROUTES,
        *_STATISTICS_ROUTES,
        *_EVENT_ROUTES,
        *_OPERATOR_ROUTES,
    ),
    {_WORK: "Work", _LOOK: "Look", _OPERATE: "Operate"},
    {
        "queue": Name,
        "count": Annotated[int, Meta(ge=1, le=10**6)],
        "id": Id,
        "name": Name,
    },
)


class QlessRoutes:
    """All routes of this API, by the first segment of the path."""

    def __init__(self, sources: Sources, handing_out: HandingOut, naps: Naps) -> None:
        dispatcher, ids, config = sources.dispatcher, sources.ids, sources.config
        self.answering = Answering(
            dispatcher, ids, sources.admission, load_always=config.qless_load
        )
        book = sources.worker_books[items.REALM]
        assert isinstance(book, WorkerBook)  # the whole one: requests are noted in it
        own_moves = OwnMoves()
        rules = Rules(
            READ_ID[config.qless_id_policy],
            min(config.qless_meta_bytes_max, config.payload_bytes_max),
            once_per_queue=config.qless_dedup_completed == "same_queue",
        )
        pages = QlessPages(sources, rules, self.answering)
        self._body_bytes_max = config.qless_body_bytes_max
        self._work: dict[bytes, Callable[[Request], None]] = {}
        self._work_methods: dict[bytes, dict[str, None]] = {}
        # By the first segment and the number of further ones.
        self._others: dict[tuple[str, int], dict[str, Handler]] = {}
        work = QlessWork(dispatcher, ids, config, rules, self.answering, handing_out, book)
        self._add_work(_WORK_ROUTES, work)
        batch_max = config.qless_batch_max
        adding = QlessAdding(dispatcher, ids, batch_max, rules, self.answering, book, own_moves)
        self._add_work(_ADD_ROUTES, adding)
        for routes, owner in (
            (_PAGE_ROUTES, pages),
            (_STATISTICS_ROUTES, QlessStatistics(dispatcher, config.retention_days, pages)),
            (_EVENT_ROUTES, QlessEvents(dispatcher, sources.past, naps, own_moves)),
            (_OPERATOR_ROUTES, QlessOperating(dispatcher, batch_max, rules, pages)),
        ):
            for route in bind(routes, owner):
                first, *rest = route.path[1:].split("/")
                methods = self._others.setdefault((first, len(rest)), {})
                methods[route.method] = route.handler
                if route.method == "GET":
                    methods["HEAD"] = route.handler

    def _add_work(self, routes: tuple[Route, ...], owner: object) -> None:
        """In the short form, the first segment is the queue, so it has no entry."""
        for route in routes:
            first = route.path[1:].partition("/")[0].encode()
            name = b"" if first.startswith(b"{") else first
            self._work_methods.setdefault(name, {})[route.method] = None
            if name not in self._work:
                self._work[name] = self.answering.guarded(MethodType(route.handler, owner))

    def short_way(self) -> ShortWay:
        """The routes with a fast path."""
        named = {name: serve for name, serve in self._work.items() if name}
        return ShortWay(named, self._body_bytes_max)

    async def answer(self, exchange: Exchange) -> bool:
        """Returns False if the path does not belong to this API."""
        raw_path = exchange.raw_path
        if not raw_path.startswith(b"/"):
            return False  # `OPTIONS *` has no path
        parts = segments(raw_path)
        first = parts[0]
        if first and first in self._work:
            exchange.body_bytes_max = self._body_bytes_max
            await self._answer_work(exchange, first)
            return True
        by_method = self._others.get((first.decode("latin-1"), len(parts) - 1))
        if by_method is not None:
            exchange.body_bytes_max = self._body_bytes_max
            answer = by_method.get(exchange.method)
            if answer is None:
                await exchange.fail(wrong_method(exchange.method), ", ".join(by_method))
            else:
                await answer(exchange, parts[1:])
            return True
        if len(parts) == 2 and is_count(parts[1]) and first.decode("latin-1") not in RESERVED:
            await self._answer_work(exchange, b"")
            return True
        return False

    async def _answer_work(self, exchange: Exchange, first: bytes) -> None:
        allowed = self._work_methods[first]
        if exchange.method not in allowed:
            await exchange.fail(wrong_method(exchange.method), ", ".join(allowed))
        else:
            await self._answer_hot(exchange, first)

    async def _answer_hot(self, exchange: Exchange, first: bytes) -> None:
        """Answers a frequent route for a request that did not take the fast path."""
        request = _LongRequest(exchange)
        answered = request.answered
        if exchange.method == "POST":
            request.body = await exchange.body()
        self._work[first](request)

        def leave() -> None:
            answered.cancel()

        exchange.connection.on_lost = leave
        try:
            status, body, headers = await answered
        except asyncio.CancelledError:
            if exchange.connection.is_gone:
                return  # the client has disconnected
            raise
        finally:
            exchange.connection.on_lost = None
        await exchange.send_bytes(status, [*_JSON_HEADERS, *headers], body)


class _LongRequest(Request):
    """A request whose answer is awaited."""

    __slots__ = ("answered",)

    def __init__(self, exchange: Exchange) -> None:
        url = (exchange.raw_path, exchange.query_string)
        super().__init__(exchange.connection, Head(exchange.method, url, exchange.headers))
        self.answered: asyncio.Future[tuple[int, bytes, Headers]]
        self.answered = asyncio.get_running_loop().create_future()

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        if not self.answered.done():
            self.answered.set_result((status, body, headers))
