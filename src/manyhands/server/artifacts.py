"""What workers upload of their runs: files beside the store, whole or not there at all.

Files are named by hashes, so that no name of a worker's choice becomes a path.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

_FOLDER: Final = "artifacts"
PIECE_BYTES: Final = 256 * 1024
_LABEL_BYTES_MAX: Final = 4096  # names and types are far below


class Artifact(Struct, frozen=True):
    """A file that is there."""

    content_type: str
    size: int
    path: Path
    start: int  # where the content begins

    def open(self) -> BinaryIO:
        """At the first byte of the content."""
        file = self.path.open("rb")
        file.seek(self.start)
        return file


class _Label(Struct, frozen=True):
    """The first line of a file, so that content and type are replaced in one step."""

    name: str
    content_type: str


class Draft:
    """A file that is not there before it is whole and on disk."""

    def __init__(self, place: Path, label: _Label, folders: tuple[Path, ...]) -> None:
        self._place = place
        self._folders = folders  # those that hold the file, or one of these
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".")
        self._file = os.fdopen(descriptor, "wb")
        self._name = Path(name)
        self.size = 0
        self._file.write(msgspec.json.encode(label) + b"\n")

    def write(self, piece: bytes) -> None:
        """The next piece."""
        self._file.write(piece)
        self.size += len(piece)

    def finish(self) -> None:
        """All of it came."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._name.replace(self._place)
        for folder in self._folders:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def discard(self) -> None:
        """It will not be whole."""
        self._file.close()
        self._name.unlink(missing_ok=True)


class Artifacts:
    """Below one directory: a folder for each task, in it one for each run."""

    def __init__(self, data: Path | None) -> None:
        if data is None:
            # A store in memory has no directory: then files last as long as this object.
            self._temporary = tempfile.TemporaryDirectory()
            data = Path(self._temporary.name)
        self._root = data / _FOLDER

    def _place(self, task_id: str, run_id: int, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._root / task_id / str(run_id) / digest

    def begin(self, task_id: str, run_id: int, name: str, content_type: str) -> "Draft":
        """A file that is about to come."""
        place = self._place(task_id, run_id, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        folders = (place.parent, place.parent.parent, self._root, self._root.parent)
        return Draft(place, _Label(name, content_type), folders)

    def find(self, task_id: str, run_id: int, name: str) -> Artifact | None:
        """The file of that name, if it was uploaded."""
        place = self._place(task_id, run_id, name)
        try:
            with place.open("rb") as file:
                line = file.readline(_LABEL_BYTES_MAX)
                size = os.fstat(file.fileno()).st_size - len(line)
            label = msgspec.json.decode(line, type=_Label)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return Artifact(label.content_type, size, place, len(line))

    def sweep(self, is_known: Callable[[str], bool]) -> int:
        """Remove what belongs to tasks that are not on record any more; gives how many."""
        count = 0
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if not is_known(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
                    count += 1
        return count
