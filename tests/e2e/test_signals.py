"""Signals to the real program: none of them kills it; two of them stop it, gently or at once."""

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from manyhands.protocols.gearman import codec as wire
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import (
    command,
    environment,
    is_gone,
    run,
    serving,
    special_file,
    start,
    wait_until,
)

GEARMAN = ("--gearman", "127.0.0.1:0", "--http", "off")


def writer_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_sighup_begins_a_new_log_file_where_the_old_one_was_moved_away(tmp_path):
    log = tmp_path / "manyhands.log"
    moved = tmp_path / "manyhands.log.1"
    with serving(tmp_path, *GEARMAN, "--log-file", str(log)) as served:
        log.rename(moved)
        served.process.send_signal(signal.SIGHUP)
        wait_until(log.exists)
        wait_until(lambda: "reopened" in log.read_text())

        assert served.stop() == 0
    assert '"ready"' in moved.read_text()
    assert '"stopped"' in log.read_text()
    assert '"stopped"' not in moved.read_text()
    assert served.log() == ""


def test_debians_logrotate_for_gearmand_rotates_the_log_of_a_server_in_its_place(tmp_path):
    settings = Path("/etc/logrotate.d/gearman-job-server")
    if shutil.which("logrotate") is None or not settings.exists():
        pytest.skip("not installed: logrotate, gearman-job-server")
    log, pid_file = tmp_path / "gearmand.log", tmp_path / "gearmand.pid"
    own = tmp_path / "logrotate.conf"
    text = settings.read_text()
    text = text.replace("/var/log/gearman-job-server", str(tmp_path))
    own.write_text(text.replace("/run/gearman", str(tmp_path)))
    own.chmod(0o644)
    tmp_path.chmod(0o755)
    files = ("--log-file", str(log), "--pid-file", str(pid_file))
    with serving(tmp_path, *GEARMAN, *files) as served, GearmanTalk(served) as client:
        command = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(own)]
        subprocess.run(command, check=True, capture_output=True, timeout=90)

        wait_until(log.exists)
        wait_until(lambda: "reopened" in log.read_text())
        assert client.is_alive()
    assert (tmp_path / "gearmand.log.1.gz").exists()


def test_sighup_without_a_log_file_changes_nothing(tmp_path):
    with serving(tmp_path, *GEARMAN) as served, GearmanTalk(served) as client:
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP is ignored" in served.log())

        assert client.is_alive()
        assert served.stop() == 0


def test_a_log_file_that_cannot_be_opened_anew_goes_on_as_before(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "manyhands.log"
    with serving(tmp_path, *GEARMAN, "--log-file", str(log)) as served:
        kept = log.open()
        log.unlink()
        log.mkdir()
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "logging continues in the old one" in kept.read())

        assert served.stop() == 0
    assert '"stopped"' in kept.read()
    kept.close()


def test_sigusr2_writes_the_state_into_the_log(tmp_path):
    with serving(tmp_path, *GEARMAN) as served, GearmanTalk(served) as client:
        client.submit(b"f")
        served.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: '"state"' in served.log())

        line = next(line for line in served.log().splitlines() if '"event": "state"' in line)
        told = json.loads(line)
        assert told["jobs"] == {"ready": 1}
        assert told["connections"]["gearman"] == 1
        assert client.is_alive()


def test_signals_to_the_whole_group_do_not_end_the_writer(tmp_path):
    with serving(tmp_path, *GEARMAN) as served, GearmanTalk(served) as client:
        writer = writer_of(served.process.pid)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(writer, number)

        client.submit(b"f")
        assert not is_gone(writer)


def test_sigusr1_stops_the_server_and_takes_its_files_away(tmp_path):
    pid_file = tmp_path / "pid"
    served = start(tmp_path, *GEARMAN, "--pid-file", str(pid_file))
    try:
        assert int(pid_file.read_text()) == served.process.pid
    finally:
        code = served.stop(signal.SIGUSR1)

    assert code == 0
    assert not served.ready_file.exists()
    assert not pid_file.exists()


