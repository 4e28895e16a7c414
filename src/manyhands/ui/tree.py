"""JSON as a tree to open and close. Each value is read only when it is shown, so a large document
costs only what is shown of it; numbers keep the digits that were sent.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

import msgspec
from markupsafe import Markup, escape
from msgspec import Raw

from manyhands.ui import words

BYTES_MAX: Final = 2 * 1024 * 1024
_NODES_MAX: Final = 400
_MEMBERS_MAX: Final = 100
_DEPTH_MAX: Final = 24
_OPEN_DEPTH: Final = 3
_KEY_LENGTH: Final = 120
_STRING_LENGTH: Final = 2_000

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_object = msgspec.json.Decoder(dict[str, Raw]).decode
_array = msgspec.json.Decoder(list[Raw]).decode
_string = msgspec.json.Decoder(str).decode
_NOTHING: Final = Markup()
_T = TypeVar("_T")


def tree(text: bytes) -> Markup | None:
    """The tree of a JSON text; None if it is not JSON, or too large to parse."""
    if len(text) > BYTES_MAX:
        return None
    try:
        return _Tree().value(text.strip(b" \t\r\n"), _NOTHING, 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _Tree:
    """One rendering, with a bound on what it shows."""

    def __init__(self) -> None:
        self._left = _NODES_MAX

    def value(self, raw: bytes, label: Markup, depth: int) -> Markup:
        self._left -= 1
        first = raw[:1]
        if first == b"{":
            members = _object(raw)
            pairs = [(_key(key), bytes(value)) for key, value in _first(members.items())]
            return self._branch(label, pairs, len(members), "{}", depth)
        if first == b"[":
            items = _array(raw)
            pairs = [(_index(at), bytes(value)) for at, value in enumerate(_first(items))]
            return self._branch(label, pairs, len(items), "[]", depth)
        if first == b'"':
            return Markup('<div class="leaf">{}<span class="j-string">{}</span></div>').format(
                label, _quoted(_string(raw))
            )
        word = raw.decode("ascii")
        kind = "j-word" if word in ("true", "false", "null") else "j-number"
        if kind == "j-number" and not _NUMBER.fullmatch(word):
            raise msgspec.DecodeError(word)
        return Markup('<div class="leaf">{}<span class="{}">{}</span></div>').format(
            label, kind, word
        )

    def _branch(
        self,
        label: Markup,
        pairs: list[tuple[Markup, bytes]],
        count: int,
        brackets: str,
        depth: int,
    ) -> Markup:
        noun = words.plural(count, "member" if brackets == "{}" else "item")
        summary = Markup('{}<span class="j-bracket">{}</span> <span class="hint">{}</span>').format(
            label, f"{brackets[0]}…{brackets[1]}" if count else brackets, noun if count else ""
        )
        if not count:
            return Markup('<div class="leaf">{}</div>').format(summary)
        if depth >= _DEPTH_MAX or self._left <= 0:
            hint = "not shown here"
            return Markup('<div class="leaf">{} <span class="hint">{}</span></div>').format(
                summary, hint
            )
        shown: list[Markup] = []
        for name, raw in pairs:
            if self._left <= 0:
                break
            shown.append(Markup("<li>{}</li>").format(self.value(raw, name, depth + 1)))
        if len(shown) < count:
            more = f"and {words.number(count - len(shown))} more, in the whole"
            shown.append(Markup('<li class="hint">{}</li>').format(more))
        return Markup("<details{}><summary>{}</summary><ul>{}</ul></details>").format(
            Markup(" open") if depth < _OPEN_DEPTH else _NOTHING, summary, _NOTHING.join(shown)
        )


def _first(values: Iterable[_T]) -> list[_T]:
    return list(islice(values, _MEMBERS_MAX))


def _key(name: str) -> Markup:
    return Markup('<span class="j-key">{}</span>: ').format(words.shown(name, _KEY_LENGTH))


def _index(at: int) -> Markup:
    return Markup('<span class="j-index">{}</span>: ').format(at)


def _quoted(text: str) -> Markup:
    cut = text[:_STRING_LENGTH]
    more = len(text) - len(cut)
    shown = escape(f"“{words.visible(cut, lines=True)}{'…' if more else '”'}")
    if not more:
        return shown
    return Markup('{} <span class="hint">{}</span>').format(
        shown, f"{words.number(more)} more characters, in the whole"
    )
