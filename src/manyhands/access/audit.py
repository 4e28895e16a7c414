"""The audit log: who did what, to how many jobs and when, kept in the store.

A request that changes something, other than the ordinary traffic of workers and submitters, runs
within an `Action`. Its commands are recorded there before they are decided, so that nothing is done
that is not on record, and again when their outcome is known.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from msgspec.structs import replace

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.session import Ask, Settle
from manyhands.model.audit import AuditEntry
from manyhands.model.commands import (
    Cancel,
    Command,
    Look,
    LookByKey,
    LookByName,
    PutSchedule,
)
from manyhands.model.replies import ChangedMany, Refusal, Reply, Why
from manyhands.model.roles import ANYBODY, Caller
from manyhands.store.contract import Store

_TARGET_MAX: Final = 255
_REQUEST_MAX: Final = 255
# Refusals recorded for one sender, and senders with any, in a minute: nobody can fill the disk.
_REFUSED_A_MINUTE: Final = 100


class AuditLog:
    """Writes entries, and completes them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._minute = 0
        self._refused: dict[tuple[str, str], int] = {}  # in this minute, by caller and address

    @contextmanager
    def action(
        self, caller: Caller, address: str, protocol: str, request: str
    ) -> Iterator["Action"]:
        """Attributes the commands asked within to this caller."""
        action = Action(self, caller, address, protocol, request[:_REQUEST_MAX])
        token = _CURRENT.set(action)
        try:
            yield action
        finally:
            _CURRENT.reset(token)

    def ask(
        self,
        command: Command,
        settle: Settle,
        address: str,
        protocol: str,
        request: str,
        caller: Caller = ANYBODY,
        ask: Ask | None = None,
    ) -> None:
        """Asks a command of an operator that did not come over HTTP. ``ask`` is the caller's own
        way to the dispatcher, if it is restricted.
        """
        action = Action(self, caller, address, protocol, request)
        entry = action.begin((command,))

        def settle_recorded(reply: Reply) -> None:
            if entry is not None:
                action.end(entry, (reply,))
            settle(reply)

        (ask or self._dispatcher.ask)(command, settle_recorded)

    def refused(
        self,
        caller: Caller,
        address: str,
        protocol: str,
        what: str,
        target: str,
        request: str = "",
    ) -> None:
        """Records a request that was refused, unless its sender had many of them in this minute."""
        minute = self._dispatcher.clock.now() // 60_000
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
        key = (caller.name, address)
        count = self._refused[key] = self._refused.get(key, 0) + 1
        if count <= _REFUSED_A_MINUTE and len(self._refused) <= _REFUSED_A_MINUTE:
            entry = AuditEntry(
                seq=0,
                at=0,
                who=caller.name,
                role=caller.role.value if caller.name else "",
                address=address,
                protocol=protocol,
                request=request[:_REQUEST_MAX],
                what=what,
                target=target[:_TARGET_MAX],
                asked=1,
                refused=Why.NOT_ALLOWED.value,
                known=True,
            )
            self.note(entry)

    def note(self, entry: AuditEntry) -> AuditEntry:
        """Adds the entry to the next commit; a new one gets its number."""
        store = self._dispatcher.store
        if not entry.seq:
            seq = store.take_audit_seq()
            entry = replace(entry, seq=seq, at=self._dispatcher.clock.now())
        store.keep_audit(entry)
        self._dispatcher.touch()
        return entry


class Action:
    """One request of an operator, and the entries that it makes."""

    def __init__(
        self, log: AuditLog, caller: Caller, address: str, protocol: str, request: str
    ) -> None:
        self.caller = caller
        self._log = log
        self._start = AuditEntry(
            seq=0,
            at=0,
            who=caller.name,
            role=caller.role.value,
            address=address,
            protocol=protocol,
            request=request,
            what="",
        )

    def begin(self, commands: Sequence[Command]) -> AuditEntry | None:
        """Records commands before they are asked. Returns None if they change nothing."""
        if not commands or isinstance(commands[0], Look | LookByKey | LookByName):
            return None
        first = commands[0]
        asked = sum(
            len(command.job_ids) if isinstance(command, Cancel) else 1 for command in commands
        )
        return self.note(words_of(first), target_of(first), asked)

    def note(self, what: str, target: str, asked: int) -> AuditEntry:
        """Records an action that is not a command, before it is done."""
        entry = replace(self._start, what=what, target=target[:_TARGET_MAX], asked=asked)
        return self._log.note(entry)

    def end(self, entry: AuditEntry, replies: Sequence[Any]) -> None:
        """Records the outcome of commands."""
        changed = sum(_changed(reply) for reply in replies)
        refused = next((reply.why.value for reply in replies if isinstance(reply, Refusal)), "")
        self._log.note(replace(entry, changed=changed, refused=refused, known=True))

    def finish(self, entry: AuditEntry, changed: int) -> None:
        """Records the outcome of an action that is not a command."""
        self._log.note(replace(entry, changed=changed, known=True))


_CURRENT: ContextVar[Action | None] = ContextVar("action", default=None)


def current_action() -> Action | None:
    """The operator's request that is being handled, or None."""
    return _CURRENT.get()


# What entries can be searched by: fields that have exactly this text.
AUDIT_CONDITIONS: Final = ("who", "address", "protocol", "what", "target", "refused")
_SCANNED_MAX: Final = 10_000  # entries read for one answer
_PAGE: Final = 500


def search_audit(
    store: Store, caller: Caller, before: int | None, count_max: int, wanted: Mapping[str, str]
) -> tuple[list[AuditEntry], int | None]:
    """Entries that fit, the newest first, and where to go on; None if there are no more. A caller
    with queue patterns sees only its own. May take a while; call it in a thread.
    """
    found: list[AuditEntry] = []
    if caller.queues:
        if wanted.get("who", caller.name) != caller.name:
            return [], None
        wanted = {**wanted, "who": caller.name}
    size = _PAGE if wanted else count_max
    for _ in range(0, _SCANNED_MAX, size):
        page = store.audit(before, size)
        for entry in page:
            before = entry.seq
            if all(getattr(entry, name) == text for name, text in wanted.items()):
                found.append(entry)
                if len(found) == count_max:
                    return found, before
        if len(page) < size:
            return found, None
    return found, before


def _changed(reply: Reply) -> int:
    if isinstance(reply, Refusal):
        return 0
    return len(reply.jobs) if isinstance(reply, ChangedMany) else 1


def words_of(command: Command) -> str:
    """SetQueue is shown as "set queue"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(command).__name__).lower()


def target_of(command: Command) -> str:
    """The job, queue or setting that a command concerns; the first of several."""
    if isinstance(command, Cancel):
        return command.job_ids[0] if command.job_ids else ""
    if isinstance(command, PutSchedule):
        return command.schedule.schedule_id
    for field in ("job_id", "queue", "name", "schedule_id", "queues", "items"):
        value = getattr(command, field, None)
        if isinstance(value, tuple) and value:
            value = value[0]  # a queue, or an item: a new job is known by its queue
            value = getattr(value, "queue", None) or getattr(value, "job_id", value)
        if isinstance(value, str):
            return value
    return ""
