"""The audit log: what operators do, with who, what, how many and when, kept in the store.

A request that changes something beside the ordinary traffic of workers and submitters runs within
an `Action`. The commands that it asks for note themselves there: before they are decided, so that
nothing is done that is not on record, and again when their outcome is known.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from manyhands.model.audit import AuditEntry
from manyhands.model.commands import (
    Cancel,
    Command,
    Look,
    LookByKey,
    LookByName,
    PutSchedule,
)
from manyhands.model.outcome import ChangedMany, Refusal, Reply
from manyhands.protocols.session import Settle
from manyhands.server.access import ANYBODY, Caller

if TYPE_CHECKING:
    from manyhands.server.app import Server

_TARGET_MAX: Final = 255
_REQUEST_MAX: Final = 255


class AuditLog:
    """Writes entries, and completes them."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    @contextmanager
    def action(self, caller: Caller, address: str, request: str) -> Iterator["Action"]:
        """What is asked for within is done by this caller."""
        action = Action(self, caller, address, request[:_REQUEST_MAX])
        token = _CURRENT.set(action)
        try:
            yield action
        finally:
            _CURRENT.reset(token)

    def ask(self, command: Command, settle: Settle, address: str, request: str) -> None:
        """A command of an operator who came over another way than HTTP."""
        action = Action(self, ANYBODY, address, request)
        entry = action.begin((command,))

        def told(reply: Reply) -> None:
            if entry is not None:
                action.end(entry, (reply,))
            settle(reply)

        self._server.dispatcher.ask(command, told)

    def note(self, entry: AuditEntry) -> AuditEntry:
        """Let the next commit have it; a new one gets its number."""
        store = self._server.store
        if not entry.seq:
            seq = store.take_audit_seq()
            entry = replace(entry, seq=seq, at=self._server.clock.now())
        store.keep_audit(entry)
        self._server.dispatcher.touch()
        return entry


class Action:
    """One request of an operator, and the entries that it makes."""

    def __init__(self, log: AuditLog, caller: Caller, address: str, request: str) -> None:
        self.caller = caller
        self._log = log
        self._start = AuditEntry(
            seq=0,
            at=0,
            who=caller.name,
            role=caller.role.value,
            address=address,
            request=request,
            what="",
        )

    def begin(self, commands: Sequence[Command]) -> AuditEntry | None:
        """These are about to be asked. None: they only look."""
        if not commands or isinstance(commands[0], Look | LookByKey | LookByName):
            return None
        first = commands[0]
        asked = sum(
            len(command.job_ids) if isinstance(command, Cancel) else 1 for command in commands
        )
        return self.note(_words(first), _target(first), asked)

    def note(self, what: str, target: str, asked: int) -> AuditEntry:
        """Something is about to be done that is no command."""
        entry = replace(self._start, what=what, target=target[:_TARGET_MAX], asked=asked)
        return self._log.note(entry)

    def end(self, entry: AuditEntry, replies: Sequence[Any]) -> None:
        """That came of them."""
        changed = sum(_changed(reply) for reply in replies)
        refused = next((reply.why.value for reply in replies if isinstance(reply, Refusal)), "")
        self._log.note(replace(entry, changed=changed, refused=refused, known=True))

    def finish(self, entry: AuditEntry, changed: int) -> None:
        """The same for what is no command."""
        self._log.note(replace(entry, changed=changed, known=True))


_CURRENT: ContextVar[Action | None] = ContextVar("action", default=None)


def current_action() -> Action | None:
    """The operator's request that is being dealt with, if it is one."""
    return _CURRENT.get()


def _changed(reply: Reply) -> int:
    if isinstance(reply, Refusal):
        return 0
    return len(reply.jobs) if isinstance(reply, ChangedMany) else 1


def _words(command: Command) -> str:
    """SetQueue is shown as "set queue"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(command).__name__).lower()


def _target(command: Command) -> str:
    if isinstance(command, Cancel):
        return command.job_ids[0] if command.job_ids else ""
    if isinstance(command, PutSchedule):
        return command.schedule.schedule_id
    for field in ("job_id", "queue", "name", "schedule_id", "items"):
        value = getattr(command, field, None)
        if isinstance(value, str):
            return value
        if isinstance(value, tuple) and value:
            return str(getattr(value[0], "job_id", ""))
    return ""
