"""A server at one moment, as `status` and `top` show it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from manyhands.cli.attention import Note, note_of
from manyhands.cli.http_link import HttpLink
from manyhands.cli.output import Cell, Column, duration, number, plural, span

STATES: Final = ("ready", "leased", "delayed", "blocked", "failed", "completed", "cancelled")
# What lets no more jobs of a queue run until others have finished.
FULL: Final = {"limit": "limit full", "concurrency": "queue full"}
COLUMNS: Final = (
    Column("QUEUE", folds=True),
    Column("READY", right=True),
    Column("RUNNING", right=True),
    Column("DELAYED", right=True, spare=2),
    Column("RETRYING", right=True),
    Column("BLOCKED", right=True, spare=4),
    Column("FAILED", right=True),
    Column("COMPLETED", right=True, spare=3),
    Column("OLDEST", right=True),
    Column("WORKERS"),
)


class Picture(Struct, frozen=True):
    """Answers of the API that belong together."""

    about: dict[str, Any]
    queues: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    attention: list[dict[str, Any]]
    minute: dict[str, Any]  # the last whole minute
    rate: float | None  # jobs that ended a second, just now
    readiness: str  # why the server is not ready, or nothing

    def notes(self) -> list[Note]:
        """What needs attention."""
        found = [note_of(row) for row in self.attention]
        if self.readiness and not found:
            found.append(Note("bad", "not ready", "", self.readiness, "manyhands doctor"))
        return found

    def retrying(self) -> int:
        """Jobs that failed and are tried again, over all queues."""
        return sum(queue["retrying"] for queue in self.queues)

    def totals(self) -> dict[str, int]:
        """Jobs by state, over all queues."""
        return {state: sum(queue["counts"][state] for queue in self.queues) for state in STATES}

    def headline(self) -> str:
        """The server in one line."""
        about = self.about
        parts = [
            f"manyhands {about['version']} on {about['server_name']}",
            f"up {span(about['uptime_ms'])}",
            plural(len(self.queues), "queue"),
            plural(len(self.workers), "busy worker"),
        ]
        if self.rate is not None:
            parts.append(f"{self.rate:,.1f} jobs/s")
        return ", ".join(parts)


def take_picture(link: HttpLink) -> Picture:
    """Asks the server for everything."""
    history = link.page("/api/history", range="1h")
    steps = history["results"]
    # The last step is the minute that has only begun.
    whole = steps[-2] if len(steps) > 1 else steps[-1]
    return Picture(
        link.get("/api/about"),
        link.every("/api/queues"),
        link.every("/api/workers"),
        link.get("/api/attention"),
        whole,
        history.get("rate"),
        _readiness(link),
    )


def _readiness(link: HttpLink) -> str:
    found = link.get("/readyz")
    return "" if found["ready"] else ", ".join(found["missing"]) or "it is starting"


def queue_row(queue: Mapping[str, Any]) -> list[Cell]:
    """A queue as a row of the table."""
    counts = queue["counts"]
    oldest = queue["oldest_ready_age_ms"]
    return [
        Cell(queue["name"], "bold" if counts["ready"] or counts["leased"] else ""),
        number(counts["ready"], "cyan"),
        number(counts["leased"], "yellow"),
        number(counts["delayed"], "blue"),
        number(queue["retrying"], "yellow"),
        number(counts["blocked"], "magenta"),
        number(counts["failed"], "bold red"),
        number(counts["completed"], "green"),
        Cell(duration(oldest), "" if oldest else "dim"),
        _workers_cell(queue),
    ]


def _workers_cell(queue: Mapping[str, Any]) -> Cell:
    counts = queue["counts"]
    if queue["paused"]:
        return Cell("paused", "yellow")
    full = next((wait["what"] for wait in queue.get("waits", ()) if wait["what"] in FULL), None)
    if full is not None:
        return Cell(FULL[full], "yellow")
    if counts["leased"]:
        return Cell("busy", "green")
    if queue["awaited"]:
        return Cell("waiting", "green")
    if queue.get("polled"):
        return Cell("polling", "green")
    return Cell("none", "bold red") if counts["ready"] else Cell("none", "dim")


def busiest(queues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Queues with most to do first, then by name."""
    return sorted(
        queues,
        key=lambda queue: (
            -(queue["counts"]["ready"] + queue["counts"]["leased"]),
            -queue["counts"]["failed"],
            queue["name"],
        ),
    )
