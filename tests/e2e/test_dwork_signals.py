"""`manyhands dwork work` under the signals that schedulers and people send: nothing is lost, failed
or charged by them, and no process is left.
"""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.dwork_talk import Talk, a_task, addresses
from tests.e2e.serving import (
    SECONDS_MAX,
    Api,
    command,
    environment,
    is_gone,
    serving,
    wait_until,
)

SCRIPT = Path(__file__).parents[2] / "examples" / "dwork.sbatch"
RANKS = 2


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, "--dwork", "127.0.0.1:0", "--store", "memory") as server:
        yield server


class Commands:
    """Tasks that say who they are, and go on until they are allowed to end. Each has started
    another process, which goes on for ever.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def name(self, number: int, first: str = ":") -> str:
        here = self.folder
        return "; ".join(
            (
                first,
                f"sleep 6{number} & echo $! > {here}/child.{number}",
                f"echo $$ > {here}/new.{number}",
                f"mv {here}/new.{number} {here}/begun.{number}",
                f"until [ -e {here}/enough ]; do sleep 0.05; done",
            )
        )

    def wait_for(self, *numbers: int) -> list[int]:
        """Until they run; gives the ids of all their processes."""
        begun = [self.folder / f"begun.{number}" for number in numbers]
        wait_until(lambda: all(file.exists() for file in begun))
        children = [self.folder / f"child.{number}" for number in numbers]
        return [int(file.read_text()) for file in (*begun, *children)]

    def let_end(self) -> None:
        (self.folder / "enough").touch()


@pytest.fixture
def commands(tmp_path) -> Commands:
    return Commands(tmp_path)


def create(served, *names: str) -> None:
    with Talk(served) as talk:
        for name in names:
            talk.create(a_task(name))


def jobs(served) -> list[tuple[str, int]]:
    """State and spent attempts of each task."""
    with contextlib.closing(Api(served)) as api:
        rows = [api.get(f"jobs/{row['id']}") for row in api.get("jobs?queue=dwork")]
    return [(row["state"], row["attempts_used"]) for row in rows]


@contextlib.contextmanager
def started(words, **options):
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """With all below it, since they may have its pipes open."""
    for pid in (*descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def worker(served, *flags: str):
    return started(
        command("dwork", "work", "--server", addresses(served)["dwork"], *flags), env=environment()
    )


def await_line(stream, words: str) -> None:
    for line in stream:
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}")


def descendants(pid: int) -> list[int]:
    """All processes below one, whatever sessions they are in."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(words[1]), []).append(int(folder.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def signal_step(script: subprocess.Popen[str], *numbers: signal.Signals) -> list[int]:
    """As Slurm does: to every process of the step, though not to the batch script itself."""
    pids = descendants(script.pid)
    for number in numbers:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return pids


