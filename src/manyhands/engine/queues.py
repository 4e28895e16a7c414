"""Settings: queues, named limits, schedules and cursors."""

from msgspec.structs import replace

from manyhands.engine.effects import Effects
from manyhands.engine.submit import admit
from manyhands.engine.validation import (
    bad_durations,
    bad_headers,
    bad_instant,
    bad_limits,
    bad_name_sentence,
    bad_payload,
    bad_priority,
    bad_queue,
    bad_tags,
)
from manyhands.model import limits
from manyhands.model.commands import (
    Fire,
    ForgetIdle,
    ForgetQueue,
    NewJob,
    PutSchedule,
    RemoveCursor,
    RemoveLimit,
    RemoveSchedule,
    SetCursor,
    SetLimit,
    SetQueue,
)
from manyhands.model.job import FINISHED, Origin, Schedule
from manyhands.model.policy import NO_POLICY, NamedLimit, Queue, QueuePolicy, Terms
from manyhands.model.replies import Accepted, QueueSet, Refusal, Reply, SubmittedMany, Why

_SCHEDULE_ORIGIN = Origin("schedule")
_COUNTS = (
    "concurrency_max",
    "jobs_max",
    "jobs_max_high",
    "jobs_max_low",
    "record_ms",
    "records_max",
    "grace_ms",
)


def decide_set_queue(command: SetQueue, effects: Effects) -> Reply:
    """Changes the settings of a queue, and creates it if necessary and allowed (rule 29)."""
    known = effects.queue(command.queue)
    if known is None and command.only_known:
        return Refusal(Why.UNKNOWN_QUEUE, f"there is no queue {command.queue!r}")
    refusal = bad_queue(effects, command.queue)
    if refusal is not None:
        return refusal
    if command.if_absent and known is not None:
        # A queue is there from its first job on, so it may exist and lack all settings.
        if known.policy != NO_POLICY or command.policy is None:
            return QueueSet(known, applied=False)
        command = replace(command, paused=None)
    queue = replace(known or Queue(command.queue), declared=True)
    policy = command.policy
    if policy is not None:
        if command.fields is not None:
            changes = {field: getattr(policy, field) for field in command.fields}
            policy = replace(queue.policy, **changes)
        # The whole is checked, not the change: one setting may need another.
        sentence = _bad_policy(policy)
        if sentence is not None:
            return Refusal(Why.BAD_POLICY, sentence)
        queue = replace(queue, policy=policy)
    if command.paused is not None:
        queue = replace(queue, paused=command.paused)
    effects.put_queue(queue)
    effects.urgent = True
    return QueueSet(queue)


def _bad_policy(policy: QueuePolicy) -> str | None:
    sentence = bad_durations(policy)
    if sentence is not None:
        return sentence
    for field in _COUNTS:
        number = getattr(policy, field)
        if number is not None and not 0 <= number <= limits.TIME_MS_MAX:
            return f"{field} must be 0 or more"
    if policy.rate is not None and (policy.rate.count < 1 or policy.rate.per_ms < 1):
        return "a rate needs a count and a duration of 1 or more"
    if policy.lease_forced and policy.lease_ms is None:
        return "a forced lease term needs lease_ms"
    return None


def decide_forget_queue(command: ForgetQueue, effects: Effects) -> Reply:
    """Forgets a queue that nobody uses: without unfinished jobs, and not offered by workers."""
    if command.offered:
        return Refusal(Why.QUEUE_IN_USE, f"there are workers for queue {command.queue!r}")
    if effects.queue(command.queue) is None:
        return Refusal(Why.UNKNOWN_QUEUE, f"there is no queue {command.queue!r}")
    count = effects.view.unfinished_count(command.queue)
    if count:
        sentence = f"queue {command.queue!r} has {count} unfinished jobs"
        return Refusal(Why.QUEUE_IN_USE, sentence)
    effects.set().queues[command.queue] = None
    return Accepted(1)


def decide_forget_idle(command: ForgetIdle, effects: Effects) -> Reply:
    """Forgets queues that were created by their first job: when their last record is gone, or, if
    there are very many queues, when their last job has finished. Records stay for their retention,
    and belong to the queue again if it is created again.
    """
    view = effects.view
    surplus = view.queues_count() - limits.QUEUES_CROWDED_COUNT
    forgotten: list[str] = []
    for name in command.queues:
        queue = view.queue(name)
        if queue is None or queue.declared or queue.paused or queue.policy != NO_POLICY:
            continue
        if view.unfinished_count(name):
            continue
        if len(forgotten) < surplus or not view.recorded_count(name):
            forgotten.append(name)
    if forgotten:
        effects.set().queues.update(dict.fromkeys(forgotten))
    return Accepted(len(forgotten))


def decide_set_limit(command: SetLimit, effects: Effects) -> Reply:
    """Sets a named concurrency limit for all jobs that carry its name."""
    refusal = bad_limits((command.name,))
    if refusal is not None:
        return refusal
    if command.concurrency_max < 0:
        return Refusal(Why.BAD_LIMIT, "a limit must be 0 or more")
    if command.if_absent and effects.view.limit(command.name) is not None:
        return Accepted(0)
    effects.set().limits[command.name] = NamedLimit(command.name, command.concurrency_max)
    effects.urgent = True
    return Accepted(1)


def decide_remove_limit(command: RemoveLimit, effects: Effects) -> Reply:
    """Removes a named limit; an unknown one is refused."""
    if effects.view.limit(command.name) is None:
        return Refusal(Why.UNKNOWN_LIMIT, f"there is no limit {command.name!r}")
    effects.set().limits[command.name] = None
    effects.urgent = True
    return Accepted(1)


