"""Paths, read as they were sent: segments are decoded one by one, so a queue may hold a slash."""

import functools
from typing import Final
from urllib.parse import unquote_to_bytes

from manyhands.model import limits
from manyhands.protocols.http_envelope import Problem

# First segments that are ours now or are kept for us: none of them is a queue in the short form.
RESERVED: Final = frozenset(
    [
        "get",
        "heartbeat",
        "hearbeat",
        "complete",
        "add",
        "queues",
        "job",
        "jobs",
        "ui",
        "api",
        "events",
        "metrics",
        "healthz",
        "readyz",
        "static",
        "favicon.ico",
        "robots.txt",
        "fail",
        "retry",
        "cancel",
        "requeue",
        "unfail",
        "move",
        "priority",
        "tag",
        "depends",
        "timeout",
        "partial",
        "pause",
        "resume",
        "failed",
        "workers",
        "tags",
        "limits",
        "recurring",
        "unrecur",
        "stats",
        "openapi.json",
        "docs",
        "schemas",
        "0.2.0",
        ".well-known",
    ]
)
_COUNT_DIGITS_MAX: Final = 9  # more digits are a number beyond every bound


def segments(raw_path: bytes) -> list[bytes]:
    """What stands between the slashes; one slash at the end is no segment."""
    parts = raw_path.split(b"/")[1:]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


@functools.lru_cache(maxsize=4096)
def queue_name(segment: bytes) -> str:
    """The queue that a segment names."""
    raw = unquote_to_bytes(segment) if b"%" in segment else segment
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_queue("is not UTF-8") from None
    check_queue(name)
    return name


@functools.lru_cache(maxsize=4096)
def only_queue(raw_path: bytes) -> str:
    """The queue of a path that names nothing else."""
    parts = segments(raw_path)
    if len(parts) != 2:
        raise Problem(404, "not_found", "the path needs the name of one queue")
    return queue_name(parts[1])


def check_queue(name: str) -> None:
    """Raises a problem if no queue can be called that."""
    if not 0 < len(name.encode("utf-8", "replace")) <= limits.QUEUE_NAME_BYTES_MAX:
        raise bad_queue(f"must have 1 to {limits.QUEUE_NAME_BYTES_MAX} bytes")
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name):
        raise bad_queue("has control characters")
    if not name.strip("."):
        raise bad_queue("consists of dots only")


def bad_queue(sentence: str) -> Problem:
    """The answer to a name that cannot be."""
    return Problem(400, "invalid_queue", f"the queue's name {sentence}")


def plain_text(segment: bytes) -> str:
    """Any other segment; what is not UTF-8 names nothing that exists."""
    return unquote_to_bytes(segment).decode("utf-8", "replace")


def is_count(segment: bytes) -> bool:
    """Decimal digits, and nothing else."""
    return segment.isdigit()


def count_of(segment: bytes, count_max: int) -> int:
    """How many are wanted; more than may be had means as many as may be had."""
    if not is_count(segment):
        raise Problem(400, "invalid_count", "the count must be a decimal number")
    digits = segment.lstrip(b"0")
    if not digits:
        raise Problem(400, "invalid_count", "the count must be 1 or more")
    return count_max if len(digits) > _COUNT_DIGITS_MAX else min(int(digits), count_max)
