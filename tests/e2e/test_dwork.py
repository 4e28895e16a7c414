"""dwork over real sockets against the real program, and together with HTTP and Gearman."""

import contextlib
import random
import shutil
import subprocess
import threading

import pytest
import zmq

from manyhands.protocols.dwork.codec import Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode
from tests.e2e.dwork_talk import Talk, a_task, addresses
from tests.e2e.gearman_talk import wait_until
from tests.e2e.serving import SECONDS_MAX, Api, Served, connections_count, serving, stopping

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

LISTEN = ("--dwork", "127.0.0.1:0,physics=127.0.0.1:0")


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request, tmp_path):
    with serving(tmp_path, *LISTEN, "--loop", request.param) as server:
        yield server


def be_held(served: Served, talk: Talk, location: str) -> None:
    """Ask for work where there is none. That is held for a second only, so it is asked again until
    it was seen to be held.
    """
    talk.socket.send(encode(Query(kind=Kind.STEAL, location=location)))
    with contextlib.closing(Api(served)) as api:

        def is_held() -> bool:
            if talk.socket.poll(0):
                assert decode(talk.socket.recv()).kind is Kind.NOT_FOUND
                talk.socket.send(encode(Query(kind=Kind.STEAL, location=location)))
            return "manyhands_sleepers 1.0" in api.http.get("/metrics").text

        wait_until(is_held, "it is held")


def test_d1_a_graph_is_created_worked_and_drained_over_req_sockets(served):
    with Talk(served) as one, Talk(served) as other:
        one.create(a_task("a"), a_task("b", "a"), a_task("c", "a"), a_task("d", "b", "c"))

        assert one.steal("w1", n=10) == ["a"]
        assert one.complete("a") is Kind.OK
        assert sorted([*one.steal("w1"), *other.steal("w2")]) == ["b", "c"]
        assert other.complete("b", "c", location="w2") is Kind.OK
        assert other.steal("w2") == ["d"]
        assert other.complete("d", location="w2") is Kind.OK
        assert one.steal() is Kind.EXIT


def test_d3_a_dealer_may_pipeline_and_hears_in_order(served):
    with Talk(served, kind=zmq.DEALER) as dealer:
        count = 3_000  # more than one slice of the reader, and more than a queue holds
        for number in range(count):
            body = encode(Query(kind=Kind.CREATE, tasks=(a_task(f"t{number}"),)))
            dealer.socket.send_multipart([b"", body])
            dealer.socket.send_multipart([b"", encode(Query(kind=Kind.LOOKUP, name=f"t{number}"))])
            if number >= 100:
                read_pair(dealer, number - 100)
        for number in range(count - 100, count):
            read_pair(dealer, number)


def read_pair(dealer: Talk, number: int) -> None:
    created, shown = (decode(dealer.socket.recv_multipart()[1]) for _ in range(2))
    assert created.kind is Kind.OK
    assert [task.name for task in shown.tasks] == [f"t{number}"]


def test_d2_and_d4_a_peer_that_sends_rubbish_harms_nobody(served):
    chance = random.Random(7)
    with Talk(served, kind=zmq.DEALER) as vandal, Talk(served) as other:
        for _ in range(500):
            frames = [chance.randbytes(chance.randrange(20)) for _ in range(chance.randrange(1, 5))]
            vandal.socket.send_multipart(frames)
        vandal.socket.send_multipart([b"", b"\x08\x06", b"\x08\x06"])
        vandal.socket.send_multipart([b"envelope", b"", b"\x08\x06"])
        while (frames := vandal.socket.recv_multipart())[0] != b"envelope":
            assert frames[-2] == b""
            assert decode(frames[-1]).kind in (Kind.ERROR, Kind.OK, Kind.NOT_FOUND)

        other.create(a_task("a"))
        assert other.steal() == ["a"]
    assert "messages without delimiter or body were dropped" in served.log()


