"""Python tasks and programs of other people: workers in other languages, and servers that fork."""

import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator

import pytest

from manyhands import App, JobFailed
from tests.e2e.serving import SECONDS_MAX, environment, own_address, serving
from tests.e2e.working import until

PHP = """
    $worker = new GearmanWorker();
    $worker->addServer($argv[1], (int) $argv[2]);
    $worker->addFunction("resize", function ($job) {
        $given = json_decode($job->workload(), true);
        if ($given["path"] === "missing") {
            $job->sendFail();
            return;
        }
        return $given["path"] . " resized";
    });
    while ($worker->work());
"""
CURL = r"""
    post() { curl -sS -H 'Content-Type: application/json' -d "$2" "$URL/api/$1"; }
    while true; do
        found=$(post claim '{"queue": "resize", "worker": "curl", "wait": 10}')
        id=$(sed -nE 's/.*"id": ?"([0-9a-f]+)".*/\1/p' <<< "$found")
        token=$(sed -nE 's/.*"token": ?"([^"]+)".*/\1/p' <<< "$found")
        if [ -n "$id" ]; then
            proof="\"id\": \"$id\", \"token\": \"$token\""
            post complete "{$proof, \"result\": \"by curl\"}" > /dev/null
        fi
    done
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A server that speaks Gearman, too."""
    with serving(tmp_path_factory.mktemp("both"), "--gearman", "127.0.0.1:0") as served:
        yield served


@contextlib.contextmanager
def running(*command: str, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment() | variables, start_new_session=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS_MAX)


@pytest.fixture
def resize(both):
    app = App(both.url)

    @app.task(remote=True, retries=0)
    def resize(path: str) -> str: ...

    yield resize
    app.close()


def gearman_address(both) -> tuple[str, str]:
    host, _, port = both.addresses["gearman"].rpartition(":")
    return host, port


def test_p69_a_remote_task_is_worked_by_a_php_worker(both, resize):
    with running("php", "-r", textwrap.dedent(PHP), "--", *gearman_address(both)):
        assert resize.submit("a.png").result(SECONDS_MAX) == "a.png resized"
        with pytest.raises(JobFailed):
            resize.submit("missing").result(SECONDS_MAX)


def test_p69_raw_bytes_are_worked_by_the_gearman_tool(both):
    app = App(both.url)
    host, port = gearman_address(both)
    with running("gearman", "-h", host, "-p", port, "-w", "-f", "count", "--", "wc", "-c"):
        handle = app.client.submit_raw("count", b"12345")
        assert handle.result(SECONDS_MAX).strip() == b"5"
    app.close()


def test_p69_a_remote_task_is_worked_by_a_loop_of_curl(both, resize):
    with running("bash", "-c", textwrap.dedent(CURL), URL=both.url):
        assert resize.submit("b.png").result(SECONDS_MAX) == "by curl"


def test_p33_gunicorn_may_load_the_app_before_it_forks(both, tmp_path):
    """The parent has a connection, too: it submits when the module is imported."""
    address = own_address()
    (tmp_path / "web.py").write_text(
        textwrap.dedent("""
            import json, os
            from manyhands import App
            app = App()

            @app.task
            def noted(text: str) -> str:
                return text

            first = noted.submit("parent")

            def web(environ, start):
                handle = noted.submit("child")
                start("200 OK", [("Content-Type", "application/json")])
                shown = [handle.id, first.id, first.status().state, os.getpid()]
                return [json.dumps(shown).encode()]
        """)
    )
    gunicorn = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", address]
    process = subprocess.Popen(
        [*gunicorn, "--chdir", str(tmp_path), "web:web"],
        env=environment() | {"MANYHANDS_URL": both.url},
    )
    found: list[list[str]] = []

    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=SECONDS_MAX) as answer:
                found.append(json.load(answer))
        except OSError:
            assert process.poll() is None
            return False
        return len({pid for *_, pid in found}) == 2

    try:
        until(ask)
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
    ids = {child for child, *_ in found}
    assert len(ids) == len(found)
    assert {state for _, _, state, _ in found} == {"ready"}
