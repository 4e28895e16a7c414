"""Which requests change something, in any API, and which protocol they belong to.

A request counts as a change unless it is known not to be one, so a new route is closed to read-only
callers by default, and appears in the audit log unless it is declared to be work.
"""

import enum
from itertools import takewhile
from typing import Final

from manyhands.protocols.qless.paths import RESERVED, is_count, segments
from manyhands.protocols.taskcluster.messages import VERSION
from manyhands.site import routes as site
from manyhands.site.document import APIS
from manyhands.web.routes import Route, pattern

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_STREAM: Final = "/api/stream"


class Change(enum.Enum):
    """What a request may do."""

    NONE = "none"  # read only
    WORK = "work"  # jobs are submitted, worked on, and finished
    OPERATION = "operation"  # an operator intervenes


def kind_of(method: str, raw_path: bytes, path: str) -> Change:
    """What a request may do, by its method and its path, both as sent and as decoded: some routes
    use the one, some the other.
    """
    if not raw_path.startswith(b"/"):  # `OPTIONS *` has no path
        return Change.NONE if method in _SAFE else Change.OPERATION
    sent, read = segments(raw_path), segments(path.encode(errors="replace"))
    if _begins_like(_TAKING, sent, read) or _is_short_form(sent):
        return Change.WORK
    if method in _SAFE:
        return Change.NONE
    if _begins_like(_WORK, sent, read) and not _is_operation(path):
        return Change.WORK
    return Change.OPERATION


def protocol_of(path: str) -> str:
    """The protocol of a request, as the audit log names it. What no other owns is qless."""
    if path == _STREAM:
        return "stream"
    head = path.split("/", 2)[1] if path.startswith("/") else ""
    return "http" if path in _PATHS_OF_SITE else _PROTOCOLS.get(head, "qless")


_PATHS_OF_SITE: Final = {"*", *(route.path for route in site.API.routes)}
_PROTOCOLS: Final = {"api": "native", VERSION: "taskcluster", "ui": "ui"}

_Start = tuple[bytes, ...]


def _start(route: Route) -> _Start:
    """The segments of its path before the first parameter."""
    return tuple(takewhile(lambda segment: b"{" not in segment, segments(route.path.encode())))


_ROUTES: Final = tuple(route for api in APIS for route in api.routes)
# Paths that take work, which some clients do with GET, so with any method.
_TAKING: Final = {_start(route) for route in _ROUTES if route.work and route.method == "GET"} - {()}
_WORK: Final = {_start(route) for route in _ROUTES if route.work and route.method != "GET"}
_SEGMENTS_MAX: Final = max(map(len, _TAKING | _WORK))
# Operations whose paths begin like those of work.
_OPERATIONS: Final = tuple(
    pattern(route.path)
    for route in _ROUTES
    if not route.work and route.method not in _SAFE and _start(route) in _WORK
)


def _begins_like(starts: set[_Start], *paths: list[bytes]) -> bool:
    return any(
        tuple(parts[:count]) in starts for parts in paths for count in range(1, _SEGMENTS_MAX + 1)
    )


def _is_operation(path: str) -> bool:
    return any(known.fullmatch(path.rstrip("/")) for known in _OPERATIONS)


def _is_short_form(parts: list[bytes]) -> bool:
    """Whether the path takes work in the short form QUEUE/COUNT."""
    return len(parts) == 2 and is_count(parts[1]) and parts[0].decode("latin-1") not in RESERVED
