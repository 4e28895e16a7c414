"""Ids of jobs: their form, and the uid that every protocol can carry."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.identity import _NAMESPACE, is_job_id, uid_of

hexadecimal = st.text("0123456789abcdef", min_size=1, max_size=128)


@given(hexadecimal)
def test_hexadecimal_digits_make_a_job_id(text):
    assert is_job_id(text)


def test_everything_else_is_no_job_id():
    wrong = ["", "0" * 129, "A", "g", "a-b", " a", "a\n", "é", "0x1", "\0"]

    accepted = [text for text in wrong if is_job_id(text)]

    assert accepted == []


@given(hexadecimal)
def test_rule_14_every_job_has_a_uid_of_32_digits(job_id):
    uid = uid_of(job_id)

    assert len(uid) == 32
    assert is_job_id(uid)
    assert uid_of(uid) == uid


def test_rule_14_an_id_of_32_digits_is_its_own_uid():
    job_id = "0123456789abcdef" * 2

    uid = uid_of(job_id)

    assert uid == job_id


@given(hexadecimal.filter(lambda text: len(text) != 32))
def test_rule_14_the_uid_of_another_id_is_a_uuid_version_5(job_id):
    uid = uid_of(job_id)

    assert uid == uuid.uuid5(uuid.UUID(bytes=_NAMESPACE), job_id).hex
    assert uuid.UUID(uid).version == 5


def test_uids_do_not_change_between_versions():
    assert uid_of("abc123") == uid_of("abc123")
    assert uid_of("1") == uuid.uuid5(uuid.UUID(bytes=b"manyhands.job.id"), "1").hex
