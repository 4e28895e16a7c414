"""Which requests change something, in any API.

A request counts as a change unless it is known not to be one, so a new route is closed to read-only
callers by default, and appears in the audit log.
"""

import enum
from typing import Final

from manyhands.protocols.qless.paths import RESERVED, is_count, segments

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
# The ordinary requests of submitters and workers, by the first segments of the path.
_WORK: Final = frozenset(
    {
        *((b"api", name) for name in (b"submit", b"claim", b"renew", b"progress", b"partial")),
        *((b"api", name) for name in (b"complete", b"fail", b"release")),
        *((name,) for name in (b"get", b"add", b"heartbeat", b"hearbeat", b"complete", b"fail")),
        *((name,) for name in (b"retry", b"partial")),
    }
)
_TASKCLUSTER: Final = b"0.2.0"
_TAKING: Final = ((_TASKCLUSTER, b"claim-work"), (b"api", b"stream"))  # with any method


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
    if _takes_work(sent) or tuple(read[:2]) in _TAKING:
        return Change.WORK
    if method in _SAFE:
        return Change.NONE
    if any(tuple(parts[:count]) in _WORK for parts in (sent, read) for count in (1, 2)):
        return Change.WORK
    if read[0] == _TASKCLUSTER and read[-1] != b"cancel":
        return Change.WORK
    return Change.OPERATION


def _takes_work(parts: list[bytes]) -> bool:
    """Whether the path takes work, which GET may do too: by name, or in the short form
    QUEUE/COUNT.
    """
    first = parts[0]
    return first == b"get" or (
        len(parts) == 2 and is_count(parts[1]) and first.decode("latin-1") not in RESERVED
    )
