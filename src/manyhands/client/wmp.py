"""A WMP worker to import: any number of managers, any number of jobs at once.

    worker = Worker(["jobs-1:7714", "jobs-2:7714"], handle, roles=["mail"], slots=8)
    worker.run()

``handle`` gets a ``Job``, in its own thread, and returns the result as bytes. Any exception is
reported as an error, and the job is retried later; ``Failed`` is final.
"""

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from manyhands.client.curve import encrypt
from manyhands.client.wmp_held import End, Held
from manyhands.client.wmp_rules import Rules

Handler = Callable[["Job"], bytes | None]

_QUEUE_COUNT_MAX: Final = 1_000
_HEARTBEAT_MS: Final = 10_000
_SILENCE_MS: Final = 30_000
_RECONNECT_MS: Final = 100
_RECONNECT_MS_MAX: Final = 2_000
_DRAIN_COUNT: Final = 200
_FAREWELL_SECONDS: Final = 10.0
_MESSAGE_BYTES: Final = 2_000


class Failed(Exception):  # noqa: N818 - it is what a handler says, no error of ours
    """The job failed, and a retry would not help."""


class Refused(Exception):  # noqa: N818
    """The job is given back; the attempt is not charged."""


class Job:
    """One attempt at a job, as a handler sees it."""

    def __init__(self, worker: "Worker", held: Held) -> None:
        self.id = held.job_id.decode("ascii", "replace")
        self.role = held.role
        self.name = held.name
        self.attempt = held.attempt
        self.manager = held.manager.decode(errors="replace")
        self.payload = held.data
        self.cancelled = threading.Event()  # the result is no longer wanted
        self.on_cancel: Callable[[], None] | None = None
        self._worker = worker
        self._held = held

    def report(self, numerator: int, denominator: int, data: bytes | None = None) -> None:
        """Reports progress; ``data`` is a piece of the result."""
        rules = self._worker.rules
        self._worker.post(lambda now: rules.progress(self._held, numerator, denominator, data, now))


