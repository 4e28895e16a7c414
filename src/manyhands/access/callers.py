"""Callers: who a peer is, by what it shows.

Every listener identifies its peers here. What they may do is decided by ``access/rights.py``.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b, sha256
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from manyhands.access.credentials import Certificate, Credentials
from manyhands.model.roles import ANYBODY, Caller

# More than any secret that this server makes; what is longer is not even hashed.
SECRET_LENGTH_MAX: Final = 1_024
# The cost of a password: 16 MiB and some 50 ms. Tokens are random and need none of this.
_SCRYPT_N: Final = 1 << 14
_SCRYPT_R: Final = 8
_SCRYPT_P: Final = 1
_SALT_BYTES: Final = 16
# Passwords that were verified, so that the cost is paid once and not for every request.
_VERIFIED_MAX: Final = 1_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Password(Struct, frozen=True):
    """A password as it is stored."""

    salt: bytes
    digest: bytes
    n: int = _SCRYPT_N
    r: int = _SCRYPT_R
    p: int = _SCRYPT_P

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt:{self.n}:{self.r}:{self.p}:{salt}:{digest}"

    @property
    def cost(self) -> int:
        """How much work a comparison is."""
        return self.n * self.r * self.p

    def fits(self, given: str) -> bool:
        """Whether this is the password; compared in constant time."""
        return hmac.compare_digest(_scrypt(given, self), self.digest)


def new_password(given: str) -> Password:
    """The stored form of a password."""
    blank = Password(os.urandom(_SALT_BYTES), b"")
    return replace(blank, digest=_scrypt(given, blank))


def read_password(text: str) -> Password | None:
    """A stored password, or None if this is not one."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "scrypt" or not all(map(str.isdigit, parts[1:4])):
        return None
    n, r, p = map(int, parts[1:4])
    if not (2 <= n <= 1 << 20 and n & (n - 1) == 0 and 1 <= r <= 32 and 1 <= p <= 16):
        return None
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
    except binascii.Error:
        return None
    return Password(salt, digest, n, r, p) if len(digest) == 32 else None


def _scrypt(given: str, stored: Password) -> bytes:
    return hashlib.scrypt(
        given.encode("utf-8", "surrogatepass"),
        salt=stored.salt,
        n=stored.n,
        r=stored.r,
        p=stored.p,
        maxmem=256 * stored.n * stored.r,
        dklen=32,
    )


class PasswordCheck:
    """A password that was not verified before. `run` may take place in any thread."""

    def __init__(
        self, given: str, mark: bytes, entries: Sequence["Entry"], others: Sequence[Password]
    ) -> None:
        """The others are compared with for the time that it takes alone."""
        self.mark = mark
        self._given = given
        self._entries = entries
        self._others = others

    def run(self) -> "Entry | None":
        """The entry whose password this is. Takes 50 ms."""
        found: Entry | None = None
        for entry in self._entries:
            if entry.password is not None and entry.password.fits(self._given):
                found = entry
        for other in self._others:
            other.fits(self._given)
        return found


class Entry(Struct, frozen=True, kw_only=True):
    """A caller, and the one thing that it is identified by."""

    caller: Caller
    token: bytes | None = None  # its SHA-256
    password: Password | None = None
    certificate: str | None = None  # its subject or one of its names
    curve: bytes | None = None
    address: Network | None = None
    expires_at: int | None = None  # milliseconds, UTC


