"""How a payload looks to a peer that speaks JSON, and to one that speaks bytes."""

import base64
import enum
from typing import Any, Final

import msgspec

# The member that holds a value where only an object is allowed.
_VALUE: Final = "value"
_BASE64: Final = "base64"
# One level only: numbers too large for the interpreter stay text.
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode


class Encoding(enum.StrEnum):
    """What the submitter declared the bytes to be."""

    BINARY = "binary"
    TEXT = "text"
    JSON = "json"


def as_json_value(payload: bytes, encoding: Encoding) -> Any:  # noqa: ANN401 - any JSON value
    """The value for a JSON peer: the JSON text itself, a string, or ``{"base64": …}``."""
    if encoding is Encoding.JSON:
        return msgspec.Raw(payload or b"null")
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(payload).decode("ascii")}


def as_json_object(payload: bytes, encoding: Encoding) -> Any:  # noqa: ANN401 - any JSON object
    """The same for a peer that takes objects only: any other value is given as
    ``{"value": …}``.
    """
    value = as_json_value(payload, encoding)
    if isinstance(value, dict) or _is_json_object(payload, encoding):
        return value
    return {_VALUE: value}


def _is_json_object(payload: bytes, encoding: Encoding) -> bool:
    return encoding is Encoding.JSON and _first_byte(payload) == b"{"


def _first_byte(text: bytes) -> bytes:
    return text.lstrip()[:1]


def guess_encoding(payload: bytes) -> Encoding:
    """Text if it is UTF-8, else binary; JSON is never guessed, only declared."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return Encoding.BINARY
    return Encoding.TEXT


def from_json_text(text: bytes, like: Encoding) -> tuple[bytes, Encoding]:
    """The other way round: what a JSON peer sends back for a payload that was ``like`` this. A
    string is text again and ``{"base64": …}`` bytes again, unless it was JSON all along.
    """
    if like is Encoding.JSON:
        return text, like
    first = _first_byte(text)
    try:
        if first == b'"':
            return _decode_string(text).encode(), Encoding.TEXT
        if first == b"{":
            data = _only_member(text, _BASE64)
            if data is not None:
                return base64.b64decode(_decode_string(data), validate=True), Encoding.BINARY
    except (msgspec.MsgspecError, ValueError):
        pass  # it only looks like one
    return text, Encoding.JSON


def from_json_object(text: bytes, payload: bytes, like: Encoding) -> tuple[bytes, Encoding]:
    """What a peer that takes objects only sends back for this payload: what the payload would
    have been given in, the result may be given in, too. For a JSON object it is what it is.
    """
    if not _is_json_object(payload, like) and _first_byte(text) == b"{":
        text = _only_member(text, _VALUE) or text
    return from_json_text(text, like)


def _only_member(text: bytes, name: str) -> bytes | None:
    """The JSON text of a member, if the object has no other."""
    try:
        members = _decode_members(text)
    except (msgspec.MsgspecError, RecursionError):  # nested deeper than the interpreter bears
        return None
    return bytes(members[name]) if members.keys() == {name} else None
