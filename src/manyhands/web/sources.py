"""Where the APIs and pages over HTTP read what they show, and send their commands."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from manyhands.access.audit import AuditLog
from manyhands.config import Config
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.past import Past
from manyhands.model.servers import Drained, ServerFacts
from manyhands.observe.attention import Attention
from manyhands.observe.history import History
from manyhands.observe.traffic import Traffic
from manyhands.observe.workers import WorkerBooks
from manyhands.operate.bulk import BulkRunner
from manyhands.store.contract import Store
from manyhands.web.admission import Admission


class Sources(Struct, frozen=True):
    """The parts of the server that handlers use; one object for the whole site."""

    dispatcher: Dispatcher
    ids: Ids
    config: Config
    condition: Condition
    budget: Budget
    admission: Admission
    audit: AuditLog
    bulk: BulkRunner
    history: History
    attention: Attention
    traffic: Traffic
    worker_books: WorkerBooks
    past: Past
    servers: Callable[[], list[ServerFacts]]
    drain: Callable[[str, str], Drained]  # of a server, by its name, and why
    relay_facts: Callable[[], dict[str, Any] | None]

    @property
    def store(self) -> Store:
        """The records and the live jobs."""
        return self.dispatcher.store

    @property
    def clock(self) -> Clock:
        """Server time."""
        return self.dispatcher.clock
