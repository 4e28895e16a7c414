"""The applier process, beside a database that nobody can reach."""

import socket
import subprocess

import pytest

from manyhands.config.database import read_address
from manyhands.store.postgres.applier import Begin, encode
from manyhands.store.postgres.link import APPLIER_COMMAND
from manyhands.store.records.frames import pack_body
from tests.e2e.serving import own_port

LIMIT_SECONDS = 60.0


@pytest.fixture
def applier():
    """One whose server ended before it could ask for its parent."""
    process = subprocess.Popen(["true"])
    process.wait()
    ours, theirs = socket.socketpair()
    hurry, hurried = socket.socketpair()
    with ours, theirs, hurry, hurried:
        descriptors = (theirs.fileno(), hurried.fileno())
        begun = subprocess.Popen(
            [*APPLIER_COMMAND, *map(str, descriptors), str(process.pid)], pass_fds=descriptors
        )
        theirs.close()
        yield begun, ours
    if begun.poll() is None:
        begun.kill()
    begun.wait()


def test_an_applier_whose_server_is_gone_does_not_wait_for_the_database(applier):
    process, link = applier
    address = read_address(f"postgresql://127.0.0.1:{own_port()}/nothing?connect_timeout=2")
    link.sendall(pack_body(0, encode(Begin(address, 1, "i"))) + pack_body(1, b"a record"))

    link.close()

    assert process.wait(LIMIT_SECONDS) == 0
