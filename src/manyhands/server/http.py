"""The HTTP listener: uvicorn in our own loop, the API's commands in front of a router."""

import asyncio
import functools
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from manyhands import __version__
from manyhands.config import Address
from manyhands.protocols.http_envelope import Problem, encode
from manyhands.server import openapi
from manyhands.server.api_bulk import ApiBulk
from manyhands.server.api_commands import ApiCommands
from manyhands.server.api_operating import ApiOperating
from manyhands.server.api_queries import ApiQueries
from manyhands.server.handing_out import HandingOut
from manyhands.server.http_changes import Change, kind_of
from manyhands.server.http_connection import Connection, ErrorCount
from manyhands.server.http_exchange import Defences, Exchange, HungUpError
from manyhands.server.http_peer import Proxies
from manyhands.server.naps import Naps
from manyhands.server.qless import QlessRoutes
from manyhands.server.taskcluster import TaskclusterRoutes
from manyhands.server.traffic import Flow
from manyhands.server.ui.site import Ui
from manyhands.store.store import StoreFailedError

if TYPE_CHECKING:
    from manyhands.server.app import Server

_log = structlog.get_logger("manyhands.http")

_KEEP_ALIVE_SECONDS: Final = 75
_BACKLOG: Final = 2048
# What a body may have besides its payload, which may be written as base64.
_ENVELOPE_BYTES: Final = 1024 * 1024

_CONVERTER: Final = re.compile(r":\w+(?=})")

Answer = Callable[..., Awaitable[None]]


