"""Files that are read again."""

import os

from manyhands.operate import watched_files
from manyhands.operate.watched_files import WatchedFiles


class _Loop:
    """Runs what is due when a test says so."""

    def __init__(self) -> None:
        self.due = []

    def call_later(self, _seconds, callback):
        self.due.append(callback)

    def look(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_a_changed_file_is_read_again_once_it_no_longer_changes(tmp_path):
    file = tmp_path / "certificate"
    file.write_text("old")
    loop, reads = _Loop(), []
    WatchedFiles(loop).add([file], lambda: reads.append(file.read_text()))

    loop.look()
    file.write_text("new, ")
    loop.look()
    file.write_text("new, complete")
    loop.look()
    assert reads == []
    loop.look()
    loop.look()

    assert reads == ["new, complete"]


def test_a_file_that_goes_and_comes_back_counts_as_changed(tmp_path):
    file = tmp_path / "key"
    file.write_text("x")
    loop, reads = _Loop(), []
    WatchedFiles(loop).add([file], lambda: reads.append(file.exists()))

    file.unlink()
    loop.look()
    loop.look()
    file.write_text("y")
    loop.look()
    loop.look()

    assert reads == [False, True]


def test_sighup_reads_all_of_them_and_changes_are_not_read_twice(tmp_path):
    file = tmp_path / "key"
    file.write_text("x")
    loop, reads = _Loop(), []
    watched = WatchedFiles(loop)
    assert not watched
    watched.add([file], lambda: reads.append(file.read_text()))
    assert watched

    file.write_text("changed")
    os.utime(file, ns=(1, 1))
    watched.reload()
    loop.look()
    loop.look()

    assert reads == ["changed"]
    assert watched_files._mark_of(tmp_path / "nothing") is None
