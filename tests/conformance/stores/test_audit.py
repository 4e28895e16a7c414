"""The audit log is kept over a restart and goes by age."""

from manyhands.model.audit import AuditEntry
from manyhands.store.retention import Retention
from tests.conformance.stores.opened import START

DAY = 24 * 3_600_000


def note(opened, at: int, what: str) -> None:
    seq = opened.store.take_audit_seq()
    entry = AuditEntry(seq=seq, at=at, what=what, protocol="gearman", known=True)
    opened.store.keep_audit(entry)
    opened.commit()


def test_entries_name_their_protocol_after_a_restart(opened):
    note(opened, START, "set queue")
    opened.reopen()

    (entry,) = opened.store.audit(None, 10)

    assert (entry.what, entry.protocol) == ("set queue", "gearman")


def test_entries_go_when_they_are_old_enough_and_later_ones_stay(opening):
    opened = opening(Retention(audit_ms=30 * DAY))
    for day in range(5):
        note(opened, START + day * DAY, f"day {day}")
    opened.settle()

    opened.now = START + 32 * DAY
    opened.store.prune(opened.now, 10)
    opened.store.touch()
    opened.reopen()

    assert [entry.what for entry in opened.store.audit(None, 10)] == ["day 4", "day 3"]


def test_the_next_entry_has_a_number_of_its_own_after_all_went(opening):
    opened = opening(Retention(audit_ms=DAY))
    note(opened, START, "old")
    opened.settle()
    opened.now = START + 2 * DAY
    opened.store.prune(opened.now, 10)
    opened.store.touch()
    opened.settle()

    note(opened, opened.now, "new")

    assert [entry.what for entry in opened.store.audit(None, 10)] == ["new"]
