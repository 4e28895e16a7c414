"""Files that are read again on SIGHUP, and when they change, while the server runs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 2.0

_Mark = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles:
    """Groups of files, and what reads each group again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._groups: list[_Group] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, files: Sequence[Path], reload: Callable[[], None]) -> None:
        """Calls ``reload``, which must not raise, once these files have changed."""
        self._groups.append(_Group(files, reload))
        if len(self._groups) == 1:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def reload(self) -> None:
        """Reads all of them again, as SIGHUP asks for."""
        for group in self._groups:
            group.read_again()

    def _look(self) -> None:
        self._loop.call_later(_LOOK_SECONDS, self._look)
        for group in self._groups:
            group.look()


class _Group:
    def __init__(self, files: Sequence[Path], reload: Callable[[], None]) -> None:
        self._files = files
        self._reload = reload
        self._read = self._seen = self._mark()

    def _mark(self) -> _Mark:
        return tuple(map(_mark_of, self._files))

    def look(self) -> None:
        """Reads them again if they changed, but not in the middle of it: a key may be written a
        moment after its certificate.
        """
        before, self._seen = self._seen, self._mark()
        if self._seen == before != self._read:
            self.read_again()

    def read_again(self) -> None:
        self._read = self._seen = self._mark()
        self._reload()


def _mark_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
