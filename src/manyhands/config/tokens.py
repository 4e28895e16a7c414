"""Tokens: a secret, its owner, and what the owner may do."""

import re
from typing import Final

import msgspec

from manyhands.config.kinds import WrongValueError
from manyhands.model.roles import Role

_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_SECRET_LENGTH_MIN: Final = (
    16  # cannot be guessed; shorter ones tend to be passwords that people chose
)


# The roles of tokens, in the words of this option.
_WORDS: Final = {Role.OPERATE: "operator", Role.READ: "read-only"}
_ROLES: Final = {word: role for role, word in _WORDS.items()}


class Token(msgspec.Struct, frozen=True):
    """A secret and its owner."""

    role: Role
    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.role}, {self.name})"


class TokenList(msgspec.Struct, frozen=True):
    """Several tokens. Shown without their secrets."""

    each: tuple[Token, ...]

    def __str__(self) -> str:
        return ",".join(f"{_WORDS[token.role]}:{token.name}:…" for token in self.each)


class Tokens(msgspec.Struct, frozen=True):
    """Tokens as ROLE:NAME:SECRET, separated by commas or line ends, or `none`."""

    accepted: str = "operator:NAME:SECRET or read-only:NAME:SECRET, separated by commas, or none"

    def read(self, raw: object) -> TokenList | None:
        if raw == "none":
            return None
        if not isinstance(raw, str):
            raise WrongValueError("it is not text")
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
    # The error does not repeat the text, which may contain a secret.
    role, _, rest = text.partition(":")
    name, _, secret = rest.partition(":")
    if role not in _ROLES:
        raise WrongValueError("the role of a token must be operator or read-only")
    if not _TOKEN_NAME.fullmatch(name):
        raise WrongValueError(
            "a token's name may only have letters, digits, dots, hyphens, underscores, @"
        )
    if len(secret) < _SECRET_LENGTH_MIN or not secret.isprintable() or " " in secret:
        raise WrongValueError(
            f"the secret of {name} must have at least {_SECRET_LENGTH_MIN} characters and no spaces"
        )
    return Token(_ROLES[role], name, secret)
