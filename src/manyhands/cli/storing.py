"""What the commands on a store share: which directory, what it holds, and how far they are."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from manyhands.config import FILE_VARIABLE, Config, load_config

if TYPE_CHECKING:
    import apsw

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Directory of the store (else as serve has it).", metavar="DIR"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help=f"TOML file with options (else {FILE_VARIABLE}).", metavar="FILE"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def config_of(data: Path | None, config: Path | None) -> Config:
    """The configuration that `serve` would use with the same flags; its store must be on disk."""
    file = config or (Path(named) if (named := os.environ.get(FILE_VARIABLE)) else None)
    flags = {"data": str(data) if data is not None else None}
    found = load_config(flags, os.environ, file).config
    if found.store != "sqlite":
        fail("the store is kept in memory only; there is nothing on disk.")
    return found


def fail(sentence: str) -> NoReturn:
    """End with a sentence."""
    typer.echo(f"manyhands: {sentence}", err=True)
    raise SystemExit(1)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What goes wrong with a store or a file is told in a sentence."""
    from manyhands.store.store import StoreError

    try:
        yield
    except StoreError as error:
        fail(str(error))
    except BrokenPipeError:
        # Whoever read the output has had enough; nothing is left to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror}.")


@contextlib.contextmanager
def reading(data: Path) -> Iterator["apsw.Connection"]:
    """The store's file, for reading only, with all that was acknowledged before: the server may
    run meanwhile.
    """
    import apsw

    from manyhands.store import schema
    from manyhands.store.reading import open_reader
    from manyhands.store.recovery import catch_up, recover_if_free
    from manyhands.store.store import StoreError

    file = data / schema.FILE_NAME
    if not file.exists():
        raise StoreError(f"there is no store in {data}; name its directory with --data.")
    recover_if_free(file)
    try:
        connection = open_reader(file)
        try:
            version = int(connection.pragma("user_version"))
            if version != schema.VERSION:
                raise StoreError(
                    f"{file} has schema {version} and this version of manyhands knows "
                    f"{schema.VERSION}; start the server once, or use the version that wrote it."
                )
            catch_up(connection, file)
            yield connection
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreError(f"{file} cannot be read: {error}.") from None


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere; called with what is behind us and with all."""
    if not sys.stderr.isatty():
        yield lambda _count, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(title, total=None)
        yield lambda count, total: bar.update(row, completed=count, total=total)
