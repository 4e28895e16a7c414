"""Waiting for many handles: ``as_completed``, ``wait``, ``gather``."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any, Final, Generic, NamedTuple, TypeVar

from manyhands.client import home
from manyhands.client.handle import Handle

R = TypeVar("R")
_WHEN: Final = (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION)


class _Watch(Generic[R]):
    """Handles whose ends are awaited; each is put somewhere when it has ended."""

    def __init__(
        self,
        handles: Iterable[Handle[R]],
        put: Callable[[tuple[Handle[R], BaseException | None]], None],
    ) -> None:
        self._pending: dict[Handle[R], home.Settle] = {}
        self._lock = threading.Lock()
        self._put = put
        for handle in handles:
            handle.check_sent()
            if handle.is_ended:
                put((handle, None))
            elif handle not in self._pending:
                self._pending[handle] = self._settle_of(handle)
        for handle, settle in tuple(self._pending.items()):
            handle.courier.await_end(handle.id, settle)

    def _settle_of(self, handle: Handle[R]) -> home.Settle:
        def settle(view: Any, error: BaseException | None) -> None:  # noqa: ANN401
            with self._lock:
                self._pending.pop(handle, None)
            if error is None:
                handle.ended(view)
            self._put((handle, error))

        return settle

    def stop(self) -> None:
        """Waits no longer."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for handle, settle in pending.items():
            handle.courier.forget_end(handle.id, settle)


class as_completed(Generic[R]):  # noqa: N801 - it is used as a function
    """Handles in the order in which their jobs end, for ``for`` and for ``async for``. Raises
    ``TimeoutError`` if one has not ended in time.
    """

    def __init__(self, handles: Iterable[Handle[R]], timeout: float | None = None) -> None:
        self._handles = list(dict.fromkeys(handles))
        self._timeout = timeout

    def __iter__(self) -> Iterator[Handle[R]]:
        arrived: queue.SimpleQueue[tuple[Handle[R], BaseException | None]] = queue.SimpleQueue()
        watch = _Watch(self._handles, arrived.put)
        clock = home.home().loop.time
        deadline = None if self._timeout is None else clock() + self._timeout
        try:
            for number in range(len(self._handles)):
                left = None if deadline is None else max(0.0, deadline - clock())
                try:
                    handle, error = arrived.get(timeout=left)
                except queue.Empty:
                    raise self._too_late(number) from None
                if error is not None:
                    raise error
                yield handle
        finally:
            watch.stop()

    async def __aiter__(self) -> AsyncIterator[Handle[R]]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[Handle[R], BaseException | None]] = asyncio.Queue()

        def put(pair: tuple[Handle[R], BaseException | None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(arrived.put_nowait, pair)

        watch = _Watch(self._handles, put)
        deadline = None if self._timeout is None else loop.time() + self._timeout
        try:
            for number in range(len(self._handles)):
                try:
                    async with asyncio.timeout_at(deadline):
                        handle, error = await arrived.get()
                except TimeoutError:
                    raise self._too_late(number) from None
                if error is not None:
                    raise error
                yield handle
        finally:
            watch.stop()

    def _too_late(self, number: int) -> TimeoutError:
        count = len(self._handles)
        return TimeoutError(f"{count - number} of {count} jobs did not finish in {self._timeout} s")


class Ended(NamedTuple, Generic[R]):
    """What ``wait`` returns."""

    done: set[Handle[R]]
    not_done: set[Handle[R]]


def wait(
    handles: Iterable[Handle[R]],
    timeout: float | None = None,
    return_when: str = ALL_COMPLETED,
) -> Ended[R]:
    """Waits until all have ended, the first one, or the first that did not succeed; never longer
    than the timeout.
    """
    every = _checked(handles, return_when)
    done: set[Handle[R]] = set()
    with contextlib.suppress(TimeoutError):
        for handle in as_completed(every, timeout):
            done.add(handle)
            if _is_enough(handle, return_when):
                break
    return Ended(done, set(every) - done)


async def await_(
    handles: Iterable[Handle[R]],
    timeout: float | None = None,  # noqa: ASYNC109
    return_when: str = ALL_COMPLETED,
) -> Ended[R]:
    """The same as ``wait`` in a coroutine."""
    every = _checked(handles, return_when)
    done: set[Handle[R]] = set()
    with contextlib.suppress(TimeoutError):
        async for handle in as_completed(every, timeout):
            done.add(handle)
            if _is_enough(handle, return_when):
                break
    return Ended(done, set(every) - done)


def _checked(handles: Iterable[Handle[R]], return_when: str) -> Sequence[Handle[R]]:
    if return_when not in _WHEN:
        raise ValueError(f"return_when is one of {', '.join(_WHEN)}")
    return list(handles)


def _is_enough(handle: Handle[Any], return_when: str) -> bool:
    return return_when == FIRST_COMPLETED or (
        return_when == FIRST_EXCEPTION and not handle.has_succeeded
    )


def gather(*handles: Handle[R], timeout: float | None = None) -> list[R]:
    """The results of all, in the order of the handles. The first that did not succeed raises."""
    for handle in as_completed(handles, timeout):
        if not handle.has_succeeded:
            handle.result()
    return [handle.result() for handle in handles]


async def agather(*handles: Handle[R], timeout: float | None = None) -> list[R]:  # noqa: ASYNC109
    """The same in a coroutine."""
    async for handle in as_completed(handles, timeout):
        if not handle.has_succeeded:
            await handle
    return [await handle for handle in handles]
