"""The threads of a worker. They take jobs from a buffer by themselves (P44).

Slots are numbers in a deque, shared with coroutines: whoever has taken one may run a job. A thread
that finds no job or no slot parks itself on a lock of its own, after it has said so and looked once
more; whoever adds a job or returns a slot wakes one. A thread that takes a job while more are
waiting wakes the next thread: jobs that wait for something start all at once, and jobs that are
done at once are done by one or two threads, without a switch for each. Where jobs are known to be
short, threads leave that to the loop, which looks a few milliseconds later whether any still wait.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from manyhands.client.worker.run import Run

_NAME: Final = "manyhands-job"


class Hands:
    """Threads that run what is in ``buffer`` while there are ``slots``."""

    def __init__(self, slots: "deque[int]", work: Callable[[Run], None]) -> None:
        self.buffer: deque[Run] = deque()
        self.is_held = False  # no job may be started
        self.is_eager = True  # threads wake each other: jobs take long enough for that
        self._slots = slots
        self._count_max = len(slots)
        self._work = work
        self._alone: deque[Run] = deque()
        self._parked: list[threading.Lock] = []
        self._count = 0
        self._lock = threading.Lock()
        self._is_waking = False
        self._is_closed = False

    def put(self, run: Run) -> None:
        """A job to run. In the loop, as all but the threads' own methods."""
        self.buffer.append(run)

    def wake(self) -> None:
        """Wakes a thread if there is something to do for one more. From any thread. One that was
        woken looks for itself, so one at a time is enough.
        """
        if self._is_waking or self.is_held or not (self.buffer and self._slots):
            return
        self._is_waking = True
        try:
            self._parked.pop().release()
        except IndexError:
            self._start()

    @property
    def is_busy(self) -> bool:
        """Whether a thread is awake, which looks at the buffer before it parks."""
        return self._count > len(self._parked)

    def run_alone(self, run: Run) -> None:
        """Runs a job that has its slot already, while all others are held."""
        self._alone.append(run)
        try:
            self._parked.pop().release()
        except IndexError:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._count >= self._count_max:
                self._is_waking = False
                return
            self._count += 1
            name = f"{_NAME}-{self._count}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def write_off(self) -> None:
        """P60: a thread does not end its job; another one may be started."""
        with self._lock:
            self._count -= 1

    def close(self) -> None:
        """Ends threads that have no job."""
        self._is_closed = True
        while self._parked:
            self._parked.pop().release()

    # In the threads.

    def _serve(self) -> None:
        bed = threading.Lock()
        bed.acquire()
        self._is_waking = False
        while not self._is_closed:
            run = self._take()
            if run is None:
                self._park(bed)
                continue
            if self.buffer and self.is_eager:
                self.wake()
            self._work(run)
            if run.was_given_up:
                return  # another thread has taken its place

    def _take(self) -> Run | None:
        if self.is_held:
            return self._take_alone()
        try:
            slot = self._slots.pop()
        except IndexError:
            return None
        try:
            run = self.buffer.popleft()
        except IndexError:
            self._slots.append(slot)
            return None
        run.slot = slot
        return run

    def _take_alone(self) -> Run | None:
        try:
            return self._alone.pop()
        except IndexError:
            return None

    def _park(self, bed: threading.Lock) -> None:
        self._parked.append(bed)
        has_work = self._alone if self.is_held else self.buffer and self._slots
        if has_work or self._is_closed:
            try:
                self._parked.remove(bed)
            except ValueError:
                pass  # woken meanwhile
            else:
                return
        bed.acquire()
        self._is_waking = False
