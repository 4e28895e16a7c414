"""The ceiling: a minimal Gearman server in Python. One queue, one loop, nothing else.

No priorities, no keys, no leases, no events, no limits; nothing is checked and nothing can be read
back. It exists to be compared with a server that does all of that.

    python bench/gearman/ceiling.py FILE            in memory
    python bench/gearman/ceiling.py FILE JOURNAL    a second process writes JOURNAL and syncs it
                                                    before a background job is acknowledged

It binds a free port and writes the number into FILE.
"""

import asyncio
import os
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

import uvloop

from manyhands.protocols.gearman import codec as wire

JOURNAL_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 20


def write_journal(path: Path, link: socket.socket) -> None:
    """Syncs what arrives and acknowledges it, round and round in a preallocated file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(file, bytes(JOURNAL_BYTES))
    os.fsync(file)
    at = 0
    while data := link.recv(_READ_BYTES):
        if at + len(data) > JOURNAL_BYTES:
            at = 0
        os.pwrite(file, data, at)
        at += len(data)
        os.fdatasync(file)
        link.send(b".")


class Hub:
    """The queue, and what has to be sent at the end of a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: socket.socket | None) -> None:
        self.loop = loop
        self.link = link
        self.serial = 0
        self.jobs: dict[int, tuple[bytes, bytes, Connection | None]] = {}
        self.ready: deque[int] = deque()
        self.asleep: list[Connection] = []
        self.rows: list[bytes] = []  # for the journal
        self.waiting: list[tuple[Connection, int]] = []  # for the next commit
        self.committing: list[tuple[Connection, int]] = []
        self._unsent: dict[Connection, None] = {}
        self._soon = False
        if link is not None:
            loop.add_reader(link.fileno(), self._on_synced)

    def send(self, peer: "Connection", packet: bytes) -> None:
        peer.out.append(packet)
        self._unsent[peer] = None
        self.soon()

    def submitted(self, peer: "Connection", body: bytes, *, is_foreground: bool) -> None:
        function, _, payload = body.split(b"\0", 2)
        self.serial += 1
        self.jobs[self.serial] = (function, payload, peer if is_foreground else None)
        if self.link is None or is_foreground:
            self._created(peer, self.serial)
        else:
            self.waiting.append((peer, self.serial))
        if self.link is not None:
            self.rows.append(body)
            self.soon()

    def completed(self, body: bytes) -> None:
        _, _, client = self.jobs.pop(int(body[4 : body.index(b"\0")]))
        if client is not None:
            self.send(client, wire.encode_response(wire.WORK_COMPLETE, body))
        if self.link is not None:
            self.rows.append(body)  # no reply is due: it is written with the next commit

    def soon(self) -> None:
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._end_turn)

    def _created(self, peer: "Connection", serial: int) -> None:
        self.send(peer, wire.encode_response(wire.JOB_CREATED, b"H:c:%d" % serial))
        self.ready.append(serial)
        if self.asleep:
            self.send(self.asleep.pop(), wire.NOOP_PACKET)

    def _end_turn(self) -> None:
        self._soon = False
        for peer in self._unsent:
            peer.transport.write(b"".join(peer.out))
            peer.out.clear()
        self._unsent.clear()
        if self.link is not None and self.waiting and not self.committing:
            self.committing, self.waiting = self.waiting, []
            self.link.sendall(b"".join(self.rows))
            self.rows.clear()

    def _on_synced(self) -> None:
        assert self.link is not None
        self.link.recv(1)
        done, self.committing = self.committing, []
        for peer, serial in done:
            self._created(peer, serial)
        self.soon()


class Connection(asyncio.Protocol):
    """A client or a worker."""

    transport: Any

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.out: list[bytes] = []
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._kept + data
        at = 0
        while len(data) - at >= wire.HEADER_SIZE:
            end = at + wire.HEADER_SIZE + int.from_bytes(data[at + 8 : at + 12], "big")
            if end > len(data):
                break
            self._take(data[at + 7], data[at + wire.HEADER_SIZE : end])
            at = end
        self._kept = data[at:]

    def _take(self, kind: int, body: bytes) -> None:
        hub = self.hub
        if kind in (wire.SUBMIT_JOB, wire.SUBMIT_JOB_BG):
            hub.submitted(self, body, is_foreground=kind == wire.SUBMIT_JOB)
        elif kind == wire.WORK_COMPLETE:
            hub.completed(body)
        elif kind == wire.GRAB_JOB:
            if not hub.ready:
                hub.send(self, wire.NO_JOB_PACKET)
                return
            serial = hub.ready.popleft()
            function, payload, _ = hub.jobs[serial]
            assigned = b"H:c:%d\0%s\0%s" % (serial, function, payload)
            hub.send(self, wire.encode_response(wire.JOB_ASSIGN, assigned))
        elif kind == wire.PRE_SLEEP:
            if hub.ready:
                hub.send(self, wire.NOOP_PACKET)
            else:
                hub.asleep.append(self)
        elif kind == wire.ECHO_REQ:
            hub.send(self, wire.encode_response(wire.ECHO_RES, body))


async def serve(file: Path, link: socket.socket | None) -> None:
    loop = asyncio.get_running_loop()
    hub = Hub(loop, link)
    server = await loop.create_server(lambda: Connection(hub), "127.0.0.1", 0)
    draft = file.with_suffix(".part")
    draft.write_text(str(server.sockets[0].getsockname()[1]))
    draft.rename(file)
    await server.serve_forever()


def main(file: Path, journal: Path | None = None) -> None:
    link = None
    if journal is not None:
        link, writers = socket.socketpair()
        if os.fork() == 0:
            link.close()
            write_journal(journal, writers)
            return
        writers.close()
    uvloop.run(serve(file, link))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
