"""Where the APIs and pages over HTTP read what they show, and send their commands."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from manyhands.access.audit import AuditLog
from manyhands.access.gate import current_guard
from manyhands.access.sight import SeenSleepers, SeenStore
from manyhands.config import Config
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.clock import Clock
from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.past import Past
from manyhands.dispatch.sleepers import Sleepers
from manyhands.model.roles import Caller
from manyhands.model.servers import Drained, ServerFacts
from manyhands.observe.attention import Attention
from manyhands.observe.history import History
from manyhands.observe.seen_history import SeenHistory
from manyhands.observe.traffic import Traffic
from manyhands.observe.workers import SeenBook, WorkerBook
from manyhands.operate.bulk import BulkRunner
from manyhands.store.contract import Store
from manyhands.web.admission import Admission

# Callers whose view is kept; beyond this many, all are made again.
_SEEN_MAX: Final = 1_000


class Sources(Struct, frozen=True):
    """The parts of the server that handlers use; one object for the whole site, and one for each
    caller that sees only some queues.
    """

    dispatcher: Dispatcher
    ids: Ids
    config: Config
    condition: Condition
    budget: Budget
    admission: Admission
    audit: AuditLog
    bulk: BulkRunner
    history: History | SeenHistory
    attention: Attention
    traffic: Traffic
    worker_books: Mapping[str, WorkerBook | SeenBook]  # by realm
    past: Past
    servers: Callable[[], list[ServerFacts]]
    drain: Callable[[str, str], Drained]  # of a server, by its name, and why
    relay_facts: Callable[[], dict[str, Any] | None]
    store: Store  # the records and the live jobs
    sleepers: Sleepers
    seen: dict[Caller, "Sources"] = {}

    @property
    def of_caller(self) -> "Sources":
        """What the sender of the present request may see of all this."""
        guard = current_guard()
        return self if guard is None or not guard.caller.queues else self.seen_by(guard.caller)

    def seen_by(self, caller: Caller) -> "Sources":
        """What a caller with queue patterns may see."""
        found = self.seen.get(caller)
        if found is None:
            if len(self.seen) >= _SEEN_MAX:
                self.seen.clear()
            store = cast("Store", SeenStore(self.dispatcher.store, caller))
            assert isinstance(self.history, History)
            history = SeenHistory(self.history, store.live, caller)
            sleepers = cast("Sleepers", SeenSleepers(self.dispatcher.sleepers, caller))
            found = self.seen[caller] = replace(
                self,
                store=store,
                history=history,
                sleepers=sleepers,
                worker_books={
                    realm: SeenBook(book, caller.may_use)
                    for realm, book in self.worker_books.items()
                    if isinstance(book, WorkerBook)
                },
                attention=Attention(self.dispatcher, history, store, sleepers),
                seen={},
            )
        return found

    @property
    def clock(self) -> Clock:
        """Server time."""
        return self.dispatcher.clock
