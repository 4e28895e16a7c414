"""ZMTP, the wire protocol of ZeroMQ, for one connection of a ROUTER: bytes to messages and back.

Versions 3.1, 3.0 and 2.0. A `Handshake` takes the first bytes, a `Decoder` all
that follow. Memory is used only for bytes that were really sent, and no byte is parsed again
because others were missing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

# Frames of one message. A longer one is dropped, and the next one is read as usual.
FRAMES_MAX: Final = 64
# READY with all its properties is the longest command that any peer needs.
COMMAND_BYTES_MAX: Final = 8 * 1024
IDENTITY_BYTES_MAX: Final = 255
_CONTEXT_BYTES_MAX: Final = 16  # of a PING
_SIZE_BYTES: Final = 8  # of a long frame
_GREETING_BYTES: Final = 64
_OLD_GREETING_BYTES: Final = 12

# What a ROUTER sends before it knows the version of its peer, and what it sends then.
GREETING: Final = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03"
_REST_OF_OLD_GREETING: Final = b"\x06" + b"\x00\x00"  # the kind of socket, and no identity
_COMPATIBLE: Final = (b"REQ", b"DEALER", b"ROUTER")
_OLD_COMPATIBLE: Final = (3, 5, 6)  # the same ones

_LAST: Final = tuple(bytes((0, size)) for size in range(256))
_MORE: Final = tuple(bytes((1, size)) for size in range(256))

# The usual message, both ways, is an empty delimiter and one frame of fewer bytes than there are
# heads. These are all the bytes before the body, by its size.
HEADS: Final = tuple(b"\x01\x00" + last for last in _LAST)
HEAD_BYTES: Final = 4


class RefusedError(ValueError):
    """This peer cannot be served. The text is a sentence for the log; ``answer`` is for the peer,
    if there is one that it would understand.
    """

    def __init__(self, sentence: str, *, reply: bool = False, code: str = "") -> None:
        """With ``code``, that is what the peer is sent."""
        super().__init__(sentence)
        text = (code or sentence).encode()[:255]
        self.answer = command(b"ERROR", _text(text)) if reply else b""


def command(name: bytes, body: bytes) -> bytes:
    """Encodes a command as a frame."""
    body = _text(name) + body
    if len(body) < 256:
        return b"".join((b"\x04", bytes((len(body),)), body))
    return b"".join((b"\x06", len(body).to_bytes(_SIZE_BYTES, "big"), body))


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def properties(socket_type: bytes, identity: bytes) -> bytes:
    """What a peer of that type says of itself."""
    pairs = ((b"Socket-Type", socket_type), (b"Identity", identity))
    return b"".join(_text(name) + len(value).to_bytes(4, "big") + value for name, value in pairs)


def ready(socket_type: bytes, identity: bytes) -> bytes:
    """The command that ends the handshake of a peer of that type."""
    return command(b"READY", properties(socket_type, identity))


_PROPERTIES: Final = properties(b"ROUTER", b"")
_READY: Final = command(b"READY", _PROPERTIES)
# It asks for an answer; the zero says that the peer need not watch for us in turn.
PING: Final = command(b"PING", b"\0\0")


def encode(route: Sequence[bytes], body: bytes) -> bytes:
    """Encodes a message. The first part of the route names the connection and is not sent."""
    size = len(body)
    if len(route) == 2 and not route[1] and size < 256:  # the usual case
        return HEADS[size] + body
    parts = []
    for frame in route[1:]:
        length = len(frame)
        parts.append(_MORE[length] if length < 256 else b"\x03" + length.to_bytes(8, "big"))
        parts.append(frame)
    parts.append(_LAST[size] if size < 256 else b"\x02" + size.to_bytes(8, "big"))
    parts.append(body)
    return b"".join(parts)


class Mechanism(Protocol):
    """How a peer shows who it is: the steps from HELLO to READY."""

    def take_hello(self, body: bytes) -> bytes:
        """Returns WELCOME, or raises `RefusedError`."""

    def take_initiate(self, body: bytes) -> bytes:
        """Returns the properties of the peer, or raises `RefusedError`."""

    def ready(self, properties: bytes) -> bytes:
        """READY with these properties of this side."""


# By the name of each in a greeting; NULL has no steps.
Mechanisms = Mapping[bytes, Callable[[], Mechanism] | None]
NULL_ONLY: Final[Mechanisms] = {b"NULL": None}


def _accept(_mechanism: Mechanism | None) -> bool:
    """Accepts every peer, at once."""
    return False


class Handshake:
    """The start of a connection. `GREETING` is sent at once; ``replies`` collects the rest.

    A peer chooses one of the mechanisms. ``admit`` is called when it has shown who it is, and
    raises `RefusedError` if it is not accepted. It returns whether the peer has to wait: then
    `admitted` is called once it is.
    """

    def __init__(
        self,
        mechanisms: Mechanisms = NULL_ONLY,
        admit: Callable[[Mechanism | None], bool] = _accept,
    ) -> None:
        self._mechanisms = mechanisms
        self._admit = admit
        self.mechanism: Mechanism | None = None  # None: that is NULL
        self.replies: list[bytes] = []
        self.identity = b""  # as the peer chose it
        self.has_commands = True  # version 2 has none
        self._held = bytearray()
        self._take: Callable[[], bool] | None = self._take_version

    def feed(self, data: bytes) -> bytes | None:
        """Takes received bytes. Returns what follows the handshake, or None while it goes on.
        Raises `RefusedError` if the peer cannot be served.
        """
        self._held += data
        while self._take is not None:
            if not self._held or not self._take():
                return None
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _take_version(self) -> bool:
        held = self._held
        if held[0] != 0xFF or (len(held) > 9 and held[9] != 0x7F):
            raise RefusedError("this is not ZMTP 2 or 3")
        if len(held) <= 10:
            return False
        if held[10] == 0:
            raise RefusedError("ZMTP 1 is not served")
        if held[10] < 3:
            if b"NULL" not in self._mechanisms:
                raise RefusedError("a version of ZMTP that has no encryption")
            self._admit(None)
            self.replies.append(_REST_OF_OLD_GREETING)
            self.has_commands = False
            self._take = self._take_old_rest
        else:
            self._take = self._take_rest
        return True

    def _take_old_rest(self) -> bool:
        held = self._held
        identity = _OLD_GREETING_BYTES + 2
        if len(held) < identity:
            return False
        if held[11] not in _OLD_COMPATIBLE:
            raise RefusedError(f"a socket of type {held[11]} cannot talk to a ROUTER")
        if held[12] != 0:
            raise RefusedError("an identity is one short frame")
        end = identity + held[13]
        if len(held) < end:
            return False
        self.identity = bytes(held[identity:end])
        del held[:end]
        self._take = None
        return True

    def _take_rest(self) -> bool:
        held = self._held
        if len(held) < _GREETING_BYTES:
            return False
        wanted = bytes(held[12:32]).rstrip(b"\0")
        offered = wanted if wanted in self._mechanisms else next(iter(self._mechanisms))
        as_server = b"\0" if offered == b"NULL" else b"\1"
        self.replies.append(b"\x01" + offered.ljust(20, b"\0") + as_server + bytes(31))
        if wanted != offered:
            # The peer sees the mechanism in our greeting, and would not understand an error.
            served = " and ".join(name.decode() for name in self._mechanisms)
            raise RefusedError(f"the mechanism {_shown(wanted)} is not served here, only {served}")
        del held[:_GREETING_BYTES]
        make = self._mechanisms[offered]
        if make is None:
            self._admit(None)
            self.replies.append(_READY)
            self._take = self._take_ready
        else:
            self.mechanism = make()
            self._take = self._take_hello
        return True

    def _next_command(self, expected: bytes) -> bytes | None:
        """What follows the name of the next command, or None if it is incomplete."""
        held = self._held
        if held[0] not in (4, 6):
            raise RefusedError(f"a message before {expected.decode()}", reply=True)
        start = 2 if held[0] == 4 else 1 + _SIZE_BYTES
        if len(held) < start:
            return None
        size = int.from_bytes(held[1:start], "big")
        if size > COMMAND_BYTES_MAX:
            raise RefusedError(f"a command of {size} bytes", reply=True)
        if len(held) < start + size:
            return None
        body = bytes(held[start : start + size])
        del held[: start + size]
        name, body = cut(body, 1)
        if name == b"ERROR":
            raise RefusedError(f"the peer does not want us: {_shown(cut(body, 1)[0])}")
        if name != expected:
            sentence = f"{expected.decode()} was expected, not {_shown(name)}"
            raise RefusedError(sentence, reply=True)
        return body

    def _take_hello(self) -> bool:
        body = self._next_command(b"HELLO")
        if body is None:
            return False
        assert self.mechanism is not None
        self.replies.append(self.mechanism.take_hello(body))
        self._take = self._take_initiate
        return True

    def _take_initiate(self) -> bool:
        body = self._next_command(b"INITIATE")
        if body is None:
            return False
        mechanism = self.mechanism
        assert mechanism is not None
        self._take_properties(mechanism.take_initiate(body))
        self._take = self._await_verdict
        if not self._admit(mechanism):
            self.admitted()
        return True

    def _await_verdict(self) -> bool:
        return False

    def admitted(self) -> None:
        """The peer is accepted. What it has sent meanwhile is taken with the next bytes."""
        assert self.mechanism is not None
        self.replies.append(self.mechanism.ready(_PROPERTIES))
        self._take = None

    def _take_ready(self) -> bool:
        body = self._next_command(b"READY")
        if body is None:
            return False
        self._take_properties(body)
        self._take = None
        return True

    def _take_properties(self, body: bytes) -> None:
        socket_type = b""
        while body:
            name, body = cut(body, 1)
            value, body = cut(body, 4)
            if name.lower() == b"socket-type":
                socket_type = value
            elif name.lower() == b"identity":
                self.identity = value
        if socket_type not in _COMPATIBLE:
            said = _shown(socket_type)
            raise RefusedError(f"a socket of type {said} cannot talk to a ROUTER", reply=True)
        if len(self.identity) > IDENTITY_BYTES_MAX:
            raise RefusedError(f"an identity of more than {IDENTITY_BYTES_MAX} bytes", reply=True)


def cut(body: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    """A value after its size, and the rest."""
    size = int.from_bytes(body[:size_bytes], "big")
    end = size_bytes + size
    if len(body) < end:
        raise RefusedError("a command that ends too early", reply=True)
    return body[size_bytes:end], body[end:]


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("ascii", "backslashreplace"))


class Decoder:
    """Splits bytes after the handshake into messages.

    A message is a list: the identity given here, then its frames. One with too many frames is
    returned as soon as that is known, as a list of the identity alone.
    """

    def __init__(self, identity: bytes, bytes_max: int, *, has_commands: bool = True) -> None:
        self.fault: str | None = None  # why nothing more is read from this peer: a sentence
        self.replies: list[bytes] = []  # to be sent to the peer at once
        self.pings_count = 0  # that the peer sent
        self._identity = identity
        self._bytes_max = bytes_max  # of a message
        self.has_commands = has_commands
        self._frames: list[bytes] = [identity]  # of an incomplete message; empty: dropped
        self._thrown_bytes = 0
        self._held = bytearray()
        self._needed = 2  # bytes needed before parsing again is worth it

    def is_at_rest(self) -> bool:
        """Whether the next bytes begin a message, because no incomplete one is held."""
        return not self._held and len(self._frames) == 1 and self.fault is None

    def held_bytes(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._held) + sum(map(len, self._frames))

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Takes received bytes and returns the messages they complete, in order."""
        messages: list[list[bytes]] = []
        fault = self.fault
        if fault is not None:
            return messages
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return messages
            data = bytes(self._held)
            self._held.clear()
        identity, frames = self._identity, self._frames
        at, size = 0, len(data)
        self._needed = 2
        while size - at >= 2:
            flags = data[at]
            if flags <= 1 and frames:
                end = at + 2 + data[at + 1]
                if end > size:
                    self._needed = end - at
                    break
                frames.append(data[at + 2 : end])
                at = end
                if not flags:
                    messages.append(frames)
                    frames = [identity]
                elif len(frames) > FRAMES_MAX:
                    messages.append([identity])
                    frames = []
                continue
            self._frames = frames
            after = self._take_unusual(data, at, messages)
            frames = self._frames
            if after == at:
                break
            at = after
        self._frames = frames
        if at < size and self.fault is None:
            self._held += data[at:]
        return messages

    def _take_unusual(self, data: bytes, at: int, messages: list[list[bytes]]) -> int:
        """Takes anything but a short frame of a message that is not dropped. Returns where it ends,
        or where it starts if it is incomplete or a fault.
        """
        flags = data[at]
        if flags & ~3:
            return self._take_command(data, at)
        if not self._frames:
            return self._throw_away(data, at)
        body = at + 1 + _SIZE_BYTES
        if len(data) < body:
            self._needed = 1 + _SIZE_BYTES
            return at
        frames = self._frames
        length = int.from_bytes(data[at + 1 : body], "big")
        if sum(map(len, frames)) + length > self._bytes_max + len(self._identity):
            self.fault = f"a message of more than {self._bytes_max} bytes"
            return at
        end = body + length
        if len(data) < end:
            self._needed = end - at
            return at
        frames.append(data[body:end])
        if not flags & 1:
            messages.append(frames)
            self._frames = [self._identity]
        elif len(frames) > FRAMES_MAX:
            messages.append([self._identity])
            self._frames = []
        return end

    def _throw_away(self, data: bytes, at: int) -> int:
        """Skips to the end of a message that is dropped, or of what has arrived of it."""
        size = len(data)
        while size - at >= 2 and data[at] <= 3:
            flags = data[at]
            if flags > 1:
                body = at + 1 + _SIZE_BYTES
                end = body + int.from_bytes(data[at + 1 : body], "big") if size >= body else body
            else:
                end = at + 2 + data[at + 1]
            if self._thrown_bytes + end - at > self._bytes_max:
                self.fault = f"a message of more than {self._bytes_max} bytes"
                break
            if end > size:
                self._needed = end - at
                break
            self._thrown_bytes += end - at
            at = end
            if not flags & 1:
                self._frames = [self._identity]
                self._thrown_bytes = 0
                break
        return at

    def _take_command(self, data: bytes, at: int) -> int:
        flags = data[at]
        if flags not in (4, 6) or not self.has_commands:
            self.fault = f"a frame with flags {flags:#04x}"
            return at
        body = at + (2 if flags == 4 else 1 + _SIZE_BYTES)
        if len(data) < body:
            self._needed = body - at
            return at
        size = int.from_bytes(data[at + 1 : body], "big")
        if size > COMMAND_BYTES_MAX:
            self.fault = f"a command of {size} bytes"
            return at
        end = body + size
        if len(data) < end:
            self._needed = end - at
            return at
        said = data[body:end]
        if said.startswith(b"\x04PING") and len(said) >= 7:
            # After the name come a time to live and the context, which the PONG repeats.
            self.replies.append(command(b"PONG", said[7 : 7 + _CONTEXT_BYTES_MAX]))
            self.pings_count += 1
        return end
