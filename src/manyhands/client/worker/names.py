"""Names of workers."""

import secrets
import socket
from typing import Final

NAME_BYTES_MAX: Final = 200  # and a part of its own, and what the server takes


def check_name(name: str | None) -> None:
    """Raises ValueError for a name that no server would take."""
    if name is not None and not (name.isprintable() and len(name.encode()) <= NAME_BYTES_MAX):
        raise ValueError(
            f"a worker's name has at most {NAME_BYTES_MAX} bytes, and no control characters"
        )


def drawn_name(name: str | None) -> str:
    """P42: a given name or the host's, with a part of its own: a worker that is started again is
    another one, and hides nothing that the last one left behind.
    """
    return f"{name or socket.gethostname()}-{secrets.token_hex(4)}"
