"""The certificate of a peer, from what OpenSSL verified."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from manyhands.access.credentials import Certificate

# The names of RFC 4514 for the attributes of a subject; others keep the name that OpenSSL has.
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ESCAPED: Final = re.compile(r'[,+"\\<>;=]|^[ #]| $')


def certificate_of(verified: Mapping[str, Any] | None) -> Certificate | None:
    """What ``SSLObject.getpeercert`` returned; None if the peer has shown no certificate."""
    if not verified:
        return None
    # OpenSSL has the widest part first, RFC 4514 has it last.
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(verified.get("subject", ()))
    ]
    names = (name for _, name in verified.get("subjectAltName", ()) if isinstance(name, str))
    return Certificate(",".join(parts), tuple(names))


def has_expired(verified: Mapping[str, Any] | None, now: int) -> bool:
    """Whether a certificate was accepted once, and its time is over by now: OpenSSL does not look
    at it when a peer resumes a session.
    """
    if not verified:
        return False
    return ssl.cert_time_to_seconds(verified["notAfter"]) * 1000 < now


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: f"\\{found[0]}", value).replace("\0", "\\00")
