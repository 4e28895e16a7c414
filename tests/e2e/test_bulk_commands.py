"""`manyhands retry` and its kin against a running server, as at three in the morning."""

import json
import os
import pty
import select
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.e2e.serving import SECONDS_MAX, command, environment, run
from tests.e2e.test_api_bulk import counts, ended, fail_all, fill


def talk(served, *arguments: str):
    return run(*arguments, "--server", served.url)


def test_failed_jobs_are_retried_after_the_number_was_agreed_to(served, api, queue):
    fail_all(api, queue, 3)

    asked = talk(served, "retry", "--queue", queue, "--state", "failed")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "manyhands: 3 jobs: use --yes to continue without a question.\n"
    assert counts(api, queue) == {"failed": 3}

    agreed = talk(served, "retry", "--queue", queue, "--state", "failed", "--yes")
    assert (agreed.returncode, agreed.stderr) == (0, "")
    assert agreed.stdout == "Retried 3 of 3 jobs.\n"
    assert counts(api, queue) == {"ready": 3}


def test_a_dry_run_tells_the_number_and_does_nothing(served, api, queue):
    fill(api, queue, 2)

    told = talk(served, "cancel", "--queue", queue, "--dry-run")
    as_json = talk(served, "cancel", "--queue", queue, "--dry-run", "--json")

    assert told.stdout == "2 jobs would be cancelled.\n"
    assert json.loads(as_json.stdout) == {"action": "cancel", "expected": 2, "expected_all": True}
    assert counts(api, queue) == {"ready": 2}


def test_a_state_may_be_named_as_lists_name_it_or_as_the_api_does(served, api, queue):
    fill(api, queue, 2)
    api.results("claim", queue=queue, term_ms=3_600_000)

    lists, of_api, wrong = (
        talk(served, "cancel", "--queue", queue, "--state", word, "--dry-run")
        for word in ("running", "leased", "busy")
    )

    assert lists.stdout == of_api.stdout == "1 job would be cancelled.\n"
    assert wrong.returncode == 2
    assert "a state is one of blocked, delayed, ready, running" in wrong.stderr


def test_a_refusal_is_told_and_ends_with_one(served, api, queue):
    (job_id,) = fill(api, queue, 1)

    ended = talk(served, "retry", job_id, "--yes", "--json")

    assert ended.returncode == 1
    assert json.loads(ended.stdout)["refused"] == {"not_finished": 1}


def test_jobs_are_moved_and_get_a_priority(served, api, queue):
    ids = fill(api, queue, 2)

    assert talk(served, "priority", "--to", "5", "--queue", queue, "-y").returncode == 0
    assert api.get(f"jobs/{ids[0]}")["priority"] == 5
    assert talk(served, "move", "--into", f"{queue}-2", "--queue", queue, "-y").returncode == 0
    assert counts(api, f"{queue}-2") == {"ready": 2}


def test_a_filter_that_matches_nothing_is_said_to(served, api, queue):
    api.results("submit", queue=queue)

    ended = talk(served, "retry", "--queue", f"{queue}-misspelt", "--yes")

    assert (ended.returncode, ended.stdout) == (0, "No job matches; nothing was done.\n")


