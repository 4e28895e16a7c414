"""Serials of several servers: unique without asking, and in order of arrival to the second."""

from hypothesis import given
from hypothesis import strategies as st

from manyhands.store.postgres.serials import first_serial, has_room, second_at, second_of

NOW = 1_800_000_000_000
slots = st.integers(0, 127)
seconds = st.integers(1, (1 << 30) - 2)


@given(seconds, slots)
def test_a_serial_tells_its_second_and_fits_a_float(second, slot):
    """S34."""
    serial = first_serial(second, slot)

    assert second_of(serial) == second
    assert serial < 1 << 53


@given(seconds, slots, slots)
def test_serials_of_two_servers_never_meet(second, one, other):
    """S34: each slot has numbers of its own in every second."""
    first, last = first_serial(second, one), first_serial(second, one) + (1 << 16) - 1

    assert one == other or not first <= first_serial(second, other) <= last


@given(seconds, slots, slots)
def test_what_arrives_a_second_later_comes_after_it_at_any_server(second, one, other):
    """S34."""
    assert first_serial(second, one) + (1 << 16) - 1 < first_serial(second + 1, other)


def test_a_second_that_is_full_goes_on_in_the_next():
    """S34."""
    serial = first_serial(second_at(NOW), 5)

    assert has_room(serial, 1_000)
    assert not has_room(serial + (1 << 16) - 10, 1_000)
