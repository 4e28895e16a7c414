"""`manyhands work`: commands run for jobs of a real server, and what ends them."""

import json
import signal
import subprocess

import pytest

from tests.e2e.serving import (
    SECONDS_MAX,
    Api,
    command,
    environment,
    is_gone,
    own_address,
    run,
    start,
    wait_until,
)


def work(served, queue: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    """A worker that runs a shell script for each job."""
    words = ("work", queue, "--url", served.url, "--command", f"sh -c '{script}'", *arguments)
    return subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(worker) -> tuple[int, str, str]:
    out, err = worker.communicate(timeout=SECONDS_MAX)
    return worker.returncode, out, err


@pytest.fixture
def pids(tmp_path):
    """A script that starts a process of its own and waits, and the id of that process."""
    file = tmp_path / "pid"
    # The payload arrives when the guardian of the worker knows the command.
    script = f"cat; sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait"
    return script, lambda: wait_until(lambda: file.exists() and int(file.read_text()))


def submit(api, queue: str, payload="x", **more) -> str:
    return api.results("submit", queue=queue, payload=payload, encoding="text", **more)["id"]


def test_the_payload_goes_in_and_what_comes_out_is_the_result(served, api, queue):
    text, as_json = submit(api, queue, "hello\n"), submit(api, queue, '{"a": 1}')

    worker = work(served, queue, "cat; echo -n $MANYHANDS_QUEUE >&2", "--until-empty")

    assert ended(worker)[0] == 0
    job = api.get(f"jobs/{text}")
    assert (job["state"], job["result"], job["result_encoding"]) == (
        "completed",
        "hello\n",
        "text",
    )
    assert api.get(f"jobs/{as_json}")["result"] == {"a": 1}


def test_a_command_knows_its_job_its_queue_and_its_attempt(served, api, queue):
    job_id = submit(api, queue)

    worker = work(
        *(served, queue, "echo $MANYHANDS_JOB $MANYHANDS_QUEUE $MANYHANDS_ATTEMPT {job}"),
        "--until-empty",
    )

    assert ended(worker)[0] == 0
    assert api.get(f"jobs/{job_id}")["result"] == f"{job_id} {queue} 1 {job_id}\n"


def test_a_command_that_fails_fails_its_job_with_the_end_of_its_standard_error(served, api, queue):
    job_id = submit(api, queue, attempts_max=1)

    code, out, err = ended(work(served, queue, "echo first >&2; echo last >&2; exit 7", "-n", "1"))

    failure = api.get(f"jobs/{job_id}")["failure"]
    assert (code, out, err) == (1, f"failed\t{job_id}\t{queue}\tlast\n", "0 completed, 1 failed\n")
    assert failure == {"code": "exit_7", "message": "first\nlast"}


def test_a_command_that_takes_too_long_is_ended_and_fails(served, api, queue):
    job_id = submit(api, queue, attempts_max=1)

    code, _, _ = ended(work(served, queue, "sleep 1000", "-n", "1", "--task-timeout", "1s"))

    assert code == 1
    assert api.get(f"jobs/{job_id}")["failure"]["code"] == "timeout"


def test_several_commands_run_at_once(served, api, queue, tmp_path):
    for _ in range(3):
        submit(api, queue)
    folder = tmp_path / "running"
    folder.mkdir()
    # Each waits until all three are there.
    script = (
        f"touch {folder}/$MANYHANDS_JOB; until [ $(ls {folder} | wc -l) = 3 ]; do sleep 0.1; done"
    )

    code, out, _ = ended(work(served, queue, script, "-j", "3", "-n", "3", "--json"))

    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["outcome"] for row in rows] == ["completed"] * 3


def test_a_lease_is_renewed_while_the_command_runs(served, api, queue, tmp_path):
    job_id = submit(api, queue)
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.1; done"

    worker = work(served, queue, script, "-n", "1", "--lease", "60s")
    first = wait_until(lambda: api.get(f"jobs/{job_id}")["lease"])["expires_at"]
    wait_until(lambda: api.get(f"jobs/{job_id}")["lease"]["expires_at"] > first)
    go.touch()

    assert ended(worker)[0] == 0
    job = api.get(f"jobs/{job_id}")
    assert (job["state"], job["lease_number"]) == ("completed", 1)


@pytest.mark.parametrize(
    ("operation", "outcome"), [("cancel", "cancelled"), ("expire", "lost")], ids=["cancel", "lost"]
)
def test_a_job_that_is_taken_away_ends_its_command_and_all_it_has_started(
    served, api, queue, pids, operation, outcome
):
    script, pid = pids
    job_id = submit(api, queue, attempts_max=1)
    worker = work(served, queue, script, "-n", "1")
    started = pid()

    api.results(operation, id=job_id)

    code, out, _ = ended(worker)
    wait_until(lambda: is_gone(started))
    assert (code, out.split("\t")[:2]) == (0, [outcome, job_id])


