"""Cancelling what very many depend on: they follow in slices."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Claim,
    Complete,
    Fail,
    NotifyDependants,
    Release,
    Requeue,
    Submit,
)
from manyhands.model.job import Failure, State
from manyhands.model.policy import TERMS, OnDependencyFailure, Terms
from manyhands.model.replies import ChangedMany, SubmittedMany
from tests.unit.engine.world import World, a_job, a_worker

HOLD = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
RUN = Terms(on_dependency_failure=OnDependencyFailure.RUN)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 3)


def a_star(world: World, count: int, terms: Terms = HOLD) -> tuple[str, list[str]]:
    """A job that many wait for."""
    middle = world.submit().job_id
    return middle, [world.submit(depends_on=(middle,), terms=terms).job_id for _ in range(count)]


def cancel(world: World, *job_ids: str) -> list[str]:
    """The one command, and nothing after it: ids of what it answers."""
    reply = world.step(Cancel(job_ids=job_ids, detail="enough"))
    assert isinstance(reply, ChangedMany)
    assert {(job.state, job.detail) for job in reply.jobs} == {(State.CANCELLED, "enough")}
    return [job.job_id for job in reply.jobs]


def tell_all(world: World) -> int:
    """How many slices there were."""
    count = 0
    while world.store.live.unnotified:
        before = len(world.events())
        world.step(NotifyDependants(next(iter(world.store.live.unnotified))))
        assert len(world.events()) <= before + limits.DEPENDANTS_NOTIFIED_MAX
        count += 1
    return count


def states(world: World, ids: list[str]) -> list[State]:
    return [world.state(job_id) for job_id in ids]


def test_as_many_as_one_command_may_concern_are_cancelled_and_told_of_at_once():
    world = World()
    middle, ids = a_star(world, 3)

    assert cancel(world, middle) == [middle, *ids]

    assert not world.store.live.unnotified
    world.check()


@pytest.mark.parametrize("policy", list(OnDependencyFailure))
def test_more_are_cancelled_in_slices_whatever_their_policy(policy):
    world = World()
    middle, ids = a_star(world, 7, Terms(on_dependency_failure=policy))

    assert cancel(world, middle) == [middle]
    assert states(world, ids) == [State.BLOCKED] * 7
    world.step(NotifyDependants(middle))
    assert states(world, ids) == [State.CANCELLED] * 3 + [State.BLOCKED] * 4
    assert tell_all(world) == 2

    assert states(world, ids) == [State.CANCELLED] * 7
    assert {world.job(job_id).detail for job_id in ids} == {"enough"}
    world.check()


def test_dependants_of_dependants_are_cancelled_in_slices():
    world = World()
    middle, ids = a_star(world, 2)
    for parent in ids[:2]:
        ids += [world.submit(depends_on=(parent,), terms=RUN).job_id for _ in range(4)]
    both = world.submit(depends_on=(ids[2], ids[-1]), terms=RUN).job_id

    assert cancel(world, middle) == [middle]
    tell_all(world)

    assert set(states(world, [*ids, both])) == {State.CANCELLED}
    assert {world.job(job_id).detail for job_id in [*ids, both]} == {"enough"}
    world.check()


def test_all_that_were_asked_for_are_cancelled_at_once():
    world = World()
    first, some = a_star(world, 2)
    second, others = a_star(world, 2)
    alone = world.submit().job_id

    assert cancel(world, second, first, alone) == [second, first, alone]
    assert set(states(world, some + others)) == {State.BLOCKED}
    tell_all(world)

    assert set(states(world, some + others)) == {State.CANCELLED}
    world.check()


def test_those_that_were_cancelled_with_a_job_stay_so_although_it_is_worked_on_again_meanwhile():
    world = World()
    middle, ids = a_star(world, 7)
    cancel(world, middle)

    world.step(Requeue(job_id=middle))
    world.step(NotifyDependants(middle))
    world.step(Claim(job_id=middle, holder=a_worker(), tokens=("again",)))
    world.step(Complete(job_id=middle, proof=ByToken("again")))
    assert states(world, ids) == [State.CANCELLED] * 3 + [State.BLOCKED] * 4
    tell_all(world)

    assert states(world, ids) == [State.CANCELLED] * 7
    assert world.state(middle) is State.COMPLETED
    world.check()


def test_what_is_submitted_later_goes_by_its_own_policy():
    world = World()
    middle, ids = a_star(world, 7)
    cancel(world, middle)
    late = world.step(Submit((a_job(job_id="1a7e", depends_on=(middle,), terms=HOLD),)))
    assert isinstance(late, SubmittedMany)

    tell_all(world)

    assert set(states(world, ids)) == {State.CANCELLED}
    assert world.state("1a7e") is State.BLOCKED
    world.check()


def test_what_was_submitted_later_hears_of_the_end_when_all_are_cancelled():
    world = World()
    middle, _ = a_star(world, 7)
    cancel(world, middle)
    world.step(Requeue(job_id=middle))
    world.step(Submit((a_job(job_id="1a7e", depends_on=(middle,), terms=HOLD),)))
    world.step(Claim(job_id=middle, holder=a_worker(), tokens=("again",)))
    world.step(Complete(job_id=middle, proof=ByToken("again")))
    assert world.state("1a7e") is State.BLOCKED

    tell_all(world)

    assert world.state("1a7e") is State.READY
    world.check()


def test_a_job_that_takes_the_name_does_not_inherit_those_that_were_cancelled_with_it():
    world = World()
    terms = TERMS["dwork"]

    def node(name: str, *depends_on: str):
        item = a_job(namespace="n", name=name, depends_on=depends_on, terms=terms)
        return world.submit(item).job_id

    first = node("first")
    ids = [node(f"t{number}", "first") for number in range(7)]
    cancel(world, first)
    again = a_job(job_id="a6a1", namespace="n", name="first", terms=terms)
    world.step(Submit((again,)))
    tell_all(world)

    assert set(states(world, ids)) == {State.CANCELLED}
    assert world.state("a6a1") is State.READY
    world.check()


def test_a_leased_dependant_is_cancelled_too_and_one_that_comes_back_before_it_is():
    world = World()
    middle, ids = a_star(world, 7)
    held = [world.submit(terms=RUN).job_id for _ in range(2)]
    for job_id in held:
        world.run(Claim(job_id=job_id, holder=a_worker(), tokens=(job_id,)))
        world.depend(job_id, middle)
    cancel(world, middle)

    world.step(Release(job_id=held[0], proof=ByToken(held[0])))
    assert (world.state(held[0]), world.job(held[0]).detail) == (State.CANCELLED, "enough")
    tell_all(world)

    assert set(states(world, ids + held)) == {State.CANCELLED}
    assert [signal.job.job_id for signal in world.told("notice")] == [held[1]]
    world.check()


def test_a_failed_job_whose_end_is_still_being_told_can_be_cancelled_with_all_that_wait():
    world = World()
    middle, ids = a_star(world, 7, RUN)
    world.step(Claim(job_id=middle, holder=a_worker(), tokens=("star",)))
    world.step(Fail(job_id=middle, proof=ByToken("star"), failure=Failure("x"), retry=False))
    assert states(world, ids) == [State.READY] * 3 + [State.BLOCKED] * 4

    assert cancel(world, middle) == [middle]
    tell_all(world)

    assert states(world, ids) == [State.READY] * 3 + [State.CANCELLED] * 4
    world.check()
