"""Very many names, looked at in turns."""

from manyhands.store.rounds import Rounds


def test_a_part_has_every_name_once_where_there_are_few():
    rounds = Rounds(lambda: ["a", "b"])

    assert list(rounds.part(10)) == ["a", "b"]
    assert list(rounds.part(10)) == ["a", "b"]


def test_parts_follow_each_other_round_and_round():
    names = ["a", "b", "c"]
    rounds = Rounds(lambda: names)

    parts = [list(rounds.part(2)) for _ in range(3)]

    assert parts == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_a_new_name_has_its_turn_in_the_next_round():
    names = ["a", "b"]
    rounds = Rounds(lambda: names)
    first = list(rounds.part(1))
    names.append("c")

    assert (first, list(rounds.part(3))) == (["a"], ["b", "a", "b"])
    assert list(rounds.part(3)) == ["c", "a", "b"]


def test_a_name_that_was_not_done_with_comes_first_again():
    rounds = Rounds(lambda: ["a", "b"])
    for name in rounds.part(2):
        if name == "b":
            break

    assert list(rounds.part(1)) == ["b"]


def test_no_names_are_no_trouble():
    assert list(Rounds(tuple).part(3)) == []
