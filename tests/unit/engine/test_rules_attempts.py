"""Rules 9 to 13: budgets, failures, and what a lost dependency means."""

import pytest

from manyhands.model.commands import Cancel
from manyhands.model.job import State
from manyhands.model.policy import (
    DEFAULTS,
    TERMS,
    Backoff,
    OnDependencyFailure,
    OnUnknownDependency,
    Terms,
)
from manyhands.model.replies import Refusal, Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_job, a_worker


def a_leased_job(world: World, **fields):
    job = world.submit(a_job(**fields))
    return world.claim(job.queue, term_ms=MINUTE)


# Rule 9: budgets.


def test_rule_09_each_front_has_its_default_budget():
    budgets = {front: row.attempts_max for front, row in DEFAULTS.items()}

    assert budgets == {
        "native": 5,
        "qless": 6,
        "gearman": 5,
        "draft": 5,
        "wmp": 5,
        "taskcluster": 6,
        "dwork": -1,
    }


@pytest.mark.parametrize("front", [front for front in DEFAULTS if front != "dwork"])
def test_rule_09_a_job_fails_when_its_fronts_budget_is_spent(front):
    world = World()
    budget = DEFAULTS[front].attempts_max
    job = world.submit(terms=TERMS[front])

    claims = 0
    while world.state(job.job_id) is not State.FAILED:
        world.claim(holder=a_worker("w"), connection="s1/1")
        claims += 1
        world.depart(connection="s1/1")

    ended = world.job(job.job_id)
    assert (claims, ended.attempts_used) == (budget, budget)
    assert (ended.reason, ended.failure.code) == ("out_of_attempts", "attempts")
    world.check()


def test_rule_09_an_unlimited_budget_is_never_spent():
    world = World()
    job = world.submit(terms=TERMS["dwork"])

    for _ in range(50):
        world.claim(connection="s1/1")
        world.depart(connection="s1/1")

    assert (world.state(job.job_id), world.job(job.job_id).attempts_used) == (State.READY, 50)
    world.check()


def test_rule_09_the_jobs_own_budget_goes_before_its_queues():
    world = World()
    world.set_queue(attempts_max=1)
    own = a_leased_job(world, terms=Terms(attempts_max=2))
    queues = a_leased_job(world)

    world.tick(MINUTE)

    assert world.state(own.job_id) is State.READY
    assert world.state(queues.job_id) is State.FAILED
    assert [event.attempts_max for event in world.events(own.job_id)] == [2, 2, 2]
    assert [event.attempts_max for event in world.events(queues.job_id)] == [1, 1, 1]
    world.check()


def test_rule_09_a_reported_failure_can_be_final():
    world = World()
    job = a_leased_job(world)

    ended = world.fail(job.job_id, retry=False)

    assert (ended.state, ended.reason) == (State.FAILED, "failed")
    assert (ended.failure.code, ended.failure.message) == ("broken", "it broke")
    world.check()


def test_rule_09_a_reported_failure_can_be_retried_after_the_backoff():
    world = World()
    backoff = Backoff(first_ms=2 * SECOND, factor=3.0, jitter=0.0)
    job = a_leased_job(world, terms=Terms(backoff=backoff))

    resting = world.fail(job.job_id, retry=True)
    world.tick(2 * SECOND)
    world.claim()
    longer = world.fail(job.job_id, retry=True)

    assert (resting.state, resting.run_at) == (State.DELAYED, resting.entered_at + 2 * SECOND)
    assert longer.run_at == world.now + 6 * SECOND
    assert longer.failure.message == "it broke"
    world.check()


def test_rule_09_a_worker_may_name_the_rest_itself():
    world = World()
    at_once, later = a_leased_job(world), a_leased_job(world)

    first = world.fail(at_once.job_id, retry=True, delay_ms=0)
    second = world.fail(later.job_id, retry=True, delay_ms=HOUR)

    assert first.state is State.READY
    assert (second.state, second.run_at) == (State.DELAYED, world.now + HOUR)
    world.check()


