"""Who may come in by name and password: as a file says it, or by a token of HTTP."""

import hmac
import ipaddress
from pathlib import Path
from typing import Final

from manyhands.server.access import Access

# The account that every AMQP client tries by itself. It is good on this machine only, as with
# RabbitMQ.
_GUEST: Final = "guest"


class Accounts:
    """Users and their passwords. Without a file there is a guest, and nobody else."""

    def __init__(self, file: Path | None, access: Access, *, guest_from_anywhere: bool) -> None:
        self._access = access
        self._passwords = {_GUEST: _GUEST.encode()}
        if file is not None:
            self._passwords |= _read(file)
        # Somebody has to be able to come in where the operator said that anybody may.
        self._guest_from_anywhere = guest_from_anywhere and file is None

    def refusal_of(self, user: str, password: str, address: str) -> str | None:
        """Why somebody is not let in; None: welcome. Which of user and password is wrong is
        nobody's business.
        """
        known = self._passwords.get(user, b"")
        # Compared in any case, and in constant time.
        same = hmac.compare_digest(known, password.encode())
        if not same or user not in self._passwords:
            if self._access.verify(password, user) is not None:
                return None  # watching is open to every role
            return f"user '{user}' is not known with this password"
        if user == _GUEST and not (self._guest_from_anywhere or _is_this_machine(address)):
            return f"user '{user}' can only come from the server's own machine"
        return None


def _is_this_machine(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _read(file: Path) -> dict[str, bytes]:
    """Lines USER:PASSWORD. Raises OSError with a sentence."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"the file of users {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OSError(f"the file of users {file} is not UTF-8 text") from None
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            raise OSError(f"the file of users {file} line {number} is not USER:PASSWORD")
        if user in found:
            raise OSError(f"the file of users {file} line {number} names {user} again")
        found[user] = password.encode()
    return found
