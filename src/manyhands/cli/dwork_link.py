"""A dwork server as a client sees it: one request, one reply, and patience."""

import zmq

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
        """The reply; raises UnreachableError if there is none in time."""
        if self._socket is None:
            self._socket = self._connect()
        try:
            self._socket.send(encode(query))
            return decode(self._socket.recv())
        except zmq.Again:
            # A REQ socket that waits for a reply can do nothing else any more.
            self.close()
            raise UnreachableError(f"{self._url} does not answer.") from None
        except WireError as error:
            raise UnreachableError(f"{self._url} does not speak dwork: {error}.") from None

    def _connect(self) -> "zmq.Socket[bytes]":
        request = self._context.socket(zmq.REQ)
        request.setsockopt(zmq.LINGER, 0)
        request.setsockopt(zmq.RCVTIMEO, self._milliseconds)
        request.setsockopt(zmq.SNDTIMEO, self._milliseconds)
        try:
            request.connect(self._url)
        except zmq.ZMQError as error:
            request.close()
            raise UnreachableError(f"{self._url} is no address: {error.strerror}.") from None
        return request

    def close(self) -> None:
        """Let go of the socket; the next request makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def told_off(reply: Query) -> str | None:
    """What a reply says went wrong, if it does."""
    if reply.kind is Kind.ERROR:
        return reply.reason or "the server did not understand"
    if reply.kind is Kind.EXIT:
        return "the server is stopping"
    return None
