"""The servers that work on one store, as pages and the API show them."""

import enum

from msgspec import Struct


class Drained(enum.Enum):
    """What became of an operator's wish that a server stops in order."""

    BEGUN = enum.auto()
    UNKNOWN = enum.auto()  # there is no server of that name
    UNREACHED = enum.auto()  # there is no link to it
    ALONE = enum.auto()  # no other server could take its place


class LinkFacts(Struct, frozen=True):
    """The link from one server to another."""

    to: str
    linked: bool
    round_trip_ms: float | None = None


class ServerFacts(Struct, frozen=True, kw_only=True):
    """One server, and what it last said of itself. None: it has not said that."""

    name: str
    address: str  # where the others reach it; empty if it is alone
    version: str
    state: str  # serving, parted, leaving; dead: about to be taken over
    since: int  # when it was started
    decides: bool  # about all queues; the others pass on what they are asked
    here: bool  # it is the one that answers
    linked: bool  # from the one that answers
    round_trip_ms: float | None = None  # over that link
    unfinished_jobs: int | None = None  # that it decides about
    decided_per_second: float | None = None  # commands
    forwarded_per_second: float | None = None
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    apply_lag_ms: int | None = None  # the age of the oldest commit that searches do not find yet
    clock_offset_ms: int | None = None  # its machine's clock is ahead of the database's by this
    links: tuple[LinkFacts, ...] = ()
