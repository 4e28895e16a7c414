"""WMP over real sockets against the real program: workers, submitters, leases and restarts."""

import contextlib
import shutil
import signal
import subprocess
import threading
import time

import pytest
import zmq

from manyhands.client.wmp import Job
from manyhands.protocols.wmp.codec import Command
from manyhands.protocols.wmp.readiness import WAKE_SECONDS
from tests.e2e.serving import (
    SECONDS_MAX,
    Api,
    Served,
    own_address,
    serving,
    start,
    stopping,
)
from tests.e2e.wmp_talk import REPLY_MS_MAX, Talk, wait_until, working

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

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


def test_w40_a_manager_that_restarts_accepts_the_leases_it_gave(tmp_path):
    where = own_address()
    with serving(tmp_path, "--wmp", where) as first, Talk(where) as worker:
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


# What can go wrong between a manager and its workers.


def test_w38_the_job_of_a_dead_worker_goes_to_another_and_its_late_report_is_refused(served):
    with Talk(address(served)) as other:
        job = other.submit("r", b"x")
        with Talk(address(served)) as dead:
            lost = dead.take(role="r")
            dead.status(lost, progress="1/2", timeout=300)  # the last that is heard of it
            wait_until(lambda: other.fetch(job)["progress"] == b"1/2", "its time is short")
        other.say(Command.READY, role="r")
        other.expect(Command.WAKE)
        taken = other.take(role="r")
        assert (taken["job"], taken["attempt"]) == (job.encode(), b"2")
        assert taken["lease"] != lost["lease"]
        with Talk(address(served)) as late:
            late.status(lost)
            assert late.expect(Command.CANCEL)["reason"] == b"lost"
            late.done(lost, b"late")
            assert late.expect(Command.CANCEL)["reason"] == b"lost"
        other.done(taken, b"in time")
        assert other.expect(Command.CANCEL)["reason"] == b"recorded"
        assert other.fetch(job).payload == b"in time"


def test_w37_signs_of_life_keep_a_lease_for_as_long_as_it_takes(served):
    with Talk(address(served)) as worker, contextlib.closing(Api(served)) as api:
        job = worker.submit("r", b"x")
        taken = worker.take(role="r")
        ends_at = 0
        for step in range(1, 9):

            def is_renewed(step: int = step, before: int = ends_at) -> bool:
                worker.status(taken, progress=f"{step}/8")
                return api.get(f"jobs/{job}")["lease"]["expires_at"] > before

            wait_until(is_renewed, "the lease ends later")
            ends_at = api.get(f"jobs/{job}")["lease"]["expires_at"]
        worker.done(taken, b"slow")
        assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
        shown = api.get(f"jobs/{job}")
    assert (shown["state"], shown["attempts_used"]) == ("completed", 0)


def test_w34_w35_w36_reports_that_come_twice_wrong_or_another_way(served):
    """W34, W35 and W36."""
    with Talk(address(served)) as worker, Talk(address(served)) as other:
        job = worker.submit("r", b"x")
        taken = worker.take(role="r")
        other.done(taken, b"forged", lease=b"x" * 16)
        assert other.expect(Command.CANCEL)["reason"] == b"lost"
        other.done(taken, b"first")  # the same worker, after a reconnect
        assert other.expect(Command.CANCEL)["reason"] == b"recorded"
        worker.done(taken, b"again")
        assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
        assert worker.fetch(job).payload == b"first"


def test_w26_a_worker_that_vanished_before_wake_is_forgotten_and_the_job_stays(served):
    with Talk(address(served)) as gone:
        gone.say(Command.READY, role="r")
        wait_until(lambda: metric(served, "manyhands_wmp_ready") == 1, "it is ready")
    with Talk(address(served)) as client:
        job = client.submit("r", b"x")
        wait_until(lambda: metric(served, "manyhands_wmp_ready") == 0, "it is forgotten")
        assert client.take(role="r")["job"] == job.encode()


def test_w39_a_cancelled_job_is_told_to_its_worker(served):
    with Talk(address(served)) as worker, contextlib.closing(Api(served)) as api:
        job = worker.submit("r", b"x")
        taken = worker.take(role="r")
        api.results("cancel", ids=[job])

        told = worker.expect(Command.CANCEL)
        assert (told["reason"], told["lease"]) == (b"cancelled", taken["lease"])
        worker.done(taken, b"too late")
        assert worker.expect(Command.CANCEL)["reason"] == b"cancelled"
        assert worker.fetch(job)["state"] == b"cancelled"


def test_w29_a_give_that_waits_is_three_messages_a_job(served):
    with Talk(address(served)) as worker, Talk(address(served)) as client:
        worker.say(Command.GIVE, lock="L", role="r", wait=80_000, timeout=90_000)
        wait_until(lambda: metric(served, "manyhands_wmp_held") == 1, "it waits")
        job = client.submit("r", b"x")
        taken = worker.expect(Command.TAKE)
        assert taken["job"] == job.encode()
        worker.done(taken, ack=0)
        assert client.fetch(job, wait=80_000)["state"] == b"completed"
        assert worker.is_silent()


