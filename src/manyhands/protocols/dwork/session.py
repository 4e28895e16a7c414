"""dwork on one socket: requests of all its peers become commands, replies become messages.

There are no connections here: a worker is its location, wherever its messages come from. A reply
goes back along the route of its request, and the replies of a route keep the order of the requests.
Clause ids in comments (D…) are those of ``docs/protocols/dwork.md``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.commands import (
    ByHolder,
    Depart,
    Look,
    LookByName,
    Release,
    ReleaseAll,
    Renew,
    Submit,
)
from manyhands.model.identity import name_key
from manyhands.model.job import EndReason, Holder, Job, Lease, State
from manyhands.model.policy import Reentry
from manyhands.model.replies import Accepted, Found, Refusal, Reply, SubmittedMany
from manyhands.protocols.dwork.codec import Counts, Dep, Kind, Query, Task, encode, pack_lease
from manyhands.protocols.dwork.hub import Hub, Route
from manyhands.protocols.dwork.reader import PlainReports, WireError, decode
from manyhands.protocols.dwork.reports import report, report_plain
from manyhands.protocols.dwork.resumption import resume
from manyhands.protocols.dwork.steals import Steal, Stealing
from manyhands.protocols.dwork.tasks import Maker, task_of
from manyhands.protocols.dwork.turns import Turn, Turns

# Pending replies; above this, nothing more is read until some are sent.
AWAITED_COUNT_MAX: Final = 10_000
# Workers that are remembered until they say goodbye.
_LOCATIONS_COUNT_MAX: Final = 100_000
_STEALS_COUNT_MAX: Final = 4_096
_STEAL_BYTES_MAX: Final = 300
_UNFINISHED: Final = (State.BLOCKED, State.DELAYED, State.READY, State.LEASED)


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of an endpoint."""

    queue: str
    exit_when: str = "auto"  # auto: once there was work; always; never
    lease_ms: int | None = None  # None: no expiry
    steal_max: int = 1_000
    payload_bytes_max: int = limits.PAYLOAD_BYTES_MAX
    strict: bool = False
    wait_for_unknown: bool = False


