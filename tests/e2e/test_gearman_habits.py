"""Habits of programs that run against gearmand today: timeouts in seconds, prefixes with a TAB."""

import contextlib
import subprocess

import pytest

from manyhands.protocols.gearman import codec as wire
from tests.e2e.gearman_talk import GearmanTalk, wait_until
from tests.e2e.serving import Api, serving
from tests.e2e.test_gearman_clients import CLIENTS, ENVIRONMENT, KINDS, RUN_SECONDS_MAX

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

KEPT = ["own", "waiting"]
INTERPRETERS = {"timed.php": "php", "timed.pl": "perl"}


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with serving(folder, "--store", "memory", "--gearman", "127.0.0.1:0") as it:
        yield it


@contextlib.contextmanager
def running(*command: str, output):
    with output.open("wb") as told:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=told, stderr=told)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def has_worker(served, function: bytes) -> bool:
    with GearmanTalk(served) as talk:
        rows = (line.split(b"\t") for line in talk.text(b"status"))
        return any(row[0] == function and row[3] != b"0" for row in rows)


@pytest.mark.parametrize(
    ("program", "seconds", "runs_max"),
    [("timed.php", "0.5", 1), ("timed.php", "1.5", 3), ("timed.pl", "0.5", 1)],
)
def test_a_timeout_that_was_meant_in_seconds_does_no_harm(
    served, tmp_path, program, seconds, runs_max
):
    """G26: as with gearmand, each job ends with its result, and runs no more often than there."""
    KINDS[INTERPRETERS[program]].needed()
    command = (INTERPRETERS[program], str(CLIENTS / program), served.addresses["gearman"])
    output = tmp_path / "worker"
    with (
        running(*command, "timed", "30", seconds, output=output) as worker,
        GearmanTalk(served) as client,
    ):
        wait_until(lambda: has_worker(served, b"timed"), output.read_text())
        handle = client.submit(b"timed", data=b"result", kind=wire.SUBMIT_JOB)

        assert client.next() == (wire.WORK_COMPLETE, [handle, b"RESULT"])
        assert output.read_text().count("ran") <= runs_max
        assert worker.poll() is None


def test_the_prefix_of_perl_keeps_functions_apart(served, tmp_path):
    """G15"""
    KINDS["perl"].needed()
    address, output = served.addresses["gearman"], tmp_path / "worker"
    start = ("perl", str(CLIENTS / "prefixed.pl"))

    with running(*start, "work", address, "staging", "rev", output=output):
        wait_until(lambda: has_worker(served, rb"staging\x09rev"), output.read_text())
        ended = subprocess.run(
            [*start, "run", address, "staging", "rev", "stressed"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS_MAX,
        )

    assert ended.stdout == "desserts", ended.stderr


def test_a_worker_of_php_goes_on_after_a_result_that_is_too_large(tmp_path):
    """G6: its job has failed once and for all, and says why."""
    KINDS["php"].needed()
    folder = tmp_path / "server"
    folder.mkdir()
    limit = 1024 * 1024
    listen = ("--store", "memory", "--gearman", "127.0.0.1:0", "--payload-bytes-max", str(limit))
    with serving(folder, *listen) as served, GearmanTalk(served) as client:
        start = ("php", str(CLIENTS / "enlarging.php"), served.addresses["gearman"])
        output = tmp_path / "worker"
        with running(*start, "enlarge", output=output):
            wait_until(lambda: has_worker(served, b"enlarge"), output.read_text())
            whole = client.submit(b"enlarge", data=b"%d" % limit, kind=wire.SUBMIT_JOB)
            assert client.next() == (wire.WORK_COMPLETE, [whole, b"x" * limit])

            larger = client.submit(b"enlarge", data=b"%d" % (2 * limit), kind=wire.SUBMIT_JOB)

            assert client.next() == (wire.WORK_FAIL, [larger])
            small = client.submit(b"enlarge", data=b"3", kind=wire.SUBMIT_JOB)
            assert client.next() == (wire.WORK_COMPLETE, [small, b"xxx"])
            assert output.read_text().count("ran") == 3
        with contextlib.closing(Api(served)) as api:
            record = api.get(f"jobs/{larger.decode()}")
    assert record["failure"]["code"] == "result_too_large"
    assert str(limit) in record["failure"]["message"]


def test_functions_for_one_reply_each_are_forgotten_with_their_records(tmp_path):
    """G48: also over a restart; what an operator created stays."""
    listen = ("--gearman", "127.0.0.1:0", "--retention-count", "0")
    replies = [b"reply-%d" % number for number in range(50)]
    with (
        serving(tmp_path, *listen) as served,
        GearmanTalk(served) as peer,
        contextlib.closing(Api(served)) as api,
    ):
        peer.send(b"create function own\n")
        assert peer.next()[1] == [b"OK"]
        for function in replies:
            peer.submit(function)
        peer.can_do(*replies)
        for _ in replies:
            peer.put(wire.WORK_COMPLETE, peer.grab()[0], b"")
        waiting = peer.submit(b"waiting")

        wait_until(lambda: [row["name"] for row in api.get("queues")] == KEPT, "forgotten")
    with serving(tmp_path, *listen) as served, GearmanTalk(served) as peer:
        assert peer.text(b"status") == [b"own\t0\t0\t0", b"waiting\t1\t0\t0"]
        assert peer.can_do(b"waiting").grab()[0] == waiting
