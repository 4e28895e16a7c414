"""Failures are alike if they differ only in what differs each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.failures import group_of
from manyhands.model.job import Failure


def line(message: str) -> str:
    return group_of(Failure("boom", message)).line


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no such box", "no such box"),
        ("no such box\nTraceback:\n  line 3", "no such box"),
        ("\n  KeyError: 'name'\n", "KeyError: 'name'"),
        ("took 31.25 s, 17 of 2,400 rows", "took <number> s, <number> of <number> rows"),
        ("HTTP 503 from 10.0.0.17:8080", "HTTP 503 from <number>"),
        ("exit code 137", "exit code 137"),
        ("[Errno 111] refused", "[Errno 111] refused"),
        ("job 0192f0c1a2b3c4d5 is gone", "job <id> is gone"),
        ("user 123e4567-e89b-12d3-a456-426614174000", "user <id>"),
        ("at 0x7f3a in module", "at <id> in module"),
        ("since 2026-03-01T12:00:05.123Z", "since <time>"),
        ("facade   \t  decade", "facade decade"),
        ("", ""),
    ],
)
def test_what_differs_each_time_is_left_out_of_a_line(message, expected):
    assert line(message) == expected


def test_groups_differ_by_code_and_by_line():
    groups = {
        group_of(Failure(code, message)).group_id
        for code in ("a", "b")
        for message in ("one", "two", "two", "two\nand more")
    }

    assert len(groups) == 4


@given(st.text(), st.text(max_size=3_000))
def test_any_failure_has_a_group_with_a_short_line(code, message):
    group = group_of(Failure(code, message))

    assert len(group.line) <= 200
    assert "\n" not in group.line
    assert len(group.group_id) == 16
    assert group_of(Failure(code, message)) == group
