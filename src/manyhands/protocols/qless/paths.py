"""Reads paths as sent: segments are decoded one by one, so a queue name may contain a slash."""

import functools
from typing import Final
from urllib.parse import unquote_to_bytes

from manyhands.model import limits
from manyhands.web.envelope import Problem

# First segments in use or reserved by this API; the short form cannot name such a queue.
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
_COUNT_DIGITS_MAX: Final = 9  # a number with more digits exceeds every bound


def segments(raw_path: bytes) -> list[bytes]:
    """The parts between slashes; a trailing slash adds none."""
    parts = raw_path.split(b"/")[1:]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


@functools.lru_cache(maxsize=4096)
def queue_name(segment: bytes) -> str:
    """The queue named by a segment."""
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
    """Raises a problem if this is no valid queue name."""
    if not 0 < len(name.encode("utf-8", "replace")) <= limits.QUEUE_NAME_BYTES_MAX:
        raise bad_queue(f"must have 1 to {limits.QUEUE_NAME_BYTES_MAX} bytes")
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name):
        raise bad_queue("has control characters")
    if not name.strip("."):
        raise bad_queue("consists of dots only")


def bad_queue(sentence: str) -> Problem:
    """The answer to an invalid queue name."""
    return Problem(400, "invalid_queue", f"the queue's name {sentence}")


def plain_text(segment: bytes) -> str:
    """Any other segment; text that is not UTF-8 matches nothing."""
    return unquote_to_bytes(segment).decode("utf-8", "replace")


def is_count(segment: bytes) -> bool:
    """Whether the segment has only decimal digits."""
    return segment.isdigit()


def count_of(segment: bytes, count_max: int) -> int:
    """The requested count, capped at the maximum."""
    if not is_count(segment):
        raise Problem(400, "invalid_count", "the count must be a decimal number")
    digits = segment.lstrip(b"0")
    if not digits:
        raise Problem(400, "invalid_count", "the count must be 1 or more")
    return count_max if len(digits) > _COUNT_DIGITS_MAX else min(int(digits), count_max)