def test_rule_09_a_retried_failure_is_final_when_the_budget_is_spent():
    world = World()
    job = a_leased_job(world, terms=Terms(attempts_max=1))

    ended = world.fail(job.job_id, retry=True)

    assert (ended.state, ended.reason) == (State.FAILED, "out_of_attempts")
    assert (ended.failure.code, ended.attempts_used) == ("broken", 1)
    world.check()


# Rule 10: a dependency failed for good or was cancelled.


def lost_dependency(world: World, policy: OnDependencyFailure):
    """A job that depends on a lost one by the policy, and the lost one."""
    terms = Terms(on_dependency_failure=policy)
    first = world.submit()
    job = world.submit(depends_on=(first.job_id,), terms=terms)
    world.claim()
    world.fail(first.job_id)
    return first, job


def test_rule_10_under_hold_a_dependant_stays_blocked_until_it_is_retried():
    world = World()
    first, job = lost_dependency(world, OnDependencyFailure.HOLD)
    held = world.state(job.job_id)

    world.requeue(first.job_id)
    world.claim()
    world.complete(first.job_id)

    assert (held, world.state(job.job_id)) == (State.BLOCKED, State.READY)
    world.check()


def test_rule_10_under_hold_a_dependant_can_be_cancelled():
    world = World()
    _, job = lost_dependency(world, OnDependencyFailure.HOLD)

    world.cancel(job.job_id)

    assert world.state(job.job_id) is State.CANCELLED
    world.check()


def test_rule_10_under_cancel_a_dependant_is_cancelled():
    world = World()

    _, job = lost_dependency(world, OnDependencyFailure.CANCEL)

    ended = world.job(job.job_id)
    assert (ended.state, ended.reason) == (State.CANCELLED, "dependency_failed")
    world.check()


def test_rule_10_under_fail_a_dependant_fails():
    world = World()

    first, job = lost_dependency(world, OnDependencyFailure.FAIL)

    ended = world.job(job.job_id)
    assert (ended.state, ended.reason) == (State.FAILED, "dependency_failed")
    assert ended.failure.code == "dependency"
    assert first.job_id in ended.failure.message
    world.check()


def test_rule_10_under_run_a_dependant_runs_all_the_same():
    world = World()

    _, job = lost_dependency(world, OnDependencyFailure.RUN)

    assert world.state(job.job_id) is State.READY
    world.check()


def test_rule_10_the_defaults_of_the_fronts():
    policies = {front: str(row.on_dependency_failure) for front, row in DEFAULTS.items()}

    assert policies == {
        "native": "cancel",
        "qless": "hold",
        "gearman": "cancel",
        "draft": "cancel",
        "wmp": "cancel",
        "taskcluster": "fail",
        "dwork": "hold",
    }


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        (OnDependencyFailure.HOLD, State.BLOCKED),
        (OnDependencyFailure.CANCEL, State.CANCELLED),
        (OnDependencyFailure.FAIL, State.FAILED),
        (OnDependencyFailure.RUN, State.READY),
    ],
)
@pytest.mark.parametrize("lost", [State.FAILED, State.CANCELLED])
def test_rule_10_it_holds_for_a_dependency_that_was_lost_before(policy, after, lost):
    world = World()
    first = a_leased_job(world)
    if lost is State.FAILED:
        world.fail(first.job_id)
    else:
        world.cancel(first.job_id)

    job = world.submit(depends_on=(first.job_id,), terms=Terms(on_dependency_failure=policy))

    assert job.state is after
    if after in (State.CANCELLED, State.FAILED):
        assert State.READY not in world.states(job.job_id), "never shown as ready"
    world.check()


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        (OnDependencyFailure.HOLD, State.BLOCKED),
        (OnDependencyFailure.CANCEL, State.CANCELLED),
        (OnDependencyFailure.FAIL, State.FAILED),
        (OnDependencyFailure.RUN, State.READY),
    ],
)
def test_rule_10_a_worker_goes_on_and_the_loss_binds_when_the_job_comes_back(policy, after):
    world = World()
    job = a_leased_job(world, queue="q", terms=Terms(on_dependency_failure=policy))
    first = world.submit(queue="r")
    world.depend(job.job_id, first.job_id)
    world.claim("r")
    world.fail(first.job_id)
    still = world.state(job.job_id)

    world.release(job.job_id)

    assert (still, world.state(job.job_id)) == (State.LEASED, after)
    world.check()


