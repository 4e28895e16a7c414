"""WMP on one socket, as a manager: messages of all its peers become commands, replies become
messages.

There are no connections here: a worker is the path of its messages, and a lease is proved by its
token on any path. Invalid messages are dropped and counted, since the protocol has no errors for
workers. Clause ids in comments (W…) are those of ``docs/protocols/wmp.md``.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.events import Event
from manyhands.model.identity import chosen_routing_id
from manyhands.model.job import FINISHED
from manyhands.protocols.wmp.codec import (
    ECHO_BYTES_MAX,
    Command,
    Control,
    Malformation,
    Packet,
    Path,
    WireError,
    decode,
    unpack,
)
from manyhands.protocols.wmp.gives import Give, Giving
from manyhands.protocols.wmp.holdings import Holdings
from manyhands.protocols.wmp.hub import Hub
from manyhands.protocols.wmp.readiness import Choose, Readiness, oldest
from manyhands.protocols.wmp.reports import Reporting
from manyhands.protocols.wmp.submits import Submitting

# Pending answers; above this, nothing more is read until some are sent.
AWAITED_COUNT_MAX: Final = 10_000
TTL_MS: Final = 60_000
_TTL_MS_MAX: Final = 3_600_000
_LOCK_MS: Final = 5_000
# Jobs at once: all of them may wait for one peer, and what waits for a peer is bounded.
_SLOTS_MAX: Final = 1_000
_WAIT_MS_MAX: Final = 10 * 60 * 1000
_ROLES_COUNT_MAX: Final = 256


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of the listener."""

    manager: str  # the name by which workers know this server
    lease_ms: int | None = 60_000  # None: no expiry
    wake_all: bool = False
    choose: Choose = oldest
    payload_bytes_max: int = limits.PAYLOAD_BYTES_MAX


class WmpSession:
    """All peers of one socket."""

    def __init__(self, hub: Hub, settings: Settings) -> None:
        self.hub = hub
        self.received: dict[Command, int] = dict.fromkeys(Command, 0)
        manager = settings.manager.encode()
        self.readiness = Readiness(hub, manager, settings.choose, wake_all=settings.wake_all)
        self.holdings = Holdings(hub, manager)
        self.giving = Giving(hub, self.readiness, self.holdings, manager, settings.lease_ms)
        self.submitting = Submitting(hub, settings.payload_bytes_max)
        self._reporting = Reporting(hub, self.holdings, settings.payload_bytes_max)

    # The listener's side.

    receive_short = None  # messages have more frames

    def receive(self, frames: list[bytes]) -> None:
        """Handles a message: the peer's routing id and all its frames. Errors are counted and
        affect no other peer (W9).
        """
        peer = frames[0]
        try:
            packet = unpack(frames[1:])
            if packet.route:
                # The peer took this server for a device.
                raise WireError(Malformation.HOPS, "the route does not end here")
            control = decode(packet.control)
            self._take((peer, *packet.trail), packet, control)
        except WireError as error:
            self.hub.report_dropped(error.kind.value, peer, str(error))

    def overflowed(self, peer: bytes) -> None:
        """A message with more frames than allowed; the rest of it was dropped."""
        self.hub.report_dropped(Malformation.FRAMES.value, peer, "it has too many frames")

    def is_overwhelmed(self) -> bool:
        """Whether so many answers are pending that no more messages should be read."""
        awaited = self.giving.awaited_count + self._reporting.awaited_count
        return awaited + self.submitting.awaited_count > AWAITED_COUNT_MAX

    def committed(self, events: Iterable[Event]) -> None:
        """State changes of all protocols are on disk. They are skipped if no peer here has work or
        waits for any.
        """
        if not (len(self.holdings) or self.submitting.watches_count):
            return
        for event in events:
            self.holdings.committed(event)
            if event.state in FINISHED:
                self.submitting.ended(event.job_id)

    def drain(self) -> None:
        """The server is about to stop: answers everything that is held."""
        self.giving.let_all_go()
        self.submitting.let_all_go()

    # Messages.

    def _take(self, path: Path, packet: Packet, control: Control) -> None:
        command, payload = control.command, packet.payload
        if command is Command.READY:
            _want_no(payload)
            self._on_ready(path, control)
        elif command is Command.GIVE:
            _want_no(payload)
            self._on_give(path, control)
        elif command is Command.DONE:
            self._reporting.done(path, control, payload)
        elif command is Command.STATUS:
            self._reporting.status(path, control, payload)
        elif command not in _OF_CLIENTS:
            raise WireError(Malformation.SIGNATURE, f"{command.name} is sent by managers only")
        elif len(path) > 1:
            raise WireError(Malformation.HOPS, "submitters speak to a manager directly")
        else:
            self.submitting.receive(path, control, payload)
        self.received[command] += 1

    def _on_ready(self, path: Path, control: Control) -> None:
        roles = _roles(control)
        slots = max(1, control.number(b"slots", 1, _SLOTS_MAX))
        ttl_ms = control.number(b"ttl", TTL_MS, _TTL_MS_MAX)
        identity = _identity(path, control)
        sentence = self.hub.refusal_to_work(roles)
        if sentence is not None:
            self.hub.report_dropped("not_allowed", path[0], sentence)
        elif not self.readiness.announce(path, roles, slots, ttl_ms, identity):
            self.hub.report_dropped("full", path[0], "too many workers are ready already")

    def _on_give(self, path: Path, control: Control) -> None:
        lock = control.need(b"lock", ECHO_BYTES_MAX)
        count = control.number(b"n", 1, _SLOTS_MAX)
        lock_ms = control.number(b"timeout", _LOCK_MS, _WAIT_MS_MAX)
        # After the lock's own time an answer would come too late.
        wait_ms = min(control.number(b"wait", 0, _WAIT_MS_MAX), lock_ms)
        roles = _roles(control)
        identity = _identity(path, control)
        if count == 0:
            raise WireError(Malformation.VALUE, "n is 0")
        entry = self.readiness.asked(path)
        if entry is not None and b"identity" not in control.properties:
            identity = entry.identity
        give = Give(
            path=path,
            lock=lock,
            queues=roles or (entry.roles if entry is not None else ()),
            count=count,
            until=self.hub.now() + wait_ms if wait_ms else 0,
            identity=identity,
        )
        self.giving.give(give)
        if entry is not None and entry.woken_for:
            # It may have asked for less than was announced to it.
            self.readiness.look(entry.woken_for)


_OF_CLIENTS: Final = frozenset({Command.SUBMIT, Command.FETCH, Command.CLOSE})


def _want_no(payload: bytes | None) -> None:
    if payload is not None:
        raise WireError(Malformation.PAYLOAD, "a payload where none belongs")


def _roles(control: Control) -> tuple[str, ...]:
    roles = control.texts(b"role")
    for role in roles:
        if not 0 < len(role.encode()) <= limits.QUEUE_NAME_BYTES_MAX:
            raise WireError(Malformation.VALUE, "a role is empty or too long")
    if len(roles) > _ROLES_COUNT_MAX:
        raise WireError(Malformation.VALUE, f"more than {_ROLES_COUNT_MAX} roles")
    return roles


def _identity(path: Path, control: Control) -> str:
    """The worker's own name, or the routing id where its path begins."""
    given = control.text(b"identity")
    if not given:
        return chosen_routing_id(path[-1]).hex()
    if len(given.encode()) > limits.HOLDER_NAME_BYTES_MAX:
        raise WireError(Malformation.VALUE, "the identity is too long")
    return given
