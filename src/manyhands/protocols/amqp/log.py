"""The event log as queues see it, and the places in it that a consumer may ask for."""

from typing import Protocol

from manyhands.wire.amqp import Message


class Log(Protocol):
    """All messages there are, in order."""

    @property
    def last_seq(self) -> int:
        """Of the newest message that may be shown."""

    @property
    def first_seq(self) -> int:
        """Of the oldest one that is kept."""

    def read(
        self, seq: int, count_max: int, exchanges: frozenset[str] | None
    ) -> tuple[list[Message], int]:
        """Messages of these exchanges (None: of all) among the next so many, and up to where that
        was.
        """

    def seq_before(self, at: int) -> int:
        """The last place in the log before an instant, in milliseconds."""


def offset_of(log: Log, offset: object) -> int | None:
    """The place in the log that a stream offset means; None: it means nothing."""
    if offset == "first":
        return log.first_seq - 1
    if offset == "last":
        return max(log.first_seq, log.last_seq) - 1
    if offset == "next":
        return log.last_seq
    if isinstance(offset, int) and not isinstance(offset, bool):
        return max(log.first_seq, min(offset, log.last_seq + 1)) - 1
    at = getattr(offset, "timestamp", None)
    if at is not None:
        return log.seq_before(int(at() * 1000))
    return None
