"""Benchmark pages at /ui/ with many jobs: time per page, size of a first load, cost of watching.

    python bench/ui.py                    about three minutes, with a million jobs
    python bench/ui.py --finished         a million jobs, nearly all of them finished
    python bench/ui.py --jobs 100000      a first look
    python bench/ui.py --data folder      keeps the store; the next run measures it again

Server time is what the server reports for a request (``Server-Timing``): from its head to its last
byte, including reads of the store. Beside it stands the processor time that all threads of the
server used during the request (Linux only), which is nearly the same on a busy machine. Of both,
the first column is the first request for a page, some seconds after the start. The effect of an
open page is measured as jobs per second through the native API, in turn with and without a page
that is notified of every change and reloads each time. Jobs are spread over queues and states; some
are being worked on.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote

BATCH = 5_000
QUEUES = 200
LEASES = 2_000
ROUNDS = 3
SECONDS = 4.0
COMPILED_SECONDS = 8.0  # the server compiles its templates in this time after its start
JSON = {"Content-Type": "application/json"}


class Peer:
    """One connection that stays open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=300)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ):
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, {**JSON, **(headers or {})})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:300]!r}")
        return answer, content

    def results(self, path: str, **body):
        return json.loads(self.ask("POST", f"/api/{path}", body)[1])["results"]


