"""A WMP device as a program: one ROUTER towards workers, one DEALER for each manager."""

import functools
import hashlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from manyhands.access.curve_keys import CurveKeys, as_text
from manyhands.dispatch.clock import Clock
from manyhands.loggers import get_logger
from manyhands.protocols.wmp.codec import FRAMES_MAX
from manyhands.protocols.wmp.device import Device, Drop
from manyhands.protocols.wmp.doorkeeper import Accepts, Doorkeeper

_log = get_logger("manyhands.device")

_QUEUE_COUNT_MAX: Final = 1_000
_MESSAGE_BYTES_MAX: Final = 65 * 1024 * 1024
_HEARTBEAT_MS: Final = 10_000
_SILENCE_MS: Final = 30_000
_HANDSHAKE_MS: Final = 10_000
_SLICE_COUNT: Final = 200
_LINGER_MS: Final = 500
_STOP_MS: Final = 250  # how soon a stop is noticed
_REACH_MS: Final = 1_000


def label_of(url: str) -> bytes:
    """Constant for a manager across restarts."""
    return hashlib.sha256(url.encode()).hexdigest()[:12].encode()


class DeviceProgram:
    """Sockets around the rules. Not thread-safe except for ``stop``."""

    def __init__(
        self,
        listen: str,
        managers: Sequence[str],
        name: str = "",
        encrypt: "Callable[[zmq.Socket[bytes]], None]" = lambda _socket: None,
        keys: CurveKeys | None = None,
        accepts: Accepts | None = None,
    ) -> None:
        """``encrypt`` prepares the sockets that connect to managers. With ``keys``, workers have to
        encrypt, and ``accepts`` decides which of them may connect.
        """
        self._encrypt = encrypt
        self._context = zmq.Context()
        self._doorkeeper = None if accepts is None else Doorkeeper(self._context, accepts)
        self._router = self._context.socket(zmq.ROUTER)
        self._dealers: dict[bytes, zmq.Socket[bytes]] = {}
        self._stopping = False
        try:
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._set_limits(self._router)
            if keys is not None:
                self._router.setsockopt(zmq.CURVE_SERVER, 1)
                self._router.setsockopt(zmq.CURVE_SECRETKEY, as_text(keys.secret).encode())
            self._bind(listen)
            self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
            # The name managers know it by, constant across restarts, since leases outlive it.
            called = name or f"{socket.gethostname()}/{self.address}"
            own_id = b"\1" + hashlib.sha256(called.encode()).digest()[:16]
            for manager in dict.fromkeys(managers):
                url = manager if "://" in manager else f"tcp://{manager}"
                self._dealers[label_of(url)] = self._connect(url, own_id)
        except OSError:
            self._context.destroy(linger=0)
            raise
        self.device = Device(own_id, list(self._dealers))

    def _bind(self, listen: str) -> None:
        try:
            if listen.startswith("["):
                self._router.setsockopt(zmq.IPV6, 1)
            self._router.bind(f"tcp://{listen}")
        except zmq.ZMQError as error:
            raise OSError(f"the device cannot listen on {listen}: {error.strerror}") from None

    def _connect(self, url: str, own_id: bytes) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, own_id)
        self._encrypt(dealer)
        # Messages sent while no peer is connected would be stale once one is.
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        self._set_limits(dealer)
        try:
            dealer.connect(url)
        except zmq.ZMQError as error:
            raise OSError(f"{url} is no address: {error.strerror}") from None
        return dealer

    def _set_limits(self, each: "zmq.Socket[bytes]") -> None:
        each.setsockopt(zmq.SNDHWM, _QUEUE_COUNT_MAX)
        each.setsockopt(zmq.RCVHWM, _QUEUE_COUNT_MAX)
        each.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        each.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        each.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        each.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)
        each.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)

    def reach_managers(self, ms_max: int = _REACH_MS) -> int:
        """Waits briefly for managers to connect: an earlier READY would be dropped, and a worker
        repeats it only after a while. Returns how many are connected; others may follow.
        """
        now_ms = Clock().monotonic_ms
        until_ms = now_ms() + ms_max
        missing = set(self._dealers.values())
        while missing and not self._stopping and (left_ms := until_ms - now_ms()) > 0:
            # With IMMEDIATE, a socket accepts messages only while a peer is connected.
            _, reached, _ = zmq.select([], list(missing), [], min(left_ms, _STOP_MS) / 1000)
            missing.difference_update(reached)
        return len(self._dealers) - len(missing)

    def stop(self) -> None:
        """May be called from a signal handler or another thread."""
        self._stopping = True

    def run(self) -> None:
        """Forwards messages until stopped."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        doorkeeper = self._doorkeeper
        if doorkeeper is not None:
            poller.register(doorkeeper.socket, zmq.POLLIN)
        labels: dict[zmq.Socket[bytes], bytes] = {}
        for label, dealer in self._dealers.items():
            poller.register(dealer, zmq.POLLIN)
            labels[dealer] = label
        try:
            while not self._stopping:
                for found, _ in poller.poll(_STOP_MS):
                    if doorkeeper is not None and found is doorkeeper.socket:
                        doorkeeper.answer()
                    elif found is self._router:
                        self._read(found, self._carry_up)
                    else:
                        self._read(found, functools.partial(self._carry_down, labels[found]))
        finally:
            self._context.destroy(linger=_LINGER_MS)

    def _read(self, source: "zmq.Socket[bytes]", carry: Callable[[list[bytes]], None]) -> None:
        """Reads a slice, so that each side gets its turn."""
        for _ in range(_SLICE_COUNT):
            try:
                frames = [source.recv(zmq.DONTWAIT)]
            except zmq.Again:
                return
            count = 1
            while source.getsockopt(zmq.RCVMORE):
                frame = source.recv(zmq.DONTWAIT)
                count += 1
                if count <= FRAMES_MAX:
                    frames.append(frame)
            if count > FRAMES_MAX:
                self._note("frames")
            else:
                carry(frames)

    def _carry_up(self, frames: list[bytes]) -> None:
        before = sum(self.device.dropped.values())
        for label, onward in self.device.up(frames[0], frames[1:]):
            try:
                self._dealers[label].send_multipart(onward, zmq.DONTWAIT)
            except zmq.ZMQError:
                self._note(Drop.UNREACHABLE)
        self._log_new_drops(before)

    def _carry_down(self, label: bytes, frames: list[bytes]) -> None:
        before = sum(self.device.dropped.values())
        onward = self.device.down(label, frames)
        if onward:
            try:
                self._router.send_multipart(onward, zmq.DONTWAIT)
            except zmq.ZMQError:
                self._note(Drop.UNREACHABLE)
        self._log_new_drops(before)

    def _note(self, kind: str) -> None:
        before = sum(self.device.dropped.values())
        self.device.drop(kind)
        self._log_new_drops(before)

    def _log_new_drops(self, before: int) -> None:
        count = sum(self.device.dropped.values())
        # Logs the first, second, fourth, … one, so that a peer cannot fill the disk.
        if count != before and count & (count - 1) == 0:
            _log.warning("messages were dropped", count=count, **self.device.dropped)
