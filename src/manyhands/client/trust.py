"""TLS of a client: whom it trusts, and the certificate that it shows."""

import os
import ssl
from typing import Final

from msgspec import Struct

_CA_VARIABLE: Final = "MANYHANDS_CA"
_CERT_VARIABLE: Final = "MANYHANDS_CERT"
_KEY_VARIABLE: Final = "MANYHANDS_KEY"


class Trust(Struct, frozen=True):
    """Whom a client trusts, and the certificate that it shows, as paths of PEM files. Without
    these, those of the environment.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None  # that of the certificate, unless it is in the same file

    def context(self) -> ssl.SSLContext:
        """The system's trust store, or the given authority alone. Raises OSError with a
        sentence.
        """
        ca = self.ca or os.environ.get(_CA_VARIABLE) or None
        cert = self.cert or os.environ.get(_CERT_VARIABLE) or None
        key = self.key if self.cert else os.environ.get(_KEY_VARIABLE) or None
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise OSError(f"the certificates in {ca} cannot be used: {_reason(error)}") from None
        if cert is not None:
            try:
                # A key with a password would prompt for it on the terminal, and wait for ever.
                context.load_cert_chain(cert, key, password=lambda: b"")
            except OSError as error:
                shown = cert if key is None else f"{cert} and {key}"
                raise OSError(f"{shown} cannot be used for TLS: {_reason(error)}") from None
        return context


def trusting(ca: str | None, cert: str | tuple[str, str] | None) -> Trust:
    """``cert`` is a file with the certificate and its key, or one file of each."""
    return Trust(ca, *((cert,) if cert is None or isinstance(cert, str) else cert))


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
