"""Payloads and results on their way between bytes and JSON."""

from typing import Any

import msgspec
from msgspec import Raw

from manyhands.model.payload import Encoding, as_json_value, from_json_text


def as_content(data: bytes, encoding: Encoding | None = None) -> tuple[Any, Encoding]:
    """The value for a body, and its encoding. Unless one is given, an object or an array is JSON,
    other UTF-8 is text, and the rest is binary; the bytes stay what they are.
    """
    if encoding is None:
        encoding = _guess(data)
    if encoding is Encoding.JSON:
        return Raw(data), encoding
    return as_json_value(data, encoding), encoding


def as_bytes(value: Raw, encoding: str) -> bytes:
    """The bytes behind a value of an answer."""
    text = bytes(value)
    if encoding == Encoding.JSON:
        return b"" if text == b"null" else text
    return from_json_text(text, Encoding(encoding))[0]


def is_json(data: bytes) -> bool:
    """Whether the text is JSON."""
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _guess(data: bytes) -> Encoding:
    if data.lstrip()[:1] in (b"{", b"[") and is_json(data):
        return Encoding.JSON
    try:
        data.decode()
    except UnicodeDecodeError:
        return Encoding.BINARY
    return Encoding.TEXT
