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

T = TypeVar("T")
Settle = Callable[[Any, BaseException | None], None]  # a result, or an error
_log: Final = logging.getLogger("manyhands")
_END_SECONDS: Final = 1.0


class _Calls:
    """Calls from any thread into one loop, several for each wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def put(self, function: Callable[..., object], *args: object) -> None:
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._run)

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
        self.loop = asyncio.new_event_loop()
        self._calls = _Calls(self.loop)
        self.call = self._calls.put
        self._thread = threading.Thread(target=self._run, name="manyhands", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _end(self) -> None:
        """The process ends: no task is left waiting, which Python would complain about."""
        if self._thread.is_alive():  # else this is the child of a fork
            ended = threading.Event()
            self.loop.call_soon_threadsafe(self._cancel_all, ended)
            ended.wait(_END_SECONDS)

    def _cancel_all(self, ended: threading.Event) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        waiting = asyncio.gather(*tasks, return_exceptions=True)
        waiting.add_done_callback(lambda _: ended.set())

    def is_here(self) -> bool:
        """Whether the caller runs in this very thread."""
        return threading.current_thread() is self._thread

    def start(self, coroutine: Coroutine[Any, Any, T], settle: Settle) -> None:
        """Runs a coroutine in the home loop."""
        self.call(self._start, coroutine, settle)

    def _start(self, coroutine: Coroutine[Any, Any, T], settle: Settle) -> None:
        task = self.loop.create_task(coroutine)
        _running.add(task)
        task.add_done_callback(lambda done: _finish(done, settle))


_running: set[asyncio.Task[Any]] = set()


def _finish(task: asyncio.Task[Any], settle: Settle) -> None:
    _running.discard(task)
    if task.cancelled():
        settle(None, asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        settle(None, error)
    else:
        settle(task.result(), None)


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
_on_fork: "weakref.WeakSet[Any]" = weakref.WeakSet()
_abandoned: list[object] = []  # of the parent process: kept, so that nothing of it is closed here


def home() -> Home:
    """The thread of this process, started at first use."""
    global _home  # noqa: PLW0603 - one for each process is the point
    if _home is None:
        with _lock:
            if _home is None:
                _home = Home()
    return _home


def forked(client: object) -> None:
    """Registers a client whose ``after_fork`` is called in the child of a fork."""
    _on_fork.add(client)


def _after_fork() -> None:
    """P33: the child has no thread of the parent's, and opens streams of its own."""
    global _home, _lock, _outgoing, _running
    _abandoned.extend((_home, _outgoing, _running))
    _home, _lock = None, threading.Lock()
    _outgoing, _running = weakref.WeakKeyDictionary(), set()
    for client in tuple(_on_fork):
        client.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
