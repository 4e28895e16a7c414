"""Checks that take long: nothing is lost, finished twice, stuck or charged wrongly.

    python bench/python/endurance.py ledger        # 30 minutes of kills and cut connections
    python bench/python/endurance.py deploy        # 200 SIGTERMs under load
    python bench/python/endurance.py poison        # a task that crashes among 10,000 good ones
    python bench/python/endurance.py heartbeat     # 5 minutes of C that holds the interpreter lock
    python bench/python/endurance.py ledger --scale 0.1

Each starts a server of its own and workers as `manyhands worker` does, prints what it found, and
exits with 1 if anything is wrong. `--seed` repeats the choice of what is killed and when.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import services

from manyhands import App, Unavailable

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.e2e.cutting_proxy import DOWN, UP, cutting  # noqa: E402 - it is below the root

DRAIN_SECONDS = 300.0
START_SECONDS = 60.0
CUT_BYTES_MAX = 20_000  # of a connection, until it is cut in the middle of what it carries
HELD_SECONDS = 300  # with the interpreter lock
TASKS = """
import ctypes, time
from manyhands import App
app = App()

@app.task(retries=50, queue="work", name="work", lease=5)
def work(number: int) -> int:
    time.sleep(0.002)
    return number

@app.task(retries=2, queue="work", name="crash")
def crash() -> None:
    ctypes.string_at(0)

@app.task(retries=2, queue="work", name="hold", lease=30)
def hold(seconds: int) -> int:
    ctypes.PyDLL(None).sleep(seconds)  # without giving the lock back, as C that computes
    return seconds
"""


class Site:
    """A server, a proxy before it and its workers, any of which may fail and come back."""

    def __init__(self, folder: Path, workers: int, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.address = f"127.0.0.1:{services.free_port()}"
        self._proxy = ExitStack()
        proxy, self.cuts = self._proxy.enter_context(cutting(self.address))
        self.url = f"http://{proxy}"
        (folder / "endured.py").write_text(TASKS)
        self.server = self._serve()
        self.workers = [self._work() for _ in range(workers)]

    def _serve(self) -> subprocess.Popen[bytes]:
        off = [
            part for name in ("gearman", "dwork", "wmp", "amqp") for part in (f"--{name}", "off")
        ]
        data = ["--data", str(self.folder / "data"), "--http", self.address]
        # Every job is looked at in the end, so none may have been tidied away.
        return self._start("serve", *data, *off, "--retention-count", "10000000")

    def _work(self) -> subprocess.Popen[bytes]:
        return self._start("worker", "endured:app", "--log-level", "warning", *self.flags)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-m", "manyhands", *arguments]
        environment = os.environ | {"MANYHANDS_URL": self.url}
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                program, cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()
        self.server = self._serve()

    def kill_supervisor(self, index: int) -> None:
        self.workers[index].kill()
        self.workers[index].wait()
        self.workers[index] = self._work()

    def kill_child(self, index: int, choice: random.Random) -> None:
        if found := self._children(index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(choice.choice(found)), signal.SIGKILL)

    def _children(self, index: int) -> list[str]:
        pid = self.workers[index].pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def cut(self, choice: random.Random) -> None:
        """Cuts every connection now, and the next few again, wherever their messages are then."""
        self.cuts.planned = [
            (choice.choice((UP, DOWN)), choice.randrange(1, CUT_BYTES_MAX)) for _ in range(4)
        ]
        self.cuts.cut_all()

    def redeploy(self, index: int) -> int:
        """The exit code of the worker that was stopped, once it had begun."""
        deadline = time.monotonic() + START_SECONDS
        while not self._children(index) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.workers[index].terminate()
        code = self.workers[index].wait(60)
        self.workers[index] = self._work()
        return code

    def close(self) -> None:
        for process in (*self.workers, self.server):
            process.terminate()
        for process in (*self.workers, self.server):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._proxy.close()


class Submitters:
    """Threads that submit until they are told to stop, and remember what was acknowledged."""

    def __init__(self, url: str, count: int, pause: float) -> None:
        self.app = App(url, timeout=120)
        self.accepted: list[str] = []
        self.unsure: list[str] = []
        self._pause = pause
        self._is_over = threading.Event()

        @self.app.task(retries=50, queue="work", name="work", lease=5, remote=True)
        def work(number: int) -> int: ...

        self._work = work
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(self._pause):
            try:
                self.accepted += [handle.id for handle in self._work.map(range(20))]
            except Unavailable as error:
                self.unsure += error.ids

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def drained(app: App[None]) -> bool:
    """Whether nothing is left in time."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        counts = app.client.request("GET", "/api/queues/work")["counts"]
        if not any(counts[state] for state in ("ready", "leased", "delayed", "blocked")):
            return True
        time.sleep(0.2)
    return False


def judged(app: App[None], accepted: list[str], unsure: list[str]) -> dict[str, int]:
    """What became of the jobs. A completion that counted twice would show as a further one in the
    events of a job.
    """
    jobs = {job["id"]: job for job in app.client.jobs(queue="work")}
    states = Counter(job["state"] for job in jobs.values())
    known = set(accepted)
    return {
        "accepted": len(accepted),
        "lost": len(known - jobs.keys()),
        "doubled": len(jobs.keys() - known - set(unsure)),
        "not completed": len(jobs) - states["completed"],
        "run again": sum(job["incarnation"] > 0 for job in jobs.values()),
        "attempts charged": sum(job["attempts_used"] > 0 for job in jobs.values()),
    }


