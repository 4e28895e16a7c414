"""The program as its operator sees it: it starts, is ready, drains, and says what is wrong."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest

from manyhands.store.sqlite.writer import journal
from tests.e2e.gearman_talk import GearmanTalk, address_of
from tests.e2e.serving import (
    SECONDS_MAX,
    command,
    environment,
    is_gone,
    run,
    serving,
    start,
    stopping,
    wait_until,
)

MEMORY = ("--store", "memory")


def test_the_ready_file_names_every_listener_once_they_accept(tmp_path):
    with serving(tmp_path, *MEMORY) as served:
        told = json.loads(served.ready_file.read_text())

        assert told["pid"] == served.process.pid
        assert told["gearman"] is None
        assert httpx.get(f"http://{told['http']}/readyz").status_code == 200
    assert not served.ready_file.exists()
    banner = (tmp_path / "stdout").read_text()
    assert f"http\t{told['http']}\n" in banner
    assert f"pages\thttp://{told['http']}/ui/\n" in banner


@pytest.mark.parametrize("listener", ["http", "gearman", "dwork", "wmp", "amqp"])
def test_a_listener_that_cannot_bind_ends_the_server_with_a_sentence(tmp_path, listener):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        others = [name for name in ("http", "gearman", "dwork", "wmp", "amqp") if name != listener]
        ended = run(
            *("serve", *MEMORY, f"--{listener}", address),
            *(word for name in others for word in (f"--{name}", "off")),
            *("--ready-file", str(tmp_path / "ready")),
        )

    assert ended.returncode == 1
    assert ended.stderr == (
        f"manyhands: {listener} cannot listen on {address}: Address already in use; --{listener} "
        f"HOST:PORT takes another address, --{listener} off starts without it.\n"
    )
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "ready").exists()


def test_an_address_that_others_can_reach_is_refused(tmp_path):
    ended = run("serve", *MEMORY, "--http", "0.0.0.0:0", "--data", str(tmp_path))

    assert ended.returncode == 2
    assert "insecure" in ended.stderr


def test_an_address_that_others_can_reach_is_allowed_if_one_insists(tmp_path):
    with serving(tmp_path, *MEMORY, "--http", "0.0.0.0:0", "--insecure") as served:
        port = served.addresses["http"].rpartition(":")[2]
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz", headers={"host": "10.1.2.3"})

        assert answer.status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_well(tmp_path, number):
    with serving(tmp_path, *MEMORY) as served:
        assert served.stop(number) == 0
    assert '"event": "stopped"' in served.log()


def test_a_claim_that_waits_is_answered_when_the_server_drains(tmp_path):
    found = []
    with serving(tmp_path, *MEMORY, "--drain-seconds", "600") as served:

        def wait() -> None:
            body = {"queue": "work", "wait": 300}
            found.append(httpx.post(f"{served.url}/api/claim", json=body, timeout=120))

        worker = threading.Thread(target=wait)
        worker.start()
        wait_until(lambda: "manyhands_sleepers 1.0" in httpx.get(f"{served.url}/metrics").text)
        assert served.stop() == 0
        worker.join()

    assert found[0].status_code == 200
    assert found[0].json()["results"] == []


def test_a_second_signal_ends_at_once(tmp_path):
    with serving(tmp_path, *MEMORY, "--drain-seconds", "600") as served, stopping(served):
        assert served.process.poll() is None

        assert served.stop() == 1


def test_jobs_outlive_the_server(tmp_path):
    with serving(tmp_path) as served:
        body = {"queue": "work", "payload": {"n": 1}}
        made = httpx.post(f"{served.url}/api/submit", json=body).json()["results"]
        assert served.stop() == 0
    again = start(tmp_path)
    try:
        shown = httpx.get(f"{again.url}/api/jobs/{made['id']}").json()["results"]
        assert (shown["state"], shown["payload"]) == ("ready", {"n": 1})
    finally:
        assert again.stop() == 0


def test_a_directory_in_use_is_refused_with_a_sentence(tmp_path):
    with serving(tmp_path) as served:
        ended = run(
            *(
                "serve",
                "--http",
                "127.0.0.1:0",
                "--gearman",
                "off",
                "--dwork",
                "off",
                "--amqp",
                "off",
                "--data",
                str(served.data),
            )
        )

    assert ended.returncode == 1
    assert f"process id {served.process.pid}" in ended.stderr


def test_config_shows_what_serve_would_use():
    ended = run("config", "--json", "--http", "127.0.0.1:1")

    assert ended.returncode == 0
    assert json.loads(ended.stdout)["http"]["value"] == "127.0.0.1:1"


def test_the_program_can_be_run_as_a_module():
    assert command("version")[1:3] == ["-m", "manyhands"]
    assert not any(name.startswith("MANYHANDS_") for name in environment())
    assert run("version").returncode == 0


def test_a_server_that_lost_its_writer_ends_with_an_error(tmp_path):
    with serving(tmp_path) as served:
        [writer] = writers_of(served.process.pid)
        os.kill(writer, signal.SIGKILL)
        wait_until(lambda: is_gone(writer))
        # It may still answer that it can do nothing, or be gone; it must not acknowledge.
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(f"{served.url}/api/submit", json={"queue": "work"})
            assert answer.status_code == 500

        assert served.process.wait(SECONDS_MAX) == 1
    assert "the store failed" in served.log()


def test_secrets_are_warned_of_and_not_passed_on_to_the_writer(tmp_path, monkeypatch):
    tokens = tmp_path / "tokens"
    tokens.write_text("operator:ada:4f2c9d1b7e3a5860\n")
    tokens.chmod(0o644)
    given = {"MANYHANDS_TOKENS_FILE": str(tokens), "MANYHANDS_TOKENS": "read-only:wall:" + "s" * 16}
    monkeypatch.setattr("tests.e2e.serving.environment", lambda: environment() | given)

    with serving(tmp_path) as served:
        [writer] = writers_of(served.process.pid)
        inherited = Path(f"/proc/{writer}/environ").read_bytes()

    assert b"PATH=" in inherited
    assert b"MANYHANDS_" not in inherited
    assert f"tokens_file {tokens} can be read by every user of this machine" in served.log()


def test_a_server_whose_data_were_removed_ends_with_an_error_instead_of_going_on(tmp_path):
    with serving(tmp_path) as served:
        httpx.post(f"{served.url}/api/submit", json={"queue": "work"})
        shutil.rmtree(served.data)

        assert served.process.wait(SECONDS_MAX) == 1
    assert "manyhands.db cannot be reached: No such file or directory" in served.log()
    assert "Traceback" not in served.log()


def test_a_server_whose_data_were_moved_away_leaves_alone_what_lies_in_their_place(tmp_path):
    with serving(tmp_path) as served:
        made = httpx.post(f"{served.url}/api/submit", json={"queue": "work"}).json()["results"]
        names = [path.name for path in journal.segments(served.data)]
        other = tmp_path / "other"
        other.mkdir()
        for name in ("manyhands.db", *names):
            (other / name).write_text("another server's")
        served.data.rename(tmp_path / "away")
        other.rename(served.data)

        assert served.process.wait(SECONDS_MAX) == 1
    assert "another file is in the place of" in served.log()
    assert {path.read_text() for path in served.data.iterdir()} == {"another server's"}
    assert len(list(served.data.iterdir())) == 1 + len(names)
    (tmp_path / "again").mkdir()
    (tmp_path / "away").rename(tmp_path / "again" / "data")
    with serving(tmp_path / "again") as again:
        assert httpx.get(f"{again.url}/api/jobs/{made['id']}").status_code == 200


@pytest.mark.parametrize("loop", ["auto", "asyncio"])
def test_a_server_out_of_files_serves_the_peers_it_has_and_fills_no_log(tmp_path, loop):
    with serving(tmp_path, "--gearman", "127.0.0.1:0", "--loop", loop) as served:
        with GearmanTalk(served) as talk, contextlib.ExitStack() as others:
            assert talk.is_alive()
            open_count = len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
            files = resource.RLIMIT_NOFILE
            _, hard = resource.prlimit(served.process.pid, files)
            resource.prlimit(served.process.pid, files, (open_count + 5, hard))
            for _ in range(30):
                others.enter_context(socket.create_connection(address_of(served), SECONDS_MAX))
            if loop == "asyncio":  # the other one turns them away without a word
                wait_until(lambda: "too many files are open" in served.log())

            for _ in range(20):
                talk.submit(b"work")
        wait_until(lambda: is_served(served))

    assert "Traceback" not in served.log()
    assert served.log().count("too many files are open") <= 5


def is_served(served) -> bool:
    """A peer that comes now is."""
    try:
        with GearmanTalk(served) as talk:
            return talk.is_alive()
    except (OSError, EOFError):  # turned away once more
        return False


def writers_of(pid: int) -> list[int]:
    folder = Path(f"/proc/{pid}/task")
    return [int(child) for file in folder.glob("*/children") for child in file.read_text().split()]
