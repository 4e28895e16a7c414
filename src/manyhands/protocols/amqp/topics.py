"""Topic patterns: `*` stands for one word, `#` for any number of them, also none."""


def words_of(key: str) -> list[str]:
    """The words of a routing key. The empty key has none; `a..b` has an empty one."""
    return key.split(".") if key else []


class Pattern:
    """A binding's key."""

    __slots__ = ("_fixed", "_tail_only", "text", "words")

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = words_of(text)
        wild = self.words.count("#")
        self._tail_only = wild == 1 and self.words[-1] == "#"
        self._fixed = self.words[:-1] if self._tail_only else self.words if not wild else None

    def matches(self, words: list[str]) -> bool:
        """Whether the words of a key fit."""
        fixed = self._fixed
        if fixed is None:
            return _matches(self.words, words)
        if len(words) != len(fixed) and not (self._tail_only and len(words) > len(fixed)):
            return False
        return all(wanted in ("*", word) for wanted, word in zip(fixed, words, strict=False))


def _matches(pattern: list[str], words: list[str]) -> bool:
    """With `#` anywhere: try each for no words first, and go back to the last one for more. A
    later `#` can do whatever an earlier one could, so only the last one is ever tried again.
    """
    at = 0  # in the pattern
    index = 0  # in the words
    last, resume = -1, 0
    while index < len(words):
        wanted = pattern[at] if at < len(pattern) else None
        if wanted == "#":
            last, resume = at, index
            at += 1
        elif wanted is not None and wanted in ("*", words[index]):
            at += 1
            index += 1
        elif last >= 0:
            resume += 1
            at, index = last + 1, resume
        else:
            return False
    return all(wanted == "#" for wanted in pattern[at:])
