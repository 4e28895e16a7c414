"""The executor that libraries expect."""

import asyncio
import concurrent.futures
import io
import sys

import pytest

from manyhands import App, Executor, Fail, JobFailed, Unavailable
from manyhands.client import executor as module
from tests.e2e.python_hands import working
from tests.e2e.serving import SECONDS_MAX, own_address, wait_until


@pytest.fixture
def app(served):
    app = App(served.url)
    yield app
    app.close()


def declare_square(app: App, name: str, **options):
    @app.task(name=name, retries=0, **options)
    def square(n: int, plus: int = 0) -> int:
        if n < 0:
            raise Fail("negative")
        return n * n + plus

    return square


def is_cancelled(app: App, queue: str) -> bool:
    """Whether there is a job, and it is cancelled."""
    return [job["state"] for job in app.client.jobs(queue=queue)] == ["cancelled"]


def test_p71_jobs_are_real_futures(app, queue):
    square = declare_square(app, queue)

    async def in_loop(pool: Executor) -> int:
        return await asyncio.get_running_loop().run_in_executor(pool, square, 5)

    with working(app), Executor(app) as pool:
        future = pool.submit(square, 3, plus=1)
        assert isinstance(future, concurrent.futures.Future)
        assert future.result(SECONDS_MAX) == 10
        futures = [pool.submit(square, n) for n in range(4)]
        found = concurrent.futures.as_completed(futures, SECONDS_MAX)
        assert sorted(each.result() for each in found) == [0, 1, 4, 9]
        assert not concurrent.futures.wait(futures, SECONDS_MAX).not_done
        assert asyncio.run(in_loop(pool)) == 25
        assert list(pool.map(square, [1, 2], [3, 4])) == [4, 8]
        with pytest.raises(JobFailed, match="negative"):
            pool.submit(square, -1).result(SECONDS_MAX)


def test_p71_a_future_that_is_cancelled_cancels_its_job(app, queue):
    square = declare_square(app, queue)

    with Executor(app) as pool:
        future = pool.submit(square, 1)
        assert future.cancel()
        assert future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        wait_until(lambda: is_cancelled(app, queue))
        left = pool.submit(square, 2)
        pool.shutdown(cancel_futures=True)
        assert left.cancelled()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(square, 3)


def test_p71_only_tasks_of_the_app_can_be_submitted(app, queue):
    other = App("http://127.0.0.1:1")

    with Executor(app) as pool:
        with pytest.raises(TypeError, match=r"@app\.task"):
            pool.submit(len, "abc")
        with pytest.raises(ValueError, match="another app"):
            pool.submit(declare_square(other, queue), 1)


def test_p71_a_server_that_is_away_is_the_futures_error(queue):
    app = App(own_address(), timeout=0.2)

    with Executor(app) as pool, pytest.raises(Unavailable):
        pool.submit(declare_square(app, queue), 1).result(SECONDS_MAX)
    app.close()


def test_p73_map_streams_however_many_items_there_are(app, queue, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_COUNT", 20)
    square = declare_square(app, queue)
    drawn = 0

    def items():
        nonlocal drawn
        for n in range(200):
            drawn += 1
            yield n

    with working(app), Executor(app) as pool:
        results = pool.map(square, items())
        assert drawn == 20
        assert next(results) == 0
        assert drawn == 21
        assert list(results) == [n * n for n in range(1, 200)]
        assert sorted(pool.map(square, range(60), ordered=False)) == [n * n for n in range(60)]


def test_p73_a_keyed_map_goes_on_where_it_was(app, queue):
    square = declare_square(app, queue).using(key="run7")

    with working(app) as hands, Executor(app) as pool:
        assert next(pool.map(square, range(30))) == 0
        assert list(pool.map(square, range(40))) == [n * n for n in range(40)]
        assert len(hands.ran) == 40


def test_p73_results_that_are_late_are_a_timeout(app, queue):
    square = declare_square(app, queue)

    with Executor(app) as pool:
        for ordered in (True, False):
            with pytest.raises(TimeoutError):
                next(pool.map(square, [1], timeout=0.01, ordered=ordered))
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("answer", "state"), [("y\n", "cancelled"), ("\n", "ready")])
def test_p73_ctrl_c_asks_whether_to_cancel_what_is_left(app, queue, monkeypatch, answer, state):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    square = declare_square(app, queue)
    pool = Executor(app)
    results = pool.map(square, range(3))
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr("builtins.input", lambda text: sys.stdin.readline())
    monkeypatch.setattr(module, "_next", _interrupted)

    with pytest.raises(KeyboardInterrupt):
        next(results)

    wait_until(lambda: [job["state"] for job in app.client.jobs(queue=queue)] == [state] * 3)
    pool.shutdown(wait=False, cancel_futures=True)


def _interrupted(*args, **kwargs):
    raise KeyboardInterrupt
