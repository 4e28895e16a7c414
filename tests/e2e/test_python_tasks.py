"""Tasks of an app against the real server: declaring, submitting, results, errors."""

import asyncio
import contextlib
import multiprocessing
import socket
import threading
import tracemalloc
import warnings
from datetime import UTC, datetime, timedelta

import pytest

from manyhands import (
    App,
    Backoff,
    Client,
    Fail,
    Handle,
    JobCancelled,
    JobFailed,
    QueueFull,
    Refused,
    ResultGone,
    SyncClient,
    Unavailable,
    agather,
    as_completed,
    await_,
    current_job,
    gather,
    wait,
)
from manyhands.client.ids import id_of, new_id
from tests.e2e.cutting_proxy import DOWN, UP, cutting
from tests.e2e.python_hands import working
from tests.e2e.serving import SECONDS_MAX, own_address, serving, start, wait_until


@pytest.fixture
def app(served):
    app = App(served.url)
    yield app
    app.close()


def declare_add(app: App, name: str, **options):
    @app.task(name=name, **options)
    def add(a: int, b: int = 2) -> int:
        if a < 0:
            raise Fail("too small", code="small")
        return a + b

    return add


# Submitting.


def test_p3_a_task_is_a_queue_of_its_name(app, api):
    @app.task
    def p3_name(x: int) -> None: ...

    @app.task(name="p3_other", queue="p3_shared")
    def anything(x: int) -> None: ...

    one, two = p3_name.submit(1).status(), anything.submit(2).status()

    assert (one.queue, one.headers) == ("p3_name", {})
    assert (two.queue, two.headers) == ("p3_shared", {"task": "p3_other"})


def test_p3_two_tasks_of_one_name_are_an_error(app):
    declare_add(app, "twice")

    with pytest.raises(ValueError, match="two tasks named 'twice'"):
        declare_add(app, "twice")


def test_p14_a_submitted_job_is_worked_and_its_result_comes_back(app, queue):
    """P36, too."""
    add = declare_add(app, queue)

    with working(app):
        handle = add.submit(1, b=41)
        assert isinstance(handle, Handle)
        assert handle.result(SECONDS_MAX) == 42
        assert handle.result() == 42
        assert app.handle(handle.id, add).result(SECONDS_MAX) == 42
        assert app.handle(handle.id).result(SECONDS_MAX) == 42
    assert add(1) == 3


