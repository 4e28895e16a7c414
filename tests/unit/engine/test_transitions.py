"""The table of a job's life: what is in it happens, what is not in it cannot."""

import itertools

import pytest

from manyhands.engine.transitions import TABLE, ImpossibleMoveError, Trigger, advance, moved
from manyhands.model.job import Job, State

# Written down once more, by hand: rows are states, columns the triggers in this order.
TRIGGERS = ["held", "postponed", "readied", "claimed", "completed", "failed", "cancelled"]
EXPECTED = {
    "blocked": ["blocked", "delayed", "ready", None, None, "failed", "cancelled"],
    "delayed": ["blocked", "delayed", "ready", None, "completed", "failed", "cancelled"],
    "ready": ["blocked", "delayed", "ready", "leased", "completed", "failed", "cancelled"],
    "leased": ["blocked", "delayed", "ready", None, "completed", "failed", "cancelled"],
    "completed": ["blocked", "delayed", "ready", None, None, None, None],
    "failed": ["blocked", "delayed", "ready", None, None, None, "cancelled"],
    "cancelled": ["blocked", "delayed", "ready", None, None, None, None],
}
PAIRS = [
    (State(state), Trigger(trigger), State(after) if after is not None else None)
    for state, row in EXPECTED.items()
    for trigger, after in zip(TRIGGERS, row, strict=True)
]


def a_job(state: State) -> Job:
    return Job(job_id="a", queue="q", state=state, entered_at=1)


def test_the_expected_table_has_all_pairs():
    every_pair = set(itertools.product(State, Trigger))

    listed = [(state, trigger) for state, trigger, _ in PAIRS]

    assert len(listed) == 49
    assert set(listed) == every_pair


@pytest.mark.parametrize(("state", "trigger", "after"), PAIRS)
def test_a_trigger_leads_where_the_table_says_or_is_impossible(state, trigger, after):
    job = a_job(state)

    if after is None:
        with pytest.raises(ImpossibleMoveError, match=f"job a is {state} and cannot be {trigger}"):
            advance(job, trigger, now=5)
        assert (state, trigger) not in TABLE
        return
    moved_on = advance(job, trigger, now=5, reason="why")

    assert moved_on.state is after
    assert moved(job, trigger) is after
    assert (moved_on.entered_at, moved_on.reason) == (5, "why")
    assert job == a_job(state), "the value before stays as it was"


def test_an_impossible_move_is_our_own_fault():
    assert issubclass(ImpossibleMoveError, AssertionError)
