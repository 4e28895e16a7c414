"""The traffic of each listener: connections, jobs in and out, errors."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from manyhands.model.policy import REALMS
from manyhands.observe.tallies import Totals

# The ends of names of addresses that are no protocol of their own: peers with encryption are
# counted with all others, and other servers are no clients.
_NO_PROTOCOL: Final = ("_tls", "_curve", "cluster")


class Flow(Struct, frozen=True):
    """What a listener reports about itself."""

    connections: int = 0
    errors: int = 0  # requests and messages that were answered with one, or dropped
    deliveries: int | None = None  # messages about jobs, if it sends any


class Traffic:
    """All listeners. Each adds itself."""

    def __init__(self, totals: Totals, addresses: Mapping[str, str | None]) -> None:
        self._totals = totals
        self._addresses = addresses
        self.sources: dict[str, Callable[[], Flow]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """One for each listener."""
        jobs_in, jobs_out = self._totals.jobs_in, self._totals.jobs_out
        found = []
        for name, address in self._addresses.items():
            if name.endswith(_NO_PROTOCOL):
                continue
            flow = self.sources.get(name, Flow)()
            jobs = {
                realm: {
                    "jobs_in": jobs_in.get(realm, 0),
                    "jobs_out": jobs_out.get(realm, 0),
                }
                for realm, served in REALMS.items()
                if served.listener == name
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
