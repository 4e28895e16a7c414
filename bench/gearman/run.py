"""Benchmark Gearman servers side by side: gearmand in several set-ups, and manyhands.

Every cell is a fresh server on a free loopback port. All servers of a workload run one after the
other and in reversed order every other round, so that a slow minute of the machine hits all of
them; figures are medians over the rounds, and ratios are taken within a round. The load comes from
`load.c`, compiled on the spot.

    python bench/gearman/run.py --quick
    python bench/gearman/run.py --only gearmand,gearmand-t1 --workloads cycle-4,cycle-16
    python bench/gearman/run.py --only gearmand-buckets,manyhands --backlog 1000000
    python bench/gearman/run.py --before ../older-checkout --only gearmand,before,manyhands
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

REFERENCE = "gearmand"
START_LIMIT = 20.0
STOP_LIMIT = 20.0
FILL_LIMIT = 600.0
# More than this many cores busy with neither server nor generator spoils a cell.
NOISE_LIMIT = 0.15
TABLE_WIDTH = 140

Cell = dict[str, Any]


class Workload(NamedTuple):
    """What the generator does; `fill` jobs are queued before, unmeasured."""

    name: str
    about: str
    mode: str
    jobs: int
    clients: int = 0
    in_flight: int = 1
    workers: int = 0
    ahead: int = 256
    fill: int = 0
    function: str = "bench"


# gearmand's default hash tables make it slower with every queued job, so workloads that let the
# queue grow have few jobs; --backlog shows what many do.
WORKLOADS = (
    Workload("submit-1", "submit, 1 connection, 64 in flight", "submit", 20_000, 1, 64),
    Workload("submit-4", "submit, 4 connections, 16 in flight each", "submit", 20_000, 4, 16),
    Workload("submit-16", "submit, 16 connections, 16 in flight each", "submit", 20_000, 16, 16),
    Workload("drain-4", "drain, 4 workers", "drain", 20_000, workers=4, fill=20_000),
    Workload("cycle-1", "life cycle, 4 x 16 in flight, 1 worker", "cycle", 100_000, 4, 16, 1),
    Workload("cycle-4", "life cycle, 4 x 16 in flight, 4 workers", "cycle", 200_000, 4, 16, 4),
    Workload("cycle-16", "life cycle, 4 x 16 in flight, 16 workers", "cycle", 200_000, 4, 16, 16),
    Workload(
        "burst-4", "life cycle, 4 workers, queue unbounded", "cycle", 20_000, 4, 16, 4, ahead=20_000
    ),
    Workload(
        "wide-16", "life cycle, 16 x 16 in flight, 16 workers", "cycle", 200_000, 16, 16, 16, 1024
    ),
    Workload("waiting-1", "life cycle, 1 waiting client, 4 workers", "cycle", 100_000, 1, 1, 4),
    Workload("waiting-4", "life cycle, 4 waiting clients, 4 workers", "cycle", 200_000, 4, 1, 4),
    Workload("waiting-16", "life cycle, 16 waiting clients, 4 workers", "cycle", 200_000, 16, 1, 4),
    Workload("foreground-1", "foreground, 1 client, 4 workers", "foreground", 50_000, 1, 1, 4),
    Workload("foreground-32", "foreground, 32 clients, 4 workers", "foreground", 200_000, 32, 1, 4),
)


class Setup(NamedTuple):
    """How to start a server, and how to find its port once it accepts connections."""

    command: list[str]
    find_port: Callable[[], int | None]


class Server(NamedTuple):
    """A running server under test."""

    process: subprocess.Popen[bytes]
    port: int


def gearmand(*options: str) -> Callable[[Path], Setup]:
    """Sets up gearmand; ``{data}`` in an option becomes the cell's own directory."""

    def set_up(data: Path) -> Setup:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        command = ["gearmand", "-L", "127.0.0.1", "-p", str(port), "-l", str(data / "log")]
        command += [option.format(data=data) for option in options]

        def find_port() -> int | None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                return None
            return port

        return Setup(command, find_port)

    return set_up


