"""A dwork peer over a real socket: REQ as the original clients have it, or DEALER."""

from typing import Any

import zmq

from manyhands.protocols.dwork.codec import Dep, Kind, Query, Task, encode
from manyhands.protocols.dwork.reader import decode
from tests.e2e.serving import Served

REPLY_MS_MAX = 90_000


def a_task(name: str, *preds: str, **fields: Any) -> Task:
    return Task(name=name, origin="test", preds=tuple(map(Dep, preds)), **fields)


def addresses(served: Served) -> dict[str, str]:
    """Of each endpoint, by the name of its queue."""
    found = {}
    for part in (served.addresses["dwork"] or "").split(","):
        name, _, address = part.rpartition("=")
        found[name or "dwork"] = address
    return found


class Talk:
    """One socket."""

    def __init__(self, served: Served, queue: str = "dwork", kind: int = zmq.REQ) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, REPLY_MS_MAX)
        self.socket.connect(f"tcp://{addresses(served)[queue]}")

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def ask(self, kind: Kind, *tasks: Task, **fields: Any) -> Query:
        self.socket.send(encode(Query(kind=kind, tasks=tasks, **fields)))
        return decode(self.socket.recv())

    def create(self, *tasks: Task) -> None:
        assert self.ask(Kind.CREATE, *tasks).kind is Kind.OK

    def steal(self, location: str = "w1", n: int | None = None) -> list[str] | Kind:
        reply = self.ask(Kind.STEAL, location=location, n=n)
        return [task.name for task in reply.tasks] if reply.kind is Kind.TRANSFER else reply.kind

    def complete(self, *names: str, location: str = "w1") -> Kind:
        return self.ask(Kind.COMPLETE, *map(a_task, names), location=location).kind
