"""The gate between callers and the dispatcher: every command of a restricted caller passes it.

A caller that may do everything gets the dispatcher's own ``ask``: it pays nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Final, ParamSpec, TypeVar

from msgspec.structs import force_setattr, replace

from manyhands.access.audit import AuditLog, target_of, words_of
from manyhands.access.rights import ALL, TABLE, OfJob, View, met_by
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.session import Ask, Refused, Settle
from manyhands.model.commands import (
    Attach,
    Claim,
    Command,
    Depart,
    Look,
    LookByKey,
    NewJob,
    Proof,
    RenewHeld,
    Resume,
    Submit,
)
from manyhands.model.job import Holder, Job, Origin
from manyhands.model.plain import PlainLeased
from manyhands.model.replies import Found, Refusal, Reply, Why
from manyhands.model.roles import RIGHTS, Caller, Right, Role, Sender

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")

_HINTS: Final = {
    Right.LOOK: "the role read or operate",
    Right.SUBMIT: "the role submit, worker or operate",
    Right.WORK: "the role work, worker or operate",
    Right.OPERATE: "the role operate",
    Right.SERVER: "the server itself",
}
# A queue is judged once per caller; beyond this many, all are forgotten.
_JUDGED_MAX: Final = 10_000
# Callers of other servers whose judges are kept.
_JUDGES_MAX: Final = 1_000


class Gate:
    """Makes the guards of callers."""

    def __init__(self, dispatcher: Dispatcher, audit: AuditLog) -> None:
        self.dispatcher = dispatcher
        self.audit = audit
        self.refused_count = 0
        self._judges: dict[Sender, Judge] = {}  # of callers of other servers

    def ask_of(self, caller: Caller | None, address: str, protocol: str) -> Ask:
        """How a connection of this caller asks."""
        guard = self.guard(caller, address, protocol)
        return self.dispatcher.ask if guard is None else guard.ask

    def judge_of(self, sender: Sender) -> "Judge | None":
        """Who judges what a caller of another server asks; None if it may do everything."""
        judge = self._judges.get(sender)
        if judge is None:
            guard = self.guard(sender.caller, sender.address, sender.protocol)
            if guard is None:
                return None
            if len(self._judges) >= _JUDGES_MAX:
                self._judges.clear()
            judge = self._judges[sender] = guard.judge
        return judge

    def guard(self, caller: Caller | None, address: str, protocol: str) -> "Guard | None":
        """What a caller's commands have to pass; None if it may do everything. Without a caller
        (not identified so far), everything is refused.
        """
        if caller is not None and caller.is_unrestricted:
            return None
        return Guard(self, caller or NOBODY, address, protocol)


# A peer that has not been identified.
NOBODY: Final = Caller("", Role.READ)


class Guard:
    """Lets a caller's commands through, or refuses them with a sentence."""

    def __init__(self, gate: Gate, caller: Caller, address: str, protocol: str) -> None:
        self.caller = caller
        self._gate = gate
        self._dispatcher = gate.dispatcher
        self._ask = gate.dispatcher.ask
        self._live = gate.dispatcher.store.live
        self.judge = Judge(self, Sender(caller, address, protocol), is_recorded=True)
        self._unrecorded = Judge(self, self.judge.sender, is_recorded=False)
        self._address = address
        self._protocol = protocol
        self._rights = frozenset({Right.OWN}) if caller is NOBODY else RIGHTS[caller.role]
        self._only_submits = Right.SUBMIT in self._rights and Right.WORK not in self._rights
        self._judged: dict[str | None, bool] = {ALL: not caller.queues}
        self._origin: tuple[Origin | None, Origin | None] = (None, None)  # the last, and signed
        # Commands of which nothing depends on their queues or jobs.
        self._free = frozenset() if caller.queues else _free_of(self._rights)
        if Claim in self._free:
            # Workers of all queues pay nothing for their jobs.
            self.claim_at_once = gate.dispatcher.claim_at_once
            self.complete_at_once = gate.dispatcher.complete_at_once
        else:
            self.claim_at_once = self._claim_at_once
            self.complete_at_once = self._complete_at_once

    def ask(
        self, command: Command, settle: Settle | None = None, refused: Refused | None = None
    ) -> None:
        """As the dispatcher's. A refusal is recorded in the audit log."""
        if type(command) in self._free:
            self._ask(command, settle, refused)
            return
        refusal = self.refusal_of(command)
        if refusal is None:
            self._pass(command, settle, refused, self.judge)
        else:
            self.record(words_of(command), target_of(command))
            self._dispatcher.refuse(refusal, settle, refused)

    def ask_recorded(
        self, command: Command, settle: Settle | None = None, refused: Refused | None = None
    ) -> None:
        """The same for a command that is in the audit log already."""
        refusal = self.refusal_of(command)
        if refusal is None:
            self._pass(command, settle, refused, self._unrecorded)
        else:
            self._gate.refused_count += 1
            self._dispatcher.refuse(refusal, settle, refused)

    def refusal_of(self, command: Command, view: View | None = None) -> Refusal | None:
        """Why a command is refused before it is decided, or None. Without a view, by what is known
        at once.
        """
        if view is None:
            view = self._live.view
        row = TABLE[type(command)]
        right = row.right
        if right not in self._rights and not self._is_own(command, right):
            return self.lacks(right)
        if self.caller.queues:
            judged = self._judged
            for queue in row.queues(command, view):
                known = judged.get(queue)
                if known is None:
                    known = self._judge(queue)
                if not known:
                    return self.not_in(queue)
        if type(command) is Attach:
            job = view.job(command.job_id)
            if job is not None and not self.sees(job):
                return self.unseen()
        if self._only_submits and isinstance(command, Submit | Resume):
            # Whoever chooses the id or the name of an existing job may requeue it, take it from its
            # worker, or make it wait.
            for item in command.items:
                if not all(map(self.sees, met_by(item, view))):
                    return self.unseen()
        return None

    # The shortcuts of plain jobs: each declines what is not allowed; the command is then refused.

    def submit_at_once(
        self, items: Sequence[NewJob], settle: Callable[[list[str] | Refusal], None], *, early: bool
    ) -> bool:
        """As the dispatcher's, into queues that the caller may use, under its name."""
        is_limited = self.caller.queues or self._only_submits
        if Right.SUBMIT not in self._rights or (
            is_limited and not all(map(self._may_submit, items))
        ):
            return False
        self._sign(items)
        return self._dispatcher.submit_at_once(items, settle, early=early)

    def _may_submit(self, item: NewJob) -> bool:
        """Whether its queue is one of the caller's; whoever names other jobs has to ask."""
        named = item.id_chosen or item.name is not None or item.depends_on
        return not named and self._may_use(item.queue)

    def _claim_at_once(
        self, queue: str, holder: Holder, token: str, connection: str
    ) -> Job | PlainLeased | None:
        """As the dispatcher's, in a queue that the caller may work."""
        if not self._may_work(queue):
            return None
        return self._dispatcher.claim_at_once(queue, holder, token, connection)

    def _complete_at_once(self, job_id: str, proof: Proof, result: bytes) -> bool:
        """As the dispatcher's, for a job of a queue that the caller may work."""
        if self.caller.queues:
            job = self._live.live_job(job_id)
            if job is None or not self._may_work(job.queue):
                return False
        elif not self._may_work(ALL):
            return False
        return self._dispatcher.complete_at_once(job_id, proof, result)

    def _may_work(self, queue: str | None) -> bool:
        if Right.WORK not in self._rights:
            return False
        known = self._judged.get(queue)
        return self._judge(queue) if known is None else known

    def _is_own(self, command: Command, right: Right) -> bool:
        if right is Right.LOOK:
            # What is found is checked: a submitter may see its own jobs.
            return self.caller is not NOBODY
        # The end of its own connection.
        return type(command) is Depart and command.holder is None

    def _judge(self, queue: str | None) -> bool:
        assert queue is not None
        if len(self._judged) >= _JUDGED_MAX:
            self._judged = {ALL: False}
        found = self._judged[queue] = self.caller.may_use(queue)
        return found

    def sees(self, job: Job) -> bool:
        """Whether the caller may look at a job."""
        return self.caller.sees(job.queue, job.origin.name)

    def _pass(
        self, command: Command, settle: Settle | None, refused: Refused | None, judge: "Judge"
    ) -> None:
        kind = type(command)
        if kind is Submit or kind is Resume:
            assert isinstance(command, Submit | Resume)
            self._sign(command.items)
        elif self.caller.queues and (kind is RenewHeld or kind is LookByKey):
            # Workers and keys are known by name only, and another caller's may have the same.
            assert isinstance(command, RenewHeld | LookByKey)
            command = replace(command, queues=self.caller.queues)
        if TABLE[kind].right is Right.LOOK and settle is not None:
            settle = self._shown(settle, by_name=kind is not Look)
        depends = self.caller.queues or self._only_submits or kind is Attach
        self._ask(command, settle, refused, judge if depends else None)

    def _sign(self, items: Iterable[NewJob]) -> None:
        """In place, which costs a tenth of copies: they were made for this command."""
        plain, signed = self._origin
        for item in items:
            origin = item.origin
            if origin is not plain and origin != plain:
                plain, signed = origin, replace(origin, name=self.caller.signed(origin.name))
                self._origin = plain, signed
            force_setattr(item, "origin", signed)

    def _shown(self, settle: Settle, *, by_name: bool) -> Settle:
        """What was chosen by people, such as a unique key, is not even said to exist."""
        hidden = Found(None) if by_name else self.unseen()

        def shown(reply: Reply) -> None:
            job = reply.job if type(reply) is Found else None
            settle(reply if job is None or self.sees(job) else hidden)

        return shown

    # Refusals.

    def lacks(self, right: Right) -> Refusal:
        """The role does not include a right."""
        caller = self.caller
        if caller is NOBODY:
            sentence = "this server requires credentials, and this connection showed none"
        else:
            sentence = f"{caller.name} has the role {caller.role}; this needs {_HINTS[right]}"
        return Refusal(Why.NOT_ALLOWED, sentence)

    def not_in(self, queue: str | None) -> Refusal:
        """The role does not hold for this queue."""
        if queue is None:
            where = "all queues"
        else:
            # What it did not name, it does not learn.
            where = "that queue" if type(queue) is OfJob else f"the queue {queue[:200]}"
        allowed = ", ".join(self.caller.queues)
        return Refusal(
            Why.NOT_ALLOWED, f"{self.caller.name} has no access to {where}, only to {allowed}"
        )

    def unseen(self) -> Refusal:
        """The job is not one that the caller may look at."""
        return Refusal(Why.NOT_ALLOWED, f"{self.caller.name} may not look at this job")

    def may_work(self, queue: str | None) -> bool:
        """Whether the caller may claim jobs of a queue; None: of all."""
        return Right.WORK in self._rights and self._may_use(queue)

    def _may_use(self, queue: str | None) -> bool:
        known = self._judged.get(queue)
        return self._judge(queue) if known is None else known

    def refusal_to_work(self, queue: str | None) -> Refusal | None:
        """Why the caller may not offer to work on a queue, or on all of them; recorded."""
        if self.may_work(queue):
            return None
        self.record("claim", queue or "")
        return self.not_in(queue) if Right.WORK in self._rights else self.lacks(Right.WORK)

    def refusal_to_look(self) -> Refusal | None:
        """Why the caller may not list queues and workers; recorded."""
        if self.caller is not NOBODY and Right.LOOK in self._rights:
            return None
        self.record("look", "")
        return self.lacks(Right.LOOK)

    def record(self, what: str, target: str) -> None:
        """Records a refused command."""
        self._gate.refused_count += 1
        self._gate.audit.refused(self.caller, self._address, self._protocol, what, target)


