"""Benchmark the engine and its index without a store: microseconds per decision.

python bench/engine.py
"""

import argparse
import json
import time
from collections.abc import Callable

from manyhands.engine.decide import decide
from manyhands.model.commands import ByConnection, Claim, Command, Complete, NewJob, Submit
from manyhands.model.job import Holder
from manyhands.model.policy import TERMS
from manyhands.model.replies import Claimed, Reply
from manyhands.store.collector import Collector

NOW = 1_760_000_000_000
HOLDER = Holder("gearman", "worker-1", "127.0.0.1")
PROOF = ByConnection("server/1")
TOKEN = "0" * 32


def measure(count: int) -> tuple[float, float, float]:
    """Microseconds for one submit, one claim and one completion, decided and taken in."""
    collector = Collector(lambda _: None)
    index = collector.index

    def run(command: Command) -> Reply:
        reply, effects = decide(command, index, NOW)
        collector.write(effects)
        return reply

    def submit(number: int) -> None:
        item = NewJob(
            job_id=f"{number:032x}",
            queue="resize",
            payload=b"x" * 100,
            terms=TERMS["gearman"],
            unique_key=b"%d" % number,
        )
        run(Submit((item,)))

    claimed: list[str] = []

    def claim(_: int) -> None:
        command = Claim(queues=("resize",), holder=HOLDER, tokens=(TOKEN,), connection="server/1")
        reply = run(command)
        assert isinstance(reply, Claimed)
        claimed.append(reply.jobs[0].job_id)

    def complete(number: int) -> None:
        job_id = claimed[number]
        run(Complete(job_id=job_id, proof=PROOF, result=b"y"))
        index.forget(index.live_job(job_id))

    return _timed(submit, count), _timed(claim, count), _timed(complete, count)


def _timed(step: Callable[[int], None], count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        step(number)
    return (time.perf_counter() - started) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # The best round is the least disturbed one; the work is the same in each.
    rounds = [measure(options.jobs) for _ in range(options.rounds)]
    submit, claim, complete = (min(column) for column in zip(*rounds, strict=True))
    figures = {
        "submit_us": round(submit, 2),
        "claim_us": round(claim, 2),
        "complete_us": round(complete, 2),
        "life_cycle_us": round(submit + claim + complete, 2),
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:16} {figure:7.2f}")


if __name__ == "__main__":
    main()
