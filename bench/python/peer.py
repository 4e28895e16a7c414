"""The command line that all peers share: fill the queue, work on it, watch it being drained; and,
where a peer has it, submit one at a time, and await results.
"""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, perf_counter

import tally

TEXT = "x" * 85  # with its name and the braces about 100 bytes of arguments
ASKERS = 32  # threads that await results at a given rate
LONE_PAUSE_SECONDS = 0.01


def main(
    fill: Callable[[int], None],
    work: Callable[[], None],
    left: Callable[[], int],
    one: Callable[[], object] | None = None,
    results: Callable[[int], object] | None = None,
    lone: Callable[[], float] | None = None,
) -> None:
    """``one`` submits a job and returns it, with a ``result()``, once it is accepted; ``results``
    submits many as the peer does it best, and awaits the result of each; ``lone`` gives the
    milliseconds until an idle worker starts a job.
    """
    match sys.argv[1:]:
        case ["fill", count]:
            began = monotonic()
            fill(int(count))
            print(int(count) / (monotonic() - began))
        case ["work"]:
            work()
        case ["watch", count, limit]:
            print(tally.watch(int(count), left, float(limit)))
        case ["one", count, threads] if one is not None:
            print(_one_at_a_time(one, int(count), int(threads)))
        case ["results", count] if results is not None and one is not None:
            one().result()  # the workers are there
            began = monotonic()
            results(int(count))
            print(int(count) / (monotonic() - began))
        case ["latency", count, rate] if one is not None:
            one().result()
            print(*_latencies(one, int(count), float(rate)))
        case ["lone", count] if lone is not None:
            lone()
            print(*_apart(lone, int(count)))
        case _:
            sys.exit(f"{sys.argv[0]} cannot do {' '.join(sys.argv[1:])}")


def _one_at_a_time(one: Callable[[], object], count: int, threads: int) -> float:
    """Jobs a second: each thread waits for one to be accepted before it submits the next."""
    one()  # there is a connection

    def submit() -> None:
        for _ in range(count // threads):
            one()

    submitters = [threading.Thread(target=submit) for _ in range(threads)]
    began = monotonic()
    for each in submitters:
        each.start()
    for each in submitters:
        each.join()
    return count // threads * threads / (monotonic() - began)


def _apart(lone: Callable[[], float], count: int) -> list[float]:
    """One after the other, with a pause in which the worker falls asleep."""
    found = []
    for _ in range(count):
        time.sleep(LONE_PAUSE_SECONDS)
        found.append(lone())
    return found


def _latencies(one: Callable[[], object], count: int, rate: float) -> list[float]:
    """Milliseconds from each submit to its result, at a steady rate, however slow the answers."""
    found: list[float] = []

    def ask() -> None:
        began = perf_counter()
        one().result()
        found.append((perf_counter() - began) * 1000)

    with ThreadPoolExecutor(ASKERS) as pool:
        began = monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - monotonic()))
            pool.submit(ask)
    return found
