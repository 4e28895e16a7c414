"""What the SQLite store does when its file, its disk or its processes fail."""

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from manyhands.model.job import State
from manyhands.store.contract import StoreError, StoreFailedError
from manyhands.store.sqlite import opening, schema
from manyhands.store.sqlite.store import SqliteStore
from manyhands.store.sqlite.writer.link import WRITER_COMMAND
from tests.conformance.stores.opened import Opened
from tests.e2e.serving import SECONDS_MAX, is_gone, wait_until

FAULTY_WRITER = (sys.executable, str(Path(__file__).with_name("faulty_writer.py")))
ROOT = Path(__file__).parents[2]


class Disk(Opened):
    """A store whose writer may be a faulty one."""

    def __init__(self, directory: Path, writer_command=WRITER_COMMAND) -> None:
        self.writer_command = writer_command
        super().__init__("sqlite", directory)

    def _open(self):
        return SqliteStore(self.directory, None, self.writer_command)

    def die(self) -> None:
        """As the server dies: the writer sees no more of it than closed sockets."""
        link = self.store._link
        link._socket.close()
        link._hurry.close()
        link._process.wait(SECONDS_MAX)

    def writer_pid(self) -> int:
        return self.store._link._process.pid

    def submit_and_commit(self, count: int, acknowledged: list[str] | None = None) -> list[str]:
        """Ids that were acknowledged."""
        acknowledged = [] if acknowledged is None else acknowledged
        for _ in range(count):
            job = self.submit(payload=os.urandom(200))
            self.commit()
            acknowledged.append(job.job_id)
        return acknowledged


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def file(data):
    """The database of a store with 500 jobs, stopped cleanly."""
    disk = Disk(data)
    for _ in range(500):
        disk.submit(payload=os.urandom(400))
    disk.commit()
    disk.close()
    return data / schema.FILE_NAME


def leave_unclean(data):
    """The same, but its writer was killed, so that there is a log."""
    disk = Disk(data)
    disk.submit_and_commit(3)
    os.kill(disk.writer_pid(), signal.SIGKILL)
    disk.close()
    assert (data / "manyhands.db-wal").stat().st_size > 0


def digests(data):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in data.iterdir()
        if path.name in ("manyhands.db", "manyhands.db-wal") and path.stat().st_size
    }


def refused(data):
    """The sentence with which a store is not opened, leaving every byte where it was."""
    before = digests(data)
    with pytest.raises(StoreError) as caught:
        SqliteStore(data)
    assert digests(data) == before
    return str(caught.value)


def overwrite(file, start, count):
    with file.open("r+b") as stream:
        stream.seek(start)
        stream.write(b"\xa5" * count)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_damaged_file_is_refused_and_left_alone(file, data, share):
    start = int(file.stat().st_size * share) // schema.PAGE_BYTES * schema.PAGE_BYTES
    overwrite(file, start, schema.PAGE_BYTES)

    sentence = refused(data)

    assert sentence.startswith(f"{file} is damaged: ")
    assert "backup" in sentence


def test_a_damaged_file_with_a_log_is_refused_and_left_alone(file, data):
    leave_unclean(data)
    overwrite(
        file,
        file.stat().st_size // 2 // schema.PAGE_BYTES * schema.PAGE_BYTES,
        2 * schema.PAGE_BYTES,
    )

    assert "is damaged: " in refused(data)


def test_a_file_whose_first_page_is_damaged_is_refused(file, data):
    overwrite(file, 100, 3996)

    assert "is damaged: " in refused(data)


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused_with_its_sizes(file, data, share):
    size = file.stat().st_size
    os.truncate(file, int(size * share))

    assert f"it ends after {int(size * share)} of {size} bytes" in refused(data)


