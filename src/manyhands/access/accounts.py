"""Accounts with name and password: those of a file, and HTTP tokens."""

import hmac
import ipaddress
import os
from pathlib import Path
from typing import Final

from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials

# The default account of AMQP clients. As with RabbitMQ, it is valid on this machine only.
_GUEST: Final = "guest"


class Accounts:
    """Users and their passwords. Without a file there is only a guest."""

    def __init__(self, file: Path | None, callers: Callers, *, guest_from_anywhere: bool) -> None:
        self._callers = callers
        self._key = os.urandom(32)
        passwords = {_GUEST: _GUEST} | ({} if file is None else _read(file))
        self._passwords = {user: self._hashed(text) for user, text in passwords.items()}
        self._nothing = self._hashed("")
        # With --insecure and without a file, the guest is the only account that can log in from
        # elsewhere.
        self._guest_from_anywhere = guest_from_anywhere and file is None

    def _hashed(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode("utf-8", "surrogatepass"), "sha256")

    def refusal_of(self, user: str, password: str, address: str) -> str | None:
        """The reason to refuse a login, or None. It does not say which of user and password is
        wrong.
        """
        known = self._passwords.get(user, self._nothing)
        # Compared even for unknown users, and as hashes of one length, so that timing reveals
        # nothing.
        same = hmac.compare_digest(known, self._hashed(password))
        if not same or user not in self._passwords:
            shown = Credentials(address=address, user=user, password=password)
            if self._callers.entries and self._callers.identify(shown) is not None:
                return None  # watching is open to every role
            return f"user '{user}' is unknown, or the password is wrong"
        if user == _GUEST and not (self._guest_from_anywhere or is_this_machine(address)):
            return f"user '{user}' may only log in from the server's own machine"
        return None


def is_this_machine(address: str) -> bool:
    """Whether a peer at this address is on the same machine."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _read(file: Path) -> dict[str, str]:
    """Lines USER:PASSWORD. Raises OSError with a sentence."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"the file of users {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OSError(f"the file of users {file} is not UTF-8 text") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            raise OSError(f"the file of users {file} line {number} is not USER:PASSWORD")
        if user in found:
            raise OSError(f"the file of users {file} line {number} names {user} again")
        found[user] = password
    return found
