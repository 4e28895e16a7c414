"""Tells from the first bytes of a connection which of the Gearman dialects it speaks."""

from enum import Enum

from manyhands.wire import gearman_draft


class Dialect(Enum):
    """What a connection turned out to speak."""

    SHIPPED = "shipped"
    DRAFT = "draft"
    ADMIN_TEXT = "admin text"


def sniff(first: bytes) -> Dialect | None:
    """Decide from all that has arrived so far; None if that is not enough.

    Admin text and shipped packets may alternate, so the decoder of `wire.gearman` serves both. It
    also gets every unknown magic, and answers with the error that existing clients understand.
    """
    if gearman_draft.MAGIC.startswith(first[: len(gearman_draft.MAGIC)]):
        return Dialect.DRAFT if len(first) >= len(gearman_draft.MAGIC) else None
    return Dialect.SHIPPED if first[0] == 0 else Dialect.ADMIN_TEXT
