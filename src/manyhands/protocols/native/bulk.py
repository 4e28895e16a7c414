"""The body of an operation on many jobs, and the answer about one."""

from typing import Final

import msgspec
from msgspec import Struct

from manyhands.model import limits
from manyhands.model.job import State
from manyhands.protocols.native.reading import bad_body, lower


class FilterBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs; all conditions must hold."""

    state: State | tuple[State, ...] = ()
    queue: str | None = None
    tag: str | None = None
    worker: str | None = None
    realm: str | None = None
    unique_key: str | None = None
    name: str | None = None
    age_min: float | None = None  # seconds since it was submitted
    age_max: float | None = None
    failure: str | None = None
    failure_code: str | None = None
    text: str | None = None

    @property
    def states(self) -> tuple[State, ...]:
        """One word or several."""
        return (self.state,) if isinstance(self.state, State) else self.state

    def submitted(self, age: float | None, now: int) -> int | None:
        """The instant at which a job of that age was submitted."""
        if age is None:
            return None
        if not 0 <= age * 1000 <= limits.TIME_MS_MAX:
            raise bad_body("an age is a number of seconds, not below 0")
        return now - int(age * 1000)


class BulkBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to be done, to which jobs."""

    action: str
    filter: FilterBody | None = None
    ids: tuple[str, ...] = ()
    queue: str | None = None  # where to, for move and retry
    delay_ms: int = 0
    priority: float | None = None
    with_dependants: bool = True
    reason: str = ""
    dry_run: bool = False

    def check(self) -> None:
        """What one key cannot say about another."""
        if (self.filter is None) == (not self.ids):
            raise bad_body("an operation needs a filter or ids, and not both")
        if self.filter == FilterBody():
            raise bad_body("a filter needs at least one condition")
        if len(self.ids) > limits.BATCH_COUNT_MAX:
            raise bad_body(f"at most {limits.BATCH_COUNT_MAX} ids; use a filter for more")
        if self.action == "move" and self.queue is None:
            raise bad_body("move needs a queue")
        if self.action == "priority" and self.priority is None:
            raise bad_body("priority needs a number")

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Each id once."""
        return tuple(dict.fromkeys(lower(self.ids)))


BULK: Final = msgspec.json.Decoder(BulkBody).decode
