"""The thread in which all clients of this process run their streams, and the ways in and out of it.

No loop of the user is ever entered: calls go into the home loop in batches, and results come back
to the waiting thread or to the loop that they were awaited in.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from manyhands.client import loops

T = TypeVar("T")
Settle = Callable[[Any, BaseException | None], None]  # a result, or an error
_EXIT_SECONDS: Final = 1.0
_log: Final = logging.getLogger("manyhands")


class _Calls:
    """Calls from any thread into one loop, several for each wake-up. They do not keep the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def put(self, function: Callable[..., object], *args: object) -> None:
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            if loop is not None:  # else nobody waits there any more
                loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_woken = False  # before the first call is taken: later ones wake again
        while self._calls:
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception:  # noqa: BLE001 - one call must not end the others
                _log.exception("a call in the client's thread failed")


class Home:
    """A loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = loops.new_loop()
        self._calls = _Calls(self.loop)
        self.call = self._calls.put
        self._thread = threading.Thread(target=self._run, name="manyhands client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _end(self) -> None:
        """The process ends: no task is left waiting, which Python would complain about."""
        if self._thread.is_alive():  # else this is the child of a fork
            ended = threading.Event()
            self.loop.call_soon_threadsafe(self._cancel_all, ended)
            ended.wait(_EXIT_SECONDS)

    def _cancel_all(self, ended: threading.Event) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        waiting = asyncio.gather(*tasks, return_exceptions=True)
        waiting.add_done_callback(lambda _: ended.set())

    def is_here(self) -> bool:
        """Whether the caller runs in this very thread."""
        return threading.current_thread() is self._thread

    def stop(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a last coroutine, for a moment at most, and ends the thread."""
        last = asyncio.run_coroutine_threadsafe(_bounded(coroutine), self.loop)
        with contextlib.suppress(TimeoutError, RuntimeError):
            last.result(2 * _EXIT_SECONDS)
        self._end()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_EXIT_SECONDS)

    def start(self, coroutine: Coroutine[Any, Any, T], settle: Settle) -> None:
        """Runs a coroutine in the home loop."""
        self.call(self._start, coroutine, settle)

    def _start(self, coroutine: Coroutine[Any, Any, T], settle: Settle) -> None:
        task = self.loop.create_task(coroutine)
        _running.add(task)
        task.add_done_callback(lambda done: _finish(done, settle))


async def _bounded(coroutine: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_SECONDS):
            await coroutine


_running: set[asyncio.Task[Any]] = set()


def _finish(task: asyncio.Task[Any], settle: Settle) -> None:
    _running.discard(task)
    if task.cancelled():
        settle(None, asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        settle(None, error)
    else:
        settle(task.result(), None)


# Ways in, together.


class _Turn:
    """Calls of one turn of a user's loop, which go to the home loop together."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def put(
        self, loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object
    ) -> None:
        if not self._calls:
            loop.call_soon(self._hand_over)
        self._calls.append((function, args))

    def _hand_over(self) -> None:
        calls, self._calls = self._calls, []
        home().call(_call_all, calls)


def _call_all(calls: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
    for function, args in calls:
        function(*args)


def call_at_turn_end(function: Callable[..., object], *args: object) -> None:
    """In a coroutine: calls a function in the home loop, together with the others of this turn."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = _Turn()
    turn.put(loop, function, *args)


# Ways out.


def for_thread() -> tuple[Settle, "concurrent.futures.Future[Any]"]:
    """A result for a waiting thread."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def settle(result: object, error: BaseException | None) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    return settle, future


def for_loop() -> tuple[Settle, "asyncio.Future[Any]"]:
    """A result for the running loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    calls = _outgoing.get(loop)
    if calls is None:
        calls = _outgoing[loop] = _Calls(loop)
    put = calls.put

    def arrive(result: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def settle(result: object, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there
            put(arrive, result, error)

    return settle, future


def wait(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Runs a coroutine in the home loop, and waits for it in this thread."""
    settle, future = for_thread()
    home().start(coroutine, settle)
    result: T = future.result(timeout)
    return result


async def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the home loop, and awaits it in this loop."""
    settle, future = for_loop()
    home().start(coroutine, settle)
    result: T = await future
    return result


# One for each process.

_home: Home | None = None
_lock = threading.Lock()
_outgoing: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Calls]"
_outgoing = weakref.WeakKeyDictionary()
_turns: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn]"
_turns = weakref.WeakKeyDictionary()
_clients: "weakref.WeakSet[Any]" = weakref.WeakSet()
_abandoned: list[object] = []  # of the parent process: kept, so that nothing of it is closed here


def home() -> Home:
    """The thread of this process, started at first use."""
    global _home  # noqa: PLW0603 - one for each process is the point
    if _home is None:
        with _lock:
            if _home is None:
                _home = Home()
    return _home


def register(client: object) -> None:
    """Registers a client: its ``after_fork`` is called in the child of a fork, its ``abort`` at
    the end of the program.
    """
    _clients.add(client)


def _after_fork() -> None:
    """P33: the child has no thread of the parent's, and opens streams of its own."""
    global _home, _lock, _outgoing, _running, _turns  # noqa: PLW0603 - one for each process
    _abandoned.extend((_home, _outgoing, _running, _turns))
    _turns = weakref.WeakKeyDictionary()
    _home, _lock = None, threading.Lock()
    _outgoing, _running = weakref.WeakKeyDictionary(), set()
    for client in tuple(_clients):
        client.after_fork()


async def _close_all() -> None:
    for client in tuple(_clients):
        await client.abort()


@atexit.register
def _at_exit() -> None:
    """Closes connections in an orderly way. Requests after that get an error."""
    global _home  # noqa: PLW0603 - one for each process
    if _home is not None:
        _home.stop(_close_all())
        _home = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
