"""Runs all benchmarks of the server itself, one after the other: engine, store, dispatcher.

    python bench/run.py           about five minutes
    python bench/run.py --quick   with 100,000 jobs instead of a million

The comparison with other servers is ``bench/gearman/run.py``. Close other programs first: on two
cores they would affect the figures.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    large = "100000" if options.quick else "1000000"
    for title, arguments in (
        ("engine alone, microseconds", ["engine.py"]),
        ("store alone", ["store.py", "--jobs", large]),
        ("dispatcher, durable", ["dispatcher.py", "--backlog", large]),
    ):
        print(f"\n== {title}", flush=True)
        subprocess.run([sys.executable, str(HERE / arguments[0]), *arguments[1:]], check=True)


if __name__ == "__main__":
    main()
