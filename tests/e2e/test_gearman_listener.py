"""What the listener does to each accepted socket, seen from inside the server's process."""

import asyncio
import socket

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.protocols.gearman import codec as wire
from manyhands.store.memory import MemoryStore


async def accept_one(config: Config):
    """A server with one connected peer; gives the server's end of it."""
    server = Server(config, MemoryStore(), asyncio.get_running_loop())
    await server.start()
    (listener,) = server.listeners
    host, _, port = server.condition.addresses["gearman"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(wire.encode_request(wire.ECHO_REQ, b"x"))
    await reader.readexactly(13)
    (connection,) = listener.connections
    return server, connection, writer


async def options_of_an_accepted_socket() -> list[int]:
    config = Config(gearman=Address("127.0.0.1", 0), http=None, dwork=None, wmp=None, amqp=None)
    server, connection, writer = await accept_one(config)
    raw = connection._transport.get_extra_info("socket")
    found = [
        raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
        raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    ]
    writer.close()
    await server.drain()
    return found


def test_an_accepted_socket_sends_at_once_and_is_kept_alive():
    """G10 and A23"""
    no_delay, keep_alive, idle_seconds = asyncio.run(options_of_an_accepted_socket())

    assert no_delay
    assert keep_alive
    assert idle_seconds == 60


async def answer_to_a_bad_draft_packet(*, error_packets: bool) -> bytes:
    config = Config(
        gearman=Address("127.0.0.1", 0),
        http=None,
        dwork=None,
        wmp=None,
        amqp=None,
        gearman_error_packets=error_packets,
    )
    server = Server(config, MemoryStore(), asyncio.get_running_loop())
    await server.start()
    host, _, port = server.condition.addresses["gearman"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\0GM0\x7f\0\0\0\0\0WAT")
    answer = await reader.read()
    writer.close()
    await server.drain()
    return answer


def test_error_packets_of_the_draft_can_be_turned_off():
    """A7"""
    told = asyncio.run(answer_to_a_bad_draft_packet(error_packets=True))
    silent = asyncio.run(answer_to_a_bad_draft_packet(error_packets=False))

    assert told.startswith(b"\0GM0\x0e")
    assert silent == b""