class Worker:
    """Runs until ``stop`` is called. One thread for the sockets, one for each job.

    ``farewell_seconds`` is how long it then waits, after its last job, for all results to be
    recorded; managers may be unreachable.
    """

    def __init__(
        self,
        managers: Sequence[str],
        handler: Handler,
        *,
        roles: Sequence[str] = (),
        slots: int = 1,
        identity: str = "",
        farewell_seconds: float = _FAREWELL_SECONDS,
        on_recorded: Callable[[Job, str], None] | None = None,
    ) -> None:
        if not managers:
            raise ValueError("a worker needs at least one manager")
        if slots < 1:
            raise ValueError("a worker needs at least one slot")
        self._urls = [url if "://" in url else f"tcp://{url}" for url in managers]
        self._handler = handler
        self._slots = slots
        self._farewell_ms = int(farewell_seconds * 1000)
        self._on_recorded = on_recorded
        self._posts: queue.SimpleQueue[Callable[[int], None]] = queue.SimpleQueue()
        self._jobs: dict[bytes, Job] = {}
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: list[zmq.Socket[bytes]] = []
        self._bell_lock = threading.Lock()
        self._bell: zmq.Socket[bytes] | None = self._context.socket(zmq.PAIR)
        self._bell.bind("inproc://bell")
        self._pool = ThreadPoolExecutor(slots, "wmp-job")
        self.rules = Rules(
            self,
            len(self._urls),
            roles=tuple(roles),
            slots=slots,
            identity=identity,
            chance=lambda: secrets.randbelow(1_001) / 1_000,
        )

    # Called from any thread.

    def stop(self) -> None:
        """Takes no more jobs; ``run`` returns when the present ones are finished and recorded, and
        those in flight are given back.
        """
        self._stopping.set()
        self.post(lambda _now: None)

    def post(self, what: Callable[[int], None]) -> None:
        """Runs something in the thread of the sockets."""
        self._posts.put(what)
        with self._bell_lock:
            if self._bell is not None:
                with contextlib.suppress(zmq.Again):  # it rings already
                    self._bell.send(b"", zmq.DONTWAIT)

    # The thread of the sockets.

    def run(self) -> None:
        """Works until ``stop``. Raises OSError if a manager's address is invalid."""
        ear = self._context.socket(zmq.PAIR)
        ear.connect("inproc://bell")
        poller = zmq.Poller()
        poller.register(ear, zmq.POLLIN)
        try:
            self._connect(poller)
            self._work(poller, ear)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            with self._bell_lock:
                if self._bell is not None:
                    self._bell.close(linger=0)
                    self._bell = None
            for monitor in self._monitors:
                monitor.close(linger=0)
            self._context.destroy(linger=500)

    def _connect(self, poller: zmq.Poller) -> None:
        # Constant for the process, so that managers recognise a new connection.
        routing_id = b"\1" + secrets.token_bytes(16)
        for url in self._urls:
            dealer = self._context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.ROUTING_ID, routing_id)
            encrypt(dealer)
            # Messages queued while the peer is unreachable would be outdated when it is back.
            dealer.setsockopt(zmq.IMMEDIATE, 1)
            dealer.setsockopt(zmq.SNDHWM, _QUEUE_COUNT_MAX)
            dealer.setsockopt(zmq.RCVHWM, _QUEUE_COUNT_MAX)
            dealer.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
            dealer.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)
            dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
            monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._sockets.append(dealer)
            self._monitors.append(monitor)
            poller.register(dealer, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            try:
                dealer.connect(url)
            except zmq.ZMQError as error:
                raise OSError(f"{url} is no address: {error.strerror}") from None

    def _work(self, poller: zmq.Poller, ear: "zmq.Socket[bytes]") -> None:
        numbers = {dealer: number for number, dealer in enumerate(self._sockets)}
        watched = {monitor: number for number, monitor in enumerate(self._monitors)}
        rules = self.rules
        farewell_at: int | None = None
        wait_ms = 0
        while True:
            found = [pair[0] for pair in poller.poll(wait_ms)]
            now = _now()
            for socket in found:
                if socket is ear:
                    self._drain_posts(ear, now)
                elif socket in watched:
                    recv_monitor_message(socket, zmq.DONTWAIT)
                    rules.connected(watched[socket], now)
                else:
                    self._read(socket, numbers[socket], now)
            if self._stopping.is_set():
                rules.stopping = True
                if rules.is_through():
                    farewell_at = farewell_at or now + self._farewell_ms
                    if not rules.kept or now >= farewell_at:
                        return
            wait_ms = rules.turn(now)
            if rules.stopping:
                wait_ms = min(wait_ms, 100)

    def _drain_posts(self, ear: "zmq.Socket[bytes]", now: int) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                ear.recv(zmq.DONTWAIT)
        with contextlib.suppress(queue.Empty):
            while True:
                self._posts.get_nowait()(now)

    def _read(self, dealer: "zmq.Socket[bytes]", number: int, now: int) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(_DRAIN_COUNT):
                self.rules.receive(number, dealer.recv_multipart(zmq.DONTWAIT), now)

    # Called by the rules.

    def send(self, link: int, frames: list[bytes]) -> bool:
        """Sends to a manager or device; returns False if it is not connected."""
        try:
            self._sockets[link].send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def begin(self, held: Held) -> None:
        """Starts a thread for a new job."""
        job = self._jobs[held.lease] = Job(self, held)
        self._pool.submit(self._handle, job, held)

    def cancel(self, held: Held) -> None:
        """Sets the job's ``cancelled`` event and calls the handler's callback, if any."""
        job = self._jobs.get(held.lease)
        if job is not None:
            job.cancelled.set()
            if job.on_cancel is not None:
                job.on_cancel()

    def recorded(self, held: Held, reason: bytes) -> None:
        """Calls the owner's callback, if any."""
        job = self._jobs.pop(held.lease, None)
        if job is not None and self._on_recorded is not None:
            self._on_recorded(job, reason.decode("ascii", "replace"))

    # The threads of the jobs.

    def _handle(self, job: Job, held: Held) -> None:
        data: bytes | None
        try:
            data, end = self._handler(job), End.OK
        except Failed as failure:
            data, end = str(failure).encode(), End.FAIL
        except Refused:
            data, end = None, End.REFUSED
        except Exception as error:  # noqa: BLE001 - it is reported to the manager
            text = f"{type(error).__name__}: {error}"
            data, end = text.encode()[:_MESSAGE_BYTES], End.ERROR
        self.post(lambda now: self._finish(held, end, data, now))

    def _finish(self, held: Held, end: End, data: bytes | None, now: int) -> None:
        self.rules.finish(held, end, data, now)
        if held.cancelled:
            self.recorded(held, b"cancelled")


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
