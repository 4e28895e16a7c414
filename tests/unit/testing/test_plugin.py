"""Tests of tasks without a server: the real engine, no thread, no socket, a clock to turn."""

import asyncio
import contextvars
import threading
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import pytest

from manyhands.client.app import App
from manyhands.client.courier import Courier
from manyhands.client.errors import Fail, JobCancelled, JobFailed, Refused, Retry
from manyhands.client.job import current_job
from manyhands.client.options import Backoff, cron, every
from manyhands.testing import job_for
from manyhands.testing.courier import EngineCourier, NotFinished

app = App()
ran: list = []


def hours(count: int) -> timedelta:
    return timedelta(hours=count)


GREETING = contextvars.ContextVar("greeting", default="hello")


@app.task
def double(number: int, extra: int = 0) -> int:
    ran.append(number)
    return 2 * number + extra


@app.task(name="half")
async def halve(number: int) -> float:
    await asyncio.sleep(0)
    return number / 2


@app.task(retries=2, backoff=Backoff(first=60, factor=2, jitter=0.0))
def flaky() -> int:
    if current_job().attempt < 3:
        raise ConnectionError("not yet")
    return current_job().attempt


@app.task(unique="user_id", give_up_on=(KeyError,))
def welcome(user_id: int) -> str:
    if user_id == 1:
        raise Retry(delay=600)
    if user_id == 2:
        raise Fail("no such user", code="unknown_user")
    if user_id == 3:
        raise KeyError(user_id)
    return f"welcome {user_id}"


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def report() -> str:
    job = current_job()
    job.progress(1, 4)
    job.emit("first")
    job.log.info("half way")
    return job.headers.get("trace", "")


@app.task(retries=1)
def fragile(manner: str) -> str:
    if manner == "released" and current_job().headers.get("once") is None:
        current_job().release()
    return manner


@pytest.fixture(autouse=True)
def forget():
    ran.clear()


# P78.


def test_a_job_runs_when_it_is_drained_and_not_before(manyhands):
    """P78, P79."""
    handle = double.submit(4, extra=1)
    assert (handle.status().state, ran) == ("ready", [])

    assert manyhands.drain() == 1

    assert handle.result() == 9
    assert (handle.status().state, ran) == ("completed", [4])
    assert manyhands.drain() == 0


def test_no_thread_is_started_and_no_connection_made(manyhands):
    """P78."""
    before = threading.active_count()

    handles = double.map(range(20))
    manyhands.drain()

    assert [handle.result() for handle in handles] == list(range(0, 40, 2))
    assert threading.active_count() == before


@pytest.mark.parametrize("_again", [1, 2])
def test_every_test_has_an_engine_of_its_own(manyhands, _again):
    """P78."""
    assert manyhands.submitted() == []
    double.submit(1)


def test_apps_that_a_test_makes_are_bound_too(manyhands):
    """P78."""
    other = App("http://127.0.0.1:9")

    @other.task
    def triple(number: int) -> int:
        return 3 * number

    handle = triple.submit(2)
    manyhands.drain()

    assert handle.result() == 6


def test_apps_are_as_they_were_afterwards():
    """P78."""
    assert "127.0.0.1:7700" in repr(app)


@pytest.mark.usefixtures("manyhands")
def test_a_result_that_is_not_there_is_an_error_and_not_a_wait():
    """P78."""
    with pytest.raises(NotFinished, match="call drain"):
        double.submit(1).result()
    with pytest.raises(NotFinished, match="travel"):
        double.using(delay=60).submit(1).result()


# P79.


def test_coroutines_run(manyhands):
    """P79."""
    handle = halve.submit(3)
    manyhands.drain()

    assert handle.result() == 1.5


def test_coroutines_run_in_the_loop_of_a_coroutine(manyhands):
    """P79."""

    async def test() -> float:
        handle = await halve.asubmit(3)
        assert await manyhands.adrain() == 1
        return await handle

    assert asyncio.run(test()) == 1.5


def test_an_exception_of_a_task_is_raised_as_it_was(manyhands):
    """P79."""
    handle = flaky.submit()

    with pytest.raises(ConnectionError, match="not yet") as found:
        manyhands.drain()

    assert found.traceback[-1].name == "flaky"
    status = handle.status()
    assert (status.state, status.failure.code) == ("delayed", "ConnectionError")


def test_other_jobs_run_before_an_exception_is_raised(manyhands):
    """P79."""
    flaky.using(priority=5).submit()
    handle = double.submit(1)

    with pytest.raises(ConnectionError):
        manyhands.drain()

    assert handle.result() == 2


def test_failures_may_be_recorded_as_in_production(manyhands):
    """P79: with the real retries and backoff."""
    handle = flaky.submit()

    manyhands.drain(raises=False)
    manyhands.travel(seconds=59)
    assert manyhands.drain(raises=False) == 0
    manyhands.travel(seconds=1)
    assert manyhands.drain(raises=False) == 1
    manyhands.travel(seconds=120)
    manyhands.drain(raises=False)

    assert handle.result() == 3


