"""How a worker that runs commands stops: what each signal means, and which failures it explains.

A typed interrupt means: let running commands finish, take no more. A second one ends them. SIGTERM
(and SIGHUP, as when a terminal is closed) comes from a sender that will not wait for long: Slurm
sends SIGKILL 30 seconds later, most init systems 90. So running commands get a grace period, are
then ended, and their work goes back to the server.
"""

import contextlib
import os
import select
import signal
import threading
from types import FrameType
from typing import Final

import typer

from manyhands.cli.child import Ended
from manyhands.dispatch.clock import Clock

# After the commands were ended: time to report, and to give back unfinished work.
_FAREWELL_MS: Final = 5_000
# A signal to a whole job reaches its processes one by one, and the worker may be the last: it waits
# this long for its own signal before it takes a command's death for a failure.
_BY_SIGNAL_SECONDS: Final = 1.0
_BY_CODE_SECONDS: Final = 0.25
_NEWS: Final = 0  # not the number of a signal
# Exit codes of shells whose command was ended by SIGHUP, SIGINT, SIGKILL, SIGTERM.
_CODES_OF_SIGNALS: Final = frozenset({129, 130, 137, 143})


class Stopping:
    """The signals of one process, handled by its main thread."""

    def __init__(self, grace_seconds: float, kill_after_seconds: float) -> None:
        self.finishing = threading.Event()  # no more work is taken
        self.ending = threading.Event()  # commands are ended; their work goes back
        self.too_late = threading.Event()  # no more waiting for the server
        self.kill_after_ms = kill_after_seconds * 1000
        self._grace_ms = grace_seconds * 1000
        self._clock = Clock()
        self._terminated = threading.Event()
        self._end_at: float | None = None
        self._leave_at: float | None = None
        self._ear, self._bell = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._bell, False)

    def listen(self) -> None:
        """Installs the handlers."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup, SIGHUP must stay ignored.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ring)

    def _ring(self, number: int, _frame: FrameType | None = None) -> None:
        # Nothing else is safe in here: the main thread may hold any lock.
        with contextlib.suppress(BlockingIOError):  # thousands are pending already
            os.write(self._bell, bytes((number,)))

    def wake(self) -> None:
        """Makes ``attend`` return; may be called from any thread."""
        self._ring(_NEWS)

    def attend(self, seconds: float) -> None:
        """Waits for a signal or for this long, and does what is due."""
        now = self._clock.monotonic_ms
        due = [at - now() for at in (self._end_at, self._leave_at) if at is not None]
        if select.select([self._ear], [], [], max(0.0, min([seconds * 1000, *due]) / 1000))[0]:
            for number in os.read(self._ear, 4096):
                if number != _NEWS:
                    self._take(signal.Signals(number), now())
        if self._end_at is not None and now() >= self._end_at:
            self._end(now())
        if self._leave_at is not None and now() >= self._leave_at:
            self._leave_at = None
            self.too_late.set()

    def _take(self, number: signal.Signals, now: float) -> None:
        again = self.finishing.is_set()
        if number is not signal.SIGINT:
            self._terminated.set()
        self.finishing.set()
        if self.ending.is_set():
            return
        if again and (number is signal.SIGINT or self._end_at is not None):
            self._end(now)
        elif number is signal.SIGINT:
            _say("running commands may finish, no more are started; interrupt again to end them.")
        else:
            self._end_at = now + self._grace_ms
            _say(f"{number.name}: running commands have {self._grace_ms / 1000:g} s to finish.")

    def _end(self, now: float) -> None:
        _say("ending running commands; unfinished work goes back.")
        self._end_at = None
        self._leave_at = now + self.kill_after_ms + _FAREWELL_MS
        self.ending.set()

    def explains(self, ended: Ended) -> bool:
        """Whether a command failed only because the worker is being stopped. May wait for a
        moment.
        """
        if ended.failure is None or ended.timed_out:
            return False
        if ended.code is None and ended.signal is None:
            return False  # it could not be started
        by_signal = ended.signal is not None or ended.code in _CODES_OF_SIGNALS
        self.finishing.wait(_BY_SIGNAL_SECONDS if by_signal else _BY_CODE_SECONDS)
        return (
            self._terminated.is_set()
            or self.ending.is_set()
            or (by_signal and self.finishing.is_set())
        )


def _say(sentence: str) -> None:
    typer.echo(f"manyhands: {sentence}", err=True)
