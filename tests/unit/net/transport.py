"""The network's end of a connection, without a network."""

from typing import Any

from manyhands.dispatch.budget import Budget
from manyhands.net.tcp import Connection
from manyhands.store.memory import MemoryStore


def ample_budget() -> Budget:
    """Room for everybody."""
    return Budget(2**30, MemoryStore(), lambda: 0.0)


class Transport:
    """Notes what is written and whether it is read from; ``unread_bytes`` is for tests to set."""

    def __init__(self) -> None:
        self.reading = True
        self.written = b""
        self.unread_bytes = 0
        self.connection: Connection | None = None
        self.protocol: Any = None  # whom the network tells what happens
        self.state = "open"

    def get_extra_info(self, _name):
        return None

    def set_write_buffer_limits(self, high):
        pass

    def set_protocol(self, protocol):
        self.protocol = protocol

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_write_buffer_size(self):
        return self.unread_bytes

    def write(self, data):
        self.written += data

    def write_eof(self):
        self.state = "closed"

    def can_write_eof(self):
        return True

    def is_closing(self):
        return self.state != "open"

    def close(self):
        self.state = "closed"

    def abort(self):
        self.state = "aborted"
