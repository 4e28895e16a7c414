"""`manyhands dwork`: every command, against the real program."""

import contextlib
import json
import os
import pty
import socket
import subprocess

import pytest

from tests.e2e.dwork_talk import addresses
from tests.e2e.serving import SECONDS_MAX, Api, command, environment, run, serving


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, "--dwork", "127.0.0.1:0", "--store", "memory") as server:
        yield server


def dwork(served, word: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run("dwork", word, "--server", addresses(served)["dwork"], *arguments, **options)


def test_d36_a_small_graph_by_hand(served):
    assert dwork(served, "create", "b", "--after", "a").stdout == "created b\n"
    created = dwork(served, "create", "c", "--after", "b", "--priority", "2", "--json")
    assert json.loads(created.stdout) == {"created": "c", "after": ["b"]}

    assert dwork(served, "status").stdout == "dhub: 2 active tasks, 1 ready.\n"
    assert json.loads(dwork(served, "status", "--json").stdout) == {"active": 2, "ready": 1}
    assert dwork(served, "steal", "--location", "node").stdout == "b\n"
    shown = json.loads(dwork(served, "lookup", "b", "--json").stdout)
    assert (shown["state"], shown["location"], shown["attempt"]) == ("stolen", "node", 1)
    assert "waiting" in dwork(served, "lookup", "c").stdout
    missing = dwork(served, "complete", "b", "nobody")
    assert (missing.returncode, missing.stderr) == (1, "not found: nobody\n")
    stolen = dwork(served, "steal", "-n", "5", "--json")
    assert json.loads(stolen.stdout) == {"tasks": ["c"], "finished": False}
    failed = dwork(served, "complete", "c", "--failure", "no luck", "--json")
    assert json.loads(failed.stdout) == {"ended": ["c"], "not_found": []}
    finished = dwork(served, "steal")
    assert (finished.returncode, finished.stderr) == (1, "all is finished\n")


def test_d36_what_a_worker_held_is_given_back(served):
    dwork(served, "create", "a")
    dwork(served, "steal", "--location", "gone")

    assert dwork(served, "leave", "gone").returncode == 0
    unknown = dwork(served, "leave", "gone")

    assert (unknown.returncode, unknown.stderr) == (
        1,
        "manyhands: nothing is known of gone.\n",
    )
    assert dwork(served, "steal").stdout == "a\n"


def test_d36_lines_of_a_graph_may_stand_in_any_order(served, tmp_path):
    # More tasks than a message has: what is not known yet would count as finished.
    others = "".join(f"t{number}\n" for number in range(1_500))
    file = tmp_path / "graph.txt"
    file.write_text(f"\ufefflast,first\n{others}first\n")

    loaded = dwork(served, "load", str(file))

    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert dwork(served, "status").stdout == "dhub: 1502 active tasks, 1501 ready.\n"
    assert json.loads(dwork(served, "lookup", "last", "--json").stdout)["after"] == ["first"]


def test_d36_a_graph_that_cannot_be_is_refused_as_a_whole(served, tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("a\nb,a,d\nc,b\nd,c\n")

    refused = dwork(served, "load", str(file))

    assert refused.returncode == 1
    assert "would depend on itself" in refused.stderr
    assert dwork(served, "status").stdout == "dhub: 0 active tasks, 0 ready.\n"


def test_d36_predecessors_that_a_file_has_no_line_for_are_told_of(served):
    loaded = dwork(served, "load", "-", input="b,a\nc,a,x\n")

    assert loaded.stdout.startswith("loaded 2 tasks")
    assert "names 2 predecessors that it has no line for, such as 'a'" in loaded.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("work", "--command", "sh -c 'x"), "No closing quotation"),
        (("steal", "-n", "0"), "-n"),
        (("status", "--timeout", "-1"), "--timeout"),
        (("status", "--timeout", "inf"), "--timeout"),
        (("status", "--server", "localhost"), "HOST:PORT"),
    ],
)
def test_d36_wrong_words_are_answered_with_a_sentence(words, said):
    wrong = run("dwork", *words)

    assert wrong.returncode != 0
    assert said in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_d36_a_file_of_100000_tasks_is_loaded(served, tmp_path):
    graph = tmp_path / "graph.txt"
    lines = [f"t{n},t{n - 1},t{n // 2}" if n % 10 else f"t{n}" for n in range(1, 100_001)]
    graph.write_text("\n".join(lines) + "\n\n")

    loaded = json.loads(dwork(served, "load", str(graph), "--json").stdout)

    assert loaded["tasks"] == 100_000
    status = json.loads(dwork(served, "status", "--json").stdout)
    assert status["active"] == 100_000


