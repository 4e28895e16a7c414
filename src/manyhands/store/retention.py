"""How long finished records are kept."""

from msgspec import Struct

from manyhands.model import limits
from manyhands.model.history import COARSE_MS, MINUTE_MS
from manyhands.model.job import State
from manyhands.model.policy import QueuePolicy


class Retention(Struct, frozen=True):
    """The server's defaults: by age and number for each queue and outcome, and by bytes for all
    records together.
    """

    record_ms: int = 7 * 24 * 3600 * 1000
    records_max: int = 50_000
    result_ms: int | None = None  # None: as long as the record
    event_ms: int = 7 * 24 * 3600 * 1000
    events_max: int = 2_000_000
    audit_ms: int = 365 * 24 * 3600 * 1000
    bytes_max: int = 1024 * 1024 * 1024  # payloads and results of all records together

    def record_ms_of(self, policy: QueuePolicy) -> int:
        """The queue's own setting, else the server's."""
        return self.record_ms if policy.record_ms is None else policy.record_ms

    def records_max_of(self, policy: QueuePolicy) -> int:
        """The queue's own setting, else the server's."""
        return self.records_max if policy.records_max is None else policy.records_max


OUTCOMES = (State.COMPLETED, State.FAILED, State.CANCELLED)
# How long samples of each step are kept.
SAMPLES_KEPT_MS = {MINUTE_MS: limits.HISTORY_MINUTES_MS, COARSE_MS: limits.HISTORY_COARSE_MS}
