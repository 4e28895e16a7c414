"""Ids of jobs as people give them: whole, as a handle or UUID, or only their end."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, give_up
from manyhands.cli.stores import fail, misuse

# Fewer digits than this could be the end of many ids.
_TAIL_DIGITS_MIN = 6
_WHOLE_DIGITS = 32
_SHOWN_MAX = 5


def find_job(link: HttpLink, given: str, **query: object) -> dict[str, Any]:
    """The job of this id, handle, UUID, or end of an id. Ends the command if there is not exactly
    one.
    """
    if not given:
        misuse("the id of a job is empty.")
    try:
        return link.ask("GET", job_path(given), query=query)["results"]  # type: ignore[no-any-return]
    except UnansweredError as error:
        give_up(error)
    except RefusedError as error:
        if error.code != "unknown_job" or not is_tail(given):
            give_up(error)
    return link.get(job_path(_of_tail(link, given.lower())), **query)  # type: ignore[no-any-return]


def full_ids(link: HttpLink, given: Sequence[str]) -> list[str]:
    """The same for several, as ids. Whole ids are passed on unseen: the server knows them."""
    return [find_job(link, one)["id"] if is_tail(one) else one for one in given]


def job_path(job_id: str) -> str:
    """The path of a job in the API."""
    return f"/api/jobs/{quote(job_id, safe='')}"


def is_tail(given: str) -> bool:
    """Whether it can be the end of an id."""
    return (
        _TAIL_DIGITS_MIN <= len(given) < _WHOLE_DIGITS
        and re.fullmatch("[0-9a-fA-F]+", given) is not None
    )


def _of_tail(link: HttpLink, tail: str) -> str:
    found: list[str] = []
    after: int | None = None
    while True:
        page = link.page("/api/jobs", id_tail=tail, count=_SHOWN_MAX, after=after)
        found += [row["id"] for row in page["results"]]
        after = page["next"]
        if after is None or len(found) > 1:
            break
    if not found:
        fail(f"there is no job whose id is or ends in {tail}.")
    if len(found) > 1:
        fail(f"several ids end in {tail}: {', '.join(found[:_SHOWN_MAX])}.")
    return found[0]
