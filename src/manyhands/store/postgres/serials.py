"""Serials without asking anybody: seconds since 2026, the slot of the server, a number.

They are unique over all servers, in order of arrival to the second, and below 2^53.
"""

from typing import Final

_EPOCH_SECONDS: Final = 1_767_225_600  # 2026-01-01
_SLOT_BITS: Final = 7
_NUMBER_BITS: Final = 16
_SECOND_BITS: Final = _SLOT_BITS + _NUMBER_BITS
NUMBERS_COUNT: Final = 1 << _NUMBER_BITS


def first_serial(second: int, slot: int) -> int:
    """The serial before the first one of a server in a second, counted since 2026."""
    return (second << _SECOND_BITS) | (slot << _NUMBER_BITS)


def second_of(serial: int) -> int:
    """The second in a serial."""
    return serial >> _SECOND_BITS


def second_at(now_ms: int) -> int:
    """The second of an instant."""
    return max(0, now_ms // 1000 - _EPOCH_SECONDS)


def has_room(serial: int, count: int) -> bool:
    """Whether so many more fit into the second of this serial."""
    return (serial & (NUMBERS_COUNT - 1)) + count < NUMBERS_COUNT
