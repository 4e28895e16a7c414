"""Rules 1 to 8: who holds a job, by what proof, for how long, and how that ends."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import (
    ByAnyone,
    ByConnection,
    ByToken,
    Claim,
    Complete,
    Fail,
    FollowClock,
    Release,
    Renew,
    Report,
    SendPartial,
)
from manyhands.model.job import EndReason, Failure, State
from manyhands.model.policy import TERMS, Backoff, OnExpiry, Rate, Reentry, Terms
from manyhands.model.replies import Changed, Why
from tests.unit.engine.world import HOUR, MINUTE, SECOND, World, a_job, a_worker, by_holder

LAPSING = Terms(on_expiry=OnExpiry.LAPSE, reentry=Reentry.AHEAD)


def a_leased_job(world: World, term_ms: int | None = MINUTE, **fields):
    claim = {key: fields.pop(key) for key in ("holder", "connection") if key in fields}
    job = world.submit(a_job(**fields))
    return world.claim(job.queue, term_ms=term_ms, **claim)


# Rule 1: where the term comes from.


def test_rule_01_the_term_comes_from_the_claim():
    world = World()
    world.submit(terms=Terms(lease_ms=5 * MINUTE))

    job = world.claim(term_ms=MINUTE)

    assert job.lease.term_ms == MINUTE
    assert job.lease.expires_at == world.now + MINUTE
    world.check()


def test_rule_01_a_claim_without_a_term_never_expires():
    world = World()
    world.submit(terms=Terms(lease_ms=MINUTE))

    job = world.claim(term_ms=None)
    world.tick(1_000 * HOUR)

    assert world.state(job.job_id) is State.LEASED
    world.check()


def test_rule_01_a_claim_may_ask_for_the_jobs_own_term():
    world = World()
    world.set_queue(lease_ms=3 * MINUTE)
    world.submit(terms=Terms(lease_ms=5 * MINUTE))

    job = world.claim(term_ms=MINUTE, term_of_job=True)

    assert job.lease.term_ms == 5 * MINUTE
    world.check()


def test_rule_01_without_one_the_queues_term_follows_and_then_the_claims():
    world = World()
    world.set_queue("with", lease_ms=3 * MINUTE)
    world.submit(queue="with")
    world.submit(queue="without")

    with_term = world.claim("with", term_ms=MINUTE, term_of_job=True)
    without = world.claim("without", term_ms=MINUTE, term_of_job=True)

    assert (with_term.lease.term_ms, without.lease.term_ms) == (3 * MINUTE, MINUTE)
    world.check()


def test_rule_01_a_term_of_zero_means_no_expiry():
    world = World()
    world.submit(terms=Terms(lease_ms=0))

    job = world.claim(term_ms=MINUTE, term_of_job=True)

    assert (job.lease.term_ms, job.lease.expires_at) == (None, None)
    world.check()


def test_rule_01_each_queue_of_a_claim_may_have_a_term_of_its_own():
    world = World()
    world.submit(queue="a")
    world.submit(queue="b")

    jobs = world.claim_all("a", "b", count=2, term_ms=MINUTE, terms_ms=(None, 7 * SECOND))

    assert [job.lease.term_ms for job in jobs] == [None, 7 * SECOND]
    world.check()


def test_rule_01_a_queue_may_force_a_term_on_every_claim():
    world = World()
    world.set_queue(lease_ms=2 * MINUTE, lease_forced=True)
    world.submit(terms=Terms(lease_ms=5 * MINUTE))

    job = world.claim(term_ms=None, term_of_job=True)

    assert job.lease.term_ms == 2 * MINUTE
    world.check()


def test_rule_01_a_forced_term_binds_renewals_too():
    world = World()
    world.set_queue(lease_ms=2 * MINUTE, lease_forced=True)
    world.submit()
    job = world.claim(term_ms=None)

    renewed = world.renew(job.job_id, term_ms=5 * HOUR)

    assert renewed.lease.expires_at == world.now + 2 * MINUTE
    world.check()


def test_rule_01_the_longest_attempt_binds_whatever_the_term():
    world = World()
    world.submit(terms=Terms(attempt_ms_max=10 * SECOND))
    job = world.claim(term_ms=None)

    world.tick(10 * SECOND)

    assert world.state(job.job_id) is State.READY
    assert world.reasons(job.job_id) == ["cutoff"]
    world.check()


def test_rule_01_renewing_does_not_move_the_longest_attempt():
    world = World()
    world.set_queue(attempt_ms_max=10 * SECOND)
    world.submit()
    job = world.claim(term_ms=6 * SECOND)
    world.tick(5 * SECOND)

    world.renew(job.job_id)
    world.tick(5 * SECOND)

    assert world.reasons(job.job_id) == ["cutoff"]
    world.check()


def test_rule_01_the_deadline_binds_whatever_the_term():
    world = World()
    world.submit(deadline_at=world.now + HOUR)
    job = world.claim(term_ms=None)

    world.tick(HOUR)

    ended = world.job(job.job_id)
    assert (ended.state, ended.reason, ended.failure.code) == (State.FAILED, "deadline", "deadline")
    world.check()


# Rule 2: bound and free leases.


def test_rule_02_a_bound_lease_ends_with_its_connection():
    world = World()
    job = a_leased_job(world, term_ms=None, connection="s1/7")

    ended = world.depart(connection="s1/7")

    assert ended == 1
    assert world.state(job.job_id) is State.READY
    world.check()


def test_rule_02_a_free_lease_survives_disconnects_and_restarts():
    world = World()
    job = a_leased_job(world, term_ms=MINUTE)

    world.depart(connection="s1/7")
    ended = world.recover("s2")

    assert ended == 0
    assert world.state(job.job_id) is State.LEASED
    world.check()


def test_rule_02_leases_of_dead_incarnations_end_at_start_and_are_not_charged():
    world = World()
    dead = a_leased_job(world, term_ms=None, connection="s1/7")
    alive = a_leased_job(world, term_ms=None, connection="s2/1")

    ended = world.recover("s2")

    assert ended == 1
    back = world.job(dead.job_id)
    assert (back.state, back.attempts_used) == (State.READY, 0)
    assert world.reasons(dead.job_id) == ["released"]
    assert world.state(alive.job_id) is State.LEASED
    world.check()


def test_rule_02_an_incarnation_whose_name_begins_alike_is_another_one():
    world = World()
    job = a_leased_job(world, term_ms=None, connection="s10/7")

    ended = world.recover("s1")

    assert ended == 1
    assert world.state(job.job_id) is State.READY
    world.check()


# Rule 3: by what proof.


def held_by_ann(world: World):
    return a_leased_job(world, holder=a_worker("ann", "qless", "10.0.0.1"), connection="s1/7")


@pytest.mark.parametrize(
    "proof",
    [
        ByToken("token-1"),
        by_holder("ann", "qless", "somewhere else"),
        ByConnection("s1/7"),
    ],
)
def test_rule_03_token_holder_and_connection_are_each_a_proof(proof):
    world = World()
    job = held_by_ann(world)

    done = world.complete(job.job_id, proof)

    assert done.state is State.COMPLETED
    world.check()


@pytest.mark.parametrize(
    "proof",
    [
        ByToken("guessed"),
        by_holder("bob", "qless", "10.0.0.1"),
        by_holder("ann", "dwork", "10.0.0.1"),
        by_holder(None, "qless", "10.0.0.1"),
        ByConnection("s1/8"),
        ByAnyone(),
        ByAnyone("ann"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        lambda job_id, proof: Renew(job_id=job_id, proof=proof),
        lambda job_id, proof: Report(job_id=job_id, proof=proof, numerator=1, denominator=2),
        lambda job_id, proof: SendPartial(job_id=job_id, proof=proof, payload=b"x"),
        lambda job_id, proof: Complete(job_id=job_id, proof=proof),
        lambda job_id, proof: Fail(job_id=job_id, proof=proof, failure=Failure("x")),
        lambda job_id, proof: Release(job_id=job_id, proof=proof),
    ],
)
def test_rule_03_without_the_proof_the_lease_is_not_yours(proof, words):
    world = World()
    job = held_by_ann(world)

    why = world.refused(words(job.job_id, proof))

    assert why is Why.NOT_YOUR_LEASE
    assert world.job(job.job_id) == job
    world.check()


def test_rule_03_the_first_named_request_adopts_a_lease_taken_without_a_name():
    world = World()
    job = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.1"))

    adopted = world.renew(job.job_id, by_holder("ann", "qless", "10.0.0.1"))

    assert adopted.lease.holder.name == "ann"
    other = Renew(job_id=job.job_id, proof=by_holder("bob", "qless", "10.0.0.1"))
    assert world.refused(other) is Why.NOT_YOUR_LEASE
    assert world.depart(holder=a_worker("ann", "qless")) == 1
    world.check()


def test_rule_03_nobody_adopts_from_another_address():
    world = World()
    job = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.1"))
    elsewhere = by_holder("ann", "qless", "10.0.0.2")

    why = world.refused(Renew(job_id=job.job_id, proof=elsewhere))

    assert why is Why.NOT_YOUR_LEASE
    world.check()


def test_rule_03_a_nameless_worker_is_known_by_its_address():
    world = World()
    job = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.1"))

    renewed = world.renew(job.job_id, by_holder(None, "qless", "10.0.0.1"))

    assert renewed.lease.holder.name is None
    world.check()


def test_rule_03_a_refused_request_adopts_nothing():
    world = World()
    job = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.1"))
    proof = by_holder("ann", "qless", "10.0.0.1")

    world.refused(Renew(job_id=job.job_id, proof=proof, term_ms=-1))

    assert world.job(job.job_id).lease.holder.name is None
    world.check()


def test_rule_03_equal_names_of_different_realms_are_two_workers():
    world = World()
    here = a_leased_job(world, holder=a_worker("ann", "qless"))
    there = a_leased_job(world, holder=a_worker("ann", "dwork"))

    ended = world.depart(holder=a_worker("ann", "dwork"), reason=EndReason.GOODBYE)

    assert ended == 1
    assert (world.state(here.job_id), world.state(there.job_id)) == (State.LEASED, State.READY)
    world.check()


def test_rule_03_a_nameless_worker_departs_alone():
    world = World()
    here = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.1"))
    there = a_leased_job(world, holder=a_worker(None, "qless", "10.0.0.2"))

    ended = world.depart(holder=a_worker(None, "qless", "10.0.0.1"))

    assert ended == 1
    assert (world.state(here.job_id), world.state(there.job_id)) == (State.READY, State.LEASED)
    world.check()


# Rule 4: open completion.


def test_rule_04_anybody_may_complete_an_open_job_while_it_is_ready():
    world = World()
    job = world.submit(terms=TERMS["dwork"])

    done = world.complete(job.job_id, ByAnyone("somebody"))

    assert done.state is State.COMPLETED
    assert done.attempts[-1].holder.name == "somebody"
    assert world.claims_nothing()
    world.check()


def test_rule_04_anybody_may_complete_an_open_job_that_another_holds():
    world = World()
    job = a_leased_job(world, terms=TERMS["dwork"], holder=a_worker("ann", "dwork"))

    done = world.complete(job.job_id, by_holder("bob", "dwork"))

    assert (done.state, done.lease) == (State.COMPLETED, None)
    world.check()


def test_rule_04_the_first_to_complete_an_open_job_wins():
    world = World()
    job = a_leased_job(world, terms=TERMS["dwork"], holder=a_worker("ann", "dwork"))
    world.complete(job.job_id, by_holder("bob", "dwork"), result=b"bob's")

    why = world.refused(Complete(job_id=job.job_id, proof=by_holder("eve", "dwork")))

    assert why is Why.ALREADY_COMPLETED
    assert world.job(job.job_id).result == b"bob's"
    world.check()


def test_rule_04_an_open_job_is_completed_after_its_lease_was_lost():
    world = World()
    job = a_leased_job(world, terms=TERMS["dwork"], holder=a_worker("ann", "dwork"))
    world.depart(holder=a_worker("ann", "dwork"))

    done = world.complete(job.job_id, by_holder("ann", "dwork"))

    assert done.state is State.COMPLETED
    world.check()


def test_rule_04_an_open_job_is_completed_while_it_is_delayed():
    world = World()
    job = world.submit(terms=TERMS["dwork"], delay_ms=HOUR)

    done = world.complete(job.job_id, ByAnyone())

    assert (done.state, done.run_at) == (State.COMPLETED, None)
    assert world.tick(HOUR) == 0
    world.check()


def test_rule_04_a_blocked_job_cannot_be_completed_by_anybody():
    world = World()
    first = world.submit(terms=TERMS["dwork"])
    job = world.submit(terms=TERMS["dwork"], depends_on=(first.job_id,))

    why = world.refused(Complete(job_id=job.job_id, proof=ByAnyone()))

    assert why is Why.NOT_LEASED
    world.check()


def test_rule_04_only_completing_is_open():
    world = World()
    job = a_leased_job(world, terms=TERMS["dwork"], holder=a_worker("ann", "dwork"))
    stranger = by_holder("bob", "dwork")

    refusals = [
        world.refused(Fail(job_id=job.job_id, proof=stranger, failure=Failure("x"))),
        world.refused(Release(job_id=job.job_id, proof=stranger)),
        world.refused(Renew(job_id=job.job_id, proof=stranger)),
    ]

    assert set(refusals) == {Why.NOT_YOUR_LEASE}
    world.check()


def test_rule_04_jobs_of_other_fronts_are_completed_by_their_holder_only():
    world = World()
    closed = [world.submit(terms=terms) for front, terms in TERMS.items() if front != "dwork"]

    refusals = {world.refused(Complete(job_id=job.job_id, proof=ByAnyone("x"))) for job in closed}

    assert refusals == {Why.NOT_LEASED}
    world.check()


# Rule 5: two counters.


def test_rule_05_every_claim_counts_and_the_count_is_never_reset():
    world = World()
    job = world.submit()
    for _ in range(3):
        world.claim()
        world.release(job.job_id)
    world.claim()
    world.complete(job.job_id)

    world.requeue(job.job_id)
    again = world.claim()

    assert (again.lease_number, again.lease.number) == (5, 5)
    assert again.attempts_used == 0
    world.check()


@pytest.mark.parametrize("reason", [EndReason.GOODBYE, EndReason.RELEASED])
def test_rule_05_a_goodbye_is_not_charged(reason):
    world = World()
    job = a_leased_job(world, connection="s1/1")

    world.depart(connection="s1/1", reason=reason)

    back = world.job(job.job_id)
    assert (back.state, back.attempts_used, back.lease_number) == (State.READY, 0, 1)
    assert world.reasons(job.job_id) == [reason.value]
    world.check()


def test_rule_05_a_lost_connection_is_charged():
    world = World()
    job = a_leased_job(world, connection="s1/1")

    world.depart(connection="s1/1")

    back = world.job(job.job_id)
    assert (back.state, back.attempts_used) == (State.READY, 1)
    assert world.reasons(job.job_id) == ["lost"]
    world.check()


def test_rule_05_a_release_is_not_charged():
    world = World()
    job = a_leased_job(world)

    back = world.release(job.job_id)

    assert (back.state, back.attempts_used) == (State.READY, 0)
    world.check()


def test_rule_05_an_expired_lease_is_charged():
    world = World()
    job = a_leased_job(world)

    world.tick(MINUTE)

    back = world.job(job.job_id)
    assert (back.state, back.attempts_used) == (State.READY, 1)
    assert world.reasons(job.job_id) == ["expired"]
    world.check()


def test_rule_05_a_cutoff_is_charged():
    world = World()
    job = a_leased_job(world, terms=Terms(attempt_ms_max=SECOND))

    world.tick(SECOND)

    assert world.job(job.job_id).attempts_used == 1
    world.check()


def test_rule_05_a_failure_is_charged_if_it_is_retried():
    world = World()
    retried, final = a_leased_job(world), a_leased_job(world)

    world.fail(retried.job_id, retry=True)
    world.fail(final.job_id, retry=False)

    assert world.job(retried.job_id).attempts_used == 1
    assert world.job(final.job_id).attempts_used == 0
    assert world.reasons(final.job_id) == ["failed"]
    world.check()


def test_rule_05_each_lease_ends_for_one_reason():
    world = World()
    endings = {
        "completed": lambda job: world.complete(job.job_id),
        "failed": lambda job: world.fail(job.job_id),
        "released": lambda job: world.release(job.job_id),
        "goodbye": lambda _: world.depart(holder=a_worker(), reason=EndReason.GOODBYE),
        "lost": lambda _: world.depart(holder=a_worker()),
        "expired": lambda job: world.expire_lease(job.job_id),
        "cutoff": lambda _: world.tick(HOUR),
        "cancelled": lambda job: world.cancel(job.job_id),
        "moved": lambda job: world.move(job.job_id, "elsewhere"),
    }

    ended = {}
    for reason, end in endings.items():
        job = a_leased_job(world, term_ms=None, queue=reason, terms=Terms(attempt_ms_max=HOUR))
        end(job)
        ended[reason] = world.reasons(job.job_id)

    assert ended == {reason: [reason] for reason in endings}
    assert set(endings) == {reason.value for reason in EndReason}
    world.check()


def test_rule_05_a_worker_that_lost_its_lease_cannot_change_the_job():
    world = World()
    job = a_leased_job(world)
    old = world.proof_of(job.job_id)
    world.tick(MINUTE)
    world.claim(holder=a_worker("other"), term_ms=HOUR)

    why = world.refused(Complete(job_id=job.job_id, proof=old, result=b"late"))

    assert why is Why.NOT_YOUR_LEASE
    assert world.state(job.job_id) is State.LEASED
    world.check()


# Rule 6: expiry.


def test_rule_06_a_lease_expires_when_its_worker_stops_renewing():
    world = World()
    job = a_leased_job(world)
    for _ in range(5):
        world.tick(MINUTE - 1)
        world.renew(job.job_id)

    world.tick(MINUTE - 1)
    before = world.state(job.job_id)
    world.tick(1)

    assert (before, world.state(job.job_id)) == (State.LEASED, State.READY)
    world.check()


def test_rule_06_under_revoke_the_old_token_is_dead_at_once():
    world = World()
    job = a_leased_job(world)
    old = world.proof_of(job.job_id)

    world.tick(MINUTE)

    assert world.refused(Renew(job_id=job.job_id, proof=old)) is Why.NOT_LEASED
    assert world.refused(Complete(job_id=job.job_id, proof=old)) is Why.NOT_LEASED
    world.check()


def test_rule_06_under_lapse_the_holder_may_go_on_until_another_claims():
    world = World()
    job = a_leased_job(world, terms=LAPSING)
    world.tick(MINUTE)
    assert world.state(job.job_id) is State.READY

    renewed = world.renew(job.job_id)

    assert (renewed.state, renewed.attempts_used) == (State.LEASED, 0)
    assert renewed.lease_number == 1
    assert renewed.lease.expires_at == world.now + MINUTE
    assert world.claims_nothing()
    world.check()


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (lambda world, job_id: world.complete(job_id), State.COMPLETED),
        (lambda world, job_id: world.fail(job_id), State.FAILED),
        (lambda world, job_id: world.fail(job_id, retry=True), State.DELAYED),
        (lambda world, job_id: world.release(job_id), State.READY),
        (lambda world, job_id: world.report(job_id, 1, 2), State.LEASED),
        (lambda world, job_id: world.report(job_id, 1, 2, renew=False), State.READY),
    ],
)
def test_rule_06_under_lapse_a_late_holder_may_still_say_everything(words, after):
    world = World()
    job = a_leased_job(world, terms=LAPSING)
    world.tick(2 * MINUTE)

    words(world, job.job_id)

    assert world.state(job.job_id) is after
    world.check()


def test_rule_06_a_lapsed_lease_is_charged_at_the_next_claim():
    world = World()
    job = a_leased_job(world, terms=LAPSING, holder=a_worker("ann"))
    old = world.proof_of(job.job_id)
    world.tick(MINUTE)
    uncharged = world.job(job.job_id).attempts_used

    taken = world.claim(holder=a_worker("bob"), term_ms=MINUTE)

    assert (uncharged, taken.attempts_used, taken.lease_number) == (0, 1, 2)
    assert world.reasons(job.job_id) == ["expired"]
    assert [signal.lease.holder.name for signal in world.told("notice")] == ["ann"]
    assert world.refused(Complete(job_id=job.job_id, proof=old)) is Why.NOT_YOUR_LEASE
    world.check()


def test_rule_06_a_lapsed_job_goes_first():
    world = World()
    job = a_leased_job(world, terms=LAPSING)
    world.submit()
    world.tick(MINUTE)

    taken = world.claim()

    assert taken.job_id == job.job_id
    world.check()


def test_rule_06_a_lapsed_job_without_budget_fails_ten_seconds_after_expiry():
    world = World()
    terms = Terms(attempts_max=1, on_expiry=OnExpiry.LAPSE)
    job = a_leased_job(world, terms=terms)

    world.tick(MINUTE)
    lapsed = world.state(job.job_id)
    nothing = world.claims_nothing()
    world.tick(limits.LAPSE_GRACE_MS - 1)
    waiting = world.state(job.job_id)
    world.tick(1)

    assert (lapsed, nothing, waiting) == (State.READY, True, State.READY)
    ended = world.job(job.job_id)
    assert (ended.state, ended.reason) == (State.FAILED, "out_of_attempts")
    assert (ended.attempts_used, world.reasons(job.job_id)) == (1, ["expired"])
    world.check()


def test_rule_06_within_the_ten_seconds_the_last_holder_may_complete():
    world = World()
    job = a_leased_job(world, terms=Terms(attempts_max=1, on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)
    world.tick(limits.LAPSE_GRACE_MS - 1)

    done = world.complete(job.job_id)
    world.tick(HOUR)

    assert done.state is State.COMPLETED
    assert world.state(job.job_id) is State.COMPLETED
    world.check()


def test_rule_06_a_spent_job_cannot_be_claimed_by_its_id_either():
    world = World()
    job = a_leased_job(world, terms=Terms(attempts_max=1, on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)

    why = world.refused(Claim(job_id=job.job_id, holder=a_worker(), tokens=("t",)))

    assert why is Why.NOT_CLAIMABLE
    world.check()


def test_rule_06_grace_keeps_an_expired_lease_from_others():
    world = World()
    world.set_queue(grace_ms=10 * SECOND)
    job = a_leased_job(world, holder=a_worker("ann"))
    world.tick(MINUTE)
    in_grace = world.job(job.job_id)

    world.tick(10 * SECOND - 1)
    kept = world.state(job.job_id)
    world.tick(1)

    assert (in_grace.state, in_grace.lease.in_grace) == (State.LEASED, True)
    assert kept is State.LEASED
    assert world.state(job.job_id) is State.READY
    assert len(world.told("notice")) == 1
    world.check()


def test_rule_06_a_renewal_ends_the_grace_and_the_next_loss_gets_its_own():
    world = World()
    world.set_queue(grace_ms=10 * SECOND)
    job = a_leased_job(world)
    world.tick(MINUTE)
    world.renew(job.job_id)

    world.tick(MINUTE)

    again = world.job(job.job_id)
    assert (again.state, again.lease.in_grace) == (State.LEASED, True)
    assert again.lease.expires_at == world.now + 10 * SECOND
    world.check()


def test_rule_06_an_operator_may_expire_a_lease_without_grace():
    world = World()
    world.set_queue(grace_ms=10 * SECOND)
    job = a_leased_job(world, term_ms=None)

    back = world.expire_lease(job.job_id)

    assert (back.state, back.attempts_used) == (State.READY, 1)
    assert len(world.told("notice")) == 1
    world.check()


def test_rule_06_an_operator_may_expire_a_lease_that_then_lapses():
    world = World()
    job = a_leased_job(world, term_ms=None, terms=LAPSING)

    world.expire_lease(job.job_id)
    renewed = world.renew(job.job_id)

    assert (renewed.state, renewed.lease.expires_at) == (State.LEASED, None)
    world.check()


def test_rule_06_the_policy_is_the_jobs_own_then_the_queues_then_the_fronts():
    world = World()
    world.set_queue("q", on_expiry=OnExpiry.LAPSE)
    own = a_leased_job(world, queue="q", terms=Terms(on_expiry=OnExpiry.REVOKE))
    queues = a_leased_job(world, queue="q")
    fronts = a_leased_job(world, queue="r", terms=TERMS["qless"])

    world.tick(MINUTE)

    lapsed = [world.job(job.job_id).lease is not None for job in (own, queues, fronts)]
    assert lapsed == [False, True, True]
    world.check()


# Rule 7: our own standstill.


def test_rule_07_after_a_start_live_leases_are_prolonged_by_the_outage():
    world = World()
    job = a_leased_job(world)
    world.now += HOUR

    world.recover("s2", outage_ms=HOUR)
    world.tick(MINUTE - 1)

    assert world.state(job.job_id) is State.LEASED
    world.tick(1)
    assert world.state(job.job_id) is State.READY
    world.check()


def test_rule_07_after_a_stall_expiry_and_longest_attempt_are_prolonged():
    world = World()
    job = a_leased_job(world, terms=Terms(attempt_ms_max=2 * MINUTE))
    endless = a_leased_job(world, term_ms=None)
    world.now += HOUR

    count = world.prolong(HOUR)

    lease = world.job(job.job_id).lease
    assert count == 1
    assert lease.expires_at == world.now + MINUTE
    assert lease.cutoff_at == world.now + 2 * MINUTE
    assert world.job(endless.job_id) == endless
    world.check()


def test_rule_07_a_lapsed_lease_keeps_its_last_moment_over_a_stall():
    world = World()
    job = a_leased_job(world, terms=Terms(attempts_max=1, on_expiry=OnExpiry.LAPSE))
    world.tick(MINUTE)
    world.now += HOUR

    world.prolong(HOUR)
    world.tick(limits.LAPSE_GRACE_MS - 1)

    assert world.state(job.job_id) is State.READY
    world.check()


def follow_clock(world: World, step_ms: int) -> int:
    """The wall clock was set by so much."""
    jobs = [
        (job.job_id, job.run_at) for job in world.store.live.live_jobs() if job.run_at is not None
    ]
    world.now += step_ms
    return world.accepted(FollowClock(step_ms=step_ms, jobs=tuple(jobs)))


@pytest.mark.parametrize("step_ms", [-HOUR, 10 * 24 * HOUR])
def test_rule_07_delays_and_retries_have_their_length_when_the_clock_is_set(step_ms):
    world = World()
    delayed = world.submit(delay_ms=8_000)
    retried = a_leased_job(world, queue="retried", terms=Terms(backoff=Backoff(6_000, jitter=0.0)))
    world.fail(retried.job_id, retry=True)
    due_in = {job.job_id: job.run_at - world.now for job in world.store.live.live_jobs()}

    count = follow_clock(world, step_ms)

    assert count == 2
    assert {job.job_id: job.run_at - world.now for job in world.store.live.live_jobs()} == due_in
    world.tick(5_999)
    assert world.state(retried.job_id) is State.DELAYED
    world.tick(1)
    assert world.state(retried.job_id) is State.READY
    world.tick(2_000)
    assert world.state(delayed.job_id) is State.READY
    world.check()


def test_rule_07_an_instant_that_the_submitter_named_stays_when_the_clock_is_set():
    world = World()
    instant = world.now + HOUR
    named = world.submit(run_at=instant)
    overdue = world.submit(delay_ms=2 * HOUR, deadline_at=instant)

    follow_clock(world, HOUR)
    world.tick()

    assert world.state(named.job_id) is State.READY
    assert world.state(overdue.job_id) is State.FAILED
    world.check()


def test_rule_07_a_blocked_job_keeps_its_delay_when_the_clock_is_set():
    world = World()
    first = world.submit()
    blocked = world.submit(delay_ms=8_000, depends_on=(first.job_id,))

    follow_clock(world, -HOUR)

    assert world.job(blocked.job_id).run_at == world.now + 8_000
    world.check()


def test_rule_07_a_delay_that_began_after_the_step_is_left_alone():
    world = World()
    job = world.submit(delay_ms=8_000)
    before = (job.job_id, job.run_at)
    world.now -= HOUR
    world.move(job.job_id, "other", delay_ms=5_000)

    count = world.accepted(FollowClock(step_ms=-HOUR, jobs=(before,)))

    assert count == 0
    assert world.job(job.job_id).run_at == world.now + 5_000


def test_rule_07_a_rate_does_not_stand_still_when_the_clock_is_set_back():
    world = World()
    world.set_queue(rate=Rate(1, MINUTE))
    world.submit()
    world.submit()
    world.claim()

    world.now -= HOUR
    second = world.claim()

    assert second.state is State.LEASED
    assert world.store.live.queue("q").rate_started_at == world.now


# Rule 8: an answer that could not be delivered.


def test_rule_08_a_claim_that_could_not_be_delivered_is_released_and_not_charged():
    world = World()
    job = a_leased_job(world, terms=TERMS["qless"])

    back = world.release(job.job_id, ByToken("token-1"), reason=EndReason.RELEASED)

    assert (back.state, back.attempts_used, back.lease_number) == (State.READY, 0, 1)
    assert world.claim().job_id == job.job_id
    world.check()


def test_rule_04_the_holder_of_an_open_job_is_told_that_another_completed_it():
    world = World()
    job = a_leased_job(world, terms=TERMS["dwork"], holder=a_worker("ann", "dwork"))

    done = world.complete(job.job_id, by_holder("bob", "dwork"))

    assert [signal.lease.holder.name for signal in world.told("notice")] == ["ann"]
    assert [(one.holder.name, one.reason.value) for one in done.attempts] == [
        ("ann", "cancelled"),
        ("bob", "completed"),
    ]
    world.check()


def test_rule_04_whoever_completed_an_open_job_may_say_so_again():
    world = World()
    job = world.submit(terms=TERMS["dwork"])
    proof = by_holder("bob", "dwork")
    world.complete(job.job_id, proof)

    again = world.run(Complete(job_id=job.job_id, proof=proof))
    refusals = [
        world.refused(Complete(job_id=job.job_id, proof=other))
        for other in (by_holder("bob", "qless"), ByAnyone("bob"), ByConnection("s1/1"))
    ]

    assert isinstance(again, Changed)
    assert again.repeated
    assert set(refusals) == {Why.ALREADY_COMPLETED}
    world.check()
