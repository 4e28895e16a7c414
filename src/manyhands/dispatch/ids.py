"""Ids and tokens: unguessable and cheap, because randomness is drawn from the system by the
page.
"""

import os
from typing import Final

_PAGE: Final = 16 * 1024
# A counter within a millisecond, followed by the variant digit of a UUID.
_COUNTERS: Final = tuple(f"{number:03x}8" for number in range(0x1000))


class Ids:
    """Job ids in order of time, lease tokens, connection numbers of this server incarnation."""

    def __init__(self, randomness: bytes | None = None) -> None:
        self.incarnation = (randomness or os.urandom(8)).hex()[:16]
        self._connections = 0
        self._tokens: list[str] = []
        self._endings: list[str] = []  # of job ids
        self._millisecond = 0
        self._counter = 0
        self._prefix = ""

    def _pieces(self, digits: int) -> list[str]:
        """A page of randomness, cut into pieces."""
        if digits == 32:
            return os.urandom(_PAGE).hex(" ", 16).split()  # half the cost
        page = os.urandom(_PAGE).hex()
        return [page[at : at + digits] for at in range(0, len(page) - digits + 1, digits)]

    def token(self) -> str:
        """128 random bits."""
        if not self._tokens:
            self._tokens = self._pieces(32)
        return self._tokens.pop()

    def job_id(self, now: int) -> str:
        """A UUIDv7 as 32 digits: its time, a counter within the millisecond, 62 random bits."""
        if now > self._millisecond:
            self._begin_millisecond(now)
        elif self._counter < 0xFFF:
            self._counter += 1
        else:
            # More ids than the counter holds: borrow from the next millisecond, stay in order.
            self._begin_millisecond(self._millisecond + 1)
        if not self._endings:
            self._endings = self._pieces(15)
        return self._prefix + _COUNTERS[self._counter] + self._endings.pop()

    def _begin_millisecond(self, millisecond: int) -> None:
        self._millisecond = millisecond
        self._counter = 0
        self._prefix = f"{millisecond:012x}7"

    def connection(self) -> str:
        """A name for a connection that no other connection of any server ever has."""
        self._connections += 1
        return f"{self.incarnation}/{self._connections}"