def test_d18_a_held_steal_is_answered_when_work_appears(served):
    with Talk(served) as producer, Talk(served) as worker:
        for number in range(30):
            be_held(served, worker, "idle")
            producer.create(a_task(f"t{number}"))
            reply = decode(worker.socket.recv())
            if reply.kind is Kind.TRANSFER:
                break
            # Its second was over just before. Whoever asks now is not held.
            assert worker.steal("other") == [f"t{number}"]

        assert [task.name for task in reply.tasks] == [f"t{number}"]


def test_d21_a_task_for_a_peer_that_is_gone_goes_to_another(served):
    with Talk(served) as producer:
        assert producer.ask(Kind.OK).n == 0
        with Talk(served) as worker:
            be_held(served, worker, "gone")
        address = addresses(served)["dwork"]
        wait_until(lambda: connections_count(address) == 1, "the server knows that it went")
        producer.create(a_task("a"))

        assert producer.steal("other") == ["a"]


def test_d34_each_endpoint_is_a_graph_of_its_own(served):
    with Talk(served) as first, Talk(served, "physics") as second:
        first.create(a_task("same"))
        second.create(a_task("same"), a_task("more"))

        assert first.ask(Kind.OK).n == 1
        assert first.steal() == ["same"]
        assert first.complete("same") is Kind.OK
        assert first.steal() is Kind.EXIT
        assert second.steal(n=9) == ["same", "more"]


def test_d6_while_it_stops_the_server_answers_exit_and_takes_reports_in(tmp_path):
    options = (*LISTEN, "--drain-seconds", "600")
    with serving(tmp_path, *options) as served, Talk(served) as worker, Talk(served) as idle:
        worker.create(a_task("a"))
        assert worker.steal() == ["a"]
        be_held(served, idle, "idle")
        with stopping(served):
            # Its second may have been over before.
            assert decode(idle.socket.recv()).kind in (Kind.EXIT, Kind.NOT_FOUND)
            assert idle.steal("idle") is Kind.EXIT
            assert worker.complete("a") is Kind.EXIT
        assert served.process.wait(SECONDS_MAX) == 0
    with serving(tmp_path, *LISTEN) as served, Talk(served) as worker:
        assert worker.steal() is Kind.EXIT


def test_d32_a_silent_worker_loses_its_task_where_leases_have_a_term(tmp_path):
    with (
        serving(tmp_path, *LISTEN, "--dwork-lease-seconds", "1") as served,
        Talk(served) as lost,
        Talk(served) as other,
    ):
        lost.create(a_task("a"))
        assert lost.steal("lost") == ["a"]

        wait_until(lambda: other.steal("other") == ["a"], "the lease ended")
        assert other.complete("a", location="other") is Kind.OK


def test_an_address_that_is_taken_ends_the_server_with_a_sentence(served):
    address = served.addresses["dwork"].split(",")[0]
    folder = served.folder / "second"
    folder.mkdir()

    with pytest.raises(AssertionError, match=f"dwork cannot listen on {address}: Address"):
        serving(folder, "--dwork", address).__enter__()


# Other fronts.


def test_d35_a_task_is_worked_over_http_and_everything_is_published(served):
    with contextlib.closing(Api(served)) as api, Talk(served) as talk:
        talk.create(a_task("first"), a_task("second", "first"))

        (job,) = api.results("claim", queues=["dwork"], worker="http")
        assert job["payload"] == "first"
        done = {"id": job["id"], "token": job["token"], "result": {"x": 1}}
        api.results("complete", **done)
        (task,) = talk.ask(Kind.LOOKUP, name="first").tasks

        assert task.result == b'{"x":1}'
        assert talk.steal() == ["second"]
        assert talk.complete("second") is Kind.OK
        states = [event["state"] for event in api.get("events?after=0")]
    assert states == ["ready", "blocked", "leased", "completed", "ready", "leased", "completed"]


