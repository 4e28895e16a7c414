"""Ids as peers write them, and the ids that all protocols know."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands.model.identity import digits_of, is_job_id
from manyhands.model.job import Job, Origin, State
from manyhands.model.policy import TERMS
from manyhands.protocols.qless.identifiers import (
    TEXT_BYTES_MAX,
    WrongItemError,
    name_of,
    read_any,
    read_hexadecimal,
    shown_id,
)

HEXADECIMAL = st.text("0123456789abcdefABCDEF", min_size=1, max_size=128)


def job(job_id: str, name: str | None) -> Job:
    return Job(
        job_id=job_id,
        queue="q",
        state=State.READY,
        payload=b"",
        terms=TERMS["qless"],
        origin=Origin("qless"),
        name=name,
    )


@given(HEXADECIMAL)
def test_digits_are_the_same_id_whatever_else_is_allowed(text):
    assert read_any(text) == read_hexadecimal(text) == text.lower()
    assert name_of(text, text.lower()) is None
    assert shown_id(job(text.lower(), None)) == text.lower()


@given(st.text(max_size=300))
def test_any_text_is_refused_or_becomes_an_id_and_comes_back_as_it_was(text):
    decent = text.isprintable() and 0 < len(text.encode("utf-8", "replace")) <= TEXT_BYTES_MAX
    assume(not is_job_id(text.lower()))

    if not decent:
        with pytest.raises(WrongItemError):
            read_any(text)
        return
    job_id = read_any(text)

    assert is_job_id(job_id)
    assert len(job_id) == 32
    assert shown_id(job(job_id, name_of(text, job_id))) == text


@given(st.text("abXY -/", min_size=1, max_size=8), st.text("abXY -/", min_size=1, max_size=8))
def test_different_texts_are_different_jobs(one, other):
    same = one.lower() == other.lower() if is_job_id(one.lower()) else one == other

    assert (read_any(one) == read_any(other)) is same


def test_a_name_that_another_protocol_gave_is_not_shown_as_the_id():
    assert shown_id(job("ab" * 16, "build")) == "ab" * 16


def test_ids_do_not_change_between_versions():
    assert digits_of("my job") == "ba5b23af562f5b1891f0b0bd4bb2e8f3"


@pytest.mark.parametrize("text", ["", "\ud800", "a\x7f", "x" * 256, "é" * 128])
def test_what_cannot_be_shown_or_is_too_long_is_no_id(text):
    with pytest.raises(WrongItemError):
        read_any(text)
