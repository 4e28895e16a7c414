"""The body of a bulk operation, and its conditions."""

from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta, Struct

from manyhands.model import limits
from manyhands.model.filter import Filter, FilterError, read_filter
from manyhands.model.job import State
from manyhands.protocols.native.answers import Action
from manyhands.protocols.native.decoder import bad_body, read_ids
from manyhands.web.envelope import Whole

Age = Annotated[float, Meta(description="seconds since submission")]


class FilterBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs; all conditions must hold."""

    state: State | tuple[State, ...] = ()
    queue: str | None = None
    tag: str | None = None
    worker: str | None = None
    realm: str | None = None
    unique_key: str | None = None
    name: str | None = None
    age_min: Age | None = None
    age_max: Age | None = None
    failure: str | None = None
    failure_code: str | None = None
    task: str | None = None
    text: str | None = None

    def filter(self, now: int) -> Filter:
        """The filter at the given time."""
        found = msgspec.structs.asdict(self)
        if isinstance(self.state, State):
            found["state"] = (self.state,)
        try:
            return read_filter(found, now)
        except FilterError as error:
            raise bad_body(str(error)) from None


class BulkBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and to which jobs."""

    action: Annotated[str, Meta(extra_json_schema={"enum": get_args(Action)})]
    filter: FilterBody | None = None
    ids: tuple[str, ...] = ()
    queue: Annotated[str, Meta(description="the target queue of move and retry")] | None = None
    delay_ms: Whole = 0
    priority: float | None = None
    with_dependants: bool = True
    reason: str = ""
    dry_run: bool = False

    def check(self) -> None:
        """Checks keys that depend on each other."""
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
        """The ids without duplicates."""
        return tuple(dict.fromkeys(read_ids(self.ids)))


BULK: Final = msgspec.json.Decoder(BulkBody).decode