class Callers:
    """All callers that the server knows. Subscribers are called when they change."""

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        *,
        asks_everyone: bool = False,
        now: Callable[[], int] = lambda: 0,
    ) -> None:
        # Without an access file, listeners that have no tokens of their own trust their peers.
        self.asks_everyone = asks_everyone
        self._now = now
        self._take(map(_own, entries))
        # By a hash with a key of this process, which is worth nothing elsewhere.
        self._verified: dict[bytes, Entry] = {}
        self._key = os.urandom(32)
        self._subscribers: dict[Callable[[], None], None] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The present entries."""
        return self._entries

    def identify(self, credentials: Credentials) -> Caller | None:
        """The caller that shows these credentials, or None if it is not accepted. A wrong secret is
        never made up for by an address. May take 50 ms for a password not seen before.
        """
        found = self.recognise(credentials)
        return self.conclude(found, found.run()) if isinstance(found, PasswordCheck) else found

    def recognise(self, credentials: Credentials) -> "Caller | PasswordCheck | None":
        """The same, without the time that a password takes: that is left to the check."""
        if not self._entries and not self.asks_everyone:
            return ANYBODY
        found = self._find(credentials)
        if isinstance(found, PasswordCheck):
            return found
        if found is not None:
            return found.caller
        if self.asks_everyone or _shows_secret(credentials):
            return None
        return ANYBODY

    def conclude(self, check: PasswordCheck, found: Entry | None) -> Caller | None:
        """The caller that a check has found, unless the entries have changed meanwhile."""
        if found is None or not self.knows(found.caller) or self._still(found) is None:
            return None
        if len(self._verified) >= _VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[check.mark] = found
        return found.caller

    def knows(self, caller: Caller) -> bool:
        """Whether an earlier answer of ``identify`` still holds: False once its entry was removed,
        replaced by one with another secret, or expired.
        """
        if caller is ANYBODY:
            return not self.asks_everyone
        return id(caller) in self._known

    def subscribe(self, call: Callable[[], None]) -> Callable[[], None]:
        """Calls back after every change; returns a function that ends this."""
        self._subscribers[call] = None
        return lambda: self._subscribers.pop(call, None)

    def replace(self, entries: Sequence[Entry]) -> None:
        """Takes over new entries. Those that stay as they were keep their callers."""
        before = {entry: entry for entry in self._entries}
        self._take(before.get(entry) or _own(entry) for entry in entries)
        self._changed()

    def expire(self) -> None:
        """Removes callers whose time is over; called now and then."""
        now = self._now()
        left = tuple(entry for entry in self._entries if not _is_over(entry, now))
        if len(left) < len(self._entries):
            self._take(left)
            self._changed()

    def _changed(self) -> None:
        self._verified.clear()
        for call in tuple(self._subscribers):
            call()

    def _find(self, shown: Credentials) -> Entry | PasswordCheck | None:
        if shown.token is not None:
            return self._by_token(shown.token, None)
        if shown.user is not None or shown.password is not None:
            user, password = shown.user or "", shown.password or ""
            return self._by_token(password, user) or self._by_password(user, password)
        if shown.curve is not None:
            return self._by_curve(shown.curve)
        if shown.certificate is not None:
            found = self._by_certificate(shown.certificate)
            if found is not None:
                return found
        return None if shown.address is None else self._by_address(shown.address)

    def _by_token(self, secret: str, user: str | None) -> Entry | None:
        """All tokens are compared, in constant time, so that timing reveals nothing. A user name,
        if given, must be the owner's.
        """
        if not secret or len(secret) > SECRET_LENGTH_MAX:
            return None
        digest = token_digest(secret)
        found: Entry | None = None
        for entry in self._entries:
            same = entry.token is not None and hmac.compare_digest(entry.token, digest)
            if same and (not user or user == entry.caller.name):
                found = entry
        return self._still(found)

    def _by_password(self, user: str, password: str) -> Entry | PasswordCheck | None:
        if not user or not password or max(len(user), len(password)) > SECRET_LENGTH_MAX:
            return None
        if not self._passwords:
            return None
        mark = self._mark(user, password)
        known = self._verified.get(mark)
        if known is not None:
            return self._still(known)
        entries = self._passwords.get(user, ())
        return PasswordCheck(password, mark, entries, self._stand_ins[len(entries) :])

    def _mark(self, user: str, password: str) -> bytes:
        said = f"{len(user)} {user}{password}".encode("utf-8", "surrogatepass")
        return blake2b(said, digest_size=32, key=self._key).digest()

    def _take(self, entries: Iterable[Entry]) -> None:
        self._entries = tuple(entries)
        self._known = {id(entry.caller) for entry in self._entries}
        self._passwords: dict[str, list[Entry]] = {}
        for entry in self._entries:
            if entry.password is not None:
                self._passwords.setdefault(entry.caller.name, []).append(entry)
        # Every password is compared with as many hashes as any user has, so that timing does not
        # reveal which users exist. Those that nobody has cost as much as the dearest stored one:
        # all are alike, unless somebody stored hashes that were not made here.
        stored = [entry.password for entry in self._entries if entry.password is not None]
        dearest = max(stored, key=lambda password: password.cost, default=None)
        count = max(map(len, self._passwords.values()), default=0)
        self._stand_ins = () if dearest is None else (replace(dearest, digest=bytes(32)),) * count

    def _by_curve(self, key: bytes) -> Entry | None:
        found: Entry | None = None
        for entry in self._entries:
            if entry.curve is not None and hmac.compare_digest(entry.curve, key):
                found = entry
        return self._still(found)

    def _by_certificate(self, shown: Certificate) -> Entry | None:
        names = {shown.subject, *shown.names}
        return next(
            (
                entry
                for entry in self._entries
                if entry.certificate in names and self._still(entry) is not None
            ),
            None,
        )

    def _by_address(self, text: str) -> Entry | None:
        """The entry with the smallest network that holds the address."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return None
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        best: Entry | None = None
        for entry in self._entries:
            network = entry.address
            if network is None or address not in network or self._still(entry) is None:
                continue
            if best is None or (best.address and network.prefixlen > best.address.prefixlen):
                best = entry
        return best

    def _still(self, entry: Entry | None) -> Entry | None:
        return None if entry is None or _is_over(entry, self._now()) else entry


def _own(entry: Entry) -> Entry:
    """The entry with a caller of its own: callers are compared by identity, since equal ones may
    have different secrets.
    """
    return replace(entry, caller=replace(entry.caller))


def _is_over(entry: Entry, now: int) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now


def _shows_secret(shown: Credentials) -> bool:
    return any(part is not None for part in (shown.token, shown.user, shown.password, shown.curve))


def token_digest(secret: str) -> bytes:
    """What is stored of a token: it is random, so a plain hash is enough."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
