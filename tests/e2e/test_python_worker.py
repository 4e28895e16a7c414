"""``manyhands worker`` with real children, against the real server: vouching, deaths, stopping."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from manyhands import App, Backoff, Handle, JobFailed, gather
from tests.e2e.cutting_proxy import cutting
from tests.e2e.serving import (
    SECONDS_MAX,
    command,
    environment,
    is_gone,
    own_address,
    serving,
    start,
)
from tests.e2e.working import until, working, write_module

TASKS = """
    import ctypes, os, time
    from pathlib import Path
    from manyhands import App, current_job

    app = App()
    here = Path(__file__).parent
    with (here / "imported").open("a") as file:
        file.write(f"{os.getpid()} ")

    @app.task(queue="QUEUE-pid", name="pid")
    def pid() -> int:
        return os.getpid()

    @app.task(queue="QUEUE-hold", name="hold", retries=1)
    def hold(name: str) -> str:
        (here / f"{name}.began").write_text(str(os.getpid()))
        while not (here / f"{name}.go").exists():
            time.sleep(0.01)
        return name

    @app.task(queue="QUEUE-crash", name="crash", retries=1)
    def crash() -> None:
        ctypes.string_at(0)

    @app.task(queue="QUEUE-exit", name="exit", retries=1)
    def end_process() -> None:
        os._exit(0)  # as a library may

    @app.task(queue="QUEUE-stuck", name="stuck", retries=0, timeout=0.2)
    def stuck() -> None:
        ctypes.CDLL(None).sleep(600)  # nothing interrupts it

    @app.task(queue="QUEUE-good", name="good", retries=1)
    def good(number: int) -> int:
        time.sleep(0.001)
        return number

    @app.task(queue="QUEUE-seize", name="seize", lease=4, retries=0)
    def seize(seconds: float) -> int:
        with (here / "seized").open("a") as file:
            file.write("x")
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # without letting go of the interpreter
        return current_job().attempt
"""


class Tasks:
    """The same tasks, as a submitter in this process sees them."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self.app = app = App(url)
        self.folder = folder
        self.code = TASKS.replace("QUEUE", queue)

        @app.task(queue=f"{queue}-pid", name="pid")
        def pid() -> int: ...

        @app.task(queue=f"{queue}-hold", name="hold", retries=1)
        def hold(name: str) -> str: ...

        @app.task(queue=f"{queue}-crash", name="crash", retries=1)
        def crash() -> None: ...

        @app.task(queue=f"{queue}-exit", name="exit", retries=1)
        def end_process() -> None: ...

        @app.task(queue=f"{queue}-stuck", name="stuck", retries=0, timeout=0.2)
        def stuck() -> None: ...

        @app.task(queue=f"{queue}-good", name="good", retries=1)
        def good(number: int) -> int: ...

        @app.task(queue=f"{queue}-seize", name="seize", lease=4, retries=0)
        def seize(seconds: float) -> int: ...

        self.pid, self.hold, self.crash = pid, hold, crash
        self.good, self.seize, self.stuck, self.end_process = good, seize, stuck, end_process

    def await_start(self, name: str) -> int:
        """Until a held job runs; the process it runs in."""
        file = self.folder / f"{name}.began"
        return int(until(lambda: file.exists() and file.read_text()))

    def await_rest(self) -> Handle[int]:
        """Until nobody takes work any more; a job that is left."""

        def left() -> Handle[int] | None:
            handle = self.pid.submit()
            is_left = any("nobody is known" in each for each in handle.status().waits)
            return handle if is_left else None

        return until(left)

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


@pytest.fixture
def tasks(served, queue, tmp_path):
    found = Tasks(served.url, queue[:60], tmp_path)
    yield found
    found.app.close()


