"""What the routes of the qless API share: the sender, the batch, and its refused items."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from manyhands.model.commands import Command
from manyhands.model.replies import Refusal, Reply, Why
from manyhands.net.http_short_way import Request
from manyhands.protocols.qless.answers import ItemError
from manyhands.protocols.qless.decoder import BadItem, Items, check_host
from manyhands.protocols.qless.identifiers import shown_id
from manyhands.protocols.qless.paths import only_queue
from manyhands.protocols.qless.refusals import entry, item_error, problem
from manyhands.web.envelope import Problem
from manyhands.web.exchange import check_json
from manyhands.web.query import Query

if TYPE_CHECKING:
    from manyhands.observe.workers import WorkerBook

_UNAVAILABLE: Final = frozenset(
    {Why.SHUTTING_DOWN, Why.STORE_FULL, Why.STORE_FAILED, Why.UNAVAILABLE}
)


class Batch:
    """The commands of a batch and its refused items."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.errors: list[ItemError] = []
        self._asked: list[tuple[int, str]] = []
        self._by_index: dict[int, Command] = {}

    def ask(self, index: int, job_id: str, command: Command) -> None:
        self.commands.append(command)
        self._asked.append((index, job_id))
        self._by_index[index] = command

    def command(self, index: int) -> Command:
        return self._by_index[index]

    def refuse(self, index: int, item: BadItem) -> None:
        self.errors.append(entry(index, item.id, item.code, item.message))

    def refuse_by(self, index: int, job_id: str, reply: Reply) -> None:
        assert isinstance(reply, Refusal)
        refuse_whole(reply)
        known = reply.job
        shown = job_id if known is None else shown_id(known)
        self.errors.append(item_error(index, shown, reply))

    def answered(self, replies: Sequence[Reply]) -> list[tuple[int, str, Reply]]:
        return [
            (index, job_id, reply)
            for (index, job_id), reply in zip(self._asked, replies, strict=True)
        ]


def refuse_whole(reply: Refusal) -> None:
    """Raises a refusal that is about the server, not the item, to answer the whole request."""
    if reply.why in _UNAVAILABLE:
        raise problem(reply)


def _host_beside(request: Request) -> str | None:
    """The name of a worker whose request has no body to carry it."""
    if b"host=" in request.head.query:
        found = Query(request.head.query).text("host")
        if found is not None:
            return check_host(found)
    header = request.head.headers.get(b"x-qless-host")
    if header is None:
        return None
    try:
        return check_host(header.decode("utf-8"))
    except UnicodeDecodeError:
        raise Problem(400, "invalid_host", "X-Qless-Host is not UTF-8") from None


def json_body(request: Request) -> bytes:
    """The body of a request that must carry JSON."""
    check_json(request.head.headers)
    return request.body


def read_batch(
    request: Request, kind: Items[Any], count_max: int
) -> tuple[str, Sequence[Any], str | None]:
    """The queue in the path, the items and the host."""
    if request.head.method != "POST":
        raise Problem(405, "method_not_allowed", f"{request.head.method} is not possible here")
    queue = only_queue(request.head.path)
    found, host = kind.read(json_body(request), count_max)
    return queue, found, host


def see(book: "WorkerBook", host: str | None, request: Request, now: int) -> tuple[str | None, str]:
    """The sender's name, if it has one, and its address. Notes the worker as alive."""
    if host is None:
        host = _host_beside(request)
    address = request.connection.peer.address(request.head.headers)
    book.see(host, address, now)
    return host, address
