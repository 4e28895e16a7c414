"""The qless API on the HTTP listener: which path is answered by what."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless.identifiers import READ_ID, Rules
from manyhands.protocols.qless.paths import RESERVED, is_count, segments
from manyhands.server.handing_out import HandingOut
from manyhands.server.http_exchange import Exchange
from manyhands.server.http_short_way import Head, Headers, Request, ShortWay
from manyhands.server.naps import Naps
from manyhands.server.qless_adding import QlessAdding
from manyhands.server.qless_answer import Answering
from manyhands.server.qless_events import QlessEvents
from manyhands.server.qless_moves import OwnMoves
from manyhands.server.qless_operating import QlessOperating
from manyhands.server.qless_pages import Answer, QlessPages, Route
from manyhands.server.qless_statistics import QlessStatistics
from manyhands.server.qless_work import QlessWork

if TYPE_CHECKING:
    from manyhands.server.app import Server

_JSON_HEADERS: Final = [
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
]


class QlessRoutes:
    """Everything of this API, by the first segment of its path."""

    def __init__(self, server: "Server", handing_out: HandingOut, naps: Naps) -> None:
        self.answering = Answering(server)
        book = server.worker_books.http
        own_moves = OwnMoves()
        config = server.config
        rules = Rules(
            READ_ID[config.qless_id_policy],
            min(config.qless_meta_bytes_max, config.payload_bytes_max),
        )
        work = QlessWork(server, rules, self.answering, handing_out, book)
        adding = QlessAdding(server, rules, self.answering, book, own_moves)
        pages = QlessPages(server, rules, self.answering, book)
        operating = QlessOperating(server, rules, pages)
        events = QlessEvents(server, naps, own_moves)
        self._body_bytes_max = config.qless_body_bytes_max
        self._work = {**work.routes, b"add": adding.serve}
        self._short_form = work.short_form
        self._others: dict[Route, dict[str, Answer]] = {}
        statistics = QlessStatistics(server, pages)
        further = {("events", 0): events.watch, ("stats", 1): statistics.show}
        for route, answer in (*pages.routes.items(), *further.items()):
            self._others[route] = {"GET": answer, "HEAD": answer}
        for route, answer in operating.routes.items():
            self._others.setdefault(route, {})["POST"] = answer
        self._others["queues", 1]["DELETE"] = operating.forget_queue

    def short_way(self) -> ShortWay:
        """The routes that are worth one."""
        return ShortWay(self._work, self._body_bytes_max)

    def endpoints(self) -> Iterator[str]:
        """All routes, for people who look around."""
        for name in self._work:
            path = f"/{name.decode()}/{{queue}}"
            yield f"POST {path}"
            if name == b"get":
                yield f"GET {path}"
                yield from (f"{method} {path}/{{count}}" for method in ("GET", "POST"))
        yield "GET /{queue}/{count}"
        for (first, count), by_method in self._others.items():
            path = f"/{first}" + "/{name}" * count
            if (first, count) == ("job", 2):
                path = "/job/{name}/partials"
            yield from (f"{method} {path}" for method in by_method if method != "HEAD")

    async def answer(self, exchange: Exchange) -> bool:
        """False: the path is none of this API's."""
        raw_path = exchange.scope["raw_path"]
        if not raw_path.startswith(b"/"):
            return False  # `OPTIONS *` has no path
        parts = segments(raw_path)
        first = parts[0]
        if first in self._work:
            exchange.body_bytes_max = self._body_bytes_max
            await self._answer_work(exchange, first)
            return True
        by_method = self._others.get((first.decode("latin-1"), len(parts) - 1))
        if by_method is not None:
            exchange.body_bytes_max = self._body_bytes_max
            answer = by_method.get(exchange.method)
            if answer is None:
                await exchange.fail(_wrong_method(exchange), ", ".join(by_method))
            else:
                await answer(exchange, parts[1:])
            return True
        if len(parts) == 2 and is_count(parts[1]) and first.decode("latin-1") not in RESERVED:
            if exchange.method != "GET":
                await exchange.fail(_wrong_method(exchange), "GET")
            else:
                await self._answer_hot(exchange, b"")
            return True
        return False

    async def _answer_work(self, exchange: Exchange, first: bytes) -> None:
        allowed = ("GET", "POST") if first == b"get" else ("POST",)
        if exchange.method not in allowed:
            await exchange.fail(_wrong_method(exchange), ", ".join(allowed))
        else:
            await self._answer_hot(exchange, first)

    async def _answer_hot(self, exchange: Exchange, first: bytes) -> None:
        """The long way to a route that has a short one."""
        request = _LongRequest(exchange)
        told = request.told
        if exchange.method == "POST":
            request.body = await exchange.body()
        serve = self._work.get(first, self._short_form)
        serve(request)

        def leave() -> None:
            told.cancel()

        exchange.connection.on_lost = leave
        try:
            status, body, headers = await told
        except asyncio.CancelledError:
            if exchange.connection.is_gone:
                return  # whoever asked is not there any more
            raise
        finally:
            exchange.connection.on_lost = None
        await exchange.send_bytes(status, [*_JSON_HEADERS, *headers], body)


class _LongRequest(Request):
    """A request whose answer is waited for."""

    __slots__ = ("told",)

    def __init__(self, exchange: Exchange) -> None:
        url = (exchange.scope["raw_path"], exchange.scope["query_string"])
        super().__init__(exchange.connection, Head(exchange.method, url, exchange.headers))
        self.told: asyncio.Future[tuple[int, bytes, Headers]]
        self.told = asyncio.get_running_loop().create_future()

    def send(self, status: int, body: bytes, headers: Headers) -> None:
        if not self.told.done():
            self.told.set_result((status, body, headers))


def _wrong_method(exchange: Exchange) -> Problem:
    return Problem(405, "method_not_allowed", f"{exchange.method} is not possible here")
