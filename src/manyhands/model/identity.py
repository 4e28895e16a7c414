"""Ids and names of jobs: their form, and the 32-digit uid that every protocol can carry. Routing
ids of ZeroMQ peers.
"""

import hashlib

from manyhands.model import limits

_DIGITS = frozenset("0123456789abcdef")
# Before the name of the caller, in routing ids that are its own.
_OF_CALLER = b"\0caller:"
# The namespace of uids made from foreign ids, so that no other UUIDv5 can equal ours.
_NAMESPACE = bytes.fromhex("6d616e7968616e64732e6a6f622e6964")


def is_job_id(text: str) -> bool:
    """One to 128 lower-case hexadecimal digits."""
    return 0 < len(text) <= limits.JOB_ID_DIGITS_MAX and _DIGITS.issuperset(text)


def name_key(namespace: str, name: str) -> str:
    """The key that refers to a job by its name: for commands without an id, and for a dependency on
    a name that no job has yet. No job id looks like it.
    """
    return f"{namespace}\0{name}"


def own_routing_id(caller: str, chosen: bytes) -> bytes:
    """The routing id of a ZeroMQ peer of this caller. No other caller's peer has it, whatever it
    chooses, since none may choose one that begins with a zero. Without a name, it is as chosen.
    """
    return b"".join((_OF_CALLER, caller.encode(), b"\0", chosen)) if caller else chosen


def chosen_routing_id(routing_id: bytes) -> bytes:
    """The routing id as the peer chose it."""
    if not routing_id.startswith(_OF_CALLER):
        return routing_id
    return routing_id[len(_OF_CALLER) :].partition(b"\0")[2]


def uid_of(job_id: str) -> str:
    """The job's 32-digit uid: the id itself where it has 32 digits, else a UUIDv5 of it."""
    return job_id if len(job_id) == 32 else digits_of(job_id)


def digits_of(text: str) -> str:
    """A UUIDv5 of any text, as 32 hexadecimal digits."""
    digest = bytearray(hashlib.sha1(_NAMESPACE + text.encode(), usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return digest[:16].hex()
