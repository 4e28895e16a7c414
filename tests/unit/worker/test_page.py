"""The page that a child shares with its supervisor."""

from manyhands.client.worker.page import Page


def test_running_jobs_are_read_by_another_process_s_view(tmp_path):
    """P49: what was begun and not finished is what a death is blamed on."""
    ours = Page(tmp_path / "page", 3, is_new=True)
    theirs = Page(tmp_path / "page", 3)
    theirs.put(0, ("one", "token-1"), "mail")
    theirs.put(2, ("drei-ä", "token-3"), "größe")
    assert ours.begun() == [(("one", "token-1"), "mail"), (("drei-ä", "token-3"), "größe")]
    assert ours.running() == [("one", "token-1"), ("drei-ä", "token-3")]
    theirs.clear(0)
    theirs.put(2, ("4", "t"), "ä" * 500)
    [(held, task)] = ours.begun()
    assert (held, task) == (("4", "t"), "ä" * 64)
    theirs.clear(2)
    assert ours.running() == []
    ours.close()
    theirs.close()


def test_numbers_are_read_as_they_were_written(tmp_path):
    ours = Page(tmp_path / "page", 1, is_new=True)
    theirs = Page(tmp_path / "page", 1)
    theirs.write(completed=7, is_connected=1)
    theirs.write(shortest_term_ms=900)
    found = ours.read()
    assert (found["completed"], found["is_connected"], found["shortest_term_ms"]) == (7, 1, 900)
    ours.close()
    theirs.close()


def test_a_name_that_is_too_long_leaves_no_half_record(tmp_path):
    page = Page(tmp_path / "page", 1, is_new=True)
    page.put(0, ("x" * 2000, "token"), "mail")
    assert page.running() == []
    page.close()
