"""Moves queued background jobs from one Gearman server to another, such as from gearmand.

    python examples/move_gearman_jobs.py OLD_HOST:PORT NEW_HOST:PORT [FUNCTION ...]

Without functions, it moves all that the old server lists. As a worker of the old server, it takes
each job and submits it to the new one, with its function, unique, data, reducer and priority; the
job is completed at the old server only when the new one has it on disk. If interrupted, nothing is
lost, but one job may be there twice, unless it has a unique.

Clients and workers should use the new server by then. If a client of the old server still waits for
a job, the program stops: that job is not moved. The old server hands out jobs for later
(SUBMIT_JOB_EPOCH) only when their time has come; run the program again then.
"""

import socket
import struct
import sys

CAN_DO, CANT_DO = 1, 2
JOB_CREATED = 8
NO_JOB = 10
WORK_COMPLETE = 13
ERROR = 19
SUBMIT_REDUCE_JOB_BACKGROUND = 38
GRAB_JOB_ALL, JOB_ASSIGN_ALL = 39, 40
GET_STATUS_UNIQUE = 41
# Background jobs of high, normal and low priority.
NORMAL = 18
SUBMITS = (32, NORMAL, 34)
NONE = [0, 0, 0]


class Link:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.file = self.socket.makefile("rb")

    def send(self, kind: int, *words: bytes) -> None:
        body = b"\0".join(words)
        self.socket.sendall(b"\0REQ" + struct.pack(">II", kind, len(body)) + body)

    def ask(self, kind: int, *words: bytes) -> tuple[int, bytes]:
        """Send a packet and return the type and the body of its answer."""
        self.send(kind, *words)
        header = self.file.read(12)
        if len(header) < 12:
            raise SystemExit("the server closed the connection")
        kind, length = struct.unpack(">4xII", header)
        body = self.file.read(length)
        if kind == ERROR:
            raise SystemExit(f"refused: {body.replace(bytes(1), b' ').decode('utf-8', 'replace')}")
        return kind, body

    def listing(self, command: bytes) -> list[list[bytes]]:
        """Return the answer to an admin command, a list of fields for each line."""
        self.socket.sendall(command + b"\n")
        lines = []
        while (line := self.file.readline().rstrip(b"\r\n")) != b".":
            lines.append(line.split(b"\t"))
        return lines


def waiting(server: Link) -> dict[bytes, list[int]]:
    """Count the queued jobs of each function: high, normal, low."""
    rows = server.listing(b"prioritystatus")
    # A name with a TAB makes an ambiguous line: such a function has to be named as an argument.
    return {row[0]: list(map(int, row[1:4])) for row in rows if len(row) == 5}


def move(old: Link, new: Link, function: bytes) -> int:
    """Move all jobs of a function that the old server hands out."""
    old.send(CAN_DO, function)
    moved = 0
    before = waiting(old).get(function, NONE)
    while (answer := old.ask(GRAB_JOB_ALL))[0] != NO_JOB:
        kind, body = answer
        reducer = b""
        if kind == JOB_ASSIGN_ALL:
            handle, _, unique, reducer, data = body.split(b"\0", 4)
        else:
            handle, _, unique, data = body.split(b"\0", 3)
        if unique and int(old.ask(GET_STATUS_UNIQUE, unique)[1].split(b"\0")[-1]):
            raise SystemExit(f"a client still waits for {handle.decode()}, which stays where it is")
        # A worker does not learn the priority of its job: the one whose count went down is it.
        after = waiting(old).get(function, NONE)
        levels = [level for level in range(3) if after[level] < before[level]]
        submit = SUBMITS[levels[0]] if levels else NORMAL
        before = after
        if reducer:
            new.ask(SUBMIT_REDUCE_JOB_BACKGROUND, function, unique, reducer, data)
        else:
            new.ask(submit, function, unique, data)
        old.send(WORK_COMPLETE, handle, b"")
        moved += 1
    old.send(CANT_DO, function)
    return moved


def main(old_address: str, new_address: str, *functions: str) -> None:
    old, new = Link(old_address), Link(new_address)
    for function in [name.encode() for name in functions] or sorted(waiting(old)):
        moved = move(old, new, function)
        print(f"{function.decode('utf-8', 'replace')}: {moved} moved", flush=True)
    for row in old.listing(b"status"):
        if row[-3] != b"0":
            name = b" ".join(row[:-3]).decode("utf-8", "replace")
            print(f"{name}: {row[-3].decode()} left, running or for later")


if __name__ == "__main__":
    main(*sys.argv[1:])