def test_rule_10_a_worker_may_finish_a_job_whose_later_dependency_was_lost():
    world = World()
    job = a_leased_job(world, queue="q")
    first = world.submit(queue="r")
    world.depend(job.job_id, first.job_id)
    world.claim("r")
    world.fail(first.job_id)

    done = world.complete(job.job_id)

    assert done.state is State.COMPLETED
    world.check()


def test_rule_10_a_dependency_that_is_lost_already_binds_a_leased_job_when_it_returns():
    world = World()
    first = a_leased_job(world, queue="r")
    world.fail(first.job_id)
    job = a_leased_job(world, queue="q")

    world.depend(job.job_id, first.job_id)
    still = world.state(job.job_id)
    world.release(job.job_id)

    assert (still, world.state(job.job_id)) == (State.LEASED, State.CANCELLED)
    world.check()


def test_rule_10_the_deadline_of_a_dependency_loses_its_dependants_too():
    world = World()
    first = world.submit(deadline_at=world.now + HOUR)
    job = world.submit(depends_on=(first.job_id,))

    world.tick(HOUR)

    assert (world.state(first.job_id), world.state(job.job_id)) == (State.FAILED, State.CANCELLED)
    world.check()


# Rule 11: a dependency that nobody knows.


def test_rule_11_an_unknown_dependency_can_count_as_satisfied():
    world = World()

    job = world.submit(depends_on=("abc",), on_unknown_dependency=OnUnknownDependency.SATISFIED)

    assert (job.state, job.depends_on) == (State.READY, ())
    world.check()


def test_rule_11_an_unknown_dependency_can_be_refused():
    world = World()

    reply = world.offer(
        a_job(depends_on=("abc",), on_unknown_dependency=OnUnknownDependency.REFUSE)
    )

    assert isinstance(reply, Refusal)
    assert reply.why is Why.UNKNOWN_DEPENDENCY
    assert world.events() == []


def test_rule_11_an_unknown_dependency_can_be_waited_for():
    world = World()
    wait = OnUnknownDependency.WAIT
    by_id = world.submit(depends_on=("abc",), on_unknown_dependency=wait)
    by_name = world.submit(
        namespace="n", name="later", depends_on=("first",), on_unknown_dependency=wait
    )

    world.submit(queue="r", job_id="abc", id_chosen=True)
    world.submit(queue="r", namespace="n", name="first")
    blocked = (world.state(by_id.job_id), world.state(by_name.job_id))
    for job in world.claim_all("r", count=2):
        world.complete(job.job_id)

    assert blocked == (State.BLOCKED, State.BLOCKED)
    assert (world.state(by_id.job_id), world.state(by_name.job_id)) == (State.READY, State.READY)
    world.check()


def test_rule_11_a_job_without_a_name_in_the_namespace_is_depended_on_by_its_id():
    world = World()
    satisfied = OnUnknownDependency.SATISFIED
    first = world.submit(queue="elsewhere", job_id="abc", id_chosen=True)

    job = world.submit(
        namespace="n", name="later", depends_on=("abc", "abd"), on_unknown_dependency=satisfied
    )
    blocked = world.state(job.job_id)
    world.complete(world.claim("elsewhere").job_id)

    assert (job.depends_on, blocked) == ((first.job_id,), State.BLOCKED)
    assert world.state(job.job_id) is State.READY
    assert [(row.what, row.detail) for row in job.history] == [("dependency unknown", "abd")]
    world.check()


