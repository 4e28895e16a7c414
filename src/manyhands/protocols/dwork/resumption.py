"""Create with resume: finished tasks are left alone."""

from collections.abc import Mapping, Sequence

from manyhands.model.commands import Resume
from manyhands.model.job import Job
from manyhands.model.replies import Refusal, Reply, Resumed, Why
from manyhands.protocols.dwork.codec import Kind, Made, Query, Task, encode
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import Maker
from manyhands.protocols.dwork.turns import Turn


def resume(hub: Hub, queue: str, turn: Turn, tasks: Sequence[Task], maker: Maker) -> None:
    """Only the store knows graphs that have ended. What it has on record is looked up if the engine
    needs it, and once more if another graph ended meanwhile.
    """
    items = tuple([maker.new_job(task, hub.job_id()) for task in tasks])
    names = dict.fromkeys([task.name for task in tasks])
    for task in tasks:
        names.update(dict.fromkeys([dep.name for dep in task.preds]))

    def look_up() -> None:
        as_of = hub.forgotten_count(queue)

        def found(records: Mapping[str, Job]) -> None:
            recorded = tuple([(name, job.state) for name, job in records.items()])
            hub.ask(
                Resume(namespace=queue, items=items, recorded=recorded, as_of=as_of),
                settle,
            )

        hub.find_ended(queue, tuple(names), found)

    def settle(reply: Reply) -> None:
        if isinstance(reply, Refusal):
            if reply.why is Why.NO_LONGER_FITS:
                look_up()
            else:
                turn.refuse_by(reply)
        elif hub.draining:
            turn.finish()
        else:
            assert isinstance(reply, Resumed)
            made = Made(
                added=reply.added, there=reply.unfinished, done=reply.completed, again=reply.again
            )
            turn.answer(encode(Query(kind=Kind.OK, made=made)))

    hub.ask(Resume(namespace=queue, items=items), settle)
