"""`manyhands device`: carries WMP messages between workers and managers."""

import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from manyhands.cli.stores import fail, misuse


def device(
    *,
    listen: Annotated[
        str, typer.Option("--listen", "-l", help="Where workers connect.", metavar="HOST:PORT")
    ] = "127.0.0.1:7715",
    managers: Annotated[
        list[str],
        typer.Option(
            "--manager",
            "-m",
            help="A manager, or another device; may be repeated.",
            metavar="HOST:PORT",
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            help="Name to derive the routing id from, so that managers recognise it after a "
            "restart (default: host and address)."
        ),
    ] = "",
    curve_key: Annotated[
        Path | None,
        typer.Option(
            help="File with the device's CURVE keys: workers have to encrypt. `manyhands access "
            "curve` makes one.",
            metavar="FILE",
        ),
    ] = None,
    access: Annotated[
        Path | None,
        typer.Option(
            help="Access file: only workers with a CURVE key of a caller that may work connect.",
            metavar="FILE",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines can reach.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Carry messages between WMP workers and managers.

    It runs until interrupted. It stores nothing, so it may be stopped, replaced and chained at
    will. With MANYHANDS_CURVE_SERVER it encrypts what it sends to managers, with --curve-key also
    what it exchanges with workers. Managers see one caller, whatever workers are behind it, so
    --access says which of them may connect. When it stops, it prints how many messages it carried,
    and how many it dropped and why.

    Examples:

      manyhands device --listen 127.0.0.1:7715 --manager jobs-1:7714 --manager jobs-2:7714

      manyhands device --listen 0.0.0.0:7715 --manager 127.0.0.1:7714 --insecure
    """
    from manyhands.access.curve_keys import read_keys
    from manyhands.access.device_callers import DeviceCallers
    from manyhands.client.curve import encrypt
    from manyhands.config import Listen
    from manyhands.observe.logs import set_up_logs
    from manyhands.protocols.wmp.device_program import DeviceProgram

    try:
        address = Listen().read(listen)
    except ValueError as error:
        misuse(f"--listen cannot be {listen} because {error}.")
    if address is None:
        misuse("--listen cannot be off.")
    if access is not None and curve_key is None:
        misuse("--access needs --curve-key: workers show who they are by CURVE.")
    if not insecure and access is None and not address.is_loopback:
        misuse(
            f"other machines could reach {address}; allow it with --insecure, or have workers show"
            " who they are with --curve-key and --access."
        )
    set_up_logs("auto", "info")
    try:
        keys = None if curve_key is None else read_keys(curve_key)
        accepts = None if access is None else DeviceCallers(access).accepts
        program = DeviceProgram(str(address), managers, name, encrypt, keys, accepts)
    except OSError as error:
        fail(f"{error}.")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: program.stop())
    reached = program.reach_managers()
    if as_json:
        typer.echo(msgspec.json.encode({"listen": program.address, "reached": reached}).decode())
    else:
        typer.echo(f"device\t{program.address}")
    program.run()
    counts = {"carried": program.device.counts, "dropped": program.device.dropped}
    if as_json:
        typer.echo(msgspec.json.encode(counts).decode())
        return
    for what, found in counts.items():
        for kind, count in found.items():
            typer.echo(f"{what}\t{kind}\t{count}")
