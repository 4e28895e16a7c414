"""The address a request comes from: that of the connection, or what a trusted proxy says."""

import ipaddress
import re
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_FOR: Final = re.compile(r'for="?(\[[^\]]+\]|[^";,\s:]+)', re.IGNORECASE)


class Proxies:
    """The proxies that are trusted to report the addresses of their clients."""

    def __init__(self, networks: str | None) -> None:
        self._networks = [
            ipaddress.ip_network(text.strip(), strict=False)
            for text in (networks or "").split(",")
            if text.strip()
        ]

    def include(self, address: Address | None) -> bool:
        """Whether this is one of them."""
        return address is not None and any(address in network for network in self._networks)


class Peer:
    """The other end of a connection."""

    __slots__ = ("_direct", "_proxies", "_trusted")

    def __init__(self, host: str, proxies: Proxies) -> None:
        found = _read(host)
        self._direct = host if found is None else str(found)
        self._proxies = proxies
        self._trusted = proxies.include(found)

    def address(self, headers: dict[bytes, bytes]) -> str:
        """The address of the client: the nearest in the chain of proxies that is not one of
        ours.
        """
        if not self._trusted:
            return self._direct
        named = headers.get(b"forwarded")
        if named is not None:
            chain = _FOR.findall(named.decode("latin-1"))
        else:
            chain = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
        nearest = self._direct
        for text in reversed(chain):
            found = _read(text.strip().strip("[]"))
            if found is None:
                break  # nothing before it can be trusted
            nearest = str(found)
            if not self._proxies.include(found):
                break
        return nearest


def _read(text: str) -> Address | None:
    """An address; an IPv4 address that is written as IPv6 becomes IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
