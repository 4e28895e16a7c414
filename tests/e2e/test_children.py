"""Commands that workers run: what is kept of them, how they end, and what ends with them."""

import os
import resource
import threading

import pytest

from manyhands.cli.child import Child, Ended
from manyhands.cli.guardian import Guardian
from tests.e2e.serving import is_gone, wait_until


@pytest.fixture
def guardian():
    guardian = Guardian()
    yield guardian
    guardian.close()


def child(guardian: Guardian, script: str, data: bytes = b"", **options) -> Child:
    options.setdefault("kill_after_ms", 60_000)
    return Child(
        ["sh", "-c", script], data=data, variables=dict(os.environ), guardian=guardian, **options
    )


def test_d36_the_end_of_very_much_output_is_kept_and_no_more(guardian):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    ended = child(guardian, "head -c 300000000 /dev/zero; printf end").run()

    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (len(ended.out), ended.out[-3:]) == (64 * 1024, b"end")
    assert grown_kib < 50_000


def test_d36_logs_have_all_of_the_output(guardian, tmp_path):
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        child(guardian, "head -c 1000000 /dev/zero; echo e >&2", logs=(out, err)).run()

    assert (tmp_path / "out").stat().st_size == 1_000_000
    assert (tmp_path / "err").read_text() == "e\n"


def test_d36_a_long_payload_is_fed_and_one_that_nobody_reads_is_no_failure(guardian):
    data = b"x" * 1_000_000

    assert child(guardian, "wc -c", data).run().out.strip() == b"1000000"
    assert child(guardian, "true", data).run().failure is None


def test_d36_an_exit_code_is_a_number_and_a_failure_ends_with_the_complaint(guardian):
    ended = child(guardian, "echo why >&2; exit 7").run()

    assert ended == Ended(code=7, failure="exit code 7: why", complaint="why")


def test_d39_what_a_command_leaves_running_ends_with_it(guardian, tmp_path):
    ended = child(guardian, f"sleep 66 & echo $! > {tmp_path}/pid; echo out").run()

    pid = int((tmp_path / "pid").read_text())
    assert (ended.code, ended.out) == (0, b"out\n")
    wait_until(lambda: is_gone(pid))


def test_d39_a_command_that_ignores_sigterm_is_killed_with_all_that_it_has_started(
    guardian, tmp_path
):
    pid_file = tmp_path / "pid"
    script = (
        f"trap '' TERM; sleep 67 & echo $! > {tmp_path}/new; mv {tmp_path}/new {pid_file}; wait"
    )
    stubborn = child(guardian, script, kill_after_ms=50)
    found: list[Ended] = []
    thread = threading.Thread(target=lambda: found.append(stubborn.run()))
    thread.start()
    wait_until(pid_file.exists)

    stubborn.stop()
    thread.join()

    assert found[0].signal == 9
    wait_until(lambda: is_gone(int(pid_file.read_text())))


def test_d36_a_command_that_takes_too_long_is_ended(guardian):
    ended = child(guardian, "sleep 68", ms_max=50).run()

    assert (ended.timed_out, ended.failure) == (True, "took longer than 0.05 s")


def test_d36_a_command_that_cannot_be_run_has_failed(guardian):
    nothing = Child(["/nowhere"], data=b"", variables={}, guardian=guardian, kill_after_ms=0).run()

    assert (nothing.code, nothing.signal) == (None, None)
    assert (
        nothing.failure == "/nowhere cannot be run: [Errno 2] No such file or directory: '/nowhere'"
    )