def manyhands(data: Path) -> Setup:
    ready = data / "ready.json"
    command = [sys.executable, "-m", "manyhands", "serve", "--gearman", "127.0.0.1:0"]
    command += ["--data", str(data / "store"), "--ready-file", str(ready)]
    for other in ("http", "dwork", "wmp", "amqp"):
        command += [f"--{other}", "off"]

    def find_port() -> int | None:
        try:
            address: str = json.loads(ready.read_bytes())["gearman"]
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return int(address.rpartition(":")[2])

    return Setup(command, find_port)


def ceiling(data: Path, *journal: Path) -> Setup:
    ready = data / "port"

    def find_port() -> int | None:
        return int(ready.read_text()) if ready.exists() else None

    program = Path(__file__).with_name("ceiling.py").resolve()
    return Setup([sys.executable, str(program), str(ready), *map(str, journal)], find_port)


def durable_ceiling(data: Path) -> Setup:
    return ceiling(data, data / "journal")


SERVERS: dict[str, Callable[[Path], Setup]] = {
    "gearmand": gearmand(),
    "gearmand-t1": gearmand("-t", "1"),
    "gearmand-buckets": gearmand("--hashtable-buckets", "1000003"),
    "gearmand-sqlite": gearmand("-q", "libsqlite3", "--libsqlite3-db={data}/queue.db"),
    "ceiling": ceiling,
    "ceiling-durable": durable_ceiling,
    "manyhands": manyhands,
}


def checkout(tree: Path) -> Callable[[Path], Setup]:
    """Sets up the server of another checkout, on the same interpreter."""

    def set_up(data: Path) -> Setup:
        command, find_port = manyhands(data)
        return Setup(["env", f"PYTHONPATH={tree.resolve() / 'src'}", *command], find_port)

    return set_up


