"""Ids of jobs as peers of this API write them: hexadecimal digits or, where the server is told so,
any text. Such a text is the job's name; the id that all protocols know is made from it.
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
    """An item whose form is right and whose content is not."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_hexadecimal(text: str) -> str:
    """Ids compare without regard to case and are kept in lower case."""
    job_id = text.lower()
    if not is_job_id(job_id):
        sentence = f"an id has 1 to {limits.JOB_ID_DIGITS_MAX} hexadecimal digits"
        raise WrongItemError("invalid_id", sentence)
    return job_id


def read_any(text: str) -> str:
    """Digits are an id as they are; for any other text one is made, always the same."""
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
    """What the items of a batch may say: which ids, and how large a meta."""

    read_id: ReadId
    meta_bytes_max: int


def name_of(text: str, job_id: str) -> str | None:
    """What is kept beside an id: the text that it was made from."""
    return None if text.lower() == job_id else text


def shown_id(job: Job) -> str:
    """The id in the words of whoever chose it."""
    name = job.name
    return job.job_id if name is None or digits_of(name) != job.job_id else name
