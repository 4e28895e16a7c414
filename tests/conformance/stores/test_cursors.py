"""Where readers of the event log are is known again after a stop."""

from manyhands.model.commands import RemoveCursor, SetCursor
from manyhands.model.events import Cursor
from manyhands.model.replies import Accepted


def test_cursors_come_back_as_they_were_last_set(opened):
    opened.ask(SetCursor(Cursor("reader", 1)))
    opened.ask(SetCursor(Cursor("reader", 7, '{"more": [1, 2]}')))
    opened.ask(SetCursor(Cursor("gone", 3)))
    opened.reopen()
    assert opened.store.live.cursors["reader"] == Cursor("reader", 7, '{"more": [1, 2]}')
    opened.ask(RemoveCursor("gone"))
    opened.reopen()

    assert set(opened.store.live.cursors) == {"reader"}


def test_the_last_word_on_a_cursor_counts_within_one_commit_too(opened):
    store = opened.store
    opened.ask(SetCursor(Cursor("a", 1)))
    opened.ask(RemoveCursor("a"))
    opened.ask(SetCursor(Cursor("a", 2)))
    opened.ask(SetCursor(Cursor("b", 1)))
    opened.ask(RemoveCursor("b"))
    assert set(store.live.cursors) == {"a"}
    opened.reopen()

    assert opened.store.live.cursors == {"a": Cursor("a", 2)}


def test_removing_a_cursor_that_is_not_there_is_no_mistake(opened):
    assert isinstance(opened.ask(RemoveCursor("nobody")), Accepted)
