"""Topic patterns as in AMQP: `*` matches one word, `#` any number of words, including none."""


def words_of(key: str) -> list[str]:
    """The words of a key. The empty key has none; `a..b` has an empty one."""
    return key.split(".") if key else []


class Pattern:
    """Matches the words of a key one by one, in a single pass for any pattern. Bit n of an integer
    is set if the first n words of the pattern, not counting each `#`, match what was read so far.
    """

    __slots__ = ("_any", "_done", "_masks", "_stay", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._masks: dict[str, int] = {}  # positions where a word may stand
        self._any = 0  # positions where any word may stand
        self._stay = 0  # positions where any number of words may stand
        bit = 1
        for word in words_of(text):
            if word == "#":
                self._stay |= bit
                continue
            if word == "*":
                self._any |= bit
            else:
                self._masks[word] = self._masks.get(word, 0) | bit
            bit <<= 1
        self._done = bit

    def matches(self, words: list[str]) -> bool:
        """Whether the words of a key match."""
        masks, wild, stay = self._masks, self._any, self._stay
        reached = 1
        for word in words:
            reached = (reached & (masks.get(word, 0) | wild)) << 1 | (reached & stay)
            if not reached:
                return False
        return bool(reached & self._done)
