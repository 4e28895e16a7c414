"""A process beside a worker that outlives it by a moment and ends everything that the worker's
commands have started, even if the worker was killed.

It is run by its path, without the rest of the package. Its standard input has lines of ``+`` or
``-`` and the id of a process group; end of file means that the worker is gone. The kernel's own
mechanism (PR_SET_PDEATHSIG) reaches only the command itself and none of its children, and has to be
set between fork and exec, where a process with several threads must do nothing.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


class Guardian:
    """The worker's side: reports the process groups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own file
            [sys.executable, "-I", "-S", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals of the worker's terminal must not reach it
            cwd="/",
        )

    def watch(self, group: int) -> None:
        """Ends this group when the worker is gone."""
        self._write(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """The group has ended."""
        self._write(b"-%d\n" % group)

    def close(self) -> None:
        """Nothing is left to watch."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _write(self, line: bytes) -> None:
        with self._lock:
            assert self._process.stdin is not None
            # If the guardian was killed, commands are ended by the worker itself, or not at all.
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), line)


def _guard() -> None:
    # Slurm and init systems signal every process of a job, but this one has to be the last.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, None] = {}
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups[group] = None
        else:
            groups.pop(group, None)
    for group in groups:
        with contextlib.suppress(OSError):  # it ended by itself
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _guard()
