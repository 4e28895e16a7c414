"""The Gearman protocol as it shipped: binary packets and admin text lines, in both directions.

A packet is a 12-byte header (magic, kind and body size, big-endian) and a body of arguments with a
NUL between them. A message whose first byte is not NUL is one line of admin text instead; the two
may alternate on one connection.

`Decoder.feed` returns plain pairs ``(kind, args)``. A kind above 0 is the packet type; the
pseudo-kinds from 0 down are:

* `ADMIN_LINE`: ``[line]``, without its line end;
* `FAULT`: ``[code, sentence]``, ready to be the arguments of an `ERROR`; the bad packet was skipped
  by its length and the stream goes on;
* `FATAL`: the same, but the peer must be closed after the answer, because framing is lost;
* `LINE_TOO_LONG`: as `FATAL`, to be answered with `encode_refusal` since the peer speaks text;
* `REPORT_TOO_LARGE`: ``[handle, sentence]``, a report on a job with more data than is allowed; it
  is skipped by its length, without being kept, and the stream goes on.

A pair costs 31 ns to build and 9 ns to take apart, a msgspec struct 50 and 14, a NamedTuple 207 and
38: with four packets in the life of a job, that decides it.

What is decoded is what is well formed: `ALL_YOURS` and `SUBMIT_JOB_SCHED`, which no server ever
carried out, come through like any other packet and are the session's to refuse.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

Message = tuple[int, list[bytes]]

REPORT_TOO_LARGE: Final = -4
LINE_TOO_LONG: Final = -3
FATAL: Final = -2
FAULT: Final = -1
ADMIN_LINE: Final = 0
CAN_DO: Final = 1
CANT_DO: Final = 2
RESET_ABILITIES: Final = 3
PRE_SLEEP: Final = 4
NOOP: Final = 6
SUBMIT_JOB: Final = 7
JOB_CREATED: Final = 8
GRAB_JOB: Final = 9
NO_JOB: Final = 10
JOB_ASSIGN: Final = 11
WORK_STATUS: Final = 12
WORK_COMPLETE: Final = 13
WORK_FAIL: Final = 14
GET_STATUS: Final = 15
ECHO_REQ: Final = 16
ECHO_RES: Final = 17
SUBMIT_JOB_BG: Final = 18
ERROR: Final = 19
STATUS_RES: Final = 20
SUBMIT_JOB_HIGH: Final = 21
SET_CLIENT_ID: Final = 22
CAN_DO_TIMEOUT: Final = 23
ALL_YOURS: Final = 24
WORK_EXCEPTION: Final = 25
OPTION_REQ: Final = 26
OPTION_RES: Final = 27
WORK_DATA: Final = 28
WORK_WARNING: Final = 29
GRAB_JOB_UNIQ: Final = 30
JOB_ASSIGN_UNIQ: Final = 31
SUBMIT_JOB_HIGH_BG: Final = 32
SUBMIT_JOB_LOW: Final = 33
SUBMIT_JOB_LOW_BG: Final = 34
SUBMIT_JOB_SCHED: Final = 35
SUBMIT_JOB_EPOCH: Final = 36
SUBMIT_REDUCE_JOB: Final = 37
SUBMIT_REDUCE_JOB_BACKGROUND: Final = 38
GRAB_JOB_ALL: Final = 39
JOB_ASSIGN_ALL: Final = 40
GET_STATUS_UNIQUE: Final = 41
STATUS_RES_UNIQUE: Final = 42
LAST_KIND: Final = 42

REQUEST: Final = "request"
RESPONSE: Final = "response"
EITHER: Final = "either"

# kind, name, direction, arguments. A last argument called "data" is opaque and keeps its NULs.
PACKETS: Final[tuple[tuple[int, str, str, str], ...]] = (
    (CAN_DO, "CAN_DO", REQUEST, "function"),
    (CANT_DO, "CANT_DO", REQUEST, "function"),
    (RESET_ABILITIES, "RESET_ABILITIES", REQUEST, ""),
    (PRE_SLEEP, "PRE_SLEEP", REQUEST, ""),
    (NOOP, "NOOP", RESPONSE, ""),
    (SUBMIT_JOB, "SUBMIT_JOB", REQUEST, "function unique data"),
    (JOB_CREATED, "JOB_CREATED", RESPONSE, "handle"),
    (GRAB_JOB, "GRAB_JOB", REQUEST, ""),
    (NO_JOB, "NO_JOB", RESPONSE, ""),
    (JOB_ASSIGN, "JOB_ASSIGN", RESPONSE, "handle function data"),
    (WORK_STATUS, "WORK_STATUS", EITHER, "handle numerator denominator"),
    (WORK_COMPLETE, "WORK_COMPLETE", EITHER, "handle data"),
    (WORK_FAIL, "WORK_FAIL", EITHER, "handle"),
    (GET_STATUS, "GET_STATUS", REQUEST, "handle"),
    (ECHO_REQ, "ECHO_REQ", REQUEST, "data"),
    (ECHO_RES, "ECHO_RES", RESPONSE, "data"),
    (SUBMIT_JOB_BG, "SUBMIT_JOB_BG", REQUEST, "function unique data"),
    (ERROR, "ERROR", RESPONSE, "code text"),
    (STATUS_RES, "STATUS_RES", RESPONSE, "handle known running numerator denominator"),
    (SUBMIT_JOB_HIGH, "SUBMIT_JOB_HIGH", REQUEST, "function unique data"),
    (SET_CLIENT_ID, "SET_CLIENT_ID", REQUEST, "id"),
    (CAN_DO_TIMEOUT, "CAN_DO_TIMEOUT", REQUEST, "function milliseconds"),
    (ALL_YOURS, "ALL_YOURS", REQUEST, ""),
    (WORK_EXCEPTION, "WORK_EXCEPTION", EITHER, "handle data"),
    (OPTION_REQ, "OPTION_REQ", REQUEST, "option"),
    (OPTION_RES, "OPTION_RES", RESPONSE, "option"),
    (WORK_DATA, "WORK_DATA", EITHER, "handle data"),
    (WORK_WARNING, "WORK_WARNING", EITHER, "handle data"),
    (GRAB_JOB_UNIQ, "GRAB_JOB_UNIQ", REQUEST, ""),
    (JOB_ASSIGN_UNIQ, "JOB_ASSIGN_UNIQ", RESPONSE, "handle function unique data"),
    (SUBMIT_JOB_HIGH_BG, "SUBMIT_JOB_HIGH_BG", REQUEST, "function unique data"),
    (SUBMIT_JOB_LOW, "SUBMIT_JOB_LOW", REQUEST, "function unique data"),
    (SUBMIT_JOB_LOW_BG, "SUBMIT_JOB_LOW_BG", REQUEST, "function unique data"),
    (
        SUBMIT_JOB_SCHED,
        "SUBMIT_JOB_SCHED",
        REQUEST,
        "function unique minute hour mday month wday data",
    ),
    (SUBMIT_JOB_EPOCH, "SUBMIT_JOB_EPOCH", REQUEST, "function unique epoch data"),
    (SUBMIT_REDUCE_JOB, "SUBMIT_REDUCE_JOB", REQUEST, "function unique reducer data"),
    (
        SUBMIT_REDUCE_JOB_BACKGROUND,
        "SUBMIT_REDUCE_JOB_BACKGROUND",
        REQUEST,
        "function unique reducer data",
    ),
    (GRAB_JOB_ALL, "GRAB_JOB_ALL", REQUEST, ""),
    (JOB_ASSIGN_ALL, "JOB_ASSIGN_ALL", RESPONSE, "handle function unique reducer data"),
    (GET_STATUS_UNIQUE, "GET_STATUS_UNIQUE", REQUEST, "unique"),
    (
        STATUS_RES_UNIQUE,
        "STATUS_RES_UNIQUE",
        RESPONSE,
        "unique known running numerator denominator waiting",
    ),
)

# The largest data of a packet, unless the listener sets another bound.
DEFAULT_MAX_DATA: Final = 64 * 1024 * 1024
# Besides data, a packet has a handle, or a function with a few more words.
_MAX_WORDS: Final = 4 * 1024
_MAX_HANDLE: Final = 63
# Room for `maxqueue` with the longest function name in use; the line end is not counted.
DEFAULT_MAX_LINE: Final = 8 * 1024

REQUEST_MAGIC: Final = b"\0REQ"
RESPONSE_MAGIC: Final = b"\0RES"
HEADER_SIZE: Final = 12

_MAGIC_SIZE: Final = 4
# Magic and kind are read as one number, so that one subtraction checks the first and yields the
# second: the kind is the distance from the magic's word.
_HEADER: Final = Struct(">QI")
_read_header: Final = _HEADER.unpack_from
_write_header: Final = _HEADER.pack
_REQUEST_WORD: Final = 0x0052455100000000
_RESPONSE_WORD: Final = 0x0052455300000000

# How the main loop treats a kind: a number from 0 up is how often to split the body, the last
# argument being opaque; these two are the exceptions.
_NO_ARGUMENTS: Final = -1
_WITH_CARE: Final = -2

_NAMES: Final[dict[int, str]] = {kind: name for kind, name, _, _ in PACKETS}
_COUNTS: Final[dict[int, int]] = {kind: len(args.split()) for kind, _, _, args in PACKETS}
_OPAQUE: Final = frozenset(kind for kind, _, _, args in PACKETS if args.endswith("data"))
_REDUCE: Final = frozenset((SUBMIT_REDUCE_JOB, SUBMIT_REDUCE_JOB_BACKGROUND))
_REPORTS: Final = frozenset((WORK_COMPLETE, WORK_EXCEPTION, WORK_DATA, WORK_WARNING))


def _kinds_in(direction: str) -> frozenset[int]:
    return frozenset(kind for kind, _, way, _ in PACKETS if way in (direction, EITHER))


def _treatments(direction: str) -> list[int]:
    """List by kind how the main loop decodes it when packets of `direction` are expected."""
    treatments = [_WITH_CARE] * (LAST_KIND + 1)
    for kind in _kinds_in(direction):
        if _COUNTS[kind] == 0:
            treatments[kind] = _NO_ARGUMENTS
        elif kind in _OPAQUE and kind not in _REDUCE:
            treatments[kind] = _COUNTS[kind] - 1
    return treatments


_REQUESTS: Final = _kinds_in(REQUEST)
_RESPONSES: Final = _kinds_in(RESPONSE)
_REQUEST_TREATMENTS: Final = _treatments(REQUEST)
_RESPONSE_TREATMENTS: Final = _treatments(RESPONSE)


def packet_name(kind: int) -> str:
    """Name a packet type for people, known or not."""
    return _NAMES.get(kind, f"packet type {kind}")


class Decoder:
    """Turns the bytes of one connection into messages; never raises for what a peer sends.

    It holds at most one incomplete message, so a peer can make it keep no more than `max_data` and
    a few words, and only by really sending that much. After a `FATAL` or `LINE_TOO_LONG`, which is
    always the last message, `closed` is true and further bytes are dropped.
    """

    def __init__(
        self,
        max_data: int = DEFAULT_MAX_DATA,
        max_line: int = DEFAULT_MAX_LINE,
        *,
        responses: bool = False,
    ) -> None:
        """Expect requests, as a server does, or `responses`, as a client or a worker does."""
        self.closed: bool = False
        self.met_text: bool = False  # at least one line of text
        self._max_data: int = max_data
        self._skipped: int = 0  # remaining bytes of a packet that is dropped
        self._max_line: int = max_line
        self._origin: int = _RESPONSE_WORD if responses else _REQUEST_WORD
        self._other_magic: bytes = REQUEST_MAGIC if responses else RESPONSE_MAGIC
        self._kinds: frozenset[int] = _RESPONSES if responses else _REQUESTS
        self._treatments: list[int] = _RESPONSE_TREATMENTS if responses else _REQUEST_TREATMENTS
        self._held: bytearray = bytearray()
        # How many bytes are needed before parsing is worth another try; 0: a line end is needed.
        self._needed: int = 0

    def feed(self, data: bytes) -> list[Message]:
        """Take what has arrived and return the messages it completes, in order."""
        messages: list[Message] = []
        if self._held or self.closed or self._skipped:
            data = self._resumed(data)
        at = 0
        end = len(data)
        origin, treatments, max_data = self._origin, self._treatments, self._max_data
        while at < end:
            body: int = at + HEADER_SIZE
            if body <= end:
                word, size = _read_header(data, at)
                kind: int = word - origin
                if 0 < kind <= LAST_KIND and size <= max_data:
                    after: int = body + size
                    if after > end:
                        self._needed = after - at
                        break
                    treatment = treatments[kind]
                    if treatment >= 0:
                        args = data[body:after].split(b"\0", treatment)
                        if len(args) > treatment:
                            messages.append((kind, args))
                        else:
                            messages.append(_too_few(kind, len(args)))
                    elif treatment == _NO_ARGUMENTS:
                        # Like gearmand, tolerate a body where none belongs.
                        messages.append((kind, []))
                    else:
                        messages.append(self._decode_with_care(kind, data[body:after]))
                    at = after
                    continue
            after = self._take_unusual(data, at, messages)
            if after == at:
                break
            at = after
        if at < end:
            self._held += data[at:]
        return messages

    def held_bytes(self) -> int:
        """Bytes held of an incomplete message."""
        return len(self._held)

    def is_amid_packet(self) -> bool:
        """Whether a packet has begun to arrive. Lines of text, which people type, do not count."""
        return self._skipped > 0 or (self._needed > 0 and len(self._held) > 0)

    def _resumed(self, data: bytes) -> bytes:
        """The bytes to parse, including those held; empty while they cannot complete a message or
        belong to a dropped packet.
        """
        count = min(self._skipped, len(data))
        if count:
            self._skipped -= count
            data = data[count:]
        if self.closed or (self._held and self._can_wait(data)):
            return b""
        data = b"".join((self._held, data))
        self._held.clear()
        return data

    def _can_wait(self, data: bytes) -> bool:
        """Add `data` to the held bytes if it cannot complete them; keeps a trickle linear."""
        have = len(self._held) + len(data)
        if self._needed:
            incomplete = have < self._needed
        else:
            incomplete = have <= self._max_line and b"\n" not in data
        if incomplete:
            self._held += data
        return incomplete

    def _take_unusual(self, data: bytes, at: int, messages: list[Message]) -> int:
        """Take a text line or an unusual packet, and return where it ends.

        Returns `at` if more bytes are needed, and the end of everything if the framing is lost.
        """
        if data[at] != 0:
            return self._take_line(data, at, messages)
        have = len(data) - at
        if have < _MAGIC_SIZE:
            self._needed = _MAGIC_SIZE
            return at
        magic = data[at : at + _MAGIC_SIZE]
        if magic not in (REQUEST_MAGIC, RESPONSE_MAGIC):
            self.closed = True
            messages.append((FATAL, [b"INVALID_MAGIC", b"Not the start of a Gearman packet"]))
            return len(data)
        if have < HEADER_SIZE:
            self._needed = HEADER_SIZE
            return at
        word, size = _read_header(data, at)
        kind: int = word & 0xFFFFFFFF
        if size > self._max_data:
            return self._take_large(data, at, magic, messages)
        whole: int = HEADER_SIZE + size
        if have < whole:
            self._needed = whole
            return at
        if magic == self._other_magic:
            sentence = f"{packet_name(kind)} came with the magic of the other direction"
            messages.append((FAULT, [b"INVALID_MAGIC", sentence.encode()]))
        else:
            messages.append(_unexpected(kind))
        return at + whole

    def _take_large(self, data: bytes, at: int, magic: bytes, messages: list[Message]) -> int:
        """Take a packet larger than the bound of its data: the excess may be other arguments."""
        word, size = _read_header(data, at)
        kind: int = word & 0xFFFFFFFF
        end: int = at + HEADER_SIZE + size
        expected = magic != self._other_magic and kind in self._kinds and kind in _OPAQUE
        if expected and kind in _REPORTS:
            words: int = HEADER_SIZE + _MAX_HANDLE + 1
            if len(data) - at < words:
                self._needed = words
                return at
            handle, nul, _ = data[at + HEADER_SIZE : at + words].partition(b"\0")
            excess = size - len(handle) - 1
            if nul and excess > self._max_data:
                sentence = self._describe_excess(kind, excess)
                messages.append((REPORT_TOO_LARGE, [handle, sentence]))
                self._skipped = max(0, end - len(data))
                return min(end, len(data))
        if not expected or size > self._max_data + _MAX_WORDS:
            self.closed = True
            messages.append((FATAL, [b"ARGUMENT_TOO_LARGE", self._describe_excess(kind, size)]))
            return len(data)
        if len(data) < end:
            self._needed = end - at
            return at
        message = self._decode_with_care(kind, data[at + HEADER_SIZE : end])
        if message[0] > 0 and len(message[1][-1]) > self._max_data:
            sentence = self._describe_excess(kind, len(message[1][-1]))
            message = FAULT, [b"ARGUMENT_TOO_LARGE", sentence]
        messages.append(message)
        return end

    def _take_line(self, data: bytes, at: int, messages: list[Message]) -> int:
        end = data.find(b"\n", at, at + self._max_line + 1)
        if end >= 0:
            self.met_text = True
            messages.append((ADMIN_LINE, [data[at:end].removesuffix(b"\r")]))
            return end + 1
        if len(data) - at > self._max_line:
            self.closed = True
            sentence = f"No line end within {self._max_line} bytes"
            messages.append((LINE_TOO_LONG, [b"LINE_TOO_LONG", sentence.encode()]))
            return len(data)
        self._needed = 0
        return at

    def _decode_with_care(self, kind: int, body: bytes) -> Message:
        """Decode any kind, including those whose last argument is not opaque data or that have two
        forms.
        """
        if kind not in self._kinds:
            return _unexpected(kind)
        count = _COUNTS[kind]
        args = body.split(b"\0", count - 1)
        if len(args) < count:
            return _too_few(kind, len(args))
        last = args[-1]
        if kind in _REDUCE:
            # The protocol document has function, unique, reducer, data; libgearman sends, and
            # gearmand demands, an aggregator before the data, which is always empty. So a NUL
            # right behind the reducer's own is that empty aggregator, and anything else is the
            # data. The price: data of the documented form that starts with a NUL loses it.
            args[-1] = last.removeprefix(b"\0")
        elif kind not in _OPAQUE and 0 in last:
            # Some libraries end even the last argument with a NUL, gearmand itself in WORK_FAIL.
            args[-1] = last.rstrip(b"\0")
            if 0 in args[-1]:
                sentence = f"{packet_name(kind)} has a NUL inside its last argument"
                return FAULT, [b"INVALID_PACKET", sentence.encode()]
        return kind, args

    def _describe_excess(self, kind: int, size: int) -> bytes:
        return f"{packet_name(kind)} of {size} bytes, the limit is {self._max_data}".encode()


def _too_few(kind: int, given: int) -> Message:
    sentence = f"{packet_name(kind)} needs {_COUNTS[kind]} arguments and has {given}"
    return FAULT, [b"INVALID_PACKET", sentence.encode()]


def _unexpected(kind: int) -> Message:
    return FAULT, [b"INVALID_COMMAND", f"{packet_name(kind)} is not expected here".encode()]


# Encoding. Only the last argument may contain NULs. For responses, the caller ensures that: names
# and keys come from packets that were split at NULs, or are checked.

NOOP_PACKET: Final = _write_header(_RESPONSE_WORD + NOOP, 0)
NO_JOB_PACKET: Final = _write_header(_RESPONSE_WORD + NO_JOB, 0)

# Ready-made headers by body size: writing the header is half the cost of a short packet.
_SHORT: Final = 512


def _ready_headers(kind: int) -> list[bytes]:
    return [_write_header(_RESPONSE_WORD + kind, size) for size in range(_SHORT)]


_JOB_CREATED_HEADERS: Final = _ready_headers(JOB_CREATED)
_JOB_ASSIGN_HEADERS: Final = _ready_headers(JOB_ASSIGN)
_JOB_ASSIGN_UNIQ_HEADERS: Final = _ready_headers(JOB_ASSIGN_UNIQ)
_WORK_COMPLETE_HEADERS: Final = _ready_headers(WORK_COMPLETE)


def encode_response(kind: int, *args: bytes) -> bytes:
    """Encode any packet to a client or a worker."""
    body = b"\0".join(args)
    return _write_header(_RESPONSE_WORD + kind, len(body)) + body


def encode_job_created(handle: bytes) -> bytes:
    """Encode JOB_CREATED; a handle is always short."""
    return _JOB_CREATED_HEADERS[len(handle)] + handle


def encode_job_assign(handle: bytes, function: bytes, data: bytes) -> bytes:
    """Encode JOB_ASSIGN."""
    body = b"\0".join((handle, function, data))
    size = len(body)
    if size < _SHORT:
        return _JOB_ASSIGN_HEADERS[size] + body
    return _write_header(_RESPONSE_WORD + JOB_ASSIGN, size) + body


def encode_job_assign_uniq(handle: bytes, function: bytes, unique: bytes, data: bytes) -> bytes:
    """Encode JOB_ASSIGN_UNIQ."""
    body = b"\0".join((handle, function, unique, data))
    size = len(body)
    if size < _SHORT:
        return _JOB_ASSIGN_UNIQ_HEADERS[size] + body
    return _write_header(_RESPONSE_WORD + JOB_ASSIGN_UNIQ, size) + body


def encode_work_complete(handle: bytes, data: bytes) -> bytes:
    """Encode WORK_COMPLETE on its way to a waiting client."""
    body = b"\0".join((handle, data))
    size = len(body)
    if size < _SHORT:
        return _WORK_COMPLETE_HEADERS[size] + body
    return _write_header(_RESPONSE_WORD + WORK_COMPLETE, size) + body


def encode_request(kind: int, *args: bytes) -> bytes:
    """Encode any packet to a server.

    Raises ValueError for what the decoder of a server would refuse or read differently. A reduce
    packet takes its four documented arguments and gets the empty aggregator that gearmand demands.
    """
    if kind not in _REQUESTS:
        raise ValueError(f"{packet_name(kind)} is not a request")
    if len(args) != _COUNTS[kind]:
        raise ValueError(f"{packet_name(kind)} takes {_COUNTS[kind]} arguments, not {len(args)}")
    for arg in args[:-1] if kind in _OPAQUE else args:
        if 0 in arg:
            raise ValueError(f"{packet_name(kind)}: only data may contain a NUL")
    if kind in _REDUCE:
        args = (*args[:-1], b"", args[-1])
    body = b"\0".join(args)
    return _write_header(_REQUEST_WORD + kind, len(body)) + body


# Admin text. gearmand ends a bare OK and its ERR lines with CRLF and all else with LF; existing
# monitoring tools rely on that.

OK_LINE: Final = b"OK\r\n"


def encode_line(line: bytes) -> bytes:
    """Encode a command to a server, or one line of an answer."""
    return line + b"\n"


def encode_value(value: bytes) -> bytes:
    """Encode the answer of `version`, `getpid` and `verbose`."""
    return b"OK " + value + b"\n"


def encode_listing(lines: Iterable[bytes]) -> bytes:
    """Encode the answer of `status`, `workers` and the like: lines, then a full stop alone."""
    return b"\n".join((*lines, b".\n"))


def encode_refusal(code: bytes, sentence: bytes = b"") -> bytes:
    """Encode an `ERR` line; the words of the sentence are joined by plus signs, as in gearmand."""
    if not sentence:
        return b"ERR " + code + b"\r\n"
    return b"ERR " + code + b" " + sentence.replace(b" ", b"+") + b"\r\n"
