"""Tasks as a worker runs them, against the real server: what they see, raise, report and return."""

import asyncio
import contextlib
import contextvars
import logging
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta

import opentelemetry.trace
import pytest

from manyhands import (
    App,
    Backoff,
    Cancelled,
    Fail,
    JobCancelled,
    JobFailed,
    Retry,
    current_job,
    gather,
)
from tests.e2e.serving import SECONDS_MAX, serving
from tests.e2e.working import until


@pytest.fixture
def app(served):
    found = App(served.url)
    yield found
    found.close()


def failure_of(handle) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        handle.result(timeout=SECONDS_MAX)
    return caught.value


# Running.


def test_p43_functions_run_in_threads_of_ours_and_coroutines_in_the_loop(app, queue):
    @app.task(name=queue)
    def in_thread() -> str:
        return threading.current_thread().name

    @app.task(name=f"{queue}-async")
    async def in_loop() -> str:
        return threading.current_thread().name

    with app.worker():
        assert in_thread.submit().result(timeout=SECONDS_MAX).startswith("manyhands-job")
        assert in_loop.submit().result(timeout=SECONDS_MAX) == "manyhands-worker"


def test_p43_each_job_has_a_context_of_its_own(app, queue):
    seen = contextvars.ContextVar("seen", default=0)

    @app.task(name=queue)
    def in_thread() -> int:
        seen.set(seen.get() + 1)
        return seen.get()

    @app.task(name=f"{queue}-async")
    async def in_loop() -> int:
        seen.set(seen.get() + 1)
        return seen.get()

    with app.worker(concurrency=1):
        handles = [task.submit() for _ in range(3) for task in (in_thread, in_loop)]
        assert [handle.result(timeout=SECONDS_MAX) for handle in handles] == [1] * 6


def test_p43_slots_are_shared_by_functions_and_coroutines(app, queue):
    together = threading.Barrier(2)
    running = []
    most = []

    def count(change: int) -> None:
        running.append(change)
        most.append(sum(running))

    @app.task(name=queue)
    def in_thread() -> None:
        count(1)
        time.sleep(0.01)
        count(-1)

    @app.task(name=f"{queue}-async")
    async def in_loop() -> None:
        count(1)
        await asyncio.sleep(0.01)
        count(-1)

    @app.task(name=f"{queue}-both")
    def both() -> None:
        together.wait(SECONDS_MAX)

    with app.worker(concurrency=2):
        handles = [task.submit() for _ in range(10) for task in (in_thread, in_loop)]
        for handle in handles:
            handle.result(timeout=SECONDS_MAX)
        for handle in [both.submit(), both.submit()]:  # two at once there are
            handle.result(timeout=SECONDS_MAX)
    assert max(most) <= 2


def test_p44_many_jobs_that_wait_run_at_once(app, queue):
    together = threading.Barrier(16)

    @app.task(name=queue)
    def wait() -> None:
        together.wait(SECONDS_MAX)

    with app.worker(concurrency=16):
        for handle in wait.map([]) + [wait.submit() for _ in range(16)]:
            handle.result(timeout=SECONDS_MAX)


def test_p45_thousands_of_short_jobs_are_each_run_once(app, queue, api):
    ran = []

    @app.task(name=queue)
    def short(number: int) -> int:
        ran.append(number)
        return number

    handles = short.map(range(3_000))
    with app.worker():
        assert [handle.result(timeout=SECONDS_MAX) for handle in handles] == list(range(3_000))
    assert sorted(ran) == list(range(3_000))


def test_p45_a_job_that_waits_behind_a_slow_one_is_given_back_to_others(app, queue, api):
    """P45: it is uncharged, and another worker takes it."""
    may_end = threading.Event()
    is_blocked = threading.Event()

    @app.task(name=queue)
    def work(number: int) -> int:
        if number < 0:
            is_blocked.set()
            may_end.wait(SECONDS_MAX)
        return number

    with app.worker(concurrency=1, ahead=100):
        # A fast history makes the worker fetch ahead, then one job stands in the way.
        for handle in work.map(range(500)):
            handle.result(timeout=SECONDS_MAX)
        handles = work.map([-1, *range(50)])
        assert is_blocked.wait(SECONDS_MAX)
        with app.worker(concurrency=1):
            for handle in handles[1:]:
                handle.result(timeout=SECONDS_MAX)
                assert handle.status().attempts == 0  # charged ones
        may_end.set()
        assert handles[0].result(timeout=SECONDS_MAX) == -1


