"""The ceiling: the least that a dwork server in Python can do. Memory only, one socket, one loop.

Nothing is checked and nothing is kept; it exists to be measured beside a server that does both.

    python bench/dwork/ceiling.py FILE      binds a free port and writes its address into FILE
"""

import sys
from collections import deque
from pathlib import Path
from typing import Any

import zmq

from manyhands.wire.dwork import BARE, Kind, QueryMsg


class Graph:
    """Tasks by name: how many predecessors are left, and who comes after."""

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


def main(file: Path) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    draft = file.with_suffix(".part")
    draft.write_text(f"127.0.0.1:{port}")
    draft.rename(file)
    graph = Graph()
    while True:
        *route, body = router.recv_multipart()
        router.send_multipart([*route, answer(graph, body)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
