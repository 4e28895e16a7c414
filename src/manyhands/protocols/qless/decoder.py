"""Reads bodies: one JSON object with ``data``. A bad body is refused as a whole, a bad item by
itself.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from manyhands.model import limits
from manyhands.protocols.qless.kinds import Host
from manyhands.web.envelope import Problem

_T = TypeVar("_T")
ABSENT: Final = Raw()


# The interpreter reads no number of more than some thousands of digits. Inside a meta, such a
# number passes unread.
TOO_LONG_NUMBER: Final = "a number has too many digits"


class _Outer(Struct):
    """The frame of every body; other keys are ignored."""

    data: Raw = ABSENT
    host: Raw = ABSENT


class Body(Struct, Generic[_T], kw_only=True):
    """A body; ``host`` is the name of the sending worker. Other keys are ignored."""

    data: _T
    host: Host | None = None


class BadItem(Struct, frozen=True):
    """An unreadable item: its code, what is wrong, and its id if it has one."""

    code: str
    message: str
    id: str | None = None


_decode_outer: Final = msgspec.json.Decoder(_Outer).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_keys: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raws: Final = msgspec.json.Decoder(list[Raw]).decode


def check_utf8(body: bytes) -> None:
    """JSON text must be UTF-8, but the decoder checks only the strings it needs."""
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            sentence = f"the body is not UTF-8 (byte {error.start})"
            raise Problem(400, "invalid_json", sentence) from None


@functools.lru_cache(maxsize=4096)
def check_host(host: str) -> str:
    """Checks the name of a worker."""
    try:
        size = len(host.encode("utf-8"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= limits.HOLDER_NAME_BYTES_MAX or not host.isprintable():
        limit = limits.HOLDER_NAME_BYTES_MAX
        sentence = f"a host has 1 to {limit} bytes and no control characters"
        raise Problem(400, "invalid_host", sentence)
    return host


def _outer(body: bytes) -> _Outer:
    try:
        return _decode_outer(body)
    except RecursionError:
        raise Problem(400, "invalid_json", "the JSON is nested too deeply") from None
    except msgspec.ValidationError:
        raise Problem(400, "invalid_body", "the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        sentence = str(error) if body else "there is no body"
        raise Problem(400, "invalid_json", sentence) from None


def _host(raw: Raw) -> str | None:
    text = bytes(raw)
    if not text or text == b"null":
        return None
    if not text.startswith(b'"'):
        raise Problem(400, "invalid_host", "host must be a string")
    host: str = _decode_any(text)
    return check_host(host)


def read_value(body: bytes, decode: Callable[[Raw], _T]) -> tuple[_T, str | None]:
    """Reads a body whose ``data`` is one value; returns it with the host."""
    check_utf8(body)
    outer = _outer(body)
    if not bytes(outer.data):
        raise Problem(400, "missing_data", "the body has no data")
    host = _host(outer.host)
    try:
        return decode(outer.data), host
    except msgspec.ValidationError as error:
        raise Problem(400, "invalid_body", sentence_of(error)) from None
    except ValueError:
        raise Problem(400, "invalid_body", TOO_LONG_NUMBER) from None


class Items(Generic[_T]):
    """Reads bodies whose ``data`` is a list of items of one kind."""

    def __init__(self, kind: Any, required: tuple[str, ...] = ()) -> None:  # noqa: ANN401
        frame = msgspec.defstruct(
            "_Frame",
            [("data", list[kind] | None, None), ("host", str | None, None)],
        )
        self._frame = msgspec.json.Decoder(frame).decode
        self._one = msgspec.json.Decoder(kind).decode
        self._required = required

    def read(self, body: bytes, count_max: int) -> tuple[list[_T | BadItem], str | None]:
        """The items, including unreadable ones, and the host."""
        check_utf8(body)
        try:
            found: Any = self._frame(body)
            items: list[_T | BadItem] | None = found.data
            host = found.host
        except (msgspec.DecodeError, RecursionError, ValueError):
            items, host = None, None
        if items is None:
            return self._read_slowly(body, count_max)
        _check_count(len(items), count_max)
        if host is not None:
            check_host(host)
        return items, host

    def _read_slowly(self, body: bytes, count_max: int) -> tuple[list[_T | BadItem], str | None]:
        """Something is wrong: finds out what, item by item."""
        outer = _outer(body)
        if not bytes(outer.data):
            raise Problem(400, "missing_data", "the body has no data")
        try:
            raws = _decode_raws(outer.data)
        except msgspec.ValidationError:
            raise Problem(400, "invalid_body", "data must be an array") from None
        _check_count(len(raws), count_max)
        host = _host(outer.host)
        return [self._item(raw) for raw in raws], host

    def _item(self, raw: Raw) -> _T | BadItem:
        try:
            found: _T = self._one(raw)
        except msgspec.ValidationError as error:
            sentence = sentence_of(error)
        except ValueError:
            sentence = TOO_LONG_NUMBER
        else:
            return found
        try:
            value = _decode_keys(raw)
        except msgspec.ValidationError:
            return BadItem("invalid_item", "an item must be an object")
        text = bytes(value.get("id", ABSENT))
        if text and text != b"null" and not text.startswith(b'"'):
            return BadItem("invalid_id", "an id is a string")
        job_id: str | None = _decode_any(text) if text else None
        for key in self._required:
            if key not in value:
                code = "invalid_id" if key == "id" else f"missing_{key}"
                return BadItem(code, f"the item has no {key}", job_id)
        return BadItem("invalid_option", sentence, job_id)


def _check_count(count: int, count_max: int) -> None:
    if count > count_max:
        raise Problem(413, "too_large", f"a batch has at most {count_max} items, this one {count}")


def sentence_of(error: msgspec.ValidationError) -> str:
    """The library's message, with the place named as the peer wrote it."""
    return str(error).replace(" - at `$.", " at `").replace(" - at `$", " at `")
