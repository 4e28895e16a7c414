"""Round-robin over very many names, some at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator


class Rounds:
    """Iterates over all names again and again. Names that appear meanwhile come in the next
    round.
    """

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names
        self._left: deque[str] = deque()

    def part(self, count_max: int) -> Iterator[str]:
        """The next names: the rest of this round, and at most one whole round after it. A caller
        that stops early gets the same name first the next time.
        """
        left = self._left
        is_fresh = False
        for _ in range(count_max):
            if not left:
                if is_fresh:
                    return
                is_fresh = True
                left.extend(self._names())
                if not left:
                    return
            yield left[0]
            left.popleft()
