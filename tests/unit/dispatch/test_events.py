"""The event log: cursors, memory, and the store behind it."""

import pytest

from manyhands.dispatch import events as module
from manyhands.dispatch.events import EventLog
from manyhands.model.events import Event
from tests.unit.dispatch.desk import COMMIT_MS, Desk


def test_events_are_shown_with_their_commit_not_before():
    desk = Desk()
    news: list[int] = []
    desk.dispatcher.events.watch(lambda: news.append(desk.dispatcher.events.last_seq))
    desk.tell(desk.a_submit())

    desk.run(COMMIT_MS - 1)
    assert news == []
    assert desk.dispatcher.events.after(0, 10) == ()
    desk.run(1)

    assert news == [1]
    assert [stored.seq for stored in desk.dispatcher.events.after(0, 10)] == [1]


def test_a_watcher_reads_from_any_point_on_and_at_its_own_pace():
    desk = Desk()
    desk.submit(10)
    log = desk.dispatcher.events

    first = log.after(0, 4)
    second = log.after(first[-1].seq, 4)
    rest = log.after(second[-1].seq, 100)

    assert [stored.seq for stored in [*first, *second, *rest]] == list(range(1, 11))
    assert log.after(10, 100) == ()


def test_events_from_before_the_start_come_from_the_store():
    desk = Desk()
    desk.submit(3)

    again = Desk(desk.disk, desk.time)
    again.submit(2)
    log = again.dispatcher.events

    assert [stored.seq for stored in log.after(0, 2)] == [1, 2]
    assert [stored.seq for stored in log.after(3, 10)] == [4, 5]
    assert log.last_seq == 5


def test_a_log_that_starts_knows_how_far_the_store_had_come():
    desk = Desk()
    desk.submit(3)

    assert EventLog(desk.store).last_seq == 3


def test_events_that_no_longer_fit_into_memory_come_from_the_store(monkeypatch):
    monkeypatch.setattr(module, "RECENT_COUNT_MAX", 4)
    desk = Desk()
    desk.submit(10)
    log = desk.dispatcher.events

    assert [stored.seq for stored in log.after(0, 3)] == [1, 2, 3]
    assert [stored.seq for stored in log.after(7, 10)] == [8, 9, 10]


def test_who_no_longer_watches_hears_nothing():
    desk = Desk()
    news: list[str] = []

    def watcher() -> None:
        news.append("news")

    desk.dispatcher.events.watch(watcher)
    desk.submit()
    desk.dispatcher.events.unwatch(watcher)
    desk.submit()

    assert news == ["news"]


def test_a_watcher_may_leave_while_it_is_told():
    desk = Desk()
    log = desk.dispatcher.events
    news: list[str] = []

    def once() -> None:
        news.append("once")
        log.unwatch(once)

    log.watch(once)
    log.watch(lambda: news.append("always"))
    desk.submit()
    desk.submit()

    assert news == ["once", "always", "always"]


@pytest.mark.parametrize("seq", [0, 1, 2, 3])
def test_memory_and_store_tell_the_same(seq):
    desk = Desk()
    desk.submit(3)

    assert list(desk.dispatcher.events.after(seq, 10)) == list(desk.store.events_after(seq, 10))


def an_event() -> Event:
    desk = Desk()
    desk.submit(1)
    (stored,) = desk.dispatcher.events.after(0, 1)
    return stored.event


def front(published: int, stored: int) -> EventLog:
    """The log of a server that another one tells of events, and that reads those which that one
    published before from a store that may lag behind.
    """
    desk = Desk()
    desk.submit(published)
    log = EventLog(desk.store)
    log.restart(published, stored)
    return log


def test_nobody_passes_over_events_that_the_store_does_not_have_yet():
    """S49."""
    log = front(published=10, stored=7)
    calls: list[int] = []
    log.watch(lambda: calls.append(log.last_seq))

    assert log.last_seq == 7
    log.publish([an_event()], 11)  # memory holds it, and not what is before it
    assert (log.last_seq, log.after(7, 10)) == (7, ())
    log.stored(9)
    assert log.last_seq == 9
    log.stored(10)

    assert log.last_seq == 11
    assert [stored.seq for stored in log.after(10, 10)] == [11]
    assert calls == [9, 11]


def test_nobody_passes_over_events_that_left_memory_before_the_store_had_them(monkeypatch):
    """S49."""
    monkeypatch.setattr(module, "RECENT_COUNT_MAX", 4)
    log = front(published=10, stored=10)

    log.publish([an_event()] * 4, 14)
    assert log.last_seq == 14
    log.publish([an_event()] * 4, 18)
    assert log.last_seq == 10
    log.stored(14)
    assert log.last_seq == 18


def test_a_log_that_starts_again_calls_its_watchers():
    log = front(published=3, stored=3)
    calls: list[int] = []
    log.watch(lambda: calls.append(log.last_seq))

    log.restart(5, 4)
    log.restart(5)

    assert calls == [4, 5]
