"""Resuming a graph: what was completed is left alone (rule 31)."""

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.submit import decide_submit
from manyhands.model.commands import NewJob, Resume, Submit
from manyhands.model.job import FINISHED, State
from manyhands.model.replies import Refusal, Reply, Resumed, SubmittedMany, Why


def decide_resume(command: Resume, effects: Effects) -> Reply:
    """Submits the jobs of a graph that are not completed, all or nothing."""
    if not command.items:
        return Resumed(0, 0, 0, 0)
    if not _is_current(command, effects):
        sentence = "records of earlier graphs have to be looked up"
        return Refusal(Why.NO_LONGER_FITS, sentence)
    recorded = dict(command.recorded)
    unfinished = completed = again = 0
    items: list[NewJob] = []
    for item in command.items:
        state = _state_of(command.namespace, item.name or "", recorded, effects)
        if state is State.COMPLETED:
            completed += 1
            continue
        if state in FINISHED:
            again += 1
        elif state is not None:
            unfinished += 1
        items.append(_without_recorded(item, recorded, effects))
    if items:
        reply = decide_submit(Submit(tuple(items), all_or_nothing=True), effects)
        first = reply.items[0] if isinstance(reply, SubmittedMany) else reply
        if isinstance(first, Refusal):
            return first
    return Resumed(len(items) - unfinished, unfinished, completed, again)


def _is_current(command: Resume, effects: Effects) -> bool:
    """Whether every name that matters is known, or was looked up after it could be found."""
    view, namespace = effects.view, command.namespace
    if command.as_of == view.forgotten_count(namespace):
        return True
    if command.as_of is None and not view.has_finished():
        return True
    return all(
        effects.named(namespace, name) is not None
        for item in command.items
        for name in (item.name or "", *item.depends_on)
    )


def _state_of(
    namespace: str, name: str, recorded: dict[str, State], effects: Effects
) -> State | None:
    """The state of the job of that name: in the open graph, else on record."""
    job_id = effects.named(namespace, name)
    job = effects.job(job_id) if job_id is not None else None
    return job.state if job is not None else recorded.get(name)


def _without_recorded(item: NewJob, recorded: dict[str, State], effects: Effects) -> NewJob:
    """Even where unknown dependencies are waited for, those completed on record are satisfied."""
    namespace = item.namespace or ""
    unmet = tuple(
        name
        for name in item.depends_on
        if recorded.get(name) is not State.COMPLETED or effects.named(namespace, name) is not None
    )
    return item if len(unmet) == len(item.depends_on) else replace(item, depends_on=unmet)
