"""PLAIN of ZeroMQ (RFC 24): a user and a password, without encryption; on the server's side."""

from manyhands.net.zmtp import RefusedError, command, cut


class PlainHandshake:
    """One connection, from HELLO to READY."""

    def __init__(self) -> None:
        self.user = ""
        self.password = ""

    def take_hello(self, body: bytes) -> bytes:
        """Returns WELCOME. Whether the password is right is decided later, by others."""
        user, rest = cut(body, 1)
        password, rest = cut(rest, 1)
        if rest:
            raise RefusedError("a HELLO that is longer than it says", reply=True)
        try:
            self.user, self.password = user.decode(), password.decode()
        except UnicodeDecodeError:
            raise RefusedError("a user or a password that is not UTF-8", reply=True) from None
        return command(b"WELCOME", b"")

    def take_initiate(self, body: bytes) -> bytes:
        """Returns the peer's properties."""
        return body

    def ready(self, properties: bytes) -> bytes:
        """The command that ends the handshake."""
        return command(b"READY", properties)
