"""The benchmark of Python workers runs, really does its jobs and reports; figures are not judged.

It ends with an error unless every job of a drain was done and nothing was left.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS_MAX, environment

BENCH = Path(__file__).parents[2] / "bench" / "python"
SCALE = "0.001"
_SPREAD = re.compile(r"([\d,.]+) \(([\d,.]+) to ([\d,.]+)\)")


def run(folder: Path, *workloads: str) -> str:
    """The report of ours alone: other peers have to be installed first."""
    chosen = ["--peers", "ours", "--rounds", "1", "--workloads", ",".join(workloads)]
    found = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *chosen, "--scale", SCALE],
        env=environment() | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * SECONDS_MAX,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert not list(folder.iterdir())
    return found.stdout


def tables(report: str) -> dict[str, list[dict[str, str]]]:
    """The rows below each title, by the heads of their columns."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in report.split("\n### ")[1:]:
        title, _, rest = part.partition("\n")
        assert re.search(r"^load at the end: \d", rest, re.MULTILINE)
        lines = [line for line in rest.splitlines() if line.startswith("|")]
        heads, _, *rows = [line.strip("| ").split(" | ") for line in lines]
        found[title] = [dict(zip(heads, row, strict=True)) for row in rows]
    return found


def middle(cell: str) -> float:
    """The median, which lies between the lowest and the highest."""
    found = _SPREAD.fullmatch(cell)
    assert found is not None, cell
    median, low, high = (float(text.replace(",", "")) for text in found.groups())
    assert 0 < low <= median <= high
    return median


def test_drain_submit_and_results_are_measured(tmp_path):
    """P84, P85, P86 and P90: by the round and beside what each peer promises."""
    found = tables(run(tmp_path, "drain", "submit", "results", "latency", "lone"))

    [drain] = found["Drain"]
    assert drain["peer"] == "ours"
    assert "flushed before it is acknowledged; at least once" in drain["promise"]
    for column in ("submitted together/s", "jobs/s, 1 process", "jobs/s, 2 processes"):
        assert middle(drain[column]) > 0
    one, many = found["Submit"]
    assert (one["peer"], many["peer"]) == ("ours", "ours, 16 threads")
    assert (one["ours is x times"], float(many["ours is x times"]) > 0) == ("1.00", True)
    [results] = found["End to end, with results"]
    assert middle(results["jobs/s"]) > 0
    [latency] = found["Latency at 100 jobs/s"]
    assert middle(latency["median, ms"]) <= middle(latency["99 of 100 within, ms"])
    [lone] = found["A lone job"]
    assert lone["peer"] == "ours"
    numbers = re.findall(r"-?\d+\.\d+", lone["median, ms"] + lone["99 of 100 within, ms"])
    assert len(numbers) == 6  # below 0, if the job began before its submitter heard of it


def test_jobs_that_take_time_memory_and_other_work_are_measured(tmp_path):
    """P87, P88, P89."""
    found = tables(run(tmp_path, "waiting", "memory", "beside"))

    nap, burn = found["Jobs that take time"]
    for each in (nap, burn):
        ratio = middle(each["jobs/s"]) / middle(each["without a queue"])
        assert abs(float(each["share"]) - ratio) < 0.1 + ratio / 10
    resident, descriptors = found["Memory over 1,000 jobs"]
    assert int(resident["after a tenth"].replace(",", "")) > 1_000
    assert int(descriptors["at the end"]) > 0
    alone, beside = found["Other work"]
    assert alone["of that alone"] == "1.00"
    assert float(beside["of that alone"]) > 0


def test_a_drain_that_leaves_jobs_behind_is_no_result(tmp_path):
    """P84: what was not done in time does not count."""
    code = (
        "import tally; tally.reset(); add = tally.counter(); add(); add();"
        "print(tally.watch(3, lambda: 0, 0.05))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=BENCH,
        env=os.environ | {"BENCH_TALLY": str(tmp_path / "tally")},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert (found.returncode, found.stdout) == (1, "watching\n")
    assert "2 of 3 jobs were done in time" in found.stderr


def said(code: str, folder: Path) -> str:
    """What a program of the benchmark's folder prints."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=BENCH,
        env=os.environ | {"BENCH_TALLY": str(folder / "tally"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * SECONDS_MAX,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_all_peers_say_how_durable_they_are_and_how_often_they_deliver(tmp_path):
    """P84, P90: those that the figures are compared with, each with its promise."""
    promises = json.loads(
        said(
            "import json, peers; print(json.dumps({k: v.promise for k, v in peers.PEERS.items()}))",
            tmp_path,
        )
    )

    others = ("pgqueuer", "huey-fsync", "dramatiq", "saq", "celery", "arq", "rq", "procrastinate")
    assert {*others, "taskiq", "ours", "ours-async"} <= set(promises)
    for name in (*others, "taskiq"):
        durable, _, delivery = promises[name].partition("; ")
        assert re.search("flushed|synchronous_commit on", durable), name
        assert delivery == ("at most once" if name.startswith("huey") else "at least once")


def test_rounds_are_interleaved_and_a_peer_that_fails_is_left_out(tmp_path):
    """P84: in one direction and then in the other, so that nobody is always first."""
    code = """
import subprocess
from workloads import Bench
order = []
def measure(name):
    order.append(name)
    if name == "c" and len(order) > 5:
        raise subprocess.CalledProcessError(1, name)
    return float(len(order))
bench = Bench({name: "" for name in "abc"}, 3, 1.0, "")
found = bench.in_turns(bench.among("a", "b", "c"), measure)
print("".join(order), sorted(found), bench.among("a", "c"))
"""
    assert said(code, tmp_path).splitlines()[-1] == "abccbaabc ['a', 'b'] ['a']"


def test_peers_are_installed_into_an_environment_of_the_benchmarks_own(tmp_path):
    """P90: once, and again if that was interrupted."""
    code = f"""
import pathlib, peers, sys
home = pathlib.Path({str(tmp_path)!r})
peers.HERE = home
(home / "requirements.txt").write_text("")
first = peers.interpreter("requirements.txt", home)
again = peers.interpreter("requirements.txt", home)
assert first == again and pathlib.Path(first).is_relative_to(home)
(home / "requirements" / "complete").unlink()
peers.interpreter("requirements.txt", home)
assert peers.interpreter(None, home) == sys.executable
"""
    assert said(code, tmp_path).count("installing requirements.txt") == 2


@pytest.mark.parametrize("peer", sorted(path.stem for path in BENCH.glob("*_peer.py")))
def test_each_peer_is_a_file_with_pinned_versions_and_a_promise(peer):
    """P90."""
    listed = (BENCH / "peers.py").read_text("utf-8")
    pinned = "".join(path.read_text("utf-8") for path in BENCH.glob("requirements*.txt"))
    name = peer.removesuffix("_peer")

    assert f'"{peer}.py"' in listed
    assert re.search(rf"^{name}(\[\w+\])?==\d", pinned, re.MULTILINE)
    used = (BENCH / f"{peer}.py").read_text("utf-8")
    assert " on " in used.partition("\n")[0]
    assert "main(fill, work, left" in used
