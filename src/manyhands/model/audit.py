"""The audit log: one entry for each action of an operator."""

from msgspec import Struct


class AuditEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Written before it is done, and completed when its outcome is known."""

    seq: int
    at: int
    who: str = ""  # the token's name; empty without tokens
    role: str = ""
    address: str = ""
    protocol: str = ""  # over which it was requested; empty: by the server itself
    request: str = ""  # as it was received
    what: str
    target: str = ""  # the job, queue or setting; the first of several
    asked: int = 0  # how many changes were requested
    changed: int = 0
    refused: str = ""  # why, if something was
    known: bool = False  # False: the server stopped before the outcome was recorded
