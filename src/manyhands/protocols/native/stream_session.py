"""One stream: the notes of a client or worker become commands, and replies become notes.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections import deque
from typing import Final

from msgspec import Raw

from manyhands.dispatch.session import Peer
from manyhands.model import limits
from manyhands.model.events import Signal
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_client import WATCHES_COUNT_MAX, ClientSide, Operate
from manyhands.protocols.native.stream_hub import ITEMS_COUNT_MAX, Hub, Socket
from manyhands.protocols.native.stream_outbox import Outbox
from manyhands.protocols.native.stream_refusals import NoteRefusedError, check_count, is_name
from manyhands.protocols.native.stream_reports import Reports
from manyhands.protocols.native.stream_worker import CLAIM_COUNT_MAX, CREDIT_MAX, WorkerSide

VERSION: Final = 1
SUBPROTOCOL: Final = "manyhands.1"
_AWAITED_COUNT_MAX: Final = 10_000  # ST6
_PROTOCOL_ERROR: Final = 1002
_POLICY_VIOLATION: Final = 1008


class StreamSession:
    """The ``Conversation`` of one WebSocket."""

    def __init__(
        self, peer: Peer, socket: Socket, hub: Hub, operate: Operate, address: str
    ) -> None:
        self._peer = peer
        self._socket = socket
        self._hub = hub
        self._outbox = Outbox(socket)
        self._worker = WorkerSide(peer, socket, hub, self._outbox.say, address, self._dismissed)
        self._client = ClientSide(
            peer, socket, hub, self._outbox, operate, address, lambda: self._worker.held
        )
        self._reports = Reports(peer, hub, self._outbox, self._worker)
        self._undone: deque[Raw] = deque()  # received, waiting for the next turn
        self._undone_bytes = 0
        self._is_greeted = False
        self._is_over = False

    # The connection's side.

    def receive(self, messages: list[bytes]) -> None:
        """Messages arrived, or the rest of earlier ones has its turn."""
        try:
            for message in messages:
                self._undone.extend(wire.read_message(message))
                self._undone_bytes += len(message)
            self._take_turn()
        except wire.MalformedError as error:
            self._break_off(str(error))

    def _take_turn(self) -> None:
        """ST7: handles as many notes as other peers can wait for; the rest follows in a
        later turn.
        """
        peer, undone = self._peer, self._undone
        owed_max = peer.owed_bytes + limits.TURN_BYTES_OWED_MAX
        weight = 0
        while undone and not self._is_over:
            weight += self._do(undone.popleft())
            if undone and (weight >= limits.TURN_REQUESTS_MAX or peer.owed_bytes > owed_max):
                peer.come_back()
                return
        self._undone_bytes = 0

    def ended(self) -> None:
        """The peer closed its side: it still gets its answers."""
        self._outbox.when_sent(self._leave)

    def _leave(self) -> None:
        self._outbox.flush()
        self._socket.close()

    def _dismissed(self, sentence: str) -> None:
        self._break_off(sentence, _POLICY_VIOLATION)

    def _break_off(self, sentence: str, code: int = _PROTOCOL_ERROR) -> None:
        self._is_over = True
        self._undone.clear()
        self._client.leave()
        self._outbox.flush()
        self._socket.close(code, sentence)

    def lost(self, *, blameless: bool = False) -> None:
        """The connection is gone."""
        self._is_over = True
        self._undone.clear()
        self._worker.lost()
        self._client.leave()
        self._hub.leave(self)

    def notify(self, signal: Signal) -> None:
        """Nothing here is bound to the connection."""

    def is_overwhelmed(self) -> bool:
        """ST6: whether so many answers are pending that no more notes should be read."""
        return self._outbox.awaited_count > _AWAITED_COUNT_MAX

    def held_bytes(self) -> int:
        """Bytes of messages not yet handled."""
        return self._undone_bytes

    def go_on(self) -> None:
        """The peer reads again."""
        self._worker.take()
        self._client.go_on()

    def announce_stop(self, seconds: int) -> None:
        """The server is about to stop."""
        self._outbox.say(wire.closing(seconds))
        self._outbox.flush()  # there may be no further turn

    # Notes.

    def _do(self, raw: Raw) -> int:
        """Handles a note; returns how much work it was."""
        try:
            note = wire.read_note(raw)
        except wire.BadNoteError as error:
            if not self._is_greeted:
                raise wire.MalformedError(error.sentence) from None
            self._outbox.refuse(None, error.number, (error.code, error.sentence))
            return 1
        if not (self._is_greeted or isinstance(note, wire.Hello)):
            raise wire.MalformedError("the first note is a hello")
        try:
            return self._act(note)
        except NoteRefusedError as refused:
            self._outbox.refuse(None, note.number, (refused.code, str(refused)))
            return 1

    def _act(self, note: wire.Note) -> int:
        client, reports = self._client, self._reports
        match note:
            case wire.Work():
                return reports.work(note)
            case wire.Submit():
                return client.submit(note)
            case wire.Want():
                self._worker.want(note)
                self._outbox.settle(self._outbox.reserve(note.number), note.number)
                return 1
            case wire.News():
                return reports.news(note)
            case wire.Watch():
                return client.watch(note)
            case wire.Look():
                return client.look(note)
            case wire.Cancel():
                return client.cancel(note)
            case wire.Vouch():
                return reports.vouch(note)
            case wire.Depart():
                return reports.depart(note)
            case wire.Hello():
                return self._greet(note)

    def _greet(self, note: wire.Hello) -> int:
        if self._is_greeted:
            raise NoteRefusedError("invalid_note", "there is one hello, the first note")
        if note.version != VERSION:
            raise wire.MalformedError(f"the only version here is {VERSION}")
        name = note.worker
        if name is not None and not is_name(name):
            limit = limits.HOLDER_NAME_BYTES_MAX
            sentence = f"a worker's name has 1 to {limit} bytes and no control characters"
            raise wire.MalformedError(sentence)
        check_count(len(note.held), CREDIT_MAX)
        self._is_greeted = True
        slot = self._outbox.reserve(note.number)

        def welcome(gone: list[str]) -> None:
            self._outbox.settle(slot, note.number, self._welcome(gone))

        self._worker.resume(name, note.held, welcome)
        return 1

    def _welcome(self, gone: list[str]) -> dict[str, object]:
        """ST7."""
        bounds = self._hub.bounds
        return {
            "server": self._hub.version,
            "incarnation": self._hub.incarnation,
            "gone": gone,
            "limits": {
                "items": ITEMS_COUNT_MAX,
                "items_together": limits.BATCH_COUNT_MAX,
                "message_bytes": bounds.message_bytes,
                "payload_bytes": bounds.payload_bytes,
                "unanswered": _AWAITED_COUNT_MAX,
                "watches": WATCHES_COUNT_MAX,
                "credit": CREDIT_MAX,
                "jobs": CLAIM_COUNT_MAX,
            },
        }
