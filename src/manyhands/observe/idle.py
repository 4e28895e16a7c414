"""Workers that hold no job: those that wait for one, and those that were seen recently."""

from collections.abc import Collection, Iterable

from msgspec import Struct

from manyhands.dispatch.sleepers import Sleepers
from manyhands.model.job import Holder
from manyhands.observe.workers import SeenBook, WorkerBook


class Idle(Struct, frozen=True):
    """One of them."""

    holder: Holder
    awaits: tuple[str, ...] | None  # the queues it waits for, none: any; None: it does not wait
    seen_at: int | None
    last_queue: str = ""


def idle_workers(
    sleepers: Sleepers,
    books: Collection[WorkerBook | SeenBook],
    busy: Iterable[tuple[str, str | None]],
    now: int,
    count_max: int,
) -> tuple[list[Idle], int]:
    """All except the busy ones, those that wait first, and how many are left out."""
    by_realm = {book.realm: book for book in books}
    seen = set(busy)
    found: list[Idle] = []
    for sleeper in sleepers.known(count_max):
        holder = sleeper.holder
        if holder is not None and (holder.realm, holder.name) not in seen:
            seen.add((holder.realm, holder.name))
            book = by_realm.get(holder.realm)
            record = book and book.record(holder.name or holder.address)
            seen_at, last = (record.seen_at, record.queue) if record else (None, "")
            found.append(Idle(holder, sleeper.queues, seen_at, last))
    left_out = 0
    for book in books:
        idle = [one for one in book.records(now) if (book.realm, one.name) not in seen]
        found += [
            Idle(Holder(book.realm, one.name, one.address), None, one.seen_at, one.queue)
            for one in idle[:count_max]
        ]
        left_out += max(0, len(idle) - count_max)
    return found, left_out