def test_what_a_task_declares_is_not_raised(manyhands):
    """P79."""
    handles = [welcome.submit(number) for number in (2, 3)]
    manyhands.drain()

    with pytest.raises(JobFailed) as declared:
        handles[0].result()
    with pytest.raises(JobFailed) as given_up:
        handles[1].result()
    assert (declared.value.code, given_up.value.code) == ("unknown_user", "KeyError")


def test_arguments_that_do_not_fit_fail_the_job(manyhands):
    """P79: serialisation is the real one."""
    app.client  # noqa: B018 - it is there, and asks nothing yet
    handle = total.submit(["x"])  # type: ignore[list-item]

    with pytest.raises(Exception, match="Expected"):
        manyhands.drain()

    with pytest.raises(JobFailed) as found:
        handle.result()
    assert found.value.code == "bad_arguments"


def test_unique_keys_are_the_real_ones(manyhands):
    """P79."""
    handle = welcome.submit(7)

    assert welcome.submit(7).id == handle.id
    assert welcome.submit(8).id != handle.id
    with pytest.raises(Refused) as found:
        welcome.using(on_duplicate="refuse").submit(7)
    assert found.value.code == "duplicate_key"
    assert manyhands.drain() == 2


def test_a_graph_runs_in_its_order(manyhands):
    """P79."""
    with app.batch():
        parts = [double.submit(number) for number in (1, 2, 3)]
        whole = total.submit([part.output for part in parts])
    manyhands.drain()

    assert whole.result() == 12


def test_the_dependant_of_a_failed_job_is_cancelled(manyhands):
    """P79."""
    first = welcome.submit(2)
    second = double.using(depends_on=[first]).submit(1)
    manyhands.drain()

    with pytest.raises(JobCancelled) as found:
        second.result()
    assert (found.value.reason, found.value.cause) == ("dependency_failed", first.id)


def test_a_task_reports_progress_pieces_and_reads_headers(manyhands, caplog):
    """P79."""
    handle = report.using(headers={"trace": "0-1"}).submit()
    with caplog.at_level("INFO"):
        manyhands.drain()

    assert handle.result() == "0-1"
    assert handle.status().progress == (1, 4)
    pieces = [news.partial for news in handle.news() if news.partial is not None]
    assert pieces == [b"first"]
    assert caplog.messages == ["half way"]


def test_managers_around_and_the_lifespan_are_there_while_jobs_run(manyhands):
    """P79."""
    log: list[str] = []

    @asynccontextmanager
    async def resources():
        log.append("begin")
        yield "pool"
        log.append("end")

    other = App(lifespan=resources)

    @other.around
    @contextmanager
    def session():
        log.append("in")
        yield
        log.append("out")

    @other.around
    @asynccontextmanager
    async def trace():
        yield

    @other.task
    def use() -> str:
        log.append(other.state)
        return other.state

    handle = use.submit()
    manyhands.drain()

    assert handle.result() == "pool"
    assert log == ["begin", "in", "pool", "out", "end"]


def test_each_job_has_a_context_of_its_own(manyhands):
    """P79."""
    other = App()

    @other.task
    def change() -> str:
        before = GREETING.get()
        GREETING.set("bye")
        return before

    handles = [change.submit(), change.submit()]
    manyhands.drain()

    assert [handle.result() for handle in handles] == ["hello", "hello"]
    assert GREETING.get() == "hello"


def test_jobs_of_a_task_that_is_nowhere_fail(manyhands):
    """P79."""
    other = App()

    @other.task(queue="shared")
    def one() -> None: ...

    @other.task(queue="shared")
    def two() -> None: ...

    handle = two.submit()
    del other.tasks["two"]
    manyhands.drain()

    with pytest.raises(JobFailed) as found:
        handle.result()
    assert found.value.code == "unknown_task"


# P80.


def test_what_was_submitted_is_known(manyhands):
    """P80."""
    double.using(priority=3, tags=["red"]).submit(5, extra=1)
    halve.submit(1)

    [found] = manyhands.submitted(double)

    assert found.arguments == {"number": 5, "extra": 1}
    assert (found.options["priority"], found.options["tags"]) == (3.0, ["red"])
    assert [each.task for each in manyhands.submitted()] == ["double", "half"]


def test_a_full_mailbox_is_tried_again_ten_minutes_later(manyhands):
    """P80."""
    handle = welcome.submit(1)
    manyhands.drain()
    assert handle.status().state == "delayed"

    manyhands.travel(minutes=9, seconds=59)
    assert manyhands.drain() == 0
    manyhands.travel(timedelta(seconds=1))

    assert manyhands.drain() == 1
    assert handle.status().attempts == 2


def test_deadlines_pass_on_the_way(manyhands):
    """P80."""
    deadline = manyhands.now + timedelta(hours=1)
    handle = double.using(deadline=deadline, delay=7200).submit(1)

    manyhands.travel(deadline + timedelta(seconds=1))

    assert handle.status().failure.code == "deadline"
    with pytest.raises(ValueError, match="forward"):
        manyhands.travel(manyhands.now - timedelta(seconds=1))


