"""The words of a routing key: which are legal, and how names of other protocols are mapped.

A routing key is an AMQP short string of at most 255 bytes. Five identifiers of 36, a run of three
digits, a routing of 64 and six dots make 253 bytes, so every limit must hold in bytes.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from manyhands.model.identity import uid_of

IDENTIFIER_BYTES_MAX: Final = 36
ROUTING_BYTES_MAX: Final = 64
RUN_ID_MAX: Final = 999
IDENTIFIER_RULE: Final = (
    f"has 1 to {IDENTIFIER_BYTES_MAX} letters, digits, _ or -, and is not _ alone"
)
PLACEHOLDER: Final = "_"  # a word that is not available
DEFAULT_PROVISIONER: Final = "default"

_IDENTIFIER: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{IDENTIFIER_BYTES_MAX}}}")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS: Final = 8
_SLUG_MAX: Final = IDENTIFIER_BYTES_MAX - _HASH_DIGITS - 1


def is_identifier(text: str) -> bool:
    """Whether it may be a word of a key: no dots, and not the placeholder itself."""
    return text != PLACEHOLDER and _IDENTIFIER.fullmatch(text) is not None


def run_id_of(lease_number: int) -> int:
    """The id of a run. Runs beyond the highest number all share it."""
    return min(lease_number, RUN_ID_MAX)


def is_routing(text: str) -> bool:
    """Whether it may end a key. ASCII only, so that characters are bytes; `*` and `#` are plain
    characters in a key.
    """
    return len(text) <= ROUTING_BYTES_MAX and text.isascii() and text.isprintable()


@lru_cache(maxsize=4096)
def identifier_of(name: str) -> str:
    """The name itself if it is legal, otherwise its legal part and a part of its hash."""
    if is_identifier(name):
        return name
    kept = _ILLEGAL.sub("-", name).strip("-")[:_SLUG_MAX]
    digits = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{kept or 'x'}-{digits}"


class Place(Struct, frozen=True, gc=False):
    """The place of a queue in a key."""

    provisioner: str
    worker_type: str
    is_renamed: bool  # the queue's own name cannot be read from these words


@lru_cache(maxsize=4096)
def place_of(queue: str) -> Place:
    """A queue is named `provisioner/type`, or just by the type for the default provisioner."""
    provisioner, slash, worker_type = queue.partition("/")
    if slash and is_identifier(provisioner) and is_identifier(worker_type):
        return Place(provisioner, worker_type, is_renamed=False)
    worker_type = identifier_of(queue)
    return Place(DEFAULT_PROVISIONER, worker_type, is_renamed=worker_type != queue)


def task_id_of(job_id: str) -> str:
    """The job's uid, written as a UUID."""
    uid = uid_of(job_id)
    return f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}"
