"""The search of the pages, as parameters of the API."""

from typing import Any

from manyhands.cli.stores import misuse
from manyhands.model.filter import CONDITIONS
from manyhands.ui.query import read_query


def search(text: str, now: int) -> tuple[dict[str, Any], str | None]:
    """The parameters, and the id of the job if the search names one. Ends the command with a
    sentence if the search cannot be read.
    """
    query = read_query(text, now)
    if query.problems:
        sentences = " ".join(query.problems)
        misuse(sentences[0].lower() + sentences[1:])
    found: dict[str, Any] = {}
    for name, condition in CONDITIONS.items():
        value = getattr(query.filter, condition.field)
        if value is None or value == ():
            continue
        if name in ("age_min", "age_max"):
            found[name] = (now - value) / 1000
        elif isinstance(value, bytes):
            found[name] = value.decode(errors="replace")
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, tuple):
            found[name] = ",".join(value)
        else:
            found[name] = value
    return found, query.job_id