def test_a_file_that_was_cut_off_beside_a_log_is_refused(file, data):
    leave_unclean(data)
    os.truncate(file, file.stat().st_size // 2 // schema.PAGE_BYTES * schema.PAGE_BYTES)

    assert "is damaged: " in refused(data)


@pytest.mark.parametrize("size", [0, 7, 50])
def test_a_file_that_is_hardly_there_is_refused(file, data, size):
    os.truncate(file, size)

    assert "is damaged: it " in refused(data)


def test_a_file_of_another_kind_is_refused(file, data):
    file.write_text("Dear diary, today I wrote a job server.")

    assert "is not a database of manyhands" in refused(data)


def test_a_database_of_another_program_is_refused(file, data):
    file.unlink()
    connection = apsw.Connection(str(file))
    connection.execute("CREATE TABLE diary(entry)")
    connection.close()

    assert "is a database of another program" in refused(data)


def test_a_record_that_cannot_be_read_is_named(file, data):
    connection = apsw.Connection(str(file))
    connection.execute("""UPDATE jobs SET record = '{"job_id": 5}' WHERE serial = 7""")
    schema.sum_up(connection)  # it was written like that
    connection.close()

    assert "a record cannot be read" in refused(data)


def test_a_file_of_a_newer_version_is_refused(file, data):
    connection = apsw.Connection(str(file))
    connection.pragma("user_version", schema.VERSION + 1)
    connection.close()

    sentence = refused(data)

    assert "newer version" in sentence
    assert f"schema {schema.VERSION + 1}" in sentence


def test_a_refused_directory_can_be_used_once_the_file_is_moved_away(file, data):
    file.write_text("something else")
    refused(data)
    file.rename(data / "moved")

    disk = Disk(data)
    assert disk.store.alive_at is None
    disk.close()


def test_an_older_file_is_brought_up_to_date_and_a_copy_is_kept(file, data):
    following = "ALTER TABLE jobs ADD COLUMN extra TEXT"

    schema.migrate(file, (*schema.MIGRATIONS, following))

    connection = apsw.Connection(str(file))
    assert connection.pragma("user_version") == schema.VERSION + 1
    assert connection.execute("SELECT count(*) FROM jobs WHERE extra IS NULL").get == 500
    connection.close()
    copy = apsw.Connection(str(data / f"manyhands.db.before-v{schema.VERSION + 1}"))
    assert copy.pragma("user_version") == schema.VERSION
    assert copy.execute("SELECT count(*) FROM jobs").get == 500
    copy.close()


def test_a_migration_that_fails_changes_nothing(file):
    following = "CREATE TABLE half(done); CREATE TABLE jobs(again)"

    with pytest.raises(apsw.SQLError):
        schema.migrate(file, (*schema.MIGRATIONS, following))

    connection = apsw.Connection(str(file))
    assert connection.pragma("user_version") == schema.VERSION
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").get == 0
    connection.close()


def test_a_second_server_on_the_same_directory_is_told_who_holds_it(data):
    disk = Disk(data)
    with pytest.raises(StoreError, match=rf"in use by .* process id {os.getpid()}\b"):
        SqliteStore(data)
    disk.close()

    disk = Disk(data)
    disk.close()


def test_a_lock_file_that_was_removed_does_not_let_a_second_server_in(data):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(3)
    (data / "manyhands.lock").unlink()

    with pytest.raises(StoreError, match="is in use by the server with process id unknown"):
        SqliteStore(data)

    acknowledged += disk.submit_and_commit(3)
    disk.close()
    again = Disk(data)
    assert again.ready() == acknowledged
    again.close()


def test_the_data_directory_is_nobody_elses_to_read(data):
    Disk(data).close()

    assert data.stat().st_mode & 0o777 == 0o700


def test_every_file_in_the_data_directory_is_nobody_elses_to_read(data):
    data.mkdir(mode=0o755)
    disk = Disk(data)
    disk.submit_and_commit(3)
    disk.store._reader.rows("SELECT 1 FROM jobs")

    modes = {path.name: path.stat().st_mode & 0o777 for path in data.iterdir()}
    disk.close()

    assert {"manyhands.db", "manyhands.db-wal", "manyhands.db-shm", "manyhands.lock"} < modes.keys()
    assert set(modes.values()) == {0o600}


def test_files_that_others_could_read_become_private_at_the_next_start(file, data):
    copy = data / "manyhands.db.before-v2"
    copy.touch()
    for path in (file, copy):
        path.chmod(0o644)

    Disk(data).close()

    assert {path.stat().st_mode & 0o777 for path in (file, copy)} == {0o600}


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "taken").write_text("")

    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path / "taken")


