"""The packet protocol of Gearman's first design note, in both directions.

A packet is a 9-byte header (4 bytes magic, 1 byte type, 4 bytes body length, big-endian) and a
body. The note leaves much open; settled here: the magic is ``\\0GM0`` both ways, job type 0 is the
one that waits, a `JobAssignRes` of length 0 is the "no, sorry" that has no packet of its own, and
type 0x0E reports errors. Errors 1 and 5 close, since the length cannot be trusted or is not worth
reading; after the others the body is skipped and the stream goes on.

Unlike the shipped protocol's, these bodies hold numbers and flags, so each packet is a value of its
own class. They are never sent by the ten thousand.
"""

from struct import Struct
from typing import Final, Self, get_args

import msgspec

MAGIC: Final = b"\0GM0"
HEADER_SIZE: Final = 9
DEFAULT_MAX_PACKET: Final = 64 * 1024 * 1024

# The codes of `Error`.
BAD_MAGIC: Final = 1
UNKNOWN_TYPE: Final = 2
WRONG_DIRECTION: Final = 3
MALFORMED_BODY: Final = 4
TOO_LARGE: Final = 5
REFUSED: Final = 6
SHUTTING_DOWN: Final = 7

# The job types of `JobCreateReq`.
SYNC_WAIT: Final = 0
ASYNC_HANDLE: Final = 1
ASYNC_THROW_AWAY: Final = 2

# Names appear in text tables, hence no spaces or control characters; duplicate keys do not.
MAX_NAME: Final = 255
MAX_DUPKEY: Final = 255
# Without a bound, a packet of maximum size could become thirty million names in memory.
MAX_NAMES: Final = 10_000
_NAME_BYTES: Final = bytes(range(0x21, 0x7F))

_HEADER: Final = Struct(">4sBI")
_RATIO: Final = Struct(">II")
_STATUS: Final = Struct(">III")
_COMPLETION: Final = Struct(">IB")


class _MalformedBodyError(Exception):
    """A body that its packet type does not allow; never leaves this module."""


class _Bodiless(msgspec.Struct, frozen=True):
    """A packet that is only a header."""

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if body:
            raise _MalformedBodyError("this packet has no body")
        return cls()

    def encode_body(self) -> bytes:
        return b""


class Noop(_Bodiless, frozen=True):
    """A wake-up or, from a worker, a sign of life."""


class WorkerConnect(msgspec.Struct, frozen=True):
    """All functions of a worker; replaces the previous list."""

    names: tuple[bytes, ...]

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        # "NUL-separated" may or may not end in a NUL, so empty elements are skipped.
        if body.count(b"\0") > MAX_NAMES:
            raise _MalformedBodyError(f"a worker names at most {MAX_NAMES} jobs")
        return cls(tuple(_checked_name(name) for name in body.split(b"\0") if name))

    def encode_body(self) -> bytes:
        return b"\0".join(self.names)


class WorkerDisconnect(_Bodiless, frozen=True):
    """A worker's goodbye."""


class WorkerSleep(_Bodiless, frozen=True):
    """A worker goes to sleep and wants a `Noop` when there is work."""


class JobCreateReq(msgspec.Struct, frozen=True):
    """Create a job. The flags byte is reserved: ignored when read, written as 0."""

    name: bytes
    dupkey: bytes
    job_type: int
    args: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        parts = body.split(b"\0", 2)
        if len(parts) < 3:
            raise _MalformedBodyError("a job name and a duplicate key must each end in a NUL")
        name, dupkey, rest = parts
        if len(dupkey) > MAX_DUPKEY:
            raise _MalformedBodyError(f"a duplicate key has at most {MAX_DUPKEY} bytes")
        if len(rest) < 2:
            raise _MalformedBodyError("the flags or the job type are missing")
        if rest[1] > ASYNC_THROW_AWAY:
            raise _MalformedBodyError("the job type is 0, 1 or 2")
        return cls(_checked_name(name), dupkey, rest[1], rest[2:])

    def encode_body(self) -> bytes:
        return b"\0".join((self.name, self.dupkey, bytes((0, self.job_type)) + self.args))


class JobCreateRes(msgspec.Struct, frozen=True):
    """The job is accepted; the handle is empty for a throw-away job."""

    handle: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        return cls(body)

    def encode_body(self) -> bytes:
        return self.handle


