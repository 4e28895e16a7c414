"""Files that workers upload for their runs, kept beside the store: complete or not there at all.

Files are named by hashes, so that no name chosen by a worker becomes a path.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from manyhands.config.files import open_draft

FOLDER: Final = "artifacts"
FOLDER_MODE: Final = 0o700  # as secret as payloads
PIECE_BYTES: Final = 256 * 1024
_LABEL_BYTES_MAX: Final = 4096  # names and types are far below


class Artifact(Struct, frozen=True):
    """An uploaded file."""

    content_type: str
    size: int
    path: Path
    start: int  # where the content begins
    lease_number: int  # of the lease under which it was uploaded

    def open(self) -> BinaryIO:
        """Opens the file at the first byte of its content."""
        file = self.path.open("rb")
        file.seek(self.start)
        return file

    def read(self) -> bytes:
        """The whole content."""
        with self.open() as file:
            return file.read()


class _Label(Struct, frozen=True):
    """The first line of a file, so that content and type are replaced in one step."""

    name: str
    content_type: str
    lease_number: int = 0  # 0 in files of earlier versions


class Draft:
    """A file that becomes visible only when it is complete and on disk."""

    def __init__(self, place: Path, label: _Label, folders: tuple[Path, ...]) -> None:
        self._place = place
        self._folders = folders  # the parents of the file, to sync
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".")
        self._file = os.fdopen(descriptor, "wb")
        self._name = Path(name)
        self.size = 0
        self._file.write(msgspec.json.encode(label) + b"\n")

    def write(self, piece: bytes) -> None:
        """Appends the next piece."""
        self._file.write(piece)
        self.size += len(piece)

    def finish(self) -> None:
        """Makes the complete file durable and visible."""
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
        """Drops an incomplete file."""
        self._file.close()
        self._name.unlink(missing_ok=True)


class Artifacts:
    """All artifacts: a folder for each task, and in it one for each run."""

    def __init__(self, data: Path | None) -> None:
        if data is None:
            # A memory store has no directory: then files live as long as this object.
            data = Path(tempfile.mkdtemp(prefix="manyhands-"))
            weakref.finalize(self, shutil.rmtree, data, ignore_errors=True)
        self._root = data / FOLDER

    def _place(self, task_id: str, run_id: int, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._root / task_id / str(run_id) / digest

    def begin(
        self, task_id: str, run_id: int, name: str, content_type: str, lease_number: int
    ) -> "Draft":
        """Starts a new file."""
        place = self._place(task_id, run_id, name)
        folders = (place.parent, place.parent.parent, self._root)
        _make_folders(place)
        return Draft(place, _Label(name, content_type, lease_number), (*folders, self._root.parent))

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
        return Artifact(label.content_type, size, place, len(line), label.lease_number)

    def sweep(self, is_known: Callable[[str], bool]) -> int:
        """Removes files of tasks that are no longer on record; returns how many."""
        count = 0
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if not is_known(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
                    count += 1
        return count

    def check(self, damage: list[str]) -> int:
        """Checks the label of every file; returns how many there are."""
        count = 0
        for path in self.files():
            count += 1
            try:
                with path.open("rb") as file:
                    label = msgspec.json.decode(file.readline(_LABEL_BYTES_MAX), type=_Label)
            except (OSError, msgspec.MsgspecError) as error:
                damage.append(f"{path} cannot be read ({error})")
                continue
            if hashlib.sha256(label.name.encode()).hexdigest() != path.name:
                damage.append(f"{path} is not the file {label.name} that its label names")
        return count

    def files(self) -> Iterator[Path]:
        """All complete files."""
        for path in sorted(self._root.glob("*/*/*")):
            if not path.name.startswith(".") and path.is_file():
                yield path

    def copy_to(self, folder: Path, report: Callable[[int, int], None]) -> tuple[int, int]:
        """Copies all files durably into a folder; returns how many, and their bytes.

        An existing copy with the same size and time is taken for the same.
        """
        files = list(self.files())
        count = copied_bytes = 0
        for number, path in enumerate(files):
            place = folder / path.relative_to(self._root)
            try:
                copied_bytes += _copy(path, place)
            except FileNotFoundError:
                continue  # removed with its job
            count += 1
            report(number, len(files))
        return count, copied_bytes


def _make_folders(place: Path) -> None:
    """Makes the folders of all artifacts, of the task and of the run."""
    for folder in reversed(place.parents[:3]):
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def _copy(path: Path, place: Path) -> int:
    found = path.stat()
    if place.exists():
        known = place.stat()
        if (known.st_size, known.st_mtime_ns) == (found.st_size, found.st_mtime_ns):
            return found.st_size
    _make_folders(place)
    with path.open("rb") as source, os.fdopen(open_draft(place), "wb") as target:
        shutil.copyfileobj(source, target, PIECE_BYTES)
        target.flush()
        os.fsync(target.fileno())
        size = target.tell()
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    return size
