"""Who did what: one entry for each thing that an operator did."""

from msgspec import Struct


class AuditEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Written before it is done, and completed when its outcome is known."""

    seq: int
    at: int
    who: str = ""  # by which token; empty: nobody was asked
    role: str = ""
    address: str = ""
    request: str = ""  # as it came
    what: str
    target: str = ""  # the job, queue or setting; the first of several
    asked: int = 0  # how many were to be changed
    changed: int = 0
    refused: str = ""  # why, if something was
    known: bool = False  # the outcome; else the server stopped before it was
