"""Why a job waits, with what only the server knows: sleepers, and the jobs that go first."""

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.engine.explanation import why_it_waits, why_queue_waits
from manyhands.model.job import Job, State
from manyhands.model.obstacles import Wait


def why_held_back(dispatcher: Dispatcher, queue: str) -> tuple[Wait, ...]:
    """What keeps the next ready job of a queue from being handed out, workers aside."""
    return why_queue_waits(queue, dispatcher.store.live.view, dispatcher.clock.now())


def why_waiting(dispatcher: Dispatcher, job: Job) -> tuple[Wait, ...]:
    """What a job waits for now."""
    live = dispatcher.store.live
    known = live.queues.get(job.queue)
    if known is None:
        return ()  # finished, and its queue was forgotten since
    return why_it_waits(
        job,
        live.view,
        dispatcher.clock.now(),
        awaited=dispatcher.sleepers.is_wanted(job.queue),
        ahead=known.ahead_of(job) if job.state is State.READY else 0,
    )
