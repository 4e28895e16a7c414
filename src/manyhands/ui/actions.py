"""Carries out the action of a form."""

from manyhands.dispatch.ask import ask
from manyhands.model.commands import Command
from manyhands.model.replies import Refusal
from manyhands.ui.page import Done
from manyhands.ui.visit import Visit


async def carry_out(visit: Visit, command: Command, sentence: str, to: str) -> Done:
    """Asks the command; the answer is the given sentence, or that of the refusal."""
    reply = await ask(visit.dispatcher, command)
    if isinstance(reply, Refusal):
        return Done(to, f"Refused: {reply.sentence}.", failed=True)
    return Done(to, sentence)
