"""Conditions are read from texts and from values, or refused with a sentence."""

import pytest

from manyhands.model import limits
from manyhands.model.filter import Filter, FilterError, read_filter
from manyhands.model.job import State

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Filter()),
        ({"queue": None, "state": ()}, Filter()),
        ({"state": "failed"}, Filter(states=(State.FAILED,))),
        ({"state": "failed,ready,failed"}, Filter(states=(State.FAILED, State.READY))),
        ({"state": (State.FAILED,)}, Filter(states=(State.FAILED,))),
        ({"queue": "q", "tag": "t"}, Filter(queue="q", tag="t")),
        ({"worker": "w", "realm": "native"}, Filter(worker="w", realm="native")),
        ({"unique_key": "ü"}, Filter(unique_key="ü".encode())),
        ({"age_min": "1.5"}, Filter(submitted_before=NOW - 1_500)),
        ({"age_max": 60.0}, Filter(submitted_after=NOW - 60_000)),
        ({"age_min": 1.001}, Filter(submitted_before=NOW - 1_001)),
        ({"failure": "ab", "failure_code": "x"}, Filter(failure="ab", failure_code="x")),
        ({"name": "n", "text": "needle"}, Filter(name="n", text="needle")),
        ({"task": "t"}, Filter(header=("task", "t"))),
    ],
)
def test_conditions_make_a_filter(given, wanted):
    assert read_filter(given, NOW) == wanted


@pytest.mark.parametrize("state", ["", "broken", "failed,", "failed, ready"])
def test_an_unknown_state_is_refused_with_those_that_there_are(state):
    with pytest.raises(FilterError, match="a state is one of blocked, delayed, ready, leased"):
        read_filter({"state": state}, NOW)


@pytest.mark.parametrize("age", ["-1", "soon", "", "nan", "inf", -0.1, limits.TIME_MS_MAX])
def test_an_age_is_refused_that_is_no_number_of_seconds_within_bounds(age):
    with pytest.raises(FilterError, match="an age is a number of seconds between 0 and"):
        read_filter({"age_min": age}, NOW)
