"""What needs a person, by the answers of the API."""

from manyhands.cli.attention import gathered, notes

NOBODY = {"blocked": 0, "delayed": 0, "ready": 0, "leased": 0}


def a_queue(name="q", *, ready=0, leased=0, age_ms=None, paused=False, awaited=False):
    return {
        "name": name,
        "paused": paused,
        "awaited": awaited,
        "oldest_ready_age_ms": age_ms,
        "counts": {**NOBODY, "ready": ready, "leased": leased},
    }


def a_group(*trend: int):
    return {
        "group": "5f0c",
        "code": "boom",
        "message": "Traceback (most recent call last):\n  File …\nValueError: it broke",
        "trend": [0] * (24 - len(trend)) + list(trend),
    }


def a_worker(*lapsed: bool):
    return {"name": "w", "address": "host", "leases": [{"lapsed": one} for one in lapsed]}


def words(*found):
    return [(note.level, note.what, note.about, note.detail) for note in found]


def test_a_queue_that_is_worked_or_waited_for_needs_nobody():
    queues = [
        a_queue("a", ready=5, leased=1, age_ms=200_000),
        a_queue("b", ready=5, awaited=True, age_ms=200_000),
        a_queue("c", ready=5, age_ms=5_000),
        a_queue("d", paused=True),
    ]

    assert notes(queues, [a_worker(False)], [a_group(7, 0, 0)]) == []


def test_jobs_that_no_worker_takes_need_somebody_after_ten_seconds():
    [note] = notes([a_queue(ready=2, age_ms=11_000)], [], [])

    assert words(note) == [("bad", "no workers", "q", "2 jobs, and no worker takes them")]
    assert note.remedy == "manyhands work q --command …"


def test_jobs_that_wait_for_long_although_there_are_workers_are_worth_a_look():
    [note] = notes([a_queue(ready=1, leased=1, age_ms=400_000)], [], [])

    assert words(note) == [("warn", "slow", "q", "the oldest of 1 job has waited 6m40s")]


def test_a_paused_queue_is_worth_a_look_only_while_it_holds_jobs_back():
    [note] = notes([a_queue("it's", ready=3, paused=True, age_ms=99_000)], [], [])

    assert words(note) == [("warn", "paused", "it's", "3 jobs held back")]
    assert note.remedy == """manyhands queue resume 'it'"'"'s'"""


def test_recent_failures_are_told_by_the_line_that_tells():
    [note] = notes([], [], [a_group(4, 0, 2)])

    assert words(note) == [
        ("bad", "failing", "boom: ValueError: it broke", "2 jobs in the last 2 hours")
    ]
    assert note.remedy == "manyhands retry --failure 5f0c"


def test_a_worker_that_went_silent_comes_before_what_is_only_worth_a_look():
    found = notes([a_queue(ready=3, paused=True)], [a_worker(True, False)], [])

    assert [note.what for note in found] == ["silent worker", "paused"]


def test_a_server_that_is_not_ready_comes_first():
    found = notes([], [a_worker(True)], [], readiness="disk")

    assert words(found[0]) == [("bad", "not ready", "", "disk")]


def test_a_hundred_of_one_kind_do_not_hide_another():
    queues = [a_queue(f"q{n}", ready=1, age_ms=20_000) for n in range(100)]

    found = gathered(notes([*queues, a_queue("p", ready=1, paused=True)], [], []))

    assert [note.what for note in found] == ["no workers"] * 6 + ["paused"]
    assert found[5].about == "95 more"
