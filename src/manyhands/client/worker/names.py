"""Names of workers."""

import secrets
import socket


def drawn_name(name: str | None) -> str:
    """P42: a given name or the host's, with a part of its own: a worker that is started again is
    another one, and hides nothing that the last one left behind.
    """
    return f"{name or socket.gethostname()}-{secrets.token_hex(4)}"
