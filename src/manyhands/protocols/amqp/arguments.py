"""Arguments of a queue declaration: each is honoured, or refused with a sentence."""

from typing import Any, Final

from msgspec import Struct

from manyhands.net.amqp import AmqpError, Code

# A bounded queue keeps a number for each waiting message: at most a few megabytes.
BOUND_COUNT_MAX: Final = 1_000_000
_NUMBERS: Final = {
    "x-expires": "x-expires is a number of milliseconds above 0",
    "x-max-length": "x-max-length is a number of messages above 0",
    "x-max-length-bytes": "x-max-length-bytes is a number of bytes above 0",
}
# Irrelevant where every queue is a position in a log.
_IGNORED: Final = frozenset({"x-queue-type", "x-max-age"})


class Bounds(Struct, frozen=True):
    """How much may wait in a queue; beyond that, the oldest messages are dropped. None: as much as
    the log holds.
    """

    count_max: int | None = None
    bytes_max: int | None = None  # of bodies


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raises AmqpError unless all arguments are supported."""
    for name, value in arguments.items():
        if name in _NUMBERS:
            if type(value) is not int or value <= 0:
                raise AmqpError(Code.PRECONDITION_FAILED, _NUMBERS[name])
        elif name == "x-overflow":
            if value != "drop-head":
                raise AmqpError(
                    Code.PRECONDITION_FAILED,
                    "x-overflow is drop-head: nothing can be published here, so nothing rejected",
                )
        elif name not in _IGNORED:
            raise AmqpError(
                Code.PRECONDITION_FAILED,
                f"the argument '{name}' is not supported: a queue is a position in the event log",
            )
        elif not isinstance(value, str):
            raise AmqpError(Code.PRECONDITION_FAILED, f"the argument '{name}' is a text")


def expires_ms_of(arguments: dict[str, Any]) -> int | None:
    """How long the queue may be unused before it is deleted."""
    found: int | None = arguments.get("x-expires")
    return found


def bounds_of(arguments: dict[str, Any]) -> Bounds | None:
    """The bounds of the queue, or None if only the log bounds it."""
    count_max = arguments.get("x-max-length")
    bytes_max = arguments.get("x-max-length-bytes")
    if count_max is None and bytes_max is None:
        return None
    return Bounds(min(count_max or BOUND_COUNT_MAX, BOUND_COUNT_MAX), bytes_max)