def test_schedules_fall_due_on_the_way_in_order(manyhands):
    """P80: those that the code declares, as a worker puts them."""
    other = App()
    log: list[tuple[str, str]] = []

    @other.task(schedule=every(hours(8)))
    def often() -> None:
        log.append(("often", current_job().queue))

    @other.task(schedule=cron("0 3 * * *", "Europe/Berlin"), queue="shared")
    def nightly() -> None:
        log.append(("nightly", current_job().task))

    for _ in range(6):
        manyhands.travel(hours=4)
        manyhands.drain()

    assert log.count(("often", "often")) == 3
    assert log.count(("nightly", "nightly")) == 1


def test_the_settings_of_queues_hold(manyhands):
    """P79: limits are the real ones."""
    other = App()

    @other.task(rate="2/s")
    def slow(number: int) -> None: ...

    slow.map(range(5))

    assert manyhands.drain() == 2
    manyhands.travel(seconds=1)
    assert manyhands.drain() == 2


def test_a_lease_runs_out_on_the_way(manyhands):
    """P80: in a task that takes longer than its lease."""
    other = App()
    states: list[str] = []

    @other.task(lease=5, retries=0)
    def long() -> None:
        manyhands.travel(seconds=6)
        states.append(other.handle(current_job().id).status().state)

    handle = long.submit()
    manyhands.drain(raises=False)

    assert states == ["failed"]
    assert handle.status().state == "failed"


def test_a_worker_that_is_killed_costs_an_attempt(manyhands):
    """P80."""
    handle = fragile.submit("kept")
    manyhands.kill_worker()
    manyhands.drain()

    status = handle.status()
    assert (status.attempts, status.failure.code) == (1, "worker_died")
    manyhands.travel(hours=2)
    manyhands.drain()
    assert handle.result() == "kept"


def test_a_worker_may_be_killed_in_the_middle_of_a_task(manyhands):
    """P80."""
    log: list[str] = []
    other = App()

    @other.task(retries=0)
    def dies() -> None:
        log.append("before")
        manyhands.kill_worker()
        log.append("after")

    handle = dies.submit()
    manyhands.drain()

    assert log == ["before"]
    with pytest.raises(JobFailed) as found:
        handle.result()
    assert found.value.code == "worker_died"


def test_a_job_is_cancelled(manyhands):
    """P80."""
    handle = double.submit(1)

    assert manyhands.cancel(handle)
    assert not manyhands.cancel(handle)

    assert manyhands.drain() == 0
    with pytest.raises(JobCancelled):
        handle.result()


def test_a_task_sees_that_its_job_is_cancelled(manyhands):
    """P80."""
    seen: list[bool] = []
    other = App()

    @other.task
    def works() -> None:
        seen.append(current_job().cancelled)
        manyhands.cancel(other.handle(current_job().id))
        seen.append(current_job().cancelled)
        current_job().check()
        seen.append(True)

    handle = works.submit()
    manyhands.drain()

    assert seen == [False, True]
    assert handle.status().state == "cancelled"


def test_a_released_job_goes_back_uncharged(manyhands):
    """P80."""
    other = App()
    visits: list[int] = []

    @other.task
    def later() -> int:
        visits.append(current_job().attempt)
        if len(visits) == 1:
            current_job().release()
        return len(visits)

    handle = later.submit()
    manyhands.drain()

    assert (visits, handle.result()) == ([1, 1], 2)


# P81.


def test_eager_jobs_run_in_their_submit_and_dependants_too(manyhands):
    """P81."""
    manyhands.eager()
    first = double.submit(3)
    whole = total.submit([first.output, first.output])

    assert (first.result(), whole.result()) == (6, 12)
    assert welcome.submit(2).status().state == "failed"


def test_eager_jobs_run_where_a_loop_runs(manyhands):
    """P81."""
    manyhands.eager()

    async def test() -> tuple[float, int]:
        return await (await halve.asubmit(3)), await (await double.asubmit(3))

    assert asyncio.run(test()) == (1.5, 6)


# P82.


def test_a_direct_call_has_a_job_if_it_is_given_one():
    """P82."""
    with pytest.raises(RuntimeError, match="no job runs here"):
        report()
    with job_for(report, attempt=3, headers={"trace": "x"}) as job:
        assert report() == "x"
        assert current_job().attempt == 3

    assert (job.progress_seen, job.emitted) == ([(1, 4)], [b"first"])
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()


@pytest.mark.parametrize(
    ("said", "seen"),
    [((0.37, 1), (370, 1_000)), ((2.5, 4), (2_500, 4_000)), ((5.0, 20.0), (5, 20))],
)
def test_progress_in_fractions_keeps_them(said, seen):
    with job_for(report) as job:
        job.progress(*said)

    assert job.progress_seen == [seen]


# The seam.


def test_a_test_offers_everything_that_apps_and_handles_ask_of_a_courier():
    """P78: what a stream calls back is not among it."""
    called_back = {"abort", "after_fork", "ask", "greeted", "held", "is_busy", "lost", "receive"}
    called_back |= {"refused", "resumed"}

    def public(kind) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Courier) - called_back <= public(EngineCourier)
