"""Several servers in one virtual world."""

import pytest

from manyhands.cluster.link import Begin
from manyhands.model.job import State
from tests.simulation.cluster_ledger import Ledger
from tests.simulation.cluster_story import Story
from tests.simulation.cluster_world import Cluster
from tests.simulation.simulate import silence


def test_one_server_decides_and_the_others_show_what_it_decided() -> None:
    world = Cluster(1)
    ledger = Ledger(world)
    world.until(world.is_settled)
    front = next(node for node in world.living() if not node.router.decides)
    ledger.submit(front)
    world.until(lambda: bool(ledger.submitted))
    job_id = next(iter(ledger.submitted))
    assert front.store.live.live_job(job_id) is not None, "whoever has the answer sees the job"
    world.run(0.1)
    for node in world.living():
        assert node.store.live.live_job(job_id) is not None
        node.store.check()


def test_a_job_is_submitted_at_one_front_and_completed_at_another() -> None:
    world = Cluster(2)
    ledger = Ledger(world)
    world.until(world.is_settled)
    one, other = (node for node in world.living() if not node.router.decides)
    ledger.submit(one)
    world.until(lambda: bool(ledger.submitted))
    ledger.work(other)
    world.until(lambda: bool(ledger.completed))
    ledger.check()


def test_a_killed_owner_is_taken_over_within_a_second_and_nothing_is_lost() -> None:
    """S21 and S31."""
    world = Cluster(3)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    front = next(node for node in world.living() if node is not owner)
    for _ in range(20):
        ledger.submit(front)
    owner.crash()
    seconds = world.until(lambda: len(ledger.submitted) == 20)
    assert seconds < 2.0
    assert not ledger.refused
    world.run(1.0)
    ledger.check()


def test_a_front_finds_back_to_the_owner_after_one_of_a_lost_past_has_announced_itself() -> None:
    """S27 and S55: where the database has gone back, two owners may have one epoch."""
    world = Cluster(5)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    front, lost = (node for node in world.living() if node is not owner)
    front.router.take(lost.ids.incarnation, lost.ends[0].send, Begin(owner.router.epoch, 0))
    front.router.lose_host(lost.ends[0].send, front.clock.monotonic_ms())
    assert not front.member.is_ready

    ledger.submit(front)
    world.until(lambda: bool(ledger.submitted), 5.0)

    assert front.router.owner == owner.ids.incarnation
    assert front.member.is_ready


def test_nobody_is_told_twice_of_the_end_of_a_job_that_he_alone_wanted() -> None:
    """Rule 22: he is told before it is on disk, and the next owner finds the job unfinished."""
    world = Cluster(6)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    here, there = (node for node in world.living() if node is not owner)
    job_id = ledger.submit_in_foreground(here)
    world.run(0.5)
    ledger.work(there)
    world.until(lambda: owner.store.live.live_job(job_id).state is State.LEASED)
    world.base.is_away = True  # so the end is not on disk
    world.until(lambda: ledger.ended[job_id] == 1)
    owner.crash()
    world.base.is_away = False

    world.until(lambda: ledger.completed[job_id] == 1)  # as its worker is told by the next one
    world.run(1.0)

    assert ledger.ended[job_id] == 1


def test_whoever_waits_hears_of_an_end_that_came_while_the_link_was_broken() -> None:
    """S47."""
    world = Cluster(7)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    here, there = (node for node in world.living() if node is not owner)
    job_id = ledger.submit(here, waits=True)
    world.until(lambda: job_id in ledger.submitted)
    world.run(0.5)
    world.cut(owner.name, here.name)
    ledger.work(there)
    world.until(lambda: ledger.completed[job_id] == 1)
    for end in here.ends:
        end.lose("the wire broke")  # and with it the news
        end.forget()
    world.heal()

    world.run(5.0)

    assert ledger.ended[job_id] == 1


