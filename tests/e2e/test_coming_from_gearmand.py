"""What the page for users of gearmand says: its options and ours, and queued jobs that move."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyhands.config import OPTIONS
from manyhands.protocols.gearman import codec as wire
from tests.e2e.gearman_talk import GearmanTalk, wait_until
from tests.e2e.serving import SECONDS_MAX
from tests.e2e.test_gearman_beside_gearmand import gearmand, manyhands  # noqa: F401 - fixtures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from-gearmand.md").read_text("utf-8")
FLAG = re.compile(r"(?<![a-z`])`?(--[a-z][a-z0-9-]+)")
OURS = {"--config", "--help", *(option.flag for option in OPTIONS.values())}
# The options of other programs that the page names: ``gearadmin``.
OTHERS = {"--shutdown", "--status"}
# In the order of the queue, and not to be joined with each other.
JOBS = [
    (wire.SUBMIT_JOB_HIGH_BG, b"first", b"high"),
    (wire.SUBMIT_JOB_BG, b"", b"normal"),
    (wire.SUBMIT_JOB_BG, b"", b"with a \0 in it"),
    (wire.SUBMIT_JOB_LOW_BG, b"last", b""),
]


def table() -> list[tuple[str, str]]:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    return [(theirs, ours) for theirs, ours in rows]


def move(old, new, *functions: str) -> subprocess.CompletedProcess[str]:
    addresses = (old.addresses["gearman"], new.addresses["gearman"])
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "move_gearman_jobs.py", *addresses, *functions],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )


def test_every_option_of_ours_that_the_page_names_exists():
    text = "\n".join(line for line in PAGE.splitlines() if not line.startswith("| `"))

    named = {flag for part in (text, *(ours for _, ours in table())) for flag in FLAG.findall(part)}

    assert len(named) > 10
    assert named - OTHERS <= OURS, sorted(named - OTHERS - OURS)


def test_every_option_of_gearmand_has_its_line():
    if shutil.which("gearmand") is None:
        pytest.skip("not installed: gearmand")
    printed = subprocess.run(["gearmand", "--help"], capture_output=True, text=True, check=False)
    theirs = set(re.findall(r"(?<![a-z0-9'])--[a-z][a-z0-9-]+", printed.stdout + printed.stderr))

    named = {flag for row, _ in table() for flag in FLAG.findall(row)}

    assert theirs
    assert theirs <= named, sorted(theirs - named)


def drained(served, *functions: bytes) -> list[list[bytes]]:
    """All that a server hands out, without the handles."""
    with GearmanTalk(served) as worker:
        worker.can_do(*functions)
        found = []
        while job := worker.grab():
            worker.put(wire.WORK_COMPLETE, job[0], b"")
            found.append(job[1:])
        return found


def test_queued_jobs_move_with_all_they_have(gearmand, manyhands):  # noqa: F811
    with GearmanTalk(gearmand) as client:
        for kind, unique, data in JOBS:
            client.submit(b"mail", unique, data, kind)
        client.tell(wire.SUBMIT_REDUCE_JOB_BACKGROUND, b"sum", b"one", b"reducer", b"data")

        ended = move(gearmand, manyhands)

        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == "mail: 4 moved\nsum: 1 moved\n"
        assert {line.split(b"\t")[1] for line in client.text(b"status")} == {b"0"}
    with GearmanTalk(manyhands) as client:
        rows = dict(line.split(b"\t", 1) for line in client.text(b"prioritystatus"))
        assert rows == {b"mail": b"1\t2\t1\t0", b"sum": b"0\t1\t0\t0"}
        durable = [line.split(b"\t")[3] for line in client.text(b"show jobs")]
        assert durable == [b"1"] * 5
    assert drained(manyhands, b"mail") == [[b"mail", unique, data] for _, unique, data in JOBS]
    assert drained(manyhands, b"sum") == [[b"sum", b"one", b"reducer", b"data"]]


def test_a_job_that_somebody_waits_for_stays_where_it_is(gearmand, manyhands):  # noqa: F811
    with GearmanTalk(gearmand) as client:
        client.submit(b"mail", b"awaited", b"data", wire.SUBMIT_JOB)

        ended = move(gearmand, manyhands, "mail")

        assert ended.returncode == 1
        assert "a client still waits" in ended.stderr
        assert drained(manyhands, b"mail") == []
        wait_until(lambda: client.text(b"status") == [b"mail\t1\t0\t0"], "the job is back")
        assert drained(gearmand, b"mail") == [[b"mail", b"awaited", b"data"]]


def test_jobs_for_later_are_left_and_counted(gearmand, manyhands):  # noqa: F811
    with GearmanTalk(gearmand) as client:
        client.submit(b"mail", data=b"now")
        later = b"%d" % (time.time() + 3600)
        client.tell(wire.SUBMIT_JOB_EPOCH, b"mail", b"later", later, b"later")

        ended = move(gearmand, manyhands)

        assert ended.stdout == "mail: 1 moved\nmail: 1 left, running or for later\n"
    assert drained(manyhands, b"mail") == [[b"mail", b"", b"now"]]


def test_a_job_that_the_new_server_refuses_stays_at_the_old_one(gearmand, manyhands):  # noqa: F811
    with GearmanTalk(gearmand) as client, GearmanTalk(manyhands) as operator:
        client.submit(b"mail", b"one", b"data")
        operator.send(b"create function mail\nmaxqueue mail 1\n")
        assert [operator.next()[1] for _ in range(2)] == [[b"OK"], [b"OK"]]
        operator.submit(b"mail", data=b"full")

        ended = move(gearmand, manyhands)

        assert ended.returncode == 1
        assert "QUEUE_ERROR" in ended.stderr
        wait_until(lambda: client.text(b"status") == [b"mail\t1\t0\t0"], "the job is back")
        assert drained(gearmand, b"mail") == [[b"mail", b"one", b"data"]]
