"""Benchmark AMQP: a delivery by the endpoint, a confirmed publish by the relay beside aio-pika's
in the same run, and the speed of the engine while watchers read, or have stopped reading.

    python bench/amqp/run.py                            about ten minutes
    python bench/amqp/run.py --cycles-only --rounds 9
    python bench/amqp/run.py --rounds 1 --jobs 1000 --cycle-jobs 3000     to see that it runs

Needs Debian's rabbitmq-server and a C compiler; starts a RabbitMQ of its own.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import pika  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.gearman import run as gearman  # noqa: E402
from tests.amqp.rabbit import Rabbit  # noqa: E402
from tests.amqp.watching import EXCHANGES, bind_all, run_jobs, until  # noqa: E402
from tests.e2e.serving import Served, serving  # noqa: E402

HERE = Path(__file__).parent
ENDPOINT = ("--amqp", "127.0.0.1:0")
CYCLE = gearman.Workload("cycle-4", "life cycle", "cycle", 30_000, 4, 16, 4)
STOPPED = "1 watcher that does not read"
WATCHERS = {"no watcher": 0, "1 watcher": 1, "10 watchers": 10, STOPPED: 1, "relay": 0}
KINDS = tuple(WATCHERS)
PUBLISHERS = ("relay", "aio-pika")
CONFIRMED = "{}, confirmed publish"


@contextlib.contextmanager
def watchers(served: Served, number: int, count: int, *more: str) -> Iterator[list]:
    command = [sys.executable, str(HERE / "watcher.py"), str(served.addresses["amqp"]), str(count)]
    started = [
        subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_in_thousands(served: Served, count: int) -> None:
    for start in range(0, count, 1_000):
        run_jobs(served, "work", min(1_000, count - start))


def measure_deliveries(folder: Path, jobs: int, number: int, ack_every: int) -> list[float]:
    """Replays an existing log, with nothing else going on."""
    with serving(folder, *ENDPOINT) as served:
        run_in_thousands(served, jobs)
        count = jobs * 3
        pid = served.process.pid
        cpu, started = gearman.cpu_seconds(pid), time.perf_counter()
        with watchers(served, number, count, "first", str(ack_every)) as running:
            for process in running:
                assert process.stdout is not None
                assert int(process.stdout.readline()) == count
        elapsed = time.perf_counter() - started
        spent = gearman.cpu_seconds(pid) - cpu
    return [spent / (count * number) * 1e6, count * number / elapsed]


def measure_relay(folder: Path, jobs: int, rabbit: Rabbit) -> list[float]:
    with serving(folder) as served:
        run_in_thousands(served, jobs)
    with pika.BlockingConnection(pika.URLParameters(rabbit.url)) as connection:
        channel = connection.channel()
        channel.queue_delete("bench")
        bind_all(channel, "bench", durable=True)
        arguments = ("--amqp-relay", rabbit.url, "--amqp-relay-from", "earliest")
        with serving(folder, *arguments) as served:
            cpu, started = gearman.cpu_seconds(served.process.pid), time.perf_counter()
            first = channel.queue_declare("bench", passive=True).method.message_count
            wanted = jobs * 3

            def is_there() -> bool:
                return channel.queue_declare("bench", passive=True).method.message_count >= wanted

            until(is_there, "not all messages came")
            elapsed = time.perf_counter() - started
            spent = gearman.cpu_seconds(served.process.pid) - cpu
        channel.queue_delete("bench")
    return [spent / (wanted - first) * 1e6, (wanted - first) / elapsed]


def measure_aio_pika(jobs: int, rabbit: Rabbit) -> list[float]:
    with pika.BlockingConnection(pika.URLParameters(rabbit.url)) as connection:
        channel = connection.channel()
        bind_all(channel, "bench", durable=True)
        done = subprocess.run(
            [sys.executable, str(HERE / "publish.py"), rabbit.url, str(jobs * 3)],
            check=True,
            capture_output=True,
            text=True,
        )
        channel.queue_delete("bench")
    return json.loads(done.stdout)


def measure_cycle(
    root: Path, generator: Path, rabbit: Rabbit, kind: str, work: gearman.Workload
) -> list[float]:
    with tempfile.TemporaryDirectory(dir=root) as folder:
        arguments = ["--gearman", "127.0.0.1:0", "--http", "off", *ENDPOINT]
        if kind == "relay":
            arguments += ["--amqp-relay", rabbit.url]
        with serving(Path(folder), *arguments) as served:
            port = int(str(served.addresses["gearman"]).rpartition(":")[2])
            server = gearman.Server(served.process, port)
            # A watcher that does not read cannot acknowledge, so only its socket holds it back.
            count, ack_every = (0, "0") if kind == STOPPED else (10**9, "500")
            with watchers(served, WATCHERS[kind], count, "next", ack_every):
                cell = gearman.generate(generator, server, work, 60.0)
    return [cell["server_cpu_us_per_job"], cell["jobs_per_second"]]


class Cells:
    """Figures by what was measured, round by round."""

    def __init__(self) -> None:
        self.found: dict[str, list[list[float]]] = {}

    def add(self, what: str, cell: list[float]) -> None:
        self.found.setdefault(what, []).append(cell)
        print(what, *(f"{figure:.1f}" for figure in cell), file=sys.stderr, flush=True)

    def show(self) -> None:
        table = Table(
            "what", title="medians over rounds, with least and most", title_justify="left"
        )
        for title in ("CPU µs", "a second", "of no watcher, a second", "of no watcher, CPU"):
            table.add_column(title, justify="right")
        base = self.found.get(f"{CYCLE.about}, {KINDS[0]}", [])
        for what, cells in self.found.items():
            row = [
                what,
                spread([c[0] for c in cells], ".1f"),
                spread([c[1] for c in cells], ",.0f"),
            ]
            if what.startswith(CYCLE.about):
                # Within a round, so that a slow minute of the machine hits both.
                pairs = list(zip(cells, base, strict=True))
                row.append(spread([cell[1] / other[1] for cell, other in pairs], ".2f"))
                row.append(spread([cell[0] / other[0] for cell, other in pairs], ".2f"))
            table.add_row(*row)
        console = Console(width=140)
        console.print(table)
        ours, theirs = (self.found.get(CONFIRMED.format(name), []) for name in PUBLISHERS)
        if ours and theirs:
            ratios = [their[0] / our[0] for our, their in zip(ours, theirs, strict=True)]
            console.print(
                "aio-pika's CPU for a confirmed publish, as a multiple of the relay's:",
                spread(ratios, ".1f"),
            )


def spread(figures: list[float], form: str) -> str:
    return f"{median(figures):{form}} ({min(figures):{form}} to {max(figures):{form}})"


def measure_round(cells: Cells, root: Path, number: int, jobs: int, rabbit: Rabbit) -> None:
    """Measures the publishers side by side, in an order that changes from round to round."""
    for watching, ack_every in ((1, 0), (1, 1), (1, 100), (10, 100)):
        acks = f"acks by {ack_every}" if ack_every else "no acks"
        with tempfile.TemporaryDirectory(dir=root) as folder:
            cell = measure_deliveries(Path(folder), jobs, watching, ack_every)
        cells.add(f"delivery, {watching} watchers, {acks}", cell)
    for publisher in PUBLISHERS if number % 2 == 0 else PUBLISHERS[::-1]:
        if publisher == "aio-pika":
            cell = measure_aio_pika(jobs, rabbit)
        else:
            with tempfile.TemporaryDirectory(dir=root) as folder:
                cell = measure_relay(Path(folder), jobs, rabbit)
        cells.add(CONFIRMED.format(publisher), cell)


def measure_cycles(
    cells: Cells,
    root: Path,
    number: int,
    generator: Path,
    rabbit: Rabbit,
    work: gearman.Workload,
) -> None:
    """Measures what watchers cost the engine: each kind once per round, starting with another one
    each time.
    """
    first = number % len(KINDS)
    found = {
        kind: measure_cycle(root, generator, rabbit, kind, work)
        for kind in (*KINDS[first:], *KINDS[:first])
    }
    for kind in KINDS:
        cells.add(f"{CYCLE.about}, {kind}", found[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=6_000, help="three messages each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycle-jobs", type=int, default=CYCLE.jobs, help="of one life cycle run")
    parser.add_argument("--cycles-only", action="store_true", help="only the cost for the engine")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    work = CYCLE._replace(jobs=options.cycle_jobs)
    cells = Cells()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rabbit = Rabbit(root / "rabbit")
        rabbit.start()
        try:
            with pika.BlockingConnection(pika.URLParameters(rabbit.url)) as connection:
                for exchange in EXCHANGES:
                    connection.channel().exchange_declare(exchange, "topic", durable=True)
            generator = gearman.compile_generator(root)
            for number in range(options.rounds):
                if not options.cycles_only:
                    measure_round(cells, root, number, options.jobs, rabbit)
                measure_cycles(cells, root, number, generator, rabbit, work)
        finally:
            rabbit.stop()
    if options.json is not None:
        options.json.write_text(json.dumps(cells.found, indent=1))
    cells.show()


if __name__ == "__main__":
    main()