class JobAssignReq(_Bodiless, frozen=True):
    """A worker asks for a job."""


class JobAssignRes(msgspec.Struct, frozen=True):
    """A job to do. An empty name, the default, means that there is none."""

    name: bytes = b""
    args: bytes = b""

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if not body:
            return cls()
        name, separator, args = body.partition(b"\0")
        if not separator:
            raise _MalformedBodyError("a job name must end in a NUL")
        return cls(_checked_name(name), args)

    def encode_body(self) -> bytes:
        return self.name + b"\0" + self.args if self.name else b""


class JobStatusAnnounce(msgspec.Struct, frozen=True):
    """Progress of the worker's one job; 0 seconds left means not given."""

    numerator: int
    denominator: int
    seconds_left: int = 0

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        # The layout has a time remaining, the text calls it optional: both lengths are accepted.
        if len(body) == _RATIO.size:
            return cls(*_RATIO.unpack(body))
        if len(body) != _STATUS.size:
            raise _MalformedBodyError("an announced status takes 8 or 12 bytes")
        return cls(*_STATUS.unpack(body))

    def encode_body(self) -> bytes:
        return _STATUS.pack(self.numerator, self.denominator, self.seconds_left)


class JobStatusReq(msgspec.Struct, frozen=True):
    """A request for the progress of a job."""

    handle: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        return cls(body)

    def encode_body(self) -> bytes:
        return self.handle


class JobStatusRes(msgspec.Struct, frozen=True):
    """Progress of a job; 0 seconds left means unknown."""

    numerator: int
    denominator: int
    seconds_left: int = 0

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if len(body) != _STATUS.size:
            raise _MalformedBodyError("a status takes 12 bytes")
        return cls(*_STATUS.unpack(body))

    def encode_body(self) -> bytes:
        return _STATUS.pack(self.numerator, self.denominator, self.seconds_left)


class JobCompleteAnnounce(msgspec.Struct, frozen=True):
    """The end of the worker's one job; code 0 is success."""

    code: int
    data: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if not body:
            raise _MalformedBodyError("the result code is missing")
        return cls(body[0], body[1:])

    def encode_body(self) -> bytes:
        return bytes((self.code,)) + self.data


class JobCompleteReq(msgspec.Struct, frozen=True):
    """A request for the outcome of a job."""

    handle: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        return cls(body)

    def encode_body(self) -> bytes:
        return self.handle


class JobCompleteRes(msgspec.Struct, frozen=True):
    """The outcome of a job; 0 elapsed seconds means that it has not finished."""

    elapsed: int
    code: int
    data: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if len(body) < _COMPLETION.size:
            raise _MalformedBodyError("the status or the result code is missing")
        elapsed, code = _COMPLETION.unpack_from(body)
        return cls(elapsed, code, body[_COMPLETION.size :])

    def encode_body(self) -> bytes:
        return _COMPLETION.pack(self.elapsed, self.code) + self.data


class Error(msgspec.Struct, frozen=True):
    """The one packet that the note lacks: what was wrong, and with which type of packet."""

    code: int
    offending: int
    text: bytes

    @classmethod
    def decode_body(cls, body: bytes) -> Self:
        if len(body) < 2:
            raise _MalformedBodyError("the code or the offending type is missing")
        return cls(body[0], body[1], body[2:])

    def encode_body(self) -> bytes:
        return bytes((self.code, self.offending)) + self.text


class Fault(msgspec.Struct, frozen=True):
    """A peer's mistake: send it `error`, and close the connection if `closes`."""

    error: Error
    closes: bool


Request = (
    Noop
    | WorkerConnect
    | WorkerDisconnect
    | WorkerSleep
    | JobCreateReq
    | JobAssignReq
    | JobStatusAnnounce
    | JobStatusReq
    | JobCompleteAnnounce
    | JobCompleteReq
)
Response = Noop | JobCreateRes | JobAssignRes | JobStatusRes | JobCompleteRes | Error
Packet = Request | Response
Message = Packet | Fault