def test_rule_11_a_name_in_the_namespace_goes_before_an_id():
    world = World()
    world.submit(queue="elsewhere", job_id="abc", id_chosen=True)
    named = world.submit(queue="r", namespace="n", name="abc")

    job = world.submit(namespace="n", name="later", depends_on=("abc",))

    assert job.depends_on == (named.job_id,)
    world.check()


def test_rule_11_a_job_that_is_given_back_waits_for_names_of_the_namespace_that_was_said():
    world = World()
    first = world.submit(queue="r", namespace="n", name="first")
    job = world.claim(world.submit(queue="s").queue)

    found = world.release(job.job_id, depends_on=("first",), namespace="n")

    assert (found.state, found.waits_for) == (State.BLOCKED, (first.job_id,))
    world.check()


@pytest.mark.parametrize("name", ["not hexadecimal", "ABC", "", "0" * 129])
def test_rule_11_nobody_waits_for_an_id_that_no_job_can_have(name):
    world = World()

    reply = world.offer(a_job(depends_on=(name,), on_unknown_dependency=OnUnknownDependency.WAIT))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.BAD_JOB_ID


# Rule 12: cancelling what others depend on.


def test_rule_12_cancelling_can_be_refused_while_a_live_job_depends_on_it():
    world = World()
    first = world.submit()
    job = world.submit(depends_on=(first.job_id,))

    why = world.refused(Cancel(job_ids=(first.job_id,), with_dependants=False))

    assert why is Why.HAS_DEPENDANTS
    assert (world.state(first.job_id), world.state(job.job_id)) == (State.READY, State.BLOCKED)
    world.check()


def test_rule_12_both_together_may_be_cancelled_under_refuse():
    world = World()
    first = world.submit()
    job = world.submit(depends_on=(first.job_id,))

    cancelled = world.cancel(first.job_id, job.job_id, with_dependants=False)

    assert {one.state for one in cancelled} == {State.CANCELLED}
    assert {one.reason for one in cancelled} == {"cancelled"}
    world.check()


def test_rule_12_a_finished_dependant_is_no_obstacle():
    world = World()
    first = world.submit()
    job = world.submit(depends_on=(first.job_id,))
    world.cancel(job.job_id)

    world.cancel(first.job_id, with_dependants=False)

    assert world.state(first.job_id) is State.CANCELLED
    world.check()


@pytest.mark.parametrize("policy", list(OnDependencyFailure))
def test_rule_12_cancelling_can_take_all_dependants_along_whatever_their_policy(policy):
    world = World()
    terms = Terms(on_dependency_failure=policy)
    first = world.submit()
    middle = world.submit(depends_on=(first.job_id,), terms=terms)
    last = world.submit(depends_on=(middle.job_id,), terms=terms)

    cancelled = world.cancel(first.job_id, with_dependants=True, detail="enough")

    assert {job.job_id for job in cancelled} == {first.job_id, middle.job_id, last.job_id}
    assert {job.detail for job in cancelled} == {"enough"}
    world.check()


# Rule 13: what is kept for dependants.


def test_rule_13_nothing_is_pruned_that_a_live_job_depends_on():
    world = World()
    first, job = lost_dependency(world, OnDependencyFailure.HOLD)
    other = a_leased_job(world)
    world.fail(other.job_id)

    world.store.prune(world.now + 1_000 * HOUR, 100)

    assert world.exists(first.job_id)
    assert not world.exists(other.job_id)
    assert world.state(job.job_id) is State.BLOCKED


def test_rule_13_a_finished_name_keeps_its_outcome_until_the_namespace_is_drained():
    world = World()
    terms = TERMS["dwork"]
    first = world.submit(namespace="n", name="first", terms=terms)
    world.submit(namespace="n", name="other", terms=terms)
    world.claim()
    world.complete(first.job_id)

    later = world.submit(
        namespace="n",
        name="later",
        depends_on=("first",),
        on_unknown_dependency=OnUnknownDependency.REFUSE,
        terms=terms,
    )

    assert later.state is State.READY
    assert later.depends_on == (first.job_id,)
    world.check()
