"""Django's tasks on the real server, with a real Django: ``django.tasks``, or ``django_tasks``."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS_MAX, command, environment
from tests.e2e.working import Working, until

PACKAGE = "django.tasks" if sys.version_info >= (3, 12) else "django_tasks"

SETTINGS = """
    from manyhands import Backoff
    SECRET_KEY = "x"
    USE_TZ = True
    INSTALLED_APPS = ["shop"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3",
                             "CONN_MAX_AGE": 0}}
    TASKS = {"default": {
        "BACKEND": "manyhands.contrib.django.Backend",
        "QUEUES": ["@Q", "@Q-mail"],
        "OPTIONS": {"defaults": {"retries": 1, "backoff": Backoff(first=0.01)}},
    }}
"""
TASKS = f"""
    import asyncio
    from django.db import connection
    from {PACKAGE} import task
    from manyhands import current_job
    from manyhands.contrib.django import app

    @task(queue_name="@Q")
    def add(a, b=2):
        return a + b

    @task(queue_name="@Q", priority=5)
    async def later(text):
        await asyncio.sleep(0.001)
        return text.upper()

    class Oops(Exception):
        pass

    @task(queue_name="@Q", takes_context=True)
    def fail(context, text):
        assert context.task_result.id == current_job().id
        raise Oops(f"{{text}} {{context.attempt}}")

    @task(queue_name="@Q")
    def count():
        assert connection.connection is None  # closed after the job before
        with connection.cursor() as cursor:
            cursor.execute("select 40 + 2")
            return cursor.fetchone()[0]

    @task(queue_name="@Q")
    def unencodable():
        return object()

    @app().task(queue="@Q-own")
    def own(number: int) -> int:
        return number
"""
WAIT = """
    import time
    def ended(result):
        while not result.is_finished:
            time.sleep(0.01)
            result.refresh()
        return result
"""


class Project:
    """A Django project in a folder."""

    def __init__(self, folder: Path, queue: str, url: str) -> None:
        self.folder = folder
        self.queue = queue
        self.environment = environment() | {
            "MANYHANDS_URL": url,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").write_text("")
        self.write("settings.py", SETTINGS)
        self.write("shop/tasks.py", TASKS)
        self.write("waiting.py", WAIT)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text).replace("@Q", self.queue))

    def run(self, code: str) -> list[str]:
        """The lines that a program of the project prints."""
        begin = (
            "import django; django.setup()\nfrom shop.tasks import *\nfrom waiting import ended\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", begin + textwrap.dedent(code).replace("@Q", self.queue)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def project(tmp_path, served, queue):
    return Project(tmp_path, queue, served.url)


@pytest.fixture
def worked(project):
    with (project.folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command("worker", "--django", "-c", "1"),
            env=project.environment,
            cwd=project.folder,
            stdout=log,
            stderr=log,
        )
    found = Working(process, project.folder)
    try:
        until(lambda: "connected to the server" in found.log() or process.poll() is not None)
        yield found
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def test_django_tasks_are_worked_and_their_results_come_back(project, worked):
    lines = project.run("""
        import asyncio
        from django.utils import timezone
        from datetime import timedelta
        result = ended(add.enqueue(1, b=4))
        print(result.return_value, result.status, result.attempts, result.args, result.kwargs)
        print(result.enqueued_at <= result.started_at <= result.finished_at)
        async def main():
            found = await later.aenqueue("abc")
            while not found.is_finished:
                await found.arefresh()
            return found.return_value
        print(asyncio.run(main()))
        soon = timezone.now() + timedelta(seconds=0.1)
        print(ended(add.using(run_after=soon, queue_name="@Q-mail").enqueue(5)).return_value)
        print(ended(count.enqueue()).return_value, ended(count.enqueue()).return_value)
        print(own.submit(3).result(60))
    """)

    assert lines == ["5 SUCCESSFUL 1 [1] {'b': 4}", "True", "ABC", "7", "42 42", "3"], worked.log()


def test_failures_of_django_tasks_are_shown_with_their_class(project, worked):
    lines = project.run("""
        failed = ended(fail.enqueue("x"))
        [error] = failed.errors
        print(failed.status, failed.attempts, error.exception_class is Oops)
        print(error.traceback.strip().splitlines()[-1])
        wrong = ended(unencodable.enqueue())
        print(wrong.status, wrong.errors[0].exception_class.__name__)
        try:
            failed.return_value
        except ValueError as error:
            print(error)
    """)

    assert lines[:2] == ["FAILED 2 True", "shop.tasks.Oops: x 2"]
    assert lines[2:] == ["FAILED TypeError", "Task failed"]


def test_what_django_cannot_enqueue_or_find_is_an_error(project):
    lines = project.run(f"""
        from datetime import datetime
        from {PACKAGE}.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        def caught(kinds, call, *args):
            try:
                call(*args)
            except kinds as error:
                print(type(error).__name__)
        caught(TypeError, add.enqueue, object())
        caught(Exception, lambda: add.using(queue_name="elsewhere"))
        caught(Exception, lambda: add.using(run_after=datetime(2030, 1, 1)))
        caught(TaskResultDoesNotExist, add.get_result, "0" * 32)
        caught(TaskResultDoesNotExist, add.get_result, "not an id")
        caught(TaskResultMismatch, later.get_result, add.enqueue(1).id)
        print(add.enqueue(1).status, add.get_result(add.enqueue(1).id).status)
    """)

    invalid = "InvalidTask" if PACKAGE == "django.tasks" else "InvalidTaskError"
    missing = "TaskResultDoesNotExist"
    assert lines == [
        "TypeError",
        invalid,
        invalid,
        missing,
        missing,
        "TaskResultMismatch",
        "READY READY",
    ]


def test_a_submit_on_commit_is_sent_after_it_and_never_after_a_rollback(project, api):
    lines = project.run("""
        from django.db import transaction
        from manyhands.contrib.django import on_commit
        with transaction.atomic():
            kept = on_commit(own).submit(1)
            try:
                kept.result(1)
            except RuntimeError:
                print("pending")
        try:
            with transaction.atomic():
                dropped = on_commit(own).submit(2)
                raise KeyError
        except KeyError:
            pass
        at_once = on_commit(own).submit(3)
        print(kept.status().state, at_once.status().state, dropped.is_pending)
        print(kept.id, dropped.id)
    """)

    assert lines[:2] == ["pending", "ready ready True"]
    kept, dropped = lines[2].split()
    assert api.get(f"jobs/{kept}")["payload"] == {"number": 1}
    assert api.http.get(f"/api/jobs/{dropped}").status_code == 404


def test_a_worker_for_django_says_what_is_missing(project):
    def check(**changes: str) -> str:
        given = {**project.environment, **changes}
        done = subprocess.run(
            command("worker", "--django", "--check"),
            env={name: value for name, value in given.items() if value},
            cwd=project.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert check().startswith("0 queue")
    assert "shop.tasks.add" in check()
    assert "DJANGO_SETTINGS_MODULE is not set" in check(DJANGO_SETTINGS_MODULE="")
    project.write("settings.py", 'SECRET_KEY = "x"\nINSTALLED_APPS = []\n')
    assert "is not manyhands.contrib.django.Backend" in check()
    project.write("settings.py", SETTINGS.replace('"defaults"', '"retries"'))
    assert "there is no option 'retries'" in check()
    assert os.environ.get("DJANGO_SETTINGS_MODULE") is None
