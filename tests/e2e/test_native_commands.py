"""`manyhands submit`, `job`, `jobs`, `queue` and all others that talk to a server over its API."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from tests.e2e.serving import SECONDS_MAX, Api, command, environment, run, serving, wait_until


def talk(served, *arguments: str, **options):
    return run(*arguments, "--url", served.url, **options)


def lines(served, *arguments: str) -> list[list[str]]:
    """The rows that a command prints into a pipe."""
    ended = talk(served, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [line.split("\t") for line in ended.stdout.splitlines()]


def submitted(served, *arguments: str, **options) -> str:
    ended = talk(served, "submit", *arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def finish(api, queue: str, outcome: str = "complete", **body) -> None:
    """Works one job of a queue."""
    [job] = api.results("claim", queue=queue)
    api.results(outcome, id=job["id"], token=job["token"], **body)


# Submit.


@pytest.mark.parametrize(
    ("payload", "encoding", "shown"),
    [
        ("plain words", "text", "plain words"),
        ('{"a": [1, 2]}', "json", {"a": [1, 2]}),
        ("7", "text", "7"),
        ("{not json", "text", "{not json"),
        ("", "binary", ""),
    ],
)
def test_a_payload_is_json_if_it_is_an_object_and_text_otherwise(
    served, api, payload, encoding, shown
):
    job = api.get(f"jobs/{submitted(served, 'q', payload)}")

    assert (job["encoding"], job["payload"]) == (encoding, shown)


def test_bytes_from_standard_input_arrive_as_they_are(served, api):
    job_id = subprocess.run(
        command("submit", "q", "-", "--url", served.url),
        env=environment(),
        input=b"\xff\x00bytes",
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    ).stdout.decode()

    assert api.get(f"jobs/{job_id.strip()}")["encoding"] == "binary"
    shown = subprocess.run(
        command("job", job_id.strip(), "--payload", "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    )
    assert shown.stdout == b"\xff\x00bytes"


def test_what_is_not_json_cannot_be_submitted_as_json(served):
    ended = talk(served, "submit", "q", "{", "--encoding", "json")

    assert (ended.returncode, ended.stderr) == (2, "manyhands: the payload is not JSON.\n")


def test_a_job_can_have_a_delay_a_key_tags_limits_and_jobs_before_it(served, api, queue):
    first = submitted(served, queue, "--delay", "1h30m", "--key", "k", "--tag", "a", "-t", "b")
    again = submitted(served, queue, "--key", "k")
    after = submitted(served, queue, "--after", first[-12:], "--limit", "l", "--priority", "2.5")

    job, waiting = api.get(f"jobs/{first}"), api.get(f"jobs/{after}")
    assert again == first
    assert (job["state"], job["tags"]) == ("delayed", ["a", "b"])
    assert job["run_at"] - job["submitted_at"] == 90 * 60 * 1000
    assert (waiting["state"], waiting["depends_on"]) == ("blocked", [first])
    assert (waiting["limits"], waiting["priority"]) == (["l"], 2.5)


@pytest.mark.parametrize("delay", ["soon", "-1s", "5 apples", "inf", "nan", "1e9"])
def test_what_is_no_duration_is_refused_with_examples(served, delay):
    ended = talk(served, "submit", "q", "--delay", delay)

    assert ended.returncode == 2
    assert "is not a duration" in ended.stderr
    assert "90s, 5m or 1h30m" in " ".join(ended.stderr.split())


def test_the_result_is_waited_for_and_printed_byte_by_byte(served, api, queue):
    waiting = subprocess.Popen(
        command("submit", queue, "x", "--wait", "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
    )
    wait_until(lambda: api.get(f"jobs?queue={queue}"))

    finish(api, queue, result="no line end", encoding="text")

    assert waiting.communicate(timeout=SECONDS_MAX)[0] == b"no line end"
    assert waiting.returncode == 0


def test_a_failure_is_waited_for_and_told_in_a_sentence(served, api, queue):
    waiting = subprocess.Popen(
        command("submit", queue, "x", "--wait", "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    [job] = wait_until(lambda: api.get(f"jobs?queue={queue}"))

    finish(api, queue, "fail", code="bounced", message="no such box\nmore", retry=False)

    out, err = waiting.communicate(timeout=SECONDS_MAX)
    assert (waiting.returncode, out) == (1, "")
    assert err == f"manyhands: job {job['id']} failed: bounced: no such box\n"


def test_waiting_ends_with_a_code_of_its_own_when_the_time_is_up(served, queue):
    ended = talk(served, "submit", queue, "--wait", "--timeout", "10ms")

    assert ended.returncode == 3
    assert "has not finished in time; it continues." in ended.stderr


# Jobs.


def test_a_job_is_found_by_its_id_the_end_of_it_a_uuid_and_a_handle(served, queue):
    job_id = submitted(served, queue, "x")
    uuid = f"{job_id[:8]}-{job_id[8:12]}-{job_id[12:16]}-{job_id[16:20]}-{job_id[20:]}"

    for name in (job_id, job_id[-12:], job_id[-12:].upper(), uuid, f"H:server:{job_id}"):
        assert json.loads(talk(served, "job", name, "--json").stdout)["id"] == job_id
    unknown = talk(served, "job", "abcdef012345abcdef")
    assert unknown.returncode == 1
    assert unknown.stderr == (
        "manyhands: there is no job whose id is or ends in abcdef012345abcdef.\n"
    )


def test_an_end_that_fits_several_ids_is_refused_with_these(served, api):
    api.results("submit", items=[{"queue": "ends", "id": f"{n}aaaabbbbcccc"} for n in (1, 2)])

    ended = talk(served, "job", "aabbbbcccc")

    assert ended.returncode == 1
    assert "several ids end in aabbbbcccc: 2aaaabbbbcccc, 1aaaabbbbcccc." in ended.stderr


def test_a_job_tells_its_story_why_it_waits_and_how_it_failed(served, api, queue):
    job_id = submitted(served, queue, "the payload", "--attempts", "3")
    finish(api, queue, "fail", code="oops", message="first line\nsecond", delay_ms=3_600_000)

    said = talk(served, "job", job_id).stdout

    assert f"id\t{job_id}\nqueue\t{queue}\nstate\tdelayed\n" in said
    assert "waits\t" in said
    assert "attempt 1 by" in said
    assert "code\toops\n" in said
    assert "failure\tfirst line\nfailure\tsecond\n" in said
    assert "payload\tthe payload\n" in said


def test_a_result_is_printed_only_once_there_is_one(served, api, queue):
    job_id = submitted(served, queue)
    early = talk(served, "job", job_id, "--result")

    finish(api, queue, result={"sum": 6})

    assert (early.returncode, early.stdout) == (1, "")
    assert early.stderr == f"manyhands: job {job_id} is ready; it has no result.\n"
    assert talk(served, "job", job_id, "--result").stdout == '{"sum":6}'


def test_what_a_worker_reports_is_shown_with_its_job_and_followed_to_its_end(served, api, queue):
    job_id = submitted(served, queue, "x")
    [job] = api.results("claim", queue=queue)
    proof = {"id": job_id, "token": job["token"]}
    api.results("log", **proof, message="connected\x1b[2J")
    api.results("log", **proof, message="slow today", warning=True)
    api.results("partial", **proof, payload="half of it")
    shown = talk(served, "job", job_id[-12:]).stdout
    follows = subprocess.Popen(
        command("job", job_id, "--log", "--follow", "--url", served.url),
        env=environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    early = [follows.stdout.readline().rstrip("\n").split("\t")[1:] for _ in range(3)]
    api.results("log", **proof, message="nearly done")
    api.results("complete", **proof)
    late, _ = follows.communicate(timeout=SECONDS_MAX)

    told = [line.partition("  ")[2] for line in shown.splitlines() if line.startswith("log\t")]
    assert told == ["connected\u241b[2J", "warning: slow today", '"half of it"']
    assert early == [
        ["log", "connected\u241b[2J"],
        ["warning", "slow today"],
        ["data", '"half of it"'],
    ]
    assert late.rstrip("\n").split("\t")[1:] == ["log", "nearly done"]
    assert follows.returncode == 0
    assert talk(served, "job", job_id, "--follow").returncode == 2


def test_jobs_are_searched_as_on_the_pages(served, api, queue):
    ids = [submitted(served, queue, f"number {n}", "--tag", f"t{n % 2}") for n in range(4)]
    finish(api, queue)

    def found(*words: str) -> list[str]:
        return [row[0] for row in lines(served, "jobs", f"queue:{queue}", *words)]

    assert found() == ids[::-1]
    assert found("tag:t1") == [ids[3], ids[1]]
    assert found("state:completed") == [ids[0]]
    assert found("--oldest", "-n", "2") == ids[:2]
    assert found("-n", "0", "age<1h") == ids[::-1]
    assert found("number 2") == [ids[2]]
    assert [row[0] for row in lines(served, "jobs", f"id:{ids[1][-10:]}")] == [ids[1]]
    assert [row[0] for row in lines(served, "jobs", ids[1][-10:])] == [ids[1]]


def test_a_pipe_that_gets_only_some_jobs_is_told_so(served, api, queue):
    api.results("submit", items=[{"queue": queue}] * 101)

    some = talk(served, "jobs", f"queue:{queue}")
    every = talk(served, "jobs", f"queue:{queue}", "-n", "0")
    chosen = talk(served, "jobs", f"queue:{queue}", "-n", "7")

    assert (len(some.stdout.splitlines()), len(every.stdout.splitlines())) == (100, 101)
    assert some.stderr == "manyhands: only the first 100; -n 0 lists all.\n"
    assert (every.stderr, chosen.stderr) == ("", "")


def test_a_search_that_cannot_be_read_is_explained(served):
    ended = talk(served, "jobs", "colour:red")

    assert ended.returncode == 2
    assert ended.stderr.startswith("manyhands: there is no qualifier “colour”: there are state,")


def test_control_characters_from_outside_never_reach_the_screen(served, api):
    api.results("submit", queue="q", id="c0ffee01", payload="\x1b[2J\x07", encoding="text")

    shown = talk(served, "job", "c0ffee01").stdout

    assert "\x1b" not in shown
    assert "␛[2J␇" in shown


# Watching.


def test_events_are_listed_chosen_and_followed(served, api, queue):
    job_id = submitted(served, queue)
    past = lines(served, "events", "-n", "50", f"ready.#.{queue}")
    assert [(row[2], row[3], row[4]) for row in past] == [("ready", queue, job_id)]

    following = subprocess.Popen(
        command("events", "-f", "-n", "0", f"completed.#.{queue}", "--json", "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
    )
    finish(api, queue)
    # Whatever was begun to be followed too late is followed now.
    for _ in range(100):
        if select.select([following.stdout], [], [], 1.0)[0]:
            break
        submitted(served, queue)
        finish(api, queue)
    event = json.loads(following.stdout.readline())
    following.send_signal(signal.SIGINT)

    assert (event["state"], event["queue"]) == ("completed", queue)
    assert following.wait(SECONDS_MAX) == 130
    following.stdout.close()


def test_a_pattern_that_cannot_be_is_explained(served):
    ended = talk(served, "events", "sometimes.#")

    assert ended.returncode == 2
    assert "a pattern begins with a state" in ended.stderr


def test_workers_are_listed_and_a_hung_one_loses_its_job(served, api, queue):
    before, job_id = submitted(served, queue), submitted(served, queue)
    [held] = api.results("claim", queue=queue, worker="hangs", id=before)
    api.results("release", id=before, token=held["token"])
    api.results("claim", queue=queue, worker="hangs", term_ms=0, id=job_id)

    [row] = [row for row in lines(served, "workers") if row[0] == "hangs"]
    ended = talk(served, "expire", "--worker", "hangs", "--yes")

    assert (row[1], row[5], row[6], row[7]) == ("native", "-", queue, job_id)
    assert (ended.returncode, ended.stdout) == (0, "Ended the lease of 1 of 1 job.\n")
    assert api.get(f"jobs/{job_id}")["state"] != "leased"


def test_idle_workers_are_listed_with_what_they_wait_for(served, queue):
    other = f"{queue}-other"
    working = subprocess.Popen(
        command("work", queue, other, "--command", "cat", "--name", queue, "--url", served.url),
        env=environment(),
        stdout=subprocess.PIPE,
    )
    try:
        rows = lambda: [row for row in lines(served, "workers") if row[0] == queue]  # noqa: E731
        [row] = wait_until(rows)
    finally:
        working.send_signal(signal.SIGINT)
        working.communicate(timeout=SECONDS_MAX)

    name, protocol, _, jobs, since, ends, queues, job, _ = row
    assert (name, protocol, jobs, since, ends, job) == (queue, "native", "0", "-", "-", "-")
    assert queues == f"{queue},{other}"


def test_failures_are_grouped(served, api, queue):
    for number in range(3):
        submitted(served, queue, "--attempts", "1")
        finish(api, queue, "fail", code="boom", message=f"box {number} is full")
    submitted(served, queue)
    again = {"message": "box 3 is full", "retry": True, "delay_ms": 3_600_000}
    finish(api, queue, "fail", code="boom", **again)

    [row] = lines(served, "failures", "--queue", queue)

    assert (row[0], row[1], row[4], row[5]) == ("3", "1", "boom: box <number> is full", queue)
    assert len(lines(served, "jobs", f"failure:{row[6]}", f"queue:{queue}")) == 3


# Queues, schedules, limits.


def test_a_queue_is_configured_paused_resumed_and_deleted(served, api, queue):
    set_up = talk(
        *(served, "queue", "set", queue, "--attempts", "7", "--backoff", "30s", "--rate", "9/5m"),
        *("--concurrency", "4", "--lease", "2m", "--keep", "1d"),
    )
    changed = talk(served, "queue", "set", queue, "--backoff-max", "1h", "--unset", "rate")
    paused = talk(served, "queue", "pause", queue)
    held = api.get(f"queues/{queue}")
    resumed = talk(served, "queue", "resume", queue)

    assert set_up.stdout == (
        f"{queue}: attempts 7, backoff 30s, then times 2, at most 1h, lease 2m, concurrency 4, "
        "rate 9/5m, keep 1d\n"
    )
    assert "rate" not in changed.stdout
    policy = held["policy"]
    assert (policy["attempts_max"], policy["lease_ms"]) == (7, 120_000)
    assert (policy["backoff"]["first_ms"], policy["backoff"]["ms_max"]) == (30_000, 3_600_000)
    assert (policy.get("rate"), policy["record_ms"]) == (None, 86_400_000)
    assert (held["paused"], paused.stdout) == (
        True,
        f"{queue} is paused.\n",
    )
    assert (resumed.stdout, api.get(f"queues/{queue}")["paused"]) == (
        f"{queue} is resumed.\n",
        False,
    )
    assert [row[0] for row in lines(served, "queue", "list", queue)] == [queue]
    assert ["concurrency", "4"] in lines(served, "queue", "show", queue)
    assert talk(served, "queue", "delete", queue).stdout == f"{queue} is deleted.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("queue", "pause", "mistyped"), "there is no queue 'mistyped'"),
        (("queue", "show", ""), "the name of a queue is empty"),
        (("queue", "set", "q"), "nothing to set"),
        (("queue", "set", "q", "--unset", "colour"), "--unset colour: use one of attempts"),
        (("queue", "set", "q", "--rate", "often"), "'often' is not a rate"),
        (("schedule", "set", "s", "q"), "a schedule needs --every or --cron"),
        (("schedule", "show", "mistyped"), "there is no schedule mistyped"),
        (("job", ""), "the id of a job is empty"),
        (("work", "q", "--command", "no-such-program-here"), "there is no program no-such"),
        (("work", "q", "--command", ""), "--command is empty"),
        (("top", "--sort", "colour"), "--sort is one of name, ready"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(served, arguments, sentence):
    ended = talk(served, *arguments)

    assert ended.returncode in (1, 2)
    assert sentence in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_a_schedule_is_set_listed_shown_and_deleted(served, api):
    made = talk(served, "schedule", "set", "pulse", "health", "beat", "--every", "90s", "--unique")
    talk(served, "schedule", "set", "nightly", "reports", "--cron", "0 3 * * *", "--paused")

    rows = {row[0]: row for row in lines(served, "schedule", "list")}
    shown = dict(lines(served, "schedule", "show", "pulse"))

    assert made.stdout.startswith("pulse: the next job is due 20")
    assert rows["pulse"][1:3] == ["health", "every 1m30s"]
    assert rows["nightly"][2:4] == ["0 3 * * * UTC", "paused"]
    assert (shown["payload"], shown["one at a time"]) == ("beat", "yes")
    assert talk(served, "schedule", "delete", "pulse").stdout == "pulse is deleted.\n"
    assert [row["id"] for row in api.get("schedules")] == ["nightly"]


def test_a_schedule_is_paused_resumed_and_run_now_with_its_whole_template(served, api):
    body = {
        "queue": "pulses",
        "interval_ms": 3_600_000,
        "payload": {"n": 1},
        "headers": {"task": "beat"},
        "tags": ["t"],
        "attempts_max": 2,
    }
    api.http.put("/api/schedules/hourly", json=body)
    before = next(row for row in api.get("schedules") if row["id"] == "hourly")

    assert talk(served, "schedule", "pause", "hourly").stdout == "hourly is paused.\n"
    paused = next(row for row in api.get("schedules") if row["id"] == "hourly")
    resumed = talk(served, "schedule", "resume", "hourly").stdout
    after = next(row for row in api.get("schedules") if row["id"] == "hourly")
    job = api.get(f"jobs/{talk(served, 'schedule', 'run', 'hourly').stdout.strip()}")

    assert paused == before | {"paused": True}
    assert resumed.startswith("hourly is resumed; the next job is due 20")
    assert after == before
    assert (job["queue"], job["payload"], job["tags"]) == ("pulses", {"n": 1}, ["t"])
    assert (job["headers"], job["terms"]["attempts_max"]) == ({"task": "beat"}, 2)
    missing = api.http.put("/api/schedules/mistyped", json={"paused": True})
    assert missing.status_code == 404
    no_queue = api.http.put("/api/schedules/mistyped", json={"interval_ms": 1000})
    assert no_queue.status_code == 400
    api.http.delete("/api/schedules/hourly")


def test_a_limit_is_set_listed_and_deleted(served):
    assert talk(served, "limit", "set", "database", "2").stdout == "database: 2 jobs at once.\n"
    assert lines(served, "limit", "list") == [["database", "0", "2"]]
    assert talk(served, "limit", "delete", "database").stdout == "database is deleted.\n"
    assert lines(served, "limit", "list") == []


# The whole server.


def test_status_exits_with_one_as_soon_as_something_needs_a_person(tmp_path):
    with serving(tmp_path, "--store", "memory") as served:
        api = Api(served)
        well = talk(served, "status")
        submitted(served, "mail")
        api.http.put("/api/queues/mail", json={"paused": True})
        submitted(served, "boxes", "--attempts", "1")
        finish(api, "boxes", "fail", code="boom", message="it broke")
        ill = talk(served, "status")
        as_json = json.loads(talk(served, "status", "--json").stdout)
        top = talk(served, "top", "--once")
        api.close()

    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    assert ill.returncode == 1
    assert ill.stdout.splitlines()[0].split("\t")[:3] == ["mail", "1", "0"]
    assert re.fullmatch(
        r"failing: boom: it broke: 1 job of boxes in the last [\dms.]+\n"
        r"paused: mail: 1 job held back\n",
        ill.stderr,
    )
    assert [note["what"] for note in as_json["attention"]] == ["failing", "paused"]
    assert (as_json["totals"]["ready"], as_json["totals"]["failed"]) == (1, 1)
    assert top.stdout.splitlines()[0].split("\t")[0] == "mail"


def test_what_is_retried_is_seen_with_its_next_attempt(served):
    job = submitted(served, "patient")
    api = Api(served)
    finish(api, "patient", "fail", code="busy", message="not now", delay_ms=3_600_000)
    api.close()

    story = lines(served, "job", job)
    queue = lines(served, "queue", "show", "patient")
    top = talk(served, "top", "--once", "--sort", "done/s")

    assert ["facts", "1 attempt"] in story
    (waits,) = (text for title, text in story if title == "waits")
    assert re.fullmatch(r"it failed and is tried again after a pause; due in (59m\d+s|1h)", waits)
    assert ["retrying", "1"] in queue
    assert (top.returncode, top.stderr) == (0, "")


def test_top_draws_on_a_terminal_and_leaves_with_q(served):
    submitted(served, "drawn")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("top", "--every", "200ms", "--url", served.url),
        env={**environment(), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + SECONDS_MAX
    while (b"drawn" not in seen or b"q quit" not in seen) and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 65536)
    os.write(ours, b"n\x1b[Bq")
    # The terminal must be read until the end, or the program could not write its last words.
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                os.read(ours, 65536)
            except OSError:
                break
    assert process.wait(SECONDS_MAX) == 0
    os.close(ours)
    assert b"drawn" in seen


def test_a_shell_offers_the_names_of_queues(served, queue):
    name = f"{queue}-offered"
    submitted(served, name)

    offered = with_variables(
        MANYHANDS_URL=served.url,
        _MANYHANDS_COMPLETE="complete_bash",
        COMP_WORDS=f"manyhands queue show {queue}-off",
        COMP_CWORD="3",
    )

    assert (offered.stdout.split(), offered.stderr) == ([name], "")


# Which server.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("operator:ada:0123456789abcdef0123\n")
    (folder / "tokens").chmod(0o600)
    arguments = ("--store", "memory", "--tokens-file", str(folder / "tokens"))
    with serving(folder, *arguments) as server:
        yield server


TOKEN = "0123456789abcdef0123"


def with_variables(*arguments: str, **variables: str):
    return subprocess.run(
        command(*arguments),
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def test_a_server_that_requires_a_token_gets_it_from_a_flag_a_file_or_the_environment(
    guarded, tmp_path
):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    server = ("--url", guarded.url)

    without = run("queue", "list", *server)
    assert (without.returncode, without.stderr) == (
        1,
        f"manyhands: {guarded.url} requires a valid token: use --token-file, MANYHANDS_TOKEN or a "
        "profile.\n",
    )
    assert run("queue", "list", *server, "--token", TOKEN).returncode == 0
    assert run("queue", "list", *server, "--token-file", f"{tmp_path}/token").returncode == 0
    assert with_variables("queue", "list", *server, MANYHANDS_TOKEN=TOKEN).returncode == 0


def test_a_profile_names_a_server_and_its_token(guarded, served, tmp_path):
    file = tmp_path / "manyhands.toml"
    (tmp_path / "token").write_text(TOKEN)
    file.write_text(
        f'[profiles.guarded]\nurl = "{guarded.url}"\ntoken_file = "{tmp_path}/token"\n'
        f'[profiles.default]\nurl = "{served.url}"\ntoken = "not-for-others-0123"\n'
    )
    config = {"MANYHANDS_CONFIG": str(file)}

    def listed(*arguments: str, **more: str):
        return with_variables("queue", "list", *arguments, **config, **more)

    assert listed("--profile", "guarded").returncode == 0
    assert listed(MANYHANDS_PROFILE="guarded").returncode == 0
    assert listed().returncode == 0
    # The token of the default profile is not for another server.
    assert "requires a valid token" in listed("--url", guarded.url).stderr
    assert listed("--profile", "nobody").stderr == (
        f"manyhands: there is no profile nobody in {file}; it has guarded, default.\n"
    )
    assert "not with both" in listed("--profile", "guarded", "--url", served.url).stderr
    assert run("config", "--check", str(file)).returncode == 0


def test_a_profile_of_the_home_directory_is_used_without_further_words(served, tmp_path):
    folder = tmp_path / "manyhands"
    folder.mkdir()
    (folder / "config.toml").write_text(f'[profiles.default]\nurl = "{served.url}"\n')

    found = with_variables("queue", "list", XDG_CONFIG_HOME=str(tmp_path))
    wrong = (folder / "config.toml").write_text("[profiles.default]\ncolour = 1\n")
    refused = with_variables("queue", "list", XDG_CONFIG_HOME=str(tmp_path))

    assert found.returncode == 0
    assert wrong
    assert refused.returncode == 2
    assert "profiles cannot be used because" in refused.stderr
