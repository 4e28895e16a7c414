"""Names of server processes, by which another on the same machine can tell that one is gone."""

import os
from contextlib import suppress
from pathlib import Path


def this_process() -> str:
    """Names this process so that another one on the same machine can tell whether it is gone. The
    number of a process means nothing outside of its namespace, or after the machine has started
    anew.
    """
    return _process_of(os.getpid())


def _process_of(pid: int) -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = Path("/proc/self/ns/pid").readlink()
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot} {space} {pid} {started}"


def is_surely_gone(process: str) -> bool:
    """Whether a process of this machine has ended. False if that cannot be known from here."""
    words = process.split()
    if len(words) != 4 or not words[2].isdecimal():
        return False
    with suppress(OSError):
        if words[:2] != this_process().split()[:2]:
            return False
        try:
            state = Path(f"/proc/{words[2]}/stat").read_text().rpartition(")")[2].split()[0]
            return state in "ZX" or _process_of(int(words[2])) != process
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False
