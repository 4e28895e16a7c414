"""The wires of other tests end with nothing left behind."""

import contextlib
import gc
import socket

from tests.e2e.serving import SECONDS_MAX
from tests.e2e.wires import Wires


def test_a_wire_that_is_closed_while_somebody_calls_leaves_nothing_behind():
    # Nobody accepts what arrives there, so there has to be room for all of it.
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as target:
        for _ in range(50):
            wires = Wires()
            wire = wires.to(f"127.0.0.1:{target.getsockname()[1]}")
            host, _, port = wire.address.rpartition(":")
            there = (host, int(port))
            callers = [socket.create_connection(there, SECONDS_MAX) for _ in range(5)]
            wire.close()
            wires.close()
            for caller in callers:
                with contextlib.suppress(ConnectionResetError), caller:
                    assert caller.recv(1) == b""
    gc.collect()  # what nobody closed is warned about here, and that fails the test
