"""Foreign bytes on a page: as a JSON tree, as text, or in hexadecimal; cut, with a link to the
whole. They are never treated as markup.
"""

import functools
from typing import Final

from markupsafe import Markup
from msgspec import Struct

from manyhands.model.payload import Encoding
from manyhands.ui import words
from manyhands.ui.tree import tree

_TEXT_BYTES: Final = 32 * 1024
_HEX_BYTES: Final = 2 * 1024
_ROW: Final = 16
_SUFFIXES: Final = {Encoding.JSON: "json", Encoding.TEXT: "txt", Encoding.BINARY: "bin"}


class Content(Struct, frozen=True, kw_only=True):
    """Some bytes in one of their views."""

    views: tuple[str, ...]  # the views that make sense, the best first
    view: str
    shown: str | Markup
    size: int
    cut_at: int | None = None  # bytes that are shown of it; None: all
    exact: bool = False  # copying what is shown gives what was sent
    encoding: str


def content(data: bytes, encoding: Encoding, wanted: str) -> Content:
    """The requested view, or else the best one."""
    as_tree = None
    if encoding is Encoding.JSON or data[:64].lstrip()[:1] in (b"{", b"["):
        as_tree = tree(data)
    text = _text(data)
    views = (
        *(("tree",) if as_tree is not None else ()),
        *(("text",) if text is not None else ()),
        "hex",
    )
    view = wanted if wanted in views else views[0]
    found = functools.partial(
        Content, views=views, view=view, size=len(data), encoding=encoding.value
    )
    if view == "tree" and as_tree is not None:
        return found(shown=as_tree)
    if view == "text" and text is not None:
        shown = words.visible(text, lines=True)
        cut_at = _TEXT_BYTES if len(data) > _TEXT_BYTES else None
        return found(shown=shown, cut_at=cut_at, exact=cut_at is None and shown == text)
    cut_at = _HEX_BYTES if len(data) > _HEX_BYTES else None
    return found(shown=hexadecimal(data[:_HEX_BYTES]), cut_at=cut_at)


def _text(data: bytes) -> str | None:
    """The beginning as text, if it is text. Text has no NUL in it."""
    beginning = data[:_TEXT_BYTES]
    if b"\0" in beginning:
        return None
    try:
        return beginning.decode()
    except UnicodeDecodeError as error:
        if len(data) > _TEXT_BYTES and error.start >= len(beginning) - 3:
            return beginning[: error.start].decode()  # a character was cut in two
        return None


def hexadecimal(data: bytes) -> str:
    """Rows of sixteen: offset, digits, and the printable characters."""
    rows = []
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        plain = "".join([chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row])
        rows.append(f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {plain}")
    return "\n".join(rows)


def file_name(what: str, job_id: str, encoding: Encoding) -> str:
    """The file name of a download."""
    return f"{job_id[:64]}-{what}.{_SUFFIXES[encoding]}"