def test_a_killed_writer_ends_all_acknowledgement_and_loses_nothing_acknowledged(data):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(50)
    os.kill(disk.writer_pid(), signal.SIGKILL)

    with pytest.raises(StoreFailedError, match="ended by signal 9"):
        disk.submit_and_commit(1)
    with pytest.raises(StoreFailedError):
        disk.submit_and_commit(1)
    disk.close()

    disk = Disk(data)
    assert set(acknowledged) <= set(disk.ready())
    disk.close()


def test_a_writer_that_lets_go_of_the_server_and_does_not_end_is_not_waited_for(data):
    disk = Disk(data, FAULTY_WRITER)
    acknowledged = disk.submit_and_commit(3)
    (data / "manyhands.db-hang-up").touch()

    with pytest.raises(StoreFailedError, match="hung up and did not end"):
        disk.submit_and_commit(1)
    assert disk.store._link._process.wait(SECONDS_MAX) == -signal.SIGKILL
    disk.close()

    disk = Disk(data)
    assert set(acknowledged) <= set(disk.ready())
    disk.close()


def test_signals_that_stop_the_server_do_not_stop_its_writer(data):
    disk = Disk(data)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(disk.writer_pid(), number)

    assert len(disk.submit_and_commit(3)) == 3
    disk.close()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("journal-sync", "its journal failed: Input/output error"),
        ("journal-write", "its journal failed: Input/output error"),
        ("journal-full", "its journal failed: No space left on device"),
        ("fail-sync", "IOError"),
        ("fail-write", "IOError"),
    ],
)
def test_a_disk_that_fails_ends_all_acknowledgement_and_loses_nothing(data, what, words):
    disk = Disk(data, FAULTY_WRITER)
    acknowledged = disk.submit_and_commit(20)
    failing = data / f"manyhands.db-{what}"
    failing.touch()
    with pytest.raises(StoreFailedError, match=f"the store cannot be written: {words}"):
        # The journal fails at once, or when it needs more room; the database a little later.
        disk.submit_and_commit(20_000, acknowledged)
    failing.unlink()
    with pytest.raises(StoreFailedError):  # also if the disk is well again
        disk.submit_and_commit(1)
    disk.close()

    disk = Disk(data)
    assert set(acknowledged) <= set(disk.ready())
    assert len(disk.ready()) <= len(acknowledged) + 1
    disk.close()


@pytest.mark.parametrize("when", ["kept", "applying", "applied"])
def test_a_writer_that_dies_at_any_moment_loses_nothing_acknowledged(data, when):
    disk = Disk(data, FAULTY_WRITER)
    acknowledged = disk.submit_and_commit(20)
    (data / f"manyhands.db-die-{when}").touch()
    with pytest.raises(StoreFailedError, match="ended by signal 9"):
        disk.submit_and_commit(20_000, acknowledged)
    disk.close()

    disk = Disk(data)
    ready = disk.ready()
    assert ready[: len(acknowledged)] == acknowledged
    # What was kept and not yet told is there, too.
    assert len(ready) - len(acknowledged) in ((1,) if when == "kept" else (0, 1))
    assert disk.store.live.counts_of("q")[State.READY] == len(ready)
    assert [event.seq for event in disk.store.events_after(0, 1 << 20)] == [
        *range(1, len(ready) + 1)
    ]
    disk.close()


