"""What several servers have stored of their counters."""

from manyhands.store.postgres.shared import _latest
from manyhands.store.records.frames import Counters


def test_counters_go_on_from_the_highest_of_all_servers():
    found = _latest([Counters(5, 10, 3, 7), Counters(9, 8, 2, 9)])

    assert (found.serial, found.seq, found.position) == (10, 3, 9)


def test_the_last_sign_of_life_is_that_of_the_server_that_decided_last():
    """The database's clock may have been set back since another one lived."""
    found = _latest([Counters(9_000, 10, 3, 7), Counters(5_000, 12, 4, 7)])

    assert found.alive_at == 5_000
