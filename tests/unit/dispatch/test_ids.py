"""Ids: their form, their order, and that none comes twice."""

import uuid

from manyhands.dispatch.ids import Ids
from manyhands.model.identity import is_job_id, uid_of

NOW = 1_800_000_000_000


def test_a_job_id_is_a_uuid_of_version_7_that_tells_its_time():
    job_id = Ids().job_id(NOW)

    parsed = uuid.UUID(hex=job_id)
    assert is_job_id(job_id)
    assert uid_of(job_id) == job_id
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert int(job_id[:12], 16) == NOW


def test_job_ids_come_in_order_within_a_millisecond_and_beyond_its_counter():
    ids = Ids()

    made = [ids.job_id(NOW) for _ in range(10_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_job_ids_stay_in_order_when_the_clock_goes_back():
    ids = Ids()

    made = [ids.job_id(now) for now in (NOW, NOW + 5, NOW - 3_600_000, NOW + 4, NOW + 6)]

    assert made == sorted(made)


def test_two_servers_do_not_make_the_same_ids():
    first, second = Ids(), Ids()

    assert first.incarnation != second.incarnation
    assert first.job_id(NOW) != second.job_id(NOW)
    assert first.connection() != second.connection()


def test_tokens_have_128_bits_and_never_repeat():
    ids = Ids()

    tokens = [ids.token() for _ in range(5_000)]

    assert len(set(tokens)) == len(tokens)
    assert {len(token) for token in tokens} == {32}
    assert all(set(token) <= set("0123456789abcdef") for token in tokens)


def test_connections_carry_the_incarnation_of_their_server():
    ids = Ids(b"12345678")

    names = [ids.connection() for _ in range(3)]

    assert names == [f"{b'12345678'.hex()}/{number}" for number in (1, 2, 3)]
