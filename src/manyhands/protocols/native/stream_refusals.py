"""Why a note of the stream is refused, checked before any command is made of it."""

from typing import Final

import msgspec
from msgspec import Raw

from manyhands.model import limits
from manyhands.model.payload import Encoding
from manyhands.model.replies import Refusal, Why

_BINARY: Final = Encoding.BINARY
_JSON: Final = Encoding.JSON
_ENCODINGS: Final = {each.value: each for each in Encoding}
_check_json: Final = msgspec.json.Decoder(Raw).decode


class NoteRefusedError(Exception):
    """A refused note: nothing of it was done, and the stream continues."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def error_of(refusal: Refusal) -> tuple[str, str]:
    """A refusal of the engine, as answers show it."""
    return refusal.why.value, refusal.sentence


def check_count(count: int, count_max: int) -> None:
    """Refuses a note with too many items."""
    if count > count_max:
        sentence = f"a note has at most {count_max} items"
        raise NoteRefusedError(Why.BATCH_TOO_LARGE.value, sentence)


def checked_encoding(data: bytes, name: str, bytes_max: int) -> Encoding:
    """The encoding of a payload or result, after checking that it has it."""
    if len(data) > bytes_max:
        sentence = f"{len(data)} bytes are more than the {bytes_max} allowed"
        raise NoteRefusedError("payload_too_large", sentence)
    try:
        encoding = _ENCODINGS.get(name) or Encoding(name)
        if encoding is not _BINARY and not data.isascii():
            data.decode()
        if encoding is _JSON:
            _check_json(data)
    except (ValueError, RecursionError) as error:  # also the message about bad JSON
        raise NoteRefusedError("invalid_note", str(error)) from None
    return encoding


def is_name(text: str) -> bool:
    """Whether this is a valid name of a worker."""
    return 0 < len(text.encode()) <= limits.HOLDER_NAME_BYTES_MAX and text.isprintable()
