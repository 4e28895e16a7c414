"""`manyhands check` and `manyhands compact`, on stores that nobody uses; backups with artifacts."""

import json
import os
import signal

import apsw
import pytest

from manyhands.model.commands import ByToken, Fail
from manyhands.model.failures import earlier_group_of
from manyhands.model.job import Failure
from manyhands.operate.artifacts import Artifacts
from manyhands.store.contract import FailureQuestion
from manyhands.store.retention import Retention
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.writer import journal
from tests.conformance.stores.opened import Opened
from tests.e2e.serving import run, serving
from tests.e2e.test_damage import Damaged
from tests.e2e.test_journal import damage as overwrite
from tests.e2e.test_journal import kill, open_behind, records


@pytest.fixture
def stopped(tmp_path):
    """A store with jobs of many kinds, stopped in order."""
    opened = Opened("sqlite", tmp_path / "data")
    first = opened.submit(payload=os.urandom(5_000), tags=("red", "blue"), unique_key=b"key")
    opened.submit(depends_on=(first.job_id,), namespace=None)
    opened.submit("named", namespace="n", name="x", job_id="feed01", id_chosen=True)
    opened.submit("failing")
    (job,) = opened.claim("failing")
    failure = Failure("boom", "it went wrong")
    opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure))
    opened.submit("late", delay_ms=10_000)
    opened.commit()
    opened.close()
    return opened.directory


def checked(data, *arguments):
    return run("check", "--data", str(data), *arguments)


def change(data, statement, *values):
    connection = apsw.Connection(str(data / schema.FILE_NAME))
    connection.execute(statement, values)
    connection.close()


def test_a_store_that_is_whole_is_said_to_be(stopped):
    before = (stopped / schema.FILE_NAME).read_bytes()

    ended = checked(stopped)

    assert ended.returncode == 0, ended.stderr
    parts = ("structure", "journal", "settings", "jobs", "events", "artifacts")
    assert ended.stdout.splitlines()[:-1] == [f"{part}: ok" for part in parts]
    assert "5 jobs, 7 events, 0 artifacts checked" in ended.stdout
    assert "no damage found." in ended.stdout
    assert (stopped / schema.FILE_NAME).read_bytes() == before


def test_every_record_that_is_damaged_is_named(tmp_path):
    damaged = Damaged(tmp_path / "data")
    damaged.change("UPDATE jobs SET payload = x'00' WHERE job_id = ?", damaged.ready[1])
    damaged.change("UPDATE jobs SET result = x'00' WHERE job_id = ?", damaged.finished)
    damaged.change("UPDATE queues SET record = record || ' ' WHERE name = 'q'")
    damaged.change("UPDATE partials SET payload = x'00'")

    ended = checked(damaged.data, "--json")

    facts = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert facts["jobs"] == 7
    assert sorted(facts["damage"]) == sorted(
        [
            f"the payload of job {damaged.ready[1]} does not match its checksum",
            f"the result of job {damaged.finished} does not match its checksum",
            "queues q does not match its checksum",
            "partials 7 does not match its checksum",
        ]
    )


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE jobs SET state = 'leased' WHERE queue = 'late'", "is found by the state leased"),
        ("UPDATE jobs SET name = 'y' WHERE name = 'x'", "is found by the name y, and has x"),
        ("DELETE FROM tags WHERE tag = 'red'", "is found by the tags blue"),
        ("DELETE FROM failures", "is found by the group of failures None"),
        ("DELETE FROM payloads", "the payload of job"),
        ("DELETE FROM jobs WHERE serial = 1", "payloads has rows of a job with serial 1"),
        ("DELETE FROM terms", "cannot be read"),
        ("DELETE FROM events", "ok"),
        ("DELETE FROM facts WHERE key = 'counters'", "there is a job with serial 5, after 0"),
    ],
)
def test_rows_that_do_not_agree_are_named(stopped, statement, words):
    change(stopped, statement)

    ended = checked(stopped)

    assert words in ended.stdout + ended.stderr
    assert ended.returncode == (0 if words == "ok" else 1)
    assert "Traceback" not in ended.stderr


