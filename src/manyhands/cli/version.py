"""`manyhands version`: the versions that a bug report should name."""

from typing import Annotated

import msgspec
import typer

from manyhands import __version__


def version(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the versions of manyhands and its platform.

    Example:

      manyhands version --json
    """
    import platform

    import apsw
    import zmq

    from manyhands.protocols.dwork.reader import implementation

    versions = {
        "manyhands": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "zeromq": zmq.zmq_version(),
        "protobuf": implementation(),
        "platform": platform.platform(),
    }
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(versions)).decode())
    else:
        typer.echo("\n".join(f"{name} {found}" for name, found in versions.items()))
