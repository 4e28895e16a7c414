"""A disk that remembers what was written and what was synced, and can lose its power at any point.

While it is the default file system of SQLite, every write, truncation and sync goes through to the
real file and into a list. Afterwards `crashes` works out what a disk may hold when the power fails
between two of them: what was synced is there; of the rest each write may be there, be lost, or be
torn at its sectors, whatever became of the others.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw

SECTOR_BYTES = 512


class _File(apsw.VFSFile):
    def __init__(self, disk: "Disk", name, flags):
        super().__init__("unix", name, flags)
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name

    def xWrite(self, data, offset):  # noqa: N802
        super().xWrite(data, offset)
        self._disk.log.append(("write", self._name, offset, bytes(data)))

    def xTruncate(self, size):  # noqa: N802
        super().xTruncate(size)
        self._disk.log.append(("truncate", self._name, size))

    def xSync(self, flags):  # noqa: N802
        super().xSync(flags)
        self._disk.log.append(("sync", self._name))


class Disk(apsw.VFS):
    def __init__(self) -> None:
        self.log: list[tuple] = []
        super().__init__("recording", "unix", makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802
        return _File(self, name, flags)

    def acknowledge(self, number: int) -> None:
        """From here on the batch is called durable."""
        self.log.append(("acknowledged", number))


class _Platter:
    """One file: what is safe, and what is on its way."""

    def __init__(self, content: bytes) -> None:
        self.safe = bytearray(content)
        self.unsynced: list[tuple] = []

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.safe, change)
        self.unsynced.clear()

    def after_loss(self, random: Random, how: str) -> bytes:
        content = bytearray(self.safe)
        for change in self.unsynced:
            if how == "all" or (how == "some" and random.random() < 0.7):
                _apply(content, change)
            elif how == "torn" and change[0] == "write":
                _, name, offset, data = change
                for start, part in _sectors(offset, data):
                    if random.random() < 0.7:
                        _apply(content, ("write", name, start, part))
            elif how == "torn" and random.random() < 0.5:
                _apply(content, change)
        return bytes(content)


def _apply(content: bytearray, change: tuple) -> None:
    if change[0] == "truncate":
        size = change[2]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    _, _, offset, data = change
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        count = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
        yield offset + position, data[position : position + count]
        position += count


def crashes(
    log: list[tuple], content: dict[str, bytes], random: Random, points: int
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """What may be left after a loss of power at some points: the number of the last batch that
    was acknowledged before, and the files.
    """
    platters = {name: _Platter(data) for name, data in content.items()}
    chosen = set(random.sample(range(len(log)), min(points, len(log))))
    acknowledged = 0
    for index, change in enumerate(log):
        if change[0] == "acknowledged":
            acknowledged = change[1]
        else:
            platter = platters.setdefault(change[1], _Platter(b""))
            if change[0] == "sync":
                platter.sync()
            else:
                platter.unsynced.append(change)
        if index in chosen:
            for how in ("none", "all", "some", "torn", "torn"):
                files = {name: one.after_loss(random, how) for name, one in platters.items()}
                yield acknowledged, files
