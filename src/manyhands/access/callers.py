"""Permissions over HTTP: tokens, roles, and the read-only switch.

Other listeners with names and passwords verify them here as well.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from msgspec import Struct

from manyhands.config import Config, Role, Token, read_tokens_file
from manyhands.loggers import get_logger
from manyhands.web.envelope import Problem

_log = get_logger("manyhands.access")

# Headers that were verified, so that they are not decoded again for every request.
_KNOWN_MAX: Final = 1_000
_OPEN_PATHS: Final = ("/healthz", "/readyz")


class Caller(Struct, frozen=True):
    """The sender of a request."""

    name: str
    role: Role


# Without tokens, every caller is an operator.
ANYBODY: Final = Caller("", Role.OPERATOR)


class Access:
    """The tokens of a server. Without any, there is no authentication."""

    def __init__(self, tokens: Sequence[Token] = (), *, read_only: bool = False) -> None:
        self._callers = [
            (Caller(token.name, token.role), _digest(token.secret)) for token in tokens
        ]
        self._read_only = read_only
        self._known: dict[bytes, Caller] = {}
        self.denied: dict[str, int] = {"unauthorized": 0, "forbidden": 0}

    def verify(self, secret: str, name: str | None = None) -> Caller | None:
        """The owner of this token; with a name, only if it is the owner's.

        All tokens are compared, in constant time, so that timing reveals nothing.
        """
        digest = _digest(secret)
        found: Caller | None = None
        for caller, known in self._callers:
            same = hmac.compare_digest(known, digest)
            if same and name in (None, caller.name):
                found = caller
        return found

    def check(self, headers: dict[bytes, bytes], *, changes: bool, path: str = "") -> Caller:
        """The caller of a request, if it may: ``changes`` is to change something or take work."""
        caller = ANYBODY
        if self._callers and path not in _OPEN_PATHS:
            caller = self._caller(headers)
        if changes and not self.may_change(caller):
            raise self._forbidden(caller)
        return caller

    def may_change(self, caller: Caller) -> bool:
        """Whether a caller may do more than read."""
        return not (self._read_only or caller.role is Role.READ_ONLY)

    def _caller(self, headers: dict[bytes, bytes]) -> Caller:
        given = headers.get(b"authorization")
        if given is None:
            raise self._unauthorized("this server requires a token: Authorization: Bearer …")
        known = self._known.get(given)
        if known is not None:
            return known
        caller = self._read(given)
        if caller is None:
            raise self._unauthorized("this token is unknown")
        if len(self._known) < _KNOWN_MAX:
            self._known[given] = caller
        return caller

    def _read(self, given: bytes) -> Caller | None:
        """Bearer, or Basic with the token as the password; a user name, if given, must match."""
        scheme, _, rest = given.partition(b" ")
        try:
            if scheme.lower() == b"bearer":
                return self.verify(rest.strip().decode())
            if scheme.lower() == b"basic":
                user, _, secret = base64.b64decode(rest, validate=True).decode().partition(":")
                return self.verify(secret, user or None)
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


def access_of(config: Config) -> Access:
    """The access that the configuration sets. Raises ConfigError if the token file cannot be
    read.
    """
    tokens = list(config.tokens.each) if config.tokens is not None else []
    if config.tokens_file is not None:
        tokens += read_tokens_file(config.tokens_file)
    return Access(tokens, read_only=config.read_only)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
