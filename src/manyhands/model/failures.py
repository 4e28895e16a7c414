"""Groups similar failures: by the code, and the telling line of the message without its variable
parts.
"""

import re
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from manyhands.model.job import Failure, Job, State
from manyhands.model.traces import telling_line

_LINE_MAX: Final = 200
# Only the beginning of a long line is compared.
_LOOKED_AT_MAX: Final = 1_000
# In this order, because an id may look like a number, and a time contains several.
_DIFFERS: Final = re.compile(
    r"(?P<id>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?:0x[0-9a-fA-F]+|(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,})\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
    # A number after one of these words says what went wrong, not where or when.
    r"|(?P<kept>\b(?:http|status|code|errno|error|exit|signal)\b[\s:=#]*\d+\b)"
    r"|(?P<number>\d+(?:[.,:]\d+)*)",
    re.IGNORECASE,
)


class Group(Struct, frozen=True):
    """What similar failures have in common."""

    group_id: str  # the same for the same code and line, on every server
    code: str
    line: str


def group_of(failure: Failure) -> Group:
    """The group that a failure belongs to."""
    return _group(failure.code, telling_line(failure.message))


def earlier_group_of(failure: Failure) -> Group:
    """The group as earlier versions stored it: by the first line. Failures on record keep it."""
    return _group(failure.code, failure.message.lstrip().partition("\n")[0])


def headline(code: str, line: str) -> str:
    """Code and line in one; a line that begins with the code is enough."""
    if not code or line == code or line.startswith(f"{code}: "):
        return line or code
    return f"{code}: {line}" if line else code


def _group(code: str, telling: str) -> Group:
    line = _alike(telling)
    digest = blake2b(f"{code}\0{line}".encode(errors="replace"), digest_size=8)
    return Group(digest.hexdigest(), code, line)


def group_of_job(job: Job) -> Group | None:
    """The group of a job that has failed; None if it has not."""
    if job.state is not State.FAILED or job.failure is None:
        return None
    return group_of(job.failure)


def _alike(line: str) -> str:
    return " ".join(_DIFFERS.sub(_word, line[:_LOOKED_AT_MAX]).split())[:_LINE_MAX]


def _word(match: re.Match[str]) -> str:
    return match[0] if match.lastgroup == "kept" else f"<{match.lastgroup}>"
