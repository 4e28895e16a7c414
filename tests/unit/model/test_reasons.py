"""The vocabulary of reasons, and what earlier versions stored in its place."""

import pytest

from manyhands.model.events import KINDS
from manyhands.model.job import EndReason, State
from manyhands.model.reasons import BY_VALUE, By, Outcome, Reason, as_detail, in_words, read_reason

# Written in data directories and sent to clients: a word that is gone or changed breaks both.
STORED = (
    "",
    *("abandoned", "advanced", "cancelled", "cutoff", "deadline", "dependency_failed", "expired"),
    *("failed", "goodbye", "lapsed", "lost", "moved", "out_of_attempts", "released", "renewed"),
    *("replaced", "requeued", "retry"),
)


def test_the_words_that_are_stored_stay_the_same():
    assert sorted(BY_VALUE) == sorted(STORED)
    assert all(reason.value == str(reason) == value for value, reason in BY_VALUE.items())


def test_every_state_has_its_kind_of_event_and_every_reason_a_state():
    assert set(KINDS) == set(State)
    assert {reason for kind in KINDS.values() for reason in kind.reasons} == set(Reason)
    for kind in KINDS.values():
        assert len(set(kind.reasons)) == len(kind.reasons)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_says_what_it_means(reason):
    assert reason.sentence
    assert reason.by or reason is Reason.NONE
    assert reason.is_lost == (reason.outcome is Outcome.LOST)
    if reason.is_lost:
        assert By.WORKER not in reason.by  # nobody heard of it
    if reason.outcome in (Outcome.FAILED, Outcome.ADVANCED):
        assert reason.by == (By.WORKER,)  # nobody else can say so


def test_an_attempt_that_is_lost_or_given_back_ends_for_a_reason_of_the_same_name():
    shared = {end.value for end in EndReason} - {EndReason.COMPLETED.value}

    assert shared <= set(BY_VALUE)


def test_people_read_the_words_of_whoever_cancelled_a_job_or_else_ours():
    assert in_words(Reason.CANCELLED, "wrong text") == "wrong text"
    assert in_words(Reason.CANCELLED, "") == "cancelled"
    assert in_words(Reason.NONE, "") == ""
    assert (as_detail("cancelled"), as_detail("wrong text")) == ("", "wrong text")


@pytest.mark.parametrize(
    ("text", "cancelled", "found"),
    [
        ("lost", False, (Reason.LOST, "")),
        ("cancelled", True, (Reason.CANCELLED, "")),
        ("wrong text", True, (Reason.CANCELLED, "wrong text")),
        ("of a later version", False, (Reason.NONE, "of a later version")),
    ],
)
def test_whatever_was_stored_as_a_reason_can_be_read(text, cancelled, found):
    assert read_reason(text, cancelled=cancelled) == found
