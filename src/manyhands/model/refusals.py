"""Refusals by category: a protocol has one word for each, and exceptions where it has more."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from manyhands.model.replies import Why

T = TypeVar("T")


class Category(enum.Enum):
    """What kind of refusal it is."""

    MALFORMED = enum.auto()  # the command can never be carried out as it is
    TOO_LARGE = enum.auto()
    UNKNOWN = enum.auto()
    TAKEN = enum.auto()  # another job has the id, the key or the name
    NOT_HELD = enum.auto()  # the caller has no lease on the job, or no longer
    UNFIT = enum.auto()  # not in the present state of things
    FULL = enum.auto()  # a bound is reached that goes down by itself
    UNAVAILABLE = enum.auto()  # the server can do nothing of the kind at present
    FORBIDDEN = enum.auto()  # the caller may not
    DEFECT = enum.auto()  # ours


CATEGORIES: Final[Mapping[Category, tuple[Why, ...]]] = {
    Category.MALFORMED: (
        Why.BAD_QUEUE_NAME,
        Why.BAD_JOB_ID,
        Why.BAD_NAME,
        Why.BAD_UNIQUE_KEY,
        Why.BAD_TAG,
        Why.BAD_LIMIT,
        Why.BAD_HEADER,
        Why.BAD_PRIORITY,
        Why.BAD_TIME,
        Why.BAD_POLICY,
        Why.BAD_SCHEDULE,
        Why.BAD_COUNT,
        Why.EMPTY_BATCH,
        Why.TOO_MANY_DEPENDENCIES,
    ),
    Category.TOO_LARGE: (Why.PAYLOAD_TOO_LARGE, Why.METADATA_TOO_LARGE, Why.BATCH_TOO_LARGE),
    Category.UNKNOWN: (
        Why.UNKNOWN_JOB,
        Why.UNKNOWN_QUEUE,
        Why.UNKNOWN_SCHEDULE,
        Why.UNKNOWN_LIMIT,
        Why.UNKNOWN_WORKER,
    ),
    Category.TAKEN: (
        Why.DUPLICATE_JOB,
        Why.IN_OTHER_QUEUE,
        Why.DUPLICATE_KEY,
        Why.DUPLICATE_NAME,
        Why.KEY_REUSED,
    ),
    Category.NOT_HELD: (
        Why.NOT_YOUR_LEASE,
        Why.NOT_LEASED,
        Why.NOT_CLAIMABLE,
        Why.WRONG_QUEUE,
        Why.ALREADY_COMPLETED,
        Why.ALREADY_FAILED,
        Why.ALREADY_CANCELLED,
    ),
    Category.UNFIT: (
        Why.OTHER_ITEM_REFUSED,
        Why.UNKNOWN_DEPENDENCY,
        Why.NOT_FINISHED,
        Why.NOT_IDLE,
        Why.NO_LONGER_FITS,
        Why.CYCLE,
        Why.HAS_DEPENDANTS,
        Why.QUEUE_IN_USE,
    ),
    Category.FULL: (Why.QUEUE_FULL, Why.TOO_MANY_QUEUES, Why.TOO_MANY_SCHEDULES),
    Category.UNAVAILABLE: (Why.STORE_FULL, Why.STORE_FAILED, Why.SHUTTING_DOWN),
    Category.FORBIDDEN: (Why.NOT_ALLOWED,),
    Category.DEFECT: (Why.INTERNAL,),
}


def words_for(
    usual: Mapping[Category, T], exceptions: Mapping[Why, T] = MappingProxyType({})
) -> dict[Why, T]:
    """A protocol's word for every refusal."""
    found = {why: word for category, word in usual.items() for why in CATEGORIES[category]}
    return found | dict(exceptions)
