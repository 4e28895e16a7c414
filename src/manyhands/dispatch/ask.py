"""Asking the dispatcher: one command from a coroutine, or many with one callback for all
replies.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from manyhands.access.audit import current_action
from manyhands.access.gate import current_guard
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.session import Ask
from manyhands.model.commands import Command
from manyhands.model.replies import Reply

# Commands of one request that are decided before other peers get their turn.
_SLICE: Final = 500


async def settled(dispatcher: Dispatcher) -> None:
    """Wait until everything that was decided is on disk."""
    idle = asyncio.Event()
    dispatcher.when_idle(idle.set)
    await idle.wait()


async def ask(dispatcher: Dispatcher, command: Command) -> Reply:
    """The reply, once it may leave (rule 23). If the caller is gone by then, it is dropped."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def settle(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    action = current_action()
    entry = action.begin((command,)) if action is not None else None
    _present(dispatcher, recorded=entry is not None)(command, settle)
    reply = await future
    if action is not None and entry is not None:
        action.end(entry, (reply,))
    return reply


def _present(dispatcher: Dispatcher, *, recorded: bool) -> Ask:
    """How the request that is being handled asks."""
    guard = current_guard()
    if guard is None:
        return dispatcher.ask
    return guard.ask_recorded if recorded else guard.ask


def ask_many(ask: Ask, commands: Sequence[Command], finish: Callable[[list[Any]], None]) -> None:
    """One reply for each command, in order, all together when the last one may leave. They share
    commits; a long list is decided in slices.
    """
    left = len(commands)
    if left == 1:
        ask(commands[0], lambda reply: finish([reply]))
        return
    replies: list[Any] = [None] * left
    if not left:
        finish(replies)
        return

    def settle(index: int, reply: Reply) -> None:
        nonlocal left
        replies[index] = reply
        left -= 1
        if left == 0:
            finish(replies)

    def go_on(start: int) -> None:
        stop = min(start + _SLICE, len(commands))
        for index in range(start, stop):
            ask(commands[index], functools.partial(settle, index))
        if stop < len(commands):
            asyncio.get_running_loop().call_soon(go_on, stop)

    go_on(0)


async def ask_all(dispatcher: Dispatcher, commands: Sequence[Command]) -> list[Any]:
    """The same from a coroutine."""
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def finish(replies: list[Any]) -> None:
        if not future.done():
            future.set_result(replies)

    action = current_action()
    entry = action.begin(commands) if action is not None else None
    ask_many(_present(dispatcher, recorded=entry is not None), commands, finish)
    replies = await future
    if action is not None and entry is not None:
        action.end(entry, replies)
    return replies
