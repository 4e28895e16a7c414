"""A server inside another program: as durable as one of its own, and a quiet guest."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from manyhands.client.app import App
from manyhands.embedding import Embedded, EmbeddedError, embedded
from tests.e2e.serving import SECONDS_MAX, environment, serving
from tests.e2e.stream_talk import ENDED, LOOK, SUBPROTOCOL, WANT, WORK, Talk, new_id, talking


@contextmanager
def talking_inside(place: Embedded, worker: str | None = None) -> Iterator[Talk]:
    """A stream over a socket pair."""
    with connect(
        "ws://localhost/api/stream",
        sock=place.open(),
        subprotocols=[SUBPROTOCOL],
        compression=None,
        max_size=None,
        proxy=None,
    ) as socket:
        talk = Talk(socket)
        talk.hello(worker)
        yield talk


def request(place: Embedded, method: str, path: str, body: Any = None) -> Any:
    """The results of a plain request over a socket pair."""
    connection = place.http(SECONDS_MAX)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, found
    return found["results"]


def python(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A program of its own, whose process a test may look at or kill."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture(params=["on disk", "in memory"])
def place(request, tmp_path):
    """P77: without a path, jobs are in memory."""
    path = tmp_path / "jobs" if request.param == "on disk" else None
    with embedded(path) as found:
        yield found


def test_a_job_is_submitted_worked_on_and_watched_over_socket_pairs(place):
    """P74, S8."""
    with talking_inside(place) as client, talking_inside(place, "w1") as worker:
        [job_id] = client.submit([new_id(), "q", b'{"n":1}', "json"], watch=True)
        worker.result(WANT, ["q"])
        worker.result(WORK, [], [], [], [], [1, 0])
        [row] = worker.jobs(1)
        worker.result(WORK, [[job_id, row[2], b"2", "json"]])

        assert client.next(ENDED)[1][:3] == [job_id, "completed", b"2"]


def test_without_a_path_jobs_are_in_memory(tmp_path, monkeypatch):
    """P77: nothing is written, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    with embedded() as place:
        request(place, "POST", "/api/submit", {"queue": "q"})
        assert len(request(place, "GET", "/api/queues")) == 1
    with place:
        assert request(place, "GET", "/api/queues") == []
    assert not list(tmp_path.iterdir())


def test_plain_requests_go_over_socket_pairs(place):
    """P74: all of the API is there, although nothing listens."""
    made = request(place, "POST", "/api/submit", {"queue": "q"})

    assert request(place, "GET", f"/api/jobs/{made['id']}")["state"] == "ready"
    assert request(place, "GET", "/api/about")["addresses"]["http"] is None
    assert place.address is None


def test_a_closed_server_starts_again_when_it_is_used(tmp_path):
    """P74."""
    place = embedded(tmp_path / "jobs")
    made = request(place, "POST", "/api/submit", {"queue": "q"})
    place.close()
    place.close()

    assert request(place, "GET", f"/api/jobs/{made['id']}")["state"] == "ready"
    place.close()
    assert "manyhands server" not in [thread.name for thread in threading.enumerate()]


def test_a_server_that_nobody_uses_does_not_start(tmp_path):
    """P74: an app may be declared where its module is imported."""
    place = embedded(tmp_path / "jobs")

    assert not (tmp_path / "jobs").exists()
    place.close()


GUEST = """
import gc, logging, resource, signal, sys, warnings
from manyhands.embedding import embedded

def host():
    return (
        gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(),
        logging.root.handlers, logging.root.level, logging.getLogger("manyhands").handlers,
        resource.getrlimit(resource.RLIMIT_NOFILE), warnings.filters,
        [signal.getsignal(number) for number in signal.valid_signals()], sys.excepthook,
    )

before = repr(host())
with embedded(sys.argv[1], http="127.0.0.1:0"):
    assert repr(host()) == before
assert repr(host()) == before
"""


def test_nothing_of_the_host_is_changed(tmp_path):
    """P74, S8: no signal handler, nothing of gc, logging, limits or warnings; no word on its
    streams.
    """
    program = python(GUEST, tmp_path / "jobs")

    assert program.communicate(timeout=SECONDS_MAX) == ("", "")
    assert program.returncode == 0


