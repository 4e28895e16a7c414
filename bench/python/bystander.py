"""A Gearman client beside other work: how long it waits for each job to be accepted."""

import socket
import struct
import threading
import time

_SUBMIT_JOB_BG = 18
_JOB_CREATED = 8
_PAUSE_SECONDS = 0.005


class Bystander:
    """A thread that submits a background job every few milliseconds."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_over = threading.Event()
        self._milliseconds: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        body = b"bystander\0\0" + b"x" * 100
        packet = struct.pack(">4sII", b"\0REQ", _SUBMIT_JOB_BG, len(body)) + body
        while not self._is_over.wait(_PAUSE_SECONDS):
            began = time.perf_counter()
            self._socket.sendall(packet)
            kind, size = struct.unpack(">4xII", self._exactly(12))
            self._exactly(size)
            assert kind == _JOB_CREATED
            self._milliseconds.append((time.perf_counter() - began) * 1000)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the server closed the connection"
            data += more
        return data

    def stop(self) -> list[float]:
        """The milliseconds that each submit took."""
        self._is_over.set()
        self._thread.join()
        self._socket.close()
        return self._milliseconds
