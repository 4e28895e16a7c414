"""`manyhands dwork`: every command, against the real program."""

import json
import os
import pty
import subprocess

import pytest

from tests.e2e.dwork_talk import addresses
from tests.e2e.serving import (
    SECONDS_MAX,
    command,
    environment,
    own_address,
    run,
    serving,
    start,
    wait_until,
)

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, "--dwork", "127.0.0.1:0", "--store", "memory") as server:
        yield server


def dwork(served, word: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run("dwork", word, "--server", addresses(served)["dwork"], *arguments, **options)


def status(served, *keys: str) -> tuple[int, ...]:
    found = json.loads(dwork(served, "status", "--json").stdout)
    return tuple(found[key] for key in keys)


def test_d36_a_small_graph_by_hand(served):
    assert dwork(served, "create", "b", "--after", "a").stdout == "created b\n"
    created = dwork(served, "create", "c", "--after", "b", "--priority", "2", "--json")
    assert json.loads(created.stdout) == {"created": "c", "after": ["b"]}

    said = "0 of 2 done, 0 failed, 0 running, 1 ready, 1 waiting\n"
    assert dwork(served, "status").stdout == said
    assert status(served, "active", "ready") == (2, 1)
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
    assert (finished.returncode, finished.stderr) == (1, "everything is finished\n")


def test_d36_what_a_worker_held_is_given_back(served):
    dwork(served, "create", "a")
    dwork(served, "steal", "--location", "gone")

    assert dwork(served, "leave", "gone").returncode == 0
    unknown = dwork(served, "leave", "gone")

    assert (unknown.returncode, unknown.stderr) == (
        1,
        "manyhands: gone is unknown.\n",
    )
    assert dwork(served, "steal").stdout == "a\n"


def test_d36_lines_of_a_graph_may_stand_in_any_order(served, tmp_path):
    # More tasks than a message has: what is not known yet would count as finished.
    others = "".join(f"t{number}\n" for number in range(1_500))
    file = tmp_path / "graph.txt"
    file.write_text(f"\ufefflast,first\n{others}first\n")

    loaded = dwork(served, "load", str(file))

    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert status(served, "active", "ready") == (1_502, 1_501)
    assert json.loads(dwork(served, "lookup", "last", "--json").stdout)["after"] == ["first"]


def test_d36_a_graph_that_cannot_be_is_refused_as_a_whole(served, tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("a\nb,a,d\nc,b\nd,c\n")

    refused = dwork(served, "load", str(file))

    assert refused.returncode == 1
    assert "would depend on itself" in refused.stderr
    assert status(served, "total") == (0,)


def test_d36_predecessors_that_a_file_has_no_line_for_are_told_of(served):
    loaded = dwork(served, "load", "-", input="b,a\nc,a,x\n")

    assert loaded.stdout.startswith("loaded 2 tasks")
    assert "names 2 predecessors that have no line, such as 'a'" in loaded.stderr


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
    assert status(served, "active") == (100_000,)


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
    assert status(served, "failed", "held", "active", "ready") == (1, 1, 1, 0)


def test_d36_a_command_gets_the_payload_and_leaves_a_result(served):
    dwork(served, "create", "a", "--payload", "hello")

    worked = dwork(served, "work", "--command", "tr a-z A-Z")

    # The graph is over; what is known of it is on record.
    found = json.loads(dwork(served, "lookup", "a", "--json").stdout)
    assert worked.returncode == 0
    assert (found["state"], found["result"]) == ("completed", "HELLO")


def test_d36_a_worker_that_is_started_again_under_its_name_has_back_what_it_held(served):
    dwork(served, "create", "true")
    assert dwork(served, "steal", "--location", "w1/0").stdout == "true\n"

    worked = dwork(served, "work", "--location", "w1")

    assert (worked.returncode, worked.stdout.split()[:2]) == (0, ["completed", "true"])


def test_d36_a_worker_that_holds_what_it_does_not_know_of_tells_how_to_give_it_back(
    served, tmp_path
):
    enough = tmp_path / "enough"
    dwork(served, "create", f"until [ -e {enough} ]; do sleep 0.05; done")
    arguments = ("dwork", "work", "--server", addresses(served)["dwork"], "--location", "w")
    working = subprocess.Popen(
        command(*arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: status(served, "running") == (1,))
        dwork(served, "create", "true")
        dwork(served, "steal", "--location", "w/0")
        enough.touch()
        assert working.stderr is not None
        said = working.stderr.readline()
        assert said == (
            "manyhands: w/0 is idle, but another worker of this name holds tasks, or "
            "did. `manyhands dwork leave w/0` gives them back.\n"
        )
        assert dwork(served, "leave", "w/0").returncode == 0
        out, _ = working.communicate(timeout=SECONDS_MAX)
    finally:
        working.kill()
        working.wait()

    assert working.returncode == 0
    assert out.splitlines()[-1].split()[:2] == ["completed", "true"]


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


def load(served, text: str, *flags: str) -> dict[str, int]:
    loaded = dwork(served, "load", "-", "--json", *flags, input=text)
    assert loaded.returncode == 0, loaded.stderr
    found = json.loads(loaded.stdout)
    return {key: found[key] for key in ("added", "there", "done", "again")}


def test_d40_what_is_done_is_left_alone_when_a_graph_is_loaded_again(served, tmp_path):
    record = tmp_path / "record"
    good, bad, later = f"echo good >> {record}", f"echo bad >> {record}; false", "true"
    graph = f"{good}\n{bad}\n{later},{bad}\n"
    first = load(served, graph)
    dwork(served, "work", "-j", "2")

    second = load(served, graph)
    dwork(served, "work", "-j", "2")

    assert first == {"added": 3, "there": 0, "done": 0, "again": 0}
    assert second == {"added": 1, "there": 1, "done": 1, "again": 1}
    assert sorted(record.read_text().split()) == ["bad", "bad", "good"]


def test_d40_what_is_done_is_left_alone_after_the_end_of_its_graph_and_over_a_restart(tmp_path):
    address = own_address()
    with serving(tmp_path, "--dwork", address) as served:
        load(served, "true\ntrue 2,true\n")
        assert dwork(served, "work").returncode == 0
    with serving(tmp_path, "--dwork", address) as served:
        again = load(served, "true\ntrue 2,true\ntrue 3,true 2\n")
        anew = load(served, "true\ntrue 2,true\n", "--again")

    assert again == {"added": 1, "there": 0, "done": 2, "again": 0}
    assert anew["done"] == 0


def test_d36_lines_of_json_say_more_of_a_task(served, tmp_path):
    record = tmp_path / "record"
    lines = [
        {"name": "a,1", "command": f"echo a >> {record}; exit 1", "attempts": 2},
        {"name": "b", "after": ["a,1"], "cancel_on_failure": True},
        {"name": "c", "payload": f"echo c >> {record}", "priority": 5},
    ]
    load(served, "\n".join(map(json.dumps, lines)))

    worked = dwork(served, "work", "-c", "sh -c {payload}", "--json")

    rows = [json.loads(line) for line in worked.stdout.splitlines()]
    assert [(row["name"], row["outcome"], row["exit_code"]) for row in rows] == [
        ("c", "completed", 0),
        ("a,1", "retried", 1),
        ("a,1", "failed", 1),
    ]
    assert record.read_text().split() == ["c", "a", "a"]
    assert json.loads(dwork(served, "lookup", "b", "--json").stdout)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"name": "a", "colour": 1}', "line 1: Object contains unknown field `colour`"),
        ('{"name": ""}', "line 1: Expected `str` of length >= 1"),
        ('{"name": "a", "payload": "x", "command": "y"}', "a command or a payload, not both"),
        ('{"name": "a"}\n{"name": "a"}', "line 2: task 'a' already has a line"),
    ],
)
def test_d36_a_wrong_line_of_json_is_refused_with_its_number(served, line, said):
    refused = dwork(served, "load", "-", input=line)

    assert refused.returncode == 1
    assert said in refused.stderr


