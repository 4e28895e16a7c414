"""The native API's statuses for refusals."""

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from manyhands.model.refusals import Category, words_for
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.native.answers import ItemError
from manyhands.protocols.native.decoder import read_id
from manyhands.web.envelope import Problem

_UNKNOWN: Final = "there is no job "

# Every refusal has a status; its code is the refusal's own name. A test finds missing ones.
STATUSES: Final[dict[Why, int]] = words_for(
    {
        Category.MALFORMED: 400,
        Category.TOO_LARGE: 413,
        Category.UNKNOWN: 404,
        Category.TAKEN: 409,
        Category.NOT_HELD: 409,
        Category.UNFIT: 409,
        Category.FULL: 409,
        Category.UNAVAILABLE: 503,
        Category.FORBIDDEN: 403,
        Category.DEFECT: 500,
    },
    {Why.KEY_REUSED: 422, Why.QUEUE_FULL: 429},
)


def status_and_code(why: Why) -> tuple[int, str]:
    """The HTTP status of a refusal, and the code in its envelope."""
    return STATUSES[why], why.value


def problem(refusal: Refusal) -> Problem:
    """A refusal as the answer to a whole request."""
    status, code = status_and_code(refusal.why)
    detail = None
    if refusal.job is not None:
        job = refusal.job
        detail = {"id": job.job_id, "queue": job.queue, "state": job.state.value}
    return Problem(status, code, refusal.sentence, detail)


def spelt(refusal: Refusal, given: Iterable[str]) -> Refusal:
    """The same refusal, naming an unknown job as the request wrote it."""
    if refusal.why is Why.UNKNOWN_JOB:
        for text in given:
            if refusal.sentence == f"{_UNKNOWN}{read_id(text)}":
                return Refusal(refusal.why, f"{_UNKNOWN}{text[:200]}", refusal.job)
    return refusal


def item_error(index: int, job_id: str | None, refusal: Refusal) -> ItemError:
    """A refusal as an entry of ``errors``, beside the results of the other items."""
    job = refusal.job
    return ItemError(
        index,
        job_id,
        refusal.why.value,
        refusal.sentence,
        UNSET if job is None else job.state,
        UNSET if job is None else job.queue,
    )
