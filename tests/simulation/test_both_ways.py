"""Nobody can tell the short way of plain jobs from the rules."""

from itertools import zip_longest

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.engine import plain
from tests.simulation.both_ways import WORDS, run_both, some_steps

SEEDS = range(100)
STEPS = 1_000
numbers = st.integers(0, 999)
a_step = st.tuples(st.sampled_from(WORDS), numbers, numbers)


def assert_same(short, full):
    for number, (one, other) in enumerate(zip_longest(short, full)):
        assert one == other, f"entry {number} of the log differs"


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(a_step, max_size=80))
def test_any_few_commands_have_the_same_outcome_by_both_ways(steps, monkeypatch):
    short, full = run_both(steps, monkeypatch)

    assert_same(short, full)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_run_has_the_same_outcome_by_both_ways(seed, monkeypatch):
    short, full = run_both(some_steps(seed, STEPS), monkeypatch)

    assert_same(short, full)


def test_a_long_run_takes_every_step_of_the_short_way_often(monkeypatch):
    taken = dict.fromkeys(plain.STEPS, 0)

    def counted(kind, step):
        def count(command, view, now):
            outcome = step(command, view, now)
            taken[kind] += outcome is not None
            return outcome

        return count

    counting = {kind: counted(kind, step) for kind, step in plain.STEPS.items()}
    monkeypatch.setattr(plain, "STEPS", counting)
    for seed in range(5):
        run_both(some_steps(seed, STEPS), monkeypatch)

    assert min(taken.values()) > 10, taken
