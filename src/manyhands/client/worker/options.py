"""How a worker works."""

from typing import Final

from msgspec import Struct

from manyhands.client.options import CANCEL_GRACE_SECONDS

CONCURRENCY: Final = 16
GRACE_SECONDS: Final = 30.0
AHEAD_MAX: Final = 500
ORDERS: Final = ("priority_in_turns", "listed")


class CrewOptions(Struct, frozen=True, kw_only=True):
    """What one process of a worker is told."""

    name: str
    concurrency: int = CONCURRENCY
    ahead: int | None = None  # at most so many jobs ahead; None: by their run time
    queues: tuple[str, ...] = ()  # names and patterns; empty: all of the app
    order: str = ORDERS[0]
    cancel_grace: float = CANCEL_GRACE_SECONDS
    max_jobs: int | None = None
    max_memory: int | None = None  # bytes