def test_a_file_whose_structure_is_damaged_is_said_to_be(stopped):
    file = stopped / schema.FILE_NAME
    overwrite(file, file.stat().st_size // 2, 4_000)

    ended = checked(stopped)

    assert ended.returncode == 1
    assert "damaged" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_journal_is_checked_and_left_as_it_is(tmp_path):
    data = tmp_path / "data"
    disk = open_behind(data)
    disk.submit_and_commit(10)
    kill(disk)
    (path,) = journal.segments(data)

    assert json.loads(checked(data, "--json").stdout)["journal_frames"] == 10

    overwrite(path, records(path)[4])
    ended = checked(data)
    assert ended.returncode == 1
    assert f"{path} is damaged: frame 5 of the journal is missing" in ended.stderr
    assert path.exists()


def test_an_artifact_that_cannot_be_told_is_named(stopped):
    artifacts = Artifacts(stopped)
    draft = artifacts.begin("task", 0, "logs.txt", "text/plain", 1)
    draft.write(b"content")
    draft.finish()
    assert json.loads(checked(stopped, "--json").stdout)["artifacts"] == 1

    overwrite(artifacts.find("task", 0, "logs.txt").path, 3)
    ended = checked(stopped)

    assert ended.returncode == 1
    assert str(stopped / "artifacts" / "task" / "0") in ended.stderr


@pytest.mark.parametrize("command", ["check", "compact"])
def test_a_store_in_use_is_neither_checked_nor_compacted(tmp_path, command):
    with serving(tmp_path) as served:
        ended = run(command, "--data", str(served.data))

    assert ended.returncode == 1
    assert f"is in use by the server with process id {served.process.pid}" in ended.stderr


@pytest.mark.parametrize("command", ["check", "compact"])
def test_a_directory_without_a_store_is_named_and_not_made(tmp_path, command):
    ended = run(command, "--data", str(tmp_path / "nowhere"))

    assert ended.returncode == 1
    assert "there is no store" in ended.stderr
    assert not (tmp_path / "nowhere").exists()


def test_room_that_nothing_uses_is_given_back(tmp_path):
    opened = Opened("sqlite", tmp_path / "data", Retention(record_ms=1_000))
    kept = opened.submit("kept", payload=b"precious")
    for _ in range(100):
        opened.submit(payload=os.urandom(10_000))
    for job in opened.claim(count=100):
        failure = Failure("boom")
        opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure))
    opened.settle()
    opened.now += 60_000
    opened.store.prune(opened.now, 1_000)
    opened.settle()
    os.kill(opened.store._link._process.pid, signal.SIGKILL)
    opened.close()

    ended = run("compact", "--data", str(opened.directory), "--json")

    facts = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert facts["bytes_before"] > 1_000_000
    assert facts["bytes_after"] < 400_000
    files = {path.name for path in opened.directory.iterdir()}
    assert files <= {"manyhands.db", "manyhands.lock"}
    assert (opened.directory / schema.FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert checked(opened.directory).returncode == 0
    again = Opened("sqlite", opened.directory)
    assert again.job(kept.job_id).payload == b"precious"
    assert again.store.facts()["bytes"] == facts["bytes_after"]
    again.close()


def test_a_damaged_store_is_not_compacted(stopped):
    file = stopped / schema.FILE_NAME
    overwrite(file, file.stat().st_size // 2, 4_000)
    before = file.read_bytes()

    ended = run("compact", "--data", str(stopped))

    assert ended.returncode == 1
    assert "is damaged" in ended.stderr
    assert file.read_bytes() == before


def upload(data, task, name, content):
    draft = Artifacts(data).begin(task, 0, name, "text/plain", 1)
    draft.write(content)
    draft.finish()


def test_a_backup_takes_artifacts_along_and_both_can_be_restored(stopped, tmp_path):
    upload(stopped, "feed", "a.txt", b"first")
    upload(stopped, "feed", "b.txt", b"second")
    target = tmp_path / "copy.db"

    ended = run("backup", "--data", str(stopped), "--json", str(target))

    facts = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert (facts["artifacts"], facts["damage"]) == (2, [])
    folder = tmp_path / "copy.db.artifacts"
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}
    restored = tmp_path / "restored"
    restored.mkdir()
    target.rename(restored / "manyhands.db")
    folder.rename(restored / "artifacts")
    assert checked(restored).returncode == 0
    with Artifacts(restored).find("feed", 0, "b.txt").open() as file:
        assert file.read() == b"second"
    opened = Opened("sqlite", restored)
    assert sum(queue.unfinished_count for queue in opened.store.live.queues.values()) == 4
    opened.close()


def test_an_artifact_that_comes_while_the_database_is_copied_is_in_the_backup(
    stopped, tmp_path, monkeypatch
):
    from manyhands import cli
    from manyhands.store.sqlite import copies

    upload(stopped, "feed", "early.txt", b"early")
    copy_database = copies.copy_database

    def meanwhile(connection, target):
        yield from copy_database(connection, target)
        upload(stopped, "feed", "late.txt", b"late")
        upload(stopped, "feed", "early.txt", b"changed")

    monkeypatch.setattr(copies, "copy_database", meanwhile)
    with pytest.raises(SystemExit) as ended:
        cli.main(["backup", "--data", str(stopped), str(tmp_path / "copy.db")])

    assert ended.value.code == 0
    contents = [path.read_bytes() for path in (tmp_path / "copy.db.artifacts").glob("*/*/*")]
    assert sorted(content.partition(b"\n")[2] for content in contents) == [b"changed", b"late"]


def test_a_backup_of_a_damaged_record_says_so(tmp_path):
    damaged = Damaged(tmp_path / "data")
    damaged.change("UPDATE jobs SET result = x'00' WHERE job_id = ?", damaged.finished)

    ended = run("backup", "--data", str(damaged.data), str(tmp_path / "copy.db"))

    assert ended.returncode == 1
    assert f"the result of job {damaged.finished} does not match its checksum" in ended.stderr
    assert (tmp_path / "copy.db").exists()


def test_a_failure_that_an_earlier_version_grouped_by_its_first_line_is_no_damage(tmp_path):
    opened = Opened("sqlite", tmp_path / "data")
    opened.submit("failing")
    (job,) = opened.claim("failing")
    failure = Failure("boom", 'Traceback (most recent call last):\n  File "a.py", line 1\nGone: x')
    opened.ask(Fail(job_id=job.job_id, proof=ByToken(job.lease.token), failure=failure))
    opened.commit()
    opened.close()
    earlier = earlier_group_of(failure)
    change(opened.directory, "UPDATE failures SET group_id = ?", earlier.group_id)
    change(
        opened.directory,
        "UPDATE failure_groups SET group_id = ?, line = ?",
        earlier.group_id,
        earlier.line,
    )

    ended = checked(opened.directory)

    assert ended.returncode == 0, ended.stdout
    again = Opened("sqlite", tmp_path / "data")
    (group,) = again.store.failures(FailureQuestion(now=again.now)).groups
    assert (group.group.line, group.count) == ("Traceback (most recent call last):", 1)
    again.close()
