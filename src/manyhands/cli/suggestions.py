"""What a shell offers at Tab beside commands and options: names that the server knows.

Asked for while somebody types: whatever goes wrong, nothing is offered and nothing is said.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import typer

_SECONDS: Final = 1.0
_SHOWN_MAX: Final = 200


def _names(path: str, key: str) -> Callable[[typer.Context, str], list[str]]:
    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        rows = _rows(ctx.params, path)
        return [row[key] for row in rows if row[key].startswith(incomplete)][:_SHOWN_MAX]

    return offer


queues: Final = _names("/api/queues", "name")
limits: Final = _names("/api/limits", "name")
schedules: Final = _names("/api/schedules", "id")


def profiles(incomplete: str) -> list[str]:
    """Names of servers in the configuration file."""
    from manyhands.cli.profiles import known_profiles

    found: list[str] = []
    with _quiet():
        found = known_profiles()
    return [name for name in found if name.startswith(incomplete)]


def _rows(params: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    from manyhands.cli.http_link import HttpLink
    from manyhands.cli.profiles import destination

    flags = {name: params.get(name) for name in ("url", "token", "token_file", "profile")}
    found: dict[str, Any] = {"results": []}
    with _quiet():
        found = HttpLink(destination(**flags), _SECONDS).ask("GET", path)
    return found["results"]  # type: ignore[no-any-return]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception, SystemExit),
    ):
        yield
