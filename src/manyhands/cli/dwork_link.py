"""A dwork server as a client sees it: one request, one reply, and patience."""

import zmq

from manyhands.server.clock import Clock
from manyhands.wire.dwork import Kind, Query, WireError, decode, encode


class UnreachableError(Exception):
    """The server did not answer, or not in dwork's words. Its text is a sentence."""


class Link:
    """A REQ socket that is made anew when a reply does not come in time."""

    def __init__(self, server: str, seconds: float) -> None:
        self._url = server if "://" in server else f"tcp://{server}"
        self._milliseconds = int(seconds * 1000)
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None

    def ask(self, query: Query) -> Query:
        """The reply; raises UnreachableError if there is none in time, or if the server goes away
        meanwhile.
        """
        if self._socket is None:
            self._socket = self._connect()
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        while monitor.poll(0):
            monitor.recv_multipart()  # it was away between two requests, which is no matter
        self._socket.send(encode(query))
        reply = self._await(monitor, self._milliseconds)
        if reply is None:
            # A REQ socket that waits for a reply can do nothing else any more.
            self.close()
            raise UnreachableError(f"{self._url} does not answer.")
        return reply

    def ask_patiently(self, query: Query) -> Query:
        """As `ask`, for what may be said twice: if the server goes away, or is about to, wait for
        its return and say it again.
        """
        clock = Clock()
        deadline_ms = clock.monotonic_ms() + self._milliseconds
        while True:
            if self._socket is None:
                self._socket = self._connect()
            monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._socket.send(encode(query))
            reply = self._await(monitor, deadline_ms - clock.monotonic_ms())
            if reply is not None and reply.kind is Kind.EXIT:
                left_ms = deadline_ms - clock.monotonic_ms()
                if not monitor.poll(max(0, int(left_ms))):
                    return reply
                reply = None
            if reply is not None:
                return reply
            self.close()
            if clock.monotonic_ms() >= deadline_ms:
                raise UnreachableError(f"{self._url} does not answer.")

    def _await(self, monitor: "zmq.Socket[bytes]", milliseconds: float) -> Query | None:
        """The reply; None: the connection was lost, or the time is up."""
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        ready = dict(poller.poll(max(0, int(milliseconds))))
        if self._socket not in ready:
            return None
        try:
            return decode(self._socket.recv())
        except WireError as error:
            raise UnreachableError(f"{self._url} does not speak dwork: {error}.") from None

    def _connect(self) -> "zmq.Socket[bytes]":
        request = self._context.socket(zmq.REQ)
        request.setsockopt(zmq.LINGER, 0)
        try:
            request.connect(self._url)
        except zmq.ZMQError as error:
            request.close()
            raise UnreachableError(
                f"{self._url} is no address of the form HOST:PORT ({error.strerror})."
            ) from None
        return request

    def close(self) -> None:
        """Let go of the socket; the next request makes another."""
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
            self._socket = None


def told_off(reply: Query) -> str | None:
    """What a reply says went wrong, if it does."""
    if reply.kind is Kind.ERROR:
        return reply.reason or "the server did not understand"
    if reply.kind is Kind.EXIT:
        return "the server is stopping"
    return None