def test_d36_a_failed_task_is_tried_again_as_often_as_the_worker_is_told(served, tmp_path):
    record = tmp_path / "record"
    dwork(served, "create", f"echo $MANYHANDS_ATTEMPT >> {record}; [ $MANYHANDS_ATTEMPT = 3 ]")

    worked = dwork(served, "work", "--retries", "2")

    assert worked.returncode == 0
    assert record.read_text().split() == ["1", "2", "3"]
    assert "2 retried" in worked.stderr


def test_d36_a_command_that_takes_too_long_has_failed(served):
    dwork(served, "create", "sleep 600")

    worked = dwork(served, "work", "--task-timeout", "0.1")

    assert (worked.returncode, worked.stdout) == (1, "failed\tsleep 600\ttook longer than 0.1 s\n")


def test_d36_what_commands_print_is_in_files_and_a_list_has_them_all(served, tmp_path):
    dwork(served, "create", "echo out; echo err >&2; exit 3")

    dwork(served, "work", "--logs", str(tmp_path / "logs"), "--location", "w1")

    (out,) = (tmp_path / "logs").glob("echo_out_echo_err_2_exit_3.*.1.out")
    assert (out.read_text(), out.with_suffix(".err").read_text()) == ("out\n", "err\n")
    head, row = (tmp_path / "logs" / "jobs.w1.tsv").read_text().splitlines()
    columns = dict(zip(head.split("\t"), row.split("\t"), strict=True))
    assert (columns["exit_code"], columns["outcome"]) == ("3", "failed")
    assert columns["task"] == "echo out; echo err >&2; exit 3"


def test_d36_a_command_knows_its_task_attempt_location_and_slot(served):
    dwork(served, "create", "a")
    names = ("TASK", "ATTEMPT", "LOCATION", "SLOT")
    printed = " ".join(f"$MANYHANDS_{name}" for name in names)

    dwork(served, "work", "-c", f"sh -c 'echo {printed}'", "--location", "w1")

    assert json.loads(dwork(served, "lookup", "a", "--json").stdout)["result"] == "a 1 w1/0 0\n"


