"""Every refusal in WMP's words: the reason of a CANCEL, and the code of a submitter's reply."""

from typing import Final

from manyhands.model.outcome import Why

# Codes of replies.
OK: Final = b"200"
NOT_YET: Final = b"300"
REFUSED: Final = b"400"
FAULT: Final = b"500"

LOST: Final = b"lost"
_UNKNOWN: Final = b"unknown"
_CANCELLED: Final = b"cancelled"

# Why a report of a worker is refused. What is not here: the lease is not, or no longer, its own.
REASONS: Final[dict[Why, bytes]] = {
    Why.UNKNOWN_JOB: _UNKNOWN,
    Why.ALREADY_CANCELLED: _CANCELLED,
}
# Refusals that say nothing about the lease: the report may be right when it is made again.
FOR_NOW: Final = frozenset({Why.SHUTTING_DOWN, Why.INTERNAL, Why.STORE_FULL})

CODES: Final[dict[Why, bytes]] = {
    **dict.fromkeys(Why, REFUSED),
    Why.QUEUE_FULL: FAULT,
    Why.TOO_MANY_QUEUES: FAULT,
    Why.STORE_FULL: FAULT,
    Why.SHUTTING_DOWN: FAULT,
    Why.INTERNAL: FAULT,
}
