"""Roles of callers, and the patterns of queues that a caller may use."""

import enum
import re
from functools import lru_cache
from typing import Final

from msgspec import Struct


class Right(enum.StrEnum):
    """What a command needs."""

    LOOK = "look"
    SUBMIT = "submit"
    WORK = "work"
    OPERATE = "operate"
    OWN = "own"  # concerns only the sender's own connection: every caller has it
    SERVER = "server"  # only the server itself asks it: no role has this right


class Role(enum.StrEnum):
    """What a caller may do."""

    READ = "read"  # look
    SUBMIT = "submit"  # submit, and look at what it submitted
    WORK = "work"  # claim, and everything on its own leases
    WORKER = "worker"  # submit and work
    OPERATE = "operate"  # everything


RIGHTS: Final = {
    Role.READ: frozenset({Right.OWN, Right.LOOK}),
    Role.SUBMIT: frozenset({Right.OWN, Right.SUBMIT}),
    Role.WORK: frozenset({Right.OWN, Right.WORK}),
    Role.WORKER: frozenset({Right.OWN, Right.SUBMIT, Right.WORK}),
    Role.OPERATE: frozenset({Right.OWN, Right.LOOK, Right.SUBMIT, Right.WORK, Right.OPERATE}),
}


class Caller(Struct, frozen=True):
    """The sender of commands. Without queues, its role holds for all of them."""

    name: str
    role: Role
    queues: tuple[str, ...] = ()  # patterns: * stands for any characters

    @property
    def is_unrestricted(self) -> bool:
        """Whether nothing has to be checked."""
        return self.role is Role.OPERATE and not self.queues

    def has(self, right: Right) -> bool:
        """Whether its role includes a right."""
        return right in RIGHTS[self.role]

    def may_use(self, queue: str) -> bool:
        """Whether its role holds for this queue."""
        return fits_any(self.queues, queue)

    def sees(self, queue: str, submitter: str) -> bool:
        """Whether it may look at a job: one of its queues, or, without the right to look at all
        jobs, one that it submitted.
        """
        if not self.may_use(queue):
            return False
        if self.has(Right.LOOK):
            return True
        mark = f"@{self.name}"
        return self.has(Right.SUBMIT) and (submitter == mark or submitter.startswith(f"{mark} "))

    def signed(self, submitter: str) -> str:
        """The name under which a job that it submits is stored: ``@`` and its own name, so that it
        may look at the job later, and what the protocol knows the submitter by.
        """
        mark = f"@{self.name}"
        if submitter == mark or submitter.startswith(f"{mark} "):
            return submitter  # already
        return f"{mark} {submitter}" if submitter else mark


def unsigned(submitter: str) -> str:
    """What the protocol knows the submitter by, without the name of a caller. A protocol that asks
    this must not store a name that begins with ``@``.
    """
    return submitter.partition(" ")[2] if submitter.startswith("@") else submitter


def may_pass_on(submitter: str, other: str) -> bool:
    """Whether the submitter of a job may give its worker the result of a job of the other one: it
    is the same caller, or one that may look at all jobs, whose name is not signed.
    """
    return not submitter.startswith("@") or submitter.partition(" ")[0] == other.partition(" ")[0]


# Without an access file, callers on this machine are trusted.
ANYBODY: Final = Caller("", Role.OPERATE)


def fits_any(patterns: tuple[str, ...], queue: str) -> bool:
    """Whether a queue fits one of the patterns; every queue does if there are none."""
    return not patterns or _compiled(patterns).fullmatch(queue) is not None


@lru_cache(maxsize=1_000)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.DOTALL
    )
