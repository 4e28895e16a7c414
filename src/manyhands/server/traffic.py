"""What goes over each listener: who is connected, jobs in and out, errors."""

from collections.abc import Callable
from pathlib import Path
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
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED: Final = "01"


class Flow(Struct, frozen=True):
    """What a listener knows about itself."""

    connections: int | None = None  # None: nobody counts them here; the system may know
    errors: int = 0  # requests and messages that were answered with one, or dropped
    deliveries: int | None = None  # messages about jobs, where it tells of jobs


class Traffic:
    """All listeners. Each adds itself."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.sources: dict[str, Callable[[], Flow]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """One for each listener. Looks at files of the system: call it in a thread."""
        server, tallies = self._server, self._server.tallies
        found = []
        for name, realms in REALMS.items():
            address = server.addresses.get(name)
            flow = self.sources.get(name, Flow)()
            connections = flow.connections
            if connections is None and address is not None:
                connections = _established(address)
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
                    "connections": connections if address is not None else 0,
                    "jobs_in": sum(row["jobs_in"] for row in jobs.values()),
                    "jobs_out": sum(row["jobs_out"] for row in jobs.values()),
                    "errors": flow.errors,
                    "deliveries": flow.deliveries,
                    "realms": jobs,
                }
            )
        return found


def _established(addresses: str) -> int | None:
    """How many peers are connected to a listener of ours, by the system's own table."""
    ports = {f"{int(one.rpartition(':')[2]):04X}" for one in addresses.split(",")}
    count = 0
    for table in _TABLES:
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            return None  # another system
        rows = (line.split() for line in lines)
        count += sum(row[3] == _ESTABLISHED and row[1].rpartition(":")[2] in ports for row in rows)
    return count
