"""What connects to the address for other servers and is none: it is refused with a sentence, within
seconds and in bounded memory, and disturbs nobody.
"""

import os
import socket
import time
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest

from manyhands.cluster.link import FRAME_BYTES_MAX, Hello, Link, Proof, frames
from tests.e2e.cluster import is_ready, running
from tests.e2e.serving import SECONDS_MAX, Api, wait_until

ENDLESS = (FRAME_BYTES_MAX + 1).to_bytes(4, "big")
GARBAGE = b"\0\0\0\x05hello"


@pytest.fixture(scope="module")
def cluster(postgresql, tmp_path_factory):
    with running(tmp_path_factory.mktemp("strangers"), postgresql, "a", "b") as found:
        found.until_ready()
        yield found


@pytest.fixture
def server(cluster):
    """The one that decides."""
    return cluster.servers[cluster.decider()]


@contextmanager
def connected(server):
    host, _, port = server.addresses["cluster"].rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        yield peer


def until_closed(peer: socket.socket) -> bytes:
    """What it said until it closed the connection."""
    heard = b""
    while data := peer.recv(65_536):
        heard += data
    return heard


def refused_count(server) -> int:
    text = httpx.get(f"{server.url}/metrics").text
    name = "manyhands_links_refused_total"
    return int(float(next(row for row in text.splitlines() if row.startswith(name)).split()[1]))


def hello(cluster, /, **changes) -> Hello:
    with cluster.database.connect() as connection:
        (cluster_id,) = connection.execute(
            f"SELECT value FROM {cluster.schema}.facts WHERE key = 'cluster'"
        ).fetchone()
    given = {"version_min": 1, "version_max": 1, "cluster": cluster_id, "tenure": 99} | changes
    given |= {"incarnation": os.urandom(8).hex(), "server": "stranger", "nonce": os.urandom(32)}
    return Hello(**given)


def prove(peer: socket.socket, link: Link) -> None:
    """Greets until both believe each other."""
    while not link.is_open:
        peer.sendall(link.take())
        link.feed(peer.recv(65_536))
    peer.sendall(link.take())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (GARBAGE, "it sent what is no message of a link"),
        (b"GET / HTTP/1.1\r\n\r\n", "it sent a frame of 1195725856 bytes; at most 4096 are read"),
        (ENDLESS, "at most 4096 are read"),
        (b"", "it did not prove itself within 2 s"),
        (b"\0\0\x0f\xff" + bytes(100), "it did not prove itself within 2 s"),
        (b"".join(frames(Proof(bytes(32)))), "it did not say who it is"),
    ],
    ids=["garbage", "http", "endless", "silent", "slow", "unasked proof"],
)
def test_a_stranger_is_refused_with_a_sentence_and_counted(server, data, sentence):
    """S45."""
    before = refused_count(server)

    with connected(server) as peer:
        peer.sendall(data)
        heard = until_closed(peer)

    assert sentence.encode() in heard
    assert '"event": "a link was refused"' in server.log()  # once a minute, for each peer
    assert refused_count(server) == before + 1
    assert is_ready(server)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version_min": 98, "version_max": 99}, "it speaks versions 98 to 99 of the link"),
        ({"cluster": "another"}, "it belongs to another cluster: its database is not ours"),
    ],
    ids=["version", "cluster"],
)
def test_a_server_that_does_not_fit_is_told_why(cluster, server, changes, sentence):
    """S45 and S61: with both versions."""
    with connected(server) as peer:
        peer.sendall(b"".join(frames(hello(cluster, **changes))))
        heard = until_closed(peer)

    assert sentence.encode() in heard


@pytest.mark.parametrize("data", [GARBAGE, ENDLESS], ids=["garbage", "endless"])
def test_a_server_that_talks_nonsense_loses_its_link(cluster, server, data):
    """S45: also one that knows the secret; whoever talks sense is not disturbed."""
    secret = (cluster.folder / "cluster.secret").read_bytes().strip()
    with connected(server) as peer:
        prove(peer, Link(hello(cluster), secret, calling=True))
        peer.sendall(data)
        until_closed(peer)

    for one in cluster.servers.values():
        with closing(Api(one)) as api:
            assert api.results("submit", queue="q")["state"] == "ready"


def test_many_strangers_keep_no_server_out(cluster, server):
    """S45: connections that prove nothing are bounded; the oldest ones make room."""
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(server))
        began = time.monotonic()
        cluster.start("c")
        wait_until(lambda: is_ready(cluster.servers["c"]))

    assert time.monotonic() - began < SECONDS_MAX
    assert cluster.stop("c") == 0
