"""Ids and tokens: unguessable, and cheap: randomness is drawn from the system by the page."""

import os

_PAGE = 16 * 1024


class Ids:
    """Job ids in order of time, lease tokens, connection numbers of this server incarnation."""

    def __init__(self, randomness: bytes | None = None) -> None:
        self.incarnation = (randomness or os.urandom(8)).hex()[:16]
        self._connections = 0
        self._page = ""
        self._at = 0
        self._millisecond = 0
        self._counter = 0
        self._prefix = ""

    def _hex(self, digits: int) -> str:
        at = self._at
        if at + digits > len(self._page):
            self._page = os.urandom(_PAGE).hex()
            at = 0
        self._at = at + digits
        return self._page[at : at + digits]

    def token(self) -> str:
        """128 random bits."""
        return self._hex(32)

    def job_id(self, now: int) -> str:
        """A UUIDv7 as 32 digits: its time, a counter within the millisecond, 62 random bits."""
        if now > self._millisecond:
            self._begin_millisecond(now)
        elif self._counter < 0xFFF:
            self._counter += 1
        else:
            # More ids than the counter holds: borrow from the next millisecond, stay in order.
            self._begin_millisecond(self._millisecond + 1)
        return f"{self._prefix}{self._counter:03x}8{self._hex(15)}"

    def _begin_millisecond(self, millisecond: int) -> None:
        self._millisecond = millisecond
        self._counter = 0
        self._prefix = f"{millisecond:012x}7"

    def connection(self) -> str:
        """A name for a connection that no other connection of any server ever has."""
        self._connections += 1
        return f"{self.incarnation}/{self._connections}"
