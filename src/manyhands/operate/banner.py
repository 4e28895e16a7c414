"""The banner at the start: the server's addresses, and where jobs are kept."""

import sys

from rich.console import Console
from rich.table import Table

from manyhands import __version__
from manyhands.config import Config


def print_banner(
    config: Config, addresses: dict[str, str | None], facts: dict[str, str | int]
) -> None:
    """Prints a table on a terminal, plain lines in a pipe."""
    roots = {
        name: f"{scheme}://{addresses[name]}/"
        for scheme, name in (("http", "http"), ("https", "http_tls"))
        if addresses.get(name) is not None
    }
    pages = f"{next(iter(roots.values()))}ui/" if roots else None
    if not sys.stdout.isatty():
        for name, address in addresses.items():
            print(f"{name}\t{address or 'off'}", flush=True)  # noqa: T201 - this is the output
        if pages is not None:
            print(f"pages\t{pages}", flush=True)  # noqa: T201
        return
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    if pages is not None:
        table.add_row("pages", f"[bold link={pages}]{pages}[/]")
    for name, address in addresses.items():
        if name in roots:
            table.add_row(name, f"[link={roots[name]}]{roots[name]}[/]")
        elif address is not None:
            table.add_row(name, address)
    off = [name for name, address in addresses.items() if address is None]
    if off:
        table.add_row("[dim]off[/]", f"[dim]{', '.join(off)}[/]")
    table.add_row("store", _place(config, str(facts["kind"])))
    console.print(f"[bold]manyhands {__version__}[/]   [dim]stop with Ctrl-C[/]")
    console.print(table)


def _place(config: Config, kind: str) -> str:
    """Where jobs are kept."""
    if kind == "sqlite":
        return str(config.data)
    return "memory only: gone when it stops" if kind == "memory" else str(config.store)