class Suspicion:
    """A job whose last worker died, and which therefore has to run alone, beside one that runs."""

    def __init__(self, app: App, queue: str) -> None:
        self.may_end, self.began = threading.Event(), threading.Event()

        @app.task(name=queue)
        def hold() -> None:
            self.began.set()
            self.may_end.wait(2 * SECONDS_MAX)

        @app.task(name=f"{queue}-suspect", backoff=Backoff(first=2, jitter=0))
        def suspect() -> int:
            return current_job().attempt

        @app.task(name=f"{queue}-other", priority=9)
        def other() -> int:
            return 1

        self.other = other
        self.handle = suspect.submit()
        claim = {"queue": f"{queue}-suspect", "worker": queue}
        [lease] = app.client.request("POST", "/api/claim", claim)
        running = [{"id": self.handle.id, "token": lease["token"]}]
        app.client.request("POST", "/api/depart", {"worker": queue, "running": running})
        self.held = hold.submit()

    def finish(self) -> None:
        self.may_end.set()
        self.held.result(SECONDS_MAX)


def test_p49_a_worker_without_a_supervisor_runs_a_suspect_beside_long_jobs_in_the_end(app, queue):
    suspicion = Suspicion(app, queue)
    with app.worker(concurrency=2):
        assert suspicion.began.wait(SECONDS_MAX)
        assert suspicion.handle.result(SECONDS_MAX) == 2
        suspicion.finish()


def test_p49_a_suspect_that_is_cancelled_holds_nothing_up(app, queue):
    suspicion = Suspicion(app, queue)
    with app.worker(concurrency=2):
        assert suspicion.began.wait(SECONDS_MAX)
        until(lambda: suspicion.handle.status().state == "leased")
        assert suspicion.handle.cancel()
        assert suspicion.other.submit().result(SECONDS_MAX) == 1
        suspicion.finish()


def test_p48_a_coroutine_that_blocks_the_loop_keeps_its_job(app, queue):
    """P48: without a supervisor, a thread of its own renews."""
    ran = []

    @app.task(name=queue, lease=4)
    async def block() -> str:
        ran.append(1)
        time.sleep(10)  # noqa: ASYNC251 - what should not be done
        return "done"

    with app.worker(concurrency=1):
        assert block.submit().result(timeout=SECONDS_MAX) == "done"
    assert len(ran) == 1


# What a task sees.


def test_p58_the_job_is_seen_in_threads_coroutines_and_their_children(app, queue):
    @app.task(name=queue)
    def in_thread() -> list[str]:
        job = current_job()
        return [job.id, job.task, job.queue, str(job.attempt)]

    @app.task(name=f"{queue}-async")
    async def in_loop() -> list[str]:
        async def child() -> str:
            return current_job().id

        return [await asyncio.create_task(child()), await asyncio.to_thread(child_of_thread)]

    def child_of_thread() -> str:
        return current_job().id

    with app.worker():
        handle = in_thread.submit()
        assert handle.result(timeout=SECONDS_MAX) == [handle.id, queue, queue, "1"]
        handle = in_loop.submit()
        assert handle.result(timeout=SECONDS_MAX) == [handle.id] * 2


def test_p58_outside_of_a_job_there_is_none():
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()


def test_headers_and_the_deadline_are_seen(app, queue):
    @app.task(name=queue)
    def look() -> list[str]:
        job = current_job()
        assert job.deadline is not None
        return [job.headers["colour"], job.deadline.isoformat()]

    deadline = datetime.now(UTC) + timedelta(hours=1)
    with app.worker():
        handle = look.using(deadline=deadline, headers={"colour": "blue"}).submit()
        colour, seen = handle.result(timeout=SECONDS_MAX)
    assert colour == "blue"
    assert abs(datetime.fromisoformat(seen) - deadline) < timedelta(minutes=5)


def test_p59_progress_and_pieces_reach_those_who_wait(app, queue):
    may_go = threading.Event()

    @app.task(name=queue)
    def work() -> str:
        job = current_job()
        job.emit("zero")
        may_go.wait(SECONDS_MAX)
        for number in range(1, 101):
            job.progress(number, 100)
        job.emit("one")
        job.emit(b"two")
        job.emit({"three": 3})
        return "end"

    with app.worker():
        handle = work.submit()
        heard = []
        for each in handle.news():
            heard.append(each)
            may_go.set()
    pieces = [each.partial for each in heard if each.partial is not None]
    progress = [each.progress for each in heard if each.progress is not None]
    assert pieces == [b"zero", b"one", b"two", b'{"three":3}']
    assert tuple(progress[-1])[:2] == (100, 100)
    assert len(progress) < 50  # the latest one wins
    assert handle.result(timeout=SECONDS_MAX) == "end"


