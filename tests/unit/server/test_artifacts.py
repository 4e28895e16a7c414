"""Files of runs: whole or not there, and gone with the record of their job."""

from manyhands.server.artifacts import Artifacts


def test_a_file_is_there_once_it_is_whole(tmp_path):
    artifacts = Artifacts(tmp_path)
    draft = artifacts.begin("task", 1, "../name", "text/plain")
    draft.write(b"one ")
    assert artifacts.find("task", 1, "../name") is None
    draft.write(b"two")
    draft.finish()

    found = artifacts.find("task", 1, "../name")
    assert (found.path.read_bytes(), found.content_type, found.size) == (
        b"one two",
        "text/plain",
        7,
    )
    assert found.path.is_relative_to(tmp_path / "artifacts" / "task" / "1")


def test_what_was_discarded_leaves_nothing(tmp_path):
    artifacts = Artifacts(tmp_path)
    draft = artifacts.begin("task", 1, "name", "text/plain")
    draft.write(b"half")
    draft.discard()

    assert list((tmp_path / "artifacts" / "task" / "1").iterdir()) == []


def test_t42_files_of_jobs_that_are_not_on_record_are_removed(tmp_path):
    artifacts = Artifacts(tmp_path)
    assert artifacts.sweep(lambda _: False) == 0
    for task in ("known", "gone"):
        draft = artifacts.begin(task, 1, "name", "text/plain")
        draft.finish()

    assert artifacts.sweep(lambda task: task == "known") == 1
    assert artifacts.find("known", 1, "name") is not None
    assert artifacts.find("gone", 1, "name") is None
