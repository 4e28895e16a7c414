"""Devices as programs, between real workers and real managers; and many managers at once."""

import collections
import contextlib
import signal
import threading

import pytest
import zmq

from manyhands.client.wmp import Job
from manyhands.protocols.wmp.codec import Command, Packet, decode, encode, pack, unpack
from manyhands.protocols.wmp.device_program import DeviceProgram
from tests.e2e.serving import (
    SECONDS_MAX,
    Served,
    connections_count,
    own_address,
    run,
    serving,
    start,
)
from tests.e2e.wmp_talk import Carrier, Talk, wait_until, working

LISTEN = ("--wmp", "127.0.0.1:0", "--store", "memory")


@pytest.fixture
def managers(tmp_path):
    """Three servers that know nothing of each other."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(3):
            folder = tmp_path / f"m{number}"
            folder.mkdir()
            name = ("--server-name", f"M{number}")
            servers.append(stack.enter_context(serving(folder, *LISTEN, *name)))
        yield servers


def address(served: Served) -> str:
    found = served.addresses["wmp"]
    assert found is not None
    return found


class Tally:
    """Who gave which jobs, as a handler saw it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.order: list[str] = []

    def __call__(self, job: Job) -> bytes:
        with self.lock:
            self.order.append(job.manager)
        return job.payload

    def counts(self) -> dict[str, int]:
        return dict(collections.Counter(self.order))


def test_w56_all_eight_commands_through_two_chained_devices(managers):
    """W50, W51, W52, W53, W55 and W56."""
    first = managers[0]
    with (
        Carrier(address(first)) as far,
        Carrier(far.address) as near,
        Talk(near.address) as worker,
        Talk(address(first)) as client,
    ):
        worker.say(Command.READY, role="r")
        job = client.submit("r", b"hello")
        woken = worker.expect(Command.WAKE)
        way = woken.packet.trail
        assert len(way) == 2
        worker.say(Command.GIVE, route=way, lock="L1", role="r", n=2)
        taken = worker.expect(Command.TAKE)
        assert (taken.payload, taken["job"], taken.packet.trail) == (b"hello", job.encode(), way)
        assert worker.expect(Command.NO)["lock"] == b"L1"
        worker.status(taken, progress="1/2")
        wait_until(lambda: client.fetch(job)["progress"] == b"1/2", "progress is known")
        worker.done(taken, b"HELLO")
        assert worker.expect(Command.CANCEL)["reason"] == b"recorded"
        assert client.fetch(job).payload == b"HELLO"
        near_counts, far_counts = near.stop(), far.stop()
    assert near_counts == {"carried": {"up": 4, "down": 4}, "dropped": {}}
    assert far_counts == near_counts


def test_w56_a_cancel_finds_its_way_through_two_devices(managers):
    """W39 and W56."""
    first = managers[0]
    started, stopped = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        started.set()
        if job.cancelled.wait(SECONDS_MAX):
            stopped.set()

    with (
        Carrier(address(first)) as far,
        Carrier(far.address) as near,
        Talk(address(first)) as client,
        working(near.address, handler=handle, roles=["r"]),
    ):
        job = client.submit("r", b"x")
        assert started.wait(SECONDS_MAX)
        client.say(Command.CLOSE, request="c", job=job)
        assert client.expect(Command.REPLY)["code"] == b"200"
        assert stopped.wait(SECONDS_MAX)


def test_w56_a_device_with_two_managers_and_five_workers(managers):
    """W51 and W56."""
    one, other = managers[:2]
    tally = Tally()
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(Carrier(address(one), address(other)))
        clients = [stack.enter_context(Talk(address(each))) for each in (one, other)]
        jobs = [(client, client.submit("r", b"%d" % n)) for n in range(20) for client in clients]
        for _ in range(5):
            stack.enter_context(working(device.address, handler=tally, roles=["r"], slots=2))
        for client, job in jobs:
            assert client.fetch(job, wait=80_000)["state"] == b"completed"
    assert tally.counts() == {"M0": 20, "M1": 20}


