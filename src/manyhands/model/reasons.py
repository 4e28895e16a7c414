"""Why jobs are in their state: one vocabulary for jobs, events, logs and statistics, with the
meaning of each word.

Checklist for a new reason: its meaning here - the states that are entered for it, in ``KINDS``
(``model/events.py``) - the readers that mypy and the tests then name - ``make docs``.
"""

import enum
from typing import Final, NamedTuple


class By(enum.StrEnum):
    """Who can cause a change."""

    WORKER = "worker"
    CLIENT = "client"  # submitted the job, or waits for it
    OPERATOR = "operator"
    SERVER = "server"  # by time, or by a rule


class Outcome(enum.Enum):
    """What a reason says about the attempt that ended with it."""

    LOST = enum.auto()  # without a report from its worker
    FAILED = enum.auto()  # its worker reported it
    FAILED_OR_LOST = enum.auto()  # only the job's failure shows which
    ADVANCED = enum.auto()  # it succeeded, and the job continues in the next queue
    NONE = enum.auto()  # neither success nor failure: given back, taken away, or there was none


class Meaning(NamedTuple):
    """What a reason says."""

    outcome: Outcome
    by: tuple[By, ...]  # who can cause it; empty: anybody
    sentence: str  # for people, and for the log
    charged: bool = False  # the attempt is counted against the job's budget


_WORKER: Final = (By.WORKER,)
_CLIENT: Final = (By.CLIENT,)
_SERVER: Final = (By.SERVER,)
_ANY_USER: Final = (By.CLIENT, By.OPERATOR)
_TIME: Final = (By.SERVER, By.OPERATOR)  # an operator may expire a lease at once
_NONE: Final = Outcome.NONE
_LOST: Final = Outcome.LOST


class Reason(enum.StrEnum):
    """Why a job is in its present state, where the state alone does not say.

    The values are stored and sent. Why an attempt ended is another question: ``EndReason``.
    """

    outcome: Outcome
    by: tuple[By, ...]
    sentence: str
    charged: bool
    is_lost: bool  # the attempt is, or will be unless its holder renews

    def __new__(cls, value: str, meaning: Meaning) -> "Reason":
        """A member: the word, and what it means."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.outcome, member.by, member.sentence, member.charged = meaning
        member.is_lost = meaning.outcome is Outcome.LOST
        return member

    NONE = "", Meaning(_NONE, (), "the state says it all")

    EXPIRED = "expired", Meaning(_LOST, _TIME, "a lease expired; the job goes back", charged=True)
    LOST = (
        "lost",
        Meaning(_LOST, _SERVER, "a worker's connection was lost; the job goes back", charged=True),
    )
    CUTOFF = (
        "cutoff",
        Meaning(
            _LOST, _SERVER, "an attempt took longer than allowed; the job goes back", charged=True
        ),
    )
    # Charged once another worker claims the job: until then the holder may renew.
    LAPSED = "lapsed", Meaning(_LOST, _TIME, "a lease expired; the job may be claimed by others")
    RENEWED = "renewed", Meaning(_NONE, _WORKER, "a worker renewed its lapsed lease")

    RELEASED = "released", Meaning(_NONE, (By.WORKER, By.SERVER), "a job was given back")
    GOODBYE = (
        "goodbye",
        Meaning(_NONE, (By.WORKER, By.OPERATOR), "a worker left; the job goes back"),
    )
    ADVANCED = (
        "advanced",
        Meaning(Outcome.ADVANCED, _WORKER, "a worker completed a job into its next queue"),
    )
    RETRY = (
        "retry",
        Meaning(Outcome.FAILED, _WORKER, "a job failed and will be retried", charged=True),
    )
    FAILED = "failed", Meaning(Outcome.FAILED, _WORKER, "a job failed and will not be retried")
    OUT_OF_ATTEMPTS = (
        "out_of_attempts",
        Meaning(
            Outcome.FAILED_OR_LOST,
            (By.WORKER, By.SERVER),
            "a job failed: its attempts are used up",
            charged=True,
        ),
    )
    DEADLINE = "deadline", Meaning(_NONE, _SERVER, "a job failed: its deadline passed")
    DEPENDENCY_FAILED = (
        "dependency_failed",
        Meaning(_NONE, _SERVER, "a job ended: one that it depends on failed or was cancelled"),
    )

    CANCELLED = "cancelled", Meaning(_NONE, _ANY_USER, "a job was cancelled")
    ABANDONED = (
        "abandoned",
        Meaning(_NONE, _CLIENT, "a job was cancelled: the last client that waited for it left"),
    )
    REPLACED = (
        "replaced",
        Meaning(_NONE, _CLIENT, "a job was cancelled: another one took its place"),
    )
    MOVED = "moved", Meaning(_NONE, _ANY_USER, "a job was moved")
    REQUEUED = "requeued", Meaning(_NONE, _ANY_USER, "a finished job was requeued")


BY_VALUE: Final[dict[str, Reason]] = {reason.value: reason for reason in Reason}


def in_words(reason: Reason, detail: str) -> str:
    """Why, for people: the detail if one was given, else our own word."""
    return detail or reason.value


def as_detail(text: str) -> str:
    """The given reason of a cancellation as a detail; our own word is not one."""
    return "" if text == Reason.CANCELLED else text


def read_reason(text: object, *, cancelled: bool) -> tuple[Reason, str]:
    """A reason and its detail from one text, as earlier versions stored them."""
    known = BY_VALUE.get(str(text))
    if known is not None:
        return known, ""
    return Reason.CANCELLED if cancelled else Reason.NONE, str(text)


# A failure that has this code was not reported: the last allowed attempt was lost.
LOST_CODE: Final = "attempts"