def test_p14_submit_on_a_running_loop_works_and_warns_once(app, queue):
    add = declare_add(app, queue)

    async def submit_twice() -> None:
        with pytest.warns(RuntimeWarning, match="await asubmit"):
            add.submit(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            add.submit(2)

    asyncio.run(submit_twice())


def test_p14_coroutines_submit_and_await(app, queue):
    """P32: an app is used from several loops, one after the other."""
    add = declare_add(app, queue)

    async def submit() -> None:
        handle = await add.asubmit(1)
        assert await handle == 3
        assert await handle.aresult(SECONDS_MAX) == 3
        assert (await handle.astatus()).state == "completed"
        assert not await handle.acancel()
        handles = await add.amap(range(3), b=1)
        assert await agather(*handles, timeout=SECONDS_MAX) == [1, 2, 3]

    with working(app):
        asyncio.run(submit())
        asyncio.run(submit())


def test_p32_many_threads_and_loops_share_one_stream(served, queue):
    """And all clients of a process share one thread."""
    with cutting(served.addresses["http"]) as (address, cuts):
        app, other = App(address), App(served.url)
        submit_in_threads_and_loops(app, other, queue)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("manyhands client") == 1
        assert cuts.connections_count == 1
        app.close()
        other.close()


def submit_in_threads_and_loops(app: App, other: App, queue: str) -> None:
    add = declare_add(app, queue)
    results: list[int] = []

    def in_thread(number: int) -> None:
        if number % 2:
            results.append(add.submit(number).result(SECONDS_MAX))
        else:

            async def submit() -> int:
                return await (await add.asubmit(number))

            results.append(asyncio.run(submit()))

    declare_add(other, queue)
    with working(other):
        threads = [threading.Thread(target=in_thread, args=(n,)) for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [number + 2 for number in range(64)]


def test_p36_failures_raise_with_their_code_and_traceback(app, queue):
    add = declare_add(app, queue, retries=0)

    @app.task(name=f"{queue}_", retries=1, backoff=Backoff(first=0))
    def fail() -> None:
        raise KeyError("nothing")

    with working(app):
        with pytest.raises(JobFailed) as found:
            add.submit(-1).result(SECONDS_MAX)
        assert (found.value.code, found.value.message) == ("small", "too small")
        assert found.value.traceback == "Traceback: here"
        with pytest.raises(JobFailed) as found:
            fail.submit().result(SECONDS_MAX)
        assert (found.value.code, found.value.attempts) == ("KeyError", 2)


def test_p36_a_result_that_is_not_there_in_time_is_a_timeout(app, queue):
    handle = declare_add(app, queue).submit(1)

    with pytest.raises(TimeoutError, match=rf"{handle.id} .*status\(\)\.waits"):
        handle.result(timeout=0.01)
    with pytest.raises(TimeoutError, match=handle.id):
        asyncio.run(handle.aresult(timeout=0.01))


def test_p36_results_that_are_gone_are_said_to_be_gone(app, queue):
    """P7: ``result=False`` keeps nothing."""
    add = declare_add(app, queue, result=False)

    with pytest.raises(ResultGone):
        app.handle(new_id(), add).result(SECONDS_MAX)
    with working(app), pytest.raises(ResultGone):
        add.submit(1).result(SECONDS_MAX)


def test_p36_ten_thousand_handles_are_awaited_over_one_stream(served, app, queue):
    """And whoever gives up waiting leaves nothing behind."""
    with cutting(served.addresses["http"]) as (address, cuts):
        submitter = App(address, timeout=SECONDS_MAX)
        handles = declare_add(submitter, queue).map(range(10_000))
        assert len({handle.id for handle in handles}) == 10_000

        tracemalloc.start()
        sizes = []
        for _ in range(4):
            done, pending = wait(handles, timeout=0.01)
            assert (len(done), len(pending)) == (0, 10_000)
            sizes.append(tracemalloc.get_traced_memory()[0])
        wait_until(lambda: tracemalloc.get_traced_memory()[0] < 10_000 * 400)
        tracemalloc.stop()

        app.client.request("POST", "/api/bulk", {"action": "cancel", "filter": {"queue": queue}})
        assert len(list(as_completed(handles, SECONDS_MAX))) == 10_000
        assert all(not handle.has_succeeded for handle in handles)
        assert cuts.connections_count == 1
        submitter.close()
    assert max(sizes) < 10_000 * 2_000


def test_p37_the_status_says_why_a_job_does_not_go_on(app, queue):
    handle = declare_add(app, queue, priority=3, tags=["x"]).submit(1)

    status = handle.status()

    assert (status.state, status.attempts, status.priority) == ("ready", 0, 3.0)
    assert status.tags == ("x",)
    assert status.submitted_at.tzinfo is not None
    assert "nobody" in status.waits[0]
    with pytest.raises(Refused) as found:
        app.handle(new_id()).status()
    assert found.value.code == "unknown_job"


def test_p37_the_status_names_progress_worker_times_and_the_last_failure(app, queue):
    reported, may_end = threading.Event(), threading.Event()

    @app.task(name=queue, retries=1, backoff=Backoff(first=0))
    def work() -> None:
        job = current_job()
        if job.attempt == 1:
            raise KeyError("first")
        job.progress(3, 8)
        reported.set()
        may_end.wait(SECONDS_MAX)

    begun = datetime.now(UTC)
    with app.worker(name="hand"):
        handle = work.submit()
        assert reported.wait(SECONDS_MAX)
        wait_until(lambda: handle.status().progress == (3, 8))
        running = handle.status()
        may_end.set()
        handle.result(SECONDS_MAX)
    ended = handle.status()

    assert (running.state, running.attempts) == ("leased", 1)
    assert running.failure is not None
    assert (running.failure.code, running.failure.message) == ("KeyError", "'first'")
    assert running.worker is not None
    assert running.worker.startswith("hand-")
    assert running.finished_at is None
    assert ended.finished_at is not None
    assert begun - timedelta(seconds=5) < ended.submitted_at <= running.entered_at
    assert running.entered_at <= ended.finished_at
    assert ended.worker is None


def test_p39_cancel_says_whether_the_job_was_unfinished(app, queue):
    handle = declare_add(app, queue).submit(1)

    assert handle.cancel("no longer wanted")
    assert not handle.cancel()
    with pytest.raises(JobCancelled) as found:
        handle.result(SECONDS_MAX)
    assert found.value.reason == "no longer wanted"


def test_p6_arguments_that_do_not_fit_fail_without_a_retry(app, queue):
    add = declare_add(app, queue, retries=3)
    handle = app.client.submit_raw(queue, '{"a": "x"}')

    with working(app), pytest.raises(JobFailed) as found:
        app.handle(handle.id, add).result(SECONDS_MAX)

    assert found.value.code == "bad_arguments"
    assert found.value.message == "Expected int, got str - at $.a"
    assert found.value.attempts == 1


def test_p9_a_raw_task_takes_and_returns_bytes(app, queue):
    @app.task(raw=True, name=queue)
    def shrink(data: bytes) -> bytes:
        return data[:2]

    with app.worker():
        assert shrink.submit(b"\xff\x00\x01").result(SECONDS_MAX) == b"\xff\x00"


def test_p10_a_remote_task_is_left_to_other_workers(app, queue):
    add = declare_add(app, queue)

    @app.task(remote=True, name=f"{queue}_")
    def elsewhere(path: str) -> str: ...

    with pytest.raises(RuntimeError, match="remote"):
        elsewhere("a")
    with app.worker():
        handle = elsewhere.using(priority=9).submit("a")
        assert add.submit(1).result(SECONDS_MAX) == 3  # the worker had its chance
        claimed = app.client.request("POST", "/api/claim", {"queue": f"{queue}_"})
        body = {"id": claimed[0]["id"], "token": claimed[0]["token"], "result": "b"}
        app.client.request("POST", "/api/complete", body | {"encoding": "text"})
        assert handle.result(SECONDS_MAX) == "b"


# Options.


def test_p11_options_travel_with_the_job(app, api, queue):
    """P12: what is not set is left to the queue and the server."""
    add = declare_add(app, queue, retries=1, timeout=30, lease=timedelta(minutes=1))
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    handle = add.using(
        delay=60, deadline=tomorrow, headers={"colour": "red"}, limits=("smtp",), timeout=5
    ).submit(1)
    plain = declare_add(app, f"{queue}_").submit(1)

    shown = api.get(f"jobs/{handle.id}")
    assert shown["terms"]["attempts_max"] == 2
    assert shown["terms"]["lease_ms"] == 60_000
    assert shown["terms"]["attempt_ms_max"] == 15_000
    assert shown["limits"] == ["smtp"]
    assert shown["headers"] == {"colour": "red", "timeout": "5"}
    assert shown["state"] == "delayed"
    assert shown["deadline_at"] == round(tomorrow.timestamp() * 1000)
    assert "attempts_max" not in api.get(f"jobs/{plain.id}")["terms"]


def test_p11_an_app_has_defaults_for_all_of_its_tasks(served, api, queue):
    app = App(served.url, defaults={"retries": 1, "tags": ["red"], "queue": queue})
    plain, own = declare_add(app, f"{queue}_1"), declare_add(app, f"{queue}_2", retries=7)

    shown = [api.get(f"jobs/{task.submit(1).id}") for task in (plain, own, own.using(tags=["x"]))]

    assert [each["terms"]["attempts_max"] for each in shown] == [2, 8, 8]
    assert [each["tags"] for each in shown] == [["red"], ["red"], ["x"]]
    assert {each["queue"] for each in shown} == {queue}
    with pytest.raises(TypeError, match="defaults has no option 'retry'"):
        App(served.url, defaults={"retry": 1})
    app.close()


def test_p5_the_apps_own_types_travel_as_its_functions_say(served, queue):
    def encode(value: object) -> object:
        if isinstance(value, complex):
            return [value.real, value.imag]
        raise NotImplementedError

    def decode(kind: type, value: object) -> object:
        return complex(*value) if kind is complex else value

    app = App(served.url, encode=encode, decode=decode)

    @app.task(name=queue)
    def conjugate(numbers: list[complex]) -> dict[str, complex]:
        return {str(index): number.conjugate() for index, number in enumerate(numbers)}

    with app.worker():
        assert conjugate.submit([1 + 2j]).result(SECONDS_MAX) == {"0": 1 - 2j}
    app.close()


def test_p11_every_option_arrives(app, api, queue):
    """P7: how long a result is kept is one of them."""
    first = declare_add(app, queue).submit(1)
    start = datetime.now(UTC) + timedelta(hours=1)
    options = {
        "queue": f"{queue}_q",
        "priority": 3,
        "run_at": start,
        "backoff": Backoff(first=2, factor=3, longest=60, jitter=0),
        "tags": ["red"],
        "depends_on": [first],
        "on_dependency_failure": "hold",
        "result_ttl": timedelta(minutes=5),
    }

    shown = api.get(f"jobs/{declare_add(app, f'{queue}_').using(**options).submit(1).id}")

    terms = shown["terms"]
    assert (shown["queue"], shown["priority"], shown["tags"]) == (f"{queue}_q", 3, ["red"])
    assert shown["run_at"] == round(start.timestamp() * 1000)
    assert shown["depends_on"] == [first.id]
    assert terms["backoff"] == {"first_ms": 2_000, "factor": 3.0, "ms_max": 60_000, "jitter": 0.0}
    assert (terms["on_dependency_failure"], terms["result_ms"]) == ("hold", 300_000)


def test_p12_a_task_without_options_is_tried_five_times(app, queue):
    attempts: list[int] = []

    @app.task(name=queue, backoff=Backoff(first=0))
    def fail() -> None:
        attempts.append(current_job().attempt)
        raise ConnectionError

    with app.worker(), pytest.raises(JobFailed) as found:
        fail.submit().result(SECONDS_MAX)

    assert attempts == [1, 2, 3, 4, 5]
    assert found.value.attempts == 5


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": "soon"},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"deadline": 5},
        {"retries": -1},
        {"retries": 1.5},
        {"headers": {"task": "x"}},
        {"priority": "high"},
    ],
)
def test_p11_wrong_values_are_refused_before_anything_is_sent(app, queue, options):
    add = declare_add(app, queue)

    with pytest.raises(ValueError, match=next(iter(options)).removesuffix("s")):
        add.using(**options)


