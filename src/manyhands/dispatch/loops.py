"""What the dispatcher needs of an event loop; a simulation brings its own."""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancels the call."""


class Loop(Protocol):
    """A turn at a time, timers, and files that become readable or writable."""

    def call_soon(self, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...
    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def add_writer(self, fd: int, callback: Callable[[], None], /) -> Any: ...  # noqa: ANN401
    def remove_reader(self, fd: int, /) -> bool: ...
    def remove_writer(self, fd: int, /) -> bool: ...
