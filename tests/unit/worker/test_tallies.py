"""How far ahead a worker fetches (P45)."""

from manyhands.client.worker.tallies import Pace, Tallies


def test_p45_nothing_is_fetched_ahead_while_the_pace_is_unknown_or_slow():
    pace = Pace(16, 500)
    assert pace.ahead() == 0
    pace.note("slow", 0.2)
    assert pace.ahead() == 0


def test_p45_as_much_is_fetched_as_the_slots_do_in_50_ms():
    pace = Pace(4, 500)
    pace.note("mail", 0.01)
    assert pace.ahead() == 20


def test_p45_at_most_500_and_never_more_than_was_allowed():
    for allowed in (500, 7, 0):
        pace = Pace(16, allowed)
        pace.note("fast", 0.000001)
        assert pace.ahead() == allowed


def test_p45_the_slowest_of_the_busy_queues_decides():
    pace = Pace(1, 500)
    pace.note("fast", 0.0001)
    pace.note("slow", 0.06)
    assert pace.ahead() == 0


def test_the_average_follows_the_latest_runs():
    pace = Pace(1, 500)
    pace.note("mail", 1.0)
    for _ in range(500):
        pace.note("mail", 0.001)
    assert pace.ahead() > 40


def test_jobs_are_counted_by_task_and_outcome():
    tallies = Tallies()
    tallies.note("mail", "completed", 0.5)
    tallies.note("mail", "failed", 0.25)
    tallies.note("mail", "given_back", 9.0)
    tallies.note("other", "lost", 9.0)
    assert tallies.by_task["mail"].seconds == 0.75
    assert tallies.ended == 2
    assert tallies.total.lost == 1
