"""`manyhands wmp` and its worker, against the real program."""

import contextlib
import json
import os
import signal
import subprocess

import pytest

from tests.e2e.serving import SECONDS_MAX, Api, command, environment, is_gone, run, serving
from tests.e2e.wmp_talk import Talk, wait_until

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, "--wmp", "127.0.0.1:0", "--store", "memory") as server:
        yield server


def wmp(served, word: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run("wmp", word, "--manager", served.addresses["wmp"], *arguments, **options)


@contextlib.contextmanager
def worker(served, *arguments: str):
    process = subprocess.Popen(
        command("wmp", "work", "--manager", served.addresses["wmp"], *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def state(served, job: str) -> str:
    with contextlib.closing(Api(served)) as api:
        return api.get(f"jobs/{job}")["state"]


def test_w57_submit_work_and_fetch(served):
    job = wmp(served, "submit", "rev", "hello", "--name", "n1").stdout.strip()
    waiting = wmp(served, "fetch", job)
    assert waiting.returncode == 1
    assert waiting.stdout == f"job\t{job}\nstate\tready\n"

    with worker(served, "--role", "rev", "--command", "sh -c 'rev; printf {name}'", "-n", "1") as p:
        ended = wmp(served, "fetch", job, "--wait", "80", "--json")
        out, err = p.communicate(timeout=SECONDS_MAX)

    assert json.loads(ended.stdout) == {"job": job, "state": "completed", "payload": "olleh" + "n1"}
    assert ended.returncode == 0
    assert p.returncode == 0
    assert out.startswith(f"completed\t{job}\t")
    assert err == "1 completed, 0 failed, 0 unwanted, 0 running\n"


def test_w57_submit_can_wait_for_the_result_and_read_standard_input(served):
    with worker(served, "--role", "up", "--command", "tr a-z A-Z", "-j", "4"):
        ended = wmp(served, "submit", "up", "-", "--wait", "80", "--json", input="abc")

    assert json.loads(ended.stdout)["payload"] == "ABC"


def test_w57_a_command_that_fails_is_tried_again_and_told(served):
    job = wmp(served, "submit", "r", "--attempts", "1").stdout.strip()
    with worker(
        served, "--role", "r", "--command", "sh -c 'echo broken >&2; exit 3'", "-n", "1", "--json"
    ) as p:
        out, _ = p.communicate(timeout=SECONDS_MAX)

    told = json.loads(out)
    assert (told["job"], told["outcome"], told["failure"]) == (job, "failed", "exit code 3: broken")
    assert p.returncode == 1
    ended = wmp(served, "fetch", job, "--json")
    assert json.loads(ended.stdout)["state"] == "failed"
    assert "exit code 3: broken" in json.loads(ended.stdout)["reason"]


def test_w57_close_ends_the_command_that_runs(served):
    job = wmp(served, "submit", "r").stdout.strip()
    with worker(served, "--role", "r", "--command", "sleep 600") as process:
        wait_until(lambda: state(served, job) == "leased", "it runs")
        assert wmp(served, "close", job).returncode == 0
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"cancelled\t{job}\t")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)
    assert state(served, job) == "cancelled"


def test_w57_an_interrupt_lets_the_command_end_and_a_second_one_gives_the_job_back(served):
    job = wmp(served, "submit", "r").stdout.strip()
    # That it is leased does not mean that its command runs already: the command says so itself.
    begun = served.folder / "begun"
    with worker(served, "-r", "r", "-c", f"sh -c 'touch {begun}; exec sleep 600'") as process:
        wait_until(begun.exists, "it runs")
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=1)

        def is_over() -> bool:
            process.send_signal(signal.SIGINT)  # two that come too close to each other are one
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            return process.returncode is not None

        wait_until(is_over, "it ends")
    with contextlib.closing(Api(served)) as api:
        shown = api.get(f"jobs/{job}")
    assert (shown["state"], shown["attempts_used"]) == ("ready", 0)


def pids_of(served, command: str) -> list[int]:
    """Of a command that runs and of a process that it has started."""
    files = [served.folder / word for word in ("command", "started")]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), command)
    return [int(file.read_text()) for file in files]


def with_a_child(served) -> str:
    here = served.folder
    return f"sh -c 'sleep 55 & echo $! > {here}/started; echo $$ > {here}/command; wait'"