def test_p59_more_than_a_mebibyte_of_pieces_is_not_lost(app, queue):
    @app.task(name=queue)
    def work() -> None:
        for number in range(8):
            current_job().emit(bytes([number]) * 300_000)

    with app.worker():
        handle = work.submit()
        pieces = [each.partial for each in handle.news() if each.partial is not None]
        handle.result(timeout=SECONDS_MAX)
    assert [(piece[0], len(piece)) for piece in pieces] == [(n, 300_000) for n in range(8)]


def test_p59_progress_beyond_all_bounds_harms_no_report(app, queue):
    @app.task(name=queue, retries=0)
    def work(value: float) -> str:
        current_job().progress(10**30, -1, seconds_left=10**30)
        current_job().progress(value)
        return "done"

    with app.worker(concurrency=1):
        assert work.submit(0.5).result(timeout=SECONDS_MAX) == "done"
        handle = work.submit(1e300)
        assert handle.result(timeout=SECONDS_MAX) == "done"
        assert handle.status().progress == (2**53 - 1, 0)


# Interruption.


def test_p60_a_cancelled_function_is_interrupted_and_cleans_up(app, queue):
    began, cleaned = threading.Event(), threading.Event()
    seen: list[str | None] = []

    @app.task(name=queue)
    def spin() -> None:
        began.set()
        try:
            while True:
                time.sleep(0.001)
        except Cancelled:
            seen.append(current_job().why)
            raise
        finally:
            cleaned.set()

    with app.worker():
        handle = spin.submit()
        assert began.wait(SECONDS_MAX)
        assert handle.cancel()
        assert cleaned.wait(SECONDS_MAX)
        with pytest.raises(JobCancelled):
            handle.result(timeout=SECONDS_MAX)
    assert seen == ["cancelled"]


def test_p60_a_cancelled_coroutine_is_interrupted_and_cleans_up(app, queue):
    began, cleaned = threading.Event(), threading.Event()

    @app.task(name=queue)
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert current_job().cancelled
            cleaned.set()

    with app.worker():
        handle = wait.submit()
        assert began.wait(SECONDS_MAX)
        handle.cancel()
        assert cleaned.wait(SECONDS_MAX)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_p60_a_cancellation_reaches_the_task_within_100_ms(app, queue, kind):
    """The fastest of several, since other programs run on this machine too."""
    began, ended = threading.Semaphore(0), threading.Semaphore(0)

    def spin() -> None:
        began.release()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.release()

    async def wait() -> None:
        began.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.release()

    task = app.task(name=queue)(spin if kind == "function" else wait)
    took = []
    with app.worker():
        for _ in range(5):
            handle = task.submit()
            assert began.acquire(timeout=SECONDS_MAX)
            since = time.perf_counter()
            handle.cancel()
            assert ended.acquire(timeout=SECONDS_MAX)
            took.append(time.perf_counter() - since)
    assert min(took) < 0.1


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_p60_a_timeout_and_the_end_of_the_grace_say_so_and_let_the_task_clean_up(app, queue, kind):
    seen: list[str | None] = []
    began = threading.Event()

    def spin() -> None:
        began.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            seen.append(current_job().why)

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(current_job().why)

    task = app.task(name=queue, retries=0)(spin if kind == "function" else wait)
    with app.worker(grace=0.01):
        assert failure_of(task.using(timeout=0.1).submit()).code == "timeout"
        began.clear()
        handle = task.submit()
        assert began.wait(SECONDS_MAX)
    assert seen == ["timeout", "shutdown"]
    assert (handle.status().state, handle.status().attempts) == ("ready", 0)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_p60_a_shield_holds_the_interruption_up(app, queue, kind):
    began, ended = threading.Event(), threading.Event()
    steps = []

    def shielded() -> None:
        job = current_job()
        try:
            with job.shield():
                began.set()
                while not job.cancelled:
                    time.sleep(0.001)
                time.sleep(0.05)
                steps.append("shielded")
            time.sleep(0.001)
            steps.append("after")
        finally:
            ended.set()

    async def ashielded() -> None:
        job = current_job()
        try:
            with job.shield():
                began.set()
                while not job.cancelled:  # noqa: ASYNC110 - as tasks do
                    await asyncio.sleep(0.001)
                steps.append("shielded")
            await asyncio.sleep(0.001)
            steps.append("after")
        finally:
            ended.set()

    task = app.task(name=queue)(shielded if kind == "function" else ashielded)
    with app.worker():
        handle = task.submit()
        assert began.wait(SECONDS_MAX)
        handle.cancel()
        assert ended.wait(SECONDS_MAX)
    assert steps == ["shielded"]


