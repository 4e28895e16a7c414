"""Measures servers on PostgreSQL, beside the same on SQLite and beside queues that others have
built on PostgreSQL, all of them on one private database with its default durability.

    python bench/postgres/run.py                          # everything, about ten minutes
    python bench/postgres/run.py --rows cycles,takeover   # some of it
    python bench/postgres/run.py --rows before --before TREE   # SQLite, beside an older tree
    python bench/postgres/run.py --scale 0.1 --rounds 1   # whether it works

Rounds are interleaved; every cell is the median, with the lowest and highest. Where cores are
shared, look at the processor time of a job rather than at jobs a second.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "bench" / "python")]

import cycles  # noqa: E402
import several  # noqa: E402
import transaction  # noqa: E402
from bench_postgres import Bench  # noqa: E402

from tests.databases import database  # noqa: E402

ROWS = {
    "cycles": cycles.measure,
    "drain": several.drain,
    "takeover": several.takeover,
    "handover": several.handover,
    "transaction": transaction.measure,
    "before": cycles.measure_before,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", default=",".join(name for name in ROWS if name != "before"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    parser.add_argument("--before", type=Path, help="a tree to compare with, for `before`")
    given = parser.parse_args()
    names = given.rows.split(",")
    for name in names:
        if name not in ROWS:
            parser.error(f"{name!r} is none of {', '.join(ROWS)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="manyhands-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.environ["BENCH_TALLY"] = str(folder / "tally")
        one = stack.enter_context(database(durable=True, shared_buffers="128MB"))
        bench = Bench(one, folder, given.rounds, given.scale, given.before)
        for name in names:
            ROWS[name](bench)


if __name__ == "__main__":
    main()
