"""The servers that work on one store, as pages and the API show them."""

from msgspec import Struct


class ServerFacts(Struct, frozen=True):
    """One server."""

    name: str
    address: str  # where the others reach it; empty if it is alone
    version: str
    state: str  # serving, leaving; dead: about to be taken over
    since: int  # when it was started
    decides: bool  # about all queues; the others pass on what they are asked
    here: bool  # it is the one that answers
    linked: bool  # from the one that answers
    round_trip_ms: float | None = None  # over that link
