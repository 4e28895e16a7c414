"""How much memory a process uses."""

import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """What this process has in memory now, or where the system does not say, at its peak."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    return pages * resource.getpagesize()


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The peak in a report of the system, whose unit differs."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
