"""The command line that all peers share: fill the queue, work on it, watch it being drained."""

import sys
from collections.abc import Callable
from time import monotonic

import tally

TEXT = "x" * 85  # with its name and the braces about 100 bytes of arguments


def main(fill: Callable[[int], None], work: Callable[[], None], left: Callable[[], int]) -> None:
    match sys.argv[1:]:
        case ["fill", count]:
            began = monotonic()
            fill(int(count))
            print(int(count) / (monotonic() - began))
        case ["work"]:
            work()
        case ["watch", count, limit]:
            print(tally.watch(int(count), left, float(limit)))
        case _:
            sys.exit(f"usage: {sys.argv[0]} fill COUNT | work | watch COUNT SECONDS")