class Judge:
    """Judges commands of a guard's caller once more: with records that had to be read first, or at
    the server that decides.
    """

    def __init__(self, guard: Guard, sender: Sender, *, is_recorded: bool) -> None:
        self.sender = sender
        self._guard = guard
        self._is_recorded = is_recorded

    def refusal_of(self, command: Command, view: View) -> Refusal | None:
        """Why it is refused, or None. May raise MissingError."""
        refusal = self._guard.refusal_of(command, view)
        if refusal is not None and self._is_recorded:
            self._guard.record(words_of(command), target_of(command))
        return refusal


@cache
def _free_of(rights: frozenset[Right]) -> frozenset[type]:
    """Commands that callers of all queues with these rights may ask as they are."""
    return frozenset(
        kind for kind, row in TABLE.items() if row.right in rights and kind not in (Submit, Resume)
    ) - (frozenset() if Right.LOOK in rights else {Attach})


_GUARD: ContextVar[Guard | None] = ContextVar("guard", default=None)


@contextmanager
def guarded_by(guard: Guard | None) -> Iterator[None]:
    """Commands asked by the coroutine within pass this guard."""
    token = _GUARD.set(guard)
    try:
        yield
    finally:
        _GUARD.reset(token)


def current_guard() -> Guard | None:
    """The guard of the request that is being handled, or None."""
    return _GUARD.get()