def test_w57_all_that_a_command_has_started_ends_when_its_job_is_cancelled(served):
    job = wmp(served, "submit", "r").stdout.strip()
    with worker(served, "--role", "r", "--command", with_a_child(served)) as process:
        pids = pids_of(served, "it runs")

        assert wmp(served, "close", job).returncode == 0

        wait_until(lambda: all(map(is_gone, pids)), "they end")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)


def test_w57_sigterm_to_all_processes_gives_the_job_back_and_charges_nothing(served):
    job = wmp(served, "submit", "r").stdout.strip()
    with worker(served, "-r", "r", "-c", with_a_child(served), "--grace", "600") as process:
        pids = pids_of(served, "it runs")

        for pid in (*pids, process.pid):
            os.kill(pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS_MAX)

    with contextlib.closing(Api(served)) as api:
        shown = api.get(f"jobs/{job}")
    assert (shown["state"], shown["attempts_used"]) == ("ready", 0)
    assert out.startswith(f"returned\t{job}")
    wait_until(lambda: all(map(is_gone, pids)), "they end")


def test_w57_a_command_knows_its_job_and_leaves_logs(served, tmp_path):
    printed = "$MANYHANDS_JOB $MANYHANDS_TASK $MANYHANDS_QUEUE $MANYHANDS_ATTEMPT"
    job = wmp(served, "submit", "r", "--name", "n1").stdout.strip()
    flags = ("--logs", str(tmp_path / "logs"), "-n", "1")

    with worker(served, "-r", "r", "-c", f"sh -c 'echo {printed}'", *flags) as process:
        process.communicate(timeout=SECONDS_MAX)

    assert (tmp_path / "logs" / f"{job}.1.out").read_text() == f"{job} n1 r 1\n"


def test_w57_one_worker_for_two_managers(served, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    with serving(folder, "--wmp", "127.0.0.1:0", "--store", "memory") as second:
        flags = ("--manager", second.addresses["wmp"], "--command", "cat", "-j", "8")
        with worker(served, *flags, "--role", "r"):
            for each in (served, second):
                ended = wmp(each, "submit", "r", "x", "--wait", "80", "--json")
                assert json.loads(ended.stdout)["state"] == "completed"


def test_w57_what_goes_wrong_is_told_in_a_sentence(served):
    nobody = run("wmp", "submit", "r", "--manager", "127.0.0.1:1", "--timeout", "0.2")
    assert nobody.returncode == 1
    assert nobody.stderr == "manyhands: tcp://127.0.0.1:1 does not answer.\n"
    unknown = wmp(served, "fetch", "f" * 32)
    assert unknown.returncode == 1
    assert unknown.stderr == f"manyhands: there is no job {'f' * 32}.\n"
    assert "is no address" in run("wmp", "close", "f", "--manager", "no where").stderr
    assert "--command is empty" in run("wmp", "work", "--command", "").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("work", "--command", "cat", "--manager", "no where"), "tcp://no where is no address"),
        (("work", "--command", "sh -c 'x"), "No closing quotation"),
        (("work", "--command", "cat", "--role", ""), "--role is empty"),
        (("close", "f", "--timeout", "inf"), "--timeout"),
        (("close", "f", "--timeout", "nan"), "--timeout"),
        (("close", "f", "--timeout", "-5"), "--timeout"),
        (("fetch", "f", "--wait", "inf"), "--wait"),
        (("submit", "r", "--delay", "inf"), "--delay"),
    ],
)
def test_w57_wrong_words_are_answered_with_a_sentence(words, said):
    wrong = run("wmp", *words)

    assert wrong.returncode != 0
    assert said in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_w57_a_job_submitted_here_is_seen_everywhere(served):
    job = wmp(served, "submit", "r", "x", "--priority", "3", "--key", "k").stdout.strip()
    assert wmp(served, "submit", "r", "x", "--key", "k").stdout.strip() == job
    with contextlib.closing(Api(served)) as api, Talk(served.addresses["wmp"]) as talk:
        shown = api.get(f"jobs/{job}")
        assert (shown["queue"], shown["priority"], shown["payload"]) == ("r", 3.0, "x")
        assert talk.take(role="r")["job"] == job.encode()