def test_p11_misspelt_options_are_type_errors(app, queue):
    with pytest.raises(TypeError, match="backoff is a Backoff"):
        declare_add(app, queue, backoff=1.5)
    with pytest.raises(TypeError, match="'retry'"):
        declare_add(app, queue, retry=3)
    with pytest.raises(TypeError, match="'dealy'"):
        declare_add(app, queue).using(dealy=3)
    with pytest.raises(TypeError, match="several names"):
        declare_add(app, f"{queue}_", tags="mail")
    for jobs in (new_id(), app.handle(new_id())):
        with pytest.raises(TypeError, match="several jobs"):
            declare_add(app, f"{queue}_").using(depends_on=jobs)
        app.tasks.pop(f"{queue}_")
    with pytest.raises(TypeError, match="the id of a job is a str"):
        declare_add(app, f"{queue}_").using(depends_on=[5])


def test_p13_unique_jobs_are_submitted_once(app, queue):
    one = declare_add(app, queue, unique="a")
    everything = declare_add(app, f"{queue}_all", unique=True)
    computed = declare_add(app, f"{queue}_f", unique=lambda a, b=2: a % 10)
    two = declare_add(app, f"{queue}_two", unique=("a", "b"), queue=f"{queue}_all")

    assert one.submit(1, b=1).id == one.submit(1, b=2).id != one.submit(2).id
    assert everything.submit(1).id == everything.submit(1, 2).id == everything.submit(a=1, b=2).id
    assert everything.submit(1).id != everything.submit(1, 3).id
    assert computed.submit(3).id == computed.submit(13).id
    assert two.submit(1).id == two.submit(1, 2).id != everything.submit(1).id
    with pytest.raises(Refused) as found:
        one.using(on_duplicate="refuse").submit(1)
    assert found.value.code == "duplicate_key"
    replaced = one.submit(2)
    other = one.using(on_duplicate="replace").submit(2)
    assert (replaced.status().state, replaced.status().reason) == ("cancelled", "replaced")
    assert other.status().state == "ready"
    with pytest.raises(TypeError, match="no parameter 'c'"):
        declare_add(app, f"{queue}_c", unique="c")


