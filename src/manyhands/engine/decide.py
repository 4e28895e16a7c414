"""One pure function decides everything: a command and a view in, a reply and effects out."""

from collections.abc import Callable
from typing import Any, Final

from manyhands.engine import (
    claim,
    graph,
    lease,
    operations,
    queues,
    resumption,
    submit,
    timers,
)
from manyhands.engine.effects import Effects
from manyhands.engine.view import View
from manyhands.model import commands
from manyhands.model.commands import Command
from manyhands.model.replies import Found, Refusal, Reply


def decide(command: Command, view: View, now: int) -> tuple[Reply, Effects]:
    """The reply and the changes. A refusal changes nothing: its effects are empty (rule 24)."""
    effects = Effects(view, now)
    reply = _DECISIONS[type(command)](command, effects)
    if type(reply) is Refusal:
        return reply, Effects(view, now)
    if effects.ended or effects.held:
        graph.settle(effects)
    return reply, effects


def _look(command: commands.Look, effects: Effects) -> Reply:
    return Found(effects.job(command.job_id))


def _look_by_key(command: commands.LookByKey, effects: Effects) -> Reply:
    if command.queue is None:
        job_id = effects.view.key_holder_anywhere(command.unique_key, command.queues)
    else:
        job_id = effects.key_holder(command.queue, command.unique_key)
    return Found(effects.job(job_id) if job_id is not None else None)


def _look_by_name(command: commands.LookByName, effects: Effects) -> Reply:
    job_id = effects.named(command.namespace, command.name)
    return Found(effects.job(job_id) if job_id is not None else None)


# A test compares this table with the union `Command`, so no command can lack a decision.
_DECISIONS: Final[dict[type, Callable[[Any, Effects], Reply]]] = {
    commands.Submit: submit.decide_submit,
    commands.Resume: resumption.decide_resume,
    commands.Claim: claim.decide_claim,
    commands.Renew: lease.decide_renew,
    commands.RenewHeld: lease.decide_renew_held,
    commands.LiftTerms: lease.decide_lift_terms,
    commands.Report: lease.decide_report,
    commands.SendPartial: lease.decide_send_partial,
    commands.Complete: lease.decide_complete,
    commands.Fail: lease.decide_fail,
    commands.Conclude: lease.decide_conclude,
    commands.Release: lease.decide_release,
    commands.ReleaseAll: lease.decide_release_all,
    commands.Cancel: operations.decide_cancel,
    commands.Requeue: operations.decide_requeue,
    commands.Move: operations.decide_move,
    commands.SetPriority: operations.decide_set_priority,
    commands.SetTags: operations.decide_set_tags,
    commands.SetDependencies: operations.decide_set_dependencies,
    commands.ExpireLease: operations.decide_expire_lease,
    commands.Attach: operations.decide_attach,
    commands.Detach: operations.decide_detach,
    commands.Depart: operations.decide_depart,
    commands.SetQueue: queues.decide_set_queue,
    commands.ForgetQueue: queues.decide_forget_queue,
    commands.ForgetIdle: queues.decide_forget_idle,
    commands.SetLimit: queues.decide_set_limit,
    commands.RemoveLimit: queues.decide_remove_limit,
    commands.PutSchedule: queues.decide_put_schedule,
    commands.RemoveSchedule: queues.decide_remove_schedule,
    commands.Fire: queues.decide_fire,
    commands.SetCursor: queues.decide_set_cursor,
    commands.RemoveCursor: queues.decide_remove_cursor,
    commands.Recover: timers.decide_recover,
    commands.Prolong: timers.decide_prolong,
    commands.FollowClock: timers.decide_follow_clock,
    commands.Tick: timers.decide_tick,
    commands.NotifyDependants: graph.decide_notify_dependants,
    commands.Look: _look,
    commands.LookByKey: _look_by_key,
    commands.LookByName: _look_by_name,
}
