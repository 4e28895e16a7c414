"""Calls a task for a job, in a thread or as a coroutine, and says how that ended."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, NamedTuple

from manyhands.client import traces
from manyhands.client.app import Around
from manyhands.client.job import Released, current
from manyhands.client.signature import BadArguments, BadResult, Call
from manyhands.client.worker import telemetry
from manyhands.client.worker.failures import details_of, failure
from manyhands.client.worker.run import SHUTDOWN, TIMEOUT, Run
from manyhands.client.worker.tallies import COMPLETED, FAILED, GIVEN_BACK, LOST

BAD_ARGUMENTS: Final = "bad_arguments"
BAD_RESULT: Final = "bad_result"
_WHY_REPORTED: Final = (TIMEOUT, SHUTDOWN)  # interruptions that leave the lease in place


class Outcome(NamedTuple):
    """What to report on a job, as the stream takes it."""

    kind: str
    report: Any


_LOST: Final = Outcome(LOST, None)


class Execution:
    """Runs jobs, each in a context of its own and inside what the app puts around jobs (P64)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arounds: Sequence[Around]) -> None:
        self.is_traced = False  # whether spans of all jobs are recorded
        self._loop = loop
        self._arounds = tuple(arounds)
        self._traced_arounds = (telemetry.span, *arounds)
        self._context = contextvars.copy_context()

    def _arounds_of(self, run: Run) -> tuple[Around, ...]:
        headers = run.given.headers
        if self.is_traced or (headers is not None and traces.is_carried(headers)):
            return self._traced_arounds
        return self._arounds

    # In a thread.

    def in_thread(self, run: Run) -> Outcome:
        """Runs a function. ``Cancelled`` may arrive anywhere between ``enter`` and ``leave``."""
        context = self._context.copy()
        try:
            job = run.enter(threading.get_ident())
            if job is None:
                return interrupted(run)
            try:
                context.run(current.set, job)
                call = run.task.arguments.decode(run.payload, run.given.encoding)
                if arounds := self._arounds_of(run):
                    value = self._through(run, call, context, arounds)
                else:
                    value = context.run(run.task.function, *call.args, **call.kwargs)
            finally:
                run.leave()
        except BaseException as error:  # noqa: BLE001 - P62: whatever a task raises is a failure
            run.leave()
            return _raised(run, error)
        return _returned(run, value)

    def _through(
        self, run: Run, call: Call, context: contextvars.Context, arounds: tuple[Around, ...]
    ) -> Any:  # noqa: ANN401
        if not arounds:
            return context.run(run.task.function, *call.args, **call.kwargs)
        manager = context.run(arounds[0])
        leave = self._enter(manager, context)
        try:
            value = self._through(run, call, context, arounds[1:])
        except BaseException as error:
            if not leave(type(error), error, error.__traceback__):
                raise
            return None
        leave(None, None, None)
        return value

    def _enter(
        self,
        manager: AbstractContextManager[Any] | AbstractAsyncContextManager[Any],
        context: contextvars.Context,
    ) -> Callable[..., bool | None]:
        """Enters a context manager from a thread; gives what leaves it."""
        if isinstance(manager, AbstractAsyncContextManager):
            self._wait(manager.__aenter__(), context)
            return lambda *error: self._wait(manager.__aexit__(*error), context)
        context.run(manager.__enter__)
        return lambda *error: context.run(manager.__exit__, *error)

    def _wait(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:  # noqa: ANN401
        """Runs a coroutine in the loop, in the job's context, while its thread waits."""

        async def start() -> Any:  # noqa: ANN401
            return await self._loop.create_task(coroutine, context=context)

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    # In the loop.

    async def in_loop(self, run: Run) -> Outcome:
        """Runs a coroutine function, in a task and a context of its own."""
        job = run.enter()
        if job is None:
            return interrupted(run)
        try:
            current.set(job)
            call = run.task.arguments.decode(run.payload, run.given.encoding)
            if arounds := self._arounds_of(run):
                value = await self._athrough(run, call, arounds)
            else:
                value = await run.task.function(*call.args, **call.kwargs)
        except BaseException as error:  # noqa: BLE001
            return _raised(run, error)
        finally:
            run.leave()
        return _returned(run, value)

    async def _athrough(self, run: Run, call: Call, arounds: tuple[Around, ...]) -> Any:  # noqa: ANN401
        if not arounds:
            return await run.task.function(*call.args, **call.kwargs)
        manager = arounds[0]()
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager:
                return await self._athrough(run, call, arounds[1:])
        with manager:
            return await self._athrough(run, call, arounds[1:])

    def context(self) -> contextvars.Context:
        """A context for one job."""
        return self._context.copy()


# Outcomes.


def interrupted(run: Run) -> Outcome:
    """A job that was not started, or whose function ended because it was interrupted."""
    if run.why == SHUTDOWN:
        return Outcome(GIVEN_BACK, run.given.held)
    if run.why == TIMEOUT:
        return timed_out(run, b"")
    return _LOST


def timed_out(run: Run, details: bytes) -> Outcome:
    """P61: the attempt failed, and is retried by policy."""
    sentence = f"the task ran longer than its timeout of {run.timeout:g} s"
    return Outcome(FAILED, (*run.given.held, TIMEOUT, sentence, details, True, None))


def _returned(run: Run, value: object) -> Outcome:
    if run.why is not None and run.why not in _WHY_REPORTED:
        return _LOST
    given = run.given
    result: bytes | None = None
    encoding = "json"
    if run.task.keeps_result:
        try:
            result, encoding = run.task.results.encode(value, given.encoding)
        except BadResult as error:
            return refused(run, BAD_RESULT, str(error), retry=True)
        except Exception as error:  # noqa: BLE001 - a hook of the app's
            return refused(run, BAD_RESULT, str(error), retry=True, details=details_of(error))
    return Outcome(COMPLETED, (given.id, given.token, result, encoding))


def _raised(run: Run, error: BaseException) -> Outcome:
    if isinstance(error, Released):
        return Outcome(GIVEN_BACK, run.given.held)
    if run.why == TIMEOUT:
        return timed_out(run, details_of(error))
    if run.why is not None:
        return interrupted(run)
    if isinstance(error, BadArguments):
        return refused(run, BAD_ARGUMENTS, str(error), retry=False)
    give_up_on = run.task.options.get("give_up_on", ())
    return Outcome(FAILED, failure(run.given.held, error, give_up_on))


def refused(run: Run, code: str, message: str, *, retry: bool, details: bytes = b"") -> Outcome:
    """A job that failed on our side of the function."""
    return Outcome(FAILED, (*run.given.held, code, message, details, retry, None))