class DworkSession:
    """All peers of one endpoint."""

    def __init__(self, hub: Hub, settings: Settings) -> None:
        self.hub = hub
        self.settings = settings
        self.dropped_count = 0
        self.turns = Turns(hub)
        self._maker = Maker(
            settings.queue, strict=settings.strict, wait_for_unknown=settings.wait_for_unknown
        )
        self._stealing = Stealing(hub, settings.queue, settings.exit_when)
        self._has_terms = settings.lease_ms is not None
        # Known workers, and when their leases were last renewed.
        self._locations: dict[str, int] = {}
        self._terms: dict[str, int] = {}  # how long each of them may be silent
        # All steals of a worker are equal, so they are read once.
        self._steals: dict[bytes, Steal] = {}
        self._read_plain = PlainReports().read

    # The listener's side.

    def receive(self, frames: list[bytes]) -> None:
        """Handles a message: the peer's identity, perhaps more of an envelope, a delimiter,
        a body.
        """
        end = frames.index(b"", 1) + 1 if b"" in frames[1:] else len(frames)
        if end == len(frames):
            # Without a delimiter, it is unknown where a reply should go (D2).
            self.overflowed(frames[0])
        elif end + 1 < len(frames):
            self._begin(tuple(frames[:end])).refuse("a request has one body frame")
        else:
            self.receive_short(tuple(frames[:end]), frames[end])

    def _begin(self, route: Route) -> Turn:
        if self._stealing.held:
            # A peer that goes on talking does not wait for work, so its steal is answered first.
            self._stealing.let_go(self.turns.latest.get(route))
        return self.turns.take(route)

    def receive_short(self, route: Route, body: bytes) -> None:
        """Handles a message whose route is known."""
        turn = self.turns.take(route) if not self._stealing.held else self._begin(route)
        steal = self._steals.get(body)
        if steal is not None:
            location = steal.holder.name or ""
            if self._has_terms or location not in self._locations:
                self._note_alive(location, steal.term_ms)
            self._stealing.steal(turn, steal)
            return
        plain = self._read_plain(body)
        if plain is not None:
            name, (origin, location) = plain
            if self._has_terms or location not in self._locations:
                self._note_alive(location)
            report_plain(self.hub, self.settings.queue, turn, name, origin, location)
            return
        try:
            query = decode(body)
            self._check(query)
        except WireError as error:
            turn.refuse(str(error))
            return
        if query.kind is Kind.STEAL:
            self._learn_steal(body, query)
        _ACTIONS[query.kind](self, turn, query)

    def _learn_steal(self, body: bytes, query: Query) -> None:
        if len(body) <= _STEAL_BYTES_MAX and (query.n is None or query.n > 0):
            if len(self._steals) >= _STEALS_COUNT_MAX:
                self._steals.clear()
            self._steals[body] = self._steal_of(query)

    def _steal_of(self, query: Query) -> Steal:
        count = 1 if query.n is None else min(query.n, self.settings.steal_max)
        term_ms = self.settings.lease_ms
        if query.lease_ms:  # D32: the worker's own wish, unless the operator allows less
            term_ms = query.lease_ms if term_ms is None else min(term_ms, query.lease_ms)
            self._has_terms = True
        asked = term_ms is not None and query.lease_ms is not None
        rest = pack_lease(term_ms) if asked and term_ms is not None else b""
        return Steal(Holder("dwork", query.location), count, term_ms, rest)

    def overflowed(self, peer: bytes) -> None:
        """Drops and counts a message with too many frames or without a delimiter."""
        self.dropped_count += 1
        self.hub.report_dropped(self.dropped_count)

    def is_overwhelmed(self) -> bool:
        """Whether so many replies are pending that no more requests should be read."""
        return self.turns.awaited_count > AWAITED_COUNT_MAX

    def look_up_from_work(self) -> None:
        """After a commit: held steals may have nothing left to wait for."""
        self._stealing.look()

    def drain(self) -> None:
        """The server is about to stop: answers all held steals."""
        self._stealing.let_all_go()

    # Requests.

    def _check(self, query: Query) -> None:
        """D4: all required fields are there, and no others."""
        form = _FORMS.get(query.kind)
        if form is None:
            raise WireError(f"{query.kind.name} is not a request")
        given = (
            bool(query.tasks),
            query.name is not None,
            query.n is not None and query.kind is not Kind.STEAL,
            query.location is not None,
        )
        if given != form:
            raise _malformed(query.kind, form, given)
        if query.location is not None:
            _check_location(query.location)
        if query.lease_ms is not None and not 0 <= query.lease_ms <= limits.TIME_MS_MAX:
            raise WireError(f"lease_ms must be between 0 and {limits.TIME_MS_MAX}")
        for task in query.tasks:
            self._check_task(task)

    def _check_task(self, task: Task) -> None:
        name = task.name
        if not name:
            raise WireError("the name of a task is empty")
        if len(name) > limits.NAME_BYTES_MAX:
            raise WireError(f"the name of a task is longer than {limits.NAME_BYTES_MAX} bytes")
        for dep in task.preds:
            if dep.name == name:
                raise WireError(f"task {name[:200]!r} cannot depend on itself")
            if not dep.name:
                raise WireError("the name of a predecessor is empty")
        if task.payload is None and task.result is None:
            return
        bytes_max = self.settings.payload_bytes_max
        for data in (task.payload, task.result):
            if data is not None and len(data) > bytes_max:
                raise WireError(f"{len(data)} bytes are more than the {bytes_max} allowed")

    def on_create(self, turn: Turn, query: Query) -> None:
        if query.resume:
            resume(self.hub, self.settings.queue, turn, query.tasks, self._maker)
            return
        new_job, job_id = self._maker.new_job, self.hub.job_id
        items = tuple([new_job(task, job_id()) for task in query.tasks])

        def settle(reply: Reply) -> None:
            first = reply.items[0] if type(reply) is SubmittedMany else reply
            if isinstance(first, Refusal):
                turn.refuse_by(first)
            else:
                turn.finish()

        self.hub.ask(Submit(items, all_or_nothing=True), settle)

    def on_steal(self, turn: Turn, query: Query) -> None:
        steal = self._steal_of(query)
        self._note_alive(query.location or "", steal.term_ms)
        if steal.count <= 0:
            turn.say(Kind.NOT_FOUND)
            return
        self._stealing.steal(turn, steal)

    def on_complete(self, turn: Turn, query: Query) -> None:
        location = query.location or ""
        self._note_alive(location)
        report(self.hub, self.settings.queue, turn, location, query.tasks)

    def on_transfer(self, turn: Turn, query: Query) -> None:
        location = query.location or ""
        self._note_alive(location)
        preds: dict[str, tuple[Dep, ...]] = {}
        for task in query.tasks:
            preds[task.name] = (*preds.get(task.name, ()), *task.preds)
        proof = ByHolder("dwork", location)
        items = tuple(
            Release(
                job_id=name_key(self.settings.queue, name),
                proof=proof,
                reentry=Reentry.TAIL,
                depends_on=tuple(dep.name for dep in deps),
                namespace=self.settings.queue,
                on_unknown_dependency=self._maker.on_unknown,
            )
            for name, deps in preds.items()
        )

        def settle(reply: Reply) -> None:
            if isinstance(reply, Refusal):
                turn.refuse_by(reply)
            else:
                turn.finish()

        self.hub.ask(ReleaseAll(items), settle)

    def on_exit(self, turn: Turn, query: Query) -> None:
        location = query.location or ""
        known = self._locations.pop(location, None) is not None
        self._terms.pop(location, None)
        command = Depart(
            holder=Holder("dwork", location),
            reason=EndReason.GOODBYE,
            count_max=limits.DEPARTED_COUNT_MAX,
        )

        def settle(reply: Reply) -> None:
            nonlocal known
            if isinstance(reply, Refusal):
                turn.refuse_by(reply)
                return
            count = reply.count if type(reply) is Accepted else 0
            known = known or count > 0
            if count == command.count_max:
                self.hub.ask(command, settle)  # other peers had their turn
            elif known:
                turn.finish()
            else:
                turn.say(Kind.NOT_FOUND)

        self.hub.ask(command, settle)

    def on_status(self, turn: Turn, query: Query) -> None:
        if self.hub.draining:
            turn.say(Kind.EXIT)
            return
        counts = self.hub.counts(self.settings.queue)
        active = sum(counts[state] for state in _UNFINISHED) if counts is not None else 0
        ready = counts[State.READY] if counts is not None else 0
        body = encode(
            Query(
                kind=Kind.OK,
                name=f"dhub: {active} active tasks, {ready} ready.",
                n=min(ready, _INT32_MAX),
                counts=self._count(counts) if query.detail else None,
            )
        )
        # An empty query: its answer comes when what was counted is on disk.
        self.hub.ask(LookByName(self.settings.queue, ""), lambda _: turn.answer(body))

    def _count(self, counts: Mapping[State, int] | None) -> Counts:
        """D38: the whole graph by state."""
        hub, queue = self.hub, self.settings.queue
        if counts is None:
            return Counts()
        under_way = counts[State.READY] or counts[State.LEASED] or counts[State.DELAYED]
        ended = hub.endings(queue)
        return Counts(
            waiting=counts[State.BLOCKED],
            delayed=counts[State.DELAYED],
            ready=counts[State.READY],
            stolen=counts[State.LEASED],
            done=ended[State.COMPLETED],
            failed=ended[State.FAILED],
            cancelled=ended[State.CANCELLED],
            # If nothing moves, clients that wait for the end rely on this number.
            held=hub.held_count(queue, exactly=not under_way),
        )

    def on_lookup(self, turn: Turn, query: Query) -> None:
        if self.settings.strict:
            turn.refuse("LOOKUP is not supported by a strict endpoint")
            return
        if self.hub.draining:
            turn.say(Kind.EXIT)
            return

        queue, name = self.settings.queue, query.name or ""

        def show(job: Job | None) -> None:
            if job is None or not self.hub.sees(job):
                turn.say(Kind.NOT_FOUND)
                return
            task = task_of(job, queue, self.hub, job.state.value)
            where = job.lease.holder.name if type(job.lease) is Lease else None
            turn.answer(encode(Query(kind=Kind.OK, tasks=(task,), location=where)))

        def settle(reply: Reply) -> None:
            job = reply.job if type(reply) is Found else None
            if job is not None:
                show(job)
            else:  # its graph may have ended: then only the store knows it
                self.hub.find_ended(queue, (name,), lambda found: show(found.get(name)))

        self.hub.ask(Look(name_key(queue, name)), settle)

    def _note_alive(self, location: str, term_ms: int | None = None) -> None:
        """D32: a worker that sends anything is alive and keeps what it holds."""
        locations = self._locations
        if location not in locations:
            if len(locations) >= _LOCATIONS_COUNT_MAX:
                oldest = next(iter(locations))
                del locations[oldest]
                self._terms.pop(oldest, None)
            locations[location] = 0
        if term_ms is not None:
            self._terms[location] = term_ms
        lease_ms = self._terms.get(location) or self.settings.lease_ms
        if lease_ms is None:
            return
        now = self.hub.now()
        # Often enough, without a write for each message.
        if now - locations[location] < lease_ms // 4:
            return
        locations[location] = now
        proof = ByHolder("dwork", location)
        for job_id in self.hub.leased_ids(Holder("dwork", location)):
            self.hub.ask(Renew(job_id=job_id, proof=proof))


