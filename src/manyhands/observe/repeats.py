"""Log lines that a peer could repeat endlessly: the first at once, then a count once a minute."""

import asyncio
from typing import Any, Final

import structlog

_EVERY_SECONDS: Final = 60.0
# Sentences and peers remembered at a time, some hundred kilobytes in all. Further peers count as
# one, however many addresses they use.
_KEPT_MAX: Final = 1_000
_OTHERS: Final = "others"


class _Repeated:
    __slots__ = ("count", "facts")

    def __init__(self) -> None:
        self.count = 0  # since the last line
        self.facts: dict[str, Any] = {}  # the latest


class Repeats:
    """The lines of one logger that may come often: one of a kind and peer in a minute."""

    def __init__(
        self, log: structlog.stdlib.BoundLogger, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        self._log = log
        self._every_seconds = every_seconds
        self._kept: dict[tuple[str, str], _Repeated] = {}

    def warn(self, sentence: str, peer: str, **facts: Any) -> None:  # noqa: ANN401 - as a log takes
        """Warns about something that a peer may repeat at once."""
        key = (sentence, peer)
        known = self._kept.get(key)
        if known is None and len(self._kept) >= _KEPT_MAX:
            key = (sentence, _OTHERS)
            known = self._kept.get(key)
        if known is None:
            self._kept[key] = _Repeated()
            self._log.warning(sentence, peer=key[1], **facts)
            asyncio.get_running_loop().call_later(self._every_seconds, self._look, key)
        else:
            known.count += 1
            known.facts = facts

    def _look(self, key: tuple[str, str]) -> None:
        """A minute is over."""
        known = self._kept[key]
        if known.count == 0:
            del self._kept[key]
            return
        sentence, peer = key
        self._log.warning(sentence, peer=peer, **known.facts, again=known.count)
        known.count = 0
        asyncio.get_running_loop().call_later(self._every_seconds, self._look, key)
