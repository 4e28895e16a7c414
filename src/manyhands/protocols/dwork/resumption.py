"""Create with resume: finished tasks are left alone."""

from collections.abc import Mapping, Sequence

from manyhands.model.commands import Submit
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.replies import Refusal, Reply, SubmittedMany
from manyhands.protocols.dwork.codec import Kind, Made, Query, Task, encode
from manyhands.protocols.dwork.hub import Hub
from manyhands.protocols.dwork.tasks import Maker
from manyhands.protocols.dwork.turns import Turn


def resume(hub: Hub, queue: str, turn: Turn, tasks: Sequence[Task], maker: Maker) -> None:
    """Looks up all names in the store first, which alone knows graphs that have ended."""
    names = dict.fromkeys([task.name for task in tasks])
    for task in tasks:
        names.update(dict.fromkeys([dep.name for dep in task.preds]))
    counts = hub.counts(queue)
    if counts is None or not any(counts[state] for state in FINISHED):
        _create(hub, turn, tasks, maker, {})  # nothing is stored at all
    else:
        hub.find_ended(queue, tuple(names), lambda found: _create(hub, turn, tasks, maker, found))


def _create(
    hub: Hub, turn: Turn, tasks: Sequence[Task], maker: Maker, records: Mapping[str, Job]
) -> None:
    """Decided in one go, so that no task ends between the lookup and the submit."""

    def state_of(name: str) -> State | None:
        job = hub.known(name) or records.get(name)
        return job.state if job is not None else None

    def is_over(name: str) -> bool:
        """Even where unknown predecessors are waited for, stored ones are done."""
        record = records.get(name)
        return record is not None and record.state is State.COMPLETED and hub.known(name) is None

    there = done = again = 0
    items = []
    for task in tasks:
        state = state_of(task.name)
        if state is State.COMPLETED:
            done += 1
            continue
        if state in FINISHED:
            again += 1
        elif state is not None:
            there += 1
        unmet = [dep for dep in task.preds if not is_over(dep.name)]
        items.append(maker.new_job(task, hub.job_id(), tuple(unmet)))
    added = len(items) - there
    made = encode(Query(kind=Kind.OK, made=Made(added=added, there=there, done=done, again=again)))

    def settle(reply: Reply) -> None:
        first = reply.items[0] if type(reply) is SubmittedMany else reply
        if isinstance(first, Refusal):
            turn.refuse_by(first)
        elif hub.draining:
            turn.finish()
        else:
            turn.answer(made)

    if items:
        hub.ask(Submit(tuple(items), all_or_nothing=True), settle)
    elif hub.draining:
        turn.finish()
    else:
        turn.answer(made)