def test_p15_a_key_finds_the_first_job_again(app, queue):
    add = declare_add(app, queue)
    keyed = add.using(key="order-42")

    first = keyed.submit(1)

    assert first.id == id_of(queue, "order-42")
    assert keyed.submit(1).id == first.id
    with working(app) as hands:
        assert first.result(SECONDS_MAX) == 3
        again = keyed.submit(5)
        assert again.result(SECONDS_MAX) == 3
        handles = keyed.map(range(3))
        assert len({handle.id for handle in handles}) == 3
        assert [handle.id for handle in keyed.map(range(3))] == [handle.id for handle in handles]
        assert gather(*handles, timeout=SECONDS_MAX) == [2, 3, 4]
        assert len(hands.ran) == 4


def test_p16_map_submits_in_slices(app, queue):
    add = declare_add(app, queue)

    handles = add.map(range(1_200), b=1)

    assert len(handles) == 1_200
    [counts] = [each["counts"] for each in app.client.queues() if each["name"] == queue]
    assert counts["ready"] == 1_200


def test_p16_map_of_large_payloads_stays_below_the_bounds_of_a_message(app, queue):
    @app.task(name=queue)
    def store(text: str) -> None: ...

    handles = store.map("x" * 1_500_000 for _ in range(8))

    assert len(handles) == 8


def test_p17_a_full_queue_raises_and_is_not_retried(app, queue):
    add = declare_add(app, queue)
    app.client.request("PUT", f"/api/queues/{queue}", {"policy": {"jobs_max": 1}})
    add.submit(1)

    with pytest.raises(QueueFull) as found:
        add.submit(2)

    assert found.value.code == "queue_full"
    assert found.value.retry_after > 0
    with pytest.raises(QueueFull, match="job 1 of 2"):
        add.map([2, 3])


def test_p24_a_payload_above_the_servers_bound_is_refused_and_the_stream_goes_on(tmp_path):
    """P40."""
    with serving(tmp_path, "--store", "memory", "--payload-bytes-max", "100000") as server:
        app = App(server.url, timeout=SECONDS_MAX)

        @app.task
        def store(text: str) -> None: ...

        store.submit("x")
        with pytest.raises(Refused) as small:
            store.submit("x" * 200_000)  # above a payload's bound
        with pytest.raises(Refused) as large:
            store.submit("x" * 3_000_000)  # above a message's
        assert small.value.code == large.value.code == "payload_too_large"
        store.submit("x")
        app.close()


def test_p16_one_bad_submit_does_not_spoil_those_beside_it(app, queue):
    add = declare_add(app, queue)

    async def submit() -> list:
        return await asyncio.gather(
            add.asubmit(1),
            add.using(depends_on=[new_id()]).asubmit(2),
            add.using(priority=float("inf")).asubmit(3),
            add.asubmit(4),
            return_exceptions=True,
        )

    one, two, three, four = asyncio.run(submit())

    assert isinstance(two, Refused)
    assert two.code == "unknown_dependency"
    assert isinstance(three, Refused)
    assert one.status().state == four.status().state == "ready"


def test_p17_what_has_no_place_in_a_message_is_an_error_at_once_and_harms_no_other(app, queue):
    """P16: half a character in a header, while others submit."""
    add = declare_add(app, queue)

    async def submit() -> list:
        return await asyncio.gather(
            add.asubmit(1),
            add.using(headers={"name": "half \ud800"}).asubmit(2),
            add.asubmit(3),
            return_exceptions=True,
        )

    one, two, three = asyncio.run(submit())

    assert isinstance(two, ValueError)
    assert "cannot be sent" in str(two)
    assert one.status().state == three.status().state == "ready"


