"""What the commands on a store share: its directory, its contents, and progress."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from manyhands.config import FILE_VARIABLE, Config, load_config
from manyhands.config.files import SpecialFileError

if TYPE_CHECKING:
    import apsw

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Directory of the store (default: that of serve).", metavar="DIR"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help=f"TOML file with options (default: {FILE_VARIABLE}).", metavar="FILE"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def config_of(data: Path | None, config: Path | None, *, or_database: bool = False) -> Config:
    """The configuration that `serve` would use with the same flags; its store must be on disk, or
    in a database if the command can deal with that.
    """
    file = config or (Path(named) if (named := os.environ.get(FILE_VARIABLE)) else None)
    flags = {"data": str(data) if data is not None else None}
    found = load_config(flags, os.environ, file).config
    if found.store == "memory":
        misuse("the store is kept in memory only; there is nothing on disk.")
    if found.store != "sqlite" and not or_database:
        fail(
            "this command works on the files of a SQLite store. A PostgreSQL store is backed up, "
            "checked and compacted as the database that it is in: with pg_dump or continuously "
            "(PITR), pg_amcheck, and VACUUM. All tables of its schema belong to it."
        )
    return found


def fail(sentence: str) -> NoReturn:
    """Ends the command with a sentence."""
    typer.echo(f"manyhands: {sentence}", err=True)
    raise SystemExit(1)


def misuse(sentence: str) -> NoReturn:
    """The same for wrong arguments or a wrong configuration, which have an exit code of their
    own.
    """
    typer.echo(f"manyhands: {sentence}", err=True)
    raise SystemExit(2)


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Turns errors of a store or a file into a sentence."""
    from manyhands.store.contract import StoreError

    try:
        yield
    except StoreError as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader of the output has closed it; nothing may be flushed into it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except SpecialFileError as error:
        fail(f"{error}.")
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror}.")


@contextlib.contextmanager
def reading(data: Path) -> Iterator["apsw.Connection"]:
    """Opens the store's file read-only, with everything acknowledged before; the server may run
    meanwhile.
    """
    import apsw

    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite import schema
    from manyhands.store.sqlite.reader import open_reader
    from manyhands.store.sqlite.recovery import catch_up, recover_if_free

    file = file_of(data, schema.FILE_NAME)
    recover_if_free(file)
    try:
        connection = open_reader(file)
        try:
            _require_version(connection, file)
            catch_up(connection, file)
            yield connection
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreError(f"{file} cannot be read: {error}.") from None


@contextlib.contextmanager
def locked(data: Path) -> Iterator[Path]:
    """The store's file, while no server can use it."""
    from manyhands.store.sqlite import schema
    from manyhands.store.sqlite.opening import DirectoryLock

    file = file_of(data, schema.FILE_NAME)
    lock = DirectoryLock(data)
    try:
        yield file
    finally:
        lock.release()


@contextlib.contextmanager
def holding(data: Path) -> Iterator[tuple["apsw.Connection", Path]]:
    """The same, with a read-only connection: the file is not upgraded first."""
    import apsw

    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite.opening import inspect_header
    from manyhands.store.sqlite.reader import open_reader

    with locked(data) as file:
        inspect_header(file)
        try:
            connection = open_reader(file)
            try:
                _require_version(connection, file)
                yield connection, file
            finally:
                connection.close()
        except apsw.Error as error:
            raise StoreError(f"{file} cannot be read: {error}.") from None


def file_of(data: Path, name: str) -> Path:
    """A file of the store; raises StoreError if there is no store."""
    from manyhands.store.contract import StoreError

    file = data / name
    if not file.exists():
        raise StoreError(f"there is no store in {data}; name its directory with --data.")
    return file


def _require_version(connection: "apsw.Connection", file: Path) -> None:
    from manyhands.store.contract import StoreError
    from manyhands.store.sqlite import schema

    version = int(connection.pragma("user_version"))
    if version != schema.VERSION:
        raise StoreError(
            f"{file} has schema {version} and this version of manyhands knows "
            f"{schema.VERSION}; start the server once, or use the version that wrote it."
        )


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere; called with the number done and the total."""
    if not sys.stderr.isatty():
        yield lambda _count, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(title, total=None)
        yield lambda count, total: bar.update(row, completed=count, total=total)
