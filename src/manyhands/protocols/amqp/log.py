"""The event log as queues see it, and the offsets that a consumer may ask for."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from manyhands.net.amqp import Message


class Log(Protocol):
    """All messages, in order."""

    @property
    def last_seq(self) -> int:
        """The number of the newest message that may be shown."""

    @property
    def first_seq(self) -> int:
        """The number of the oldest stored message."""

    def read(
        self, seq: int, count_max: int, exchanges: frozenset[str] | None
    ) -> tuple[list[Message], int]:
        """Messages of these exchanges (None: all) among the next so many, and the number read up
        to.
        """

    def seq_before(self, at: int) -> int:
        """The last number before an instant, in milliseconds."""


class MessageLog(Log, Protocol):
    """A log, and the exchanges to bind to."""

    @property
    def exchanges(self) -> Iterable[str]:
        """Names of the exchanges that messages come from."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names, each with its exchange."""


def offset_of(log: Log, offset: object) -> int | None:
    """The position of a stream offset in the log, or None if it is invalid."""
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
