"""Job ids as peers of this API write them: hexadecimal digits or, if the server is configured so,
any text. Such a text is the job's name; the id shared by all protocols is derived from it.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.identity import digits_of, is_job_id
from manyhands.model.job import Job

TEXT_BYTES_MAX: Final = 255

ReadId = Callable[[str], str]


class WrongItemError(Exception):
    """An item of the right form with wrong content."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_hexadecimal(text: str) -> str:
    """Ids are case-insensitive and stored in lower case."""
    job_id = text.lower()
    if not is_job_id(job_id):
        sentence = f"an id has 1 to {limits.JOB_ID_DIGITS_MAX} hexadecimal digits"
        raise WrongItemError("invalid_id", sentence)
    return job_id


def read_any(text: str) -> str:
    """Hexadecimal digits are used as they are; any other text always maps to the same id."""
    job_id = text.lower()
    if is_job_id(job_id):
        return job_id
    if not text.isprintable() or not 0 < len(text.encode()) <= TEXT_BYTES_MAX:
        sentence = f"an id has 1 to {TEXT_BYTES_MAX} bytes, all of them printable"
        raise WrongItemError("invalid_id", sentence)
    return digits_of(text)


READ_ID: Final[dict[Literal["hexadecimal", "any"], ReadId]] = {
    "hexadecimal": read_hexadecimal,
    "any": read_any,
}


class Rules(Struct, frozen=True):
    """What the items of a batch may contain: the form of ids, the size of a meta, and whether a job
    may be added again to a queue it was completed in.
    """

    read_id: ReadId
    meta_bytes_max: int
    once_per_queue: bool = False


def name_of(text: str, job_id: str) -> str | None:
    """The text an id was derived from, stored beside it."""
    return None if text.lower() == job_id else text


def shown_id(job: Job) -> str:
    """The id as its submitter wrote it."""
    name = job.name
    return job.job_id if name is None or digits_of(name) != job.job_id else name
