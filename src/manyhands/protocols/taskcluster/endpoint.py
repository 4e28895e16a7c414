"""What all endpoints of the queue's REST API share: tasks and runs in paths, and bare JSON."""

from collections.abc import Awaitable, Callable
from typing import Final

from manyhands.access.gate import current_guard, guarded_by
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.lookup import find_job
from manyhands.model.job import Job, State
from manyhands.model.replies import Refusal
from manyhands.model.roles import Right
from manyhands.protocols.taskcluster import rest
from manyhands.protocols.taskcluster.rest import RestError
from manyhands.web.envelope import Problem, encode
from manyhands.web.exchange import Exchange

JSON_HEADERS: Final = [(b"content-type", b"application/json; charset=utf-8")]
SENT: Final = object()  # the handler has sent the answer itself
_NO_WORK: Final = [(b"retry-after", b"%d" % rest.SLEEP_SECONDS)]
_RUN_DIGITS_MAX: Final = 9

Handler = Callable[[Exchange], Awaitable[object]]  # returns what to send; None: there is no work


class Endpoint:
    """Bare JSON instead of the envelope of other APIs."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, exchange: Exchange, *_named: str) -> None:
        """Answers a request."""
        try:
            answer = await self._handler(exchange)
        except RestError as error:
            problem = Problem(error.status, error.error, error.message)
            await exchange.fail(problem, more=error.headers)
        else:
            if answer is SENT:
                return
            if answer is None:
                await exchange.send_bytes(204, _NO_WORK, b"")
            else:
                await exchange.send_bytes(200, JSON_HEADERS, encode(answer))


async def find_task(dispatcher: Dispatcher, exchange: Exchange) -> Job:
    """The job of the task that the path names."""
    job = await find_job(dispatcher, exchange.params["task"])
    if isinstance(job, Refusal):
        raise rest.refused(job)
    if job is None:
        raise RestError(404, "there is no such task")
    return job


async def find_run(dispatcher: Dispatcher, exchange: Exchange, *, to_read: bool = False) -> Job:
    """The same for a worker: it need not have the right to look at jobs. With ``to_read``, also for
    whoever has it, and for workers only while the task is claimed.
    """
    guard = current_guard()
    if guard is None:
        return await find_task(dispatcher, exchange)
    with guarded_by(None):
        job = await find_task(dispatcher, exchange)
    may_elsewhere = guard.caller.has(Right.WORK)
    if to_read and (guard.sees(job) or job.state is not State.LEASED or not may_elsewhere):
        return await find_task(dispatcher, exchange)
    if not guard.may_work(job.queue):
        guard.record("work", job.job_id)
        raise rest.refused(guard.unseen() if may_elsewhere else guard.lacks(Right.WORK))
    return job


def read_run(exchange: Exchange) -> int:
    """The run that the path names."""
    text = exchange.params["run"]
    if not (text.isascii() and text.isdigit() and len(text) <= _RUN_DIGITS_MAX):
        raise RestError(404, "there is no such run")
    return int(text)
