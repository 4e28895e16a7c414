"""A large graph, half worked, killed at some moment, started again and finished in order."""

import contextlib
import random
import re
import signal
import subprocess
import threading
from typing import Any

import pytest

from manyhands.protocols.dwork.codec import Counts, Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode
from tests.e2e.dwork_talk import Talk, a_task
from tests.e2e.gearman_talk import wait_until
from tests.e2e.serving import Api, Served, command, environment, own_address, run, serving, start

WIDTH, STEPS = 1_000, 100
STOLEN_AT_ONCE = 100
WORKERS = 2


def preds_of(step: int, place: int) -> list[tuple[int, int]]:
    if step == 0:
        return []
    return [(step - 1, near) for near in (place - 1, place, place + 1) if 0 <= near < WIDTH]


def name_of(step: int, place: int) -> str:
    return f"{step}.{place}"


class Records:
    """What the workers themselves wrote down, in the order in which it happened."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.news = threading.Condition()
        self.killed = threading.Event()
        self.clock = 0
        self.began: dict[str, list[int]] = {}
        self.ended: dict[str, int] = {}  # when its work was through, before that was reported
        self.told: dict[str, int] = {}  # when the server's OK for that was there

    def wait_for(self, count: int) -> None:
        """Until so many ends were acknowledged."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.told) >= count, 800)

    def tick(self) -> int:
        with self.lock:
            self.clock += 1
            return self.clock


class GoneError(Exception):
    """The server was killed."""


class WorkersTalk(Talk):
    """It waits for a reply until the server is known to be gone."""

    def __init__(self, served: Served, records: Records) -> None:
        super().__init__(served)
        self._killed = records.killed

    def ask(self, kind: Kind, *tasks: Task, **fields: Any) -> Query:
        self.socket.send(encode(Query(kind=kind, tasks=tasks, **fields)))
        while not self.socket.poll(50):
            if self._killed.is_set():
                raise GoneError
        return decode(self.socket.recv())


def work(served: Served, location: str, records: Records, enough: int) -> None:
    """Steal and complete until the graph is drained, the server is gone, or it is enough."""
    with WorkersTalk(served, records) as talk, contextlib.suppress(GoneError):
        while len(records.told) < enough:
            names = talk.steal(location, n=STOLEN_AT_ONCE)
            if names is Kind.EXIT:
                return
            if isinstance(names, Kind):
                continue
            moment = records.tick()
            for name in names:
                records.began.setdefault(name, []).append(moment)
            moment = records.tick()
            for name in names:
                records.ended[name] = moment
            if talk.complete(*names, location=location) is Kind.OK:
                moment = records.tick()
                for name in names:
                    records.told.setdefault(name, moment)
                with records.news:
                    records.news.notify_all()


def run_workers(served: Served, records: Records, enough: int) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=work, args=(served, f"w{number}", records, enough))
        for number in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.timeout(1800)