def test_sigterm_gives_unfinished_jobs_back_and_costs_no_attempt(served, api, queue, pids):
    script, pid = pids
    job_id = submit(api, queue)
    worker = work(served, queue, script, "--grace", "100ms")
    started = pid()

    worker.send_signal(signal.SIGTERM)

    code, out, err = ended(worker)
    wait_until(lambda: is_gone(started))
    job = api.get(f"jobs/{job_id}")
    assert (code, out.split("\t")[0]) == (0, "returned")
    assert "SIGTERM: running commands have 0.1 s to finish." in err
    assert (job["state"], job["attempts_used"]) == ("ready", 0)


def test_an_interrupt_lets_running_commands_finish_and_takes_no_more(served, api, queue, tmp_path):
    first, second = submit(api, queue), submit(api, queue)
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = work(served, queue, f"touch {begun}; until [ -e {go} ]; do sleep 0.1; done")
    wait_until(begun.exists)

    worker.send_signal(signal.SIGINT)
    assert "running commands may finish" in worker.stderr.readline()
    go.touch()

    assert ended(worker)[0] == 0
    assert api.get(f"jobs/{first}")["state"] == "completed"
    assert api.get(f"jobs/{second}")["state"] == "ready"


def test_a_worker_that_waits_for_work_stops_at_once_and_holds_nothing(served, api, queue):
    api.http.put(f"/api/queues/{queue}", json={})
    worker = work(served, queue, "cat", "-j", "2")
    wait_until(lambda: api.get(f"queues/{queue}")["awaited"])

    worker.send_signal(signal.SIGINT)

    assert ended(worker)[0] == 0
    job_id = submit(api, queue)
    assert api.get(f"jobs/{job_id}")["state"] == "ready"


def test_commands_of_a_killed_worker_end_with_it(served, api, queue, pids):
    script, pid = pids
    submit(api, queue)
    worker = work(served, queue, script)
    started = pid()

    worker.kill()

    ended(worker)
    wait_until(lambda: is_gone(started))


def test_a_result_is_reported_after_the_server_was_killed_and_is_back(tmp_path):
    address = own_address()
    server = start(tmp_path, "--http", address)
    api = Api(server)
    job_id = submit(api, "q")
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"touch {begun}; until [ -e {go} ]; do sleep 0.1; done; echo survived"
    worker = work(server, "q", script, "-n", "1")
    wait_until(begun.exists)

    server.process.kill()
    server.process.wait(SECONDS_MAX)
    go.touch()
    server = start(tmp_path, "--http", address)

    code, out, _ = ended(worker)
    assert (code, out.split("\t")[0]) == (0, "completed")
    result = run("job", job_id, "--result", "--url", server.url)
    assert result.stdout == "survived\n"
    api.close()
    server.stop()


def test_a_worker_that_has_had_no_job_yet_stays_when_the_server_is_killed(tmp_path):
    address = own_address()
    server = start(tmp_path, "--http", address)
    api = Api(server)
    api.http.put("/api/queues/q", json={})
    worker = work(server, "q", "cat", "-n", "1")
    wait_until(lambda: api.get("queues/q")["awaited"])

    server.process.kill()
    server.process.wait(SECONDS_MAX)
    server = start(tmp_path, "--http", address)

    submit(api, "q")
    code, out, _ = ended(worker)
    assert (code, out.split("\t")[0]) == (0, "completed")
    api.close()
    server.stop()


def test_output_of_commands_goes_into_files_on_demand(served, api, queue, tmp_path):
    job_id = submit(api, queue)

    worker = work(served, queue, "echo out; echo err >&2", "-n", "1", "--logs", f"{tmp_path}/logs")

    assert ended(worker)[0] == 0
    kept = [file for file in (tmp_path / "logs").rglob("*") if job_id in file.name]
    assert sorted(file.read_text() for file in kept) == ["err\n", "out\n"]


def test_a_server_that_is_not_there_ends_the_worker_with_a_sentence():
    ended_at_once = run("work", "q", "--command", "cat", "--url", "http://127.0.0.1:1")

    assert ended_at_once.returncode == 1
    assert ended_at_once.stderr == (
        "manyhands: http://127.0.0.1:1 does not answer: Connection refused. Start a server with "
        "`manyhands serve`, or name another one with --url.\n"
    )
