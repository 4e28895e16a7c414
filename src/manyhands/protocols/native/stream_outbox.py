"""What a stream sends: answers in the order of their notes, all notes of a turn in one message.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections.abc import Callable
from typing import Final

from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_hub import Socket
from manyhands.protocols.replies import Replies, Slot

# The notes of a turn are sent before they exceed this size.
_MESSAGE_BYTES_HIGH: Final = 4 * 1024 * 1024


class Outbox:
    """The notes on their way to the peer."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._replies = Replies(self.say)
        self._notes: list[bytes] = []  # to send at the end of this turn
        self._notes_bytes = 0

    @property
    def awaited_count(self) -> int:
        """The number of pending answers."""
        return self._replies.awaited_count

    def say(self, note: bytes) -> None:
        """Sends a note, whatever answers are pending."""
        if not self._notes:
            self._socket.soon(self.flush)
        self._notes.append(note)
        self._notes_bytes += len(note)
        if self._notes_bytes > _MESSAGE_BYTES_HIGH:
            self.flush()

    def say_in_turn(self, note: bytes) -> None:
        """Sends a note behind the answers that are pending."""
        self._replies.say(note)

    def flush(self) -> None:
        """ST4: all notes of a turn leave in one message."""
        if self._notes:
            notes, self._notes, self._notes_bytes = self._notes, [], 0
            self._socket.send(wire.write_message(notes))

    def reserve(self, number: int) -> Slot | None:
        """Reserves a place among the answers; None for a note without a number."""
        return self._replies.reserve() if number else None

    def settle(self, slot: Slot | None, number: int, result: object = None) -> None:
        """Answers a note, if it has a number."""
        if slot is not None:
            self._replies.fill(slot, wire.answer(number, None, result))

    def refuse(self, slot: Slot | None, number: int, error: tuple[str, str]) -> None:
        """ST6: a refusal of the whole note is sent even if the note has no number."""
        data = wire.answer(number, error)
        if slot is not None:
            self._replies.fill(slot, data)
        else:
            self._replies.say(data)

    def when_sent(self, then: Callable[[], None]) -> None:
        """Calls back once every note has its answer; nothing may be said after that."""
        self._replies.when_sent(then)
