"""Among several servers, a durable queue is served by one at a time: by the server that its cursor
names, for as long as that one lives.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from manyhands.model.events import Cursor


class Homes(Struct, frozen=True):
    """Where durable queues are served."""

    here: str  # the incarnation of this server
    cursors: Callable[[], Mapping[str, Cursor]]
    others: Callable[[], Mapping[str, str]]  # the names of the other living servers, by incarnation
