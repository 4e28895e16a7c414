"""Profiles: named servers in the configuration file, for commands that talk to a running one."""

from typing import Any

import msgspec

from manyhands.config.kinds import WrongValueError


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server, the token to use there, and the files for TLS."""

    url: str
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Profile({self.url})"


def read_profiles(table: Any) -> dict[str, Profile]:  # noqa: ANN401 - whatever the file has
    """The table `profiles` of the file. Raises WrongValueError."""
    if not isinstance(table, dict):
        raise WrongValueError("they are not a table")
    found = {name: _read_profile(name, keys) for name, keys in table.items()}
    for name, profile in found.items():
        if profile.token is not None and profile.token_file is not None:
            raise WrongValueError(f"the profile {name} has both a token and a token_file")
    return found


def _read_profile(name: str, keys: Any) -> Profile:  # noqa: ANN401 - whatever the file has
    if not isinstance(keys, dict):
        raise WrongValueError(f"the profile {name} is not a table")
    for key, value in keys.items():
        if key not in Profile.__struct_fields__:
            raise WrongValueError(f"the profile {name} has the unknown key {key}")
        if not isinstance(value, str):
            raise WrongValueError(f"{key} of the profile {name} is not text")
    if "url" not in keys:
        raise WrongValueError(f"the profile {name} has no url")
    return Profile(**keys)
