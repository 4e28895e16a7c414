"""Sleepers: who is woken, how many, in which order."""

from manyhands.dispatch.sleepers import Sleeper, Sleepers


def a_sleeper(sleepers: Sleepers, *queues: str, heard: list[str] | None = None, name: str = ""):
    log = heard if heard is not None else []
    sleeper = Sleeper(queues or ("q",), lambda queue: log.append(f"{name}{queue}"))
    sleepers.sleep(sleeper)
    return sleeper


def test_the_longest_asleep_is_woken_first():
    sleepers, heard = Sleepers(), []
    for name in ("first ", "second ", "third "):
        a_sleeper(sleepers, heard=heard, name=name)

    woken = sleepers.wake("q", 2)

    assert woken == 2
    assert heard == ["first q", "second q"]
    assert sleepers.count == 1


def test_nobody_is_woken_for_a_queue_that_nobody_sleeps_for():
    sleepers = Sleepers()
    a_sleeper(sleepers)

    assert sleepers.wake("other", 5) == 0
    assert sleepers.count == 1


def test_a_sleeper_for_several_queues_is_woken_once():
    sleepers, heard = Sleepers(), []
    sleeper = a_sleeper(sleepers, "a", "b", heard=heard)

    sleepers.wake("b", 1)
    sleepers.wake("a", 1)

    assert heard == ["b"]
    assert not sleeper.asleep
    assert sleepers.queues() == []


def test_sleeping_twice_counts_once():
    sleepers = Sleepers()
    sleeper = a_sleeper(sleepers)

    sleepers.sleep(sleeper)

    assert sleepers.count == 1


def test_who_left_is_not_woken():
    sleepers, heard = Sleepers(), []
    sleeper = a_sleeper(sleepers, heard=heard)

    sleepers.leave(sleeper)
    sleepers.leave(sleeper)

    assert sleepers.wake("q", 1) == 0
    assert heard == []
    assert sleepers.count == 0
    assert not sleepers.is_wanted("q")


def test_who_sleeps_again_while_it_is_woken_goes_to_the_end():
    sleepers, heard = Sleepers(), []

    def again(_: str) -> None:
        heard.append("restless")
        sleepers.sleep(restless)

    restless = Sleeper(("q",), again)
    sleepers.sleep(restless)
    a_sleeper(sleepers, heard=heard, name="patient ")

    sleepers.wake("q", 2)

    assert heard == ["restless", "patient q"]
    assert sleepers.count == 1


def test_a_wake_for_more_than_there_are_ends():
    sleepers = Sleepers()

    def again(_: str) -> None:
        sleepers.sleep(restless)

    restless = Sleeper(("q",), again)
    sleepers.sleep(restless)

    assert sleepers.wake("q", 3) == 3
    assert restless.asleep


def test_one_queue_wakes_its_own_sleepers_only():
    sleepers, heard = Sleepers(), []
    a_sleeper(sleepers, "a", heard=heard)
    a_sleeper(sleepers, "b", heard=heard)

    sleepers.wake("a", 10)

    assert heard == ["a"]
    assert sleepers.queues() == ["b"]


def test_a_sleeper_for_whatever_queue_hears_of_work_in_any():
    sleepers = Sleepers()
    heard: list[str] = []
    sleepers.sleep(Sleeper(None, heard.append))
    assert sleepers.is_wanted("whatever")

    assert sleepers.wake("whatever", 3) == 1

    assert heard == ["whatever"]
    assert not sleepers.is_wanted("whatever")
    assert sleepers.count == 0


def test_those_who_sleep_for_the_queue_itself_come_first():
    sleepers = Sleepers()
    heard: list[str] = []
    sleepers.sleep(Sleeper(None, lambda _queue: heard.append("any")))
    sleepers.sleep(Sleeper(("a",), lambda _queue: heard.append("a")))

    sleepers.wake("a", 2)

    assert heard == ["a", "any"]


def test_a_sleeper_for_whatever_queue_may_leave():
    sleepers = Sleepers()
    sleeper = Sleeper(None, lambda _queue: None)
    sleepers.sleep(sleeper)

    sleepers.leave(sleeper)

    assert (sleepers.count, sleepers.wake("a", 1)) == (0, 0)


def test_a_sleeper_for_no_queue_at_all_sleeps_on():
    sleepers = Sleepers()
    heard: list[str] = []
    sleeper = Sleeper((), heard.append)
    sleepers.sleep(sleeper)

    assert not sleepers.is_wanted("a")
    assert sleepers.wake("a", 1) == 0
    assert (heard, sleeper.asleep, sleepers.count) == ([], True, 1)


def test_as_many_hands_are_woken_as_there_are_jobs():
    """S10."""
    sleepers, heard = Sleepers(), []
    for name in "abc":
        sleepers.sleep(Sleeper(("q",), lambda _, name=name: heard.append(name), hands=8))

    woken = sleepers.wake("q", 10)

    assert woken == 16
    assert heard == ["a", "b"]
    assert sleepers.count == 1
