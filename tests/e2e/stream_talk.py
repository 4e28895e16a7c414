"""A client of the stream, on other people's WebSocket."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect

from tests.e2e.serving import SECONDS_MAX, Served

SUBPROTOCOL = "manyhands.1"
HELLO, SUBMIT, WORK, NEWS, WANT, VOUCH, DEPART, WATCH, LOOK, CANCEL = range(1, 11)
ANSWER, JOBS, NOTICE, ENDED, HEARD, CLOSING = range(20, 26)
_ids = itertools.count(1)


def new_id() -> str:
    """An id that no other test uses."""
    return f"{next(_ids):08x}".rjust(32, "a")


class Talk:
    """Sends notes, and keeps what comes until it is asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages_count = 0
        self._numbers = itertools.count(1)
        self._unread: list[list[Any]] = []

    def send(self, *notes: list[Any]) -> None:
        """One message."""
        self.socket.send(msgspec.msgpack.encode(notes))

    def next(self, *kinds: int, seconds: float = SECONDS_MAX) -> list[Any]:
        """The next note of one of these kinds. Raises TimeoutError."""
        while True:
            for index, note in enumerate(self._unread):
                if note[0] in kinds:
                    return self._unread.pop(index)
            self.messages_count += 1
            data = self.socket.recv(seconds, decode=False)
            self._unread += msgspec.msgpack.decode(data)

    def unread(self, kind: int) -> list[list[Any]]:
        """Notes of a kind that came, and nobody asked for."""
        return [note for note in self._unread if note[0] == kind]

    def ask(self, kind: int, *fields: Any) -> list[Any]:
        """A note and its answer: why it was refused, and what came of it."""
        number = next(self._numbers)
        self.send([kind, number, *fields])
        answer = self.next(ANSWER)
        assert answer[1] == number
        return answer[2:]

    def result(self, kind: int, *fields: Any) -> Any:
        """What came of a note; it must have gone well."""
        error, result = self.ask(kind, *fields)
        assert error is None
        return result

    def hello(self, worker: str | None = None, held: list[Any] = ()) -> dict[str, Any]:
        return self.result(HELLO, 1, "tests", worker, held)

    def submit(self, *items: list[Any], all_or_nothing: bool = False, watch: bool = False) -> Any:
        """Items of which all must be created; gives their ids."""
        assert self.result(SUBMIT, items, all_or_nothing, watch) == []
        return [item[0] for item in items]

    def jobs(self, count: int) -> list[list[Any]]:
        """So many jobs, in however many notes."""
        found: list[list[Any]] = []
        while len(found) < count:
            found += self.next(JOBS)[1]
        assert len(found) == count
        return found


@contextmanager
def talking(
    served: Served, worker: str | None = None, *, greeted: bool = True, **options: Any
) -> Iterator[Talk]:
    """A stream for the length of a block."""
    with talking_to(served.addresses["http"], worker, greeted=greeted, **options) as talk:
        yield talk


@contextmanager
def talking_to(
    address: str, worker: str | None = None, *, greeted: bool = True, **options: Any
) -> Iterator[Talk]:
    """The same, by address."""
    options.setdefault("subprotocols", [SUBPROTOCOL])
    url = f"ws://{address}/api/stream"
    with connect(url, compression=None, max_size=None, proxy=None, **options) as socket:
        talk = Talk(socket)
        if greeted:
            talk.hello(worker)
        yield talk
