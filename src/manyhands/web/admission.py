"""Who sends an HTTP request, and whether it may change anything."""

import base64
import binascii
from typing import Final

from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials
from manyhands.loggers import get_logger
from manyhands.model.roles import ANYBODY, Caller, Role
from manyhands.web.envelope import Problem

_log = get_logger("manyhands.access")

# Headers that were verified, so that they are not decoded again for every request.
_KNOWN_MAX: Final = 1_000
_OPEN_PATHS: Final = ("/healthz", "/readyz")


class Admission:
    """Identifies the callers of requests."""

    def __init__(self, callers: Callers, *, read_only: bool = False) -> None:
        self._callers = callers
        self._read_only = read_only
        self._known: dict[bytes, Caller] = {}
        self.denied: dict[str, int] = {"unauthorized": 0, "forbidden": 0}
        callers.subscribe(self._known.clear)

    def check(self, headers: dict[bytes, bytes], *, changes: bool, path: str = "") -> Caller:
        """The caller of a request, if it may: ``changes`` is to change something or take work."""
        caller = ANYBODY
        if (self._callers.entries or self._callers.asks_everyone) and path not in _OPEN_PATHS:
            caller = self._caller(headers)
        if changes and not self.may_change(caller):
            raise self._forbidden(caller)
        return caller

    def may_change(self, caller: Caller) -> bool:
        """Whether a caller may do more than read."""
        return not (self._read_only or caller.role is Role.READ)

    def _caller(self, headers: dict[bytes, bytes]) -> Caller:
        given = headers.get(b"authorization")
        if given is None:
            raise self._unauthorized("this server requires a token: Authorization: Bearer …")
        known = self._known.get(given)
        if known is not None:
            return known
        shown = self._read(given)
        caller = None if shown is None else self._callers.identify(shown)
        if caller is None:
            raise self._unauthorized("this token is unknown")
        if len(self._known) < _KNOWN_MAX:
            self._known[given] = caller
        return caller

    def _read(self, given: bytes) -> Credentials | None:
        """Bearer, or Basic with the token as the password; a user name, if given, must match."""
        scheme, _, rest = given.partition(b" ")
        try:
            if scheme.lower() == b"bearer":
                return Credentials(token=rest.strip().decode())
            if scheme.lower() == b"basic":
                user, _, secret = base64.b64decode(rest, validate=True).decode().partition(":")
                return Credentials(user=user, password=secret)
        except (binascii.Error, UnicodeDecodeError):
            return None
        raise self._unauthorized("Authorization must use Bearer or Basic")

    def _unauthorized(self, sentence: str) -> Problem:
        self._count("unauthorized")
        return Problem(401, "unauthorized", sentence)

    def _forbidden(self, caller: Caller) -> Problem:
        self._count("forbidden")
        if self._read_only:
            return Problem(403, "read_only", "this server is read-only over HTTP")
        return Problem(403, "read_only", f"{caller.name} has read-only access")

    def _count(self, what: str) -> None:
        count = self.denied[what] = self.denied[what] + 1
        # Log only the first, second, fourth, … one, so that a peer cannot fill the disk.
        if count & (count - 1) == 0:
            _log.warning("HTTP requests were denied", reason=what, count=count)
