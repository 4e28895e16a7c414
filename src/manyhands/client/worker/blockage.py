"""Notices coroutines that block the loop (P56)."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from manyhands.client.worker.run import Run

_log: Final = logging.getLogger("manyhands.worker")
_BEAT_SECONDS: Final = 0.25
BLOCKED_SECONDS: Final = 1.0


class BlockageWatch:
    """A thread that looks whether the loop still turns."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running: Callable[[], Sequence[Run]]
    ) -> None:
        self._loop = loop
        self._running = running
        self._loop_thread = threading.get_ident()
        self._beaten_at = perf_counter()
        self._timer: asyncio.TimerHandle | None = None
        self._end = threading.Event()
        self._beat()
        threading.Thread(target=self._watch, name="manyhands-watch", daemon=True).start()

    def _beat(self) -> None:
        self._beaten_at = perf_counter()
        self._timer = self._loop.call_later(_BEAT_SECONDS, self._beat)

    def close(self) -> None:
        """Stops watching."""
        self._end.set()
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        warned_of = 0.0
        while not self._end.wait(_BEAT_SECONDS):
            beaten_at = self._beaten_at
            blocked = perf_counter() - beaten_at - _BEAT_SECONDS
            if blocked > BLOCKED_SECONDS and beaten_at != warned_of:
                warned_of = beaten_at
                self._warn(blocked)

    def _warn(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        runs = [run for run in self._running() if run.aio is not None and run.aio is task]
        if not runs:
            return  # the machine is busy, or a thread holds the interpreter
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - there is no other way
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
        _log.warning(
            "task %s, job %s, has blocked the loop for %.1f s at %s; other coroutines of this "
            "process stand still",
            runs[0].task.name,
            runs[0].given.id,
            seconds,
            where,
        )
