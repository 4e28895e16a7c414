"""Samples of the history are kept over a restart, found by queue and time, and dropped in time."""

from manyhands.model import limits
from manyhands.model.history import ALL_QUEUES, COARSE_MS, MINUTE_MS, Sample, StoredSample
from tests.conformance.stores.opened import START

AT = START - START % COARSE_MS


def kept(opened, *rows: tuple[int, str, int], step_ms: int = MINUTE_MS) -> None:
    """Samples that differ in what was submitted."""
    opened.store.keep_samples(
        [StoredSample(step_ms, at, queue, Sample(submitted=count)) for at, queue, count in rows]
    )


def found(opened, since: int, until: int, queue: str | None = None, step_ms: int = MINUTE_MS):
    rows = opened.store.samples(step_ms, since, until, queue)
    return [(row.at, row.queue, row.sample.submitted) for row in rows]


def test_samples_are_there_after_a_restart_in_the_order_of_time(opened):
    kept(opened, (AT, "q", 1), (AT + MINUTE_MS, ALL_QUEUES, 3), (AT + MINUTE_MS, "q", 2))
    opened.reopen()

    assert found(opened, AT, AT + COARSE_MS) == [
        (AT, "q", 1),
        (AT + MINUTE_MS, ALL_QUEUES, 3),
        (AT + MINUTE_MS, "q", 2),
    ]


def test_a_later_sample_of_the_same_minute_replaces_the_earlier(opened):
    kept(opened, (AT, "q", 1))
    opened.commit()
    kept(opened, (AT, "q", 5))
    opened.reopen()

    assert found(opened, AT, AT + MINUTE_MS) == [(AT, "q", 5)]


def test_of_one_queue_the_last_sample_before_comes_first(opened):
    kept(opened, *((AT + n * MINUTE_MS, "q", n) for n in range(4)), (AT, "other", 9))
    opened.reopen()

    since = AT + 2 * MINUTE_MS
    assert found(opened, since, since + MINUTE_MS, "q") == [
        (AT + MINUTE_MS, "q", 1),
        (since, "q", 2),
    ]
    assert found(opened, AT, AT + MINUTE_MS, "q") == [(AT, "q", 0)]
    assert found(opened, AT, AT + MINUTE_MS, "nobody") == []


def test_steps_are_kept_apart_and_each_for_its_time(opened):
    kept(opened, (AT, "q", 1))
    kept(opened, (AT, "q", 2), step_ms=COARSE_MS)
    opened.commit()
    opened.now = AT + limits.HISTORY_MINUTES_MS + COARSE_MS
    kept(opened, (opened.now, "q", 3))
    opened.settle()
    opened.store.prune(opened.now, 10)
    opened.store.touch()
    opened.reopen()

    assert found(opened, AT, opened.now + 1) == [(opened.now, "q", 3)]
    assert found(opened, AT, opened.now, step_ms=COARSE_MS) == [(AT, "q", 2)]
