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
    try:
        found = msgspec.convert(table, dict[str, Profile])
    except msgspec.ValidationError as error:
        raise WrongValueError(str(error)[0].lower() + str(error)[1:]) from None
    for name, profile in found.items():
        if profile.token is not None and profile.token_file is not None:
            raise WrongValueError(f"the profile {name} has both a token and a token_file")
    return found
