"""Several servers in one virtual world."""

import pytest

from tests.simulation.cluster_world import Cluster


def test_one_server_decides_and_the_others_show_what_it_decided() -> None:
    world = Cluster(1)
    world.until(world.is_settled)
    front = next(node for node in world.living() if not node.router.decides)
    world.ledger.submit(front)
    world.until(lambda: bool(world.ledger.submitted))
    job_id = next(iter(world.ledger.submitted))
    assert front.store.live.live_job(job_id) is not None, "whoever has the answer sees the job"
    world.run(0.1)
    for node in world.living():
        assert node.store.live.live_job(job_id) is not None
        node.store.check()


def test_a_job_is_submitted_at_one_front_and_completed_at_another() -> None:
    world = Cluster(2)
    world.until(world.is_settled)
    one, other = (node for node in world.living() if not node.router.decides)
    world.ledger.submit(one)
    world.until(lambda: bool(world.ledger.submitted))
    world.ledger.work(other)
    world.until(lambda: bool(world.ledger.completed))
    world.ledger.check()


def test_a_killed_owner_is_taken_over_within_a_second_and_nothing_is_lost() -> None:
    world = Cluster(3)
    world.until(world.is_settled)
    owner = world.owner()
    assert owner is not None
    front = next(node for node in world.living() if node is not owner)
    for _ in range(20):
        world.ledger.submit(front)
    owner.crash()
    seconds = world.until(lambda: len(world.ledger.submitted) == 20)
    assert seconds < 2.0
    assert not world.ledger.refused
    world.run(1.0)
    world.ledger.check()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_nothing_acknowledged_is_lost(  # noqa: C901, PLR0912 - one fault a case
    seed: int,
) -> None:
    world = Cluster(seed, "abcd"[: 2 + seed % 3])
    rng, ledger = world.rng, world.ledger
    world.until(world.is_settled)
    for _ in range(60):
        for node in world.living():
            for _ in range(rng.randint(0, 3)):
                ledger.submit(node)
            ledger.work(node, count=rng.randint(1, 4))
        match rng.randint(0, 12) if world.living() else None:
            case 0:
                rng.choice(world.living()).crash()
            case 1:
                rng.choice(world.living()).stall(rng.uniform(0.5, 12.0))
            case 2:
                world.base.is_away = True
            case 3:
                one, other = rng.sample(sorted(world.nodes), 2)
                world.cut(one, other)
            case 4:
                for end in rng.choice(world.living()).ends[-2:]:
                    end.lose("the wire broke")
            case 5:
                node = rng.choice(world.living())
                if not node.member.is_leaving:
                    node.member.leave(lambda node=node: _stop(node))
            case 6 | 7 | 8:
                world.base.is_away = False
                world.heal()
        if rng.random() < 0.3 or not world.living():
            for name in list(world.nodes):
                if not world.nodes[name].alive:
                    world.start(name)
        world.run(rng.choice((0.02, 0.3, 1.0, 3.0)))
    world.base.is_away = False
    world.heal()
    for name in list(world.nodes):
        if not world.nodes[name].alive:
            world.start(name)
    world.run(30.0)
    world.until(world.is_settled, 60.0)
    for _ in range(100):
        for node in world.living():
            ledger.work(node, count=8)
        world.run(0.1)
    world.run(70.0)  # leases of the dead expire
    for _ in range(60):
        for node in world.living():
            ledger.work(node, count=8)
        world.run(0.1)
    world.run(2.0)
    ledger.check()
    left = set(ledger.submitted) - set(ledger.completed)
    assert ledger.submitted
    rows = world.base.disk.rows
    assert all(rows[job_id].job().finished_at is not None for job_id in left), "work was left"


def _stop(node) -> None:
    if node.alive:
        node.member._shared.leave()
        node.crash()
