"""A large graph, half worked, killed at some moment, started again and finished in order."""

import random
import signal
import threading

import pytest

from manyhands.wire.dwork import Kind
from tests.e2e.dwork_talk import Talk, a_task
from tests.e2e.serving import Served, serving, start

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
        self.clock = 0
        self.began: dict[str, list[int]] = {}
        self.ended: dict[str, int] = {}  # when its work was through, before that was reported
        self.told: dict[str, int] = {}  # when the server's OK for that was there

    def wait_for(self, count: int) -> None:
        """Until so many ends were acknowledged."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.told) >= count, 120)

    def tick(self) -> int:
        with self.lock:
            self.clock += 1
            return self.clock


def work(served: Served, location: str, records: Records, enough: int) -> None:
    """Steal and complete until the graph is drained, the server is gone, or it is enough."""
    with Talk(served) as talk:
        talk.socket.RCVTIMEO = 3_000
        while len(records.told) < enough:
            try:
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
            except Exception:  # noqa: BLE001 - killed: a reply is missing or half there
                return


def run_workers(served: Served, records: Records, enough: int) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=work, args=(served, f"w{number}", records, enough))
        for number in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.timeout(180)
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
        threads = run_workers(served, records, total)
        moment = total // 2 + random.randrange(5_000)
        records.wait_for(moment)
    finally:
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    for thread in threads:
        thread.join()
    served.ready_file.unlink()  # a killed server leaves it behind
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
