"""Every refusal in WMP's words: the reason of a CANCEL, and the code of a submitter's reply."""

from typing import Final

from manyhands.model.refusals import CATEGORIES, Category, words_for
from manyhands.model.replies import Why

# Codes of replies.
OK: Final = b"200"
NOT_YET: Final = b"300"
REFUSED: Final = b"400"
FAULT: Final = b"500"

LOST: Final = b"lost"
_UNKNOWN: Final = b"unknown"
_CANCELLED: Final = b"cancelled"

# Why a worker's report is refused. Any other refusal: the lease is not, or no longer, its own.
REASONS: Final[dict[Why, bytes]] = {
    Why.UNKNOWN_JOB: _UNKNOWN,
    Why.ALREADY_CANCELLED: _CANCELLED,
}
# Refusals that say nothing about the lease: the same report may be accepted later.
FOR_NOW: Final = frozenset((*CATEGORIES[Category.UNAVAILABLE], *CATEGORIES[Category.DEFECT]))

CODES: Final[dict[Why, bytes]] = words_for(
    {
        **dict.fromkeys(Category, REFUSED),
        Category.FULL: FAULT,
        Category.UNAVAILABLE: FAULT,
        Category.DEFECT: FAULT,
    }
)