@contextmanager
def serving(folder: Path, data: Path) -> Iterator[tuple[str, int]]:
    ready = folder / "ready"
    command = [sys.executable, "-m", "manyhands", "serve", "--data", str(data)]
    command += ["--ready-file", str(ready), "--http", "127.0.0.1:0", "--log-level", "error"]
    command += ["--retention-count", "100000000", "--memory", "8GiB"]
    command += [
        part for name in ("gearman", "dwork", "wmp", "amqp") for part in (f"--{name}", "off")
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        yield json.loads(ready.read_text())["http"], process.pid
    finally:
        process.terminate()
        process.wait(60)


def fill(peer: Peer, count: int) -> dict[str, str]:
    """Submits this many jobs: most ready, a tenth finished or failed, some leased, delayed and
    blocked.
    """
    started = time.perf_counter()
    sample: dict[str, str] = {}
    for first in range(0, count, BATCH):
        items = []
        for number in range(first, min(first + BATCH, count)):
            item = {"queue": f"queue-{number % QUEUES}", "payload": {"number": number, "to": "ada"}}
            if number % 51 == 0:
                item["tags"] = ["marked"]
            if number % 37 == 0:
                item["delay_ms"] = 10 * 3_600_000
            items.append(item)
        peer.results("submit", items=items)
    for queue in range(QUEUES // 4):
        worker = {"queue": f"queue-{queue}", "worker": f"worker-{queue}", "term_ms": 36_000_000}
        taken = peer.results("claim", count=max(1, count // 10 // (QUEUES // 4)), **worker)
        proofs = [{"id": job["id"], "token": job["token"]} for job in taken]
        half = len(proofs) * 9 // 20
        peer.results("complete", items=[{**proof, "result": 1} for proof in proofs[:half]])
        failed = [
            {**proof, "code": f"Error{number % 7}", "message": "it broke", "retry": False}
            for number, proof in enumerate(proofs[half : 2 * half])
        ]
        peer.results("fail", items=failed)
        again = {"code": "Again", "message": "not now", "retry": True}
        peer.results("fail", items=[{**proof, **again} for proof in proofs[2 * half :]])
        sample["failed"] = proofs[half]["id"]
    for worker in range(LEASES // 20):
        claim = {"queue": f"queue-{worker % QUEUES}", "worker": f"holder-{worker}"}
        taken = peer.results("claim", count=20, term_ms=36_000_000, **claim)
        sample["leased"] = taken[0]["id"]
    print(f"filled with {count:,} jobs in {time.perf_counter() - started:.0f} s", flush=True)
    return sample


def fill_finished(peer: Peer, count: int) -> None:
    """Submits and ends this many jobs: four fifths completed, the others failed or cancelled."""
    started = time.perf_counter()
    for first in range(0, count, BATCH):
        queue = f"queue-{first // BATCH % QUEUES}"
        items = [
            {"queue": queue, "payload": {"number": number, "to": "ada"}}
            | ({"tags": ["marked"]} if number % 51 == 0 else {})
            for number in range(first, min(first + BATCH, count))
        ]
        submitted = peer.results("submit", items=items)
        peer.results("cancel", ids=[job["id"] for job in submitted[::20]])
        taken = []
        while some := peer.results("claim", queue=queue, worker="w", count=1000):
            taken += [{"id": job["id"], "token": job["token"]} for job in some]
        fifth = len(taken) // 5
        failed = [
            {**proof, "code": f"Error{number % 7}", "message": "it broke", "retry": False}
            for number, proof in enumerate(taken[:fifth])
        ]
        peer.results("fail", items=failed)
        peer.results("complete", items=[{**proof, "result": 1} for proof in taken[fifth:]])
    print(f"finished {count:,} jobs in {time.perf_counter() - started:.0f} s", flush=True)


def pages(sample: dict[str, str]) -> dict[str, str]:
    """The paths to measure, by what they show."""
    return {
        "overview": "",
        "overview, 7 days": "?range=7d",
        "queues": "queues",
        "queues by ready": "queues?sort=ready",
        "queues by oldest": "queues?sort=oldest",
        "queue": "queue?name=queue-0",
        "queue, ready": "queue?name=queue-0&tab=ready",
        "queue, leased": "queue?name=queue-0&tab=leased",
        "queue, failed": "queue?name=queue-0&tab=failed",
        "workers": "workers",
        "schedules": "schedules",
        "limits": "limits",
        "about": "about",
        "jobs": "jobs",
        "jobs, state": f"jobs?q={quote('state:failed')}",
        "jobs, queue and tag": f"jobs?q={quote('queue:queue-0 tag:marked')}",
        "job, failed": f"job/{sample['failed']}",
        "job, leased": f"job/{sample['leased']}",
        "jobs, completed": f"jobs?q={quote('state:completed')}",
        "jobs, running": f"jobs?q={quote('state:leased')}",
        "jobs, retrying": f"jobs?q={quote('is:retrying')}",
        "jobs, protocol": f"jobs?q={quote('protocol:gearman')}",
        "jobs, worker": f"jobs?q={quote('worker:holder-1')}",
        "jobs, age": f"jobs?q={quote('age>7d')}",
        "jobs, text": f"jobs?q={quote('nowhere')}",
        "queue, completed": "queue?name=queue-0&tab=completed",
        "queue, cancelled": "queue?name=queue-0&tab=cancelled",
        "failures of a queue": "failures?queue=queue-0",
        "failures, latest": "failures?order=latest",
        "find": "find?q=nowhere",
        "worker": "worker?realm=native&name=holder-1",
        "operations": "bulk",
        "audit": "audit",
        "failures": "failures",
        "events": "events",
    }


def server_ms(peer: Peer, path: str) -> float | None:
    """The server time of one request; None if there is no such page."""
    peer.connection.request("GET", f"/ui/{path}", headers={"Accept-Encoding": "gzip"})
    answer = peer.connection.getresponse()
    answer.read()
    if answer.status == 404:
        return None
    timing = re.fullmatch(r"total;dur=([\d.]+)", answer.headers["server-timing"])
    assert timing is not None
    return float(timing[1])


def processor_ms(pid: int) -> float:
    """What all threads of a process have used of the processors; 0 where that is not known."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(thread.read_text().split()[0])
        except OSError:  # it has ended meanwhile
            continue
    return spent / 1e6


def time_pages(peer: Peer, pid: int, sample: dict[str, str], rounds: int) -> None:
    print(f"\n{'':24}{'server time, ms':^30}{'processor time, ms':^30}")
    heads = "".join(f"{word:>10}" for word in ("first", "median", "worst") * 2)
    print(f"{'page':24}{heads}")
    for name, path in pages(sample).items():
        times: list[tuple[float, float]] = []
        for _ in range(rounds):
            before = processor_ms(pid)
            found = server_ms(peer, path)
            if found is not None:
                times.append((found, processor_ms(pid) - before))
        if not times:
            print(f"{name:24}{'not there':>30}")
            continue
        line = ""
        for column in zip(*times, strict=True):
            later = sorted(column[1:] or column)
            line += f"{column[0]:10.1f}{median(later):10.1f}{later[-1]:10.1f}"
        print(f"{name:24}{line}", flush=True)


def first_load(peer: Peer) -> None:
    print(f"\n{'first load':24}{'files':>10}{'bytes':>10}   gzipped")
    for path in ("", "queues", "jobs"):
        peer.connection.request("GET", f"/ui/{path}", headers={"Accept-Encoding": "gzip"})
        answer = peer.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            continue
        plain = peer.ask("GET", f"/ui/{path}")[1].decode()
        files = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', plain)
        packed = {"Accept-Encoding": "gzip"}
        sizes = [len(body), *(len(peer.ask("GET", file, headers=packed)[1]) for file in files)]
        print(f"/ui/{path:20}{len(sizes):10}{sum(sizes):10,}")


def throughput(address: str, seconds: float) -> float:
    """Jobs per second: submitted, claimed and completed in hundreds."""
    peer = Peer(address)
    count = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        peer.results("submit", items=[{"queue": "hot", "payload": number} for number in range(100)])
        taken = peer.results("claim", queue="hot", worker="w", count=100)
        done = [{"id": job["id"], "token": job["token"]} for job in taken]
        peer.results("complete", items=done)
        count += len(done)
    return count / (time.perf_counter() - started)


class Watcher:
    """An open page: reloads whenever it is notified of a change, and no faster."""

    def __init__(self, address: str, path: str) -> None:
        self._address = address
        self._path = path
        self._over = False
        self.fetched = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        peer, stream = Peer(self._address), Peer(self._address)
        stream.connection.request("GET", "/ui/live?topic=any")
        lines = stream.connection.getresponse()
        while not self._over:
            if lines.readline().startswith(b"event: change"):
                peer.ask("GET", f"/ui/{self._path}", headers={"HX-Request": "true"})
                self.fetched += 1

    def close(self) -> None:
        self._over = True


def watched(address: str, rounds: int, seconds: float) -> None:
    print(
        f"\n{'open page':24}{'without':>10}{'with':>10}{'ratio':>8}{'fetches':>10}   jobs a second"
    )
    for name, path in (("overview", ""), ("queues", "queues"), ("queue", "queue?name=hot")):
        ratios, without, with_page, fetched = [], [], [], 0
        for _ in range(rounds):
            before = throughput(address, seconds)
            watcher = Watcher(address, path)
            during = throughput(address, seconds)
            watcher.close()
            fetched += watcher.fetched
            after = throughput(address, seconds)
            base = (before + after) / 2
            without.append(base)
            with_page.append(during)
            ratios.append(during / base)
        print(
            f"{name:24}{median(without):10,.0f}{median(with_page):10,.0f}{median(ratios):8.3f}"
            f"{fetched / rounds:10.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--finished", action="store_true", help="nearly all jobs have finished")
    parser.add_argument("--data", type=Path, help="keep the store here, and use one that is there")
    parser.add_argument("--no-load", action="store_true", help="leave out the open page's cost")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder), options.data or Path(folder) / "data")


def measure(options: argparse.Namespace, folder: Path, data: Path) -> None:
    kept = data / "bench-sample.json"
    with serving(folder, data) as (address, pid):
        peer = Peer(address)
        if kept.exists():
            sample = json.loads(kept.read_text())
        else:
            if options.finished:
                fill_finished(peer, options.jobs)
            sample = fill(
                peer, max(BATCH, options.jobs // 100) if options.finished else options.jobs
            )
            kept.write_text(json.dumps(sample))
        time.sleep(COMPILED_SECONDS)
        time_pages(peer, pid, sample, options.rounds)
        first_load(peer)
        if not options.no_load:
            watched(address, ROUNDS, SECONDS)


if __name__ == "__main__":
    main()
