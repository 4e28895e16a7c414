"""Gearman clients and workers of other people, each calling every other one through the server.

Their programs are in ``clients/``. One that is not installed is skipped, or, where the build
service says CI=true, missed.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman.draft_codec import JobCompleteRes
from tests.e2e.gearman_talk import DraftTalk, GearmanTalk, wait_until
from tests.e2e.serving import serving

CLIENTS = Path(__file__).parent / "clients"
NODE_MODULES = Path(__file__).parents[2] / ".test-clients" / "node_modules"
RUN_SECONDS_MAX = 90


class Kind:
    """One implementation: how its programs are started, and what they need."""

    def __init__(self, name: str, program: list[str], missing: str = "") -> None:
        self.name = name
        self.program = program
        self.missing = missing

    def needed(self) -> None:
        if self.missing:
            if os.environ.get("CI"):
                pytest.fail(f"not installed: {self.missing}")
            pytest.skip(f"not installed: {self.missing}")

    def command(self, mode: str, server: str, *words: str) -> list[str]:
        return [*self.program, mode, server, *words]


class CommandLine(Kind):
    """The tool ``gearman``, which is client and worker by its options."""

    def command(self, mode: str, server: str, *words: str) -> list[str]:
        host, port = server.split(":")
        start = ["gearman", "-h", host, "-p", port]
        if mode == "work":
            # Its exit code is the outcome: a job that contains "die" fails.
            script = 'text=$(cat); case "$text" in *die*) exit 1;; esac; printf %s "${text^^}"'
            functions = ["-f", f"{words[0]}.upper", "-f", f"{words[0]}.die"]
            return [*start, "-w", *functions, "--", "bash", "-c", script]
        background = ["-b"] if mode == "send" else []
        return [*start, *background, "-t", "600000", "-f", words[0], "--", words[1]]


def _program(*names: str) -> str:
    return ", ".join(name for name in names if shutil.which(name) is None)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _find_kinds() -> list[Kind]:
    perl = _program("perl") or (
        "" if _succeeds("perl", "-MGearman::Client", "-e", "1") else "Gearman::Client for Perl"
    )
    php = _program("php") or (
        "" if _succeeds("php", "-r", "new GearmanClient();") else "the gearman extension of PHP"
    )
    node = _program("node") or ("" if (NODE_MODULES / "gearmanode").exists() else "gearmanode")
    kinds = [
        CommandLine("gearman", ["gearman"], _program("gearman")),
        Kind("perl", ["perl", str(CLIENTS / "peer.pl")], perl),
        Kind("php", ["php", str(CLIENTS / "peer.php")], php),
        Kind("gearmanode", ["node", str(CLIENTS / "peer.js")], node),
    ]
    for module in ("python3_gearman", "aiogear"):
        missing = "" if importlib.util.find_spec(module) else module
        program = [sys.executable, str(CLIENTS / f"peer_{module}.py")]
        kinds.append(Kind(module, program, missing))
    return kinds


KINDS = {kind.name: kind for kind in _find_kinds()}
ENVIRONMENT = {**os.environ, "NODE_PATH": str(NODE_MODULES), "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    with serving(folder, "--store", "memory", "--gearman", "127.0.0.1:0") as it:
        yield it


@pytest.fixture(scope="module")
def server(served) -> str:
    return served.addresses["gearman"]


@pytest.fixture(scope="module")
def watcher(served):
    with GearmanTalk(served) as talk:
        yield talk


class Workers:
    """Worker programs by kind, each started when it is first needed."""

    def __init__(self, server: str, watcher: GearmanTalk, folder: Path) -> None:
        self._server = server
        self._watcher = watcher
        self._folder = folder
        self.processes: dict[str, subprocess.Popen] = {}

    def has(self, function: str) -> bool:
        rows = (line.split(b"\t") for line in self._watcher.text(b"status"))
        return any(row[0] == function.encode() and row[3] != b"0" for row in rows)

    def need(self, kind: Kind) -> subprocess.Popen:
        kind.needed()
        if kind.name not in self.processes:
            with (self._folder / kind.name).open("wb") as log:
                self.processes[kind.name] = subprocess.Popen(
                    kind.command("work", self._server, kind.name),
                    env=ENVIRONMENT,
                    stdout=log,
                    stderr=log,
                )
            wait_until(lambda: self.has(f"{kind.name}.upper"), self.log(kind))
        return self.processes[kind.name]

    def log(self, kind: Kind) -> str:
        return f"worker {kind.name}: {(self._folder / kind.name).read_text(errors='replace')}"

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def workers(server, watcher, tmp_path_factory):
    them = Workers(server, watcher, tmp_path_factory.mktemp("workers"))
    yield them
    them.stop()


def run(kind: Kind, mode: str, server: str, *words: str) -> tuple[int, str]:
    """A client program: its exit code and what it printed."""
    kind.needed()
    done = subprocess.run(
        kind.command(mode, server, *words),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS_MAX,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("worker", KINDS.values(), ids=lambda kind: f"to_{kind.name}")
@pytest.mark.parametrize("client", KINDS.values(), ids=lambda kind: f"from_{kind.name}")
def test_every_client_calls_every_worker(server, workers, client, worker):
    """G12, G28 and G32"""
    client.needed()
    workers.need(worker)

    words = [f"{worker.name}.upper", "many hands"]
    if (client.name, worker.name) == ("aiogear", "python3_gearman"):
        words.append("text")  # the one sends raw bytes as unique, of which the other one dies
    answer = run(client, "run", server, *words)

    assert answer == (0, "MANY HANDS"), workers.log(worker)


@pytest.mark.parametrize("client", KINDS.values(), ids=lambda kind: kind.name)
def test_a_background_job_of_every_client_leaves_its_result(served, server, client):
    """G13 and G45"""
    function = f"background.{client.name}"

    code, printed = run(client, "send", server, function, "payload")

    assert code == 0
    with GearmanTalk(served).can_do(function.encode()) as worker:
        handle, _, _, data = worker.grab()
        assert data == b"payload"
        worker.put(wire.WORK_COMPLETE, handle, b"result")
        assert worker.tell(wire.GET_STATUS, handle)[1][1] == b"0"
    if printed:
        assert printed.strip().endswith(handle.decode())
    with DraftTalk(served) as app:
        assert app.completion(handle) == JobCompleteRes(1, 0, b"result")


@pytest.mark.parametrize("worker", KINDS.values(), ids=lambda kind: kind.name)
def test_a_worker_whose_job_dies_goes_on_living(served, server, workers, worker):
    """G33, G34 and G35"""
    process = workers.need(worker)

    with GearmanTalk(served) as client:
        handle = client.submit(f"{worker.name}.die".encode(), b"", b"die", wire.SUBMIT_JOB)
        ended = client.next()
    answer = run(worker, "run", server, f"{worker.name}.upper", "again")

    assert ended == (wire.WORK_FAIL, [handle]), workers.log(worker)
    assert answer == (0, "AGAIN")
    assert process.poll() is None


@pytest.mark.parametrize("client", KINDS.values(), ids=lambda kind: kind.name)
def test_every_client_notices_a_failure_at_once(served, server, client):
    """G33 and G34"""
    client.needed()
    function = f"failing.{client.name}"
    with GearmanTalk(served).can_do(function.encode()) as worker:
        command = client.command("run", server, function, "x")
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
            worker.put(wire.PRE_SLEEP)
            assert worker.next() == (wire.NOOP, [])
            handle = worker.grab()[0]
            worker.put(wire.WORK_EXCEPTION, handle, b"it broke")
            assert process.wait(RUN_SECONDS_MAX) != 0  # none of them sits out its time


@pytest.mark.parametrize("worker", KINDS.values(), ids=lambda kind: kind.name)
def test_a_killed_worker_gives_its_job_to_the_next(served, workers, worker):
    """G37"""
    workers.need(worker)
    function = f"{worker.name}.upper"

    with GearmanTalk(served).can_do(function.encode()) as doomed, GearmanTalk(served) as client:
        # Until the doomed one has got it, and not the real worker.
        while True:
            handle = client.submit(function.encode(), b"", b"rescued", wire.SUBMIT_JOB)
            grabbed = doomed.grab()
            if grabbed:
                break
            client.next()
        doomed.close()

        assert client.next() == (wire.WORK_COMPLETE, [handle, b"RESCUED"])


def test_php_sees_every_packet_of_a_job(server, workers):
    """G12, G30 and G31"""
    php = KINDS["php"]
    workers.need(php)

    code, printed = run(php, "watch", server, "php.steps", "x")

    assert code == 0
    assert printed.splitlines() == [
        "status 1/3",
        "data piece",
        "warning careful",
        "complete watched",
    ]


def test_php_hears_of_an_exception(server, workers):
    """G34"""
    php = KINDS["php"]
    workers.need(php)

    _, printed = run(php, "watch", server, "php.die", "x")

    assert printed.splitlines() in (
        ["exception it broke"],
        ["exception it broke", "fail"],
        ["fail"],
    )


def test_php_asks_by_handle_and_by_unique(served, server):
    """G40 and G41"""
    php = KINDS["php"]
    php.needed()
    with GearmanTalk(served) as client, GearmanTalk(served).can_do(b"asked") as worker:
        handle = client.submit(b"asked", b"by-unique", b"")
        worker.grab()
        worker.put(wire.WORK_STATUS, handle, b"2", b"5")
        assert worker.tell(wire.GET_STATUS, handle)[1][3] == b"2"

        _, printed = run(php, "ask", server, handle.decode(), "by-unique")

    by_handle, by_unique = json.loads(printed)
    assert by_handle == [True, True, 2, 5]
    assert by_unique[:4] == [True, True, 2, 5]


def gearadmin(server: str, *words: str) -> tuple[int, str]:
    if shutil.which("gearadmin") is None:
        KINDS["gearman"].needed()
    host, port = server.split(":")
    done = subprocess.run(
        ["gearadmin", "-h", host, "-p", port, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS_MAX,
    )
    return done.returncode, done.stdout


def test_gearadmin_reads_all_there_is(served, server):
    """G48, G49, G50, G51, G53 and G54"""
    with GearmanTalk(served) as client, GearmanTalk(served).can_do(b"admin") as worker:
        worker.put(wire.SET_CLIENT_ID, b"the-admin")
        handles = [client.submit(b"admin", unique, b"") for unique in (b"first", b"second")]
        worker.grab()

        answers = {
            word: gearadmin(server, f"--{word}")
            for word in (
                "status",
                "priority-status",
                "workers",
                "server-version",
                "server-verbose",
                "getpid",
                "show-jobs",
                "show-unique-jobs",
            )
        }

    assert {code for code, _ in answers.values()} == {0}
    told = {word: printed.splitlines() for word, (_, printed) in answers.items()}
    assert "admin\t2\t1\t1" in told["status"]
    assert "admin\t0\t1\t0\t1" in told["priority-status"]
    assert any(line.endswith("127.0.0.1 the-admin : admin") for line in told["workers"])
    assert str(served.process.pid) in told["getpid"][0]
    assert f"{handles[1].decode()}\t0\t0\t1" in told["show-jobs"]
    assert {"first", "second"} <= set(told["show-unique-jobs"])
    for word in ("server-version", "server-verbose"):
        assert told[word][0].startswith("OK ") or told[word][0]


def test_gearadmin_creates_drops_and_cancels(served, server, watcher):
    """G55, G56 and G57"""
    assert gearadmin(server, "--create-function=made")[0] == 0
    assert b"made\t0\t0\t0" in watcher.text(b"status")
    assert gearadmin(server, "--drop-function=made")[0] == 0
    assert b"made\t0\t0\t0" not in watcher.text(b"status")

    with GearmanTalk(served) as client:
        handle = client.submit(b"unwanted", b"", b"", wire.SUBMIT_JOB)
        assert gearadmin(server, f"--cancel-job={handle.decode()}")[0] == 0
        assert client.next() == (wire.WORK_FAIL, [handle])


def test_another_admin_client_reads_status_and_workers(served, server):
    """G48, G50 and G51"""
    kind = KINDS["python3_gearman"]
    with GearmanTalk(served).can_do(b"seen") as worker:
        worker.submit(b"seen")

        code, printed = run(kind, "admin", server)

    assert code == 0
    told = json.loads(printed)
    assert {"task": "seen", "queued": 1, "running": 0, "workers": 1} in told["status"]
    assert any(row["tasks"] == ["seen"] for row in told["workers"])


def test_a_client_that_is_killed_abandons_its_job(served, server):
    """G20"""
    kind = KINDS["gearman"]
    kind.needed()
    with GearmanTalk(served).can_do(b"abandoned") as worker:
        with contextlib.ExitStack() as stack:
            command = kind.command("run", server, "abandoned", "x")
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            worker.put(wire.PRE_SLEEP)
            assert worker.next() == (wire.NOOP, [])
            process.kill()

        wait_until(
            lambda: b"abandoned\t0\t0\t1" in worker.text(b"status"), "the job to be abandoned"
        )
        assert worker.grab() == []