def test_batches_before_a_failure_are_still_told(data):
    disk = Disk(data, FAULTY_WRITER)
    disk.submit()
    first = disk.store.begin_commit(disk.now)
    # It is committed, and nobody has looked yet.
    assert select.select([disk.store.fileno()], [], [], SECONDS_MAX)[0]
    (data / "manyhands.db-journal-sync").touch()
    disk.submit()
    disk.store.begin_commit(disk.now)
    wait_until(lambda: is_gone(disk.writer_pid()))  # it ends at its first error

    assert disk.store.finish_commits() == first.number
    with pytest.raises(StoreFailedError):
        disk.store.finish_commits()
    disk.close()


CHILD = """
import json, sys
from pathlib import Path
from tests.e2e.test_sqlite_faults import Disk
disk = Disk(Path(sys.argv[1]))
print(disk.writer_pid(), flush=True)
while True:
    print(disk.submit_and_commit(1)[0], flush=True)
"""


def test_a_killed_server_takes_its_writer_along_and_loses_nothing_acknowledged(data):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(data)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    writer_pid = int(child.stdout.readline())
    acknowledged = [child.stdout.readline().strip() for _ in range(100)]
    child.kill()
    child.wait()
    acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.stdout.close()

    disk = Disk(data)  # at once: it waits for the last commit of the writer
    assert set(acknowledged) <= set(disk.ready())
    assert disk.store.live.counts_of("q")[State.READY] - len(acknowledged) in (0, 1)
    wait_until(lambda: is_gone(writer_pid))  # it let go of its files a moment before it ends
    disk.close()


CHECKPOINTING = """
import fcntl, sys
with open(sys.argv[1], "r+b") as shared:
    fcntl.lockf(shared, fcntl.LOCK_EX, 1, 121)  # where SQLite has the lock for checkpoints
    print(flush=True)
    sys.stdin.read()
"""