def test_p60_check_raises_when_the_job_is_no_longer_wanted(app, queue):
    began, seen = threading.Event(), threading.Event()

    @app.task(name=queue)
    def look() -> None:
        job = current_job()
        with job.shield():
            began.set()
            while not job.cancelled:
                time.sleep(0.001)
            with pytest.raises(Cancelled, match="cancelled"):
                job.check()
            seen.set()

    with app.worker():
        handle = look.submit()
        assert began.wait(SECONDS_MAX)
        handle.cancel()
        assert seen.wait(SECONDS_MAX)


def test_p60_a_thread_that_was_interrupted_runs_other_jobs(app, queue):
    began = threading.Semaphore(0)

    @app.task(name=queue)
    def work(number: int) -> int:
        if number:
            return number
        began.release()
        while True:
            time.sleep(0.001)

    with app.worker(concurrency=1):
        for number in range(1, 6):
            handle = work.submit(0)
            assert began.acquire(timeout=SECONDS_MAX)
            handle.cancel()
            assert work.submit(number).result(timeout=SECONDS_MAX) == number


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_p61_a_timeout_fails_the_attempt_and_is_retried(app, queue, kind):
    def spin() -> str:
        if current_job().attempt == 2:
            return "second"
        while True:
            time.sleep(0.001)

    async def wait() -> str:
        if current_job().attempt == 2:
            return "second"
        await asyncio.Event().wait()
        return ""

    function = spin if kind == "function" else wait
    task = app.task(name=queue, timeout=0.2, retries=1)(function)
    last = app.task(name=f"{queue}-last", retries=0)(wait)
    with app.worker():
        # On a busy machine the second attempt may be cut off, too; it has its own time.
        assert task.using(timeout=0.2, retries=50).submit().result(timeout=SECONDS_MAX) == "second"
        error = failure_of(last.using(timeout=0.1).submit())
    assert error.code == "timeout"
    assert "longer than its timeout of 0.1 s" in error.message


@pytest.mark.parametrize("days", [400, -400])
def test_p27_a_clock_that_jumps_harms_no_job(app, queue, monkeypatch, days):
    """P27, P48, P61: leases, timeouts, delays and waits go by a clock that does not jump; times
    travel as durations.
    """
    began, may_end = threading.Event(), threading.Event()
    ran = []

    @app.task(name=queue, lease=4, timeout=SECONDS_MAX, retries=0)
    def work(number: int) -> int:
        ran.append(number)
        if number == 0:
            began.set()
            may_end.wait(SECONDS_MAX)
        return number

    real = time.time
    with app.worker(concurrency=2):
        held = work.submit(0)
        assert began.wait(SECONDS_MAX)
        monkeypatch.setattr(time, "time", lambda: real() + days * 86_400)
        assert work.submit(1).result(SECONDS_MAX) == 1
        assert work.using(delay=0.1).submit(2).result(SECONDS_MAX) == 2
        with pytest.raises(TimeoutError):
            held.result(5)  # longer than its lease
        may_end.set()
        assert held.result(SECONDS_MAX) == 0
        assert held.status().attempts == 0
    assert sorted(ran) == [0, 1, 2]


# Exceptions.


class MailboxFullError(Exception):
    pass


def test_p62_an_exception_is_a_failure_with_its_class_text_and_traceback(app, queue):
    @app.task(name=queue, retries=0)
    def fail() -> None:
        raise MailboxFullError("no room")

    @app.task(name=f"{queue}-async", retries=0)
    async def afail() -> None:
        raise ValueError("bad")

    with app.worker():
        error = failure_of(fail.submit())
        other = failure_of(afail.submit())
    assert (error.code, error.message) == ("tests.MailboxFullError", "no room")
    assert 'raise MailboxFullError("no room")' in error.traceback
    assert "manyhands/client" not in error.traceback
    assert (other.code, other.message) == ("ValueError", "bad")
    assert "manyhands/client" not in other.traceback


