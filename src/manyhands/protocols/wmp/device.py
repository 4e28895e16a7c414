"""What a device does with a message: where it goes next, or why it is dropped (W50 to W56).

A device stands between workers and managers and keeps no state: all it needs is in the message.
Control and payload pass unread and unchanged except for the signature.
"""

import enum
from collections.abc import Sequence

from manyhands.protocols.wmp.codec import (
    HOPS_MAX,
    MANAGER,
    WORKER,
    Command,
    Malformation,
    Packet,
    WireError,
    pack,
    signature_of,
    unpack,
)

_READY_OCTET = int(Command.READY)


class Drop(enum.StrEnum):
    """Why a message went no further, besides being malformed."""

    LOOP = "loop"  # it has been here before
    DEAD_END = "dead_end"  # its route ends here, or leads to a manager unknown to this device
    UNREACHABLE = "unreachable"  # no such peer


class Device:
    """The rules and the counters."""

    def __init__(self, own_id: bytes, labels: Sequence[bytes]) -> None:
        self.counts: dict[str, int] = {"up": 0, "down": 0}
        self.dropped: dict[str, int] = {}
        self._own_id = own_id
        self._labels = tuple(labels)
        self._known = frozenset(labels)

    def up(self, peer: bytes, frames: Sequence[bytes]) -> list[tuple[bytes, list[bytes]]]:
        """From a worker's side: the managers to send to, by label, and the frames."""
        try:
            packet = unpack(frames)
            if signature_of(packet.control) != WORKER:
                raise WireError(Malformation.SIGNATURE, "only workers speak from that side")
        except WireError as error:
            self.drop(error.kind.value)
            return []
        if peer == self._own_id or self._own_id in packet.trail:
            self.drop(Drop.LOOP)
            return []
        if len(packet.trail) >= HOPS_MAX:
            self.drop(Malformation.HOPS)
            return []
        trail = (peer, *packet.trail)
        route = packet.route
        if route:
            label, route = route[0], route[1:]
            if label not in self._known:
                self.drop(Drop.DEAD_END)
                return []
            labels: tuple[bytes, ...] = (label,)
        elif packet.control[6] == _READY_OCTET:
            labels = self._labels
        else:
            self.drop(Drop.DEAD_END)
            return []
        self.counts["up"] += 1
        onward = pack(Packet(route, trail, packet.control, packet.payload))
        return [(label, onward) for label in labels]

    def down(self, label: bytes, frames: Sequence[bytes]) -> list[bytes]:
        """From a manager: the frames for the workers' side, receiver first; empty: nothing
        to send.
        """
        try:
            packet = unpack(frames)
            if signature_of(packet.control) != MANAGER:
                raise WireError(Malformation.SIGNATURE, "only managers speak from that side")
        except WireError as error:
            self.drop(error.kind.value)
            return []
        if not packet.route:
            self.drop(Drop.DEAD_END)
            return []
        if len(packet.trail) >= HOPS_MAX:
            self.drop(Malformation.HOPS)
            return []
        self.counts["down"] += 1
        trail = (label, *packet.trail)
        return pack(Packet(packet.route, trail, packet.control, packet.payload))

    def drop(self, kind: str) -> int:
        """Counts it; returns how many there were of this kind."""
        count = self.dropped[str(kind)] = self.dropped.get(str(kind), 0) + 1
        return count
