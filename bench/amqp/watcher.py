"""A cheap watcher: reads deliveries from a socket and counts them. Prints `ready`, then
the count once it is reached.

    python bench/amqp/watcher.py HOST:PORT COUNT OFFSET [ACK_EVERY]

With a COUNT of 0 it prints `ready` and never reads again, until it is killed.
"""

import signal
import socket
import struct
import sys

from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

EXCHANGES = ("task_pending_v1", "task_running_v1", "task_completed_v1", "task_failed_v1")
DELIVER = b"\x00\x3c\x00\x3c"


def say(link: socket.socket, method: object, channel: int = 1) -> None:
    link.sendall(frame.marshal(method, channel))


def main(address: str, count: int, offset: str, ack_every: int) -> None:
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)))
    link.sendall(b"AMQP\x00\x00\x09\x01")
    say(link, Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
    say(link, Connection.TuneOk(0, 131072, 0), 0)
    say(link, Connection.Open("/"), 0)
    say(link, Channel.Open())
    say(link, Basic.Qos(prefetch_count=1_000))
    say(link, Queue.Declare(0, "", exclusive=True))
    for exchange in EXCHANGES:
        say(link, Queue.Bind(0, "", exchange, "*.*.*.*.default.#"))
    arguments = {"x-stream-offset": offset}
    say(link, Basic.Consume(0, "", "w", no_ack=not ack_every, arguments=arguments))
    buffer = b""
    seen = acked = 0
    ready = False
    while seen < count or not ready:
        buffer += link.recv(1 << 18)
        at = 0
        while len(buffer) - at >= 8:
            size = struct.unpack_from(">I", buffer, at + 3)[0]
            if len(buffer) - at < size + 8:
                break
            head = buffer[at + 7 : at + 11]
            if buffer[at] == 1 and head == DELIVER:
                seen += 1
            elif buffer[at] == 1 and head == b"\x00\x3c\x00\x15":
                ready = True
                print("ready", flush=True)
            at += size + 8
        buffer = buffer[at:]
        if ready and ack_every and seen - acked >= ack_every:
            acked = seen
            say(link, Basic.Ack(seen, multiple=True))
    if count == 0:
        signal.pause()
    print(seen, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int((*sys.argv, "0")[4]))