def test_p62_attempts_are_repeated_unless_the_task_gives_up(app, queue):
    attempts: dict[str, int] = {}

    @app.task(name=queue, retries=2, give_up_on=(ValueError,))
    def work(kind: str) -> str:
        job = current_job()
        attempts[kind] = job.attempt
        match kind:
            case "give up":
                raise ValueError(kind)
            case "fail":
                raise Fail("no such user", code="unknown_user")
            case "retry":
                if job.attempt < 3:
                    raise Retry(delay=0)
            case "always":
                raise Retry("later", delay=0)
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
        return kind

    with app.worker():
        fast = work.using(retries=2)
        assert failure_of(fast.submit("give up")).code == "ValueError"
        error = failure_of(fast.submit("fail"))
        assert (error.code, error.message) == ("unknown_user", "no such user")
        assert fast.submit("retry").result(timeout=SECONDS_MAX) == "retry"
        assert failure_of(fast.submit("always")).code == "retry"
        assert failure_of(work.using(retries=0).submit("exit")).code == "SystemExit"
        interrupted = failure_of(work.using(retries=0).submit("interrupt"))
        assert interrupted.code == "KeyboardInterrupt"
        assert work.submit("well").result(timeout=SECONDS_MAX) == "well"
    assert attempts == {
        "give up": 1,
        "fail": 1,
        "retry": 3,
        "always": 3,
        "exit": 1,
        "interrupt": 1,
        "well": 1,
    }


def test_p62_a_traceback_is_cut_to_64_kib(app, queue):
    def deep(number: int) -> None:
        if not number:
            raise ValueError("deep" + "x" * 100_000)
        deep(number - 1)

    @app.task(name=queue, retries=0)
    def work() -> None:
        deep(20)

    with app.worker():
        error = failure_of(work.submit())
    assert len(error.traceback.encode()) <= 64 * 1024
    assert error.traceback.startswith("Traceback")


def test_p63_a_released_job_goes_back_uncharged(app, queue):
    runs = []

    @app.task(name=queue, retries=0)
    def work() -> int:
        runs.append(1)
        if len(runs) == 1:
            current_job().release()
        return current_job().attempt

    with app.worker():
        assert work.submit().result(timeout=SECONDS_MAX) == 1
    assert len(runs) == 2


# Around a task.


def test_p64_the_lifespan_is_entered_once_and_its_state_is_seen(served, queue):
    steps = []

    @contextlib.asynccontextmanager
    async def resources():
        steps.append("enter")
        yield {"pool": 7}
        steps.append("leave")

    app = App(served.url, lifespan=resources)

    @app.task(name=queue)
    def look() -> int:
        return app.state["pool"]

    with app.worker():
        assert [look.submit().result(timeout=SECONDS_MAX) for _ in range(2)] == [7, 7]
    app.close()
    assert steps == ["enter", "leave"]


def test_p64_what_is_put_around_jobs_wraps_each_run_in_order(app, queue):
    steps = []
    locale = contextvars.ContextVar("locale", default="")

    @app.around
    @contextlib.contextmanager
    def outer():
        steps.append(f"outer {current_job().task == queue}")
        locale.set("de")
        try:
            yield
        finally:
            steps.append("outer ends")

    @app.around
    @contextlib.asynccontextmanager
    async def inner():
        steps.append(f"inner {locale.get()}")
        locale.set("fr")
        yield
        steps.append("inner ends")

    @app.task(name=queue)
    def in_thread() -> str:
        return locale.get()

    @app.task(name=f"{queue}-async")
    async def in_loop() -> str:
        return locale.get()

    with app.worker(concurrency=1):
        assert in_thread.submit().result(timeout=SECONDS_MAX) == "fr"
        assert steps == ["outer True", "inner de", "inner ends", "outer ends"]
        assert in_loop.submit().result(timeout=SECONDS_MAX) == "fr"
        assert steps[4:] == ["outer False", "inner de", "inner ends", "outer ends"]


def test_p65_records_made_in_a_job_name_it(app, queue, caplog):
    @app.task(name=queue)
    def work() -> None:
        current_job().log.warning("from the job")
        logging.getLogger("elsewhere").warning("from a library")

    caplog.set_level(logging.INFO, "manyhands.worker")
    with app.worker():
        handle = work.submit()
        handle.result(timeout=SECONDS_MAX)
    for text in ("from the job", "from a library"):
        record = next(each for each in caplog.records if each.getMessage() == text)
        found = (record.job_id, record.task, record.queue, record.attempt)
        assert found == (handle.id, queue, queue, 1)
    ended = next(each for each in caplog.records if getattr(each, "outcome", ""))
    assert (ended.job_id, ended.outcome) == (handle.id, "completed")
    assert ended.seconds >= 0


