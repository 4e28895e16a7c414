"""How a payload looks to a peer that speaks JSON, and to one that speaks bytes. Written once."""

import base64
import enum
from typing import Any

import msgspec


class Encoding(enum.StrEnum):
    """What the submitter said the bytes are."""

    BINARY = "binary"
    TEXT = "text"
    JSON = "json"


def as_json_value(payload: bytes, encoding: Encoding) -> Any:  # noqa: ANN401 - any JSON value
    """The value a JSON peer is given: the JSON text itself, a string, or ``{"base64": …}``."""
    if encoding is Encoding.JSON:
        return msgspec.Raw(payload or b"null")
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode("ascii")}


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
    value = msgspec.json.decode(text)
    if isinstance(value, str):
        return value.encode(), Encoding.TEXT
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True), Encoding.BINARY
        except (TypeError, ValueError):
            pass  # it only looks like one
    return text, Encoding.JSON
