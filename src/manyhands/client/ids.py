"""Ids of jobs, made by the client, so that a repeated submit is recognised."""

import hashlib
import os
import time


def new_id() -> str:
    """A UUIDv7 as 32 hexadecimal digits."""
    milliseconds = time.time_ns() // 1_000_000
    chance = int.from_bytes(os.urandom(10), "big")
    number = (milliseconds & (1 << 48) - 1) << 80 | chance
    number = number & ~(0xF << 76) | 0x7 << 76  # the version
    number = number & ~(0x3 << 62) | 0x2 << 62  # the variant
    return f"{number:032x}"


def id_of(task: str, key: str, number: int | None = None) -> str:
    """The id under which a key always finds the same job; of a ``map``, the item's number too."""
    text = f"{task}\0{key}" if number is None else f"{task}\0{key}\0{number}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