def test_d35_a_job_of_http_is_worked_over_dwork(served):
    with contextlib.closing(Api(served)) as api, Talk(served) as talk:
        submitted = api.results("submit", queue="dwork", payload={"n": 7})

        (task,) = talk.ask(Kind.STEAL, location="w1").tasks
        assert task.name == submitted["id"]
        assert task.payload == b'{"n":7}'
        report = Task(name=task.name, origin="w1", result=b"49")
        assert talk.ask(Kind.COMPLETE, report, location="w1").kind is Kind.OK
        job = api.get(f"jobs/{task.name}")
        assert (job["state"], job["result"]) == ("completed", "49")


needs_gearman = pytest.mark.skipif(shutil.which("gearman") is None, reason="no gearman")


@needs_gearman
def test_d35_a_graph_is_worked_by_a_gearman_worker(tmp_path):
    with (
        serving(tmp_path, *LISTEN, "--gearman", "127.0.0.1:0") as served,
        Talk(served) as talk,
    ):
        talk.create(a_task("one"), a_task("two", "one"), a_task("three", "two"))
        host, _, port = served.addresses["gearman"].rpartition(":")
        command = ["gearman", "-h", host, "-p", port, "-w", "-f", "dwork", "-c", "3", "--", "tr"]
        subprocess.run([*command, "a-z", "A-Z"], check=True, timeout=SECONDS_MAX)

        assert talk.steal() is Kind.EXIT
        with contextlib.closing(Api(served)) as api:
            jobs = api.get("jobs?queue=dwork&order=oldest")
            results = [api.get(f"jobs/{job['id']}")["result"] for job in jobs]
        assert results == ["ONE", "TWO", "THREE"]


@needs_gearman
def test_d35_a_gearman_client_is_served_by_a_dwork_worker(tmp_path):
    with (
        serving(tmp_path, *LISTEN, "--gearman", "127.0.0.1:0") as served,
        Talk(served) as talk,
    ):
        host, _, port = served.addresses["gearman"].rpartition(":")
        heard: list[bytes] = []
        command = ["gearman", "-h", host, "-p", port, "-f", "dwork", "--", "hello"]
        client = threading.Thread(
            target=lambda: heard.append(subprocess.check_output(command, timeout=SECONDS_MAX))
        )
        client.start()
        wait_until(lambda: talk.ask(Kind.OK).n == 1, "the job was submitted")
        (task,) = talk.ask(Kind.STEAL, location="w1").tasks
        report = Task(name=task.name, origin="w1", result=b"worked: " + (task.payload or b""))
        talk.ask(Kind.COMPLETE, report, location="w1")
        client.join(SECONDS_MAX)

        assert heard == [b"worked: hello"]


@pytest.mark.parametrize("queue", ["dwork", "elsewhere"])
def test_d35_a_task_comes_after_a_job_of_http_also_over_a_restart(tmp_path, queue):
    with serving(tmp_path, "--dwork", "127.0.0.1:0") as served, Talk(served) as talk:
        with contextlib.closing(Api(served)) as api:
            for job_id in ("abc123", "def456"):
                api.results("submit", queue=queue, id=job_id)
            [done] = api.results("claim", id="def456")
            api.results("complete", id=done["id"], token=done["token"])
        talk.create(a_task("b", "abc123", "def456"))
        served.process.kill()
        served.process.wait()

    with serving(tmp_path, "--dwork", "127.0.0.1:0") as served, Talk(served) as talk:
        before = talk.ask(Kind.LOOKUP, name="b")
        with contextlib.closing(Api(served)) as api:
            [job] = api.results("claim", queue=queue)
            [waited] = [found["state"] for found in api.get("jobs?name=b")]
            api.results("complete", id=job["id"], token=job["token"])

        assert talk.steal() == ["b"]

    assert [dep.name for dep in before.tasks[0].preds] == ["abc123", "def456"]
    assert (job["id"], waited) == ("abc123", "blocked")
