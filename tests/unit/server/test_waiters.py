"""Sleepers: who is woken, how many, in which order."""

from manyhands.server.waiters import Sleeper, Waiters


def a_sleeper(waiters: Waiters, *queues: str, heard: list[str] | None = None, name: str = ""):
    log = heard if heard is not None else []
    sleeper = Sleeper(queues or ("q",), lambda queue: log.append(f"{name}{queue}"))
    waiters.sleep(sleeper)
    return sleeper


def test_the_longest_asleep_is_woken_first():
    waiters, heard = Waiters(), []
    for name in ("first ", "second ", "third "):
        a_sleeper(waiters, heard=heard, name=name)

    woken = waiters.wake("q", 2)

    assert woken == 2
    assert heard == ["first q", "second q"]
    assert waiters.count == 1


def test_nobody_is_woken_for_a_queue_that_nobody_sleeps_for():
    waiters = Waiters()
    a_sleeper(waiters)

    assert waiters.wake("other", 5) == 0
    assert waiters.count == 1


def test_a_sleeper_for_several_queues_is_woken_once():
    waiters, heard = Waiters(), []
    sleeper = a_sleeper(waiters, "a", "b", heard=heard)

    waiters.wake("b", 1)
    waiters.wake("a", 1)

    assert heard == ["b"]
    assert not sleeper.asleep
    assert waiters.queues() == []


def test_sleeping_twice_counts_once():
    waiters = Waiters()
    sleeper = a_sleeper(waiters)

    waiters.sleep(sleeper)

    assert waiters.count == 1


def test_who_left_is_not_woken():
    waiters, heard = Waiters(), []
    sleeper = a_sleeper(waiters, heard=heard)

    waiters.leave(sleeper)
    waiters.leave(sleeper)

    assert waiters.wake("q", 1) == 0
    assert heard == []
    assert waiters.count == 0
    assert not waiters.is_wanted("q")


def test_who_sleeps_again_while_it_is_woken_goes_to_the_end():
    waiters, heard = Waiters(), []

    def again(_: str) -> None:
        heard.append("restless")
        waiters.sleep(restless)

    restless = Sleeper(("q",), again)
    waiters.sleep(restless)
    a_sleeper(waiters, heard=heard, name="patient ")

    waiters.wake("q", 2)

    assert heard == ["restless", "patient q"]
    assert waiters.count == 1


def test_a_wake_for_more_than_there_are_ends():
    waiters = Waiters()

    def again(_: str) -> None:
        waiters.sleep(restless)

    restless = Sleeper(("q",), again)
    waiters.sleep(restless)

    assert waiters.wake("q", 3) == 3
    assert restless.asleep


def test_one_queue_wakes_its_own_sleepers_only():
    waiters, heard = Waiters(), []
    a_sleeper(waiters, "a", heard=heard)
    a_sleeper(waiters, "b", heard=heard)

    waiters.wake("a", 10)

    assert heard == ["a"]
    assert waiters.queues() == ["b"]


def test_a_sleeper_for_whatever_queue_hears_of_work_in_any():
    waiters = Waiters()
    heard: list[str] = []
    waiters.sleep(Sleeper(None, heard.append))
    assert waiters.is_wanted("whatever")

    assert waiters.wake("whatever", 3) == 1

    assert heard == ["whatever"]
    assert not waiters.is_wanted("whatever")
    assert waiters.count == 0


def test_those_who_sleep_for_the_queue_itself_come_first():
    waiters = Waiters()
    heard: list[str] = []
    waiters.sleep(Sleeper(None, lambda _queue: heard.append("any")))
    waiters.sleep(Sleeper(("a",), lambda _queue: heard.append("a")))

    waiters.wake("a", 2)

    assert heard == ["a", "any"]


def test_a_sleeper_for_whatever_queue_may_leave():
    waiters = Waiters()
    sleeper = Sleeper(None, lambda _queue: None)
    waiters.sleep(sleeper)

    waiters.leave(sleeper)

    assert (waiters.count, waiters.wake("a", 1)) == (0, 0)


def test_a_sleeper_for_no_queue_at_all_sleeps_on():
    waiters = Waiters()
    heard: list[str] = []
    sleeper = Sleeper((), heard.append)
    waiters.sleep(sleeper)

    assert not waiters.is_wanted("a")
    assert waiters.wake("a", 1) == 0
    assert (heard, sleeper.asleep, waiters.count) == ([], True, 1)