def test_d36_waiting_ends_with_the_graph_and_tells_whether_all_went_well(served):
    load(served, "true\nfalse\nlater,false\n")
    waiting = subprocess.Popen(
        command("dwork", "wait", "--server", addresses(served)["dwork"], "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    dwork(served, "work")
    out, _ = waiting.communicate(timeout=SECONDS_MAX)

    counts = json.loads(out)
    assert waiting.returncode == 1
    assert (counts["done"], counts["failed"], counts["held"], counts["total"]) == (1, 1, 1, 3)


def test_d36_failures_are_listed_and_put_to_work_again(served, tmp_path):
    ok = tmp_path / "ok"
    first = f"echo first >&2; echo last >&2; test -e {ok}"
    load(served, f"{first}\nlater,{first}\ntrue\n")
    dwork(served, "work", "-c", "sh -c {name}")
    http = ("--http", served.url)

    shown = run("dwork", "failed", *http)
    listed = run("dwork", "list", "--state", "blocked", "--state", "completed", *http, "--json")
    refused = run("dwork", "retry", "true", *http)
    ok.touch()
    retried = run("dwork", "retry", "--all", *http)
    worked = dwork(served, "work", "-c", "sh -c 'test {name} = later || {name}'")

    assert (shown.returncode, shown.stdout) == (1, f"failed\t0\t{first}\t\tlast\n")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["state"], row["name"]) for row in rows] == [
        ("blocked", "later"),
        ("completed", "true"),
    ]
    assert refused.stderr == "manyhands: not failed: true (completed). Nothing was done.\n"
    assert (retried.returncode, retried.stdout) == (0, "retried 1 tasks\n")
    assert worked.returncode == 0
    assert run("dwork", "failed", *http).stdout == ""


def test_d36_a_failed_task_is_called_failed(served):
    load(served, "false\ntrue\n")
    dwork(served, "work")

    assert json.loads(dwork(served, "lookup", "false", "--json").stdout)["state"] == "failed"


def test_d32_a_worker_keeps_a_task_that_takes_longer_than_its_lease(tmp_path):
    flags = ("--dwork", "127.0.0.1:0", "--store", "memory", "--dwork-lease-seconds", "1")
    with serving(tmp_path, *flags) as served:
        dwork(served, "create", "sleep 4")

        worked = dwork(served, "work", "--json")

    (line,) = worked.stdout.splitlines()
    assert (json.loads(line)["outcome"], json.loads(line)["attempt"]) == ("completed", 1)


def test_d36_what_was_finished_while_the_server_was_away_is_reported_when_it_is_back(tmp_path):
    address = own_address()
    begun, enough, ended = (tmp_path / word for word in ("begun", "enough", "ended"))
    served = start(tmp_path, "--dwork", address)
    name = f"touch {begun}; until [ -e {enough} ]; do sleep 0.05; done; touch {ended}"
    dwork(served, "create", name)
    words = ("dwork", "work", "--server", address, "--timeout", "0.2", "--json")
    working = subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(begun.exists)
        served.process.kill()
        served.process.wait()
        enough.touch()
        wait_until(ended.exists)
        assert working.stderr is not None
        assert "does not answer. Commands continue" in working.stderr.readline()
        with serving(tmp_path, "--dwork", address) as again:
            out, said = working.communicate(timeout=SECONDS_MAX)
            assert status(again, "done", "total") == (1, 1)
    finally:
        working.kill()
        working.wait()

    assert working.returncode == 0, said
    assert json.loads(out)["outcome"] == "completed"
    assert "is back" in said


def test_d36_two_workers_of_one_host_have_names_of_their_own(served):
    for number in range(4):
        dwork(served, "create", f"echo $MANYHANDS_LOCATION; : {number}")
    words = command("dwork", "work", "--server", addresses(served)["dwork"], "-j", "2")
    crews = [
        subprocess.Popen(
            words,
            env={**environment(), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": rank},
            stdout=subprocess.DEVNULL,
        )
        for rank in ("0", "1")
    ]
    plain = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL)
    for crew in (*crews, plain):
        assert crew.wait(SECONDS_MAX) == 0

    found = [dwork(served, "lookup", f"echo $MANYHANDS_LOCATION; : {n}").stdout for n in range(4)]
    assert all("result\t" in text for text in found)
    assert all(".7.0." in text or f".{plain.pid}/" in text for text in found)


@pytest.mark.parametrize(
    "word",
    [
        *("create", "load", "status", "wait", "lookup", "list", "failed", "retry"),
        *("steal", "complete", "leave", "work"),
    ],
)
def test_every_command_has_help_with_an_example(word):
    shown = run("dwork", word, "--help").stdout

    assert f"manyhands dwork {word}" in shown
    assert "Example" in shown
