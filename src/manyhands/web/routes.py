"""Endpoints: what each takes and answers, and which handler serves a request.

The routes of all APIs are the only list of endpoints. Both the router and the OpenAPI document
(``web/openapi.py``) are built from them.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, MethodType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange

Handler = Callable[..., Awaitable[None]]  # takes the exchange and the path parameters
# `{name}` is one segment of a path; `{name:path}` may contain slashes.
PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")
JSON: Final = "application/json"


class Parameter(Struct, frozen=True):
    """A parameter in the query or in a header."""

    name: str
    kind: Any  # its type
    description: str = ""
    place: str = "query"


class Further(Struct, frozen=True):
    """An answer besides the usual one and the errors."""

    description: str
    answer: Any = None  # its type; None if it has no body
    media: str = JSON


class Route(Struct, frozen=True):
    """One endpoint. Types are structs, or anything else msgspec can describe; a tuple of types
    means any of them.
    """

    method: str
    path: str
    handler: Callable[..., Any]  # a method, bound when a server starts
    summary: str
    tag: str
    answer: Any  # the type of the whole body
    body: Any = None
    query: tuple[Parameter, ...] = ()
    media: str = JSON  # of the answer
    further: Mapping[int, Further] = MappingProxyType({})
    errors: Mapping[int, str] = MappingProxyType({})  # besides those of its API
    work: bool = False  # an ordinary request of a submitter or worker

    @property
    def template(self) -> str:
        """The path with its parameters, as in OpenAPI."""
        return PARAMETER.sub(r"{\1}", self.path)


def bind(routes: Iterable[Route], owner: object) -> Iterator[Route]:
    """The same routes, with their handlers bound to this object."""
    for route in routes:
        yield replace(route, handler=MethodType(route.handler, owner))


class Router:
    """Routes, tried in order. HEAD is GET without a body."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._paths: dict[str, dict[str, Handler]] = {}
        for route in routes:
            methods = self._paths.setdefault(route.path, {})
            methods[route.method] = route.handler
        for methods in self._paths.values():
            if "GET" in methods:
                methods["HEAD"] = methods["GET"]
        self._patterns = [
            (pattern(path), methods) for path, methods in self._paths.items() if "{" in path
        ]

    def knows(self, path: str) -> bool:
        """Whether a route has exactly this path."""
        return path in self._paths

    async def answer(self, exchange: Exchange) -> None:
        """Calls the handler of the first matching route."""
        path = exchange.path if len(exchange.path) == 1 else exchange.path.rstrip("/")
        allowed: dict[str, Handler] = {}
        for methods, params in self._find(path):
            handler = methods.get(exchange.method)
            if handler is not None:
                exchange.params = params
                await handler(exchange, *params.values())
                return
            allowed |= methods
        if allowed:
            await exchange.fail(wrong_method(exchange.method), ", ".join(allowed))
        else:
            sentence = f"there is nothing at {exchange.path[:200]}"
            await exchange.fail(Problem(404, "not_found", sentence))

    def _find(self, path: str) -> Iterator[tuple[dict[str, Handler], dict[str, str]]]:
        exact = self._paths.get(path)
        if exact is not None and "{" not in path:
            yield exact, {}
            return
        for known, methods in self._patterns:
            found = known.fullmatch(path)
            if found is not None:
                yield methods, found.groupdict()


def wrong_method(method: str) -> Problem:
    """The error for a path that exists, but not with this method."""
    return Problem(405, "method_not_allowed", f"{method} is not possible here")


def pattern(path: str) -> re.Pattern[str]:
    """What the path of a route matches."""
    parts: list[str] = []
    end = 0
    for found in PARAMETER.finditer(path):
        name, whole = found.groups()
        segment = ".+" if whole else "[^/]+"
        parts += (re.escape(path[end : found.start()]), f"(?P<{name}>{segment})")
        end = found.end()
    parts.append(re.escape(path[end:]))
    return re.compile("".join(parts), re.DOTALL)
