"""A worker for tests: runs the tasks of an app one after the other, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyhands import App
from manyhands.client.errors import Fail, Refused
from manyhands.client.notes import Job
from manyhands.client.outputs import HEADER, filled, references
from manyhands.client.signature import BadArguments
from manyhands.client.worker_stream import WorkerStream


class PythonHands:
    """Takes jobs and reports on them."""

    def __init__(self, app: App[Any], name: str) -> None:
        self.app = app
        self.name = name
        self.ran: list[str] = []
        self._tasks = {}
        for task in app.tasks.values():
            if not task.is_remote:
                self._tasks[task.queue, task.name] = task
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._is_ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        courier = self.app.server.courier
        self._stream = WorkerStream(courier.places, self, name=self.name, token=courier.token)
        self._stream.want(sorted({queue for queue, _ in self._tasks}))
        self._is_ready.set()
        while (job := await self._jobs.get()) is not None:
            await self._do(job)
            self._stream.give(1)
        await self._stream.depart(self.name)
        await self._stream.close()

    async def _do(self, job: Job) -> None:
        headers = job.headers or {}
        task = self._tasks[job.queue, headers.get("task", job.queue)]
        self.ran.append(job.id)
        try:
            payload = job.payload
            if HEADER in headers:
                views = await self._stream.look(references(payload))
                payload = filled(payload, {view.id: view for view in views})
            call = task.arguments.decode(payload, job.encoding)
            value = task.function(*call.args, **call.kwargs)
            if asyncio.iscoroutine(value):
                value = await value
            done = task.results.encode(value, job.encoding)
        except BadArguments as error:
            await self._fail(job, "bad_arguments", str(error), retry=False)
        except Fail as error:
            await self._fail(job, error.code, error.message, retry=False)
        except Exception as error:  # noqa: BLE001
            await self._fail(job, type(error).__name__, str(error), retry=True)
        else:
            await self._stream.report(done=[(*job.held, *done)])

    async def _fail(self, job: Job, code: str, message: str, *, retry: bool) -> None:
        failed = (*job.held, code, message, b"Traceback: here", retry, None)
        await self._stream.report(failed=[failed])

    # The stream's side.

    def take(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._jobs.put_nowait(job)

    def notified(self, job_id: str, lease_number: int, why: str) -> None:
        pass

    def resumed(self) -> None:
        self._stream.give(1)

    def lost(self, why: str) -> None:
        pass

    def closing(self, seconds: float) -> None:
        pass

    def refused(self, error: Refused) -> None:
        raise error


@contextmanager
def working(app: App[Any], name: str = "hands") -> Iterator[PythonHands]:
    hands = PythonHands(app, name)
    hands.start()
    try:
        yield hands
    finally:
        hands.stop()