class HttpListener:
    """Accepts HTTP peers."""

    def __init__(self, server: "Server", address: Address) -> None:
        self._server = server
        self._address = address
        self._naps = Naps()
        handing_out = HandingOut(server.dispatcher, self._naps)
        self._commands = ApiCommands(server, handing_out)
        self._queries = ApiQueries(server, self._naps)
        self._operating = ApiOperating(server)
        self._bulk = ApiBulk(server)
        self._qless = QlessRoutes(server, handing_out, self._naps)
        self._ui = Ui(server, self._naps)
        self._short_way = self._qless.short_way()
        self._taskcluster = TaskclusterRoutes(server, handing_out)
        self._router = Router(routes=list(self._routes()), redirect_slashes=False)
        self._body_bytes_max = server.config.payload_bytes_max * 4 // 3 + _ENVELOPE_BYTES
        self._defences: Defences | None = None
        self._errors = ErrorCount()
        self._uvicorn: uvicorn.Server | None = None
        self._sockets: list[socket.socket] = []
        self._sweeper: asyncio.Task[None] | None = None
        server.traffic.sources["http"] = self._flow
        server.metrics.sources.append(self._denied)

    def _denied(self) -> Iterable[Metric]:
        denied = CounterMetricFamily(
            "manyhands_http_denied", "Requests that were not let in.", labels=["reason"]
        )
        for reason, count in self._server.access.denied.items():
            denied.add_metric([reason], count)
        return [denied]

    def _flow(self) -> Flow:
        state = self._uvicorn.server_state if self._uvicorn is not None else None
        return Flow(len(state.connections) if state is not None else 0, self._errors.count)

    async def start(self) -> str:
        """Bind, then accept."""
        self._sockets = [_bind(self._address)]
        host, port = self._sockets[0].getsockname()[:2]
        bound = Address(host, port)
        self._defences = Defences(bound, (self._address.host, self._server.config.server_name))
        self._qless.answering.defences = self._defences
        config = uvicorn.Config(
            self._answer,
            http=functools.partial(  # type: ignore[arg-type]
                Connection,
                short_way=self._short_way,
                proxies=Proxies(self._server.config.trusted_proxies),
                errors=self._errors,
            ),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            backlog=_BACKLOG,
        )
        config.load()
        self._uvicorn = uvicorn.Server(config)
        # Its own `serve` takes over the signals; the server as a whole keeps them.
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._uvicorn.startup(sockets=self._sockets)
        self._sweeper = asyncio.create_task(self._sweep())
        return str(bound)

    async def drain(self) -> None:
        """Answer what is in flight, accept nothing new, close."""
        self._naps.end_all()
        assert self._uvicorn is not None
        if self._server.failure is not None:
            # Nothing is acknowledged any more, so there is nothing to wait for.
            self._uvicorn.force_exit = True
            for connection in tuple(self._uvicorn.server_state.connections):
                connection.transport.abort()
        await self._uvicorn.shutdown(sockets=self._sockets)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _sweep(self) -> None:
        """Once a second: the date for all answers, and an end to peers that are too slow."""
        assert self._uvicorn is not None
        state = self._uvicorn.server_state
        loop = asyncio.get_running_loop()
        while True:
            date = formatdate(self._server.clock.now() / 1000, usegmt=True).encode()
            state.default_headers = [(b"date", date)]
            self._short_way.set_date(date)
            for connection in tuple(state.connections):
                if isinstance(connection, Connection):
                    connection.lose_patience(loop.time())
            await asyncio.sleep(1.0)

    # Requests.

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._server.clock, self._body_bytes_max)
        try:
            assert self._defences is not None
            old = scope["http_version"] == "1.0"
            ours = Ui.owns(exchange.path)
            linked = exchange.method == "GET" and (ours or exchange.path == "/")
            self._defences.check(exchange.headers, host_needed=not old, linked=linked)
            if ours:  # its forms are another way to ask for what is asked for elsewhere
                await self._ui.answer(exchange)
                return
            change = kind_of(exchange.method, scope["raw_path"], exchange.path)
            exchange.caller = self._server.access.check(
                exchange.headers, changes=change is not Change.NONE, path=exchange.path
            )
            if change is Change.OPERATION:
                request = f"{exchange.method} {exchange.path}"
                with self._server.audit.action(exchange.caller, exchange.address, request):
                    await self._dispatch(exchange, receive, send)
            else:
                await self._dispatch(exchange, receive, send)
        except Problem as found:
            if found.status >= 500:
                self._note(exchange, found)
            await exchange.fail(found)
        except HungUpError:
            return
        except StoreFailedError as error:
            behind = Problem(503, "unavailable", str(error))
            self._note(exchange, behind)
            await exchange.fail(behind)
        except Exception:  # noqa: BLE001 - our own defect; that peer hears of it, others go on
            defect = Problem(500, "internal", "an internal error; see the server's log")
            self._note(exchange, defect, exc_info=True)
            await exchange.fail(defect)

    async def _dispatch(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        handler = self._commands.by_path.get(exchange.path)
        if handler is None:
            if not await self._qless.answer(exchange):
                await self._route(exchange, receive, send)
        elif exchange.method == "POST":
            await handler(exchange)
        else:
            await exchange.fail(_wrong_method(exchange.method), "POST")

    async def _route(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        scope = exchange.scope
        scope["app"] = self  # the router then raises what it would else answer in plain text
        scope["state"]["exchange"] = exchange
        if len(exchange.path) > 1:
            scope["path"] = exchange.path.rstrip("/")
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            if error.status_code == 405:
                allow = (error.headers or {}).get("Allow")
                await exchange.fail(_wrong_method(exchange.method), allow)
            else:
                sentence = f"there is nothing at {exchange.path[:200]}"
                await exchange.fail(Problem(404, "not_found", sentence))

    def _note(self, exchange: Exchange, found: Problem, *, exc_info: bool = False) -> None:
        request_id = self._server.ids.token()[:16]
        found.detail = {**(found.detail or {}), "request_id": request_id}
        _log.log(
            40 if found.status == 500 else 30,
            "request failed",
            request_id=request_id,
            status=found.status,
            code=found.code,
            method=exchange.method,
            path=exchange.path,
            exc_info=exc_info,
        )

    # Routes.

    def _routes(self) -> Iterable[BaseRoute]:
        queries, commands, operating = self._queries, self._commands, self._operating
        yield Route("/", _Endpoint(GET=self._index))
        yield Route("/healthz", _Endpoint(GET=self._healthz))
        yield Route("/readyz", _Endpoint(GET=self._readyz))
        yield Route("/metrics", _Endpoint(GET=self._metrics))
        yield Route("/openapi.json", _Endpoint(GET=self._openapi))
        yield Route("/docs", _Endpoint(GET=self._docs))
        yield Route("/api/jobs", _Endpoint(GET=queries.jobs))
        yield Route("/api/jobs/{name}", _Endpoint(GET=queries.job))
        yield Route("/api/jobs/{name}/partials", _Endpoint(GET=queries.partials))
        yield Route("/api/queues", _Endpoint(GET=queries.queues))
        yield Route(
            "/api/queues/{name:path}",
            _Endpoint(GET=queries.queue, PUT=commands.put_queue, DELETE=commands.delete_queue),
        )
        yield Route("/api/workers", _Endpoint(GET=queries.workers))
        yield Route("/api/events", _Endpoint(GET=queries.events))
        yield Route("/api/limits", _Endpoint(GET=queries.limits))
        yield Route(
            "/api/limits/{name:path}",
            _Endpoint(PUT=commands.put_limit, DELETE=commands.delete_limit),
        )
        yield Route("/api/schedules", _Endpoint(GET=queries.schedules))
        yield Route(
            "/api/schedules/{name:path}",
            _Endpoint(PUT=commands.put_schedule, DELETE=commands.delete_schedule),
        )
        yield Route("/api/about", _Endpoint(GET=queries.about))
        yield Route("/api/audit", _Endpoint(GET=operating.audit))
        yield Route("/api/bulk", _Endpoint(GET=self._bulk.list_all, POST=self._bulk.begin))
        yield Route("/api/bulk/{name}", _Endpoint(GET=self._bulk.show))
        yield Route("/api/bulk/{name}/cancel", _Endpoint(POST=self._bulk.cancel))
        yield Route("/api/history", _Endpoint(GET=operating.history))
        yield Route("/api/failures", _Endpoint(GET=operating.failures))
        yield Route("/api/protocols", _Endpoint(GET=operating.protocols))
        yield from self._taskcluster.routes()

    async def _index(self, exchange: Exchange) -> None:
        """Where everything is; people are shown the way to the pages."""
        if b"text/html" in exchange.headers.get(b"accept", b""):
            headers = [(b"location", b"/ui/"), (b"vary", b"accept")]
            await exchange.send_bytes(302, headers, b"")
            return
        found = [*self._qless.endpoints(), *(f"POST {path}" for path in self._commands.by_path)]
        for route in self._router.routes:
            assert isinstance(route, Route)
            path = _CONVERTER.sub("", route.path)
            endpoint = route.endpoint
            own = endpoint.methods if isinstance(endpoint, _Endpoint) else route.methods or ()
            found += [f"{method} {path}" for method in own if method != "HEAD"]
        results = {"name": "manyhands", "version": __version__, "endpoints": found}
        await exchange.answer(results)

    async def _healthz(self, exchange: Exchange) -> None:
        """The process lives and its store has not failed."""
        failure = self._server.failure
        status = 200 if failure is None else 503
        await exchange.answer({"healthy": failure is None, "failure": failure}, status=status)

    async def _readyz(self, exchange: Exchange) -> None:
        """Every listener accepts, the disk answers, and nobody asked us to stop."""
        server = self._server
        missing = [
            name
            for name, bound in server.addresses.items()
            if bound is None and getattr(server.config, name) is not None
        ]
        if server.failure is not None:
            missing.append("store")
        if server.dispatcher.stalled:
            missing.append("disk")
        if server.dispatcher.draining:
            missing.append("draining")
        ready = server.is_ready and not missing
        status = 200 if ready else 503
        await exchange.answer({"ready": ready, "missing": missing}, status=status)

    async def _openapi(self, exchange: Exchange) -> None:
        """For programs that write programs."""
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        document = openapi.document(self._server.config.qless_id_policy)
        await exchange.send_bytes(200, headers, encode(document))

    async def _docs(self, exchange: Exchange) -> None:
        """The same for people. It needs no scripts and nothing from elsewhere."""
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        ]
        await exchange.send_bytes(200, headers, openapi.page().encode())

    async def _metrics(self, exchange: Exchange) -> None:
        content_type, text = self._server.metrics.render()
        headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
        await exchange.send_bytes(200, headers, text)


class _Endpoint:
    """What answers at a path, by method. HEAD is GET without its body."""

    def __init__(self, **by_method: Answer) -> None:
        self.methods = tuple(by_method)
        self._by_method = dict(by_method)
        if "GET" in by_method:
            self._by_method["HEAD"] = by_method["GET"]
        self._allow = ", ".join(self._by_method)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope["state"]["exchange"]
        answer = self._by_method.get(exchange.method)
        if answer is None:
            raise HTTPException(405, headers={"Allow": self._allow})
        params: dict[str, Any] = scope["path_params"]
        await answer(exchange, **params)


def _wrong_method(method: str) -> Problem:
    return Problem(405, "method_not_allowed", f"{method} is not possible here")


def _bind(address: Address) -> socket.socket:
    """A listening socket, bound now, so that its address is known and a clash is told at once."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"http cannot listen on {address}: {reason}") from None
    return bound