def test_p65_the_line_of_a_failed_job_says_why(app, queue, caplog):
    @app.task(name=queue, retries=0)
    def work(kind: str) -> None:
        if kind == "fail":
            raise Fail("no such user\nand more")
        raise MailboxFullError("no room")

    caplog.set_level(logging.INFO, "manyhands.worker")
    with app.worker():
        error = failure_of(work.submit("fail"))
        failure_of(work.submit("raise"))
    assert str(error) == f"job {error.id} failed: no such user\nand more"
    lines = [each.getMessage() for each in caplog.records if getattr(each, "outcome", "")]
    assert lines[0].endswith(" s: failed: no such user")
    assert lines[1].endswith(" s: tests.MailboxFullError: no room")


def test_p66_a_trace_of_any_submitter_reaches_the_task(app, api, queue):
    """Over HTTP, where nobody knows of Python."""
    given = f"00-{'1' * 32}-{'2' * 16}-01"

    @app.task(name=queue)
    def trace() -> str:
        context = opentelemetry.trace.get_current_span().get_span_context()
        return f"{context.trace_id:032x}"

    with app.worker():
        job_id = api.results("submit", queue=queue, headers={"traceparent": given})["id"]
        assert app.handle(job_id, trace).result(timeout=SECONDS_MAX) == "1" * 32


def log_of(api, handle) -> list[tuple[str, str]]:
    return [(each["kind"], each["payload"]) for each in api.get(f"jobs/{handle.id}/log")]


def test_what_a_task_logs_is_in_the_log_of_its_job_while_it_runs(app, api, queue, caplog):
    may_go = threading.Event()

    @app.task(name=queue)
    def work() -> None:
        log = current_job().log
        log.info("connected to %s", "the mail server")
        log.debug("not wanted")
        logging.getLogger("elsewhere").warning("from a library")
        current_job().emit("a piece")
        may_go.wait(SECONDS_MAX)
        try:
            raise ValueError("no address")
        except ValueError:
            log.exception("one mail was left out")

    caplog.set_level(logging.INFO)
    with app.worker():
        handle = work.submit()
        until(lambda: len(log_of(api, handle)) == 2)
        assert sorted(log_of(api, handle)) == [
            ("data", "a piece"),
            ("log", "connected to the mail server"),
        ]
        may_go.set()
        heard = [each.partial for each in handle.news() if each.partial is not None]
    assert heard == [b"a piece"]
    kind, text = log_of(api, handle)[-1]
    assert kind == "warning"
    assert text.startswith("one mail was left out\nTraceback")
    assert text.endswith("ValueError: no address")


def test_a_task_that_logs_very_much_keeps_its_latest_records(app, api, queue, caplog):
    @app.task(name=queue)
    async def work() -> None:
        log = current_job().log
        log.info("x" * 20_000)
        for number in range(1_000):
            log.info("record %d", number)

    caplog.set_level(logging.INFO, "manyhands.job")
    with app.worker():
        handle = work.submit()
        handle.result(timeout=SECONDS_MAX)
    found = log_of(api, handle)
    assert found[-1] == ("log", "record 999")
    assert len(found) <= 100  # a coroutine that does not await is over within few notes
    assert all(len(text) <= 8_000 for _, text in found)


# Arguments and results.


def test_p6_arguments_that_do_not_fit_fail_without_a_retry(app, api, queue):
    @app.task(name=queue)
    def work(width: int = 3) -> int:
        return width

    with app.worker():
        job_id = api.results("submit", queue=queue, payload={"width": "wide"})["id"]
        error = failure_of(app.handle(job_id, work))
        assert (error.code, error.attempts) == ("bad_arguments", 1)
        assert "$.width" in error.message
        for payload, width in (({"other": 1}, 3), ({}, 3), ([7], 7), (8, 8)):
            job_id = api.results("submit", queue=queue, payload=payload)["id"]
            assert app.handle(job_id, work).result(timeout=SECONDS_MAX) == width  # P67


def test_p7_a_result_that_cannot_be_stored_fails_the_attempt(app, queue):
    @app.task(name=queue, retries=0)
    def work():
        return object()

    with app.worker():
        assert failure_of(work.submit()).code == "bad_result"


