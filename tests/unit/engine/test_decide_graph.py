"""Dependencies: freed, lost, added, removed, refused where they would close a cycle."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Claim,
    Complete,
    Conclude,
    Fail,
    NotifyDependants,
    Release,
    Requeue,
    SetDependencies,
)
from manyhands.model.job import Failure, State
from manyhands.model.policy import (
    DEFAULTS,
    TERMS,
    OnDependencyFailure,
    OnUnknownDependency,
    Terms,
)
from manyhands.model.replies import Refusal, Why
from tests.unit.engine.world import HOUR, World, a_job, a_worker

WAIT = OnUnknownDependency.WAIT
CHAIN_LENGTH = 100_000


def a_node(name: str, *depends_on: str, **fields):
    return a_job(
        namespace="n",
        name=name,
        depends_on=depends_on,
        on_unknown_dependency=WAIT,
        terms=TERMS["dwork"],
        **fields,
    )


def finish(world: World, job_id: str) -> None:
    """Claim just this job, and complete it."""
    world.run(Claim(job_id=job_id, holder=a_worker(), tokens=(f"finish {job_id}",)))
    world.changed(Complete(job_id=job_id, proof=ByToken(f"finish {job_id}")))


# Freeing.


def test_a_job_is_ready_when_its_last_dependency_completes():
    world = World()
    first, second = world.submit(), world.submit()
    job = world.submit(depends_on=(first.job_id, second.job_id))

    finish(world, first.job_id)
    between = world.job(job.job_id)
    finish(world, second.job_id)

    assert (between.state, between.waits_for) == (State.BLOCKED, (second.job_id,))
    after = world.job(job.job_id)
    assert (after.state, after.waits_for) == (State.READY, ())
    assert after.depends_on == (first.job_id, second.job_id)
    world.check()


def test_a_diamond_is_worked_from_top_to_bottom():
    world = World()
    top = world.submit()
    left = world.submit(depends_on=(top.job_id,))
    right = world.submit(depends_on=(top.job_id,))
    bottom = world.submit(depends_on=(left.job_id, right.job_id))

    order = []
    while jobs := world.claim_all(count=10):
        order.append({job.job_id for job in jobs})
        for job in jobs:
            world.complete(job.job_id)

    assert order == [{top.job_id}, {left.job_id, right.job_id}, {bottom.job_id}]
    assert world.states(bottom.job_id).count(State.READY) == 1
    world.check()


def test_a_dependency_that_is_named_twice_counts_once():
    world = World()
    first = world.submit()

    job = world.submit(depends_on=(first.job_id, first.job_id))

    assert job.depends_on == job.waits_for == (first.job_id,)
    world.check()


def test_a_completed_dependency_is_satisfied_already():
    world = World()
    first = world.submit()
    finish(world, first.job_id)

    job = world.submit(depends_on=(first.job_id,))

    assert (job.state, job.depends_on) == (State.READY, (first.job_id,))
    world.check()


def test_freed_work_goes_before_new_work_where_returned_work_does():
    world = World()
    for front, queue in (("dwork", "d"), ("native", "n")):
        first = world.submit(queue=queue, terms=TERMS[front])
        for payload in (b"freed 1", b"freed 2"):
            world.submit(
                queue=queue, payload=payload, depends_on=(first.job_id,), terms=TERMS[front]
            )
        world.submit(queue=queue, payload=b"new", terms=TERMS[front])
        finish(world, first.job_id)

    orders = [[job.payload for job in world.claim_all(q, count=9)] for q in ("d", "n")]

    assert orders[0] == [b"freed 2", b"freed 1", b"new"]
    assert orders[1] == [b"new", b"freed 1", b"freed 2"]
    world.check()


def test_a_job_that_waits_for_an_id_and_its_name_is_freed_once():
    world = World()
    job = world.submit(a_node("job", "first"))
    first = world.submit(a_node("first", queue="r"))
    both = world.depend(job.job_id, "first", on_unknown_dependency=WAIT)

    finish(world, first.job_id)

    assert len(both.waits_for) == 2
    assert world.states(job.job_id) == [State.BLOCKED, State.READY]
    world.check()


# Adding and removing.


@pytest.mark.parametrize("delay_ms", [0, HOUR])
def test_a_dependency_added_later_blocks_a_job_that_waits_for_a_worker_or_for_time(delay_ms):
    world = World()
    first = world.submit(queue="r")
    job = world.submit(delay_ms=delay_ms)

    blocked = world.depend(job.job_id, first.job_id)
    finish(world, first.job_id)

    assert (blocked.state, blocked.run_at) == (State.BLOCKED, job.run_at)
    assert world.state(job.job_id) is job.state
    world.check()


def test_a_dependency_added_later_binds_a_leased_job_only_if_it_comes_back():
    world = World()
    first = world.submit(queue="r")
    stays, returns = world.submit(), world.submit()
    world.claim_all(count=2)

    world.depend(stays.job_id, first.job_id)
    world.depend(returns.job_id, first.job_id)
    done = world.complete(stays.job_id)
    back = world.release(returns.job_id)

    assert (done.state, done.waits_for) == (State.COMPLETED, ())
    assert (back.state, back.waits_for) == (State.BLOCKED, (first.job_id,))
    world.check()


def test_a_dependency_that_completes_while_the_job_is_leased_binds_nothing():
    world = World()
    first = world.submit(queue="r")
    job = world.submit()
    world.claim()
    world.depend(job.job_id, first.job_id)

    finish(world, first.job_id)

    assert world.job(job.job_id).waits_for == ()
    assert world.release(job.job_id).state is State.READY
    world.check()


def test_a_satisfied_dependency_added_later_is_noted_and_changes_nothing():
    world = World()
    first = world.submit()
    finish(world, first.job_id)
    job = world.submit()

    noted = world.depend(job.job_id, first.job_id)

    assert (noted.state, noted.depends_on) == (State.READY, (first.job_id,))
    assert len(world.states(job.job_id)) == 1
    world.check()


def test_removing_the_last_dependency_frees_a_job():
    world = World()
    first, second = world.submit(queue="r"), world.submit(queue="r")
    job = world.submit(depends_on=(first.job_id, second.job_id))

    still = world.free(job.job_id, first.job_id)
    freed = world.free(job.job_id, second.job_id, "abc")

    assert (still.state, still.depends_on) == (State.BLOCKED, (second.job_id,))
    assert (freed.state, freed.depends_on) == (State.READY, ())
    finish(world, first.job_id)
    assert world.states(job.job_id) == [State.BLOCKED, State.READY]
    world.check()


def test_a_dependency_is_removed_by_the_name_it_was_written_with():
    world = World()
    world.submit(a_node("known"))
    job = world.submit(a_node("job", "known", "unknown"))

    freed = world.free(job.job_id, "known", "unknown")

    assert (freed.state, freed.depends_on) == (State.READY, ())
    world.check()


def test_adding_and_removing_in_one_command_adds_first():
    world = World()
    first, second = world.submit(queue="r"), world.submit(queue="r")
    job = world.submit(depends_on=(first.job_id,))

    changed = world.changed(
        SetDependencies(job_id=job.job_id, add=(second.job_id,), remove=(first.job_id,))
    )

    assert (changed.state, changed.waits_for) == (State.BLOCKED, (second.job_id,))
    assert world.states(job.job_id) == [State.BLOCKED]
    world.check()


def test_a_lost_dependency_added_later_loses_the_job():
    world = World()
    first = world.submit()
    world.cancel(first.job_id)
    job = world.submit()

    lost = world.depend(job.job_id, first.job_id)

    assert (lost.state, lost.reason) == (State.CANCELLED, "dependency_failed")
    world.check()


def test_a_job_has_at_most_so_many_dependencies(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDENCIES_COUNT_MAX", 3)
    world = World()
    ids = [world.submit(queue="r").job_id for _ in range(4)]
    job = world.submit(depends_on=tuple(ids[:2]))

    why = world.refused(SetDependencies(job_id=job.job_id, add=tuple(ids[2:])))

    assert why is Why.TOO_MANY_DEPENDENCIES
    world.check()


# Cycles.


def test_no_later_dependency_may_close_a_cycle():
    world = World()
    first = world.submit()
    second = world.submit(depends_on=(first.job_id,))
    third = world.submit(depends_on=(second.job_id,))

    refusals = [
        world.refused(SetDependencies(job_id=first.job_id, add=(other,)))
        for other in (first.job_id, second.job_id, third.job_id)
    ]

    assert set(refusals) == {Why.CYCLE}
    world.check()


def test_a_job_cannot_be_submitted_to_wait_for_itself():
    world = World()

    reply = world.offer(
        a_job(job_id="a", id_chosen=True, depends_on=("a",), on_unknown_dependency=WAIT)
    )

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE


def test_a_cycle_over_names_that_appear_one_by_one_is_refused():
    world = World()
    world.submit(a_node("a", "b"))
    world.submit(a_node("b", "c"))

    reply = world.offer(a_node("c", "a"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    world.check()


def test_a_later_dependency_may_not_close_a_cycle_over_names():
    world = World()
    world.submit(a_node("a", "b"))
    job = world.submit(a_node("b"))

    why = world.refused(SetDependencies(job_id=job.job_id, add=("a",)))

    assert why is Why.CYCLE
    world.check()


def test_a_cycle_over_ids_that_appear_one_by_one_is_refused():
    world = World()
    world.submit(job_id="a", id_chosen=True, depends_on=("b",), on_unknown_dependency=WAIT)
    world.submit(job_id="b", id_chosen=True, depends_on=("c",), on_unknown_dependency=WAIT)

    reply = world.offer(
        a_job(job_id="c", id_chosen=True, depends_on=("a",), on_unknown_dependency=WAIT)
    )

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    world.check()


def test_a_finished_job_closes_no_cycle():
    world = World()
    first = world.submit()
    second = world.submit(
        depends_on=(first.job_id,),
        terms=Terms(on_dependency_failure=OnDependencyFailure.HOLD),
    )
    world.cancel(second.job_id)

    held = world.submit(
        depends_on=(second.job_id,),
        terms=Terms(on_dependency_failure=OnDependencyFailure.HOLD),
    )
    blocked = world.depend(first.job_id, held.job_id, second.job_id)

    assert (blocked.state, held.state) == (State.CANCELLED, State.BLOCKED)
    world.check()


def test_a_search_that_takes_too_long_refuses_the_edge(monkeypatch):
    monkeypatch.setattr(limits, "CYCLE_VISITS_MAX", 10)
    world = World()
    previous = world.submit()
    for _ in range(20):
        previous = world.submit(depends_on=(previous.job_id,))
    job = world.submit()

    why = world.refused(SetDependencies(job_id=job.job_id, add=(previous.job_id,)))

    assert why is Why.CYCLE
    world.check()


# Waiting for names that come back.


def test_a_named_dependency_lost_while_the_job_was_leased_binds_when_it_returns():
    world = World()
    terms = Terms(DEFAULTS["dwork"], on_dependency_failure=OnDependencyFailure.CANCEL)
    job = world.submit(a_job(namespace="n", name="job", terms=terms))
    world.claim()
    world.depend(job.job_id, "first", on_unknown_dependency=WAIT)
    first = world.submit(a_node("first", queue="r"))
    world.claim("r")
    world.fail(first.job_id)

    world.release(job.job_id)

    assert world.state(job.job_id) is State.CANCELLED
    world.check()


# Chains of any length.


def a_chain(world: World, **fields) -> list[str]:
    """Too long for any recursion: each job waits for the one before it."""
    ids = [f"{number:032x}" for number in range(1, CHAIN_LENGTH + 1)]
    items = [
        a_job(job_id=job_id, depends_on=(ids[place - 1],) if place else (), **fields)
        for place, job_id in enumerate(ids)
    ]
    for start in range(0, CHAIN_LENGTH, limits.BATCH_COUNT_MAX):
        world.offer_all(*items[start : start + limits.BATCH_COUNT_MAX])
    return ids


def test_a_chain_of_any_length_is_cancelled_together():
    world = World()
    ids = a_chain(world)

    world.cancel(ids[0])

    assert {world.state(job_id) for job_id in ids} == {State.CANCELLED}
    assert world.job(ids[-1]).reason == "cancelled"


def test_a_chain_of_any_length_fails_together():
    world = World()
    ids = a_chain(world, terms=Terms(on_dependency_failure=OnDependencyFailure.FAIL))
    world.claim()

    world.fail(ids[0])

    assert {world.state(job_id) for job_id in ids} == {State.FAILED}
    assert world.job(ids[-1]).reason == "dependency_failed"


def test_the_two_ends_of_a_long_chain_cannot_be_joined():
    world = World()
    ids = a_chain(world)

    why = world.refused(SetDependencies(job_id=ids[0], add=(ids[-1],)))

    assert why is Why.CYCLE


# Very many dependants hear of an end in slices.


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 3)


def a_star(world: World, count: int, **fields) -> tuple[str, list[str]]:
    """A job that many wait for, claimed."""
    middle = world.submit(a_job())
    ids = [world.submit(a_job(depends_on=(middle.job_id,), **fields)).job_id for _ in range(count)]
    world.run(Claim(job_id=middle.job_id, holder=a_worker(), tokens=("star",)))
    return middle.job_id, ids


def tell_more(world: World, job_id: str) -> None:
    world.step(NotifyDependants(job_id))


@pytest.mark.usefixtures("few")
def test_an_end_is_told_to_as_many_as_one_command_may_concern_and_then_to_the_next():
    world = World()
    middle, ids = a_star(world, 7)

    world.step(Complete(job_id=middle, proof=ByToken("star")))
    assert [world.state(job_id) for job_id in ids] == [State.READY] * 3 + [State.BLOCKED] * 4
    assert list(world.store.live.unnotified) == [middle]
    tell_more(world, middle)
    assert [world.state(job_id) for job_id in ids] == [State.READY] * 6 + [State.BLOCKED]
    tell_more(world, middle)

    assert [world.state(job_id) for job_id in ids] == [State.READY] * 7
    assert not world.store.live.unnotified


@pytest.mark.usefixtures("few")
def test_what_is_submitted_while_others_have_not_heard_does_not_wait_at_all():
    world = World()
    middle, _ = a_star(world, 7)
    world.step(Complete(job_id=middle, proof=ByToken("star")))

    late = world.submit(a_job(depends_on=(middle,)))

    assert late.state is State.READY


@pytest.mark.usefixtures("few")
def test_those_that_have_not_heard_wait_on_for_a_job_that_is_put_to_work_again():
    world = World()
    middle, ids = a_star(world, 7)
    world.step(Complete(job_id=middle, proof=ByToken("star")))

    world.step(Requeue(job_id=middle))
    tell_more(world, middle)
    assert not world.store.live.unnotified
    assert world.state(ids[-1]) is State.BLOCKED
    finish(world, middle)

    assert [world.state(job_id) for job_id in ids] == [State.READY] * 7


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("policy", [OnDependencyFailure.CANCEL, OnDependencyFailure.FAIL])
def test_a_loss_is_told_in_slices_whatever_else_is_held(policy):
    world = World()
    middle, ids = a_star(world, 7, terms=Terms(on_dependency_failure=policy))
    held = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    patient = [world.submit(a_job(depends_on=(middle,), terms=held)).job_id for _ in range(5)]
    ids += [
        world.submit(a_job(depends_on=(middle,), terms=Terms(on_dependency_failure=policy))).job_id
        for _ in range(2)
    ]

    world.fail(middle, retry=False)

    lost = State.FAILED if policy is OnDependencyFailure.FAIL else State.CANCELLED
    assert {world.state(job_id) for job_id in ids} == {lost}
    assert {world.state(job_id) for job_id in patient} == {State.BLOCKED}
    assert not world.store.live.unnotified


HELD = Terms(on_dependency_failure=OnDependencyFailure.HOLD)


def fail_star(world: World, middle: str) -> None:
    failed = Fail(job_id=middle, proof=ByToken("star"), failure=Failure("x"), retry=False)
    world.step(failed)


def count_looks(world: World, monkeypatch) -> list[str]:
    """Ids of jobs that decisions look at from now on."""
    index = world.store.live
    looked: list[str] = []
    get = index.job

    def job(job_id: str):
        looked.append(job_id)
        return get(job_id)

    monkeypatch.setattr(index, "job", job)
    return looked


@pytest.mark.usefixtures("few")
def test_no_command_looks_at_all_that_are_held_by_a_lost_job(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_SEEN_MAX", 10)
    world = World()
    middle, ids = a_star(world, 45, terms=HELD)
    cancelled = [world.submit(a_job(depends_on=(middle,))).job_id for _ in range(8)]
    looked = count_looks(world, monkeypatch)

    fail_star(world, middle)
    while world.store.live.unnotified:
        assert len(looked) < 20
        looked.clear()
        tell_more(world, middle)

    assert {world.state(job_id) for job_id in ids} == {State.BLOCKED}
    assert {world.state(job_id) for job_id in cancelled} == {State.CANCELLED}


@pytest.mark.usefixtures("few")
def test_a_loss_is_told_although_the_last_that_was_passed_over_is_gone(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_SEEN_MAX", 2)
    world = World()
    middle, ids = a_star(world, 5, terms=HELD)
    cancelled = world.submit(a_job(depends_on=(middle,))).job_id
    fail_star(world, middle)

    for job_id in ids[:4]:
        world.step(SetDependencies(job_id=job_id, remove=(middle,)))
    while world.store.live.unnotified:
        tell_more(world, middle)

    assert world.state(cancelled) is State.CANCELLED
    assert world.state(ids[-1]) is State.BLOCKED


@pytest.mark.usefixtures("few")
def test_a_job_that_fails_once_more_while_that_is_told_tells_all_anew(monkeypatch):
    monkeypatch.setattr(limits, "DEPENDANTS_SEEN_MAX", 2)
    world = World()
    held = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    first = world.submit(a_job("other")).job_id
    middle, _ = a_star(world, 5, terms=held)
    world.run(Claim(job_id=first, holder=a_worker(), tokens=("first",)))
    world.step(Fail(job_id=middle, proof=ByToken("star"), failure=Failure("x"), retry=False))
    assert world.store.live.unnotified

    world.step(Requeue(job_id=middle))
    world.step(Claim(job_id=middle, holder=a_worker(), tokens=("again",)))
    world.step(SetDependencies(job_id=first, add=(middle,)))
    world.step(Release(job_id=first, proof=ByToken("first")))
    assert world.state(first) is State.BLOCKED
    world.step(Fail(job_id=middle, proof=ByToken("again"), failure=Failure("x"), retry=False))
    while world.store.live.unnotified:
        tell_more(world, middle)

    assert world.state(first) is State.CANCELLED


@pytest.mark.usefixtures("few")
def test_all_that_one_command_ends_share_what_it_may_concern():
    world = World()
    first, some = a_star(world, 2)
    second, others = a_star(world, 2)
    items = tuple(Complete(job_id=job_id, proof=ByToken("star")) for job_id in (first, second))

    world.step(Conclude(items))
    assert [world.state(job_id) for job_id in some + others].count(State.BLOCKED) == 1
    tell_more(world, second)

    assert {world.state(job_id) for job_id in some + others} == {State.READY}


# Names that come again.


def test_a_lost_name_that_is_created_again_is_what_its_dependants_wait_for():
    world = World()
    lost = world.submit(a_node("first", queue="r"))
    job = world.submit(a_node("job", "first"))
    world.claim("r")
    world.fail(lost.job_id)

    again = world.submit(a_node("first", queue="r"))
    waiting = world.job(job.job_id)
    finish(world, again.job_id)

    assert (waiting.state, waiting.waits_for) == (State.BLOCKED, (again.job_id,))
    assert world.state(job.job_id) is State.READY
    world.check()


def test_a_lost_name_cannot_be_created_again_to_wait_for_its_own_dependant():
    world = World()
    lost = world.submit(a_node("first", queue="r"))
    world.submit(a_node("job", "first"))
    world.claim("r")
    world.fail(lost.job_id)

    reply = world.offer(a_node("first", "job"))

    assert isinstance(reply, Refusal)
    assert reply.why is Why.CYCLE
    world.check()


def test_an_unknown_dependency_that_counts_as_satisfied_leaves_a_trace():
    world = World()

    job = world.submit(depends_on=("abc",), on_unknown_dependency=OnUnknownDependency.SATISFIED)

    assert [(entry.what, entry.detail) for entry in job.history] == [("dependency unknown", "abc")]
    world.check()


@pytest.mark.parametrize(
    "words",
    [
        lambda job_id, other: Complete(
            job_id=job_id, proof=ByToken("token-1"), next_queue="s", depends_on=(other,)
        ),
        lambda job_id, other: Release(job_id=job_id, proof=ByToken("token-1"), depends_on=(other,)),
    ],
)
def test_no_word_of_a_holder_may_close_a_cycle(words):
    world = World()
    job = world.submit()
    world.claim()
    after = world.submit(depends_on=(job.job_id,))

    why = world.refused(words(job.job_id, after.job_id))

    assert why is Why.CYCLE
    assert world.state(job.job_id) is State.LEASED
    world.check()


def test_a_name_created_again_later_in_the_same_batch_is_waited_for_by_earlier_items():
    world = World()
    lost = world.submit(a_node("first", queue="r"))
    world.submit(a_node("keeps the graph alive"))
    world.claim("r")
    world.fail(lost.job_id)

    job, again = world.submit_all(a_node("job", "first"), a_node("first", queue="r"))

    assert job.waits_for == (again.job_id,)
    world.check()