def test_w54_loops_and_dead_ends_go_no_further(managers):
    with contextlib.ExitStack() as stack:
        listen = own_address()
        # A device that is its own manager, beside a real one.
        device = stack.enter_context(Carrier(listen, address(managers[0]), listen=listen))
        worker = stack.enter_context(Talk(device.address))
        client = stack.enter_context(Talk(address(managers[0])))
        worker.say(Command.GIVE, lock="no way to go")
        worker.say(Command.GIVE, route=(b"nobody",), lock="L")
        client.submit("r", b"x")

        def is_woken() -> bool:
            worker.say(Command.READY, role="r")
            return bool(worker.socket.poll(200))

        wait_until(is_woken, "it is woken although there is a loop")
        dropped = device.stop()["dropped"]
    assert dropped.pop("loop") >= 1
    assert dropped.pop("dead_end") == 2
    assert dropped.keys() <= {"unreachable"}


def test_w54_what_cannot_be_delivered_is_counted(managers):
    with (
        Carrier(address(managers[0])) as device,
        Talk(address(managers[0])) as client,
    ):
        with Talk(device.address) as worker:
            worker.say(Command.READY, role="r")
            client.submit("r", b"x")
            way = worker.expect(Command.WAKE).packet.trail
            worker.say(Command.GIVE, route=way, lock="L", role="r", n=1, wait=60_000)
            job = worker.expect(Command.TAKE)["job"]
        wait_until(lambda: connections_count(device.address) == 0, "the device knows that it went")
        client.say(Command.CLOSE, request="c", job=job)  # tells a worker that is gone
        assert client.expect(Command.REPLY)["code"] == b"200"
        assert device.stop()["dropped"] == {"unreachable": 1}


def test_a_device_says_that_it_is_there_when_its_managers_are_or_after_a_moment(managers):
    """W50"""
    away = "127.0.0.1:1"  # nobody listens there
    program = DeviceProgram("127.0.0.1:0", [address(managers[0])])
    assert program.reach_managers(90_000) == 1
    other = DeviceProgram("127.0.0.1:0", [address(managers[0]), away])
    assert other.reach_managers(500) <= 1
    for each in (program, other):
        each.stop()
        each.run()


def test_w50_a_device_needs_a_good_address():
    taken = run("device", "--listen", "nonsense", "--manager", "127.0.0.1:1")
    assert taken.returncode == 2
    assert taken.stderr == (
        "manyhands: --listen cannot be nonsense because it is not an address with a port.\n"
    )
    exposed = run("device", "--listen", "0.0.0.0:0", "--manager", "127.0.0.1:1")
    assert "other machines could reach 0.0.0.0:0; allow it with --insecure" in exposed.stderr


# Many managers.


def test_w58_a_worker_takes_work_from_three_managers_in_turns(managers):
    tally = Tally()
    begun, go_on = threading.Event(), {b"first": threading.Event(), b"second": threading.Event()}

    def handler(job: Job) -> bytes:
        if job.payload in go_on:
            begun.set()
            assert go_on[job.payload].wait(SECONDS_MAX)
        return tally(job)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Talk(address(each))) for each in managers]
        worker = stack.enter_context(working(*map(address, managers), handler=handler, roles=["r"]))
        for client in clients:  # all three are known to it then
            assert client.fetch(client.submit("r", b"x"), wait=80_000)["state"] == b"completed"
        jobs = [(clients[0], clients[0].submit("r", b"first"))]
        assert begun.wait(SECONDS_MAX)
        jobs += [(client, client.submit("r", b"second")) for client in clients]
        jobs += [(client, client.submit("r", b"x")) for _ in range(40) for client in clients]
        wait_until(lambda: len(worker.rules._wanted) == 2, "two are in line")
        go_on[b"first"].set()
        wait_until(lambda: len(worker.rules._wanted) == 3, "all are in line")
        go_on[b"second"].set()
        for client, job in jobs:
            assert client.fetch(job, wait=80_000)["state"] == b"completed"

    order = tally.order[4:]
    assert collections.Counter(order) == {"M0": 41, "M1": 41, "M2": 41}
    for end in (30, 60, 90):
        counts = collections.Counter(order[:end])
        assert max(counts.values()) - min(counts.values()) <= 3, order[:end]