def test_p41_children_are_fresh_interpreters_and_the_supervisor_stays_small(
    served, tasks, tmp_path
):
    """P41, P42: each has a name of its own, with the host's or the given one in front."""
    with working(
        served.url, tmp_path, "-p", "2", "--name", "crew", code=tasks.code, ready=2
    ) as found:
        children = found.children()
        assert len(children) == 2
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) in children
        names = {word for word in found.log().split() if word.startswith("crew-")}
        assert len(names) == 2
        importers = {int(pid) for pid in (tmp_path / "imported").read_text().split()}
        assert importers == set(children)  # and not the supervisor
        status = Path(f"/proc/{found.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 40 * 1024  # 27 MiB where it was measured
        found.send(signal.SIGTERM)
        assert found.wait() == 0


def test_p44_a_thread_of_short_jobs_gives_way_to_the_loop(served, queue, tmp_path):
    """P44: what was fetched ahead is reported on while the rest of it runs. In the process of
    somebody else, nothing is changed.
    """
    code = f"""
        import sys
        from manyhands import App
        app = App()

        @app.task(name="{queue}")
        def interval() -> float:
            return sys.getswitchinterval()
    """
    app = App(served.url)

    @app.task(name=queue)
    def interval() -> float:
        return sys.getswitchinterval()

    before = sys.getswitchinterval()
    with working(served.url, tmp_path, code=code):
        assert interval.submit().result(timeout=SECONDS_MAX) < 0.001
    with app.worker():
        assert interval.submit().result(timeout=SECONDS_MAX) == before
    app.close()


def test_p42_every_option_has_a_variable(served, tasks, tmp_path):
    """Flags win over them."""
    variables = {
        "MANYHANDS_WORKER_PROCESSES": "3",
        "MANYHANDS_WORKER_NAME": "from-environment",
        "MANYHANDS_WORKER_QUEUES": "*-pid",
        "MANYHANDS_WORKER_LOG_FORMAT": "json",
    }

    with working(served.url, tmp_path, "-p", "2", code=tasks.code, ready=2, **variables) as found:
        assert len(found.children()) == 2
        assert tasks.pid.submit().result(SECONDS_MAX) in found.children()
        assert '"ready: from-environment-' in found.log()
        assert tasks.good.submit(1).status().state == "ready"  # of a queue that was not chosen
    shown = run_in(tmp_path, "worker", "--help").stdout
    flags = set(re.findall(r"--([a-z-]+)", shown)) - {"help", "check"}
    flags = {each for each in flags if not each.startswith("no-")}
    named = set(re.findall(r"MANYHANDS_WORKER_([A-Z_]+)", shown))
    assert {each.upper().replace("-", "_") for each in flags} - named <= {
        "DJANGO",
        "URL",  # another name for --server
    }


ORDER = """
    from pathlib import Path
    from manyhands import App
    app = App()

    def note(name: str) -> None:
        with (Path(__file__).parent / "order").open("a") as file:
            file.write(name)

    @app.task(name="QUEUE-first", priority=1)
    def first() -> None:
        note("1")

    @app.task(name="QUEUE-second", priority=9)
    def second() -> None:
        note("2")
"""


@pytest.mark.parametrize(
    ("order", "expected"), [("listed", "111222"), ("priority_in_turns", "222111")]
)
def test_p42_queues_are_taken_from_in_the_order_that_is_asked_for(
    served, queue, tmp_path, order, expected
):
    app = App(served.url)
    name = queue[:60]
    handles = app.client.submit_many(f"{name}-first", ["{}"] * 3, priority=1)
    handles += app.client.submit_many(f"{name}-second", ["{}"] * 3, priority=9)
    flags = ("-c", "1", "--ahead", "0", "--order", order)
    chosen = ("--queues", f"{name}-first,{name}-second")
    with working(served.url, tmp_path, *flags, *chosen, code=ORDER.replace("QUEUE", name)):
        gather(*handles, timeout=SECONDS_MAX)
    assert (tmp_path / "order").read_text() == expected
    app.close()


def test_p48_code_that_holds_the_interpreter_keeps_its_job(served, tasks, tmp_path):
    with working(served.url, tmp_path, "-c", "1", code=tasks.code):
        assert tasks.seize.submit(10.0).result(timeout=SECONDS_MAX) == 1
    assert (tmp_path / "seized").read_text() == "x"


def test_p49_a_killed_child_costs_its_running_jobs_an_attempt_and_others_none(
    served, tasks, tmp_path
):
    with working(served.url, tmp_path, "-c", "1", "--ahead", "0", code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        victim = tasks.await_start("one")
        waiting = tasks.pid.submit()
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        until(lambda: handle.status().attempts == 1)
        # One second where nothing else runs; without a supervisor it would be the lease's 30.
        assert time.monotonic() - began < 10
        status = handle.status()
        assert status.failure is not None
        assert "worker_died" in str(status.failure)
        assert "SIGKILL" in str(status.failure)
        tasks.let_go("one")
        assert handle.result(timeout=SECONDS_MAX) == "one"
        assert waiting.result(timeout=SECONDS_MAX) != victim
        assert waiting.status().attempts == 0
        assert found.children() != [victim]
        ended = next(line for line in found.log().splitlines() if "SIGKILL" in line)
        assert ended.endswith(f"while it ran job {handle.id} of hold")


def test_p49_a_poison_job_is_named_and_takes_no_other_with_it(served, tasks, tmp_path):
    """P49: others are charged at the first death only, as the second attempt runs alone."""
    with working(served.url, tmp_path, "-p", "2", code=tasks.code, ready=2):
        handles = tasks.good.map(range(200))
        poison = tasks.crash.submit()
        handles += tasks.good.map(range(200, 400))
        with pytest.raises(JobFailed) as caught:
            poison.result(timeout=SECONDS_MAX)
        assert caught.value.code == "worker_died"
        assert "SIGSEGV" in caught.value.message
        found = [handle.result(timeout=SECONDS_MAX) for handle in handles]
        assert found == list(range(400))
        assert max(handle.status().attempts for handle in handles) <= 1


def test_p49_a_poison_job_among_long_ones_holds_nothing_up(served, tasks, tmp_path):
    """It has to run alone, and cannot while they run: a fresh process takes it, and other work."""
    with working(served.url, tmp_path, "-c", "2", code=tasks.code) as found:
        held = tasks.hold.submit("one")
        first = tasks.await_start("one")
        poison = tasks.crash.using(backoff=Backoff(first=4, jitter=0)).submit()
        again = until(lambda: (pid := tasks.await_start("one")) != first and pid)
        with pytest.raises(JobFailed) as caught:
            poison.result(timeout=SECONDS_MAX)
        assert caught.value.code == "worker_died"
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) != again
        assert not is_gone(again)
        tasks.let_go("one")
        assert held.result(timeout=SECONDS_MAX) == "one"
        assert held.status().attempts == 1  # the first death
        until(lambda: is_gone(again), found.log)
        assert len(found.children()) == 1


def test_p49_a_task_that_ends_its_process_in_peace_is_named_too(served, tasks, tmp_path):
    """It would be given back uncharged, for ever."""
    with working(served.url, tmp_path, code=tasks.code):
        with pytest.raises(JobFailed) as caught:
            tasks.end_process.submit().result(timeout=SECONDS_MAX)
        assert caught.value.code == "worker_died"
        assert "exited with code 0" in caught.value.message


MEMORY = """
    import os, resource, signal
    from manyhands import App

    app = App()

    @app.task(name="QUEUE-eat", retries=0)
    def eat(mebibytes: int, limit: int) -> int:
        if limit:
            now, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (limit * 1024**2, most))
        try:
            eaten = bytearray(mebibytes * 1024**2)
        finally:
            if limit:
                resource.setrlimit(resource.RLIMIT_AS, (now, most))
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when there is no more
        return len(eaten)

    @app.task(name="QUEUE-pid")
    def pid() -> int:
        return os.getpid()
"""


def test_p49_a_child_that_eats_all_memory_is_named_with_what_it_used(served, queue, tmp_path):
    """P49, P62: memory that there is not is an exception of the task; what the kernel kills has
    its peak in the failure.
    """
    app = App(served.url)
    name = queue[:50]

    @app.task(name=f"{name}-eat", retries=0)
    def eat(mebibytes: int, limit: int) -> int: ...

    @app.task(name=f"{name}-pid")
    def pid() -> int: ...

    with working(served.url, tmp_path, "-c", "1", code=MEMORY.replace("QUEUE", name)):
        first = pid.submit().result(SECONDS_MAX)
        with pytest.raises(JobFailed) as refused:
            eat.submit(100_000, 2_000).result(SECONDS_MAX)
        assert refused.value.code == "MemoryError"
        assert pid.submit().result(SECONDS_MAX) == first

        with pytest.raises(JobFailed) as killed:
            eat.submit(300, 0).result(SECONDS_MAX)
        assert killed.value.code == "worker_died"
        peak = re.search(r"killed by SIGKILL; its memory peaked at (\d+) MiB", str(killed.value))
        assert peak is not None
        assert int(peak[1]) >= 300
        assert pid.submit().result(SECONDS_MAX) != first
    app.close()


def test_p42_two_supervisors_of_one_name_do_not_touch_each_others_jobs(served, tasks, tmp_path):
    """P28, P42, P49: each child is a worker of its own, whatever they are called."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    tasks.folder = folders[0]
    same = ("--name", "crew", "-c", "1", "--ahead", "0")
    with working(served.url, folders[0], *same, code=tasks.code) as first:
        handle = tasks.hold.submit("one")
        tasks.await_start("one")
        with working(served.url, folders[1], *same, code=tasks.code) as second:
            [victim] = second.children()
            assert tasks.pid.submit().result(SECONDS_MAX) == victim
            os.kill(victim, signal.SIGKILL)
            until(lambda: victim not in second.children() and second.children(), second.log)
            assert tasks.pid.submit().result(SECONDS_MAX) != victim
            second.send(signal.SIGTERM)
            assert second.wait() == 0
        tasks.let_go("one")
        assert handle.result(SECONDS_MAX) == "one"
        assert handle.status().attempts == 0
        assert "was refused" not in first.log()


def test_p27_a_worker_keeps_its_jobs_while_the_server_is_killed_and_restarted(tmp_path, queue):
    """P28, P35: what it ran is reported to the new server, and counts."""
    address = own_address()
    server = start(tmp_path, "--http", address)
    tasks = Tasks(f"http://{address}", queue[:60], tmp_path)
    with working(server.url, tmp_path, "-c", "2", "--ahead", "0", code=tasks.code) as found:
        handles = [tasks.hold.submit(name) for name in ("one", "two")]
        for name in ("one", "two"):
            tasks.await_start(name)
        server.stop(signal.SIGKILL)
        tasks.let_go("one")  # it ends while there is no server
        found.wait_for("no connection to the server")
        server = start(tmp_path, "--http", address)
        assert handles[0].result(timeout=SECONDS_MAX) == "one"
        found.wait_for("connected to the server", count=2)
        tasks.let_go("two")
        assert handles[1].result(timeout=SECONDS_MAX) == "two"
        assert [handle.status().attempts for handle in handles] == [0, 0]
        assert "was refused" not in found.log()
    tasks.app.close()
    assert server.stop() == 0


def test_p50_children_finish_and_leave_when_the_supervisor_dies(
    served, tasks, tmp_path, monkeypatch
):
    """And leave nothing behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with working(served.url, tmp_path, code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        child = tasks.await_start("one")
        found.process.kill()
        found.process.wait()
        found.wait_for("the supervisor is gone")
        later = tasks.await_rest()
        tasks.let_go("one")
        assert handle.result(timeout=SECONDS_MAX) == "one"
        until(lambda: is_gone(child), found.log)
        assert later.status().state == "ready"
        assert not list(tmp_path.glob("manyhands-worker-*"))


def test_p64_a_lifespan_that_fails_is_shown_without_our_frames_and_tried_again(tmp_path):
    code = """
        from contextlib import asynccontextmanager
        from manyhands import App

        @asynccontextmanager
        async def resources():
            raise ConnectionError("no database")
            yield

        app = App(lifespan=resources)

        @app.task
        def work() -> None: ...
    """
    with working("http://127.0.0.1:1", tmp_path, code=code, ready=0) as found:
        found.wait_for("manyhands: the app's lifespan failed", count=2)
        shown = found.log().partition("manyhands: the app's lifespan failed")[0]
        found.send(signal.SIGTERM)
        assert found.wait() == 0
    assert "ConnectionError: no database" in shown
    assert shown.count('  File "') == 1


def test_p51_a_stop_lets_running_jobs_finish(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--grace", "90", code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        tasks.await_start("one")
        found.send(signal.SIGTERM)
        found.wait_for("stopping")
        later = tasks.await_rest()
        tasks.let_go("one")
        assert found.wait() == 0
        assert handle.result(timeout=SECONDS_MAX) == "one"
        assert handle.status().attempts == 0
        assert later.status().state == "ready"


def test_p51_what_may_still_finish_keeps_its_lease(served, tasks, tmp_path):
    """P48, P51: it is vouched for until its end, however short its term."""
    with working(served.url, tmp_path, "--grace", "90", code=tasks.code) as found:
        handle = tasks.seize.submit(8.0)  # under a term of 4 s
        until((tmp_path / "seized").exists, found.log)
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        assert handle.result(timeout=SECONDS_MAX) == 1
        assert handle.status().attempts == 0


def test_p51_what_does_not_finish_in_time_is_given_back_uncharged(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--grace", "0.1", code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        tasks.await_start("one")
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        status = handle.status()
        assert (status.state, status.attempts) == ("ready", 0)


def test_p51_a_child_that_is_being_replaced_is_stopped_in_order(served, tasks, tmp_path):
    """P52."""
    flags = ("-c", "2", "--max-jobs", "1", "--grace", "0.1")
    with working(served.url, tmp_path, *flags, code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        tasks.await_start("one")
        tasks.pid.submit().result(timeout=SECONDS_MAX)
        found.wait_for("this process is replaced")
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        assert "does not stop" not in found.log()
        status = handle.status()
        assert (status.state, status.attempts) == ("ready", 0)


def test_p51_a_second_signal_gives_back_everything_now(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--grace", "600", code=tasks.code) as found:
        handle = tasks.hold.submit("one")
        tasks.await_start("one")
        found.send(signal.SIGTERM)
        found.wait_for("stopping")
        found.send(signal.SIGTERM)
        assert found.wait() == 1
        status = handle.status()
        assert (status.state, status.attempts) == ("ready", 0)
        assert re.search(rf"job {handle.id} of hold given back in \d+\.\d*[1-9]", found.log())


def test_p52_a_child_is_replaced_after_its_jobs(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--max-jobs", "3", "--ahead", "0", code=tasks.code):
        pids = [tasks.pid.submit().result(timeout=SECONDS_MAX) for _ in range(12)]
    assert len(set(pids)) > 1
    assert max(pids.count(pid) for pid in pids) <= 3 + 16  # what was under way counts


def test_p52_a_child_is_replaced_when_it_uses_too_much(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--max-memory", "1", code=tasks.code) as found:
        first = tasks.pid.submit().result(timeout=SECONDS_MAX)
        found.wait_for("this process is replaced: it uses")
        until(lambda: is_gone(first), found.log)
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) != first


def test_p53_changed_code_is_loaded(served, tasks, tmp_path):
    """P53: an error in it is shown, once, and the next change is waited for."""
    with working(served.url, tmp_path, "--reload", "-p", "2", code=tasks.code, ready=2) as found:
        first = tasks.pid.submit().result(timeout=SECONDS_MAX)
        write_module(
            tmp_path, tasks.code.replace("app = App()", "raise ValueError('half written')")
        )
        found.wait_for("waiting for a change of the code")
        until(lambda: not found.children(), found.log)
        assert found.log().count("ValueError: half written") == 1
        assert found.log().count("manyhands: tasks cannot be imported") == 1
        assert is_gone(first)
        write_module(tmp_path, tasks.code.replace("return os.getpid()", "return -7"))
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) == -7
        found.wait_for("ready:", count=4)  # each child is started once
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        assert found.log().count("ready:") == 4


def test_p60_a_job_that_nothing_interrupts_costs_its_slot_and_then_its_child(
    served, tasks, tmp_path
):
    """P60, P61: its attempt has failed, and other jobs of the child are finished first."""
    with working(served.url, tmp_path, "-c", "2", "--ahead", "0", code=tasks.code) as found:
        held = tasks.hold.submit("one")
        first = tasks.await_start("one")
        with pytest.raises(JobFailed) as caught:
            tasks.stuck.submit().result(timeout=SECONDS_MAX)
        # On a very busy machine the server cuts it off before the worker does.
        assert caught.value.code in ("timeout", "attempts")
        assert not is_gone(first)
        tasks.let_go("one")
        assert held.result(timeout=SECONDS_MAX) == "one"
        until(lambda: is_gone(first), found.log)
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) != first
        assert "its slot is lost" in found.log()


def test_p60_a_child_with_one_slot_that_is_stuck_in_c_is_replaced(served, tasks, tmp_path):
    with working(served.url, tmp_path, "-c", "1", code=tasks.code) as found:
        first = tasks.pid.submit().result(timeout=SECONDS_MAX)
        with pytest.raises(JobFailed) as caught:
            tasks.stuck.submit().result(timeout=SECONDS_MAX)
        assert caught.value.code in ("timeout", "attempts")  # as above
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) != first
        until(lambda: is_gone(first), found.log)


def test_p60_a_child_that_holds_the_interpreter_is_killed_when_its_job_is_cancelled(
    served, tasks, tmp_path
):
    with working(served.url, tmp_path, "-c", "1", code=tasks.code) as found:
        handle = tasks.seize.submit(600)
        until((tmp_path / "seized").exists, found.log)
        assert handle.cancel()
        assert tasks.pid.submit().result(timeout=SECONDS_MAX) > 0
        assert "it is killed" in found.log()
        assert handle.status().state == "cancelled"


def run_in(
    folder: Path, *arguments: str, url: str = "", given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment() | {"MANYHANDS_URL": url},
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_p53_check_lists_the_tasks(tasks, tmp_path):
    write_module(tmp_path, tasks.code)
    found = run_in(tmp_path, "worker", "tasks:app", "--check")
    assert found.returncode == 0, found.stderr
    for name in ("pid", "hold", "crash", "in a thread"):
        assert name in found.stdout


@pytest.mark.parametrize(
    ("target", "code", "sentence"),
    [
        ("nothing:app", "", "there is no module 'nothing'"),
        ("tasks.py", "", "name the module 'tasks' instead of its file"),
        ("tasks:other", "", "module 'tasks' has no 'other'"),
        ("tasks", "", "module 'tasks' has no App"),
        ("tasks:app", "app = 3", "tasks:app is not an App"),
        ("tasks:app", "import wrong_name", "No module named 'wrong_name'"),
        ("tasks", "from manyhands import App\na = App()\nb = App()", "has several apps"),
        ("tasks:app", "from manyhands import App\napp = App()", "has no task"),
    ],
)
def test_p54_an_app_that_cannot_be_loaded_is_named(tmp_path, target, code, sentence):
    write_module(tmp_path, code)
    found = run_in(tmp_path, "worker", target, url="http://127.0.0.1:1")
    assert found.returncode == 1
    assert sentence in found.stderr
    assert "importlib" not in found.stderr
    assert "manyhands/client" not in found.stderr
    assert "manyhands.worker" not in found.stderr  # nothing is to be said about the child's end


@pytest.mark.parametrize("target", ["tasks", "tasks:app", "tasks:make()"])
def test_p54_apps_are_found(tmp_path, target):
    code = "from manyhands import App\napp = App()\n@app.task\ndef found(): ...\n"
    write_module(tmp_path, code + "def make():\n    return app\n")
    assert "found" in run_in(tmp_path, "worker", target, "--check").stdout


SETTINGS = """
    from manyhands import App, cron, every

    app = App()
    app.limit("QUEUE-smtp", 5)

    @app.task(name="QUEUE-nightly", schedule=cron("0 3 * * *", "Europe/Berlin"), retries=2)
    def nightly() -> None: ...

    @app.task(name="QUEUE-mail", concurrency=4, rate="100/s", schedule=every(3600))
    def mail() -> None: ...
"""


def put_policy(api, name: str, **policy) -> None:
    response = api.http.put(f"/api/queues/{name}", json={"policy": policy})
    assert response.status_code == 200, response.text


def test_p55_settings_are_put_where_there_are_none(served, api, queue, tmp_path):
    """P55: an operator's change stays, and is told."""
    name = queue[:40]
    put_policy(api, f"{name}-mail", concurrency_max=1)
    with working(served.url, tmp_path, code=SETTINGS.replace("QUEUE", name)) as found:
        found.wait_for("manyhands apply")
        log = found.log()
        assert log.index("in a thread") < log.index("ready:")
    assert f"queue {name}-mail: concurrency_max 1" in found.log()
    assert api.get(f"queues/{name}-mail")["policy"] == {"concurrency_max": 1}
    limits = {each["name"]: each["concurrency_max"] for each in api.get("limits")}
    assert limits[f"{name}-smtp"] == 5
    schedules = {each["id"]: each for each in api.get("schedules")}
    assert schedules[f"{name}-nightly"]["cron"] == "0 3 * * *"
    assert schedules[f"{name}-nightly"]["terms"]["attempts_max"] == 3
    assert schedules[f"{name}-mail"]["interval_ms"] == 3_600_000


def test_p55_apply_shows_the_difference_and_changes_it(served, api, queue, tmp_path):
    name = queue[:40]
    code = SETTINGS.replace("QUEUE", name)
    write_module(tmp_path, code)
    put_policy(api, f"{name}-mail", concurrency_max=1)

    found = run_in(tmp_path, "apply", "tasks:app", "--check", url=served.url)
    assert found.returncode == 1
    assert f"queue {name}-mail: concurrency_max 1" in found.stdout
    assert f"limit {name}-smtp: not there" in found.stdout
    found = run_in(tmp_path, "apply", "tasks:app", "--yes", url=served.url)
    assert found.returncode == 0, found.stderr
    assert api.get(f"queues/{name}-mail")["policy"]["concurrency_max"] == 4
    assert run_in(tmp_path, "apply", "tasks:app", "--check", url=served.url).returncode == 0

    write_module(tmp_path, code.replace(", schedule=every(3600)", ""))
    found = run_in(tmp_path, "apply", "tasks:app", "--prune", "--yes", url=served.url)
    assert f"schedule {name}-mail: the code no longer has it" in found.stdout
    assert f"{name}-mail" not in {each["id"] for each in api.get("schedules")}
    assert f"{name}-nightly" in {each["id"] for each in api.get("schedules")}


@pytest.mark.parametrize(("answer", "is_changed"), [("y", True), ("n", False), ("", False)])
def test_p55_apply_asks_before_it_changes_anything(served, api, tmp_path, answer, is_changed):
    name = f"apply-asks-{answer or 'nothing'}"
    write_module(tmp_path, SETTINGS.replace("QUEUE", name))

    found = run_in(tmp_path, "apply", "tasks:app", url=served.url, given=f"{answer}\n")

    assert found.returncode == (0 if is_changed else 1)
    assert "Change the server?" in found.stdout
    assert (f"{name}-smtp" in {each["name"] for each in api.get("limits")}) is is_changed


def test_p55_apply_says_that_the_server_is_away(tmp_path):
    write_module(tmp_path, SETTINGS)
    found = run_in(tmp_path, "apply", "tasks:app", "--check", url="http://127.0.0.1:1")
    assert found.returncode == 1
    assert "no answer from http://127.0.0.1:1" in found.stderr


def test_p56_a_coroutine_that_blocks_the_loop_is_named(served, queue, tmp_path):
    code = """
        import time
        from manyhands import App

        app = App()

        @app.task(name="QUEUE")
        async def block() -> None:
            time.sleep(4)
    """
    app = App(served.url)

    @app.task(name=queue)
    async def block() -> None: ...

    with working(served.url, tmp_path, code=code.replace("QUEUE", queue)) as found:
        handle = block.submit()
        found.wait_for("has blocked the loop for")
        line = next(line for line in found.log().splitlines() if "has blocked" in line)
        assert handle.id in line
        assert f"{tmp_path / 'tasks.py'}:9" in line
    app.close()


def test_p57_metrics_count_jobs_by_task_and_outcome(served, tasks, tmp_path):
    address = own_address()
    with working(served.url, tmp_path, "--metrics", address, code=tasks.code):
        for number in range(3):
            tasks.good.submit(number).result(timeout=SECONDS_MAX)

        def metrics() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                return answer.read().decode()

        text = 'manyhands_worker_jobs_total{task="good",outcome="completed"} 3\n'
        until(lambda: text in metrics(), metrics)
        assert "manyhands_worker_slots_used 0\n" in metrics()
        found = dict(line.split() for line in metrics().splitlines() if not line.startswith("#"))
        assert float(found['manyhands_worker_run_seconds_total{task="good"}']) > 0
        assert found['manyhands_worker_jobs_total{task="good",outcome="given_back"}'] == "0"
        assert found["manyhands_worker_ahead"] == "0"
        assert found["manyhands_worker_reconnects_total"] == "0"
        assert 0 <= float(found["manyhands_worker_last_contact_seconds"]) < SECONDS_MAX
        with urllib.request.urlopen(f"http://{address}/healthz") as answer:
            assert answer.read() == b"1 of 1 processes take work\n"


def test_p65_lines_are_json_if_asked_for(served, tasks, tmp_path):
    with working(served.url, tmp_path, "--log-format", "json", code=tasks.code) as found:
        handle = tasks.pid.submit()
        handle.result(timeout=SECONDS_MAX)
        found.wait_for('"outcome": "completed"')
        assert f'"job_id": "{handle.id}"' in found.log()


def test_p40_a_worker_without_a_server_says_why_once_and_keeps_trying(tmp_path, tasks):
    with working("http://127.0.0.1:1", tmp_path, code=tasks.code, ready=0) as found:
        found.wait_for("ready:")
        found.wait_for("no connection to the server, another is tried: http://127.0.0.1:1: ")
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        assert found.log().count("another is tried") == 1


def test_p40_a_refused_worker_says_why_once_and_keeps_trying(tmp_path, tasks):
    tokens = tmp_path / "tokens"
    tokens.write_text("operator:ada:s3cret-horse-battery-staple\n")
    tokens.chmod(0o600)
    arguments = ("--store", "memory", "--tokens-file", str(tokens), "--log-format", "json")
    with (
        serving(tmp_path, *arguments) as server,
        cutting(server.addresses["http"]) as (address, cuts),
        working(
            f"http://{address}",
            tmp_path,
            code=tasks.code,
            ready=0,
            MANYHANDS_TOKEN="wrong-horse-battery-staple",
        ) as found,
    ):
        found.wait_for("the server refuses this worker: ")
        until(lambda: cuts.connections_count > 10, found.log)
        found.send(signal.SIGTERM)
        assert found.wait() == 0
        assert found.log().count("the server refuses this worker: ") == 1
        assert "Traceback" not in found.log()
        assert "exited with code" not in found.log()
        assert "could not be reported" not in found.log()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--name", "x" * 300), "a worker's name has at most 200 bytes"),
        (("--name", "a\nb"), "no control characters"),
        (("--metrics", "nonsense"), "manyhands: metrics cannot be served at 'nonsense'"),
    ],
)
def test_p42_what_cannot_be_is_named(tasks, tmp_path, flags, sentence):
    write_module(tmp_path, tasks.code)
    found = run_in(tmp_path, "worker", "tasks:app", *flags, url="http://127.0.0.1:1")

    assert found.returncode != 0
    assert sentence in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_the_worker_imports_nothing_of_the_server():
    """P41: the supervisor and the child are light."""
    code = (
        "import sys, manyhands.client.worker.supervisor, manyhands.client.worker.entry; "
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('typer', 'rich', 'apsw', 'jinja2', 'structlog', 'zmq') or "
        "name.startswith(('manyhands.engine', 'manyhands.store', 'manyhands.ui'))])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    )
    assert found.stdout == "[]\n"
