"""Detects the Gearman dialect of a connection from its first bytes."""

from enum import Enum

from manyhands.protocols.gearman import draft_codec


class Dialect(Enum):
    """The dialect of a connection."""

    SHIPPED = "shipped"
    DRAFT = "draft"
    ADMIN_TEXT = "admin text"


def sniff(first: bytes) -> Dialect | None:
    """Decide from all that has arrived so far; None if that is not enough.

    Admin text and shipped packets may alternate, so the decoder of `wire.gearman` serves both. It
    also gets every unknown magic, and answers with the error that existing clients understand.
    """
    if draft_codec.MAGIC.startswith(first[: len(draft_codec.MAGIC)]):
        return Dialect.DRAFT if len(first) >= len(draft_codec.MAGIC) else None
    return Dialect.SHIPPED if first[0] == 0 else Dialect.ADMIN_TEXT
