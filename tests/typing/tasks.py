"""Types of the client as users see them, for type checkers: it is never run. Lines marked
``error`` must be errors, and no others; those marked ``Task`` show a task's type.
"""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type, reveal_type

from manyhands import (
    App,
    Backoff,
    Client,
    Handle,
    SyncClient,
    Task,
    agather,
    as_completed,
    cron,
    every,
    gather,
    wait,
)


class Pool:
    """What a lifespan yields."""


@asynccontextmanager
async def resources() -> AsyncGenerator[Pool, None]:
    yield Pool()


app = App()
other = App("http://127.0.0.1:7700", lifespan=resources, timeout=5)
assert_type(app, App[None])
assert_type(other, App[Pool])
assert_type(other.state, Pool)


@app.task(retries=5, timeout=30, backoff=Backoff(first=60))
def thumbnail(path: str, width: int = 200) -> str:
    return path * width


@app.task
async def welcome(user_id: int) -> bool:
    return bool(user_id)


@app.task(schedule=cron("0 3 * * *", "Europe/Berlin"), unique="x", give_up_on=(ValueError,))
def nightly() -> None: ...


@app.task(schedule=every(timedelta(hours=1)), rate="100/s", concurrency=3)
def hourly() -> None: ...


@app.task
def merge(parts: list[str]) -> int:
    return len(parts)


# Tasks.

reveal_type(thumbnail)  # Task
assert_type(thumbnail("a.png"), str)
assert_type(thumbnail.submit("a.png", width=64), Handle[str])
reveal_type(thumbnail.using(delay=60, priority=5))  # Task
assert_type(thumbnail.using(run_at=datetime.now(UTC)).submit("b.png"), Handle[str])
assert_type(thumbnail.map(["a", "b"], width=64), list[Handle[str]])
assert_type(welcome.submit(7), Handle[bool])
assert_type(welcome.map(range(3)), list[Handle[bool]])

thumbnail.submit("a", width="x")  # error
thumbnail.submit()  # error
thumbnail.submit("a", 1, 2)  # error
thumbnail.submit("a", height=3)  # error
thumbnail.map([1, 2])  # error
thumbnail.map(["a"], width="x")  # error
thumbnail.using(dealy=60)  # error
thumbnail.using(delay="soon")  # error
thumbnail.using(on_duplicate="ignore")  # error
welcome.submit("7")  # error


@app.task(retry=3)  # error
def misspelt() -> None: ...


# Handles.

handle = thumbnail.submit("a.png")
assert_type(handle.id, str)
assert_type(handle.result(timeout=60), str)
assert_type(handle.output, str)
assert_type(handle.cancel(), bool)
assert_type(handle.status().state, str)
assert_type(welcome.submit(1).result(), bool)
assert_type(merge.submit([handle.output, "b"]), Handle[int])
assert_type(app.handle("0190", thumbnail), Handle[str])
assert_type(gather(handle, handle), list[str])
assert_type(wait([handle]).done, set[Handle[str]])

for each in as_completed([handle], timeout=600):
    assert_type(each.result(), str)

merge.submit(handle.output)  # error
merge.submit([welcome.submit(1).output])  # error
number: int = handle.result()  # error
wrong: Handle[int] = handle  # error


def takes_any(task: Task[..., object]) -> None: ...


takes_any(welcome)
takes_any(thumbnail)


async def coroutine() -> None:
    started: Coroutine[Any, Any, bool] = welcome(1)
    await started
    assert_type(await welcome(1), bool)
    assert_type(await thumbnail.asubmit("a.png"), Handle[str])
    assert_type(await handle, str)
    assert_type(await handle.aresult(), str)
    assert_type(await thumbnail.amap(["a"]), list[Handle[str]])
    assert_type(await agather(handle), list[str])
    async for found in as_completed([handle]):
        assert_type(found, Handle[str])
    async for news in handle.news():
        assert_type(news.progress, tuple[int, int] | None)
    async with app.batch():
        await thumbnail.asubmit("a.png")
    await thumbnail.asubmit(1)  # error
    client = Client("http://127.0.0.1:7700")
    assert_type(await client.submit_raw("q", b"x", priority=1), Handle[Any])
    await client.submit_raw("q", b"x", prioritty=1)  # error


with app.batch(atomic=False):
    thumbnail.submit("a.png")
assert_type(SyncClient().submit_raw("q", "text", delay=timedelta(1)), Handle[Any])
