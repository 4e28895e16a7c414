"""Reads JSON bodies strictly, with a sentence for every error.

A body is one item, or ``{"items": […]}`` with several. Unknown keys are refused by name, never
ignored.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from manyhands.model import limits
from manyhands.model.commands import Command, NewJob
from manyhands.model.payload import Encoding
from manyhands.web.envelope import Problem

_T = TypeVar("_T")


class Batch(Struct, Generic[_T], forbid_unknown_fields=True):
    """Several items of one operation."""

    items: list[_T]


class _Probe(Struct):
    items: Raw | UnsetType = UNSET


def bad_body(message: str) -> Problem:
    """The answer to valid JSON with invalid content."""
    return Problem(400, "invalid_body", message)


# A UUID, or a Gearman handle, which ends in the uid of its job.
_OTHER_FORMS: Final = re.compile(
    r"(?:H:.*:)?([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE
)


def read_id(text: str) -> str:
    """The job named in a body: by id, uid, UUID or handle. Any other text is left as it is, so that
    a refusal can name it.
    """
    if "-" not in text and ":" not in text:
        return text.lower()
    found = _OTHER_FORMS.fullmatch(text)
    return text if found is None else found[1].replace("-", "").lower()


def read_ids(ids: tuple[str, ...]) -> tuple[str, ...]:
    """The same for several ids."""
    return tuple(map(read_id, ids))


def read_payload(raw: Raw, encoding: Encoding) -> tuple[bytes, Encoding]:
    """The bytes of a payload and their encoding. What an answer shows can be sent back unchanged:
    any JSON value with ``json``, a string with ``text``, a string or base64 with ``binary``.
    """
    text = bytes(raw)
    if not text:
        return b"", Encoding.BINARY
    payload = text
    if encoding is not Encoding.JSON:
        try:
            value = _decode_any(text)
        except (ValueError, RecursionError):  # more than the interpreter can read, so not a string
            value = None
        if isinstance(value, str):
            payload = value.encode()
        elif encoding is Encoding.BINARY and isinstance(value, dict) and set(value) == {"base64"}:
            payload = _from_base64(value["base64"])
        else:
            wanted = "a string" if encoding is Encoding.TEXT else 'a string or {"base64": "…"}'
            raise bad_body(f"with the encoding {encoding.value} it must be {wanted}")
    return payload, encoding


def read_optional(raw: Raw, encoding: Encoding) -> tuple[bytes | None, Encoding]:
    """The same, where a missing payload means that it stays as it is."""
    if not bytes(raw):
        return None, encoding
    return read_payload(raw, encoding)


def _from_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise bad_body("base64 must be a string")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise bad_body("the base64 text cannot be decoded") from None


_decode_any: Final = msgspec.json.Decoder().decode
_probe: Final = msgspec.json.Decoder(_Probe).decode


def decode(decoder: Callable[[bytes], _T], body: bytes) -> _T:
    """Decodes a body, or raises a problem that says what is wrong with it."""
    try:
        if not body.isascii():
            body.decode("utf-8")
        return decoder(body)
    except UnicodeDecodeError as error:
        sentence = f"the body is not UTF-8 (byte {error.start})"
        raise Problem(400, "invalid_json", sentence) from None
    except RecursionError:
        raise Problem(400, "invalid_json", "the JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise bad_body(_sentence(str(error))) from None
    except msgspec.DecodeError as error:
        sentence = "there is no body" if not body else _sentence(str(error))
        raise Problem(400, "invalid_json", sentence) from None
    except ValueError:
        raise bad_body("a number has too many digits") from None


def _sentence(text: str) -> str:
    """The library's message, with the place named as the peer wrote it."""
    return text.replace(" - at `$.", " at `").replace(" - at `$", " at `")


class OneOrMany(Generic[_T]):
    """Reads a body with one item or several."""

    def __init__(self, kind: type[_T], many: Any = None) -> None:  # noqa: ANN401 - a type
        many = many or Batch[kind]  # type: ignore[valid-type]
        self.kinds = (kind, many)
        self._one = msgspec.json.Decoder(kind).decode
        self._many = msgspec.json.Decoder(many).decode

    def read(self, body: bytes) -> _T | Batch[_T]:
        """One item, or a batch."""
        if decode(_probe, body).items is UNSET:
            return decode(self._one, body)
        batch: Batch[_T] = decode(self._many, body)
        if len(batch.items) > limits.BATCH_COUNT_MAX:
            sentence = f"a batch has at most {limits.BATCH_COUNT_MAX} items"
            raise Problem(413, "batch_too_large", sentence)
        return batch


def check_payload(command: Command | NewJob, bytes_max: int) -> None:
    """Checks the configured size, which may be tighter than the engine's bound."""
    for field in ("payload", "result"):
        payload = getattr(command, field, None)
        if payload is not None and len(payload) > bytes_max:
            sentence = f"{len(payload)} bytes are more than the {bytes_max} allowed"
            raise Problem(413, "payload_too_large", sentence)
