"""What goes over each listener: who is connected, jobs in and out, errors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from manyhands.server.app import Server

# The realms of submitters and workers that come over each listener.
REALMS: Final[dict[str, tuple[str, ...]]] = {
    "http": ("native", "http", "taskcluster"),
    "gearman": ("gearman", "draft"),
    "dwork": ("dwork",),
    "wmp": ("wmp",),
    "amqp": (),
}


class Flow(Struct, frozen=True):
    """What a listener knows about itself."""

    connections: int = 0
    errors: int = 0  # requests and messages that were answered with one, or dropped
    deliveries: int | None = None  # messages about jobs, where it tells of jobs


class Traffic:
    """All listeners. Each adds itself."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.sources: dict[str, Callable[[], Flow]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """One for each listener."""
        server, tallies = self._server, self._server.tallies
        found = []
        for name, realms in REALMS.items():
            address = server.addresses.get(name)
            flow = self.sources.get(name, Flow)()
            jobs = {
                realm: {
                    "jobs_in": tallies.jobs_in.get(realm, 0),
                    "jobs_out": tallies.jobs_out.get(realm, 0),
                }
                for realm in realms
            }
            found.append(
                {
                    "protocol": name,
                    "address": address,
                    "connections": flow.connections,
                    "jobs_in": sum(row["jobs_in"] for row in jobs.values()),
                    "jobs_out": sum(row["jobs_out"] for row in jobs.values()),
                    "errors": flow.errors,
                    "deliveries": flow.deliveries,
                    "realms": jobs,
                }
            )
        return found
