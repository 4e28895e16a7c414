"""What was acknowledged over Gearman is there after kill -9, just as it was."""

import contextlib
import signal
import time

import pytest

from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman.draft_codec import (
    ASYNC_HANDLE,
    ASYNC_THROW_AWAY,
    JobCompleteRes,
    JobCreateReq,
    JobStatusReq,
    JobStatusRes,
)
from tests.e2e.gearman_talk import DraftTalk, GearmanTalk, wait_until
from tests.e2e.serving import Api, Served, start

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

LISTEN = ("--http", "127.0.0.1:0", "--gearman", "127.0.0.1:0")


class House:
    """A server that can be killed and started again on the same data."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.served: Served = start(folder, *LISTEN)
        self.closing = contextlib.ExitStack()

    def gearman(self) -> GearmanTalk:
        return self.closing.enter_context(GearmanTalk(self.served))

    def draft(self) -> DraftTalk:
        return self.closing.enter_context(DraftTalk(self.served))

    def job(self, handle: bytes) -> dict:
        """The record, over HTTP."""
        with contextlib.closing(Api(self.served)) as api:
            return api.get(f"jobs/{handle.decode()}")

    def kill(self) -> None:
        self.stop(signal.SIGKILL)
        self.served.ready_file.unlink()

    def stop(self, number: signal.Signals) -> int:
        code = self.served.stop(number)
        self.closing.close()
        return code

    def start(self) -> None:
        self.served = start(self.folder, *LISTEN)

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def house(tmp_path):
    it = House(tmp_path)
    yield it
    if it.served.process.poll() is None:
        assert it.stop(signal.SIGTERM) == 0


def test_uniques_order_and_priority_survive(house):
    """G13, G19, G23 and G44"""
    client = house.gearman()
    raw = bytes(range(1, 17)) + b"\xff\xfe"
    submitted = [
        (wire.SUBMIT_JOB_LOW_BG, b"", b"low"),
        (wire.SUBMIT_JOB_BG, b"", b"same"),
        (wire.SUBMIT_JOB_BG, b"", b"same"),
        (wire.SUBMIT_JOB_BG, b"-", b"one"),
        (wire.SUBMIT_JOB_BG, b"-", b"two"),
        (wire.SUBMIT_JOB_BG, raw, b"\0binary\0"),
        (wire.SUBMIT_JOB_HIGH_BG, b"u", b"high"),
    ]
    made = {}
    for kind, unique, data in submitted:
        made[client.submit(b"f", unique, data, kind)] = (unique, data)
    assert len(made) == len(submitted)

    house.restart()

    worker = house.gearman().can_do(b"f")
    grabbed = [worker.grab() for _ in made]
    assert worker.grab() == []
    handles = list(made)
    order = [handles[6], *handles[1:6], handles[0]]
    assert [row[0] for row in grabbed] == order
    assert [(row[2], row[3]) for row in grabbed] == [made[handle] for handle in order]


def test_uniques_still_join_after_a_restart(house):
    """G16 and G44"""
    client = house.gearman()
    keyed = client.submit(b"f", b"\xffkey", b"first")
    by_data = client.submit(b"f", b"-", b"data")

    house.restart()

    client = house.gearman()
    assert client.submit(b"f", b"\xffkey", b"second") == keyed
    assert client.submit(b"f", b"-", b"data") == by_data
    assert client.submit(b"f", b"-", b"other") != by_data


def test_a_job_for_later_keeps_its_time(house):
    """G21 and G44"""
    client = house.gearman()
    at = int(time.time()) + 3600
    _, (later,) = client.tell(wire.SUBMIT_JOB_EPOCH, b"f", b"", b"%d" % at, b"later")
    due = int(time.time()) + 3
    _, (soon,) = client.tell(wire.SUBMIT_JOB_EPOCH, b"g", b"", b"%d" % due, b"soon")

    house.restart()

    worker = house.gearman().can_do(b"f")
    assert worker.grab() == []
    worker.can_do(b"g").put(wire.PRE_SLEEP)
    assert worker.next() == (wire.NOOP, [])
    assert time.time() >= due
    assert worker.grab()[0] == soon
    assert worker.grab() == []
    record = house.job(later)
    assert (record["state"], record["run_at"]) == ("delayed", at * 1000)


def test_a_reducer_is_kept(house):
    """G22 and G44"""
    client = house.gearman()
    _, (handle,) = client.tell(wire.SUBMIT_REDUCE_JOB_BACKGROUND, b"f", b"u", b"s\xffum", b"a\0b")

    house.restart()

    worker = house.gearman().can_do(b"f")
    expected = (wire.JOB_ASSIGN_ALL, [handle, b"f", b"u", b"s\xffum", b"a\0b"])
    assert worker.tell(wire.GRAB_JOB_ALL) == expected


def test_a_foreground_job_is_abandoned_visibly(house):
    """G20 and G44"""
    client = house.gearman()
    handle = client.submit(b"f", b"", b"", wire.SUBMIT_JOB)
    joined = client.submit(b"f", b"u", b"", wire.SUBMIT_JOB)
    assert client.submit(b"f", b"u") == joined

    house.restart()

    worker = house.gearman().can_do(b"f")
    assert worker.grab()[0] == joined
    assert worker.grab() == []
    record = house.job(handle)
    assert (record["state"], record["reason"]) == ("cancelled", "abandoned")


def test_results_of_background_jobs_are_fetched_over_the_draft_and_http(house):
    """G45 and A45"""
    client, worker = house.gearman(), house.gearman().can_do(b"f")
    handle = client.submit(b"f", b"", b"data")
    broken = client.submit(b"f", b"", b"data")
    for _ in range(2):
        worker.grab()
    worker.put(wire.WORK_STATUS, handle, b"7", b"9")
    worker.put(wire.WORK_COMPLETE, handle, b"the result")
    worker.put(wire.WORK_EXCEPTION, broken, b"it broke")
    # Told only when everything before is on disk.
    assert worker.tell(wire.GET_STATUS, broken)[1][1] == b"0"

    house.restart()

    app = house.draft()
    assert app.completion(handle) == JobCompleteRes(1, 0, b"the result")
    assert app.completion(broken) == JobCompleteRes(1, 1, b"it broke")
    assert app.tell(JobStatusReq(handle)) == JobStatusRes(9, 9, 0)
    assert house.job(handle)["result"] == "the result"
    assert house.job(broken)["failure"]["message"] == "it broke"
    assert house.gearman().tell(wire.GET_STATUS, handle)[1][1:] == [b"0", b"0", b"0", b"0"]


def test_jobs_of_the_draft_survive(house):
    """A47 and A33"""
    app = house.draft()
    kept = app.tell(JobCreateReq(b"f", b"k\xff", ASYNC_HANDLE, b"1")).handle
    assert app.tell(JobCreateReq(b"f", b"", ASYNC_THROW_AWAY, b"2")).handle == b""

    house.restart()

    worker = house.gearman().can_do(b"f")
    assert [worker.grab()[3] for _ in range(2)] == [b"1", b"2"]
    app = house.draft()
    assert app.completion(kept) == JobCompleteRes(0, 0, b"")
    assert app.tell(JobCreateReq(b"f", b"k\xff", ASYNC_HANDLE, b"3")).handle == kept


def test_the_record_tells_each_start_and_end(house):
    """G45, G46 and A50"""
    client, worker = house.gearman(), house.gearman().can_do(b"f")
    worker.put(wire.SET_CLIENT_ID, b"first worker")
    handle = client.submit(b"f")
    worker.grab()
    assert worker.tell(wire.GET_STATUS, handle)[1][2] == b"1"
    worker.close()
    other = house.gearman().can_do(b"f")
    other.put(wire.PRE_SLEEP)
    assert other.next() == (wire.NOOP, [])
    other.grab()
    assert other.tell(wire.GET_STATUS, handle)[1][2] == b"1"

    house.restart()

    last = house.gearman().can_do(b"f")
    assert last.grab()[0] == handle
    last.put(wire.WORK_COMPLETE, handle, b"")
    assert last.tell(wire.GET_STATUS, handle)[1][1] == b"0"
    record = house.job(handle)
    attempts = record["attempts"]
    assert [row["reason"] for row in attempts] == ["lost", "released", "completed"]
    assert attempts[0]["holder"]["name"] == "first worker"
    assert all(row["claimed_at"] <= row["ended_at"] for row in attempts)
    assert record["attempts_used"] == 1  # neither the server's death nor the success cost one


def test_a_server_that_stops_properly_charges_nobody(house):
    """G11 and G46"""
    client, worker = house.gearman(), house.gearman().can_do(b"f")
    handle = client.submit(b"f")
    worker.grab()

    assert house.stop(signal.SIGTERM) == 0
    house.start()

    record = house.job(handle)
    assert (record["state"], record["attempts_used"]) == ("ready", 0)
    assert house.gearman().can_do(b"f").grab()[0] == handle


def test_handles_are_never_used_again(house):
    """G14 and A33"""
    before = {house.gearman().submit(b"f") for _ in range(5)}

    house.restart()

    client = house.gearman()
    assert not before & {client.submit(b"f") for _ in range(5)}
    assert all(client.tell(wire.GET_STATUS, handle)[1][1] == b"1" for handle in before)


def test_settings_made_by_text_survive(house):
    """G52 and G56"""
    client = house.gearman()
    client.submit(b"f")
    client.send(b"maxqueue f 1\ncreate function empty\n")
    assert [client.next()[1][0], client.next()[1][0]] == [b"OK", b"OK"]

    house.restart()

    client = house.gearman()
    assert client.text(b"status") == [b"empty\t0\t0\t0", b"f\t1\t0\t0"]
    assert client.tell(wire.SUBMIT_JOB_BG, b"f", b"", b"")[1][0] == b"QUEUE_ERROR"


def test_every_acknowledged_job_of_a_busy_server_survives(house):
    """G13 and G44"""
    client = house.gearman()
    packet = wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"x" * 100)
    client.send(packet * 3000)
    acknowledged = [client.next()[1][0] for _ in range(1000)]

    house.restart()

    watcher = house.gearman()
    answers = [watcher.tell(wire.GET_STATUS, handle)[1][1] for handle in acknowledged]
    assert answers == [b"1"] * len(acknowledged)


def test_a_worker_that_is_killed_loses_its_job_at_once(house):
    """G37"""
    client, worker, other = (house.gearman() for _ in range(3))
    worker.can_do(b"f")
    other.can_do(b"f")
    handle = client.submit(b"f", b"", b"", wire.SUBMIT_JOB)
    worker.grab()
    other.put(wire.PRE_SLEEP)
    assert other.is_alive()

    worker.close()

    assert other.next() == (wire.NOOP, [])
    assert other.grab()[0] == handle
    other.put(wire.WORK_COMPLETE, handle, b"r")
    assert client.next() == (wire.WORK_COMPLETE, [handle, b"r"])
    wait_until(lambda: house.job(handle)["state"] == "completed", "the record of the end")
