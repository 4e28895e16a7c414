"""Who sends an HTTP request, and what it may do at all. Its commands are judged by the gate."""

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

from manyhands.access.callers import token_digest
from manyhands.access.credentials import Credentials
from manyhands.access.gate import NOBODY, Gate, Guard
from manyhands.access.logins import Failure, Logins
from manyhands.loggers import get_logger
from manyhands.model.roles import ANYBODY, Caller, Right, Role
from manyhands.web.envelope import Problem

_log = get_logger("manyhands.access")

# Headers that were verified, so that they are not decoded again for every request.
_KNOWN_MAX: Final = 1_000
SESSION_COOKIE: Final = "manyhands_session"
_SESSION_MS: Final = 12 * 3600 * 1000  # without a request
_SESSIONS_MAX: Final = 10_000
_OPEN_PATHS: Final = ("/healthz", "/readyz")
# What everybody may read who is let in at all: it shows no job.
_PLAIN_PATHS: Final = ("/", "/api/me", "/openapi.json", "/docs", *_OPEN_PATHS)


class WrongLoginError(Problem):
    """Credentials were shown, and they are wrong: that is on record already."""


class Admission:
    """Identifies the callers of requests."""

    def __init__(
        self,
        logins: Logins,
        gate: Gate,
        monotonic_ms: Callable[[], float],
        *,
        read_only: bool = False,
    ) -> None:
        self._logins = logins
        self._callers = logins.callers
        self._gate = gate
        self._read_only = read_only
        self._monotonic_ms = monotonic_ms
        self._known: dict[bytes, Caller] = {}  # by a hash with the key of this process
        self._key = os.urandom(32)
        # By the hash of the key, which is what is compared; and when each was last used.
        self._sessions: dict[bytes, tuple[Caller, float]] = {}
        self._guards: dict[tuple[int, str, str], Guard | None] = {}
        self.denied: dict[str, int] = {"unauthorized": 0, "forbidden": 0}
        self._callers.subscribe(self._forget)

    def _forget(self) -> None:
        self._known.clear()
        self._guards.clear()
        knows = self._callers.knows
        self._sessions = {key: kept for key, kept in self._sessions.items() if knows(kept[0])}

    @property
    def asks(self) -> bool:
        """Whether requests need credentials."""
        return bool(self._callers.entries) or self._callers.asks_everyone

    async def identified(
        self, headers: dict[bytes, bytes], near: Credentials, path: str = ""
    ) -> Caller:
        """The caller of a request; ``near`` is what its connection shows. Raises a Problem if it
        has none.
        """
        found = self.recognise(headers, near, path)
        if isinstance(found, Caller):
            return found
        return self._logged_in(headers, await self._logins.identified(found, "http"))

    def identify(
        self,
        headers: dict[bytes, bytes],
        near: Credentials,
        then: Callable[[Callable[[], Caller]], None],
    ) -> None:
        """The same with a callback, which is passed what returns the caller, or raises."""
        found = self.recognise(headers, near)
        if isinstance(found, Caller):
            then(lambda: found)
            return
        self._logins.identify(
            found, "http", lambda later: then(partial(self._logged_in, headers, later))
        )

    def check_changing(self, caller: Caller) -> None:
        """Raises a Problem unless the caller may do more than read."""
        if not self.may_change(caller):
            raise self._forbidden(caller)

    def check_reading(self, caller: Caller, path: str, *, limited: bool) -> None:
        """Raises a Problem unless the caller may read at this path. ``limited``: what is shown
        there is limited to jobs that the caller may see, even without the right to look. What a
        caller with queue patterns sees elsewhere is limited by ``Sources.of_caller``.
        """
        if caller.is_unrestricted or limited or path in _PLAIN_PATHS:
            return
        if not caller.has(Right.LOOK):
            raise self._not_allowed(
                f"{caller.name} has the role {caller.role}; this needs the role read or operate"
            )

    def record(
        self, found: Problem, caller: Caller, address: str, protocol: str, what: str, request: str
    ) -> None:
        """Records in the audit log that a request was not let in. Failed logins are recorded
        where they fail.
        """
        if not isinstance(found, WrongLoginError):
            who = NOBODY if found.status == 401 else caller
            self._gate.audit.refused(who, address, protocol, what, "", request)

    def check_operating(self, caller: Caller) -> None:
        """Raises a Problem unless the caller may do something that is not a command, to all
        queues.
        """
        if not caller.is_unrestricted:
            raise self._not_allowed(
                f"{caller.name} lacks the role operate for all queues, which this needs"
            )

    def _not_allowed(self, sentence: str) -> Problem:
        self._count("forbidden")
        return Problem(403, "not_allowed", sentence)

    def guard(self, caller: Caller, address: str, protocol: str) -> Guard | None:
        """What the commands of a request have to pass."""
        if caller.is_unrestricted:
            return None
        key = (id(caller), address, protocol)
        found = self._guards.get(key)
        if found is None:
            if len(self._guards) >= _KNOWN_MAX:
                self._guards.clear()
            found = self._guards[key] = self._gate.guard(caller, address, protocol)
        return found

    def is_said_by(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the head alone says who the caller is, or it does not matter."""
        return not self.asks or b"authorization" in headers

    def may_change(self, caller: Caller) -> bool:
        """Whether a caller may do more than read."""
        return not (self._read_only or caller.role is Role.READ)

    # Sessions of browsers.

    async def log_in(self, shown: Credentials) -> str | None:
        """Begins a session; returns its key, or None if the credentials are wrong."""
        caller = await self._logins.identified(shown, "ui")
        if not isinstance(caller, Caller):
            self._count("unauthorized")
            return None
        if len(self._sessions) >= _SESSIONS_MAX:
            oldest = min(self._sessions, key=lambda key: self._sessions[key][1])
            del self._sessions[oldest]
        key = secrets.token_urlsafe(32)
        self._sessions[token_digest(key)] = (caller, self._monotonic_ms())
        return key

    def log_out(self, headers: dict[bytes, bytes]) -> None:
        """Ends the session of a request."""
        self._sessions.pop(token_digest(session_key(headers)), None)

    def has_session(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a request belongs to a session."""
        return self._by_session(headers) is not None

    @property
    def has_login_page(self) -> bool:
        """Whether browsers are sent to the login page, instead of asking for a password."""
        return self._callers.asks_everyone

    def _by_session(self, headers: dict[bytes, bytes]) -> Caller | None:
        key = token_digest(session_key(headers))
        found = self._sessions.get(key)
        if found is None:
            return None
        caller, used_ms = found
        now = self._monotonic_ms()
        if now - used_ms > _SESSION_MS:
            del self._sessions[key]
            return None
        self._sessions[key] = (caller, now)
        return caller

    # Identifying.

    def recognise(
        self, headers: dict[bytes, bytes], near: Credentials, path: str = ""
    ) -> Caller | Credentials:
        """The caller, or what has to be checked to know it. Raises a Problem if nothing usable is
        shown.
        """
        if not self.asks or path in _OPEN_PATHS:
            return ANYBODY
        given = headers.get(b"authorization")
        if given is None:
            found = self._by_session(headers)
            if found is None and self._callers.asks_everyone:
                found = self._callers.identify(near)
            if found is None:
                raise self._unauthorized("this server requires a token: Authorization: Bearer …")
            return found
        known = self._known.get(self._mark(given))
        return known or self._read(given, near.address)

    def _logged_in(self, headers: dict[bytes, bytes], found: Caller | Failure) -> Caller:
        if found is Failure.BUSY:
            raise Problem(503, "busy", "too many passwords wait to be checked; try again")
        if not isinstance(found, Caller):
            self._count("unauthorized")
            raise WrongLoginError(401, "unauthorized", "this token or password is unknown")
        if self._callers.knows(found) and len(self._known) < _KNOWN_MAX:
            self._known[self._mark(headers[b"authorization"])] = found
        return found

    def _mark(self, given: bytes) -> bytes:
        return blake2b(given, digest_size=32, key=self._key).digest()

    def _read(self, given: bytes, address: str | None) -> Credentials:
        """Bearer, or Basic with the token as the password; a user name, if given, must match."""
        scheme, _, rest = given.partition(b" ")
        try:
            if scheme.lower() == b"bearer":
                return Credentials(address=address, token=rest.strip().decode())
            if scheme.lower() == b"basic":
                user, _, secret = base64.b64decode(rest, validate=True).decode().partition(":")
                return Credentials(address=address, user=user, password=secret)
        except (binascii.Error, UnicodeDecodeError):
            return Credentials(address=address, token="")
        raise self._unauthorized("Authorization must use Bearer or Basic; Hawk is not spoken")

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


def session_key(headers: dict[bytes, bytes]) -> str:
    """The key of a session, from the cookies of a request; empty if there is none."""
    for part in headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == SESSION_COOKIE.encode():
            return value.decode("latin-1")
    return ""
