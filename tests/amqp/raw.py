"""A client that can be wrong on purpose: it sends what it is told and shows what comes back."""

import contextlib
import socket
from collections.abc import Iterator

from pamqp import base, encode, frame
from pamqp.commands import Channel, Connection
from pamqp.heartbeat import Heartbeat

from manyhands.net.amqp import PROTOCOL_HEADER, FrameReader
from tests.e2e.serving import Served

SECONDS_MAX = 90.0
UNDERSTANDS = {"capabilities": {"authentication_failure_close": True}}


def amqplain(user: str, password: str) -> str:
    return encode.field_table({"LOGIN": user, "PASSWORD": password})[4:].decode()


class Raw:
    def __init__(self, served: Served) -> None:
        host, _, port = (served.addresses["amqp"] or "").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS_MAX)
        self._reader = FrameReader(1 << 20)
        self._frames: list[tuple[int, base.Frame]] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, method: base.Frame, channel: int = 0) -> None:
        self.send(frame.marshal(method, channel))

    def hear(self) -> tuple[int, base.Frame] | None:
        """The next frame; None: the server closed the connection."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def expect(self, kind: type) -> base.Frame:
        heard = self.hear()
        while heard is not None and isinstance(heard[1], Heartbeat):
            heard = self.hear()  # the server's; they come whenever it is time
        assert heard is not None, f"closed where {kind.name} was expected"
        assert isinstance(heard[1], kind), f"{heard[1].name} {dict(heard[1])}"
        return heard[1]

    def start(self) -> Connection.Start:
        self.send(PROTOCOL_HEADER)
        return self.expect(Connection.Start)

    def log_in(
        self, response: str = "\0guest\0guest", mechanism: str = "PLAIN", **properties
    ) -> None:
        self.say(Connection.StartOk(properties, mechanism, response, "en_US"))

    def open(self, heartbeat: int = 0) -> None:
        """All of the hand-shake, and channel 1."""
        self.start()
        self.log_in()
        tune = self.expect(Connection.Tune)
        self.say(Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat))
        self.say(Connection.Open("/"))
        self.expect(Connection.OpenOk)
        self.say(Channel.Open(), 1)
        self.expect(Channel.OpenOk)

    def expect_close(self, code: int) -> str:
        """The server says why and goes once that is answered."""
        close = self.expect(Connection.Close)
        assert close.reply_code == code, close.reply_text
        self.say(Connection.CloseOk())
        assert self.hear() is None
        return close.reply_text


@contextlib.contextmanager
def raw_client(served: Served) -> Iterator[Raw]:
    client = Raw(served)
    try:
        yield client
    finally:
        client.socket.close()
