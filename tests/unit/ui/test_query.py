"""What people write into the search field means what they think, or they are told why not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.filter import Filter
from manyhands.model.identity import digits_of
from manyhands.model.job import State
from manyhands.ui.query import LENGTH_MAX, quoted, read_query, with_state

NOW = 1_700_000_000_000


def found(text: str) -> Filter:
    query = read_query(text, NOW)
    assert query.problems == ()
    return query.filter


def problem(text: str) -> str:
    [sentence] = read_query(text, NOW).problems
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Filter()),
        ("   ", Filter()),
        ("state:failed", Filter(states=(State.FAILED,))),
        ("state:running,failed", Filter(states=(State.LEASED, State.FAILED))),
        ("is:running", Filter(states=(State.LEASED,))),
        ("state:failed,ready", Filter(states=(State.FAILED, State.READY))),
        ("queue:mail", Filter(queue="mail")),
        ('queue:"my queue"', Filter(queue="my queue")),
        (r'queue:"a \"b\" \\c"', Filter(queue=r'a "b" \c')),
        ("tag:x:y", Filter(tag="x:y")),
        ("worker:host-1 queue:a", Filter(worker="host-1", queue="a")),
        ("protocol:gearman", Filter(realm="gearman")),
        ("protocol:qless", Filter(realm="qless")),
        ("protocol:API", Filter(realm="native")),
        ("name:task-1", Filter(name="task-1")),
        ("key:k", Filter(unique_key=b"k")),
        ("failure:ab12", Filter(failure="ab12")),
        ("age>90", Filter(submitted_before=NOW - 90_000)),
        ("age>1.5h", Filter(submitted_before=NOW - 5_400_000)),
        ("age>1h30m", Filter(submitted_before=NOW - 5_400_000)),
        ("age<2d", Filter(submitted_after=NOW - 172_800_000)),
        (
            "age>1h age<1d",
            Filter(submitted_before=NOW - 3_600_000, submitted_after=NOW - 86_400_000),
        ),
        ("needle", Filter(text="needle")),
        ("two  words", Filter(text="two words")),
        ('"two  words"', Filter(text="two  words")),
        ('"state:failed"', Filter(text="state:failed")),
        ("https://example.org/x", Filter(text="https://example.org/x")),
        ("state:ready needle", Filter(states=(State.READY,), text="needle")),
    ],
)
def test_a_search_is_read(text, wanted):
    assert found(text) == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("state:broken", "A state is one of"),
        ("state:", "Write a value after state"),
        ('queue:""', "Write a value after queue"),
        ("foo:bar", "no qualifier “foo”"),
        ("protocol:smtp", "A protocol is one of"),
        ("age>soon", "An age is a number"),
        ("age>", "An age is a number"),
        ("age:5m", "age>5m"),
        ("queue:a queue:b", "can only be used once"),
        ('"open', "is not closed"),
        ("x" * (LENGTH_MAX + 1), "at most"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(text, told):
    assert told in problem(text)


@pytest.mark.parametrize(
    "written",
    ["id:AB12", "id:H:server:ab12", "id:ab-12"],
)
def test_an_id_may_be_written_in_every_way_it_is_known_by(written):
    assert read_query(written, NOW).job_id == "ab12"


def test_a_text_of_ones_own_stands_for_the_id_that_is_made_from_it():
    assert read_query('id:"my job"', NOW).job_id == digits_of("my job")


@given(st.text(min_size=1, max_size=100))
def test_whatever_a_queue_is_called_it_can_be_looked_for(name):
    assert found(f"queue:{quoted(name)}").queue == name


@given(st.text(max_size=200))
def test_any_text_at_all_gets_a_filter_or_a_sentence(text):
    query = read_query(text, NOW)

    assert query.text == text
    for sentence in query.problems:
        assert sentence.endswith(".")


def test_a_state_takes_the_place_of_another_in_a_search():
    assert with_state("queue:a state:failed,ready x", State.LEASED) == "state:running queue:a x"
    assert with_state("state:failed queue:a", None) == "queue:a"
    assert with_state('"a state:failed b"', None) == '"a state:failed b"'


def test_words_behind_an_open_quotation_mark_are_still_words():
    found = read_query('state:failed "a \\" b" c"d e \\"f', 0)

    assert found.filter.states == (State.FAILED,)
    assert found.filter.text == 'a " b c d e \\ f'
    assert found.problems == ("A quotation mark is not closed.",)


def test_open_quotation_marks_cost_no_more_than_as_many_words():
    def cost(text: str) -> float:
        begun = time.perf_counter()
        for _ in range(5):
            read_query(text, 0)
        return time.perf_counter() - begun

    hostile = min(cost('"\\' * 499) for _ in range(5))
    harmless = min(cost("a " * 499) for _ in range(5))

    assert hostile < harmless * 10
