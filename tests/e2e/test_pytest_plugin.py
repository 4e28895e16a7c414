"""The pytest plugin as a project of its own uses it."""

import subprocess
import sys
from pathlib import Path

SUITE = """
from manyhands.client.app import App

app = App()

@app.task
def double(number: int) -> int:
    return 2 * number

def test_eager(manyhands):
    assert double.submit(2).result() == 4

def test_eager_may_be_turned_off(manyhands):
    manyhands.eager(on=False)
    assert double.submit(2).status().state == "ready"
"""
ACROSS = """
import subprocess, sys
from manyhands.client.app import App

PROGRAM = '''
import sys
from manyhands.client.app import App
app = App(sys.argv[1])
@app.task(remote=True)
def double(number: int) -> int: ...
print(double.submit(2).id)
'''

def test_processes_share_a_server(manyhands_server):
    command = [sys.executable, "-c", PROGRAM, manyhands_server.url]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    app = App(manyhands_server.url)
    assert app.handle(made).status().state == "ready"
    app.close()
    assert manyhands_server.addresses["gearman"]
"""


def run_suite(folder: Path, source: str, *options: str) -> str:
    (folder / "test_suite.py").write_text(source)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_ini_file_makes_jobs_eager(tmp_path):
    """P81."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmanyhands_eager = true\n")

    assert "2 passed" in run_suite(tmp_path, SUITE)


def test_a_server_is_there_for_tests_across_processes(tmp_path):
    """P83."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    assert "1 passed" in run_suite(tmp_path, ACROSS)


ALIKE = """
import pytest
from manyhands import App

app = App()

@app.task(unique="number")
def double(number: int) -> int:
    return 2 * number

@pytest.mark.parametrize("_again", range(20))
def test_the_same_key_is_free_in_every_test(manyhands, _again):
    handle = double.using(on_duplicate="refuse", key="one").submit(7)
    assert manyhands.drain() == 1
    assert handle.result() == 14
"""


def test_processes_of_one_run_do_not_meet(tmp_path):
    """P78: under xdist."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    assert "20 passed" in run_suite(tmp_path, ALIKE, "-n", "2")


QUICK = """
import time
import pytest
from manyhands import App

app = App()
took = []

@app.task
def double(number: int) -> int:
    return 2 * number

@pytest.fixture
def began():
    return time.process_time()

@pytest.mark.parametrize("number", range(50))
def test_one_of_many(began, manyhands, number):
    handle = double.submit(number)
    manyhands.drain()
    assert handle.result() == 2 * number
    took.append(time.process_time() - began)

def test_the_processor_time_of_each():
    assert sorted(took)[len(took) // 2] <= 0.005
"""


def test_a_test_takes_five_milliseconds_at_most(tmp_path):
    """P78."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    assert "51 passed" in run_suite(tmp_path, QUICK)
