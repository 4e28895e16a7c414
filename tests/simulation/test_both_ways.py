"""Nobody can tell the short way of plain jobs from the rules."""

from collections import Counter
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.both_ways import WORDS, Trial, run, run_both, some_steps

SEEDS = range(100)
STEPS = 1_000
numbers = st.integers(0, 999)
a_step = st.tuples(st.sampled_from(WORDS), numbers, numbers)


def assert_same(short, full):
    for number, (one, other) in enumerate(zip_longest(short, full)):
        assert one == other, f"entry {number} of the log differs"


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(a_step, max_size=80))
def test_any_few_commands_have_the_same_outcome_by_both_ways(steps):
    short, full = run_both(steps)

    assert_same(short, full)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_run_has_the_same_outcome_by_both_ways(seed):
    short, full = run_both(some_steps(seed, STEPS))

    assert_same(short, full)


def test_a_long_run_takes_every_step_of_the_short_way_often():
    taken = Counter()

    def counted(kind, step):
        def count(*arguments, **options):
            outcome = step(*arguments, **options)
            taken[kind] += bool(outcome)
            return outcome

        return count

    for seed in range(5):
        trial = Trial()
        dispatcher = trial.desk.dispatcher
        steps = dispatcher.steps
        steps.update({kind: counted(kind, step) for kind, step in steps.items()})
        at_once = [
            dispatcher.submit_at_once,
            dispatcher.claim_at_once,
            dispatcher.complete_at_once,
        ]
        (
            dispatcher.submit_at_once,
            dispatcher.claim_at_once,
            dispatcher.complete_at_once,
        ) = (counted(step.__name__, step) for step in at_once)
        run(some_steps(seed, STEPS), trial)

    kinds = [*steps, *(step.__name__ for step in at_once)]
    assert min(taken[kind] for kind in kinds) > 10, taken
