"""TLS between servers of one cluster: whoever is called and whoever calls show a certificate of the
same authority. Names are not compared: what the authority signs is a server of the cluster.
"""

import ssl
from pathlib import Path
from typing import Any

from manyhands.dispatch.clock import Clock
from manyhands.net.tls import Tls, reason_of, trust


class MutualTls(Tls):
    """Implements ``Encryption`` of the cluster's network."""

    def __init__(self, clock: Clock, certificate: Path, key: Path, authority: Path) -> None:
        """Raises OSError with a sentence if the files cannot be used."""
        self._files = (certificate, key, authority)
        super().__init__(clock, certificate, key, authority, is_certificate_needed=True)

    def _read(self) -> tuple[ssl.SSLContext, dict[str, Any]]:
        called, shown = super()._read()
        certificate, key, authority = self._files
        calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        calling.minimum_version = ssl.TLSVersion.TLSv1_2
        calling.check_hostname = False
        calling.load_cert_chain(certificate, key, password=lambda: b"")
        trust(calling, authority)
        self.calling = calling
        return called, shown

    def reason_of(self, error: OSError) -> str:
        """Why a handshake failed, in words."""
        return reason_of(error)
