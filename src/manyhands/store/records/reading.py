"""What queries need of a database: rows, and how its SQL says what differs between databases.

Statements are written once, with ``?`` for each value. A reader puts its own marks in their place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from manyhands.model.job import Job


def _same(value: Any) -> Any:  # noqa: ANN401 - any value
    return value


class Dialect(Struct, frozen=True, kw_only=True):
    """How one database says it."""

    columns: str  # of a job, as `Records.make_job` takes them
    weighed_columns: str  # the same with an empty payload, and its size at the end
    cut: Callable[[int], str]  # the columns with only the beginning of the payload
    weight: str  # bytes of payload and result
    # Conditions that differ from those in ``queries.py``, by field: SQL, and its values.
    conditions: Mapping[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {}
    # A name as it is stored, and back: a text may hold a zero, which not every database takes.
    name: Callable[[Any], Any] = _same
    text: Callable[[Any], str] = _same
    # Whether a column fits one of some patterns of queues: SQL, and its values.
    fits: Callable[[str], str]
    fits_values: Callable[[tuple[str, ...]], tuple[Any, ...]]
    # Pairs of queue and state as a table: what to select from, its columns, and its values.
    places: str
    place_columns: tuple[str, str]
    place_values: Callable[[list[tuple[str, str]]], tuple[Any, ...]]
    prefix: str = ""  # of the names of tables


class Records(Protocol):
    """A connection for queries."""

    @property
    def dialect(self) -> Dialect:
        """How its database says it."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""

    def whole_job(self, row: Sequence[Any]) -> Job | None:
        """The job of a row; None if it is damaged."""