def test_another_program_that_copies_the_log_into_the_file_does_not_end_the_server(data):
    disk = Disk(data)
    acknowledged = disk.submit_and_commit(1)
    disk.settle()
    other = subprocess.Popen(
        [sys.executable, "-c", CHECKPOINTING, str(data / "manyhands.db-shm")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    other.stdout.readline()
    for _ in range(3):  # each of them is more than the log is left to grow
        acknowledged.append(disk.submit(payload=os.urandom(5_000_000)).job_id)
        disk.settle()
    log = data / "manyhands.db-wal"
    assert log.stat().st_size > 15_000_000
    other.communicate()
    for _ in range(3):
        acknowledged.append(disk.submit(payload=os.urandom(5_000_000)).job_id)
        disk.settle()

    assert log.stat().st_size < 25_000_000  # it began anew after the first of these
    assert disk.ready() == acknowledged
    disk.close()


COMMITTING = """
import signal, sys
from pathlib import Path
from tests.e2e.test_sqlite_faults import FAULTY_WRITER, Disk
data = Path(sys.argv[1])
disk = Disk(data, FAULTY_WRITER)
print(disk.writer_pid(), disk.submit_and_commit(1)[0], flush=True)
disk.settle()
(data / "manyhands.db-hold-sync").touch()
while True:
    print(disk.submit_and_commit(1)[0], flush=True)
    disk.store._link.hurry()
"""


@pytest.mark.parametrize("killed", ["server", "writer", "both"])
def test_whoever_dies_while_the_database_commits_nothing_acknowledged_is_lost(data, killed):
    child = subprocess.Popen(
        [sys.executable, "-c", COMMITTING, str(data)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    writer, first = child.stdout.readline().split()
    wait_until((data / "manyhands.db-held").exists)
    acknowledged = [first, *(child.stdout.readline().strip() for _ in range(50))]
    if killed != "writer":
        child.kill()
    if killed != "server":
        os.kill(int(writer), signal.SIGKILL)
    acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.wait(SECONDS_MAX)
    child.stdout.close()
    (data / "manyhands.db-hold-sync").unlink()

    disk = Disk(data)
    ready = disk.ready()
    assert ready[: len(acknowledged)] == acknowledged
    assert len(ready) - len(acknowledged) in (0, 1)
    disk.close()


def test_a_start_while_the_writer_of_a_killed_server_is_at_work_says_so(data, monkeypatch):
    child = subprocess.Popen(
        [sys.executable, "-c", COMMITTING, str(data)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    writer, first = child.stdout.readline().split()
    wait_until((data / "manyhands.db-held").exists)
    child.kill()
    child.communicate()

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_LOCK_TRIES", 2)
        with pytest.raises(StoreError, match="is still at work"):
            SqliteStore(data)
    (data / "manyhands.db-hold-sync").unlink()
    wait_until(lambda: is_gone(int(writer)))
    disk = Disk(data)
    assert disk.ready()[0] == first
    disk.close()


FILL = """
import json, os, sys
from pathlib import Path
from manyhands.store.contract import StoreFailedError
from tests.e2e.test_sqlite_faults import Disk
data = Path(sys.argv[1])
ballast = data.parent / "ballast"
ballast.write_bytes(bytes(4 * 1024 * 1024))
disk = Disk(data)
acknowledged = []
try:
    while True:
        acknowledged += disk.submit_and_commit(10)
except StoreFailedError as error:
    failure = str(error)
free = disk.store.free_bytes()
disk.close()
ballast.unlink()
disk = Disk(data)
present = set(acknowledged) <= set(disk.ready())
disk.submit_and_commit(1)
disk.close()
print(json.dumps([len(acknowledged), present, failure, free]))
"""


def run_on_small_disk(tmp_path, program) -> str:
    """What it prints, given the path of its data on a file system of 8 MiB."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small file system of its own needs root and unshare")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody have mounts of their own")
    mount = f"mount -t tmpfs -o size=8m tmpfs {tmp_path}"
    command = f'{mount} && exec "$0" -c "$1" {tmp_path}/data'
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, sys.executable, program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_full_disk_ends_all_acknowledgement_and_loses_nothing_acknowledged(tmp_path):
    ended = run_on_small_disk(tmp_path, FILL)

    count, present, failure, free = json.loads(ended)
    assert count  # how many depends on how often the log is written to, which is a matter of speed
    assert present
    # The journal asked for more room, or the database did.
    assert "No space left" in failure or "FullError" in failure
    assert free < 2 * 1024 * 1024


START_FULL = """
import json, os, sys
from pathlib import Path
from manyhands.store.sqlite.store import SqliteStore
from manyhands.store.contract import StoreError
from tests.e2e.test_sqlite_faults import Disk
data = Path(sys.argv[1])
ballast = data.parent / "ballast"

def fill():
    with ballast.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            return

def refused():
    try:
        SqliteStore(data)
    except StoreError as error:
        return str(error)

data.mkdir()
(data / "manyhands.lock").write_text("1")  # so that there is room for it
fill()
sentences = [refused()]
ballast.unlink()
disk = Disk(data)
acknowledged = disk.submit_and_commit(20)
disk.store._link.give_up("")
disk.close()
for path in data.glob("*-shm"):
    path.unlink()
fill()
sentences.append(refused())
ballast.unlink()
disk = Disk(data)
present = set(acknowledged) <= set(disk.ready())
disk.close()
print(json.dumps([present, sentences]))
"""


def test_a_start_on_a_full_disk_is_a_sentence_that_does_not_speak_of_damage(tmp_path):
    present, sentences = json.loads(run_on_small_disk(tmp_path, START_FULL))

    assert present
    for sentence in sentences:
        assert sentence.startswith(f"{tmp_path}/data/manyhands.db cannot be used: ")
        assert "damaged" not in sentence