def test_w58_a_worker_survives_the_death_of_one_of_three_managers(managers):
    tally = Tally()
    one, two, dead = managers
    with (
        Talk(address(one)) as first,
        Talk(address(two)) as second,
        working(*map(address, managers), handler=tally, roles=["r"], slots=2),
    ):
        with Talk(address(dead)) as third:
            job = third.submit("r", b"x")
            assert third.fetch(job, wait=80_000)["state"] == b"completed"
        dead.process.send_signal(signal.SIGKILL)
        dead.process.wait()
        dead.ready_file.unlink()
        for client in (first, second):
            for _ in range(10):
                job = client.submit("r", b"x")
                assert client.fetch(job, wait=80_000)["state"] == b"completed"

        again = start(dead.folder, "--wmp", address(dead), "--store", "memory")
        try:
            with Talk(address(again)) as third:
                job = third.submit("r", b"back")
                assert third.fetch(job, wait=80_000).payload == b"back"
        finally:
            again.stop()


def test_w40_a_worker_reports_to_a_manager_that_was_killed_while_it_worked(tmp_path):
    go_on, started = threading.Event(), threading.Event()

    def handle(_job: Job) -> bytes:
        started.set()
        assert go_on.wait(SECONDS_MAX)
        return b"kept"

    where = own_address()
    first = start(tmp_path, "--wmp", where)
    with working(where, handler=handle, roles=["r"]) as worker:
        with Talk(where) as client:
            job = client.submit("r", b"x")
        assert started.wait(SECONDS_MAX)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        first.ready_file.unlink()
        go_on.set()  # its result finds nobody
        wait_until(lambda: bool(worker.rules.kept), "the result is kept")
        with serving(tmp_path, "--wmp", where) as again, Talk(where) as client:
            ended = client.fetch(job, wait=80_000)
            assert (ended["state"], ended.payload) == (b"completed", b"kept")
            wait_until(lambda: not worker.rules.kept, "it is recorded")
            assert again.process.poll() is None


# A manager in the middle.


class Middle(threading.Thread):
    """A manager that passes on the jobs of another one: a worker upwards, a manager downwards."""

    def __init__(self, manager: str) -> None:
        super().__init__(daemon=True)
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.address = f"127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.connect(f"tcp://{manager}")
        self.worker = b""
        self.stopping = False

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.dealer, zmq.POLLIN)
        while not self.stopping:
            for socket, _ in poller.poll(100):
                if socket is self.router:
                    self.worker, *frames = self.router.recv_multipart()
                    self.dealer.send_multipart(frames)
                else:
                    packet = unpack(self.dealer.recv_multipart())
                    control = packet.control
                    if decode(control).command is Command.WAKE:
                        control = encode(Command.WAKE, (b"manager", b"middle"))
                    onward = pack(Packet((), (), control, packet.payload))
                    self.router.send_multipart([self.worker, *onward])
        self.context.destroy(linger=0)


def test_w20_a_job_that_a_manager_in_the_middle_passes_on_is_accounted_to_its_own(managers):
    tally = Tally()
    middle = Middle(address(managers[0]))
    middle.start()
    try:
        with Talk(address(managers[0])) as client:
            with working(middle.address, handler=tally, roles=["r"]):
                job = client.submit("r", b"through the middle")
                ended = client.fetch(job, wait=80_000)
            assert (ended["state"], ended.payload) == (b"completed", b"through the middle")
    finally:
        middle.stopping = True
        middle.join(SECONDS_MAX)
    assert tally.order == ["M0"]
