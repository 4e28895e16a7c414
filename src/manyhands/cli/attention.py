"""What needs a person, found in the answers of the API. Times are the server's."""

from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any, Final

from msgspec import Struct

from manyhands.cli.output import first_line, plural, span

# A job that was ready for longer needs attention; without workers, much sooner.
_LATE_MS: Final = 5 * 60_000
_UNATTENDED_MS: Final = 10_000
_SHOWN_OF_A_KIND: Final = 5


class Note(Struct, frozen=True):
    """Something that needs attention."""

    level: str  # "bad" or "warn"
    what: str
    about: str
    detail: str
    remedy: str  # a command to run


def notes(
    queues: Iterable[Mapping[str, Any]],
    workers: Iterable[Mapping[str, Any]],
    failures: Iterable[Mapping[str, Any]],
    readiness: str = "",
) -> list[Note]:
    """All notes, the worst first."""
    found = [] if not readiness else [Note("bad", "not ready", "", readiness, "manyhands doctor")]
    for queue in queues:
        found += _of_queue(queue)
    for worker in workers:
        found += _of_worker(worker)
    for group in failures:
        found += _of_failures(group)
    found.sort(key=lambda note: note.level != "bad")
    return found


def _of_queue(queue: Mapping[str, Any]) -> Iterable[Note]:
    name, counts = queue["name"], queue["counts"]
    ready, waited_ms = counts["ready"], queue["oldest_ready_age_ms"] or 0
    jobs = plural(ready, "job")
    if not ready:
        return
    if queue["paused"]:
        yield Note(
            "warn", "paused", name, f"{jobs} held back", f"manyhands queue resume {quote(name)}"
        )
    elif not counts["leased"] and not queue["awaited"] and waited_ms > _UNATTENDED_MS:
        detail = f"{jobs}, and no worker takes {'it' if ready == 1 else 'them'}"
        yield Note("bad", "no workers", name, detail, f"manyhands work {quote(name)} --command …")
    elif waited_ms > _LATE_MS:
        detail = f"the oldest of {jobs} has waited {span(waited_ms)}"
        yield Note("warn", "slow", name, detail, f"manyhands queue show {quote(name)}")


def _of_worker(worker: Mapping[str, Any]) -> Iterable[Note]:
    lapsed = sum(lease["lapsed"] for lease in worker["leases"])
    if lapsed:
        name = worker["name"] or worker["address"]
        detail = f"{plural(lapsed, 'lease')} expired without a report"
        yield Note("bad", "silent worker", name, detail, f"manyhands expire --worker {quote(name)}")


def _of_failures(group: Mapping[str, Any]) -> Iterable[Note]:
    recent = sum(group["trend"][-2:])
    if recent:
        about = ": ".join(part for part in (group["code"], first_line(group["message"])) if part)
        detail = f"{plural(recent, 'job')} in the last 2 hours"
        yield Note("bad", "failing", about, detail, f"manyhands retry --failure {group['group']}")


def gathered(found: list[Note]) -> list[Note]:
    """Some of each kind: a hundred of one must not hide another."""
    kinds: dict[str, list[Note]] = {}
    for note in found:
        kinds.setdefault(note.what, []).append(note)
    shown: list[Note] = []
    for members in kinds.values():
        shown += members[:_SHOWN_OF_A_KIND]
        more = len(members) - _SHOWN_OF_A_KIND
        if more > 0:
            first = members[0]
            shown.append(Note(first.level, first.what, f"{more:,} more", "", ""))
    return shown