def test_sigusr1_lets_running_foreground_jobs_end_and_begins_no_other(tmp_path):
    """G11"""
    served = start(tmp_path, *GEARMAN, "--drain-seconds", "600")
    try:
        with GearmanTalk(served) as client, GearmanTalk(served) as worker:
            handle = client.submit(b"f", kind=wire.SUBMIT_JOB)
            worker.can_do(b"f").grab()
            kept = client.submit(b"f")
            served.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: client.tell(wire.SUBMIT_JOB_BG, b"f", b"", b"")[0] == wire.ERROR)

            assert worker.grab() == []
            worker.put(wire.WORK_COMPLETE, handle, b"in peace")
            assert client.next() == (wire.WORK_COMPLETE, [handle, b"in peace"])
            assert client.is_closed_by_server()
    finally:
        code = served.process.wait(90)
    assert code == 0
    with serving(tmp_path, *GEARMAN) as again, GearmanTalk(again) as client:
        assert kept in [line.split(b"\t")[0] for line in client.text(b"show jobs")]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_wait_for_foreground_jobs(tmp_path, second):
    """G11"""
    served = start(tmp_path, *GEARMAN, "--drain-seconds", "600")
    with GearmanTalk(served) as client, GearmanTalk(served) as worker:
        client.submit(b"f", kind=wire.SUBMIT_JOB)
        worker.can_do(b"f").grab()
        served.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: client.tell(wire.SUBMIT_JOB_BG, b"f", b"", b"")[0] == wire.ERROR)

        assert served.stop(second) == 0
        assert client.is_closed_by_server()


@pytest.mark.parametrize("option", ["--log-file", "--pid-file", "--ready-file"])
@pytest.mark.parametrize("kind", ["device", "directory", "pipe", "link"])
def test_only_regular_files_and_new_names_are_written_to(tmp_path, option, kind):
    place = special_file(tmp_path / "place", kind)
    before = place.stat()
    listeners = [word for name in ("http", "dwork", "wmp", "amqp") for word in (f"--{name}", "off")]
    given = ("--store", "memory", "--gearman", "127.0.0.1:0", *listeners)

    ended = run("serve", *given, option, str(place))

    assert ended.returncode == 1
    assert f"{place} is not a regular file; name a regular file or a new one" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert os.path.samestat(place.stat(), before)


def test_a_writer_that_hangs_ends_the_server_with_an_error_in_time(tmp_path):
    with serving(tmp_path, "--drain-seconds", "1") as served:
        writer = writer_of(served.process.pid)
        os.kill(writer, signal.SIGSTOP)

        code = served.stop()

    assert code == 1
    assert "it did not answer for 1 s; what was acknowledged is safe" in served.log()
    assert "the process that writes it did not end within 5 s, and was killed" in served.log()
    assert is_gone(writer)
    with serving(tmp_path):
        pass  # nothing is left that would keep the next one from starting


def test_a_server_whose_terminal_is_closed_stops_in_order(tmp_path):
    ready, data, screen = (tmp_path / name for name in ("ready", "data", "screen"))
    off = [word for name in ("http", "dwork", "wmp", "amqp") for word in (f"--{name}", "off")]
    files = ("--data", str(data), "--ready-file", str(ready))
    words = command("serve", *off, "--gearman", "127.0.0.1:0", *files)
    pid, terminal = pty.fork()
    if not pid:
        os.execve(words[0], words, environment())
    try:
        wait_until(ready.exists)
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: b"SIGHUP is ignored" in _shown(terminal, screen))
        assert ready.exists()

        os.close(terminal)

        wait_until(lambda: is_gone(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not ready.exists()


def _shown(terminal: int, screen: Path) -> bytes:
    """All that a terminal has shown so far."""
    with screen.open("ab") as file:
        while select.select([terminal], [], [], 0)[0]:
            file.write(os.read(terminal, 65_536))
    return screen.read_bytes()
