"""Tokens: a secret, whose it is, and what its holder may do."""

import enum
import re
from typing import Final

import msgspec

from manyhands.config.kinds import WrongValueError

_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_SECRET_LENGTH_MIN: Final = 16  # nobody guesses that; shorter ones are passwords that people chose


class Role(enum.StrEnum):
    """What the holder of a token may do."""

    OPERATOR = "operator"  # everything
    READ_ONLY = "read-only"  # look


class Token(msgspec.Struct, frozen=True):
    """A secret, and whose it is."""

    role: Role
    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.role}, {self.name})"


class TokenList(msgspec.Struct, frozen=True):
    """Several tokens. Shown without their secrets."""

    each: tuple[Token, ...]

    def __str__(self) -> str:
        return ",".join(f"{token.role}:{token.name}:…" for token in self.each)


class Tokens(msgspec.Struct, frozen=True):
    """Tokens as ROLE:NAME:SECRET with commas or on lines of their own, or `none`."""

    accepted: str = "operator:NAME:SECRET or read-only:NAME:SECRET, several with commas, or none"

    def read(self, raw: object) -> TokenList | None:
        if raw == "none":
            return None
        if not isinstance(raw, str):
            raise WrongValueError("it is not a text")
        parts = [part.strip() for part in re.split(r"[,\n]", raw)]
        found = [_token(part) for part in parts if part and not part.startswith("#")]
        names = [token.name for token in found]
        for name in names:
            if names.count(name) > 1:
                raise WrongValueError(f"there are two tokens for {name}")
        if not found:
            raise WrongValueError("there is no token in it")
        return TokenList(tuple(found))


def _token(text: str) -> Token:
    # What is wrong is told without the text itself, which may be somebody's secret.
    role, _, rest = text.partition(":")
    name, _, secret = rest.partition(":")
    if role not in tuple(Role):
        raise WrongValueError("the role of a token is operator or read-only")
    if not _TOKEN_NAME.fullmatch(name):
        raise WrongValueError("a token's name has letters, digits, dots, hyphens, underscores, @")
    if len(secret) < _SECRET_LENGTH_MIN or not secret.isprintable() or " " in secret:
        raise WrongValueError(
            f"the secret of {name} needs at least {_SECRET_LENGTH_MIN} characters, no spaces"
        )
    return Token(Role(role), name, secret)
