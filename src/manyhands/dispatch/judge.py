"""Who may ask what, where that cannot be said before a decision is made."""

from typing import Protocol

from manyhands.engine.view import View
from manyhands.model.commands import Command
from manyhands.model.replies import Refusal
from manyhands.model.roles import Sender


class Judge(Protocol):
    """Says whether a caller may ask a command, where that depends on records which have to be read
    first, or which only another server has.
    """

    @property
    def sender(self) -> Sender:
        """The caller."""

    def refusal_of(self, command: Command, view: View) -> Refusal | None:
        """Why the command is refused, or None. May raise MissingError."""
