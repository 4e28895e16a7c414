"""Budgets and the rest between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from manyhands.engine.retry import (
    attempts_max,
    backoff_ms,
    backoff_of,
    budget_is_spent,
    on_expiry_of,
    reentry_of,
)
from manyhands.model.job import Job, State
from manyhands.model.policy import (
    DEFAULTS,
    NO_POLICY,
    Backoff,
    OnExpiry,
    QueuePolicy,
    Reentry,
    Terms,
)


def a_job(job_id: str = "a", **terms) -> Job:
    return Job(job_id=job_id, queue="q", state=State.READY, terms=Terms(**terms))


def test_the_budget_is_the_jobs_own_before_the_queues_before_the_fronts():
    policy = QueuePolicy(attempts_max=3)

    own = attempts_max(a_job(attempts_max=2), policy)
    queues = attempts_max(a_job(), policy)
    fronts = attempts_max(a_job(defaults=DEFAULTS["qless"]), NO_POLICY)

    assert (own, queues, fronts) == (2, 3, 6)


def test_a_budget_is_spent_when_so_many_attempts_were_used():
    job = a_job(attempts_max=2)

    spent = [budget_is_spent(job, NO_POLICY, used) for used in range(4)]

    assert spent == [False, False, True, True]


def test_an_unlimited_budget_is_never_spent():
    job = a_job(attempts_max=-1)

    spent = budget_is_spent(job, NO_POLICY, 10**9)

    assert not spent


def test_other_wishes_follow_the_same_order():
    policy = QueuePolicy(on_expiry=OnExpiry.LAPSE, backoff=Backoff(7))

    by_job = on_expiry_of(a_job(on_expiry=OnExpiry.REVOKE), policy)
    by_queue = on_expiry_of(a_job(), policy)
    by_front = on_expiry_of(a_job(), NO_POLICY)
    rests = [
        backoff_of(a_job(backoff=Backoff(9)), policy).first_ms,
        backoff_of(a_job(), policy).first_ms,
        backoff_of(a_job(), NO_POLICY).first_ms,
    ]
    places = [reentry_of(a_job(reentry=Reentry.FRONT)), reentry_of(a_job())]

    assert (by_job, by_queue, by_front) == (OnExpiry.REVOKE, OnExpiry.LAPSE, OnExpiry.REVOKE)
    assert rests == [9, 7, 1_000]
    assert places == [Reentry.FRONT, Reentry.TAIL]


def test_the_rest_grows_by_its_factor_up_to_its_longest():
    backoff = Backoff(first_ms=100, factor=3.0, ms_max=2_000, jitter=0.0)

    rests = [backoff_ms(a_job(), backoff, used) for used in (1, 2, 3, 4, 50)]

    assert rests == [100, 300, 900, 2_000, 2_000]


def test_the_same_job_rests_as_long_when_it_is_decided_again():
    backoff = Backoff(first_ms=10_000, jitter=0.5)

    once, again = (backoff_ms(a_job("abc"), backoff, 3) for _ in range(2))

    assert once == again


def test_jobs_that_failed_together_do_not_return_together():
    backoff = Backoff(first_ms=10_000, jitter=0.5)

    rests = {backoff_ms(a_job(f"{number:x}"), backoff, 1) for number in range(100)}

    assert len(rests) > 90


@given(
    first_ms=st.integers(0, 10**12),
    factor=st.floats(1.0, 1000.0),
    extra_ms=st.integers(0, 10**12),
    jitter=st.floats(0.0, 1.0),
    used=st.integers(0, 1_000_000),
)
def test_a_rest_lies_between_nothing_and_the_longest(first_ms, factor, extra_ms, jitter, used):
    backoff = Backoff(first_ms, factor, first_ms + extra_ms, jitter)

    rest = backoff_ms(a_job(), backoff, used)

    assert 0 <= rest <= backoff.ms_max