@pytest.mark.parametrize("job_id", ["half \ud800", "a\nb"])
def test_p36_what_cannot_be_the_id_of_a_job_is_named(app, job_id):
    for way in (app, app.client):
        with pytest.raises(ValueError, match="is no id of a job"):
            way.handle(job_id)
        with pytest.raises(TypeError, match="the id of a job is a str"):
            way.handle(5)


# Batches and graphs.


def test_p18_a_batch_is_sent_at_its_end(app, queue):
    add = declare_add(app, queue)

    with app.batch() as batch:
        handles = [add.submit(n) for n in range(3)]
        handles += add.map([7, 8])
        assert len(batch) == 5
        for wrong in (handles[0].result, lambda: gather(*handles), lambda: wait(handles)):
            with pytest.raises(RuntimeError, match="when its `with` block ends"):
                wrong()
        with pytest.raises(Refused):
            app.handle(handles[0].id).status()

    assert {handle.status().state for handle in handles} == {"ready"}


def test_p18_an_exception_inside_sends_nothing(app, queue):
    add = declare_add(app, queue)
    handles = []

    with pytest.raises(ZeroDivisionError), app.batch():
        handles.append(add.submit(1))
        raise ZeroDivisionError

    with pytest.raises(Refused):
        app.handle(handles[0].id).status()


def test_p18_a_batch_is_all_or_nothing(app, queue):
    add = declare_add(app, queue)
    handles = []

    with pytest.raises(Refused) as found, app.batch():
        handles.append(add.submit(1))
        handles.append(add.using(depends_on=[new_id()]).submit(2))

    assert found.value.code == "unknown_dependency"
    with pytest.raises(Refused):
        app.handle(handles[0].id).status()


def test_p18_a_batch_in_slices_adds_only_what_is_missing(app, queue):
    add = declare_add(app, queue)

    async def run(count: int) -> list[str]:
        async with app.batch(atomic=False):
            return [handle.id for handle in await add.using(key="run7").amap(range(count))]

    some, everything = asyncio.run(run(700)), asyncio.run(run(1_100))
    assert everything[:700] == some
    assert everything == asyncio.run(run(1_100))
    [counts] = [each["counts"] for each in app.client.queues() if each["name"] == queue]
    assert counts["ready"] == 1_100


def test_p18_a_batch_has_its_bound_and_is_used_once(app, queue):
    add = declare_add(app, queue)

    with pytest.raises(ValueError, match="atomic=False"), app.batch() as batch:
        add.map(range(10_001))
    with pytest.raises(RuntimeError, match="used once"), batch:
        pass
    with app.batch():
        assert len(add.map(range(10_000))) == 10_000


def test_p19_outputs_are_arguments(app, queue):
    add = declare_add(app, queue)

    @app.task(name=f"{queue}_sum")
    def total(numbers: list[int], extra: dict[str, int]) -> int:
        return sum(numbers) + sum(extra.values())

    with working(app):
        with app.batch():
            parts = [add.submit(n) for n in range(3)]
            whole = total.submit([part.output for part in parts], {"x": parts[0].output})
            chained = add.submit(whole.output, b=whole.output)
        assert whole.result(SECONDS_MAX) == 2 + 3 + 4 + 2
        assert chained.result(SECONDS_MAX) == 22
        # Also of one that has finished.
        assert add.submit(chained.output).result(SECONDS_MAX) == 24


@pytest.mark.parametrize("atomic", [True, False])
def test_p19_the_output_of_a_job_that_joins_another_is_the_output_of_that_one(app, queue, atomic):
    add = declare_add(app, queue, unique="a")
    double = declare_add(app, f"{queue}_double")

    first = add.submit(1, b=10)
    with app.batch(atomic=atomic):
        joined = add.submit(1, b=20)
        own = add.submit(2)
        after = double.submit(joined.output, b=own.output)
    with app.worker():
        assert after.result(SECONDS_MAX) == 11 + 4
    assert joined.id == first.id


def test_p19_outputs_that_cannot_be_are_refused_at_submit(app, served, queue):
    add = declare_add(app, queue)
    silent = declare_add(app, f"{queue}_", result=False)
    other = App("http://127.0.0.1:1")

    with pytest.raises(ValueError, match="keeps no result"):
        add.submit(silent.submit(1).output)
    with pytest.raises(ValueError, match="another server"):
        add.submit(other.handle(new_id()).output)
    with pytest.raises(TypeError, match=r"argument a: <Handle .* give its \.output$"):
        add.submit([add.submit(1)])


def test_p20_a_failed_dependency_cancels_with_its_cause(app, queue):
    add = declare_add(app, queue, retries=0)

    with working(app):
        with app.batch():
            bad = add.submit(-1)
            after = add.submit(bad.output)
            last = add.submit(after.output)
            failing = add.using(on_dependency_failure="fail").submit(bad.output)
        with pytest.raises(JobFailed, match="too small"):
            bad.result(SECONDS_MAX)
        for handle, cause in ((after, bad), (last, after)):
            with pytest.raises(JobCancelled) as found:
                handle.result(SECONDS_MAX)
            assert (found.value.reason, found.value.cause) == ("dependency_failed", cause.id)
        with pytest.raises(JobFailed) as failed:
            failing.result(SECONDS_MAX)
        assert failed.value.code == "dependency"


