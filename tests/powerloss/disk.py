"""A disk that remembers what was written and what was synced, and can lose its power at any point.

While it records, every write, truncation and sync of SQLite (whose file system it is) and of the
journal (whose system it is) goes through to the real file and into a list, and so do new names.
Afterwards `crashes` works out what a disk may hold when the power fails between two of them: what
was synced is there; of the rest each write may be there, be lost, or be torn at its sectors,
whatever became of the others. Of names that were given, changed or removed since the directory was
synced, some are as they were before.
"""

import os
from collections.abc import Callable, Iterator
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
        self._disk.meanwhile()
        super().xWrite(data, offset)
        self._disk.log.append(("write", self._name, offset, bytes(data)))

    def xTruncate(self, size):  # noqa: N802
        super().xTruncate(size)
        self._disk.log.append(("truncate", self._name, size))

    def xSync(self, flags):  # noqa: N802
        self._disk.meanwhile()
        super().xSync(flags)
        self._disk.log.append(("sync", self._name))


def _nothing() -> None:
    pass


class Disk(apsw.VFS):
    def __init__(self) -> None:
        self.log: list[tuple] = []
        self.meanwhile: Callable[[], None] = _nothing  # before each write and sync of SQLite's
        super().__init__("recording", "unix", makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802
        return _File(self, name, flags)

    def acknowledge(self, number: int) -> None:
        """From here on the batch is called durable."""
        self.log.append(("acknowledged", number))


class System:
    """What the journal calls the system; in place of ``os``. Calls in ``without`` do nothing."""

    def __init__(self, disk: Disk, without: frozenset[str] = frozenset()) -> None:
        self._log = disk.log
        self._without = without
        self._files: dict[int, str] = {}  # descriptor -> what the log calls the file
        self._names: dict[str, str] = {}  # the same by its present name
        self._count = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        descriptor = os.open(path, flags, mode)
        if flags & os.O_CREAT:
            self._count += 1
            inode = f"{id(self)}/{self._count}"
            self._files[descriptor] = self._names[Path(path).name] = inode
            self._log.append(("create", Path(path).name, inode))
        elif Path(path).name in self._names:
            self._files[descriptor] = self._names[Path(path).name]
        return descriptor

    def close(self, descriptor):
        self._files.pop(descriptor, None)
        os.close(descriptor)

    def posix_fallocate(self, descriptor, start, size):
        os.posix_fallocate(descriptor, start, size)
        self._log.append(("truncate", self._files[descriptor], size))

    def pwrite(self, descriptor, data, offset):
        self._log.append(("write", self._files[descriptor], offset, bytes(data)))
        return os.pwrite(descriptor, data, offset)

    def pwritev(self, descriptor, buffers, offset):
        # In two parts: what the system takes in one call need not reach the disk as one.
        for buffer in buffers:
            offset += self.pwrite(descriptor, buffer, offset)
        return sum(len(buffer) for buffer in buffers)

    def fdatasync(self, descriptor):
        if "fdatasync" not in self._without:
            self._log.append(("sync", self._files[descriptor]))

    def fsync(self, descriptor):
        if descriptor in self._files:
            self._log.append(("sync", self._files[descriptor]))
        elif "sync of names" not in self._without:
            self._log.append(("sync names",))

    def rename(self, old, new):
        Path(old).rename(new)
        self._names[Path(new).name] = self._names.pop(Path(old).name)
        self._log.append(("rename", Path(old).name, Path(new).name))

    def unlink(self, path):
        Path(path).unlink()
        self._names.pop(Path(path).name, None)
        self._log.append(("unlink", Path(path).name))


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


class _Names:
    """The directory: which file has which name."""

    def __init__(self, names: dict[str, str]) -> None:
        self.safe = names
        self.unsynced: list[tuple] = []

    def sync(self) -> None:
        self.safe = self.after_loss(len(self.unsynced))
        self.unsynced.clear()

    def after_loss(self, count: int) -> dict[str, str]:
        """With so many of the changes since the last sync: they come in order."""
        names = dict(self.safe)
        for change in self.unsynced[:count]:
            if change[0] == "create":
                names[change[1]] = change[2]
            elif change[0] == "rename":
                names[change[2]] = names.pop(change[1])
            else:
                del names[change[1]]
        return names


def crashes(
    log: list[tuple], content: dict[str, bytes], random: Random, points: int
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """What may be left after a loss of power at some points: the number of the last batch that
    was acknowledged before, and the files.
    """
    platters = {name: _Platter(data) for name, data in content.items()}
    names = _Names({name: name for name in content})
    chosen = set(random.sample(range(len(log)), min(points, len(log))))
    acknowledged = 0
    for index, change in enumerate(log):
        match change[0]:
            case "acknowledged":
                acknowledged = change[1]
            case "sync names":
                names.sync()
            case "create" | "rename" | "unlink":
                names.unsynced.append(change)
            case what:
                if change[1] not in platters:
                    platters[change[1]] = _Platter(b"")
                    if not _has_name(log, change[1]):  # SQLite's own: it sees to their names
                        names.safe[change[1]] = change[1]
                if what == "sync":
                    platters[change[1]].sync()
                else:
                    platters[change[1]].unsynced.append(change)
        if index in chosen:
            for how in ("none", "all", "some", "torn", "torn"):
                count = len(names.unsynced)
                kept = {"none": 0, "all": count}.get(how, random.randint(0, count))
                files = {
                    name: platters[inode].after_loss(random, how) if inode in platters else b""
                    for name, inode in names.after_loss(kept).items()
                }
                yield acknowledged, files


def _has_name(log: list[tuple], inode: str) -> bool:
    return any(change[0] == "create" and change[2] == inode for change in log)
