"""What every listener needs from the server."""

from msgspec import Struct

from manyhands.access.audit import AuditLog
from manyhands.access.callers import Callers
from manyhands.access.gate import Gate
from manyhands.access.logins import Logins
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids


class Backplane(Struct, frozen=True):
    """The dispatcher, names of connections, the memory budget, the audit log, the condition of the
    server, and who may do what.
    """

    dispatcher: Dispatcher
    ids: Ids
    budget: Budget
    audit: AuditLog
    condition: Condition
    gate: Gate
    logins: Logins

    @property
    def callers(self) -> Callers:
        """Everybody that the server knows."""
        return self.logins.callers
