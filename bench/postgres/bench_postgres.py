"""What all rows of this benchmark share."""

import contextlib
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.databases import Database


@dataclass
class Bench:
    """What a run was told, and where its database is."""

    database: Database
    folder: Path
    rounds: int
    scale: float
    before: Path | None

    def count(self, jobs: int, least: int = 500) -> int:
        """How many jobs there are in this run, where so many are meant."""
        return max(least, int(jobs * self.scale) // least * least)

    def database_cpu(self) -> float:
        """Seconds that PostgreSQL has taken so far."""
        return family_cpu(self.database._postmaster())  # noqa: SLF001


def family_cpu(pid: int) -> float:
    """Seconds of a process, its ended children and those that live, and theirs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                total += family_cpu(int(child))
    return total


def spread(values: Sequence[float], form: str = ",.1f") -> str:
    """The median, with the lowest and highest."""
    middle = statistics.median(values)
    return f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"


def ratio(ours: Sequence[float], other: Sequence[float]) -> str:
    """The median of the ratios in each round, with the lowest and highest."""
    return spread([a / b for a, b in zip(ours, other, strict=True)], ".2f")


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints what was measured."""
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"\n### {title}\n\nload at the end: {load}\n")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)