def test_d7_a_graph_of_100000_tasks_survives_a_kill_half_done_and_keeps_its_order(tmp_path):
    records = Records()
    total = WIDTH * STEPS
    served = start(tmp_path, "--dwork", "127.0.0.1:0")
    try:
        with Talk(served) as talk:
            for step in range(STEPS):
                row = range(WIDTH)
                talk.create(
                    *(
                        a_task(name_of(step, x), *(name_of(*pred) for pred in preds_of(step, x)))
                        for x in row
                    )
                )
            assert talk.ask(Kind.OK).name == f"dhub: {total} active tasks, {WIDTH} ready."
        threads = run_workers(served, records, total * 3 // 4)
        moment = total // 2 + random.randrange(5_000)
        records.wait_for(moment)
    finally:
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
        records.killed.set()
    for thread in threads:
        thread.join()
    records.killed.clear()
    told_before = dict(records.told)
    killed = records.tick()
    assert total // 2 <= len(told_before) < total

    with serving(tmp_path, "--dwork", "127.0.0.1:0") as again:
        with Talk(again) as talk:
            reply = talk.ask(Kind.OK)
            assert reply.name is not None
            active = int(reply.name.split()[1])
            # Nothing that was acknowledged came back; what was not may be done all the same.
            assert active <= total - len(told_before)
            for number in range(WORKERS):
                talk.ask(Kind.EXIT, location=f"w{number}")
        for thread in run_workers(again, records, total + 1):
            thread.join()
        with Talk(again) as talk:
            assert talk.steal() is Kind.EXIT

    # Every task ran; none began before all its predecessors were through; and what the server had
    # acknowledged was not handed out again.
    assert len(records.began) == total
    for step in range(1, STEPS):
        for place in range(WIDTH):
            began = records.began[name_of(step, place)][-1]
            assert all(records.ended[name_of(*pred)] < began for pred in preds_of(step, place))
    assert not [name for name in told_before if records.began[name][-1] > killed]


def ready(talk: Talk) -> int:
    return int((talk.ask(Kind.OK).name or "").split()[4])


STAR_COUNT = 30_000


def create_a_star(talk: Talk) -> None:
    """One task, and very many that wait for it."""
    talk.create(a_task("first"))
    for start_at in range(0, STAR_COUNT, 1_000):
        row = range(start_at, start_at + 1_000)
        talk.create(*(a_task(f"t{number}", "first") for number in row))


def test_d7_those_that_wait_for_one_task_are_all_freed_although_the_server_is_killed_meanwhile(
    tmp_path,
):
    served = start(tmp_path, "--dwork", "127.0.0.1:0")
    try:
        with Talk(served) as talk:
            create_a_star(talk)
            assert talk.steal() == ["first"]
            assert talk.complete("first") is Kind.OK
    finally:
        served.process.kill()
        served.process.wait()

    with serving(tmp_path, "--dwork", "127.0.0.1:0") as again, Talk(again) as talk:
        wait_until(lambda: ready(talk) == STAR_COUNT, "all of them are ready")
        assert active(talk) == STAR_COUNT


def test_d7_those_that_wait_for_a_cancelled_task_are_all_cancelled_although_the_server_is_killed(
    tmp_path,
):
    served = start(tmp_path, "--dwork", "127.0.0.1:0")
    try:
        with Talk(served) as talk, contextlib.closing(Api(served)) as api:
            create_a_star(talk)
            wait_until(lambda: api.get("jobs?name=first"), "a listing has it")
            [first] = api.get("jobs?name=first")
            [cancelled] = api.results("cancel", id=first["id"], reason="enough")
            assert (cancelled["id"], cancelled["state"]) == (first["id"], "cancelled")
    finally:
        served.process.kill()
        served.process.wait()

    with serving(tmp_path, "--dwork", "127.0.0.1:0") as again, Talk(again) as talk:
        wait_until(lambda: active(talk) == 0, "all of them are cancelled")
        with contextlib.closing(Api(again)) as api:
            query = f"jobs?name=t{STAR_COUNT - 1}&state=cancelled"
            wait_until(lambda: api.get(query), "a listing has the last one")
            assert [row["reason"] for row in api.get(query)] == ["enough"]


def dwork_connections(api: Api) -> int:
    return {row["protocol"]: row for row in api.get("protocols")}["dwork"]["connections"]


def test_d36_a_crew_goes_on_as_soon_as_a_killed_server_is_back(tmp_path):
    address = own_address()
    served = start(tmp_path, "--dwork", address)
    with Talk(served) as talk:
        talk.create(a_task("first"), a_task("second", "first"))
        assert talk.steal("other") == ["first"]
    words = ("dwork", "work", "-c", "true", "--server", address, "--timeout", "3600")
    crew = subprocess.Popen(
        command(*words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        with contextlib.closing(Api(served)) as api:
            wait_until(lambda: dwork_connections(api) == 1, "it is there")
        served.process.kill()
        served.process.wait()
        with serving(tmp_path, "--dwork", address) as again, Talk(again) as talk:
            assert talk.complete("first", location="other") is Kind.OK
            out, err = crew.communicate(timeout=480)
    finally:
        crew.kill()
        crew.wait()

    assert crew.returncode == 0, err
    assert out.split()[:2] == [b"completed", b"second"]


def graph_file(folder, count: int):
    """A chain of ten after each other, many of them."""
    file = folder / "graph.txt"
    lines = [f"t{n},t{n - 1}" if n % 10 else f"t{n}" for n in range(count)]
    file.write_text("\n".join(lines))
    return file


def active(talk: Talk) -> int:
    return int((talk.ask(Kind.OK).name or "").split()[1])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("number", "total"), [(signal.SIGKILL, 100_000), (signal.SIGTERM, 60_000)])
def test_d36_an_end_of_the_server_while_a_graph_is_loaded_loses_nothing_and_loading_goes_on(
    tmp_path, number, total
):
    file = graph_file(tmp_path, total)
    address = own_address()
    served = start(tmp_path, "--dwork", address)
    load = ("dwork", "load", str(file), "--server", address, "--timeout", "800")
    loader = subprocess.Popen(
        command(*load), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with Talk(served) as talk:
            wait_until(lambda: active(talk) >= 2_000, "loading began")
            acknowledged = active(talk)
    finally:
        served.process.send_signal(number)
        served.process.wait()
    assert acknowledged < total, "it was loaded before it could be killed"

    with serving(tmp_path, "--dwork", address) as again:
        with Talk(again) as talk:
            assert active(talk) >= acknowledged
        told, complaints = loader.communicate(timeout=800)
        assert loader.returncode == 0, complaints
        # A batch whose reply the end of the server cut off was there when it was sent again.
        counted = re.match(r"loaded (\d+) tasks(?:, (\d+) existed)? in ", told)
        assert counted, told
        assert sum(int(number) for number in counted.groups("0")) == total
        with Talk(again) as talk:
            reply = talk.ask(Kind.OK)
            assert reply.name == f"dhub: {total} active tasks, {total // 10} ready."
            # The order that the file asks for holds, over what was loaded before and after.
            last = talk.ask(Kind.LOOKUP, name=f"t{total - 1}").tasks[0]
            assert [dep.name for dep in last.preds] == [f"t{total - 2}"]
        # And it can be loaded again: what exists stays as it is.
        assert run(*load, "--skip", "50000").stdout.startswith(
            f"loaded 0 tasks, {total - 50_000} existed"
        )
        assert run(*load).returncode == 0
        with Talk(again) as talk:
            assert active(talk) == total


def test_d36_a_load_that_cannot_go_on_says_where_to(tmp_path):
    file = graph_file(tmp_path, 5)

    silent = run("dwork", "load", str(file), "--server", "127.0.0.1:1", "--timeout", "0.2")

    assert (silent.returncode, silent.stderr) == (
        1,
        "manyhands: tcp://127.0.0.1:1 does not answer. 0 tasks are loaded; "
        "continue with --skip 0.\n",
    )


def test_d25_and_d31_a_restart_does_not_change_what_is_known_of_graphs(tmp_path):
    def answers(talk: Talk) -> list[object]:
        return [
            talk.complete("a", location="w1"),  # said before, by the same
            talk.complete("a", location="w2"),
            talk.complete("b", location="w2"),
            talk.complete("nobody", location="w1"),
            talk.ask(Kind.LOOKUP, name="a").kind,  # of a graph that is drained
            talk.ask(Kind.LOOKUP, name="c").kind,  # ended, in the graph that is open
            talk.ask(Kind.LOOKUP, name="d").kind,
            talk.ask(Kind.OK, detail=True).counts,
        ]

    expected = [
        *(Kind.OK, Kind.NOT_FOUND, Kind.OK, Kind.NOT_FOUND),
        *(Kind.OK, Kind.OK, Kind.OK),
        Counts(done=1, ready=1),
    ]
    served = start(tmp_path, "--dwork", "127.0.0.1:0")
    try:
        with Talk(served) as talk:
            talk.create(a_task("a"), a_task("b"))
            assert talk.steal("w1", n=2) == ["a", "b"]
            assert talk.complete("a", location="w1") is Kind.OK
            assert talk.complete("b", location="w2") is Kind.OK
            talk.create(a_task("c"), a_task("d"))
            assert talk.complete("c") is Kind.OK
            before = answers(talk)
    finally:
        served.process.kill()
        served.process.wait()

    with serving(tmp_path, "--dwork", "127.0.0.1:0") as again, Talk(again) as talk:
        assert (before, answers(talk)) == (expected, expected)
