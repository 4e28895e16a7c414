"""What workers upload of their runs: files beside the store, whole or not there at all.

Files are named by hashes, so that no name of a worker's choice becomes a path.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

_FOLDER: Final = "artifacts"
PIECE_BYTES: Final = 256 * 1024


class Artifact(Struct, frozen=True):
    """A file that is there."""

    path: Path
    name: str
    content_type: str
    size: int


class _Label(Struct, frozen=True):
    name: str
    content_type: str


class Draft:
    """A file that is not there before it is whole and on disk."""

    def __init__(self, place: Path, label: _Label) -> None:
        self._place = place
        self._label = label
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".")
        self._file = os.fdopen(descriptor, "wb")
        self._name = Path(name)
        self.size = 0

    def write(self, piece: bytes) -> None:
        """The next piece."""
        self._file.write(piece)
        self.size += len(piece)

    def finish(self) -> None:
        """All of it came."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._place.with_suffix(".label").write_bytes(msgspec.json.encode(self._label))
        self._name.replace(self._place)
        folder = os.open(self._place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

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
        return Draft(place, _Label(name, content_type))

    def find(self, task_id: str, run_id: int, name: str) -> Artifact | None:
        """The file of that name, if it was uploaded."""
        place = self._place(task_id, run_id, name)
        try:
            label = msgspec.json.decode(place.with_suffix(".label").read_bytes(), type=_Label)
            return Artifact(place, name, label.content_type, place.stat().st_size)
        except FileNotFoundError:
            return None

    def sweep(self, is_known: Callable[[str], bool]) -> int:
        """Remove what belongs to tasks that are not on record any more; gives how many."""
        count = 0
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if not is_known(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
                    count += 1
        return count
