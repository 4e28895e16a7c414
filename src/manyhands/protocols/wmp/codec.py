"""WMP's messages as frames: two stacks of hops, one control frame, at most one payload frame.

The control frame is a signature, a command and properties, each with its length in front, so that a
value may hold any bytes. A message is accepted as a whole or not at all.
"""

import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

HOPS_MAX: Final = 8  # in each stack; more is a loop or an abusive peer
HOP_BYTES_MAX: Final = 255  # the maximum of a ZeroMQ routing id
CONTROL_BYTES_MAX: Final = 64 * 1024
ECHO_BYTES_MAX: Final = 255  # values that a peer wants returned: a lock, a request
# All frames that a message can have: a peer, two full stacks with their ends, control, payload.
FRAMES_MAX: Final = 1 + 2 * (HOPS_MAX + 1) + 2

_SIGNATURE_BYTES: Final = 6
_HEAD_BYTES: Final = _SIGNATURE_BYTES + 1


class Malformation(enum.StrEnum):
    """What can be wrong with a message, for counting."""

    FRAMES = "frames"  # the ends of the stacks are missing, or there are too many frames
    HOPS = "hops"  # too many hops, or one that is too long
    CONTROL = "control"  # too short or too long for a control frame
    SIGNATURE = "signature"  # not of this protocol, or of the other side
    COMMAND = "command"  # unknown
    PROPERTY = "property"  # cut off, without a name, or not ASCII
    MISSING = "missing"  # a required property
    VALUE = "value"  # an invalid property
    PAYLOAD = "payload"  # where none belongs


