"""What the listener serves besides its APIs: health, metrics, and the API documents."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from manyhands import __version__
from manyhands.observe.metrics import Metrics
from manyhands.site.document_page import page
from manyhands.web.envelope import Answer, Failed, encode
from manyhands.web.exchange import Exchange
from manyhands.web.openapi import Api
from manyhands.web.routes import Further, Route, bind
from manyhands.web.sources import Sources


class Index(Struct, frozen=True):
    """Links to everything."""

    name: str
    version: str
    endpoints: list[str]


class Health(Struct, frozen=True):
    """Whether the server is alive."""

    healthy: bool
    failure: str | None


class Readiness(Struct, frozen=True):
    """Whether the server accepts all clients, and what is missing if not."""

    ready: bool
    missing: list[str]


class SiteRoutes:
    """The handlers. ``describe`` returns the document for a server with this id policy."""

    def __init__(
        self,
        sources: Sources,
        metrics: Metrics,
        apis: tuple[Api, ...],
        describe: Callable[[str], dict[str, Any]],
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._endpoints = [
            f"{route.method} {route.template}" for api in apis for route in api.routes
        ]
        self._describe = describe

    def routes(self) -> Iterator[Route]:
        """The routes to add to the listener."""
        return bind(API.routes, self)

    async def index(self, exchange: Exchange) -> None:
        """Links to everything; browsers are redirected to the pages."""
        if b"text/html" in exchange.headers.get(b"accept", b""):
            headers = [(b"location", b"/ui/"), (b"vary", b"accept")]
            await exchange.send_bytes(302, headers, b"")
            return
        await exchange.answer(Index("manyhands", __version__, self._endpoints))

    async def healthz(self, exchange: Exchange) -> None:
        """Whether the process is alive and its store has not failed."""
        failure = self._sources.condition.failure
        status = 200 if failure is None else 503
        await exchange.answer(Health(failure is None, failure), status=status)

    async def readyz(self, exchange: Exchange) -> None:
        """Whether every listener accepts, the disk answers, and no stop was requested."""
        sources = self._sources
        missing = [
            name
            for name, bound in sources.condition.addresses.items()
            if bound is None and getattr(sources.config, name) is not None
        ]
        if sources.condition.failure is not None:
            missing.append("store")
        if sources.dispatcher.stalled:
            missing.append("disk")
        if sources.dispatcher.draining:
            missing.append("draining")
        missing += [lack for look in sources.condition.lacks if (lack := look()) is not None]
        ready = sources.condition.is_ready and not missing
        await exchange.answer(Readiness(ready, missing), status=200 if ready else 503)

    async def metrics(self, exchange: Exchange) -> None:
        """Metrics for Prometheus."""
        caller = exchange.caller
        content_type, text = self._metrics.render(caller.may_use if caller.queues else None)
        headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
        await exchange.send_bytes(200, headers, text)

    async def openapi(self, exchange: Exchange) -> None:
        """The OpenAPI document."""
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await exchange.send_bytes(200, headers, encode(await self._document()))

    async def docs(self, exchange: Exchange) -> None:
        """The OpenAPI document for people, without scripts or external resources."""
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        ]
        await exchange.send_bytes(200, headers, page(await self._document()).encode())

    async def _document(self) -> dict[str, Any]:
        """Built in a thread, because the first time it takes as long as a hundred requests."""
        return await asyncio.to_thread(self._describe, self._sources.config.qless_id_policy)


def _page(path: str, handler: Any, summary: str, answer: Any, media: str) -> Route:  # noqa: ANN401
    return Route("GET", path, handler, summary, "server", answer, media=media)


def _probe(path: str, handler: Any, summary: str, answer: Any) -> Route:  # noqa: ANN401 - types
    further = {503: Further("It is not so.", (Answer[answer], Failed))}
    return Route("GET", path, handler, summary, "server", Answer[answer], further=further)


API: Final = Api(
    "The server",
    "Server",
    (
        Route(
            "GET",
            "/",
            SiteRoutes.index,
            "Where everything is.",
            "server",
            Answer[Index],
            further={302: Further("The way to the pages, for browsers.")},
        ),
        _probe("/healthz", SiteRoutes.healthz, "Whether it lives; 503 if not.", Health),
        _probe("/readyz", SiteRoutes.readyz, "Whether it accepts requests; 503 if not.", Readiness),
        _page("/metrics", SiteRoutes.metrics, "Metrics for Prometheus.", str, "text/plain"),
        _page("/openapi.json", SiteRoutes.openapi, "This document.", dict, "application/json"),
        _page("/docs", SiteRoutes.docs, "This document for people.", str, "text/html"),
    ),
    {"server": "The server"},
    {},
)
