"""Files of runs: whole or not there, and gone with the record of their job."""

import os
from pathlib import Path

from manyhands.operate.artifacts import Artifact, Artifacts


def content_of(found: Artifact) -> bytes:
    with found.open() as file:
        return file.read()


def test_a_file_is_there_once_it_is_whole(tmp_path):
    artifacts = Artifacts(tmp_path)
    draft = artifacts.begin("task", 1, "../name", "text/plain", 1)
    draft.write(b"one ")
    assert artifacts.find("task", 1, "../name") is None
    draft.write(b"two")
    draft.finish()

    found = artifacts.find("task", 1, "../name")
    assert (content_of(found), found.content_type, found.size) == (b"one two", "text/plain", 7)
    assert found.path.is_relative_to(tmp_path / "artifacts" / "task" / "1")


def test_a_file_tells_under_which_lease_it_was_uploaded(tmp_path):
    artifacts = Artifacts(tmp_path)

    artifacts.begin("task", 999, "name", "text/plain", 1234).finish()

    assert artifacts.find("task", 999, "name").lease_number == 1234


def test_what_was_discarded_leaves_nothing(tmp_path):
    artifacts = Artifacts(tmp_path)
    draft = artifacts.begin("task", 1, "name", "text/plain", 1)
    draft.write(b"half")
    draft.discard()

    assert list((tmp_path / "artifacts" / "task" / "1").iterdir()) == []


def test_t42_files_of_jobs_that_are_not_on_record_are_removed(tmp_path):
    artifacts = Artifacts(tmp_path)
    assert artifacts.sweep(lambda _: False) == 0
    for task in ("known", "gone"):
        draft = artifacts.begin(task, 1, "name", "text/plain", 1)
        draft.finish()

    assert artifacts.sweep(lambda task: task == "known") == 1
    assert artifacts.find("known", 1, "name") is not None
    assert artifacts.find("gone", 1, "name") is None


def test_t41_a_file_its_type_and_its_folders_are_on_disk_when_it_is_finished(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    draft = Artifacts(tmp_path).begin("task", 1, "name", "text/plain", 1)
    draft.write(b"all of it")
    draft.finish()

    root = tmp_path / "artifacts"
    [file] = (root / "task" / "1").iterdir()
    drafted, *folders = synced
    assert Path(drafted).parent == file.parent
    assert set(folders) == {str(tmp_path), str(root), str(root / "task"), str(file.parent)}


def test_a_second_upload_replaces_the_first_with_its_type(tmp_path):
    artifacts = Artifacts(tmp_path)
    for text, content_type in ((b"first", "text/plain"), (b"{}", "application/json")):
        draft = artifacts.begin("task", 1, "name", content_type, 1)
        draft.write(text)
        draft.finish()

    found = artifacts.find("task", 1, "name")
    assert (content_of(found), found.content_type, found.size) == (b"{}", "application/json", 2)


def test_a_file_that_is_none_of_ours_is_not_there(tmp_path):
    artifacts = Artifacts(tmp_path)
    artifacts.begin("task", 1, "name", "text/plain", 1).finish()
    [file] = (tmp_path / "artifacts" / "task" / "1").iterdir()
    file.write_bytes(b"\x00\x01")

    assert artifacts.find("task", 1, "name") is None
