"""Every refusal in Gearman's words, in packets and text: an upper-case code, then the sentence."""

from typing import Final

from manyhands.model.refusals import Category, words_for
from manyhands.model.replies import Why

ERROR_CODES: Final[dict[Why, bytes]] = words_for(
    {
        Category.MALFORMED: b"INVALID_ARGUMENT",
        Category.TOO_LARGE: b"ARGUMENT_TOO_LARGE",
        Category.UNKNOWN: b"INVALID_ARGUMENT",
        Category.TAKEN: b"JOB_EXISTS",
        Category.NOT_HELD: b"JOB_NOT_FOUND",
        Category.UNFIT: b"INVALID_ARGUMENT",
        Category.FULL: b"QUEUE_ERROR",
        Category.UNAVAILABLE: b"QUEUE_ERROR",
        Category.FORBIDDEN: b"NOT_ALLOWED",
        Category.DEFECT: b"INTERNAL_ERROR",
    },
    {
        Why.BAD_QUEUE_NAME: b"INVALID_FUNCTION_NAME",
        Why.BAD_JOB_ID: b"JOB_NOT_FOUND",
        Why.BAD_UNIQUE_KEY: b"ARGUMENT_TOO_LARGE",
        Why.UNKNOWN_JOB: b"JOB_NOT_FOUND",
        Why.UNKNOWN_QUEUE: b"UNKNOWN_FUNCTION",
        Why.QUEUE_IN_USE: b"FUNCTION_IN_USE",
        Why.SHUTTING_DOWN: b"SHUTTING_DOWN",
    },
)
