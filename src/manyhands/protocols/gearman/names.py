"""Maps functions, which are bytes, to queues, which are printable text, and back.

UTF-8 without control characters stays as it is. Every other byte becomes a backslash, an ``x`` and
two hexadecimal digits: a function ``staging<TAB>mail`` is the queue ``staging\\x09mail``. A
backslash that happens to stand before such digits is escaped as well, so that no two functions
share a queue.
"""

import re
from typing import Final

from manyhands.model import limits

# What is escaped: control characters, bytes that are not UTF-8, the backslash itself and, in lists
# separated by spaces, the space.
_ESCAPED: Final = r"\\x(0[0-9a-f]|1[0-9a-f]|20|5c|7f|[89a-f][0-9a-f])"
_escaped: Final = re.compile(_ESCAPED)
_escaped_bytes: Final = re.compile(_ESCAPED.encode())
# Bytes that are not UTF-8 are decoded to lone surrogates.
_odd: Final = re.compile("[\x00-\x1f\x7f-\x9f\udc80-\udcff]")
NAME_SENTENCE: Final = (
    b"the name of a function has 1 to %d bytes, where control characters and bytes that are not"
    b" UTF-8 count four times" % limits.QUEUE_NAME_BYTES_MAX
)


def queue_of(function: bytes) -> str | None:
    """The queue of a function; None if its name is empty or too long."""
    text = function.decode("utf-8", "surrogateescape")
    if "\\x" in text:
        text = _escaped.sub(lambda found: "\\x5c" + found[0][1:], text)
    if not text.isprintable():
        text = _odd.sub(_escape, text)
    size = len(text) if text.isascii() else len(text.encode())
    return text if 0 < size <= limits.QUEUE_NAME_BYTES_MAX else None


def _escape(found: re.Match[str]) -> str:
    raw = found[0].encode("utf-8", "surrogateescape")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def unescaped(name: bytes) -> bytes:
    """The name behind an escaped one, as operators write it."""
    if b"\\x" not in name:
        return name
    return _escaped_bytes.sub(lambda found: bytes((int(found[1], 16),)), name)


def as_word(queue: str) -> str:
    """The name for lists separated by spaces."""
    return queue.replace(" ", "\\x20")
