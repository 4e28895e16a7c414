"""What a peer shows to be identified. Connections fill it in; ``access/callers.py`` judges it."""

from msgspec import Struct


class Certificate(Struct, frozen=True):
    """A client certificate that was verified against the server's CA."""

    subject: str  # as in RFC 4514, such as CN=mailer,O=Example
    names: tuple[str, ...] = ()  # DNS names, URIs, addresses and e-mail addresses in it


class Credentials(Struct, frozen=True, kw_only=True):
    """Everything a connection knows about its peer. Shown without secrets."""

    address: str | None = None
    certificate: Certificate | None = None
    curve: bytes | None = None  # the public key that a CURVE handshake proved, 32 bytes
    user: str | None = None  # of PLAIN, Basic or SASL
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        shown = [f"address={self.address!r}"]
        if self.certificate is not None:
            shown.append(f"certificate={self.certificate.subject!r}")
        secrets = ("curve", "user", "password", "token")
        shown += [f"{name}=…" for name in secrets if getattr(self, name) is not None]
        return f"Credentials({', '.join(shown)})"
