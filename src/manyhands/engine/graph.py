"""Dependencies: resolving them, refusing cycles, releasing dependants (rules 10 to 12)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from manyhands.engine import endings
from manyhands.engine.effects import Effects
from manyhands.engine.retry import reentry_of
from manyhands.engine.validation import bad_job_name
from manyhands.engine.view import View
from manyhands.model import limits
from manyhands.model.commands import NotifyDependants
from manyhands.model.identity import is_job_id, name_key
from manyhands.model.job import FINISHED, Failure, Job, State, Unnotified
from manyhands.model.policy import OnDependencyFailure, OnUnknownDependency, Reentry
from manyhands.model.reasons import Reason
from manyhands.model.replies import Accepted, Refusal, Reply, Why

Edges = Mapping[str, Sequence[str]]  # what is waited for -> ids of those that wait
_NO_EDGES: Final[Edges] = {}
_LOST: Final = frozenset({State.FAILED, State.CANCELLED})


class Resolved:
    """A list of dependencies after they were looked up."""

    __slots__ = ("assumed", "depends_on", "lost", "waits_for")

    def __init__(self) -> None:
        self.depends_on: list[str] = []
        self.waits_for: list[str] = []  # those that are not satisfied, lost ones too
        self.assumed: list[str] = []  # unknown, and taken as satisfied
        self.lost: Job | None = None  # one that failed or was cancelled, under cancel or fail


def job_of_key(effects: Effects, key: str) -> Job | None:
    """The job that a dependency refers to now, whether by id or by name."""
    namespace, nul, name = key.partition("\0")
    if not nul:
        return effects.job(key)
    job_id = effects.named(namespace, name)
    return effects.job(job_id) if job_id is not None else None


def on_dependency_failure_of(job: Job) -> OnDependencyFailure:
    """The policy of the job, or else of its front (rule 10)."""
    return job.terms.on_dependency_failure or job.terms.defaults.on_dependency_failure


def resolve(
    effects: Effects,
    names: Sequence[str],
    namespace: str | None,
    on_unknown: OnUnknownDependency,
    on_failure: OnDependencyFailure,
    coming: Mapping[str, str],
) -> Resolved | Refusal:
    """Turns a submitter's dependencies into ids to wait for (rule 11). ``coming`` maps the names of
    later items of the same batch to their ids.
    """
    if len(names) > limits.DEPENDENCIES_COUNT_MAX:
        sentence = f"a job may depend on at most {limits.DEPENDENCIES_COUNT_MAX} others"
        return Refusal(Why.TOO_MANY_DEPENDENCIES, sentence)
    resolved = Resolved()
    for name in dict.fromkeys(names):  # repeated ones count once, order is kept
        if name in coming:
            resolved.depends_on.append(coming[name])
            resolved.waits_for.append(coming[name])
            continue
        job = _meant(effects, name, namespace)
        if job is None:
            if on_unknown is OnUnknownDependency.REFUSE:
                return Refusal(Why.UNKNOWN_DEPENDENCY, f"there is no job {name!r} to depend on")
            if on_unknown is OnUnknownDependency.WAIT:
                refusal = _bad_key(name, namespace)
                if refusal is not None:
                    return refusal
                key = name if namespace is None else name_key(namespace, name)
                resolved.depends_on.append(key)
                resolved.waits_for.append(key)
            else:
                resolved.assumed.append(name)
            continue
        resolved.depends_on.append(job.job_id)
        if job.state is State.COMPLETED:
            continue
        if job.state in FINISHED and on_failure is not OnDependencyFailure.HOLD:
            if on_failure is OnDependencyFailure.RUN:
                continue
            resolved.lost = job
        resolved.waits_for.append(job.job_id)
    # Two names may refer to one job.
    resolved.depends_on = list(dict.fromkeys(resolved.depends_on))
    resolved.waits_for = list(dict.fromkeys(resolved.waits_for))
    return resolved


def _meant(effects: Effects, name: str, namespace: str | None) -> Job | None:
    """Rule 11: names are looked up before ids. A job without a name in a namespace goes by its
    id.
    """
    if namespace is not None:
        job_id = effects.named(namespace, name)
        if job_id is not None:
            return effects.job(job_id)
        if not is_job_id(name):
            return None
    return effects.job(name)


def _bad_key(name: str, namespace: str | None) -> Refusal | None:
    """Refuses a dependency that can never be the id or the name of a job: it would wait for
    ever.
    """
    if namespace is not None:
        return bad_job_name(name)
    if is_job_id(name):
        return None
    return Refusal(Why.BAD_JOB_ID, f"no job will ever have the id {name[:200]!r}")


def is_stuck(view: View, queue: str) -> bool:
    """Whether all blocked jobs of a queue wait for jobs that failed or were cancelled."""
    return view.while_unchanged(f"is stuck: {queue}", lambda: _work_out_stuck(view, queue))


def _work_out_stuck(view: View, queue: str) -> bool:
    for job in view.blocked(queue):
        for key in job.waits_for:
            if not _is_lost(view.job(key), queue):
                return False
    return True


def _is_lost(job: Job | None, queue: str) -> bool:
    """Whether a dependency can never be met unless something else changes. Blocked ones of the
    same queue do not decide it: what they wait for does.
    """
    if job is None:
        return False  # a name that has not appeared yet
    return job.state in _LOST or (job.state is State.BLOCKED and job.queue == queue)


def closes_cycle(effects: Effects, job_id: str, waits_for: Sequence[str]) -> bool:
    """Whether one of ``waits_for`` waits, directly or not, for ``job_id`` itself."""
    seen: set[str] = set()
    stack = list(waits_for)
    while stack:
        current = stack.pop()
        if current == job_id or len(seen) > limits.CYCLE_VISITS_MAX:
            return True
        if current in seen:
            continue
        seen.add(current)
        job = job_of_key(effects, current)
        if job is not None and job.job_id == job_id:
            return True
        if job is not None and job.state not in FINISHED:
            stack.extend(job.waits_for)
    return False


def find_cycle(
    effects: Effects, job_ids: Sequence[str], within: Mapping[str, Job] | None = None
) -> str | None:
    """The id of a job on a cycle through one of ``job_ids``, in one walk over all jobs, or only
    over ``within`` if a cycle cannot leave those.
    """
    finished: set[str] = set()
    path: set[str] = set()
    for root in job_ids:
        stack = [(root, False)]
        while stack:
            current, leaving = stack.pop()
            if leaving:
                path.discard(current)
                finished.add(current)
                continue
            if current in path:
                return current
            if current in finished:
                continue
            job = effects.job(current)
            if job is None or job.state in FINISHED:
                continue
            path.add(current)
            stack.append((current, True))
            for key in job.waits_for:
                if within is not None and key not in within:
                    continue
                other = job_of_key(effects, key)
                if other is None:
                    continue
                if other.job_id in path:
                    return other.job_id
                if other.job_id not in finished:
                    stack.append((other.job_id, False))
    return None


def new_jobs_only(effects: Effects, created: Sequence[Job]) -> Mapping[str, Job] | None:
    """The new jobs, if a cycle can only consist of them; None if older jobs have new edges, or
    waited for one of the new names, so that any job may be part of it.
    """
    dependants = effects.view.dependants
    if any(job.serial for job in effects.jobs.values()):
        return None
    if any(dependants(key) for job in created for key in keys_of(job)):
        return None
    return effects.jobs


def cycle_refusal(job_id: str) -> Refusal:
    """The sentence for a cycle."""
    return Refusal(Why.CYCLE, f"job {job_id} would depend on itself through these dependencies")


def keys_of(job: Job) -> tuple[str, ...]:
    """All keys that other jobs may use to depend on this job."""
    if job.name is None:
        return (job.job_id,)
    return (job.job_id, name_key(job.namespace or "", job.name))


def dependants_of(
    effects: Effects, job: Job, edges: Edges = _NO_EDGES, after: str = ""
) -> Iterator[Job]:
    """Unfinished jobs that wait for this one now. ``edges`` are those of this command; ``after`` is
    the dependant after which to start, if it still is one.
    """
    seen: set[str] = set()
    rows = [(key, (*effects.view.dependants(key), *edges.get(key, ()))) for key in keys_of(job)]
    if after:
        for place, (key, ids) in enumerate(rows):
            if after in ids:
                rows = [(key, ids[ids.index(after) + 1 :]), *rows[place + 1 :]]
                break
    for key, ids in rows:
        for job_id in ids:
            other = effects.job(job_id)
            if (
                other is not None
                and other.state not in FINISHED
                and key in other.waits_for
                and job_id not in seen
            ):
                seen.add(job_id)
                yield other


def _notify_dependants(effects: Effects, job: Job, edges: Edges, after: str = "") -> None:
    """Notifies the dependants of a finished job, as many as one command may change; further
    commands notify the rest, so that one job with very many dependants cannot stall the server.
    ``after`` is the last dependant that was notified of a loss and stays as it is.
    """
    if effects.doom(job.job_id) is not None:
        return  # the cancellations come first, then the others are notified
    is_met = job.state is State.COMPLETED
    keys = keys_of(job)
    passed = 0
    for dependant in dependants_of(effects, job, edges, after):
        if (
            effects.notified_count >= limits.DEPENDANTS_NOTIFIED_MAX
            or passed >= limits.DEPENDANTS_SEEN_MAX
        ):
            effects.set().unnotified[job.job_id] = Unnotified(after=after)
            return
        if is_met:
            free(effects, dependant, tuple(key for key in dependant.waits_for if key not in keys))
            effects.notified_count += 1
        elif _lose_edge(effects, dependant, job):
            effects.notified_count += 1
        else:
            after = dependant.job_id
            passed += 1


def decide_notify_dependants(command: NotifyDependants, effects: Effects) -> Reply:
    """Notifies the next slice of dependants, unless the job was requeued: then they wait for it
    again. Dependants of a cascade cancellation are cancelled in any case.
    """
    doom = effects.doom(command.job_id)
    unnotified = effects.view.unnotified_of(command.job_id)
    effects.set().unnotified[command.job_id] = None  # unless there are still more
    job = effects.job(command.job_id)
    if job is None:
        return Accepted()
    if doom is not None:
        _cancel_dependants(effects, job, doom)
    if job.state in FINISHED:
        is_lost = job.state in _LOST
        after = unnotified.after if unnotified is not None and is_lost else ""
        _notify_dependants(effects, job, _NO_EDGES, after)
    return Accepted()


def _cancel_dependants(effects: Effects, job: Job, doom: Unnotified) -> None:
    """Cancels dependants, and theirs in turn, as many as one command may change. It finishes one
    branch before the next, so that few jobs at a time have pending dependants.
    """
    path = [(job, dependants_of(effects, job))]
    while path:
        current, others = path[-1]
        doomed = next((other for other in others if is_doomed(other, doom)), None)
        if doomed is None:
            path.pop()
        elif effects.notified_count >= limits.DEPENDANTS_NOTIFIED_MAX:
            effects.set().unnotified[current.job_id] = doom
            path.pop()
        else:
            effects.notified_count += 1
            path.append(
                (
                    endings.cancel(effects, doomed, Reason.CANCELLED, doom.detail),
                    dependants_of(effects, doomed),
                )
            )


def is_doomed(job: Job, doom: Unnotified) -> bool:
    """Whether a dependant is part of a cascade cancellation: not if it was submitted later."""
    return 0 < job.serial <= doom.doomed_max


def free(effects: Effects, job: Job, waits_for: tuple[str, ...]) -> None:
    """Removes dependencies from a job; with none left, it becomes ready or delayed."""
    if waits_for or job.state is not State.BLOCKED:
        effects.put(replace(job, waits_for=waits_for))
        return
    # Released jobs go before new ones only where returned jobs do (rule 18), last released first.
    front = reentry_of(job) is Reentry.FRONT
    endings.place(
        effects,
        job,
        run_at=job.run_at,
        reentry=Reentry.FRONT if front else Reentry.TAIL,
        waits_for=(),
    )


def settle(effects: Effects) -> None:
    """Notifies the dependants of every job that this command finished. It loops instead of
    recursing, because a chain can have any length.
    """
    edges = _edges_of(effects.held) if effects.held else _NO_EDGES
    while effects.ended or effects.held:
        if effects.ended:
            job = effects.ended.pop()
            if edges or effects.view.is_awaited(job):
                _notify_dependants(effects, job, edges)
        else:
            _look_for_lost(effects, effects.held.pop())


def _edges_of(held: Sequence[Job]) -> Edges:
    """Edges of this command, which are not in the view yet."""
    edges: dict[str, list[str]] = {}
    for job in held:
        for key in job.waits_for:
            edges.setdefault(key, []).append(job.job_id)
    return edges


def _look_for_lost(effects: Effects, job: Job) -> None:
    """Handles a job that was just blocked on a dependency that had already failed or was
    cancelled.
    """
    for key in job.waits_for:
        current = effects.job(job.job_id)
        other = job_of_key(effects, key)
        if other is None or other.state not in _LOST:
            continue
        if current is None or current.state is not State.BLOCKED or key not in current.waits_for:
            continue
        doom = effects.doom(other.job_id)
        if doom is not None and is_doomed(current, doom):
            endings.cancel(effects, current, Reason.CANCELLED, doom.detail)
        else:
            _lose_edge(effects, current, other)


def _lose_edge(effects: Effects, dependant: Job, job: Job) -> bool:
    """Rule 10: the job failed for good or was cancelled; each dependant's own policy says what
    follows. Returns whether this one changed.
    """
    policy = on_dependency_failure_of(dependant)
    if policy is OnDependencyFailure.HOLD:
        return False
    if policy is OnDependencyFailure.RUN:
        keys = keys_of(job)
        free(effects, dependant, tuple(k for k in dependant.waits_for if k not in keys))
        return True
    if dependant.state is State.LEASED:  # the edge binds only if it comes back
        return False
    lose_dependant(effects, dependant, job)
    return True


def lose_dependant(effects: Effects, dependant: Job, job: Job) -> None:
    """Cancels or fails a job because a dependency failed for good or was cancelled."""
    if on_dependency_failure_of(dependant) is OnDependencyFailure.FAIL:
        sentence = f"job {job.job_id}, which it depends on, was {job.state}"
        failure = Failure("dependency", sentence)
        endings.fail_for_good(effects, dependant, failure, Reason.DEPENDENCY_FAILED)
    else:
        endings.cancel(effects, dependant, Reason.DEPENDENCY_FAILED)