def test_w42_a_manager_that_stops_lets_nobody_wait_and_takes_results_in(tmp_path):
    patient = ("--drain-seconds", "600")
    with serving(tmp_path, *LISTEN, *patient) as served, Talk(address(served)) as worker:
        job = worker.submit("r", b"x")
        taken = worker.take(role="r")
        worker.say(Command.GIVE, lock="L2", role="r", wait=600_000, timeout=600_000)
        wait_until(lambda: metric(served, "manyhands_wmp_held") == 1, "it waits")
        with stopping(served):
            worker.done(taken, b"last")
            assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
        no = worker.expect(Command.NO)
        assert (no["lock"], no["retry-after"]) == (b"L2", b"1000")
        assert served.process.wait(SECONDS_MAX) == 0
    with serving(tmp_path, *LISTEN) as served, Talk(address(served)) as worker:
        assert worker.fetch(job).payload == b"last"


# Many.


def test_w14_eight_slots_are_used_at_once_and_no_lease_is_lost(served):
    together = threading.Barrier(8, timeout=SECONDS_MAX)

    def handle(job: Job) -> bytes:
        together.wait()  # passes only if eight jobs run at the same time
        job.report(1, 2)
        return job.payload

    with Talk(address(served)) as client:
        jobs = [client.submit("r", b"%d" % number) for number in range(16)]
        with working(address(served), handler=handle, roles=["r"], slots=8):
            for number, job in enumerate(jobs):
                assert client.fetch(job, wait=80_000).payload == b"%d" % number
    assert metric(served, "manyhands_leases_taken_total") == 0


def test_w23_two_hundred_idle_workers_cost_no_more_messages_than_one(served):
    context = zmq.Context()
    with Talk(address(served)) as client:
        peers = {(peer := Talk(address(served), context=context)).socket: peer for _ in range(200)}
        poller = zmq.Poller()
        for peer in peers.values():
            peer.say(Command.READY, role="r")
            poller.register(peer.socket, zmq.POLLIN)
        wait_until(lambda: metric(served, "manyhands_wmp_ready") == 200, "all are ready")
        allowed = 0
        for _ in range(5):
            began = time.monotonic()
            client.submit("r", b"x")
            socket, _ = poller.poll(REPLY_MS_MAX)[0]
            peers[socket].expect(Command.WAKE)
            peers[socket].take(role="r")
            # Another one hears of it only if the first is slow.
            allowed += 1 + int((time.monotonic() - began) / WAKE_SECONDS)
        assert 5 <= metric(served, "manyhands_wmp_wakes_total") <= allowed
        context.destroy(linger=0)


def test_w24_an_operator_may_bring_a_function_that_chooses(tmp_path, monkeypatch):
    (tmp_path / "balancing.py").write_text(
        "def by_free_slots(candidates, role):\n"
        "    return max(candidates, key=lambda entry: entry.slots, default=None)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        serving(tmp_path, *LISTEN, "--wmp-choose", "balancing:by_free_slots") as served,
        Talk(address(served)) as small,
        Talk(address(served)) as large,
    ):
        small.say(Command.READY, role="r", slots=1)
        large.say(Command.READY, role="r", slots=50)
        wait_until(lambda: metric(served, "manyhands_wmp_ready") == 2, "both are ready")
        began = time.monotonic()
        large.submit("r", b"x")
        large.expect(Command.WAKE)
        # The other one hears of it only if the first is slow.
        assert small.is_silent() or time.monotonic() - began > WAKE_SECONDS


def test_w24_a_function_that_is_not_there_ends_the_start_with_a_sentence(tmp_path):
    with pytest.raises(AssertionError, match="wmp_choose: nowhere:f cannot be loaded"):
        start(tmp_path, *LISTEN, "--wmp-choose", "nowhere:f")


def test_w23_all_workers_are_woken_if_that_is_configured(tmp_path):
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, *LISTEN, "--wmp-wake", "all"))
        peers = [stack.enter_context(Talk(address(served))) for _ in range(5)]
        for peer in peers:
            peer.say(Command.READY, role="r")
        wait_until(lambda: metric(served, "manyhands_wmp_ready") == 5, "all are ready")
        peers[0].submit("r", b"x")
        for peer in peers:
            peer.expect(Command.WAKE)


def test_w43_a_gearman_client_is_served_by_a_wmp_worker(tmp_path):
    if shutil.which("gearman") is None:
        pytest.skip("no gearman")
    with serving(tmp_path, *LISTEN, "--gearman", "127.0.0.1:0") as served:
        host, _, port = (served.addresses["gearman"] or "").rpartition(":")
        command = ["gearman", "-h", host, "-p", port, "-f", "up", "--", "hello"]
        with working(address(served), handler=lambda job: job.payload.upper()):
            assert subprocess.check_output(command, timeout=SECONDS_MAX) == b"HELLO"