def test_whoever_waits_hears_of_an_end_that_the_server_that_decided_took_with_it() -> None:
    """S31 and S47: also where it was on disk, and nobody told of it."""
    world = Cluster(8)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    here, there = (node for node in world.living() if node is not owner)
    waiting = [ledger.submit(node, waits=True) for node in (here, there)]
    world.until(lambda: all(job_id in ledger.submitted for job_id in waiting))
    world.run(0.5)
    for node in (here, there):
        world.cut(owner.name, node.name, both_ways=False)
    ledger.work(owner, count=2)
    world.until(lambda: all(ledger.completed[job_id] == 1 for job_id in waiting))
    owner.crash()
    for end in owner.ends:
        end.forget()
    world.heal()

    world.run(10.0)

    assert [ledger.ended[job_id] for job_id in waiting] == [1, 1]


def test_a_job_that_only_its_waiter_wants_outlives_the_server_that_took_it() -> None:
    """Rule 22: it was accepted before it was on disk, and its waiter is still there."""
    world = Cluster(9)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    here, there = (node for node in world.living() if node is not owner)
    world.base.is_away = True
    waiting = [ledger.submit_in_foreground(node) for node in (here, there)]
    world.until(lambda: all(job_id in ledger.answered for job_id in waiting))
    owner.crash()
    world.base.is_away = False
    world.run(10.0)

    ledger.work(there, count=2)
    world.run(5.0)

    assert [ledger.ended[job_id] for job_id in waiting] == [1, 1]


def test_a_front_that_has_seen_what_the_database_lost_ends_and_says_so() -> None:
    """S55 and S77: the server that wrote it is dead, so it is lost; whoever watches here would pass
    over as many events.
    """
    world = Cluster(11)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    fronts = [node for node in world.living() if node is not owner]
    ledger.submit(fronts[0])
    world.until(lambda: len(ledger.submitted) == 1)
    world.base.part()
    ledger.submit(fronts[0])
    world.until(lambda: len(ledger.submitted) == 2)
    world.run(0.5)
    owner.crash()
    world.fail_over()

    world.run(10.0)

    assert [node.ended for node in fronts] == [
        "the database has gone back: it ends at event 1, and 2 was acknowledged. What came after"
        " event 1 is lost. Start this server again"
    ] * 2


def test_while_a_server_loads_it_hears_nobody_who_decided_before() -> None:
    """S32: what was on its way would replace what is in the tables."""
    world = Cluster(15)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    job_id = ledger.submit(owner)
    world.until(lambda: job_id in ledger.submitted)
    loaded: list = []
    for node in world.living():
        load = node.member._shared.load
        node.member._shared.load = lambda done, node=node, load=load: load(
            lambda found: loaded.append((node, done, found))
        )
    owner.crash()
    world.until(lambda: bool(loaded))
    ((heir, done, found),) = loaded

    heir.router.take(owner.ids.incarnation, lambda _: None, Begin(owner.router.epoch, 1))
    done(found)

    assert heir.router.decides
    assert heir.store.live.live_job(job_id) is not None


def test_nobody_hears_of_an_end_before_the_next_owner_has_told_of_the_job() -> None:
    """S37 and S39: the answer to the submit is lost, and the worker is faster than it."""
    world = Cluster(14)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    heir, front = (node for node in world.living() if node is not owner)
    world.slow.add(front.name)  # so that it asks again late
    world.cut(owner.name, front.name, both_ways=False)
    job_id = ledger.submit_in_foreground(front)
    world.until(lambda: owner.store.live.live_job(job_id) is not None)
    claimed: list = []
    ledger.claim(heir, "q", 1, claimed.extend)
    world.until(lambda: bool(claimed))
    world.run(0.5)
    owner.crash()
    world.until(lambda: heir.router.decides)
    ledger.complete(heir, claimed[0])

    world.until(lambda: ledger.ended[job_id] == 1)  # the ledger looks at the order

    assert job_id in ledger.answered