def test_operations_are_listed_and_shown(served, api, queue):
    begun = api.results("bulk", action="cancel", filter={"queue": queue})
    ended(api, begun["id"])

    listed = talk(served, "bulk")
    shown = talk(served, "bulk", begun["id"], "--json")

    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    [row] = [row for row in rows if row[0] == begun["id"]]
    assert row[2:] == ["completed", "-", "Cancelled 0 of 0 jobs."]
    assert int(row[1]) == begun["created_at"]
    assert json.loads(shown.stdout)["state"] == "completed"
    assert talk(served, "bulk", "nobody").stderr == "manyhands: there is no operation 'nobody'.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("retry",), "which jobs? Name ids, or a filter such as --queue; see --help."),
        (("retry", "aa", "--queue", "q"), "name ids or a filter, not both."),
        (("retry", "--queue", "q", "--state", "ready", "--yes"), "retry is for jobs that are"),
        (("bulk", "--cancel"), "which operation? `manyhands bulk` lists them."),
        (("bulk", ""), "which operation? `manyhands bulk` lists them."),
        (("bulk", "?"), "there is no operation '?'."),
        (("bulk", "a ä"), "there is no operation 'a ä'."),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(served, arguments, sentence):
    ended = talk(served, *arguments)

    assert ended.returncode == (2 if sentence.startswith(("which", "name")) else 1)
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_is_not_there_is_told_in_a_sentence():
    ended = run("retry", "--queue", "q", "--server", "http://127.0.0.1:1")

    assert ended.returncode == 1
    assert ended.stderr == (
        "manyhands: http://127.0.0.1:1 does not answer: Connection refused. Start a server with "
        "`manyhands serve`, or name another one with --url.\n"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:port", "http://127.0.0.1:99999", "[::1", "ftp://a"])
def test_what_is_no_address_of_a_server_is_told_in_a_sentence(address):
    ended = run("bulk", "--server", address)

    assert ended.returncode == 2
    assert ended.stderr == f"manyhands: {address} is not the address of an HTTP server.\n"


@pytest.mark.parametrize("token", ["two\nlines", "a bell\a"])
def test_what_can_be_no_token_is_told_in_a_sentence(served, tmp_path, token):
    file = tmp_path / "token"
    file.write_text(token)

    ended = talk(served, "bulk", "--token-file", str(file))

    assert ended.returncode == 2
    assert ended.stderr == "manyhands: a token is one line of printable characters.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("cancel", "--queue", "{queue}", "--tag", ""), "--tag is empty"),
        (("cancel", "--queue", "{queue}", "--state", ""), "--state"),
        (("cancel", "--queue", "{queue}", "--state", "nope"), "delayed, ready, running"),
        (("cancel", "--queue", "{queue}", "--older-than", "inf"), "--older-than"),
        (("cancel", "--queue", "{queue}", "--older-than", "nan"), "--older-than"),
        (("retry", "--queue", "{queue}", "--into", ""), "--into is empty"),
        (("move", "--queue", "{queue}", "--into", ""), "--into is empty"),
    ],
)
def test_a_flag_without_a_proper_value_is_not_taken_for_none(served, api, arguments, sentence):
    """A script whose variable is not set must not reach all jobs of a queue."""
    queue = "proper"
    before = fill(api, queue, 1)

    ended = talk(served, *(word.format(queue=queue) for word in arguments), "--yes")

    assert ended.returncode != 0
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert api.get(f"jobs/{before[0]}")["state"] == "ready"


class Forgetful(BaseHTTPRequestHandler):
    """A server that has an operation, and closes each connection that rests, as ours does."""

    protocol_version = "HTTP/1.1"
    told = 0
    answers = (
        {"action": "retry", "expected": 1, "expected_all": True},
        {"id": "ab12", "action": "retry", "state": "active", "done": 0, "expected": 1},
    )

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"results": self.answers[self.server.told]}).encode()
        self.server.told += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


def test_time_to_think_and_a_server_that_goes_away_are_survived():
    """What was agreed to late is begun, and whoever watches is told how to look again."""
    with HTTPServer(("127.0.0.1", 0), Forgetful) as server:
        server.told, server.timeout = 0, SECONDS_MAX
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        process = subprocess.Popen(
            command("retry", "--queue", "q", "--yes", "--server", url),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        thread.join(SECONDS_MAX)
    _, said = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 1
    first, second = said.splitlines()
    assert first.startswith(f"manyhands: {url} does not answer: ")
    assert second == (
        "manyhands: operation ab12 continues when the server is back; watch it with "
        "`manyhands bulk ab12`."
    )


def test_on_a_terminal_the_operator_is_asked(served, api, queue):
    fail_all(api, queue, 2)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("retry", "--queue", queue, "--server", served.url),
        env={**environment(), "TERM": "dumb"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + SECONDS_MAX
    while b"Retry 2 jobs?" not in said and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            said += os.read(ours, 4096)
    os.write(ours, b"y\n")
    output, _ = process.communicate(timeout=SECONDS_MAX)
    os.close(ours)

    assert b"Retry 2 jobs?" in said
    assert (process.returncode, output.strip()) == (0, b"Retried 2 of 2 jobs.")
    assert counts(api, queue) == {"ready": 2}
