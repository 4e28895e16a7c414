"""WMP over real sockets against the real program: workers, submitters, leases and restarts."""

import contextlib
import signal

import pytest

from manyhands.wire.wmp import Command
from tests.e2e.serving import Api, Served, serving, start
from tests.e2e.wmp_talk import Talk, wait_until, working

LISTEN = ("--wmp", "127.0.0.1:0")


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request, tmp_path):
    with serving(tmp_path, *LISTEN, "--loop", request.param) as server:
        yield server


def address(served: Served) -> str:
    found = served.addresses["wmp"]
    assert found is not None
    return found


def metric(served: Served, name: str) -> float:
    with contextlib.closing(Api(served)) as api:
        for line in api.http.get("/metrics").text.splitlines():
            if line.startswith(name) and line[len(name)] in " {":
                return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_w1_a_job_from_submit_to_recorded(served):
    with Talk(address(served)) as client, Talk(address(served)) as worker:
        worker.say(Command.READY, role="mail", slots=1)
        job = client.submit("mail", b"hello")
        woken = worker.expect(Command.WAKE)
        assert (woken["role"], woken["count"]) == (b"mail", b"1")
        taken = worker.take(lock="L1", timeout=2000)
        assert taken.payload == b"hello"
        assert (taken["job"], taken["lock"], taken["role"]) == (job.encode(), b"L1", b"mail")
        assert (taken["timeout"], taken["attempt"]) == (b"60000", b"1")
        worker.done(taken, b"HELLO")
        assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
        ended = client.fetch(job)

    assert (ended["code"], ended["state"], ended.payload) == (b"200", b"completed", b"HELLO")


def test_a_worker_of_ours_works_for_every_front(served):
    with contextlib.closing(Api(served)) as api:
        jobs = [api.results("submit", queue="up", payload={"n": n})["id"] for n in range(50)]
        with working(
            address(served), handler=lambda job: job.payload.upper(), roles=["up"], slots=8
        ):
            wait_until(
                lambda: all(api.get(f"jobs/{job}")["state"] == "completed" for job in jobs),
                "all are completed",
            )
        assert [api.get(f"jobs/{job}")["result"] for job in jobs] == [
            f'{{"N":{n}}}' for n in range(50)
        ]


def test_a_manager_that_restarts_accepts_the_leases_it_gave(tmp_path):
    with serving(tmp_path, *LISTEN) as first, Talk(address(first)) as worker:
        where = address(first)
        job = worker.submit("r", b"x")
        taken = worker.take(role="r")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        first.ready_file.unlink()
        second = start(tmp_path, "--wmp", where)
        try:
            worker.status(taken, progress="1/2")
            worker.done(taken, b"after")
            assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
            assert worker.fetch(job).payload == b"after"
            assert metric(second, "manyhands_leases_taken_total") == 0
        finally:
            second.stop()
