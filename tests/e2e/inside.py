"""A server in a thread of the test's own process, so that a test can hold up a part of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from manyhands.config import Config
from manyhands.embedding.thread import ServerThread


class Inside:
    """The server, and how to reach it: as much of ``Served`` as the clients of tests use."""

    def __init__(self, config: Config) -> None:
        self.thread = ServerThread(None, None)
        self.thread._config = config

    @property
    def addresses(self) -> dict[str, str | None]:
        assert self.thread._server is not None
        return self.thread._server.condition.addresses

    @property
    def url(self) -> str:
        return f"http://{self.addresses['http']}"


@contextmanager
def inside(config: Config) -> Iterator[Inside]:
    """With the memory store, and with the listeners that the configuration names."""
    server = Inside(replace(config, store="memory"))
    server.thread.begin()
    try:
        yield server
    finally:
        server.thread.stop()
