"""The line of passwords that wait to be checked.

A check takes 50 ms, so it runs in a thread, few at a time. Addresses take turns, and one that has
shown a wrong password rests before its next check: a flood of guesses from one address holds up
nobody else, neither in the event loop nor in the line.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from manyhands.access.callers import Entry, PasswordCheck

# How many wait, of one address and in all.
_WAITING_OF_ONE_MAX: Final = 20
_WAITING_MAX: Final = 1_000
# How long an address rests after a wrong password.
REST_SECONDS: Final = 1.0

Then = Callable[[Entry | None], None]
_Waiting = tuple[PasswordCheck, Then]


class PasswordLine:
    """Runs checks, and calls back in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads_max = max(1, min(4, (os.cpu_count() or 1) // 2))
        self._pool: ThreadPoolExecutor | None = None
        # By address, the one whose turn is next first. An address with a check under way, or at
        # rest, is not in it.
        self._lines: dict[str, deque[_Waiting]] = {}
        self._resting: dict[str, deque[_Waiting]] = {}
        self._running_count = 0
        self.waiting_count = 0

    def put(self, address: str, check: PasswordCheck, then: Then) -> bool:
        """Calls back with what the check found. Returns False if too many wait already."""
        line = self._resting.get(address)
        if line is None:
            line = self._lines.setdefault(address, deque())
        if self.waiting_count >= _WAITING_MAX or len(line) >= _WAITING_OF_ONE_MAX:
            return False
        line.append((check, then))
        self.waiting_count += 1
        self._go_on()
        return True

    def _go_on(self) -> None:
        while self._lines and self._running_count < self._threads_max:
            address = next(iter(self._lines))
            line = self._resting[address] = self._lines.pop(address)
            check, then = line.popleft()
            self.waiting_count -= 1
            self._running_count += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads_max, "password")
            running = self._loop.run_in_executor(self._pool, check.run)
            running.add_done_callback(partial(self._checked, address, then))

    def _checked(self, address: str, then: Then, done: "asyncio.Future[Entry | None]") -> None:
        self._running_count -= 1
        found = None if done.cancelled() or done.exception() is not None else done.result()
        if found is None:
            self._loop.call_later(REST_SECONDS, self._rested, address)
        else:
            self._rested(address)
        self._go_on()
        then(found)

    def _rested(self, address: str) -> None:
        line = self._resting.pop(address)
        if line:
            self._lines[address] = line
            self._go_on()
