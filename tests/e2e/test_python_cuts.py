"""Connections that are cut in the middle of each message, of a client and of a worker, while every
kind of note is on its way.
"""

import threading
from collections import Counter

import pytest

from manyhands import App, Fail, JobCancelled, JobFailed, current_job
from tests.e2e.cutting_proxy import DOWN, UP, Cuts, cutting
from tests.e2e.serving import SECONDS_MAX
from tests.e2e.working import until


class Tasks:
    """The same tasks, of one app or another."""

    def __init__(self, app: App, queue: str) -> None:
        self.ran: Counter[int] = Counter()
        self.began = threading.Event()
        released: set[str] = set()  # once each

        @app.task(name=f"{queue}-add", retries=0)
        def add(number: int, more: int = 0) -> int:
            self.ran[number] += 1
            if number < 0:
                raise Fail("too small", code="small")
            return number + more

        @app.task(name=f"{queue}-tell", retries=0)
        def tell() -> str:
            job = current_job()
            if job.id not in released:
                released.add(job.id)
                job.release()
            job.emit("one")
            job.progress(1, 2)
            job.emit("two")
            return "told"

        @app.task(name=f"{queue}-hold", retries=0)
        def hold() -> None:
            self.began.set()
            while True:
                threading.Event().wait(0.001)

        self.add, self.tell, self.hold = add, tell, hold


def use(app: App, tasks: Tasks) -> None:
    """Submits (one, many, together), watches, reads news, looks and cancels."""
    tasks.began.clear()
    tasks.ran.clear()
    one = tasks.add.submit(1)
    with app.batch():
        two = tasks.add.submit(2)
        three = tasks.add.submit(3, two.output)
    many = tasks.add.map(range(10, 20))
    telling = tasks.tell.submit()
    news = [each.partial or each.state for each in telling.news() if each.progress is None]
    failing = tasks.add.submit(-1)
    held = tasks.hold.submit()
    assert tasks.began.wait(SECONDS_MAX)
    assert held.cancel()

    assert [handle.result(SECONDS_MAX) for handle in (one, two, three)] == [1, 2, 5]
    assert [handle.result(SECONDS_MAX) for handle in many] == list(range(10, 20))
    # A piece that was on its way may arrive twice.
    assert list(dict.fromkeys(news)) == [b"one", b"two", "completed"]
    with pytest.raises(JobFailed, match="too small") as found:
        failing.result(SECONDS_MAX)
    assert (found.value.code, found.value.attempts) == ("small", 1)
    with pytest.raises(JobCancelled):
        held.result(SECONDS_MAX)
    for handle in (one, two, three, *many):
        assert handle.status().attempts == 0  # nothing is charged
    assert tasks.ran == Counter([1, 2, 3, *range(10, 20), -1])  # and each ran once


def middles(cuts: Cuts, way: str) -> list[int]:
    """A place in each piece of the busiest connection, the first of which is the handshake."""
    busiest = max((each[way] for each in cuts.pieces), key=len)
    assert len(busiest) > 5
    return [(start + end) // 2 for start, end in busiest if end - start > 1]


@pytest.mark.parametrize("way", [UP, DOWN])
def test_p35_a_client_is_cut_off_in_each_message(served, queue, way):
    """P15, P35: every submit makes one job, every wait ends, and nothing is asked in vain."""
    working_app = App(served.url)
    tasks = Tasks(working_app, queue)

    def run(*planned: tuple[str, int]) -> Cuts:
        with cutting(served.addresses["http"]) as (address, cuts):
            cuts.planned = list(planned)
            app = App(address, timeout=SECONDS_MAX)
            own = Tasks(app, queue)
            own.ran, own.began = tasks.ran, tasks.began
            use(app, own)
            app.close()
        return cuts

    with working_app.worker(concurrency=4):
        for place in middles(run(), way):
            run((way, place))
    working_app.close()


@pytest.mark.parametrize("way", [UP, DOWN])
def test_p35_a_worker_is_cut_off_in_each_message(served, queue, way, caplog):
    """P27, P28, P35, P47: no attempt is charged, no job runs twice, no report is lost, or said to
    be although it arrived.
    """

    def run(*planned: tuple[str, int]) -> Cuts:
        with cutting(served.addresses["http"]) as (address, cuts):
            cuts.planned = list(planned)
            app = App(address, timeout=SECONDS_MAX)
            tasks = Tasks(app, queue)
            own = Tasks(App(served.url), queue)
            own.ran, own.began = tasks.ran, tasks.began
            with app.worker(concurrency=4):
                use(own.add.app, own)
                until(lambda: not running(own.add.app, queue))
            own.add.app.close()
            app.close()
        return cuts

    for place in middles(run(), way):
        run((way, place), (way, place))  # one of them is the connection that renews
    assert "was refused" not in caplog.text


def running(app: App, queue: str) -> list[str]:
    """Jobs that are not over."""
    return [
        job["id"]
        for name in ("add", "tell", "hold")
        for job in app.client.jobs(queue=f"{queue}-{name}", state="leased")
    ]