# The type byte of each packet.
TYPES: Final[dict[type[Packet], int]] = {
    Noop: 0x00,
    WorkerConnect: 0x01,
    WorkerDisconnect: 0x02,
    WorkerSleep: 0x03,
    JobCreateReq: 0x04,
    JobCreateRes: 0x05,
    JobAssignReq: 0x06,
    JobAssignRes: 0x07,
    JobStatusAnnounce: 0x08,
    JobStatusReq: 0x09,
    JobStatusRes: 0x0A,
    JobCompleteAnnounce: 0x0B,
    JobCompleteReq: 0x0C,
    JobCompleteRes: 0x0D,
    Error: 0x0E,
}
_REQUESTS: Final[dict[int, type[Packet]]] = {TYPES[packet]: packet for packet in get_args(Request)}
_RESPONSES: Final[dict[int, type[Packet]]] = {
    TYPES[packet]: packet for packet in get_args(Response)
}


def _checked_name(name: bytes) -> bytes:
    if not 1 <= len(name) <= MAX_NAME:
        raise _MalformedBodyError(f"a job name has 1 to {MAX_NAME} bytes")
    if name.translate(None, _NAME_BYTES):
        raise _MalformedBodyError("a job name is printable ASCII without spaces")
    return name


class Decoder:
    """Turns the bytes of one connection into messages; never raises for what a peer sends.

    It holds at most one incomplete packet. After a fault that closes, which is always the last
    message, `closed` is true and further bytes are dropped.
    """

    def __init__(self, max_packet: int = DEFAULT_MAX_PACKET, *, responses: bool = False) -> None:
        """Expect requests, as a server does, or `responses`, as an application or a worker does."""
        self.closed: bool = False
        self._max_packet: int = max_packet
        self._expected: dict[int, type[Packet]] = _RESPONSES if responses else _REQUESTS
        self._held: bytearray = bytearray()
        # How many bytes are needed before parsing is worth another try.
        self._needed: int = 0

    def feed(self, data: bytes) -> list[Message]:
        """Take what has arrived and return the messages it completes, in order."""
        messages: list[Message] = []
        if self.closed:
            return messages
        if self._held:
            if len(self._held) + len(data) < self._needed:
                self._held += data
                return messages
            data = b"".join((self._held, data))
            self._held.clear()
        at = 0
        while at < len(data):
            after = self._take(data, at, messages)
            if after == at:
                self._held += data[at:]
                break
            at = after
        return messages

    def held_bytes(self) -> int:
        """Bytes held of an incomplete packet."""
        return len(self._held)

    def _take(self, data: bytes, at: int, messages: list[Message]) -> int:
        """Take one packet and return where it ends.

        Returns `at` if more bytes are needed, and the end of everything if the framing is lost.
        """
        have = len(data) - at
        if have >= len(MAGIC) and not data.startswith(MAGIC, at):
            return self._close(data, messages, Error(BAD_MAGIC, 0, b"not the start of a packet"))
        if have < HEADER_SIZE:
            self._needed = len(MAGIC) if have < len(MAGIC) else HEADER_SIZE
            return at
        _, kind, size = _HEADER.unpack_from(data, at)
        if size > self._max_packet:
            text = f"a body of {size} bytes, the limit is {self._max_packet}"
            return self._close(data, messages, Error(TOO_LARGE, kind, text.encode()))
        whole: int = HEADER_SIZE + size
        if have < whole:
            self._needed = whole
            return at
        messages.append(self._decode(kind, data[at + HEADER_SIZE : at + whole]))
        return at + whole

    def _close(self, data: bytes, messages: list[Message], error: Error) -> int:
        self.closed = True
        messages.append(Fault(error, closes=True))
        return len(data)

    def _decode(self, kind: int, body: bytes) -> Message:
        packet = self._expected.get(kind)
        if packet is None:
            if kind in _REQUESTS or kind in _RESPONSES:
                error = Error(WRONG_DIRECTION, kind, b"not for this side to send")
            else:
                error = Error(UNKNOWN_TYPE, kind, b"unknown packet type")
            return Fault(error, closes=False)
        try:
            return packet.decode_body(body)
        except _MalformedBodyError as malformed:
            return Fault(Error(MALFORMED_BODY, kind, str(malformed).encode()), closes=False)


def encode(packet: Packet) -> bytes:
    """Encode a packet, whichever way it goes.

    Names, keys and numbers must be within the bounds of the protocol; that is up to the caller.
    """
    body = packet.encode_body()
    return _HEADER.pack(MAGIC, TYPES[type(packet)], len(body)) + body
