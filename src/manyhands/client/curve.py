"""CURVE for sockets of libzmq: which server to trust and who this client is, by the environment."""

import os
from pathlib import Path
from typing import Final

import zmq

from manyhands.access.curve_keys import (
    as_text,
    new_keys,
    read_key,
    read_keys,
    read_public_key,
)

SERVER_VARIABLE: Final = "MANYHANDS_CURVE_SERVER"
KEY_VARIABLE: Final = "MANYHANDS_CURVE_CLIENT_KEY"


def encrypt(socket: "zmq.Socket[bytes]") -> None:
    """Makes a socket that will connect use CURVE, if the environment names the server's public key.
    Raises OSError with a sentence if the keys cannot be read.
    """
    server = os.environ.get(SERVER_VARIABLE)
    if not server:
        return
    own = os.environ.get(KEY_VARIABLE)
    keys = read_keys(Path(own)) if own else new_keys()
    try:
        server_key = read_key(server)
    except ValueError:
        server_key = read_public_key(Path(server))
    socket.setsockopt(zmq.CURVE_SERVERKEY, as_text(server_key).encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, as_text(keys.public).encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, as_text(keys.secret).encode())