@contextlib.contextmanager
def batch(served, folder: Path, **settings: str):
    """The very script of the documentation, with an `srun` that starts its ranks on this host."""
    programs = folder / "bin"
    programs.mkdir()
    ranks = " ".join(str(rank) for rank in range(RANKS))
    srun = (
        '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\n'
        f'for rank in {ranks}; do SLURM_PROCID=$rank "$@" & done\nwait\n'
    )
    manyhands = f'#!/bin/bash\nexec {sys.executable} -m manyhands "$@"\n'
    for name, text in (("srun", srun), ("manyhands", manyhands)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {
        **environment(),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_CPUS_PER_TASK": "2",
        "DWORK_SERVER": addresses(served)["dwork"],
        "DWORK_LOGS": str(folder / "logs"),
        **settings,
    }
    with started(["bash", str(SCRIPT)], env=variables) as script:
        yield script


def test_d39_a_time_limit_gives_all_tasks_back_and_charges_none(served, tmp_path, commands):
    create(served, *(commands.name(number) for number in range(RANKS * 2)))
    with batch(served, tmp_path, DWORK_GRACE="600") as script:
        pids = commands.wait_for(*range(RANKS * 2))

        pids += signal_step(script, signal.SIGCONT, signal.SIGTERM)
        _, said = script.communicate(timeout=SECONDS_MAX)

    assert "0 failed" in said
    assert jobs(served) == [("ready", 0)] * RANKS * 2
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_commands_that_ignore_a_time_limit_are_killed_before_slurm_kills_their_worker(
    served, tmp_path, commands
):
    create(served, *(commands.name(number, "trap '' TERM") for number in range(RANKS * 2)))
    with batch(served, tmp_path, DWORK_GRACE="0", DWORK_KILL_AFTER="0.1") as script:
        pids = commands.wait_for(*range(RANKS * 2))

        pids += signal_step(script, signal.SIGCONT, signal.SIGTERM)
        script.communicate(timeout=SECONDS_MAX)

    assert jobs(served) == [("ready", 0)] * RANKS * 2
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_what_finishes_within_the_grace_is_done(served, commands):
    create(served, commands.name(1), commands.name(2))
    with worker(served, "--grace", "600") as process:
        (begun,) = wait_until(lambda: list(commands.folder.glob("begun.*")))
        process.send_signal(signal.SIGTERM)
        await_line(process.stderr, "SIGTERM: running commands have 600 s")
        commands.let_end()
        process.communicate(timeout=SECONDS_MAX)

    assert begun.exists()
    assert process.returncode == 0
    assert sorted(jobs(served)) == [("completed", 0), ("ready", 0)]


def test_d39_tasks_of_a_killed_node_come_back_when_their_lease_ends(served, tmp_path, commands):
    create(served, *(commands.name(number) for number in range(RANKS * 2)))
    with batch(served, tmp_path, DWORK_LEASE="1") as script:
        pids = commands.wait_for(*range(RANKS * 2))

        pids += signal_step(script, signal.SIGKILL)
        script.communicate(timeout=SECONDS_MAX)

    wait_until(lambda: [state for state, _ in jobs(served)] == ["ready"] * RANKS * 2)
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_all_processes_of_a_command_end_with_a_worker_that_is_killed(served, commands):
    create(served, commands.name(1))
    with worker(served) as process:
        pids = commands.wait_for(1)

        process.kill()
        process.communicate(timeout=SECONDS_MAX)

        wait_until(lambda: all(map(is_gone, pids)))


@contextlib.contextmanager
def at_terminal(served, *flags: str):
    """A worker in the foreground of a terminal of its own: gives the terminal and what to read."""
    words = command("dwork", "work", "--server", addresses(served)["dwork"], *flags)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words],
        env=environment(),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        end(process)
        os.close(ours)


def test_d39_ctrl_c_lets_running_commands_finish(served, commands):
    create(served, commands.name(1))
    with at_terminal(served) as (process, terminal):
        pids = commands.wait_for(1)

        os.write(terminal, b"\x03")
        await_line(process.stderr, "interrupt again to end them")
        commands.let_end()
        process.communicate(timeout=SECONDS_MAX)

    assert jobs(served) == [("completed", 0)]
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_a_second_ctrl_c_ends_commands_and_gives_their_tasks_back(served, commands):
    create(served, commands.name(1))
    with at_terminal(served) as (process, terminal):
        pids = commands.wait_for(1)

        os.write(terminal, b"\x03")
        await_line(process.stderr, "interrupt again to end them")
        os.write(terminal, b"\x03")
        process.communicate(timeout=SECONDS_MAX)

    assert jobs(served) == [("ready", 0)]
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_a_command_that_a_signal_ended_before_its_worker_heard_of_it_goes_back(
    served, commands
):
    create(served, commands.name(1))
    with worker(served) as process:
        pids = commands.wait_for(1)

        os.kill(pids[0], signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)

    assert jobs(served) == [("ready", 0)]


def test_d39_a_command_that_a_signal_ended_has_failed_if_its_worker_is_to_go_on(served, commands):
    create(served, commands.name(1))
    with worker(served, "--json") as process:
        pids = commands.wait_for(1)

        os.kill(pids[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=SECONDS_MAX)

    assert '"signal":9' in out
    assert [state for state, _ in jobs(served)] == ["failed"]
    wait_until(lambda: all(map(is_gone, pids)))


def test_d39_the_script_of_the_documentation_is_the_one_that_is_tested():
    page = SCRIPT.parents[1] / "docs" / "protocols" / "dwork.md"

    assert f"```bash\n{SCRIPT.read_text()}```" in page.read_text()
