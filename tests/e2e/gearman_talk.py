"""Both Gearman dialects over a real socket, for tests that want to see every packet."""

import contextlib
import socket
import time
from pathlib import Path

from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft_wire
from tests.e2e.serving import SECONDS_MAX, Served


def address_of(served: Served) -> tuple[str, int]:
    host, _, port = served.addresses["gearman"].rpartition(":")
    return host, int(port)


class Talk:
    """One connection. Every read waits for bytes, and no longer than ``SECONDS_MAX``."""

    def __init__(self, served: Served, **options) -> None:
        self.socket = socket.create_connection(address_of(served), timeout=SECONDS_MAX)
        for name, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self.messages: list = []
        self._decoder = self._make_decoder()

    def _make_decoder(self):
        return wire.Decoder(responses=True)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self):
        """The next message."""
        while not self.messages:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the server closed the connection")
            self.messages += self._decoder.feed(data)
        return self.messages.pop(0)

    def rest(self) -> bytes:
        """All bytes until the server closes the connection; a reset counts as that."""
        gathered = b""
        with contextlib.suppress(ConnectionError):
            while data := self.socket.recv(1 << 20):
                gathered += data
        return gathered

    def is_closed_by_server(self) -> bool:
        """Reads until the end; fails by timeout if there is none."""
        self.rest()
        return True


class GearmanTalk(Talk):
    """The shipped protocol."""

    def put(self, kind: int, *args: bytes) -> None:
        self.send(wire.encode_request(kind, *args))

    def tell(self, kind: int, *args: bytes):
        """A packet and the next answer."""
        self.put(kind, *args)
        return self.next()

    def submit(self, function: bytes, unique: bytes = b"", data: bytes = b"", kind=None) -> bytes:
        answer, args = self.tell(kind or wire.SUBMIT_JOB_BG, function, unique, data)
        assert answer == wire.JOB_CREATED, args
        return args[0]

    def can_do(self, *functions: bytes):
        for function in functions:
            self.put(wire.CAN_DO, function)
        return self

    def grab(self, kind: int = wire.GRAB_JOB_ALL) -> list[bytes]:
        answer, args = self.tell(kind)
        assert answer != wire.ERROR, args
        return args

    def is_alive(self) -> bool:
        return self.tell(wire.ECHO_REQ, b"alive") == (wire.ECHO_RES, [b"alive"])

    def text(self, line: bytes) -> list[bytes]:
        """An admin command and the lines of its listing."""
        self.send(line + b"\n")
        lines = []
        while (found := self.next()[1][0]) != b".":
            lines.append(found)
        return lines


class DraftTalk(Talk):
    """The first draft."""

    def _make_decoder(self):
        return draft_wire.Decoder(responses=True)

    def tell(self, packet):
        self.send(draft_wire.encode(packet))
        return self.next()

    def completion(self, handle: bytes):
        return self.tell(draft_wire.JobCompleteReq(handle))


def resident_bytes(served: Served) -> int:
    """Memory that the server really uses."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def wait_until(is_so, what: str) -> None:
    """Poll another process; ``what`` says what did not come."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
