"""What the listener serves besides its APIs: the server itself, and its documents."""

from typing import Final

from manyhands.server.openapi.words import (
    FLAG,
    OBJECT,
    Api,
    Operation,
    array,
    envelope,
    maybe,
    record,
    text,
)

_INDEX: Final = record(
    "name version endpoints", name=text(), version=text(), endpoints=array(text())
)
_HEALTHY: Final = envelope(record("healthy failure", healthy=FLAG, failure=maybe(text())))
_READY: Final = envelope(record("ready missing", ready=FLAG, missing=array(text())))


def _page(path: str, summary: str, kind: str = "application/json") -> Operation:
    answer = OBJECT if kind == "application/json" else text()
    return Operation("get", path, summary, answer, "server", kind=kind)


API: Final = Api(
    "The server",
    (
        Operation("get", "/", "Where everything is.", envelope(_INDEX), "server"),
        Operation("get", "/healthz", "Whether it lives; 503 if not.", _HEALTHY, "server"),
        Operation("get", "/readyz", "Whether it accepts everybody; 503 if not.", _READY, "server"),
        _page("/metrics", "Metrics for Prometheus.", "text/plain"),
        _page("/openapi.json", "This document."),
        _page("/docs", "This document for people.", "text/html"),
    ),
    {},
    {},
    {"server": "The server"},
)
