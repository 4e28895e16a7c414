"""How much memory the server may use."""

import os
from pathlib import Path
from typing import Final

_LEAST: Final = 64 * 1024 * 1024
_CGROUP: Final = Path("/proc/self/cgroup")
_ROOT: Final = Path("/sys/fs/cgroup")


def quarter_of_machine() -> int:
    """The default memory budget of the server."""
    return max(_LEAST, memory_bytes() // 4)


def memory_bytes(cgroup: Path = _CGROUP, root: Path = _ROOT) -> int:
    """The machine's memory, or as much of it as a container or a service may use."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_bounds(cgroup, root)])


def _bounds(cgroup: Path, root: Path) -> list[int]:
    """The memory limits of our own control group and its ancestors: each may have one."""
    found: list[int] = []
    for line in _read(cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the one outside of it; then our own group is the root.
        group = top / path.strip("/")
        for place in (group, *group.parents):
            text = _read(place / name).strip()
            if text.isdecimal():
                found.append(int(text))
            if place == top:
                break
    return [bound for bound in found if bound > 0]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # another system, or another version of it
