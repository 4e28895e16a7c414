"""A client's link to a dwork server: one request, one reply, with retries."""

from collections.abc import Callable
from typing import Final

import zmq

from manyhands.client.curve import encrypt
from manyhands.dispatch.clock import Clock
from manyhands.protocols.dwork.codec import Kind, Query, encode
from manyhands.protocols.dwork.reader import WireError, decode

# How often a waiting request checks whether it is still wanted.
_LOOK_MS: Final = 200


class UnreachableError(Exception):
    """The server did not answer, or did not speak dwork. Its text is a sentence."""


class Link:
    """A REQ socket that is recreated when a reply does not come in time."""

    def __init__(
        self, server: str, seconds: float, context: "zmq.Context[zmq.Socket[bytes]] | None" = None
    ) -> None:
        self.url = server if "://" in server else f"tcp://{server}"
        self._milliseconds = int(seconds * 1000)
        self._context = context or zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None

    def ask(self, query: Query, enough: Callable[[], bool] | None = None) -> Query:
        """The reply; raises UnreachableError if there is none in time, if the server goes away, or
        if ``enough`` says so.
        """
        if self._socket is None:
            self._socket = self._connect()
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        while monitor.poll(0):
            monitor.recv_multipart()  # it was away between two requests, which does not matter
        self._socket.send(encode(query))
        reply = self._await(monitor, self._milliseconds, enough)
        if reply is None:
            # A REQ socket that waits for a reply cannot be used for anything else.
            self.close()
            raise UnreachableError(f"{self.url} does not answer.")
        return reply

    def ask_patiently(self, query: Query) -> Query:
        """As `ask`, for requests that may be repeated: if the server goes away, or is about to,
        waits for its return and repeats the request.
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
                raise UnreachableError(f"{self.url} does not answer.")

    def _await(
        self,
        monitor: "zmq.Socket[bytes]",
        milliseconds: float,
        enough: Callable[[], bool] | None = None,
    ) -> Query | None:
        """The reply, or None if the connection was lost or the time is up."""
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        left = max(0, int(milliseconds))
        ready = dict(poller.poll(left if enough is None else min(left, _LOOK_MS)))
        while enough is not None and not ready and left > _LOOK_MS and not enough():
            left -= _LOOK_MS
            ready = dict(poller.poll(min(left, _LOOK_MS)))
        if self._socket not in ready:
            return None
        try:
            return decode(self._socket.recv())
        except WireError as error:
            raise UnreachableError(f"{self.url} does not speak dwork: {error}.") from None

    def _connect(self) -> "zmq.Socket[bytes]":
        request = self._context.socket(zmq.REQ)
        request.setsockopt(zmq.LINGER, 0)
        try:
            encrypt(request)
            request.connect(self.url)
        except zmq.ZMQError as error:
            request.close()
            raise UnreachableError(
                f"{self.url} is not an address of the form HOST:PORT ({error.strerror})."
            ) from None
        except OSError as error:
            request.close()
            raise UnreachableError(f"{error}.") from None
        return request

    def close(self) -> None:
        """Closes the socket; the next request makes another."""
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
            self._socket = None


def error_of(reply: Query) -> str | None:
    """The error in a reply, if there is one."""
    if reply.kind is Kind.ERROR:
        return reply.reason or "the server did not understand the request"
    if reply.kind is Kind.EXIT:
        return "the server is stopping"
    return None
