"""Benchmark a dwork life cycle in the server process without a socket: message to message.

    python bench/dwork/session.py

Steals and completes go through the real session, dispatcher, engine, index and packing of rows;
only ZeroMQ and the writer are left out. CPU time, so that a busy machine matters little.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.job import Holder, Job, State
from manyhands.protocols.dwork.codec import Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode
from manyhands.protocols.dwork.session import DworkSession, Settings

WORKERS = 8


def _beside(path: str) -> Any:  # noqa: ANN401 - a script, not a package
    spec = importlib.util.spec_from_file_location(path, Path(__file__).parent.parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_gearman = _beside("gearman/session.py")  # its store and its loop


class Hub:
    """An endpoint without a socket."""

    draining = False

    def __init__(self, dispatcher: Dispatcher, ids: Ids, clock: Clock) -> None:
        self.ask = dispatcher.ask
        self.now = clock.now
        self.token = ids.token
        self.sent: list[tuple[tuple[bytes, ...], bytes, Callable[[], None] | None]] = []
        self._ids = ids
        self._index = dispatcher.store.live

    def send(
        self, route: tuple[bytes, ...], body: bytes, undelivered: Callable[[], None] | None
    ) -> None:
        self.sent.append((route, body, undelivered))

    send_alone = send

    def job_id(self) -> str:
        return self._ids.job_id(self.now())

    def counts(self, queue: str) -> Mapping[State, int] | None:
        known = self._index.queues.get(queue)
        return known.counts if known is not None else None

    def leased_ids(self, holder: Holder) -> Sequence[Job]:
        return self._index.leased_by_holder(holder)


def measure(count: int, n: int) -> tuple[float, float, float]:
    """Microseconds of CPU per task: create, steal, complete, each with its answer. Workers keep in
    step, so that a commit has as many completions as there are workers.
    """
    clock, ids, loop, store = Clock(), Ids(), _gearman.Loop(), _gearman.Store()
    dispatcher = Dispatcher(store, clock, loop)
    hub = Hub(dispatcher, ids, clock)
    session = DworkSession(hub, Settings(queue="dwork"))  # type: ignore[arg-type]
    routes = [(b"w%d" % number, b"") for number in range(WORKERS)]
    steals = [
        encode(Query(kind=Kind.STEAL, n=n, location=f"w{number}")) for number in range(WORKERS)
    ]
    create_s: list[float] = []
    steal_s: list[float] = []
    complete_s: list[float] = []
    for first in range(0, count, 1000):
        tasks = tuple(Task(name=f"t{i:07}", origin="bench") for i in range(first, first + 1000))
        body = encode(Query(kind=Kind.CREATE, tasks=tasks))
        began = time.process_time()
        session.receive([*routes[0], body])
        loop.turn()
        create_s.append(time.process_time() - began)
    hub.sent.clear()
    for _ in range(count // (n * WORKERS)):
        began = time.process_time()
        for route, steal in zip(routes, steals, strict=True):
            session.receive([*route, steal])
        steal_s.append(time.process_time() - began)
        assert len(hub.sent) == WORKERS, "a steal was not answered at once"
        bodies = [
            encode(
                Query(
                    kind=Kind.COMPLETE,
                    tasks=tuple(Task(name=t.name, origin="bench") for t in decode(reply).tasks),
                    location=f"w{number}",
                )
            )
            for number, (_, reply, _) in enumerate(hub.sent)
        ]
        hub.sent.clear()
        began = time.process_time()
        for route, body in zip(routes, bodies, strict=True):
            session.receive([*route, body])
        loop.turn()
        complete_s.append(time.process_time() - began)
        assert len(hub.sent) == WORKERS
        hub.sent.clear()
    each = n * WORKERS
    return _usual(create_s, 1000), _usual(steal_s, each), _usual(complete_s, each)


def _usual(seconds: list[float], each: int) -> float:
    """Microseconds per task in an undisturbed turn, because other programs may use the
    machine too.
    """
    return sorted(seconds)[len(seconds) // 10] / each * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=16_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {}
    for n in (1, 100):
        rounds = [measure(options.tasks, n) for _ in range(options.rounds)]
        create, steal, complete = (min(column) for column in zip(*rounds, strict=True))
        if n == 1:
            figures["create by 1,000"] = round(create, 2)
        figures[f"steal n={n}"] = round(steal, 2)
        figures[f"complete n={n}"] = round(complete, 2)
    if options.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:16} {figure:7.2f} µs a task")


if __name__ == "__main__":
    main()