def test_p20_a_held_dependant_goes_on_when_its_dependency_is_retried(app, queue):
    may_succeed = threading.Event()

    @app.task(name=queue, retries=0)
    def first() -> int:
        if not may_succeed.is_set():
            raise Fail("not yet")
        return 1

    second = declare_add(app, f"{queue}_after", on_dependency_failure="hold")
    with app.worker():
        with app.batch():
            before = first.submit()
            after = second.submit(before.output)
        with pytest.raises(JobFailed):
            before.result(SECONDS_MAX)
        assert after.status().state == "blocked"
        may_succeed.set()
        app.client.retry(before.id)
        assert after.result(SECONDS_MAX) == 3


@pytest.mark.parametrize("policy", ["cancel", "fail", "run"])
def test_p20_nested_graphs_with_failures_everywhere_end(app, queue, policy):
    """Five levels of ten, and one failure in each."""

    @app.task(name=queue, retries=0, on_dependency_failure=policy)
    def node(level: int, number: int, before: list) -> int:
        if number == level:
            raise Fail("as planned")
        return number

    with working(app):
        handles: list = []
        with app.batch():
            level: list = []
            for depth in range(5):
                before = [handle.output for handle in level]
                level = [node.submit(depth, number, before) for number in range(10)]
                handles += level
        ended = wait(handles, SECONDS_MAX)
    assert len(ended.done) == 50
    assert sum(handle.has_succeeded for handle in handles) == 9


# Gathering.


def test_as_completed_wait_and_gather_work_over_handles(app, queue):
    """P36."""
    add = declare_add(app, queue, retries=0)

    async def in_coroutine(handles) -> None:
        assert {handle.id async for handle in as_completed(handles, SECONDS_MAX)} == {
            handle.id for handle in handles
        }
        ended = await await_(handles, SECONDS_MAX)
        assert ended.done == set(handles)
        with pytest.raises(TimeoutError, match="1 of 1"):
            async for _ in as_completed([never], 0.01):
                pass

    never = declare_add(app, f"{queue}_never").using(delay=3600).submit(1)
    with working(app):
        handles = add.map(range(5))
        assert gather(*handles, timeout=SECONDS_MAX) == [2, 3, 4, 5, 6]
        asyncio.run(in_coroutine(add.map(range(5))))
        ended = wait([*handles, never], timeout=0.5, return_when="FIRST_COMPLETED")
        assert never in ended.not_done
        failed = add.submit(-1)
        ended = wait([never, failed], SECONDS_MAX, "FIRST_EXCEPTION")
        assert ended.done == {failed}
        with pytest.raises(JobFailed):
            gather(failed, never, timeout=SECONDS_MAX)
    with pytest.raises(TimeoutError):
        gather(never, timeout=0.01)
    with pytest.raises(ValueError, match="return_when"):
        wait([never], return_when="soon")


# Servers that are away.


def test_p17_a_server_that_is_away_is_unavailable(queue):
    app = App(f"http://{own_address()}", timeout=0.3)
    add = declare_add(app, queue)

    with pytest.raises(Unavailable) as found:
        add.submit(1)

    assert not found.value.maybe_accepted
    assert len(found.value.ids) == 1
    assert found.value.ids[0] in str(found.value)
    assert "was not accepted" in str(found.value)
    with pytest.raises(Unavailable):
        app.handle(found.value.ids[0], add).result()
    with pytest.raises(Unavailable):
        app.handle(found.value.ids[0], add).status()
    with pytest.raises(Unavailable):
        app.handle(found.value.ids[0], add).cancel()
    app.close()


def test_p40_what_is_no_server_of_these_days_is_named(served, queue):
    """P17: a path without a stream, as an old server has it, and a port that talks of other
    things, are no reason to wait without a word.
    """
    old = App(f"{served.url}/nowhere", timeout=SECONDS_MAX)
    with pytest.raises(Refused, match="no Manyhands server, or an old one") as found:
        declare_add(old, queue).submit(1)
    assert found.value.code == "not_found"
    old.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"220 mail.example ESMTP\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        other = App(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
        with pytest.raises(Unavailable, match="does not speak HTTP"):
            declare_add(other, queue).submit(1)
        with pytest.raises(Unavailable, match="does not speak HTTP"):
            other.client.queues()
        other.close()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://AWAY", "AWAY: nothing listens there (start `manyhands serve`, or give its"),
        ("https://SERVED", "there is no TLS at this address (WRONG_VERSION_NUMBER): try http"),
        ("http://SILENT", "http://SILENT"),
    ],
)
def test_p40_why_a_server_cannot_be_asked_is_said_with_what_to_do(served, address, sentence):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = {
            "AWAY": own_address(),
            "SERVED": served.addresses["http"],
            "SILENT": f"127.0.0.1:{silent.getsockname()[1]}",
        }
        for name, place in places.items():
            address, sentence = address.replace(name, place), sentence.replace(name, place)
        app = App(address, timeout=0.5)
        for ask in (declare_add(app, "any").submit, lambda _: app.client.queues()):
            with pytest.raises(Unavailable) as found:
                ask(1)
            assert sentence in str(found.value)
            assert "Errno" not in str(found.value)
            assert "no connection was tried" not in str(found.value)
        app.close()


