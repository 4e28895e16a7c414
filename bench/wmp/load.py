"""WMP workers and a submitter for the benchmark, in one process and one thread.

    python bench/wmp/load.py fill  ADDRESS COUNT            submit COUNT jobs, pipelined
    python bench/wmp/load.py work  ADDRESS WORKERS SLOTS COUNT
    python bench/wmp/load.py idle  ADDRESS WORKERS COUNT MANAGER     jobs one at a time
    python bench/wmp/load.py echo  ADDRESS PEERS DEPTH COUNT

Each prints one line of JSON. The workers are those of the package, as in `manyhands wmp work`;
their jobs do nothing.
"""

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable

import zmq

from manyhands.client.wmp_held import End, Held
from manyhands.client.wmp_rules import Rules
from manyhands.protocols.wmp.codec import Command, Packet, decode, encode, pack, unpack

IN_FLIGHT = 500
PAYLOAD = b"x" * 100


def milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000


def dealer(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> "zmq.Socket[bytes]":
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.ROUTING_ID, b"\1" + os.urandom(16))
    made.connect(f"tcp://{address}")
    return made


class Hand:
    """One worker: the socket around its rules."""

    def __init__(self, link: "zmq.Socket[bytes]", slots: int, number: int) -> None:
        self.link = link
        self.messages = 0
        self.recorded_count = 0
        self._begun: list[Held] = []
        chance = random.Random(number).random
        self.rules = Rules(self, 1, roles=("bench",), slots=slots, chance=chance)

    def send(self, _link: int, frames: list[bytes]) -> bool:
        self.messages += 1
        self.link.send_multipart(frames)
        return True

    def begin(self, job: Held) -> None:
        self._begun.append(job)

    def cancel(self, job: Held) -> None:
        """Does nothing: there is nothing to stop."""

    def recorded(self, _job: Held, _reason: bytes) -> None:
        self.recorded_count += 1

    def read(self, now: int) -> None:
        """Reads everything that has arrived, then works, then sends what follows."""
        try:
            while True:
                frames = self.link.recv_multipart(zmq.DONTWAIT)
                self.messages += 1
                self.rules.receive(0, frames, now)
        except zmq.Again:
            pass
        self.finish(now)

    def finish(self, now: int) -> None:
        begun, self._begun = self._begun, []
        for job in begun:
            self.rules.finish(job, End.OK, job.data, now)
        self.rules.turn(now)


def run_hands(hands: list[Hand], enough: Callable[[], bool], poller: zmq.Poller) -> None:
    by_socket = {hand.link: hand for hand in hands}
    while not enough():
        found = poller.poll(100)
        now = milliseconds()
        for socket, _ in found:
            if socket in by_socket:
                by_socket[socket].read(now)
        if not found:
            for hand in hands:
                hand.finish(now)


def make_hands(address: str, count: int, slots: int) -> tuple[list[Hand], zmq.Poller]:
    context = zmq.Context()
    hands = [Hand(dealer(context, address), slots, number) for number in range(count)]
    poller = zmq.Poller()
    for hand in hands:
        poller.register(hand.link, zmq.POLLIN)
        hand.finish(milliseconds())
    return hands, poller


def work(address: str, workers: int, slots: int, count: int) -> dict[str, float]:
    hands, poller = make_hands(address, workers, slots)
    started = time.monotonic()
    run_hands(hands, lambda: sum(hand.recorded_count for hand in hands) >= count, poller)
    seconds = time.monotonic() - started
    messages = sum(hand.messages for hand in hands)
    return {"jobs": count, "seconds": seconds, "messages": messages}


def submit(link: "zmq.Socket[bytes]") -> None:
    control = encode(Command.SUBMIT, (b"request", b"r"), (b"role", b"bench"))
    link.send_multipart(pack(Packet((), (), control, PAYLOAD)))


def fill(address: str, count: int) -> dict[str, float]:
    link = dealer(zmq.Context(), address)
    started = time.monotonic()
    sent = heard = 0
    while heard < count:
        while sent < count and sent - heard < IN_FLIGHT:
            submit(link)
            sent += 1
        reply = decode(unpack(link.recv_multipart()).control)
        assert reply.get(b"code") == b"200", reply.get(b"reason")
        heard += 1
    return {"jobs": count, "seconds": time.monotonic() - started}


def idle(address: str, workers: int, count: int, manager: str) -> dict[str, float]:
    """Measures idle workers that get jobs one at a time."""
    hands, poller = make_hands(address, workers, 1)
    deadline = time.monotonic() + 1.0
    run_hands(hands, lambda: time.monotonic() > deadline, poller)
    link = dealer(zmq.Context(), manager)
    poller.register(link, zmq.POLLIN)
    before = sum(hand.messages for hand in hands)
    took = []
    for number in range(count):
        started = time.monotonic()
        submit(link)
        run_hands(
            hands,
            lambda number=number: sum(hand.recorded_count for hand in hands) > number,  # type: ignore[misc]
            poller,
        )
        link.recv_multipart()
        took.append(time.monotonic() - started)
    messages = sum(hand.messages for hand in hands) - before
    return {"jobs": count, "messages": messages, "p50_ms": sorted(took)[count // 2] * 1000}


def echo(address: str, peers: int, depth: int, count: int) -> dict[str, float]:
    """Measures round trips of messages with five frames, as many as a GIVE or a DONE has."""
    context = zmq.Context()
    poller = zmq.Poller()
    links = [dealer(context, address) for _ in range(peers)]
    frames = [b"", b"", b"c" * 80, PAYLOAD]
    for link in links:
        poller.register(link, zmq.POLLIN)
        for _ in range(depth):
            link.send_multipart(frames)
    heard = 0
    started = time.monotonic()
    while heard < count:
        for found, _ in poller.poll(1000):
            try:
                while True:
                    answer = found.recv_multipart(zmq.DONTWAIT)
                    heard += 1
                    found.send_multipart(answer)
            except zmq.Again:
                pass
    return {"jobs": heard, "seconds": time.monotonic() - started}


def main() -> None:
    what, address, *numbers = sys.argv[1:]
    actions: dict[str, Callable[..., dict[str, float]]] = {
        "work": work,
        "fill": fill,
        "echo": echo,
        "idle": idle,
    }
    given = [int(text) if text.isdigit() else text for text in numbers]
    found = actions[what](address, *given)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**found, "load_cpu": usage.ru_utime + usage.ru_stime}))
    sys.stdout.flush()
    os._exit(0)  # messages in flight need not arrive


if __name__ == "__main__":
    main()