class Askers:
    """The present asker of a session that all peers of a socket share. What is called back later
    asks as the peer on whose behalf it waits.
    """

    def __init__(self, ask: Ask) -> None:
        self._own = ask  # of the server itself, outside of any peer's turn
        self._now = ask
        self.guard: Guard | None = None

    def ask(
        self, command: Command, settle: Settle | None = None, refused: Refused | None = None
    ) -> None:
        """Asks as the present peer."""
        if settle is not None:
            settle = self._bind_settle(settle)
        if refused is not None:
            refused = self._bind_refused(refused)
        self._now(command, settle, refused)

    def bind(self, call: Callable[P, R]) -> Callable[P, R]:
        """The same callback, on behalf of the present peer."""
        guard = self.guard

        # In quotes, or the annotations would be made anew each time.
        def bound(*args: "P.args", **kwargs: "P.kwargs") -> R:
            before = self.guard
            if before is guard:
                return call(*args, **kwargs)
            self.enter(guard)  # rather than a context, which takes a microsecond
            try:
                return call(*args, **kwargs)
            finally:
                self.enter(before)

        return bound

    def _bind_settle(self, settle: Settle) -> Settle:
        """As ``bind``, for every command: without calls that can be spared."""
        guard, now = self.guard, self._now

        def bound(reply: Reply) -> None:
            before, before_now = self.guard, self._now
            if before is guard:
                settle(reply)
                return
            self.guard, self._now = guard, now
            try:
                settle(reply)
            finally:
                self.guard, self._now = before, before_now

        return bound

    def _bind_refused(self, refused: Refused) -> Refused:
        def bound() -> Settle | None:
            settle = refused()
            return None if settle is None else self._bind_settle(settle)

        return bound

    def introduce(
        self, guard: Guard | None, receive: Callable[[A, B], None]
    ) -> Callable[[A, B], None]:
        """What receives messages of the peer with this guard: as ``enter`` before and after."""
        now = self._own if guard is None else guard.ask

        def introduced(first: A, second: B) -> None:
            self.guard, self._now = guard, now
            try:
                receive(first, second)
            finally:
                self.guard, self._now = None, self._own

        return introduced

    def enter(self, guard: Guard | None) -> None:
        """From now on, commands are those of this peer."""
        self.guard = guard
        self._now = self._own if guard is None else guard.ask
