"""A worker inside another program (P76)."""

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from manyhands.client.app import App
from manyhands.client.job import send_records
from manyhands.client.worker.crew import Crew
from manyhands.client.worker.names import check_name, drawn_name
from manyhands.client.worker.options import CrewOptions
from manyhands.client.worker.records import name_jobs_in_records
from manyhands.client.worker.voucher import VouchingThread


class InProcessWorker:
    """What ``app.worker()`` returns: it works in the block of a ``with`` or ``async with``."""

    def __init__(
        self,
        app: App[Any],
        *,
        concurrency: int,
        queues: Sequence[str],
        ahead: int | None,
        grace: float,
        name: str | None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is 1 or more, not {concurrency!r}")
        check_name(name)
        self._app = app
        self._grace = grace
        self._options = CrewOptions(
            name=drawn_name(name), concurrency=concurrency, queues=tuple(queues), ahead=ahead
        )
        self._crew: Crew | None = None
        self._voucher: VouchingThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # In the caller's loop.

    async def __aenter__(self) -> Self:
        """Starts to work, in the running loop."""
        if self._crew is not None:
            raise RuntimeError("this worker was started already; call app.worker() again")
        name_jobs_in_records()
        send_records()
        app = self._app
        self._crew = crew = Crew(app, app.places, app.token, self._options)
        await crew.start()
        self._voucher = VouchingThread(
            app.places, app.token, self._options.name, lambda: crew.shortest_term_ms
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Running jobs may finish for a while; then they are given back. After a Ctrl-C that is at
        once: whoever presses it wants the program to end.
        """
        assert self._crew is not None
        assert self._voucher is not None
        is_hasty = kind is not None and issubclass(kind, KeyboardInterrupt)
        try:
            await self._crew.drain(0.0 if is_hasty else self._grace)
            await self._crew.close()
        finally:
            await asyncio.to_thread(self._voucher.close)

    # In a thread with a loop of its own.

    def __enter__(self) -> Self:
        """Starts to work, in a thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop,), name="manyhands-worker", daemon=True
        )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), self._loop).result()
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As in a coroutine."""
        assert self._loop is not None
        try:
            leaving = self.__aexit__(kind, error, trace)
            asyncio.run_coroutine_threadsafe(leaving, self._loop).result()
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        # Here, since the thread that ends the worker may have a running loop of its own.
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
