"""Measures Python workers, ours and others', and prints ratios.

    python bench/python/run.py                                        # everything, 5 rounds
    python bench/python/run.py --workloads drain,submit --peers ours,pgqueuer --rounds 3
    python bench/python/run.py --peers ours --scale 0.01 --rounds 1   # whether it works

Every peer is really installed, into environments of the benchmark's own, and really started, with
PostgreSQL and Redis of its own. Rounds are interleaved; every cell is the median, with the lowest
and highest. A job is a no-op with 100 bytes of arguments. For the peers that need them there have
to be `postgresql` and `redis-server`; what is measured is the `manyhands` that runs this file.
"""

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import services
from peers import HERE, PEERS, POSTGRES, REDIS, interpreter
from workloads import OURS_ALONE, WORKLOADS, Bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    parser.add_argument("--environments", type=Path, default=HERE / ".environments")
    given = parser.parse_args()
    names = given.peers.split(",")
    chosen = given.workloads.split(",")
    for name, known in [
        *((each, PEERS) for each in names),
        *((each, WORKLOADS) for each in chosen),
    ]:
        if name not in known:
            parser.error(f"{name!r} is none of {', '.join(known)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pythons = {name: interpreter(PEERS[name].requirements, given.environments) for name in names}
    folder = Path(tempfile.mkdtemp(prefix="manyhands-bench-"))
    os.environ["BENCH_FOLDER"] = str(folder)
    os.environ["BENCH_TALLY"] = str(folder / "tally")
    needed = {PEERS[name].needs for name in names}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url, gearman = stack.enter_context(services.manyhands(folder))
        os.environ["BENCH_URL"] = url
        if POSTGRES in needed:
            os.environ["BENCH_POSTGRES"] = stack.enter_context(services.postgres(folder))
        if REDIS in needed:
            os.environ["BENCH_REDIS"] = stack.enter_context(services.redis(folder))
        bench = Bench(pythons, given.rounds, given.scale, gearman)
        for name in chosen:
            if name in OURS_ALONE and "ours" not in names:
                continue
            print(f"{name}: {WORKLOADS[name].__doc__}", flush=True)
            WORKLOADS[name](bench)


if __name__ == "__main__":
    main()
