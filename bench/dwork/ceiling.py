"""The ceiling: a minimal dwork server in Python. Memory only, one socket, one loop.

Nothing is checked and nothing can be read back; it exists to be compared with a server that does
both. It binds a free port and writes its address into FILE.

    python bench/dwork/ceiling.py FILE            in memory
    python bench/dwork/ceiling.py FILE JOURNAL    changes of tasks are synced to JOURNAL before
                                                  they are answered; steals do not wait
"""

import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

import zmq

from manyhands.protocols.dwork.codec import BARE, Kind
from manyhands.protocols.dwork.reader import QueryMsg

JOURNAL_BYTES: Final = 64 << 20


class Graph:
    """Tasks by name: how many predecessors are left, and the successors."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.after: dict[str, list[str]] = {}
        self.ready: deque[str] = deque()

    def create(self, task: Any) -> None:  # noqa: ANN401 - a protobuf message
        name = task.name
        count = 0
        for dep in task.pred:
            if dep.name in self.left:
                self.after.setdefault(dep.name, []).append(name)
                count += 1
        self.left[name] = count
        if not count:
            self.ready.append(name)

    def complete(self, name: str) -> None:
        if self.left.pop(name, None) is None:
            return
        for other in self.after.pop(name, ()):
            self.left[other] -= 1
            if not self.left[other]:
                self.ready.appendleft(other)


def answer(graph: Graph, body: bytes) -> bytes:
    query = QueryMsg.FromString(body)
    if query.type == Kind.STEAL:
        if not graph.ready:
            return BARE[Kind.NOT_FOUND if graph.left else Kind.EXIT]
        reply = QueryMsg(type=Kind.TRANSFER)
        for _ in range(min(query.n if query.HasField("n") else 1, len(graph.ready))):
            task = reply.task.add(name=graph.ready.popleft(), origin="hub")
            task.log.add(state=1, time=0)
        return bytes(reply.SerializeToString())
    if query.type == Kind.COMPLETE:
        for task in query.task:
            graph.complete(task.name)
    elif query.type == Kind.CREATE:
        for task in query.task:
            graph.create(task)
    return BARE[Kind.OK]


class Journal:
    """Writes round and round in a preallocated file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(self._file, bytes(JOURNAL_BYTES))
        os.fsync(self._file)
        self._at = 0

    def sync(self, data: bytes) -> None:
        if self._at + len(data) > JOURNAL_BYTES:
            self._at = 0
        os.pwrite(self._file, data, self._at)
        self._at += len(data)
        os.fdatasync(self._file)


def serve(router: Any) -> None:  # noqa: ANN401 - a pyzmq socket
    graph = Graph()
    while True:
        *route, body = router.recv_multipart()
        router.send_multipart([*route, answer(graph, body)])


def serve_durable(router: Any, journal: Journal) -> None:  # noqa: ANN401 - a pyzmq socket
    """Serves requests; all that have arrived share one sync."""
    graph = Graph()
    rows: list[bytes] = []
    waiting: list[list[bytes]] = []
    while True:
        try:
            *route, body = router.recv_multipart(zmq.NOBLOCK if waiting else 0)
        except zmq.Again:
            journal.sync(b"".join(rows))
            for message in waiting:
                router.send_multipart(message)
            rows.clear()
            waiting.clear()
            continue
        reply = answer(graph, body)
        rows.append(body)
        if reply is BARE[Kind.OK]:
            waiting.append([*route, reply])
        else:
            router.send_multipart([*route, reply])


def main(file: Path, journal: Path | None = None) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    kept = None if journal is None else Journal(journal)
    draft = file.with_suffix(".part")
    draft.write_text(f"127.0.0.1:{port}")
    draft.rename(file)
    if kept is None:
        serve(router)
    else:
        serve_durable(router, kept)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