def test_a_job_is_done_once_although_its_submit_goes_over_three_links() -> None:
    """S39: the owner that decided it is dead, and the link to the next one breaks at once."""
    world = Cluster(13)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    heir, front = (node for node in world.living() if node is not owner)
    world.cut(owner.name, front.name, both_ways=False)  # so it never hears the answer
    job_id = ledger.submit(front)
    world.until(lambda: owner.store.live.live_job(job_id) is not None)
    ledger.work(heir)
    world.until(lambda: ledger.completed[job_id] == 1)
    world.cut(front.name, heir.name, both_ways=False)  # nor does the next one hear of it
    owner.crash()
    world.until(lambda: front.router.owner == heir.ids.incarnation)
    for end in front.ends:
        end.lose("the wire broke")
        end.forget()
    world.heal()

    world.until(lambda: job_id in ledger.submitted)
    ledger.work(heir)
    world.run(2.0)

    assert ledger.completed[job_id] == 1
    ledger.check()


def test_a_server_that_cannot_reach_an_earlier_one_takes_nothing_over() -> None:
    """S63: the earlier one does, and goes on."""
    world = Cluster(12)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    early, late = sorted(
        (node for node in world.living() if node is not owner), key=lambda node: node.tenure
    )
    world.cut(early.name, late.name)
    for end in late.ends:
        if end.other is not None and end.other.node is early:
            end.lose("the wire broke")
            end.forget()
    world.until(lambda: not late.member.is_ready)
    early.stall(3.0)  # so that the late one is faster
    owner.crash()

    ledger.submit(early)
    world.until(lambda: bool(ledger.submitted))

    assert early.router.decides
    assert late.member.counters.takeovers == 0


# The first ones, and those that have failed once.
SEEDS = (*range(50), 1004, 1054, 3035, 5042, 5121, 5138, 5171, 9070, 20029, 30200, 30223)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_nothing_acknowledged_is_lost(seed: int) -> None:
    """S80."""
    with silence():
        Story(seed).tell()


def test_a_front_is_not_kept_busy_by_what_only_the_owner_may_decide() -> None:
    """Whatever is due: its timers were set by a clock that was set since, or nobody decides."""
    world = Cluster(4)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    front = next(node for node in world.living() if node is not owner)
    ledger.submit(front)
    ledger.claim(front, "q", 1, lambda _: None)
    world.run(0.5)
    owner.crash()
    world.base.is_away = True  # and nobody takes over
    world.time.wall_ms += 3_600_000
    front.clock.follow(3_600_000)  # as it does when it notices
    front.router.prolong(3_600_000)
    calls = 0
    call_later = front.loop.call_later

    def count(delay: float, callback):
        nonlocal calls
        calls += 1
        return call_later(delay, callback)

    front.loop.call_later = count
    world.run(5.0)
    assert 5 <= calls < 200


def test_a_clock_that_is_set_while_a_server_is_suspended_moves_its_leases() -> None:
    """S20 and S22: what it asks of itself meanwhile is not lost."""
    world = Cluster(1)
    ledger = Ledger(world)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    job_id = ledger.submit(owner)
    ledger.claim(owner, "q", 1, lambda _: None)
    world.run(0.5)
    before = _left_ms(owner, job_id)
    owner.router.suspended_ms = owner.clock.monotonic_ms()
    world.time.wall_ms -= 3_600_000
    owner.clock.follow(-3_600_000)
    owner.router.prolong(-3_600_000)
    owner.router.suspend_from(owner.clock.monotonic_ms() + 3_500)
    world.run(0.5)
    assert _left_ms(owner, job_id) == pytest.approx(before, abs=1_000)


def _left_ms(owner, job_id: str) -> int:
    """What is left of the lease of a job."""
    job = owner.store.live.live_job(job_id)
    assert job.lease is not None
    return job.lease.expires_at - owner.clock.now()


def test_a_server_whose_tenure_is_closed_does_not_call_again_and_again() -> None:
    """S67: it slept through its takeover, and the others hang up."""
    world = Cluster(10)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    sleeper = next(node for node in world.living() if node is not owner)
    calls: list[str] = []
    call = sleeper.call
    sleeper.call = lambda address, *rest: (calls.append(address), call(address, *rest))
    sleeper.member._shared.beat = lambda *_: None  # no beat of its own shows that it is closed
    world.run(0.5)
    world.base.close(sleeper.tenure)
    world.until(lambda: sleeper.tenure not in owner.member.membership.tenures)

    world.run(2.0)

    assert sleeper.alive

    assert len(calls) <= 2 * 5
