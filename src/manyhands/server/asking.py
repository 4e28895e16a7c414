"""Asking the dispatcher from a coroutine."""

import asyncio

from manyhands.model.commands import Command
from manyhands.model.outcome import Reply
from manyhands.server.dispatcher import Dispatcher


async def ask(dispatcher: Dispatcher, command: Command) -> Reply:
    """The reply, once it may be told. If the caller is gone by then, nobody hears it."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def settle(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    dispatcher.ask(command, settle)
    return await future