def ledger(folder: Path, scale: float, choice: random.Random) -> bool:
    """Kills and cuts of everything, for 30 minutes."""
    site = Site(folder, 4, "-p", "2", "-c", "4", "--grace", "5")
    submitters = Submitters(site.url, 4, 0.2)
    done: Counter[str] = Counter()
    ends_at = time.monotonic() + 1800 * scale
    try:
        while time.monotonic() < ends_at:
            time.sleep(choice.uniform(0.5, 4.0))
            what = choice.choice(("server", "supervisor", "child", "child", "cut"))
            done[what] += 1
            if what == "server":
                site.kill_server()
            elif what == "supervisor":
                site.kill_supervisor(choice.randrange(4))
            elif what == "cut":
                site.cut(choice)
            else:
                site.kill_child(choice.randrange(4), choice)
        submitters.stop()
        is_drained = drained(submitters.app)
        found = judged(submitters.app, submitters.accepted, submitters.unsure)
    finally:
        site.close()
    print(f"killed or cut: {dict(done)}; drained: {is_drained}; {found}")
    wrong = ("lost", "doubled", "not completed", "run again")
    return is_drained and not any(found[name] for name in wrong)


def deploy(folder: Path, scale: float, choice: random.Random) -> bool:
    """200 SIGTERMs under load: no attempt is charged."""
    site = Site(folder, 2, "-p", "1", "-c", "8", "--grace", "30")
    submitters = Submitters(site.url, 2, 0.1)
    count = max(1, round(200 * scale))
    codes: Counter[int] = Counter()
    try:
        for _ in range(count):
            time.sleep(choice.uniform(0.5, 1.5))
            codes[site.redeploy(choice.randrange(2))] += 1
        submitters.stop()
        is_drained = drained(submitters.app)
        found = judged(submitters.app, submitters.accepted, submitters.unsure)
    finally:
        site.close()
    print(f"{count} stops, exit codes {dict(codes)}; drained: {is_drained}; {found}")
    return (
        is_drained
        and set(codes) == {0}
        and not any(found[name] for name in found if name != "accepted")
    )


def poison(folder: Path, scale: float, choice: random.Random) -> bool:
    """One task that crashes among 10,000 good ones."""
    del choice
    site = Site(folder, 1, "-p", "2", "-c", "16")
    app = App(site.url, timeout=120)

    @app.task(retries=50, queue="work", name="work", remote=True)
    def work(number: int) -> int: ...

    @app.task(retries=2, queue="work", name="crash", remote=True)
    def crash() -> None: ...

    count = max(100, round(10_000 * scale))
    try:
        handles = work.map(range(count // 2))
        bad = crash.submit()
        handles += work.map(range(count // 2))
        is_drained = drained(app)
        failed = [job["id"] for job in app.client.jobs(queue="work", state="failed")]
        used = Counter(
            job["attempts_used"] for job in app.client.jobs(queue="work", state="completed")
        )
        code = app.client.request("GET", f"/api/jobs/{bad.id}")["failure"]["code"]
    finally:
        site.close()
    charged = sum(number for attempts, number in used.items() if attempts > 0)
    print(f"{len(handles)} good ones; failed: {len(failed)} ({code}); charged others: {charged}")
    is_mildly_charged = max(used, default=0) <= 1 and charged <= 2 * 16
    return is_drained and failed == [bad.id] and code == "worker_died" and is_mildly_charged


def heartbeat(folder: Path, scale: float, choice: random.Random) -> bool:
    """A C function that holds the interpreter lock far longer than its lease's term runs once."""
    del choice
    site = Site(folder, 1, "-p", "1", "-c", "4")
    app = App(site.url, timeout=120)

    @app.task(retries=2, queue="work", name="hold", lease=30, remote=True)
    def hold(seconds: int) -> int: ...

    seconds = max(1, round(HELD_SECONDS * scale))
    try:
        held = hold.submit(seconds)
        is_same = held.result(timeout=seconds + 60) == seconds
        job = app.client.request("GET", f"/api/jobs/{held.id}")
    finally:
        site.close()
    runs = job["lease_number"]
    print(
        f"held for {seconds} s under a term of 30 s; runs: {runs}; {job['attempts_used']} charged"
    )
    return is_same and runs == 1 and job["attempts_used"] == 0


def main() -> None:
    checks = {"ledger": ledger, "deploy": deploy, "poison": poison, "heartbeat": heartbeat}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("check", choices=checks)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(2**32)
    folder = Path(tempfile.mkdtemp(prefix="manyhands-endurance-"))
    print(f"{given.check}, scale {given.scale:g}, --seed {seed}, in {folder}", flush=True)
    is_right = checks[given.check](folder, given.scale, random.Random(seed))
    print("right" if is_right else f"wrong; the logs are in {folder}")
    if is_right:
        shutil.rmtree(folder)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