_INT32_MAX: Final = 2**31 - 1
_Form = tuple[bool, bool, bool, bool]
_FIELDS: Final = ("task", "name", "n", "location")
# The fields of a request of each kind; a steal may also have n.
_FORMS: Final[dict[Kind, _Form]] = {
    Kind.CREATE: (True, False, False, False),
    Kind.STEAL: (False, False, False, True),
    Kind.COMPLETE: (True, False, False, True),
    Kind.TRANSFER: (True, False, False, True),
    Kind.LOOKUP: (False, True, False, False),
    Kind.OK: (False, False, False, False),
    Kind.EXIT: (False, False, False, True),
}


def _malformed(kind: Kind, form: _Form, given: _Form) -> WireError:
    for field, wanted, found in zip(_FIELDS, form, given, strict=True):
        if found != wanted:
            word = "must be absent" if found else "is missing"
            return WireError(f"{field} {word} in {kind.name}")
    raise AssertionError("nothing is wrong with it")


def _check_location(location: str) -> None:
    if not location:
        raise WireError("the location is empty")
    if len(location.encode()) > limits.HOLDER_NAME_BYTES_MAX:
        raise WireError(f"the location is longer than {limits.HOLDER_NAME_BYTES_MAX} bytes")


_S = DworkSession
_ACTIONS: Final[dict[Kind, Callable[[DworkSession, Turn, Query], None]]] = {
    Kind.CREATE: _S.on_create,
    Kind.STEAL: _S.on_steal,
    Kind.COMPLETE: _S.on_complete,
    Kind.TRANSFER: _S.on_transfer,
    Kind.LOOKUP: _S.on_lookup,
    Kind.OK: _S.on_status,
    Kind.EXIT: _S.on_exit,
}