class WireError(ValueError):
    """Not a message of this protocol. Its text is a sentence for operators."""

    def __init__(self, kind: Malformation, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Command(enum.IntEnum):
    """The commands. From 17 on: the companion commands of submitters."""

    READY = 0x01
    WAKE = 0x02
    GIVE = 0x03
    TAKE = 0x04
    NO = 0x05
    DONE = 0x06
    STATUS = 0x07
    CANCEL = 0x08
    SUBMIT = 0x11
    REPLY = 0x12
    FETCH = 0x13
    CLOSE = 0x14


WORKER: Final = b"WMPW01"
MANAGER: Final = b"WMPM01"
CLIENT: Final = b"WMPC01"

SIGNATURE_OF: Final[dict[Command, bytes]] = {
    Command.READY: WORKER,
    Command.WAKE: MANAGER,
    Command.GIVE: WORKER,
    Command.TAKE: MANAGER,
    Command.NO: MANAGER,
    Command.DONE: WORKER,
    Command.STATUS: WORKER,
    Command.CANCEL: MANAGER,
    Command.SUBMIT: CLIENT,
    Command.REPLY: CLIENT,
    Command.FETCH: CLIENT,
    Command.CLOSE: CLIENT,
}
_COMMANDS: Final = {(SIGNATURE_OF[command] + bytes((command,))): command for command in Command}
_HEADS: Final = {command: head for head, command in _COMMANDS.items()}
_SIGNATURES: Final = frozenset(SIGNATURE_OF.values())

Path = tuple[bytes, ...]  # hops, the next one first
Property = tuple[bytes, bytes]


class Packet(Struct, frozen=True, gc=False):
    """A parsed message: remaining hops, hops back, and content."""

    route: Path
    trail: Path
    control: bytes
    payload: bytes | None = None


def unpack(frames: Sequence[bytes]) -> Packet:
    """Parses a message without the frame that a ROUTER puts in front."""
    # Nearly every message has two empty frames in front, and one or two others.
    count = len(frames)
    if 3 <= count <= 4 and not frames[0] and not frames[1]:
        return Packet((), (), frames[2], frames[3] if count == 4 else None)
    route, at = _stack(frames, 0)
    trail, at = _stack(frames, at)
    if not 1 <= count - at <= 2:
        sentence = "after the stacks come one control frame and at most one payload"
        raise WireError(Malformation.FRAMES, sentence)
    return Packet(route, trail, frames[at], frames[at + 1] if count - at == 2 else None)


def _stack(frames: Sequence[bytes], start: int) -> tuple[Path, int]:
    """The hops up to the next empty frame, and the index behind it."""
    try:
        end = frames.index(b"", start)
    except ValueError:
        raise WireError(Malformation.FRAMES, "a stack of hops has no end") from None
    hops = tuple(frames[start:end])
    if len(hops) > HOPS_MAX or any(len(hop) > HOP_BYTES_MAX for hop in hops):
        raise WireError(Malformation.HOPS, f"more than {HOPS_MAX} hops, or one too long")
    return hops, end + 1


def pack(packet: Packet) -> list[bytes]:
    """The frames of a message."""
    frames = [*packet.route, b"", *packet.trail, b"", packet.control]
    if packet.payload is not None:
        frames.append(packet.payload)
    return frames


def signature_of(control: bytes) -> bytes:
    """The sender's signature, which is all that a device reads. Raises WireError if it is not of
    this protocol.
    """
    if not _HEAD_BYTES <= len(control) <= CONTROL_BYTES_MAX:
        raise WireError(Malformation.CONTROL, f"{len(control)} bytes are not a control frame")
    signature = control[:_SIGNATURE_BYTES]
    if signature not in _SIGNATURES:
        raise WireError(Malformation.SIGNATURE, "the signature is not of this protocol")
    return signature


class Control(Struct, frozen=True, gc=False):
    """A command and its properties: lower-case names, each with its values in order."""

    command: Command
    properties: dict[bytes, list[bytes]]

    def get(self, name: bytes) -> bytes | None:
        """The one value of a property, or None if it is absent."""
        found = self.properties.get(name)
        if found is None:
            return None
        if len(found) > 1:
            raise WireError(Malformation.VALUE, f"{_shown(name)} is given twice")
        return found[0]

    def need(self, name: bytes, bytes_max: int = CONTROL_BYTES_MAX) -> bytes:
        """The one value of a required property."""
        value = self.get(name)
        if not value:
            sentence = f"{_shown(name)} is missing in {self.command.name}"
            raise WireError(Malformation.MISSING, sentence)
        if len(value) > bytes_max:
            raise WireError(Malformation.VALUE, f"{_shown(name)} is too long")
        return value

    def number(self, name: bytes, default: int, most: int) -> int:
        """A decimal number of 0 or more, capped at ``most``."""
        value = self.get(name)
        if value is None:
            return default
        if not value.isdigit() or len(value) > 18:  # for bytes, isdigit accepts only ASCII
            raise WireError(Malformation.VALUE, f"{_shown(name)} is no number of 0 or more")
        return min(int(value), most)

    def text(self, name: bytes) -> str | None:
        """The one value of a property, as text."""
        value = self.get(name)
        return None if value is None else _text(name, value)

    def texts(self, name: bytes) -> tuple[str, ...]:
        """All values of a property, as text, each once, in order."""
        found = self.properties.get(name)
        if not found:
            return ()
        if len(found) == 1:
            return (_text(name, found[0]),)
        return tuple(dict.fromkeys([_text(name, value) for value in found]))


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError(Malformation.VALUE, f"{_shown(name)} is not UTF-8") from None


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace")


def decode(control: bytes) -> Control:
    """Decodes a control frame, or raises WireError. Unknown properties are kept."""
    size = len(control)
    command = _COMMANDS.get(control[:_HEAD_BYTES])
    if command is None or size > CONTROL_BYTES_MAX:
        raise _unknown(control)
    properties: dict[bytes, list[bytes]] = {}
    at = _HEAD_BYTES
    while at < size:
        name_end = at + 1 + control[at]
        value_start = name_end + 4
        end = value_start + int.from_bytes(control[name_end:value_start], "big")
        # A truncated length still reads as some number, so both ends are checked.
        if value_start > size or end > size:
            raise WireError(Malformation.PROPERTY, "the last property is cut off")
        name = control[at + 1 : name_end].lower()
        found = properties.get(name)
        if found is not None:
            found.append(control[value_start:end])
        elif not name or not name.isascii():
            raise WireError(Malformation.PROPERTY, "a property has no name, or not in ASCII")
        else:
            properties[name] = [control[value_start:end]]
        at = end
    return Control(command, properties)


def _unknown(control: bytes) -> WireError:
    try:
        signature_of(control)
    except WireError as error:
        return error
    octet = control[_SIGNATURE_BYTES]
    if octet in _OCTETS:
        return WireError(Malformation.SIGNATURE, "that command belongs to the other side")
    return WireError(Malformation.COMMAND, f"there is no command {octet:#04x}")


_OCTETS: Final = frozenset(Command)
_LENGTHS: Final = tuple(size.to_bytes(4, "big") for size in range(256))


def encode(command: Command, *properties: Property) -> bytes:
    """A control frame; properties keep the given order."""
    parts = [_HEADS[command]]
    for name, value in properties:
        size = len(value)
        length = _LENGTHS[size] if size < 256 else size.to_bytes(4, "big")
        parts += (_NAME_LENGTHS[len(name)], name, length, value)
    return b"".join(parts)


_NAME_LENGTHS: Final = tuple(bytes((size,)) for size in range(256))


def decimal(number: int) -> bytes:
    """A number as the value of a property."""
    return b"%d" % number
