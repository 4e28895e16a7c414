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
    console = Console()
    table = Table(title=f"manyhands {__version__}", title_justify="left", title_style="bold")
    table.add_column("listener")
    table.add_column("address")
    for name, address in addresses.items():
        if address is None:
            table.add_row(f"[dim]{name}[/]", "[dim]off[/]")
        elif name in roots:
            table.add_row(name, f"[link={roots[name]}]{roots[name]}[/]")
        else:
            table.add_row(name, address)
    place = str(config.data) if facts["kind"] == "sqlite" else "memory only: gone when it stops"
    console.print(table)
    if pages is not None:
        console.print(f"[dim]pages[/] [bold link={pages}]{pages}[/]")
    console.print(f"[dim]store[/] {place}   [dim]stop with[/] Ctrl-C")
