"""How a worker works."""

from typing import Final

from msgspec import Struct

from manyhands.client.options import CANCEL_GRACE_SECONDS

CONCURRENCY: Final = 16
GRACE_SECONDS: Final = 30.0
AHEAD_MAX: Final = 500
ORDERS: Final = ("priority_in_turns", "listed")


class ChildOptions(Struct, frozen=True, kw_only=True):
    """What a supervisor sends to a child."""

    target: str
    crew: "CrewOptions"
    page: str  # the path of the shared page
    pipe: int  # the descriptor to report on
    grace: float = GRACE_SECONDS
    server: str | None = None
    log_format: str = "text"
    log_level: str = "info"
    is_lead: bool = False  # the first one shows the tasks and puts settings
    framework: str | None = None  # a module that is set up first, and prepares the app


class SupervisorOptions(Struct, frozen=True, kw_only=True):
    """The options of ``manyhands worker``."""

    target: str
    processes: int = 1
    concurrency: int = CONCURRENCY
    queues: tuple[str, ...] = ()
    order: str = ORDERS[0]
    ahead: int | None = None
    server: str | None = None
    name: str | None = None
    grace: float = GRACE_SECONDS
    max_jobs: int | None = None
    max_memory: int | None = None
    log_format: str = "text"
    log_level: str = "info"
    reload: bool = False
    metrics: str | None = None
    framework: str | None = None


class CrewOptions(Struct, frozen=True, kw_only=True):
    """The settings of one process of a worker."""

    name: str
    concurrency: int = CONCURRENCY
    ahead: int | None = None  # at most so many jobs ahead; None: by their run time
    queues: tuple[str, ...] = ()  # names and patterns; empty: all of the app
    order: str = ORDERS[0]
    cancel_grace: float = CANCEL_GRACE_SECONDS
    max_jobs: int | None = None
    max_memory: int | None = None  # bytes