def test_d36_a_wrong_file_is_refused_with_its_line(served, tmp_path):
    graph = tmp_path / "graph.txt"
    graph.write_text("a,b\nc,,d\n")

    wrong = dwork(served, "load", str(graph))
    missing = dwork(served, "load", str(tmp_path / "nothing"))
    graph.write_text("a,b\nb,a\n")
    cycle = dwork(served, "load", str(graph))

    assert (wrong.returncode, wrong.stderr) == (
        1,
        f"manyhands: {graph} line 2: a name is empty.\n",
    )
    assert missing.stderr == f"manyhands: {tmp_path / 'nothing'}: No such file or directory.\n"
    assert cycle.returncode == 1
    assert "would depend on itself" in cycle.stderr


def test_d36_a_crew_runs_a_graph_of_commands_in_order(served, tmp_path):
    record = tmp_path / "record"
    lines = [f"echo one >> {record}", f"echo two >> {record}", f"echo three >> {record}"]
    graph = tmp_path / "graph.txt"
    graph.write_text(f"{lines[2]},{lines[1]}\n{lines[1]},{lines[0]}\n{lines[0]}\n")
    dwork(served, "load", str(graph))
    for number in range(3):
        dwork(served, "create", f"true {number}")

    worked = dwork(served, "work", "--command", "sh -c {name}", "-j", "4")

    assert worked.returncode == 0, worked.stderr
    assert record.read_text() == "one\ntwo\nthree\n"
    assert len(worked.stdout.splitlines()) == 6
    assert "6 completed, 0 failed" in worked.stderr


def test_d36_a_command_that_fails_is_told_and_holds_up_what_comes_after(served):
    dwork(served, "create", "echo to stderr >&2; exit 3")
    dwork(served, "create", "later", "--after", "echo to stderr >&2; exit 3")

    worked = dwork(served, "work", "-j", "2", "--json")

    assert worked.returncode == 1
    (line,) = worked.stdout.splitlines()
    assert json.loads(line)["failure"] == "exit code 3: to stderr"
    assert json.loads(dwork(served, "status", "--json").stdout) == {"active": 1, "ready": 0}


def test_d36_a_command_gets_the_payload_and_leaves_a_result(served):
    dwork(served, "create", "a", "--payload", "hello")

    worked = dwork(served, "work", "--command", "tr a-z A-Z")

    # The graph is drained, so what is known of it is on the server's other pages.
    with contextlib.closing(Api(served)) as api:
        (job,) = api.get("jobs?queue=dwork")
        result = api.get(f"jobs/{job['id']}")["result"]
    assert (worked.returncode, result) == (0, "HELLO")
    assert dwork(served, "lookup", "a").returncode == 1


def test_d36_a_worker_that_is_started_again_under_its_name_has_back_what_it_held(served):
    dwork(served, "create", "true")
    assert dwork(served, "steal", "--location", "w1/0").stdout == "true\n"

    worked = dwork(served, "work", "--location", "w1")

    assert (worked.returncode, worked.stdout.split()[:2]) == (0, ["completed", "true"])


def test_d36_a_worker_that_holds_what_it_does_not_know_of_tells_how_to_give_it_back(served):
    dwork(served, "create", "true")
    host = socket.gethostname()
    dwork(served, "steal", "--location", f"{host}/0")
    working = subprocess.Popen(
        command("dwork", "work", "--server", addresses(served)["dwork"]),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert working.stderr is not None
        said = working.stderr.readline()
        assert said == (
            f"manyhands: {host}/0 works on nothing, but another worker of this name has tasks, or "
            f"had. `manyhands dwork leave {host}/0` gives them back.\n"
        )
        assert dwork(served, "leave", f"{host}/0").returncode == 0
        out, _ = working.communicate(timeout=SECONDS_MAX)
    finally:
        working.kill()
        working.wait()

    assert (working.returncode, out.split()[:2]) == (0, ["completed", "true"])


def test_d36_on_a_terminal_there_is_a_live_line(served, tmp_path):
    enough = tmp_path / "enough"
    dwork(served, "create", f"until [ -e {enough} ]; do sleep 0.05; done")
    ours, theirs = pty.openpty()

    arguments = ("dwork", "work", "--server", addresses(served)["dwork"])
    worker = subprocess.Popen(
        command(*arguments),
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while chunk := read(ours):
        seen += chunk
        if b"1 running" in seen:
            enough.touch()
    os.close(ours)

    assert worker.wait(SECONDS_MAX) == 0
    assert b"0 completed, 0 failed, 1 running" in seen
    assert b"1 completed, 0 failed, 0 running" in seen


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""  # how a terminal ends


def test_d36_a_server_that_does_not_answer_is_told_in_a_sentence():
    silent = run("dwork", "status", "--server", "127.0.0.1:1", "--timeout", "0.2")

    assert (silent.returncode, silent.stderr) == (
        1,
        "manyhands: tcp://127.0.0.1:1 does not answer.\n",
    )


@pytest.mark.parametrize(
    "word", ["create", "load", "status", "lookup", "steal", "complete", "leave", "work"]
)
def test_every_command_has_help_with_an_example(word):
    shown = run("dwork", word, "--help").stdout

    assert f"manyhands dwork {word}" in shown
    assert "Example" in shown
