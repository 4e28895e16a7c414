"""CORS: pages of the origins that the operator configured may use the APIs, and no others."""

from collections.abc import Sequence
from typing import Final

Headers = Sequence[tuple[bytes, bytes]]

_VARY: Final = ((b"vary", b"Origin"),)
_EXPOSED: Final = b"Location, Retry-After, Idempotent-Replayed"
# A page sends its token itself, in Authorization. That needs no Allow-Credentials, so a browser
# does not add the password that it was given for our own pages.
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range, X-Qless-Host",
    ),
    (b"access-control-max-age", b"600"),
)


class Cors:
    """The configured origins."""

    def __init__(self, origins: str | None = None) -> None:
        self.origins = frozenset(
            text.strip().encode() for text in (origins or "").split(",") if text.strip()
        )

    def headers(self, origin: bytes | None) -> Headers:
        """The headers of every answer, to a page of this origin or to a program, which has none."""
        if origin is None or origin not in self.origins:
            return _VARY
        return (
            *_VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
        )

    def preflight(self, method: str, headers: dict[bytes, bytes]) -> Headers | None:
        """The answer to a browser's preflight request, or None if this is not one."""
        if (
            method != "OPTIONS"
            or b"access-control-request-method" not in headers
            or headers.get(b"origin") not in self.origins
        ):
            return None
        return _PREFLIGHT
