"""Which server a command talks to: flags, a profile of the configuration file, the environment."""

import os
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from manyhands.cli.stores import misuse
from manyhands.client.trust import Trust
from manyhands.config import (
    FILE_VARIABLE,
    PROFILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Profile,
    load_profiles,
)

DEFAULT_URL = "http://127.0.0.1:7700"
# The profile that is used unless another one is named.
_USUAL = "default"


class Destination(Struct, frozen=True):
    """A server's address, the token for it, and the files for TLS."""

    url: str
    token: str | None = None
    trust: Trust = Trust()

    def __repr__(self) -> str:
        return f"Destination({self.url})"


def destination(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: Path | None = None,
    profile: str | None = None,
) -> Destination:
    """The first that is given: a flag, a named profile, the environment, the profile `default`.

    The token of a profile is sent to the address of that profile only.
    """
    if url and profile:
        misuse("name a server with --url or with --profile, not with both.")
    if token and token_file:
        misuse("give the token with --token or with --token-file, not with both.")
    named = profile or ("" if url else os.environ.get(PROFILE_VARIABLE, ""))
    given = url or ("" if profile else os.environ.get(URL_VARIABLE, ""))
    found = None if given else _profile(named)
    own = token or (_read_token(token_file) if token_file is not None else None)
    if found is not None:
        kept = found.token or (
            _read_token(Path(found.token_file).expanduser()) if found.token_file else None
        )
        used = _checked(own or kept or os.environ.get(TOKEN_VARIABLE))
        return Destination(found.url, used, _trust(found))
    return Destination(given or DEFAULT_URL, _checked(own or os.environ.get(TOKEN_VARIABLE)))


def _trust(profile: Profile) -> Trust:
    files = (profile.ca, profile.cert, profile.key)
    return Trust(*(None if file is None else str(Path(file).expanduser()) for file in files))


def known_profiles() -> list[str]:
    """The names of all profiles."""
    file = _file()
    return list(load_profiles(file)) if file is not None else []


def _profile(name: str) -> Profile | None:
    file = _file()
    profiles = load_profiles(file) if file is not None else {}
    if name and name not in profiles:
        _no_profile(name, file, list(profiles))
    return profiles.get(name or _USUAL)


def _no_profile(name: str, file: Path | None, known: list[str]) -> NoReturn:
    if file is None:
        misuse(f"there is no profile {name}, because there is no file {_user_file()}.")
    has = f"it has {', '.join(known)}" if known else "it has none"
    misuse(f"there is no profile {name} in {file}; {has}.")


def _file() -> Path | None:
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    usual = _user_file()
    return usual if usual.exists() else None


def _user_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "manyhands" / "config.toml"


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        misuse(f"file {file} cannot be read: {reason}.")


def _checked(token: str | None) -> str | None:
    if token and not token.isprintable():
        misuse("a token is one line of printable characters.")
    return token or None