def test_p40_a_refused_token_is_named_with_what_to_do(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("operator:ada:s3cret-horse-battery-staple\n")
    tokens.chmod(0o600)
    with serving(tmp_path, "--store", "memory", "--tokens-file", str(tokens)) as server:
        for token in (None, "wrong-horse-battery-staple"):
            app = App(server.url, token=token, timeout=SECONDS_MAX)
            for ask in (declare_add(app, "any").submit, lambda _, app=app: app.client.queues()):
                with pytest.raises(Refused, match="set MANYHANDS_TOKEN") as found:
                    ask(1)
                assert found.value.code == "unauthorized"
            app.close()


def test_p17_a_silent_server_may_have_accepted_the_job(served, queue):
    app_address = served.addresses["http"]
    with cutting(app_address) as (address, cuts):
        app = App(address, timeout=SECONDS_MAX)
        add = declare_add(app, queue)
        add.submit(1)
        cuts.freeze()
        app.server.courier._timeout = 0.3
        with pytest.raises(Unavailable, match="may have been accepted") as found:
            add.submit(2)
        assert found.value.maybe_accepted
        app.close()


def test_p34_several_addresses_are_tried_in_turn(served, queue):
    app = App(f"http://{own_address()}, {served.url}")
    add = declare_add(app, queue)

    assert add.submit(1).status().state == "ready"
    app.close()


@pytest.mark.parametrize("server", ["", "ftp://x", "http://", "http://ada:x@h", "http://h:x"])
def test_p34_a_wrong_address_is_a_value_error(server):
    with pytest.raises(ValueError, match=r"address|port"):
        App(server or " ")


def test_p34_address_and_token_come_from_the_environment(tmp_path, monkeypatch, queue):
    token = "s3cret-horse-battery-staple"
    (tmp_path / "tokens").write_text(f"operator:ada:{token}\n")
    (tmp_path / "tokens").chmod(0o600)
    arguments = ("--store", "memory", "--tokens-file", str(tmp_path / "tokens"))
    with serving(tmp_path, *arguments) as server:
        monkeypatch.setenv("MANYHANDS_URL", server.url)
        monkeypatch.setenv("MANYHANDS_TOKEN", token)
        app = App()
        add = declare_add(app, queue)
        assert token not in repr(app) + repr(add) + repr(app.client) + repr(add.submit(1))
        assert app.client.queues()[0]["name"] == queue
        app.close()

        monkeypatch.setenv("MANYHANDS_TOKEN", "wrong-horse-battery-staple")
        refused = App()
        with pytest.raises(Refused, match="MANYHANDS_TOKEN") as found:
            declare_add(refused, queue).submit(1)
        assert found.value.code == "unauthorized"
        with pytest.raises(Refused):
            refused.handle(new_id()).result()
        with pytest.raises(Refused):
            refused.client.queues()
        refused.close()
    with pytest.raises(ValueError, match="printable") as bad:
        App(token="a\r\nb")
    assert "a\r\nb" not in str(bad.value)


@pytest.mark.parametrize("way", [UP, DOWN])
def test_p35_a_submit_survives_a_cut_at_any_byte(served, api, queue, way):
    """P15: there is one job, whether the cut was before or after the commit."""

    def submit(bytes_max: int) -> int:
        with cutting(served.addresses["http"]) as (address, cuts):
            if bytes_max:
                cuts.planned = [(way, bytes_max)]
            app = App(address)
            handle = declare_add(app, queue).submit(bytes_max)
            assert handle.status().state == "ready"
            total = cuts.seen_first[way]
            app.close()
        return total

    total = submit(0)
    count = 1
    for bytes_max in range(max(1, total - 120), total, 4):
        submit(bytes_max)
        count += 1

    [counts] = [each["counts"] for each in api.get("queues") if each["name"] == queue]
    assert counts["ready"] == count


def test_p35_a_server_that_restarts_under_load_loses_and_doubles_nothing(tmp_path, queue):
    """P15, P35: SIGKILL, at any point between commit and answer."""
    address = own_address()
    server = start(tmp_path, "--http", address)
    app = App(f"http://{address}", timeout=SECONDS_MAX)
    add = declare_add(app, queue)
    handles: list[list] = [[] for _ in range(4)]
    is_over = threading.Event()

    def submit(own: list) -> None:
        while not is_over.is_set():
            own.append(add.submit(len(own)))
            if len(own) % 50 == 0:
                own += add.map(range(100))

    threads = [threading.Thread(target=submit, args=(own,)) for own in handles]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = sum(map(len, handles))
        while sum(map(len, handles)) < before + 300:
            assert all(thread.is_alive() for thread in threads)
            threading.Event().wait(0.01)
        server.process.kill()
        server.process.wait()
        server = start(tmp_path, "--http", address)
    is_over.set()
    for thread in threads:
        thread.join()

    ids = [handle.id for own in handles for handle in own]
    assert len(set(ids)) == len(ids)
    [counts] = [each["counts"] for each in app.client.queues() if each["name"] == queue]
    assert counts["ready"] == len(ids)
    app.close()
    assert server.stop() == 0


def test_p35_results_are_awaited_through_a_restart(tmp_path, queue):
    address = own_address()
    server = start(tmp_path, "--http", address)
    app = App(f"http://{address}", timeout=SECONDS_MAX)
    add = declare_add(app, queue)
    handles = add.map(range(5))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(gather(*handles)))
    thread.start()

    server.stop()
    server = start(tmp_path, "--http", address)
    with working(app):
        thread.join()

    assert found == [2, 3, 4, 5, 6]
    app.close()
    assert server.stop() == 0


