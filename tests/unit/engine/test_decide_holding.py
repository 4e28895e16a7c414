"""What the holder of a lease may say."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByAnyone,
    Complete,
    Conclude,
    Fail,
    Release,
    ReleaseAll,
    RenewHeld,
    SendPartial,
)
from manyhands.model.identity import name_key
from manyhands.model.job import EndReason, Failure, State
from manyhands.model.policy import TERMS, OnExpiry, OnUnknownDependency, Reentry, Terms
from manyhands.model.replies import ChangedMany, Concluded, Refusal, Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_job, a_worker, by_holder


def a_leased_job(world: World, term_ms: int | None = MINUTE, **fields):
    job = world.submit(a_job(**fields))
    return world.claim(job.queue, term_ms=term_ms)


# Renew.


def test_a_renewal_begins_the_term_anew():
    world = World()
    job = a_leased_job(world)
    world.now += 30 * SECOND

    renewed = world.renew(job.job_id)

    assert renewed.lease.expires_at == world.now + MINUTE
    assert (renewed.lease.number, renewed.lease.token) == (job.lease.number, job.lease.token)
    world.check()


def test_what_living_workers_hold_is_renewed_once_a_third_of_its_term_is_over():
    """S4: one command, and nothing is published."""
    world = World()
    early = a_leased_job(world)
    world.now += 20 * SECOND
    late = a_leased_job(world)
    world.submit(queue="other")
    foreign = world.claim("other", term_ms=MINUTE, holder=a_worker("somebody"))
    endless = a_leased_job(world, term_ms=None)
    world.now += 1
    published = len(world.events())

    count = world.accepted(RenewHeld((a_worker(), a_worker("nobody"))))

    assert count == 1
    assert world.job(early.job_id).lease.expires_at == world.now + MINUTE
    for job in (late, foreign, endless):
        assert world.job(job.job_id) == job
    assert len(world.events()) == published
    world.check()


def test_only_leases_of_the_queues_that_a_supervisor_may_use_are_renewed():
    world = World()
    world.submit(queue="mail.out")
    own = world.claim("mail.out", term_ms=MINUTE)
    world.submit(queue="other")
    other = world.claim("other", term_ms=MINUTE)
    world.now += 30 * SECOND

    assert world.accepted(RenewHeld((a_worker(),), None, ("mail.*",))) == 1

    assert world.job(own.job_id).lease.expires_at == world.now + MINUTE
    assert world.job(other.job_id) == other
    world.check()


def test_a_worker_with_very_many_leases_is_renewed_in_slices():
    """S4."""
    world = World()
    for _ in range(5):
        a_leased_job(world)
    world.now += 30 * SECOND

    counts = [world.accepted(RenewHeld((a_worker(),), 2)) for _ in range(4)]

    assert counts == [2, 2, 1, 0]
    world.check()


def test_a_lapsed_lease_of_a_living_worker_is_valid_again():
    """S4."""
    world = World()
    job = a_leased_job(world, terms=Terms(on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)
    assert world.state(job.job_id) is State.READY

    assert world.accepted(RenewHeld((a_worker(),))) == 1
    assert world.state(job.job_id) is State.LEASED
    world.check()


def test_a_renewal_may_ask_for_another_term_once():
    world = World()
    job = a_leased_job(world)

    longer = world.renew(job.job_id, term_ms=HOUR)
    usual = world.renew(job.job_id)

    assert longer.lease.expires_at == world.now + HOUR
    assert usual.lease.expires_at == world.now + MINUTE
    world.check()


def test_renewing_a_lease_without_a_term_is_allowed_and_changes_nothing():
    world = World()
    job = a_leased_job(world, term_ms=None)

    renewed = world.renew(job.job_id)

    assert renewed == job
    world.check()


def test_a_renewal_may_name_the_queue_it_believes_in():
    world = World()
    job = a_leased_job(world, queue="q")

    renewed = world.renew(job.job_id, queue="q")

    assert renewed.state is State.LEASED
    world.check()


# Report and partial results.


def test_progress_is_kept_and_renews_a_lease_that_has_a_term():
    world = World()
    job = a_leased_job(world)
    world.now += 30 * SECOND

    reported = world.report(job.job_id, 3, 10, seconds_left=7)

    progress = reported.progress
    assert (progress.numerator, progress.denominator) == (3, 10)
    assert (progress.seconds_left, progress.reported_at) == (7, world.now)
    assert reported.lease.expires_at == world.now + MINUTE
    world.check()


def test_progress_may_leave_the_lease_alone():
    world = World()
    job = a_leased_job(world)
    world.now += 30 * SECOND

    reported = world.report(job.job_id, 3, 0, renew=False)

    assert reported.lease == job.lease
    assert reported.progress.denominator == 0
    world.check()


def test_progress_of_one_attempt_is_not_shown_for_the_next():
    world = World()
    job = a_leased_job(world)
    world.report(job.job_id, 9, 10)

    back = world.release(job.job_id)

    assert back.progress is None
    world.check()


def test_pieces_of_a_result_are_numbered_and_kept():
    world = World()
    job = a_leased_job(world)
    proof = world.proof_of(job.job_id)

    for piece in (b"a", b"b"):
        world.changed(SendPartial(job_id=job.job_id, proof=proof, payload=piece))

    kept = world.store.partials(job.job_id)
    assert [(piece.number, piece.payload) for piece in kept] == [(1, b"a"), (2, b"b")]
    assert world.job(job.job_id).partials_count == 2
    world.check()


def test_a_very_large_piece_reaches_those_who_wait_and_is_not_kept():
    world = World()
    job = a_leased_job(world, waiter="s1/1")
    large = bytes(limits.PARTIAL_BYTES_MAX + 1)

    world.changed(SendPartial(job_id=job.job_id, proof=world.proof_of(job.job_id), payload=large))

    assert [len(signal.payload) for signal in world.told("partial")] == [len(large)]
    assert world.store.partials(job.job_id) == ()
    world.check()


# Complete.


def test_a_completed_job_is_finished_and_its_lease_is_over():
    world = World()
    job = a_leased_job(world)
    world.now += SECOND

    done = world.complete(job.job_id, result=b"out")

    assert (done.state, done.lease, done.finished_at) == (State.COMPLETED, None, world.now)
    attempt = done.attempts[-1]
    assert (attempt.reason, attempt.number) == (EndReason.COMPLETED, 1)
    assert (attempt.claimed_at, attempt.ended_at) == (job.lease.claimed_at, world.now)
    world.check()


def test_completing_forgets_the_failure_of_an_earlier_attempt():
    world = World()
    job = a_leased_job(world)
    world.fail(job.job_id, retry=True, delay_ms=0)
    world.claim()

    done = world.complete(job.job_id)

    assert done.failure is None
    assert world.reasons(job.job_id) == ["failed", "completed"]
    world.check()


def test_the_oldest_attempt_and_the_latest_ones_are_kept():
    world = World()
    job = world.submit(terms=TERMS["dwork"])
    for _ in range(limits.ATTEMPTS_KEPT_MAX + 5):
        world.claim()
        world.release(job.job_id)

    numbers = [attempt.number for attempt in world.job(job.job_id).attempts]

    assert len(numbers) == limits.ATTEMPTS_KEPT_MAX
    assert (numbers[0], numbers[1], numbers[-1]) == (1, 7, limits.ATTEMPTS_KEPT_MAX + 5)
    world.check()


# Release.


def test_a_released_job_may_wait_for_others_first():
    world = World()
    job = a_leased_job(world, queue="q")
    other = world.submit(queue="r")

    back = world.release(job.job_id, depends_on=(other.job_id,))
    world.claim("r")
    world.complete(other.job_id)

    assert (back.state, back.waits_for) == (State.BLOCKED, (other.job_id,))
    assert world.state(job.job_id) is State.READY
    world.check()


def test_a_release_onto_an_unknown_dependency_is_ready_or_refused_as_asked():
    world = World()
    job, other = a_leased_job(world), a_leased_job(world)

    back = world.release(job.job_id, depends_on=("abc",))
    refused = world.refused(
        Release(
            job_id=other.job_id,
            proof=world.proof_of(other.job_id),
            depends_on=("abc",),
            on_unknown_dependency=OnUnknownDependency.REFUSE,
        )
    )

    assert (back.state, refused) == (State.READY, Why.UNKNOWN_DEPENDENCY)
    assert world.state(other.job_id) is State.LEASED
    world.check()


def test_a_release_onto_a_lost_dependency_follows_the_jobs_policy():
    world = World()
    lost = a_leased_job(world)
    world.fail(lost.job_id)
    cancels = a_leased_job(world)
    holds = a_leased_job(world, terms=TERMS["qless"])

    world.release(cancels.job_id, depends_on=(lost.job_id,))
    world.release(holds.job_id, depends_on=(lost.job_id,))

    assert world.state(cancels.job_id) is State.CANCELLED
    assert world.state(holds.job_id) is State.BLOCKED
    world.check()


# Several ends at once.


def conclude(world: World, *items: Complete | Fail) -> list[str]:
    """What each was answered: the state of its job, or why not."""
    reply = world.run(Conclude(items))
    assert isinstance(reply, Concluded)
    return [
        item.why.value if isinstance(item, Refusal) else item.state.value for item in reply.items
    ]


def test_several_ends_are_decided_each_by_itself():
    world = World()
    mine, his, broken = (a_leased_job(world) for _ in range(3))
    proof, guessed = by_holder("worker"), by_holder("somebody")

    told = conclude(
        world,
        Complete(job_id=mine.job_id, proof=proof, result=b"good"),
        Complete(job_id=his.job_id, proof=guessed),
        Complete(job_id="0" * 32, proof=proof),
        Fail(job_id=broken.job_id, proof=proof, failure=Failure("broken")),
    )

    assert told == ["completed", "not_your_lease", "unknown_job", "failed"]
    assert world.job(mine.job_id).result == b"good"
    assert world.job(his.job_id) == his
    assert world.state(broken.job_id) is State.FAILED
    world.check()


def test_an_end_may_be_followed_by_that_of_a_job_which_waited_for_it():
    world = World()
    terms = TERMS["dwork"]
    first = world.submit(namespace="n", name="first", terms=terms)
    second = world.submit(namespace="n", name="second", terms=terms, depends_on=("first",))
    proof = by_holder("worker")
    items = [Complete(job_id=name_key("n", name), proof=proof) for name in ("second", "first")]

    assert conclude(world, *items, *items) == ["not_leased", "completed", "completed", "completed"]

    assert world.state(first.job_id) is world.state(second.job_id) is State.COMPLETED
    assert len(world.job(first.job_id).attempts) == 1
    world.check()


def test_a_refused_end_among_others_leaves_nothing_behind():
    world = World()
    world.submit()
    # A lease taken without a name is adopted by the first named request, unless that is refused.
    job = world.claim(holder=a_worker(None, address="here"))
    huge = bytes(limits.PAYLOAD_BYTES_MAX + 1)
    proof = by_holder("ann", address="here")

    told = conclude(world, Complete(job_id=job.job_id, proof=proof, result=huge))

    assert told == ["payload_too_large"]
    assert world.job(job.job_id) == job
    world.check()


def test_several_releases_are_all_or_nothing():
    world = World()
    mine, his = world.submit(), world.submit()
    world.claim(holder=a_worker("ann"))
    world.claim(holder=a_worker("bob"))
    ann = by_holder("ann")

    why = world.refused(
        ReleaseAll((Release(job_id=mine.job_id, proof=ann), Release(job_id=his.job_id, proof=ann)))
    )

    assert why is Why.NOT_YOUR_LEASE
    assert world.state(mine.job_id) is State.LEASED
    world.check()


def test_several_releases_come_back_in_order():
    world = World()
    jobs = [world.submit(), world.submit()]
    world.claim_all(count=2)

    reply = world.run(
        ReleaseAll(
            tuple(
                Release(job_id=job.job_id, proof=by_holder("worker"), reentry=Reentry.TAIL)
                for job in jobs
            )
        )
    )

    assert isinstance(reply, ChangedMany)
    assert [job.job_id for job in reply.jobs] == [job.job_id for job in jobs]
    assert [job.job_id for job in world.claim_all(count=2)] == [job.job_id for job in jobs]
    world.check()


def test_several_releases_cannot_wait_for_each_other():
    world = World()
    first, second = a_leased_job(world), a_leased_job(world)
    items = tuple(
        Release(job_id=job.job_id, proof=by_holder("worker"), depends_on=(other.job_id,))
        for job, other in ((first, second), (second, first))
    )

    why = world.refused(ReleaseAll(items))

    assert why is Why.CYCLE
    assert world.state(first.job_id) is State.LEASED
    world.check()


def test_one_of_several_releases_may_wait_for_another():
    world = World()
    first, second = a_leased_job(world), a_leased_job(world)
    proof = by_holder("worker")

    world.run(
        ReleaseAll(
            (
                Release(job_id=first.job_id, proof=proof, depends_on=(second.job_id,)),
                Release(job_id=second.job_id, proof=proof),
            )
        )
    )

    assert world.state(first.job_id) is State.BLOCKED
    assert world.state(second.job_id) is State.READY
    world.check()


@pytest.mark.parametrize("reason", [EndReason.RELEASED, EndReason.GOODBYE])
def test_a_release_says_why(reason):
    world = World()
    job = a_leased_job(world)

    back = world.release(job.job_id, reason=reason)

    assert back.reason == reason.value
    world.check()


def test_nobody_proves_nothing():
    world = World()
    job = a_leased_job(world)

    why = world.refused(Release(job_id=job.job_id, proof=ByAnyone("worker")))

    assert why is Why.NOT_YOUR_LEASE
    world.check()
