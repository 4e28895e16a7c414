"""What may happen to several servers in one virtual world. A seed tells everything.

python tests/simulation/cluster_story.py [SEED] [--seeds N]
"""

import argparse
import sys
import time as real_time
import traceback
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulation.cluster_ledger import Ledger
from tests.simulation.cluster_world import Cluster, Node
from tests.simulation.simulate import silence

STEPS = 60
# When the faults are over: leases of the dead expire after a minute.
_END_SECONDS = 150.0


class Story:
    """Servers, their clients, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.world = Cluster(seed, "abcd"[: 2 + seed % 3])
        self.rng = self.world.rng
        self.ledger = Ledger(self.world)
        self.happened: Counter[str] = Counter()
        # Where a takeover is lost, so is what it made of a clock that was set.
        one_of = (("part", "fail_over"), ("set_clock",))[seed // 3 % 2]
        self._faults = [name for name in self.FAULTS if name not in one_of]

    def tell(self) -> None:
        self.world.until(self.world.is_settled)
        for _ in range(STEPS):
            self._ask()
            name = self.rng.choice(self._faults) if self.world.living() else "heal"
            if getattr(self, name)() is not False:
                self.happened[name] += 1
            if self.rng.random() < 0.3 or not self.world.living():
                self._start_again()
            self.world.run(self.rng.choice((0.02, 0.3, 1.0, 3.0)))
        self._end()

    def _ask(self) -> None:
        ledger, rng = self.ledger, self.rng
        for node in self.world.living():
            for _ in range(rng.randint(0, 3)):
                ledger.submit(node, waits=rng.random() < 0.3)
            if rng.random() < 0.5:
                ledger.submit_in_foreground(node)
            ledger.work(node, count=rng.randint(1, 4))
        if rng.random() < 0.5:
            ledger.keep_working()

    def _start_again(self) -> None:
        for name, node in list(self.world.nodes.items()):
            if not node.alive:
                self.world.start(name)

    def _end(self) -> None:
        """Left alone, everything is done by workers who are woken."""
        world, ledger = self.world, self.ledger
        if world.base.is_parted:
            self.fail_over()
        self.heal()
        self._start_again()
        world.run(30.0)
        self._start_again()  # what ended because the database had gone back
        world.until(world.is_settled, 60.0)
        ledger.keep_working()
        told = [ledger.submit(node, waits=True) for node in world.living()]
        world.until(lambda: all(job_id in ledger.submitted for job_id in told))
        world.until(lambda: not self._unfinished(), _END_SECONDS)
        world.run(2.0)
        ledger.check()
        assert ledger.submitted
        assert all(ledger.ended[job_id] == 1 for job_id in told), "somebody waits in vain"
        owner = world.owner()
        assert owner is not None
        owner.store.check_at_end()
        for node in world.living():
            node.store.check()
            assert node.store.live.counts_of("q") == owner.store.live.counts_of("q"), node.name

    def _unfinished(self) -> bool:
        rows = self.world.base.disk.rows.values()
        return any(row.job().finished_at is None for row in rows)

    # What goes wrong.

    FAULTS = (
        *("crash", "crash_in_commit", "stall", "lose_database", "cut", "cut_one_way", "break_link"),
        *("slow", "leave", "set_clock", "part", "fail_over", "nothing"),
        *("heal", "heal", "heal", "heal"),
    )

    def _one(self) -> Node:
        return self.rng.choice(self.world.living())

    def crash(self) -> None:
        self._one().crash()

    def crash_in_commit(self) -> None:
        """With something on its way."""
        node = self._one()

        def soon() -> None:
            self.world.time.after(self.rng.randint(0, 3_000), lambda: node.alive and node.crash())

        node.store.on_start = soon

    def stall(self) -> None:
        self._one().stall(self.rng.uniform(0.5, 12.0))

    def lose_database(self) -> None:
        self.world.base.is_away = True

    def cut(self) -> None:
        self.world.cut(*self.rng.sample(sorted(self.world.nodes), 2))

    def cut_one_way(self) -> None:
        one, other = self.rng.sample(sorted(self.world.nodes), 2)
        self.world.cut(one, other, both_ways=False)

    def break_link(self) -> None:
        for end in self._one().ends[-2:]:
            end.lose("the wire broke")

    def slow(self) -> None:
        self.world.slow.add(self.rng.choice(sorted(self.world.nodes)))

    def leave(self) -> None:
        node = self._one()

        def stop() -> None:
            if node.alive:
                node.member._shared.leave()
                node.crash()

        if not node.member.is_leaving:
            node.member.leave(stop)

    def set_clock(self) -> None:
        """The database's: that of all servers."""
        self.world.time.wall_ms += self.rng.choice((-1, 1)) * self.rng.randint(100, 3_600_000)

    def part(self) -> bool:
        if self.world.base.is_parted:
            return False
        self.world.base.part()
        return True

    def fail_over(self) -> bool:
        if not self.world.base.is_parted:
            return False
        self.world.base.is_away = False
        self.world.fail_over()
        return True

    def nothing(self) -> None:
        """Time goes by."""

    def heal(self) -> None:
        self.world.base.is_away = False
        self.world.heal()


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate several servers with random faults")
    parser.add_argument("seed", nargs="?", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    failed: list[int] = []
    started = real_time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        story = Story(seed)
        try:
            with silence():
                story.tell()
        except Exception:  # noqa: BLE001 - whatever it is, the seed is what counts
            failed.append(seed)
            sys.stdout.write(f"seed {seed}: {traceback.format_exc()}\n")
            sys.stdout.flush()
        total += story.happened
        total["fenced"] += story.world.fenced
        total["submitted"] += len(story.ledger.submitted)
        total["completed"] += len(story.ledger.completed)
        for why, count in story.ledger.refused.items():
            total[f"refused {why.value}"] += count
    for name, count in sorted(total.items()):
        sys.stdout.write(f"{count:8} {name}\n")
    elapsed = real_time.perf_counter() - started
    sys.stdout.write(f"{arguments.seeds} seeds, {elapsed:.0f} s; failed: {failed}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