SUBMITTER = """
import json, sys
from manyhands.embedding import embedded

place = embedded(sys.argv[1])
connection = place.http(60)
while True:
    body = json.dumps({"queue": "q"})
    connection.request("POST", "/api/submit", body, {"Content-Type": "application/json"})
    print(json.loads(connection.getresponse().read())["results"]["id"], flush=True)
"""


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path):
    """P74, P75: and `manyhands serve` takes over the directory."""
    program = python(SUBMITTER, tmp_path / "data")
    acknowledged = [program.stdout.readline().strip() for _ in range(50)]
    program.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in program.stdout if line.endswith("\n")]
    program.communicate(timeout=SECONDS_MAX)

    with serving(tmp_path) as served, talking(served) as talk:
        found = []
        for start in range(0, len(acknowledged), 500):
            found += talk.result(LOOK, acknowledged[start : start + 500])

    assert [view[:2] for view in found] == [[job_id, "ready"] for job_id in acknowledged]


def test_pages_and_apis_are_served_at_an_address(tmp_path):
    """P75."""
    with embedded(tmp_path / "jobs", http="127.0.0.1:0") as place:
        made = request(place, "POST", "/api/submit", {"queue": "q"})

        answer = httpx.get(f"http://{place.address}/ui/job/{made['id']}")

    assert answer.status_code == 200


def test_a_directory_in_use_is_an_error_with_its_holder_and_what_to_do(tmp_path):
    """P75."""
    with serving(tmp_path) as served:
        place = embedded(served.data)
        with pytest.raises(EmbeddedError) as found:
            place.start()

    assert f"process id {served.process.pid}" in str(found.value)
    assert "manyhands serve" in str(found.value)
    with place:  # it is free now
        assert request(place, "GET", "/api/queues") == []


def test_an_app_gets_that_error_at_once(tmp_path):
    """P75: it does not try again until its timeout."""
    with embedded(tmp_path / "jobs"):
        app = App(embedded(tmp_path / "jobs"), timeout=600)

        @app.task
        def work() -> None: ...

        with pytest.raises(EmbeddedError, match="manyhands serve"):
            work.submit()
        app.close()


def test_two_servers_of_one_process_need_two_directories(tmp_path):
    """P75."""
    with embedded(tmp_path / "jobs"):
        with pytest.raises(EmbeddedError, match=f"process id {os.getpid()}"):
            embedded(tmp_path / "jobs").start()
        with embedded(tmp_path / "other"), embedded():
            pass


@pytest.mark.parametrize("http", ["", "7700", "here:port", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_an_error(http):
    """P75."""
    with pytest.raises(EmbeddedError, match="HOST:PORT"):
        embedded(http=http).start()


def test_an_address_that_is_taken_is_an_error(tmp_path):
    """P75."""
    with embedded(http="127.0.0.1:0") as first:
        address = first.address
        place = embedded(tmp_path / "jobs", http=address)
        with pytest.raises(EmbeddedError, match="cannot listen on"):
            place.start()
    with place:  # the directory was released
        assert place.address == address


def test_a_path_that_is_no_directory_is_an_error(tmp_path):
    """P75."""
    file = tmp_path / "file"
    file.write_text("")

    with pytest.raises(EmbeddedError, match="cannot start"):
        embedded(file).start()


FORKED = """
import os, sys, warnings
from manyhands.embedding import EmbeddedError, embedded

place = embedded()
place.start()
warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork, as of Python 3.12
if os.fork() == 0:
    try:
        place.open()
    except EmbeddedError as error:
        assert str(os.getppid()) in str(error), error
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
place.close()
"""


def test_a_forked_process_hears_whose_server_it_is():
    """P33, P74."""
    program = python(FORKED)

    assert program.communicate(timeout=SECONDS_MAX)[1] == ""
    assert program.returncode == 0


LEFT = """
import sys
from manyhands.embedding import embedded

embedded(sys.argv[1]).start()
"""


def test_a_program_that_ends_without_closing_its_server_ends_in_order(tmp_path):
    """P74."""
    program = python(LEFT, tmp_path / "jobs")

    assert program.communicate(timeout=SECONDS_MAX) == ("", "")
    assert program.returncode == 0
    with embedded(tmp_path / "jobs") as place:
        assert request(place, "GET", "/api/queues") == []


def test_a_relative_path_is_that_of_the_start(tmp_path, monkeypatch):
    """P74."""
    monkeypatch.chdir(tmp_path)

    with embedded("jobs"):
        assert Path("jobs", "manyhands.db").exists()