def test_p7_a_result_that_is_too_large_fails_and_harms_no_other(tmp_path):
    """All of them are reported at once, together more than a message may hold."""
    arguments = ("--store", "memory", "--payload-bytes-max", str(1024 * 1024))
    with serving(tmp_path, *arguments) as server:
        app = App(server.url)
        report_together(app, "work")
        app.close()


def report_together(app: App, queue: str) -> None:
    begun: list[int] = []
    all_began = asyncio.Event()

    @app.task(name=queue, retries=0)
    async def work(size: int) -> str:
        begun.append(size)
        if len(begun) == 12:
            all_began.set()
        await all_began.wait()
        return "x" * size

    with app.worker(concurrency=12):
        large = work.submit(1024 * 1024)  # with its quotes it is over the bound
        handles = work.map([300_000] * 11)
        assert failure_of(large).code == "bad_result"
        results = gather(*handles, timeout=SECONDS_MAX)
        assert [len(result) for result in results] == [300_000] * 11


def test_p62_a_retry_names_its_delay_in_seconds_or_as_a_timedelta(app, queue):
    @app.task(name=queue, retries=1)
    def work(hours: float) -> None:
        raise Retry(delay=timedelta(hours=hours) if hours else float("nan"))

    with app.worker():
        later = work.submit(1)
        never = work.using(retries=0).submit(0)
        assert failure_of(never).code == "ValueError"
        until(lambda: later.status().state == "delayed")
        assert later.status().failure.code == "retry"


def test_p3_a_job_for_no_task_fails_as_unknown_task(app, api, queue):
    @app.task(name=f"{queue}-one", queue=queue)
    def one() -> str:
        return "one"

    @app.task(name=f"{queue}-two", queue=queue)
    def two() -> str:
        return "two"

    with app.worker():
        assert one.submit().result(timeout=SECONDS_MAX) == "one"
        assert two.submit().result(timeout=SECONDS_MAX) == "two"
        job_id = api.results("submit", queue=queue, payload={}, attempts_max=1)["id"]
        assert failure_of(app.handle(job_id)).code == "unknown_task"


def test_p3_jobs_for_no_task_do_not_keep_a_worker_from_others(app, queue):
    def echo(text: str) -> str:
        return text

    good = app.task(name=f"{queue}-good", queue=queue)(echo)
    app.task(name=f"{queue}-other", queue=queue)(echo)
    raw = app.client
    with app.worker(concurrency=2):
        for _ in range(10):
            raw.submit_raw(queue, b"{}", retries=0)
        assert good.submit("x").result(timeout=SECONDS_MAX) == "x"


def test_p3_a_job_that_names_no_task_is_for_the_default_of_its_queue(app, queue):
    @app.task(name=f"{queue}-other", queue=queue)
    def other() -> str:
        return "other"

    @app.task(name=f"{queue}-usual", queue=queue, default=True)
    def usual() -> str:
        return "usual"

    with app.worker():
        assert other.submit().result(timeout=SECONDS_MAX) == "other"
        handle = app.client.submit_raw(queue, b"{}")
        assert handle.result(timeout=SECONDS_MAX) == "usual"


def test_p3_a_job_that_names_no_task_is_for_the_one_of_the_queues_name(app, queue):
    @app.task(name=queue)
    def own() -> str:
        return "own"

    @app.task(name=f"{queue}-other", queue=queue)
    def other() -> str:
        return "other"

    with app.worker():
        assert own.submit().result(timeout=SECONDS_MAX) == "own"
        assert other.submit().result(timeout=SECONDS_MAX) == "other"


def test_p19_outputs_are_in_place_before_the_function_runs(app, queue):
    @app.task(name=queue)
    def double(number: int) -> int:
        return number * 2

    @app.task(name=f"{queue}-sum")
    async def add(numbers: list[int], more: int) -> int:
        return sum(numbers) + more

    with app.worker():
        parts = [double.submit(number) for number in range(5)]
        total = add.submit([part.output for part in parts], double.submit(100).output)
        assert total.result(timeout=SECONDS_MAX) == 220