def launch(command: list[str], data: Path) -> subprocess.Popen[bytes]:
    with (data / "output").open("wb") as output:
        return subprocess.Popen(
            command, cwd=data, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def wait_for_port(
    process: subprocess.Popen[bytes], find_port: Callable[[], int | None], data: Path
) -> int:
    deadline = time.monotonic() + START_LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        port = find_port()
        if port is not None:
            return port
        time.sleep(0.02)
    lines = (data / "output").read_text(errors="replace").strip().splitlines()
    raise RuntimeError(f"did not start: {lines[-1] if lines else 'no output'}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server by its pid; kills it if it does not exit."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += [int(child) for child in children.read_text().split()]
    return pids


def cpu_seconds(*pids: int) -> float:
    """Adds up the run time of all threads of processes; finer than the clock ticks of `stat`."""
    total = 0
    for member in pids:
        for thread in Path(f"/proc/{member}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(thread.read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


def machine_seconds() -> float:
    """The CPU time that everything on this machine has used."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = (
        int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def generate(generator: Path, server: Server, workload: Workload, seconds: float) -> Cell:
    """Runs the generator once, and adds the CPU time of the server."""
    options = {
        "mode": workload.mode,
        "port": server.port,
        "jobs": workload.jobs,
        "seconds": seconds,
        "clients": workload.clients,
        "in-flight": workload.in_flight,
        "workers": workload.workers,
        "ahead": workload.ahead,
        "function": workload.function,
    }
    command = [str(generator)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    pid = server.process.pid
    memory, cpu, machine = resident_bytes(pid), cpu_seconds(*family(pid)), machine_seconds()
    main_cpu = cpu_seconds(pid)
    started = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds + START_LIMIT
    )
    elapsed = time.monotonic() - started
    cpu, main_cpu = cpu_seconds(*family(pid)) - cpu, cpu_seconds(pid) - main_cpu
    machine = machine_seconds() - machine
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"generator ended with {done.returncode}")
    cell: Cell = json.loads(done.stdout)
    if not cell["jobs"]:
        raise RuntimeError("no job was done in time")
    cell["server_cpu_us_per_job"] = cpu / cell["jobs"] * 1e6
    cell["main_cpu_us_per_job"] = main_cpu / cell["jobs"] * 1e6
    cell["server_cores"] = cpu / cell["seconds"]
    cell["generator_cores"] = cell["cpu_seconds"] / cell["seconds"]
    cell["other_cores"] = max(0.0, (machine - cpu - cell["cpu_seconds"]) / elapsed)
    cell["memory_bytes"] = resident_bytes(pid)
    if workload.mode == "submit":
        cell["memory_bytes_per_job"] = (cell["memory_bytes"] - memory) / cell["jobs"]
    return cell


@contextlib.contextmanager
def serving(name: str, root: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=root) as directory:
        data = Path(directory)
        setup = SERVERS[name](data)
        process = launch(setup.command, data)
        try:
            yield Server(process, wait_for_port(process, setup.find_port, data))
        finally:
            stop(process)


def measure(generator: Path, name: str, workload: Workload, seconds: float, root: Path) -> Cell:
    """Fills one cell with a server of its own; a failure is a result too."""
    try:
        with serving(name, root) as server:
            if workload.fill:
                fill = Workload("fill", "", "submit", workload.fill, 4, 64)
                filled = generate(generator, server, fill, seconds)
                workload = workload._replace(jobs=filled["acknowledged"])
            return generate(generator, server, workload, seconds)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}


def measure_backlog(
    generator: Path,
    name: str,
    backlog: int,
    workloads: list[Workload],
    seconds: float,
    root: Path,
) -> dict[str, Cell]:
    """Queues many jobs, then measures what they cost everything else."""
    cells: dict[str, Cell] = {}
    fill = Workload("fill", "", "submit", backlog, 4, 64)
    try:
        with serving(name, root) as server:
            cells["fill"] = generate(generator, server, fill, FILL_LIMIT)
            for workload in workloads:
                if workload.mode == "foreground":
                    # A client that waits for a job behind all of these would wait for all of them.
                    workload = workload._replace(function="aside")  # noqa: PLW2901
                cells[workload.name] = generate(generator, server, workload, seconds)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        cells["failed"] = {"error": str(error)}
    return cells


def summarise(rounds: list[dict[str, Cell]]) -> dict[str, Cell]:
    """Reduces the rounds of one workload to medians, spread and ratio for each server."""
    summary: dict[str, Cell] = {}
    for name in rounds[0]:
        good = [cells for cells in rounds if "error" not in cells[name]]
        if not good:
            summary[name] = {"error": rounds[0][name]["error"]}
            continue
        keys = [key for key, value in good[0][name].items() if isinstance(value, int | float)]
        row: Cell = {key: median(cells[name][key] for cells in good) for key in keys}
        speeds = [cells[name]["jobs_per_second"] for cells in good]
        row["slowest"], row["fastest"] = min(speeds), max(speeds)
        row["rounds"] = len(good)
        ratios = [
            cells[name]["jobs_per_second"] / cells[REFERENCE]["jobs_per_second"]
            for cells in good
            if "error" not in cells.get(REFERENCE, {"error": "not run"})
        ]
        if ratios:
            row["ratio"] = median(ratios)
        summary[name] = row
    return summary


def short(number: float) -> str:
    """A figure in about five characters, because a table with twelve columns is wide."""
    return f"{number:,.0f}" if number < 9_999.5 else f"{number / 1000:,.1f}k"


def ratio(number: float) -> str:
    return f"{number:.2f}" if number >= 0.1 else f"{number:.4f}"


def make_table(title: str, results: dict[str, dict[str, Cell]]) -> Table:
    caption = (
        f"ratio: to {REFERENCE}; CPU us: of the server, per job, and of its main process alone;"
        " cores: how many were busy"
    )
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    table.add_column("server", no_wrap=True)
    for heading in (
        "jobs/s",
        "spread",
        "ratio",
        "p50 us",
        "p99 us",
        "max ms",
        "CPU us",
        "main's",
        "cores",
        "load's",
        "others'",
        "B/job",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for workload, servers in results.items():
        for name, row in servers.items():
            if "error" in row:
                table.add_row(workload, name, "[red]failed[/red]")
                continue
            others = f"{row['other_cores']:.2f}"
            table.add_row(
                workload,
                name,
                short(row["jobs_per_second"]),
                f"{short(row['slowest'])}-{short(row['fastest'])}" if "slowest" in row else "",
                ratio(row["ratio"]) if "ratio" in row else "",
                short(row["ack_p50_us"]) if row["acknowledged"] else "",
                short(row["ack_p99_us"]) if row["acknowledged"] else "",
                f"{row['ack_max_us'] / 1000:,.1f}" if row["acknowledged"] else "",
                f"{row['server_cpu_us_per_job']:.1f}",
                f"{row['main_cpu_us_per_job']:.1f}",
                f"{row['server_cores']:.2f}",
                f"{row['generator_cores']:.2f}",
                f"[yellow]{others}[/yellow]" if row["other_cores"] > NOISE_LIMIT else others,
                f"{row['memory_bytes_per_job']:,.0f}" if "memory_bytes_per_job" in row else "",
            )
        table.add_section()
    return table


def environment() -> dict[str, Any]:
    found = shutil.which("gearmand")
    version = ""
    if found:
        version = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "gearmand": version,
    }


def compile_generator(directory: Path) -> Path:
    program = directory / "load"
    source = Path(__file__).with_name("load.c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
    return program


def chosen(text: str, known: list[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or known
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"unknown {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def chosen_workloads(arguments: argparse.Namespace) -> list[Workload]:
    wanted = chosen(arguments.workloads, [workload.name for workload in WORKLOADS], "workload")
    return [workload for workload in WORKLOADS if workload.name in wanted]


def refuse_memory_disk(root: Path) -> None:
    """Refuses a RAM disk, where figures of a durable queue would be meaningless."""
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    if done.stdout.strip() in ("tmpfs", "ramfs"):
        sys.exit(f"{root} is kept in memory; name a directory on a disk with --data-root")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="servers, with commas between")
    parser.add_argument("--workloads", default="", metavar="NAMES", help="workloads, likewise")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="longest time for one cell")
    parser.add_argument(
        "--before", type=Path, metavar="TREE", help="another checkout, as the server `before`"
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of at most 1 second")
    parser.add_argument(
        "--backlog", type=int, metavar="JOBS", help="measure with JOBS queued, once"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round here")
    parser.add_argument(
        "--data-root",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="disk for durable queues",
    )
    return parser.parse_args()


def run_rounds(
    generator: Path, arguments: argparse.Namespace, console: Console
) -> dict[str, list[dict[str, Cell]]]:
    names = chosen(arguments.only, list(SERVERS), "server")
    workloads = chosen_workloads(arguments)
    results: dict[str, list[dict[str, Cell]]] = {workload.name: [] for workload in workloads}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=arguments.rounds * len(workloads) * len(names))
        for turn in range(arguments.rounds):
            for workload in workloads:
                cells: dict[str, Cell] = {}
                for name in names if turn % 2 == 0 else reversed(names):
                    progress.update(task, description=f"round {turn + 1}: {workload.about}: {name}")
                    cells[name] = measure(
                        generator, name, workload, arguments.seconds, arguments.data_root
                    )
                    progress.advance(task)
                results[workload.name].append({name: cells[name] for name in names})
    return results


def run_backlog(
    generator: Path, arguments: argparse.Namespace, console: Console
) -> dict[str, dict[str, Cell]]:
    results: dict[str, dict[str, Cell]] = {}
    workloads = chosen_workloads(arguments)
    for name in chosen(arguments.only, list(SERVERS), "server"):
        with console.status(f"{name}: {arguments.backlog:,} jobs queued"):
            cells = measure_backlog(
                generator,
                name,
                arguments.backlog,
                workloads,
                arguments.seconds,
                arguments.data_root,
            )
        for workload, cell in cells.items():
            results.setdefault(workload, {})[name] = cell
    return results


def main() -> None:
    arguments = parse_arguments()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 2, 1.0
    if arguments.before:
        SERVERS["before"] = checkout(arguments.before)
    refuse_memory_disk(arguments.data_root)
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        generator = compile_generator(Path(directory))
        report: dict[str, Any] = {"environment": environment()}
        if arguments.backlog:
            report["backlog"] = arguments.backlog
            report["summary"] = run_backlog(generator, arguments, console)
            title = f"with {arguments.backlog:,} jobs queued"
        else:
            report["rounds"] = run_rounds(generator, arguments, console)
            report["summary"] = {
                name: summarise(rounds) for name, rounds in report["rounds"].items()
            }
            title = f"medians of {arguments.rounds} rounds"
    # Truncated figures are useless, so lines may be long on a narrow terminal or in a file.
    Console(width=max(console.width, TABLE_WIDTH)).print(make_table(title, report["summary"]))
    for workload, servers in report["summary"].items():
        for name, row in servers.items():
            if "error" in row:
                console.print(f"{workload}: {name}: {row['error']}", style="red", markup=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
