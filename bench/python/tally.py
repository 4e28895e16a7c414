"""Counts finished jobs across processes, and measures a drain.

Every worker process adds to a number of its own in one small file. The watcher adds them up: it
notes when a tenth of the jobs had run, and, after the last one, asks the peer's own store until
nothing is left there, so that what a peer still has to write down counts too.
"""

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SLOTS = 1024
_number = struct.Struct("=Q")


def path() -> Path:
    return Path(os.environ["BENCH_TALLY"])


def reset() -> None:
    path().write_bytes(bytes(_SLOTS * _number.size))


def _mapped() -> mmap.mmap:
    with path().open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def counter() -> Callable[[], None]:
    """A function that counts one job of this process."""
    pages = _mapped()
    offset = os.getpid() % _SLOTS * _number.size
    count = 0

    def add() -> None:
        nonlocal count
        count += 1
        _number.pack_into(pages, offset, count)

    return add


def ran() -> int:
    """How many jobs have been counted."""
    return sum(struct.unpack(f"={_SLOTS}Q", path().read_bytes()))


def watch(count: int, left: Callable[[], int], limit: float) -> float:
    """Jobs a second, from the first tenth to the last job and its record. A line is printed as soon
    as it looks: workers are started then.
    """
    print("watching", flush=True)
    started = time.monotonic()
    deadline = started + limit
    began, first = started, 0
    while (done := ran()) < count:
        now = time.monotonic()
        if began == started and done >= count / 10:
            began, first = now, done
        if now > deadline:
            break
        time.sleep(0.01)
    while left() > 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    took = time.monotonic() - began
    if done < count or left() > 0:
        sys.exit(f"{done} of {count} jobs were done in time")
    return (count - first) / took
