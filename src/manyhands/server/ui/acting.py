"""Carrying out what a form asks for."""

from manyhands.model.commands import Command
from manyhands.model.outcome import Refusal
from manyhands.server.asking import ask
from manyhands.server.ui.page import Done
from manyhands.server.ui.visit import Visit


async def carry_out(visit: Visit, command: Command, sentence: str, to: str) -> Done:
    """Ask for it; the sentence says that it was done, or the refusal why not."""
    reply = await ask(visit.server.dispatcher, command)
    if isinstance(reply, Refusal):
        return Done(to, f"Refused: {reply.sentence}.", failed=True)
    return Done(to, sentence)