def decide_set_cursor(command: SetCursor, effects: Effects) -> Reply:
    """Stores the position of a reader of events. Readers bound their number and notes
    themselves.
    """
    effects.set().cursors[command.cursor.name] = command.cursor
    return Accepted(1)


def decide_remove_cursor(command: RemoveCursor, effects: Effects) -> Reply:
    """Removes a cursor. An unknown one is not an error: it is gone either way."""
    effects.set().cursors[command.name] = None
    return Accepted(1)


def decide_put_schedule(command: PutSchedule, effects: Effects) -> Reply:
    """Creates or replaces a schedule. Its count of firings continues."""
    known = effects.view.schedule(command.schedule.schedule_id)
    if known is None and command.fields is not None:
        return _unknown_schedule(command.schedule.schedule_id)
    schedule = _merged_schedule(command, known)
    refusal = _bad_schedule(schedule, effects)
    if refusal is not None:
        return refusal
    if command.if_absent and known is not None:
        return Accepted(0)
    if known is None and command.unless_job is not None:
        job = effects.job(command.unless_job)
        if job is not None:
            return Refusal(Why.DUPLICATE_JOB, "a job has this id already", job)
    if known is None and effects.view.schedules_count() >= limits.SCHEDULES_COUNT_MAX:
        sentence = f"there are {limits.SCHEDULES_COUNT_MAX} schedules already"
        return Refusal(Why.TOO_MANY_SCHEDULES, sentence)
    if known is not None:
        schedule = replace(schedule, fired_count=known.fired_count, last_job_id=known.last_job_id)
    effects.set().schedules[schedule.schedule_id] = schedule
    return Accepted(1)


def _merged_schedule(command: PutSchedule, known: Schedule | None) -> Schedule:
    """Rule 30: what the command says, and what stays as it is."""
    schedule = command.schedule
    if known is None:
        return schedule
    if command.fields is not None:
        return replace(known, **{field: getattr(schedule, field) for field in command.fields})
    before, after = known.interval_ms, schedule.interval_ms
    if command.in_step and before is not None and after is not None:
        # One new interval after it fired last, or after it would have.
        return replace(schedule, next_at=known.next_at - before + after)
    return schedule


def _unknown_schedule(schedule_id: str) -> Refusal:
    return Refusal(Why.UNKNOWN_SCHEDULE, f"there is no schedule {schedule_id!r}")


def _bad_schedule(schedule: Schedule, effects: Effects) -> Refusal | None:
    sentence = bad_name_sentence(schedule.schedule_id, limits.QUEUE_NAME_BYTES_MAX)
    if sentence is not None:
        return Refusal(Why.BAD_SCHEDULE, f"the schedule's id {sentence}")
    if (schedule.interval_ms is None) == (schedule.cron is None):
        return Refusal(Why.BAD_SCHEDULE, "a schedule has an interval or a cron line, not both")
    if schedule.interval_ms is not None and not 0 < schedule.interval_ms <= limits.TIME_MS_MAX:
        return Refusal(Why.BAD_SCHEDULE, "the interval must be more than 0")
    if not 1 <= schedule.backlog_max <= limits.BATCH_COUNT_MAX:
        return Refusal(Why.BAD_SCHEDULE, "the backlog must be 1 or more")
    return (
        bad_queue(effects, schedule.queue)
        or bad_instant(schedule.next_at, effects.now, "next time")
        or bad_payload(schedule.payload)
        or bad_priority(schedule.priority)
        or bad_tags(schedule.tags)
        or bad_limits(schedule.limits)
        or bad_headers(schedule.headers)
        or _bad_terms(schedule.terms)
    )


def _bad_terms(terms: Terms) -> Refusal | None:
    sentence = bad_durations(terms)
    return Refusal(Why.BAD_POLICY, sentence) if sentence is not None else None


def decide_remove_schedule(command: RemoveSchedule, effects: Effects) -> Reply:
    """Removes a schedule; its jobs stay."""
    if effects.view.schedule(command.schedule_id) is None:
        return _unknown_schedule(command.schedule_id)
    effects.set().schedules[command.schedule_id] = None
    return Accepted(1)


def decide_fire(command: Fire, effects: Effects) -> Reply:
    """Submits the schedule's job once. The due instant is the fence: a second firing is refused."""
    schedule = effects.view.schedule(command.schedule_id)
    if schedule is None or schedule.paused or schedule.next_at != command.due_at:
        return Accepted(0)
    last = effects.job(schedule.last_job_id) if schedule.last_job_id is not None else None
    if schedule.unique and last is not None and last.state not in FINISHED:
        effects.set().schedules[schedule.schedule_id] = replace(schedule, next_at=command.next_at)
        return Accepted(0)
    item = NewJob(
        job_id=command.job_id,
        queue=schedule.queue,
        payload=schedule.payload,
        encoding=schedule.encoding,
        terms=schedule.terms,
        origin=_SCHEDULE_ORIGIN,
        priority=schedule.priority,
        tags=schedule.tags,
        limits=schedule.limits,
        headers=schedule.headers,
        schedule=schedule.schedule_id,
        submitted_at=command.due_at,
    )
    reply = admit(effects, item)
    fired = not isinstance(reply, Refusal)
    effects.set().schedules[schedule.schedule_id] = replace(
        schedule,
        next_at=command.next_at,
        fired_count=schedule.fired_count + int(fired),
        last_job_id=command.job_id if fired else schedule.last_job_id,
    )
    return SubmittedMany((reply,))
