"""Detects the Gearman dialect of a connection from its first bytes."""

from enum import Enum
from typing import Final

from manyhands.protocols.gearman import draft_codec


class Dialect(Enum):
    """The dialect of a connection."""

    SHIPPED = "shipped"
    DRAFT = "draft"
    ADMIN_TEXT = "admin text"
    HTTP = "HTTP"


# With these words, in capitals, browsers begin.
_METHODS: Final = tuple(
    b"%s " % name for name in (b"GET", b"HEAD", b"POST", b"OPTIONS", b"PUT", b"DELETE", b"PATCH")
)


def sniff(first: bytes) -> Dialect | None:
    """Decide from all that has arrived so far; None if that is not enough.

    Admin text and shipped packets may alternate, so the decoder of `wire.gearman` serves both. It
    also gets every unknown magic, and answers with the error that existing clients understand.

    HTTP is none of them: any web page can have a browser send a request here, whose body would be
    admin text or packets.
    """
    if draft_codec.MAGIC.startswith(first[: len(draft_codec.MAGIC)]):
        return Dialect.DRAFT if len(first) >= len(draft_codec.MAGIC) else None
    if first.startswith(_METHODS):
        return Dialect.HTTP
    if any(method.startswith(first) for method in _METHODS):
        return None
    return Dialect.SHIPPED if first[0] == 0 else Dialect.ADMIN_TEXT
