"""The programs in examples/, run as they are, against the endpoint and through a RabbitMQ."""

import json
import queue
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from manyhands.protocols.taskcluster.identifiers import task_id_of
from tests.amqp.watching import SECONDS_MAX, run_jobs, url_of
from tests.e2e.serving import Api, serving

EXAMPLES = Path(__file__).parents[2] / "examples"


class Program:
    """An example that runs until the test is over."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, EXAMPLES / f"{name}.py", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        return self._lines.get(timeout=SECONDS_MAX)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@pytest.fixture(scope="module", params=["endpoint", "rabbitmq"])
def watched(request, tmp_path_factory):
    """A server, and the URL at which its events are heard."""
    folder = tmp_path_factory.mktemp("watched")
    if request.param == "endpoint":
        with serving(folder, "--amqp", "127.0.0.1:0") as served:
            yield served, url_of(served)
    else:
        rabbit = request.getfixturevalue("rabbit")
        with serving(folder, "--amqp-relay", rabbit.url) as served:
            yield served, rabbit.url


@pytest.fixture
def api(watched):
    with closing(Api(watched[0])) as client:
        yield client


def test_the_observant_provisioner_knows_how_many_wait(watched, api):
    with Program("observant_provisioner", watched[1], "default") as program:
        assert program.line() == "watching"
        for number in range(3):
            api.results("submit", queue="observed", payload=number)
            assert program.line() == f"observed {number + 1}"
        [job] = api.results("claim", queue="observed", worker="w")
        assert program.line() == "observed 2"
        api.results("release", id=job["id"], token=job["token"])
        assert program.line() == "observed 3"
        [waiting] = api.results("claim", queue="observed", worker="w")
        assert program.line() == "observed 2"
        api.results("cancel", id=waiting["id"])


def test_the_long_pulling_worker_works_as_soon_as_it_hears_of_work(watched, api):
    early = api.results("submit", queue="pulled")
    with Program("long_pulling_worker", watched[1], watched[0].url, "default", "pulled") as program:
        assert program.line() == "listening"
        assert program.line() == f"completed {early['id']}"
        for _ in range(3):
            made = api.results("submit", queue="pulled")
            assert program.line() == f"completed {made['id']}"


def test_the_cancellable_worker_stops_when_its_task_is_canceled(watched, api):
    with Program("cancellable_worker", watched[1], watched[0].url, "long", "worker-1") as program:
        for chosen in (None, uuid4().hex[:8]):
            made = api.results("submit", queue="long", id=chosen)
            task = task_id_of(made["id"])
            assert program.line() == f"started {task}"
            api.results("cancel", id=made["id"])
            assert program.line() == f"stopped {task} canceled"


def test_the_statistics_monitor_counts_also_what_happened_while_it_was_away(watched, api):
    with Program("statistics_monitor", watched[1]) as program:
        assert program.line() == "watching"
        run_jobs(watched[0], "counted", 1)
        assert json.loads(program.line())["outcomes"] == {"completed": 1}
    run_jobs(watched[0], "counted", 1)
    made = api.results("submit", queue="uncounted")
    api.results("cancel", id=made["id"])
    with Program("statistics_monitor", watched[1]) as program:
        assert program.line() == "watching"
        outcomes: dict[str, int] = {}
        while outcomes.get("canceled") != 1:
            outcomes = json.loads(program.line())["outcomes"]
        assert outcomes["completed"] in (1, 2)  # the last one before may not have been acknowledged


def test_the_dependent_scheduler_goes_on_when_a_step_is_completed(watched, api):
    arguments = (watched[1], watched[0].url, "sched-1", "fetch", "build")
    with Program("dependent_scheduler", *arguments) as program:
        for step in ("fetch", "build"):
            assert program.line().startswith(f"submitted {step} ")
            run_jobs(watched[0], "noise", 1)
            [job] = api.results("claim", queue=step, worker="w")
            api.results("complete", id=job["id"], token=job["token"])
        assert program.line() == "finished"


def test_the_dependent_scheduler_gives_up_when_a_step_is_canceled(watched, api):
    arguments = (watched[1], watched[0].url, "sched-2", "first", "second")
    with Program("dependent_scheduler", *arguments) as program:
        task = program.line().split()[2]
        api.results("cancel", id=task.replace("-", ""))
        assert program.line() == "gave up: canceled"
