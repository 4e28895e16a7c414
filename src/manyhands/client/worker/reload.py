"""Notices that files have changed (P53)."""

import os
from collections.abc import Iterable


class FileWatch:
    """Looks at the times of files."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, files: Iterable[str]) -> None:
        """More files to watch."""
        for file in files:
            if file not in self._seen:
                self._seen[file] = _changed_at(file)

    def is_changed(self) -> bool:
        """Whether one has changed since the last look. An editor may remove it for a moment."""
        found = {file: _changed_at(file) for file in self._seen}
        changed = any(at and at != self._seen[file] for file, at in found.items())
        for file, at in found.items():
            if at:
                self._seen[file] = at
        return changed


def _changed_at(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116 - texts, looked at several times a second
    except OSError:
        return 0