def test_p35_the_state_is_asked_for_through_a_restart(tmp_path, queue):
    """P37."""
    address = own_address()
    server = start(tmp_path, "--http", address)
    app = App(f"http://{address}", timeout=SECONDS_MAX)
    handle = declare_add(app, queue).submit(1)
    server.stop()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(handle.status().state))
    thread.start()

    server = start(tmp_path, "--http", address)
    thread.join()

    assert found == ["ready"]
    app.close()
    assert server.stop() == 0


# Processes.


def _in_child(pipe, add) -> None:
    handle = add.submit(5)
    pipe.send((handle.id, handle.result(SECONDS_MAX)))


def test_p33_a_forked_child_opens_its_own_stream(app, served, queue):
    """The parent's is not touched."""
    add = declare_add(app, queue)
    refused = declare_add(App(f"{served.url}/nowhere"), queue)
    with pytest.raises(Refused):
        refused.submit(1)
    fork = multiprocessing.get_context("fork")

    with working(app):
        assert add.submit(1).result(SECONDS_MAX) == 3
        here, there = fork.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork
            child = fork.Process(target=_in_child, args=(there, add))
            child.start()
        assert here.poll(SECONDS_MAX)
        assert here.recv()[1] == 7
        child.join()
        assert child.exitcode == 0
        assert add.submit(2).result(SECONDS_MAX) == 4


# Clients.


def test_p31_coroutines_have_such_a_client_too(served, queue):
    async def use() -> None:
        client = Client(served.url)
        handle = await client.submit_raw(queue, b"\x00\xff", key="one", priority=2)
        assert (await client.submit_raw(queue, b"other", key="one")).id == handle.id
        many = await client.submit_many(queue, ["a", "b"], depends_on=[handle])
        found = [job["id"] async for job in client.jobs(queue=queue)]
        assert set(found) == {each.id for each in (handle, *many)}
        await client.cancel(handle.id)
        assert (await client.handle(many[0].id).astatus()).state == "cancelled"
        await client.retry(handle.id)
        assert (await handle.astatus()).state == "ready"
        assert queue in [each["name"] for each in await client.queues()]
        assert (await client.schedules(), await client.limits()) == ([], [])
        async for event in client.events():
            assert event["seq"]
            break
        with pytest.raises(Refused) as found_error:
            await client.request("GET", "/api/nothing")
        assert found_error.value.code == "not_found"
        await client.close()
        with pytest.raises(Refused, match="closed"):
            await client.submit_raw(queue, b"")

    asyncio.run(use())


def test_p40_a_refusal_has_the_code_the_sentence_and_the_detail_of_the_api(app, queue):
    handle = app.client.submit_raw(queue, b"1")
    body = {"id": handle.id, "queue": f"{queue}_2", "payload": 1, "on_existing": "keep"}

    with pytest.raises(Refused) as found:
        app.client.request("POST", "/api/submit", body)

    assert found.value.code == "in_other_queue"
    assert found.value.message == f"job {handle.id} is ready in queue {queue!r}"
    assert found.value.detail == {"id": handle.id, "queue": queue, "state": "ready"}
    assert str(found.value) == f"{found.value.message} (in_other_queue)"


def test_p31_clients_without_tasks_reach_everything(served, queue):
    """P31."""
    client = SyncClient(served.url)
    handle = client.submit_raw(queue, b"\x00\xff", key="one", priority=2)
    assert client.submit_raw(queue, b"other", key="one").id == handle.id
    many = client.submit_many(queue, ["a", "b"], depends_on=[handle])

    assert {job["id"] for job in client.jobs(queue=queue)} == {each.id for each in (handle, *many)}
    assert client.request("GET", f"/api/jobs/{handle.id}")["payload"] == {"base64": "AP8="}
    client.cancel(handle.id)
    assert client.handle(many[0].id).status().state == "cancelled"
    client.retry(handle.id)
    assert handle.status().state == "ready"
    assert next(client.events())["seq"]
    assert client.schedules() == []
    assert client.limits() == []
    with pytest.raises(Refused) as found:
        client.request("GET", "/api/nothing")
    assert found.value.code == "not_found"
    client.close()
    with pytest.raises(Refused, match="closed"):
        client.submit_raw(queue, b"")
