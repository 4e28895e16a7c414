"""The condition of a running server: its addresses, and whether it is ready, stopping or failed."""

import asyncio
from collections.abc import Callable


class Condition:
    """The condition of the server. Made in the running loop."""

    def __init__(self, started_at: int) -> None:
        self.started_at = started_at
        self.addresses: dict[str, str | None] = {}  # by listener; None: it is switched off
        self.is_ready = False
        # Each names what is missing at present for the server to be ready; None: nothing.
        self.lacks: list[Callable[[], str | None]] = []
        self.failure: str | None = None  # why the store can take no more writes
        self.on_failure: list[Callable[[], None]] = []
        self.stopping = asyncio.Event()
        self.hurried = asyncio.Event()  # running jobs are not waited for

    def fail(self, text: str) -> None:
        """The store failed: stops the server, which sends no more answers."""
        self.failure = text
        self.stopping.set()
        for fall_silent in self.on_failure:
            fall_silent()
