"""A WMP submitter to import: submit jobs, inspect them, wait for results, cancel them."""

import secrets
from typing import Final

import zmq
from msgspec import Struct

from manyhands.client.curve import encrypt
from manyhands.protocols.wmp.codec import (
    Command,
    Packet,
    Property,
    WireError,
    decimal,
    decode,
    encode,
    pack,
    unpack,
)

_ACCEPTED: Final = frozenset({b"200", b"300"})
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class UnreachableError(Exception):
    """The manager did not answer, or did not speak WMP. Its text is a sentence."""


class RefusedError(Exception):
    """The manager refused. Its text is a sentence."""


class Answer(Struct, frozen=True):
    """The state of a job."""

    job: str
    finished: bool
    state: str
    reason: str = ""
    progress: str = ""
    payload: bytes | None = None


class Submitter:
    """One connection to one manager; a request at a time."""

    def __init__(self, manager: str, seconds: float = 30.0) -> None:
        self._url = manager if "://" in manager else f"tcp://{manager}"
        self._milliseconds = int(seconds * 1000)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, b"\1" + secrets.token_bytes(16))
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            encrypt(self._socket)
            self._socket.connect(self._url)
        except zmq.ZMQError as error:
            self.close()
            raise UnreachableError(f"{self._url} is no address: {error.strerror}.") from None
        except OSError as error:
            self.close()
            raise UnreachableError(f"{error}.") from None

    def close(self) -> None:
        """Closes the connection."""
        self._context.destroy(linger=0)

    def submit(
        self,
        role: str,
        payload: bytes = b"",
        *,
        name: str = "",
        priority: float | None = None,
        delay_ms: int = 0,
        key: bytes | None = None,
        attempts: int | None = None,
    ) -> Answer:
        """Submits a job, which is on disk when this returns. With a ``key``, repeating it is
        safe.
        """
        properties: list[Property] = [(b"role", role.encode())]
        if name:
            properties.append((b"name", name.encode()))
        if priority is not None:
            properties.append((b"priority", repr(priority).encode()))
        if delay_ms:
            properties.append((b"delay", decimal(delay_ms)))
        if key is not None:
            properties.append((b"key", key))
        if attempts is not None:
            properties.append((b"attempts", decimal(attempts)))
        return self._ask(Command.SUBMIT, properties, payload or None)

    def fetch(self, job: str, wait_seconds: float = 0.0) -> Answer:
        """The state of a job; waits up to this long for it to finish."""
        properties = [(b"job", job.encode()), (b"wait", decimal(int(wait_seconds * 1000)))]
        return self._ask(Command.FETCH, properties, None, wait_seconds)

    def cancel(self, job: str) -> Answer:
        """Cancels a job; a finished one stays as it is."""
        return self._ask(Command.CLOSE, [(b"job", job.encode())], None)

    def _ask(
        self,
        command: Command,
        properties: list[Property],
        payload: bytes | None,
        patience: float = 0.0,
    ) -> Answer:
        request = secrets.token_hex(8).encode()
        control = encode(command, (b"request", request), *properties)
        self._socket.setsockopt(zmq.SNDTIMEO, self._milliseconds)
        self._socket.setsockopt(zmq.RCVTIMEO, self._milliseconds + int(patience * 1000))
        try:
            self._socket.send_multipart(pack(Packet((), (), control, payload)))
            while True:
                answer = self._read(request, self._socket.recv_multipart())
                if answer is not None:
                    return answer
        except zmq.Again:
            raise UnreachableError(f"{self._url} does not answer.") from None
        except WireError as error:
            raise UnreachableError(f"{self._url} does not speak WMP: {error}.") from None

    def _read(self, request: bytes, frames: list[bytes]) -> Answer | None:
        packet = unpack(frames)
        reply = decode(packet.control)
        if reply.command is not Command.REPLY or reply.get(b"request") != request:
            return None  # the answer to a request that timed out
        if reply.need(b"code") not in _ACCEPTED:
            raise RefusedError(reply.text(b"reason") or "the manager refused")
        state = reply.text(b"state") or ""
        return Answer(
            job=reply.text(b"job") or "",
            finished=state in _ENDED,
            state=state,
            reason=reply.text(b"reason") or "",
            progress=reply.text(b"progress") or "",
            payload=packet.payload,
        )