def test_p68_a_gearman_client_gets_text_as_it_is(tmp_path):
    """P59, P68: with the piece before it, and the progress."""
    with serving(tmp_path, "--store", "memory", "--gearman", "127.0.0.1:0") as served:
        app = App(served.url)

        @app.task
        def reverse(text: str) -> str:
            current_job().emit("...")
            return text[::-1]

        @app.task
        def half(text: str) -> str:
            current_job().progress(1, 2)
            return text

        host, _, port = served.addresses["gearman"].rpartition(":")
        gearman = ["gearman", "-h", host, "-p", port]
        with app.worker():
            found, told = (
                subprocess.run(
                    [*gearman, "-f", name, "hello"],
                    capture_output=True,
                    timeout=SECONDS_MAX,
                    check=True,
                )
                for name in ("reverse", "half")
            )
        app.close()
    assert found.stdout == b"...olleh"
    assert b"50% Complete" in told.stdout


def test_p70_priorities_hold_between_python_and_others(app, api, queue):
    order = []

    @app.task(name=queue)
    def work(who: str) -> None:
        order.append(who)

    handles = [work.using(priority=1).submit("python"), work.using(priority=9).submit("first")]
    api.results("submit", queue=queue, payload={"who": "http"}, priority=5)
    job_id = api.results("submit", queue=queue, payload={"who": "last"}, priority=0)["id"]
    with app.worker(concurrency=1):
        for handle in [*handles, app.handle(job_id, work)]:
            handle.result(timeout=SECONDS_MAX)
    assert order == ["first", "http", "python", "last"]


def test_p76_a_worker_runs_in_the_callers_loop(app, queue):
    @app.task(name=queue)
    async def loop_id() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> None:
        async with app.worker(concurrency=8):
            handle = await loop_id.asubmit()
            async with asyncio.timeout(SECONDS_MAX):
                assert await handle == id(asyncio.get_running_loop())

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:this call blocks the running event loop")
def test_p76_a_worker_runs_beside_a_loop_of_the_callers_thread(app, queue):
    """As in a notebook, whose cells run inside one."""

    @app.task(name=queue)
    async def work(number: int) -> int:
        return await asyncio.to_thread(lambda: number + 1)

    async def cell() -> list[int]:
        with app.worker():
            return [work.submit(number).result(SECONDS_MAX) for number in range(3)]

    for _ in range(2):
        assert asyncio.run(cell()) == [1, 2, 3]


def test_p76_ctrl_c_gives_back_what_runs_at_once(app, queue):
    """P51: uncharged, as a worker that is stopped does after its grace."""
    began = threading.Event()

    @app.task(name=queue)
    def hold() -> None:
        began.set()
        while True:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt), app.worker(grace=10 * SECONDS_MAX):
        handle = hold.submit()
        assert began.wait(SECONDS_MAX)
        raise KeyboardInterrupt

    status = handle.status()
    assert (status.state, status.attempts) == ("ready", 0)


def test_p70_unique_keys_dependencies_and_limits_hold_between_python_and_others(app, api, queue):
    together, most, order = [], [], []
    app.limit(f"{queue}-smtp", 1)
    app.client.request("PUT", f"/api/limits/{queue}-smtp", {"concurrency_max": 1})

    @app.task(name=queue, limits=(f"{queue}-smtp",))
    def work(who: str) -> None:
        together.append(1)
        most.append(len(together))
        order.append(who)
        time.sleep(0.01)
        together.pop()

    first = work.using(unique="who").submit("first")
    key = api.get(f"jobs/{first.id}")["unique_key"]
    joined = api.results("submit", queue=queue, payload={"who": "x"}, unique_key=key)
    assert joined["id"] == first.id
    other = api.results(
        "submit",
        queue=queue,
        payload={"who": "other"},
        depends_on=[first.id],
        limits=[f"{queue}-smtp"],
    )["id"]
    last = work.using(depends_on=[other]).submit("last")
    beside = work.map(f"beside {number}" for number in range(5))

    with app.worker(concurrency=8):
        gather(last, *beside, timeout=SECONDS_MAX)

    assert [who for who in order if "beside" not in who] == ["first", "other", "last"]
    assert max(most) == 1


def test_queues_are_chosen_by_patterns(app, queue):
    @app.task(name=f"{queue}-mail-in")
    def mail_in() -> None: ...

    @app.task(name=f"{queue}-mail-out")
    def mail_out() -> None: ...

    @app.task(name=f"{queue}-other")
    def other() -> None: ...

    with app.worker(queues=[f"{queue}-mail*"]):
        mail_in.submit().result(timeout=SECONDS_MAX)
        mail_out.submit().result(timeout=SECONDS_MAX)
        assert other.submit().status().state == "ready"
    with (
        pytest.raises(ValueError, match="no queue of this app matches 'none'"),
        app.worker(queues=["none"]),
    ):
        pass
