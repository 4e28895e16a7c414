"""What an operator reads in the log about Gearman peers and their jobs."""

import json

import pytest

from manyhands.protocols.gearman import codec as wire
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import serving, wait_until

LISTEN = ("--store", "memory", "--http", "off", "--gearman", "127.0.0.1:0")


def lines(served) -> list[dict]:
    return [json.loads(line) for line in served.log().splitlines()]


def told(served, event: str) -> list[dict]:
    return [line for line in lines(served) if line["event"].startswith(event)]


@pytest.fixture
def debugging(tmp_path):
    with serving(tmp_path, *LISTEN, "--log-level", "debug", "--job-retries", "2") as it:
        yield it


def test_each_timeout_is_one_line_of_the_ordinary_log(tmp_path):
    """G26"""
    with serving(tmp_path, *LISTEN) as served, GearmanTalk(served) as worker:
        worker.put(wire.CAN_DO_TIMEOUT, b"f", b"1")
        worker.put(wire.SET_CLIENT_ID, b"slow one")
        handle = worker.submit(b"f")
        worker.grab()
        wait_until(lambda: told(served, "a lease expired"))
        assert worker.grab()[0] == handle
        worker.put(wire.WORK_COMPLETE, handle, b"")
        assert worker.is_alive()

        (line,) = told(served, "a lease expired")
        assert line["level"] == "info"
        assert (line["job_id"], line["queue"], line["worker"]) == (
            *(handle[-32:].decode(), "f"),
            "slow one",
        )
        assert (line["attempts_used"], line["attempts_max"]) == (1, 5)
        assert line["held_ms"] >= 1000


def test_debug_shows_connections_errors_lost_jobs_and_jobs_out_of_attempts(debugging):
    with GearmanTalk(debugging) as client:
        handle = client.submit(b"f")
        client.tell(wire.OPTION_REQ, b"nonsense")
        client.tell(wire.WORK_FAIL, handle)
        client.send(b"\0REQ\0\0\0\x63\0\0\0\0")
        client.next()
        for _ in range(2):
            with GearmanTalk(debugging) as worker:
                assert worker.can_do(b"f").grab()[0] == handle
            wait_until(lambda: client.tell(wire.GET_STATUS, handle)[1][2] == b"0")
        wait_until(lambda: told(debugging, "a job failed: its attempts are used up"))

        (lost,) = told(debugging, "a worker's connection was lost")
        assert lost["job_id"] == handle[-32:].decode()
        (failed,) = told(debugging, "a job failed: its attempts are used up")
        assert failed["failure"].endswith("the worker's connection was lost")
        codes = [line["code"] for line in told(debugging, "a peer was given an error")]
        assert codes == ["UNKNOWN_OPTION", "JOB_NOT_FOUND", "INVALID_COMMAND"]
        assert len(told(debugging, "connected")) == 3
        assert len(told(debugging, "disconnected")) == 2


def test_nothing_of_that_is_in_the_ordinary_log(tmp_path):
    with serving(tmp_path, *LISTEN) as served:
        with GearmanTalk(served) as client:
            handle = client.submit(b"f")
            client.tell(wire.WORK_FAIL, handle)
            with GearmanTalk(served) as worker:
                worker.can_do(b"f").grab()
            wait_until(lambda: client.tell(wire.GET_STATUS, handle)[1][2] == b"0")

        assert {line["level"] for line in lines(served)} == {"info"}
        assert [line["event"] for line in lines(served)] == ["ready"]
