"""Tells libzmq which peers with CURVE may connect, by ZAP (RFC 27)."""

from collections.abc import Callable
from typing import Final

import zmq

from manyhands.loggers import get_logger

_log = get_logger("manyhands.device")

_PLACE: Final = "inproc://zeromq.zap.01"  # where libzmq asks
_VERSION: Final = b"1.0"
_KEY_BYTES: Final = 32
_FRAMES: Final = 7  # version, request, domain, address, routing id, mechanism, the public key

# Whether a peer with this public key may connect from this address.
Accepts = Callable[[bytes, str], bool]


class Doorkeeper:
    """The other end of libzmq's questions. Until one is answered, its peer waits."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", accepts: Accepts) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_PLACE)
        self._accepts = accepts
        self._refused_count = 0

    def answer(self) -> None:
        """Answers one question."""
        frames = self.socket.recv_multipart(zmq.DONTWAIT)
        request = frames[1] if len(frames) > 1 else b""
        accepted = self._is_accepted(frames)
        code, text = (b"200", b"OK") if accepted else (b"400", b"this key is not accepted")
        self.socket.send_multipart([_VERSION, request, code, text, b"", b""])

    def _is_accepted(self, frames: list[bytes]) -> bool:
        if len(frames) != _FRAMES or frames[0] != _VERSION or frames[5] != b"CURVE":
            return False
        address = frames[3].decode("ascii", "replace")
        if len(frames[6]) == _KEY_BYTES and self._accepts(frames[6], address):
            return True
        count = self._refused_count = self._refused_count + 1
        # Logs the first, second, fourth, … one, so that a peer cannot fill the disk.
        if count & (count - 1) == 0:
            _log.warning("a peer was refused: its key is not accepted", peer=address, count=count)
        return False
