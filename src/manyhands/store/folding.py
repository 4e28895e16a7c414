"""Many frames as one: what the database holds after all of them, with each row written once.

A job that comes and goes within a window is one row in its final form; of several updates the last
one counts; what is dropped later need not be written before. The order in which ``applying.py``
writes a window (what goes, first) is part of this: see there.
"""

from typing import Any, Final

from msgspec import Raw

from manyhands.store.frames import Rarities, ReceivedFrame, Row

# Where the fields of an update (behind the serial) stand in the row of a job.
_PLACE: Final = slice(3, 7)  # queue, state, finished_at, result_until
_RESULT_UNTIL: Final = 6
_RECORD: Final = 15
_RESULT: Final = 17
_UPDATE_RESULT_UNTIL: Final = 4
_UPDATE_RECORD: Final = 5
_UPDATE_RESULT: Final = 6

SETTINGS: Final = ("queues", "limits", "schedules", "cursors", "bulks")


class Window:
    """Frames that are written together."""

    __slots__ = (
        "audit",
        "audit_dropped_to",
        "counters",
        "dropped",
        "dropped_groups",
        "dropped_results",
        "dropped_samples",
        "dropped_terms",
        "events",
        "events_after",
        "events_dropped_to",
        "failure_groups",
        "failures",
        "inserted",
        "mended",
        "partials",
        "payloads",
        "replaced",
        "samples",
        "settings",
        "tagged",
        "terms",
        "updated",
    )

    def __init__(self) -> None:
        self.counters = ""
        # All of these by serial.
        self.dropped: dict[int, None] = {}  # jobs with everything that belongs to them
        self.replaced: dict[int, None] = {}  # the same, but pieces of results stay
        self.dropped_results: dict[int, None] = {}  # of jobs that are not written otherwise
        self.inserted: dict[int, list[Any]] = {}
        self.payloads: dict[int, Row] = {}
        self.updated: dict[int, list[Any]] = {}
        self.tagged: dict[int, list[Row]] = {}
        self.partials: dict[int, list[Row]] = {}
        self.failures: dict[int, Row] = {}
        self.mended: dict[int, None] = {}  # jobs whose failures are gone
        self.failure_groups: dict[str, Row] = {}
        self.audit: dict[int, Row] = {}  # by number
        self.audit_dropped_to = 0
        self.terms: list[Row] = []
        self.dropped_terms: list[Row] = []
        self.dropped_groups: list[Row] = []  # one without values: those that have no failures
        self.events_after = 0  # the number before that of the first one
        self.events: list[Raw] = []
        self.events_dropped_to = 0
        self.samples: dict[tuple[str, int, int], Row] = {}  # by queue, step and time
        self.dropped_samples: dict[int, int] = {}  # step -> before when
        # By table and name: the record, or None if it goes.
        self.settings: dict[str, dict[str, str | None]] = {table: {} for table in SETTINGS}

    def is_closed(self) -> bool:
        """Nothing can be added: what is dropped at the end depends on what was there before."""
        return bool(self.dropped_terms or self.dropped_groups)

    def fold(self, frame: ReceivedFrame) -> None:
        """Add the frame that follows."""
        self.counters = frame.counters
        rarities = frame.rarities
        if rarities is not None:
            self._take_away(rarities)
        inserted, updated = self.inserted, self.updated
        for row in frame.inserted:
            inserted[row[0]] = row
            updated.pop(row[0], None)
        for row in frame.updated:
            serial = row[0]
            job = inserted.get(serial)
            if job is None:
                updated[serial] = row
            else:
                job[_PLACE] = row[1:_UPDATE_RECORD]
                job[_RECORD] = row[_UPDATE_RECORD]
                job[_RESULT] = row[_UPDATE_RESULT]
        if frame.events:
            if not self.events:
                self.events_after = frame.events_after
            assert frame.events_after == self.events_after + len(self.events)
            self.events += frame.events
        if rarities is not None:
            self._take_rarities(rarities)

    def _take_away(self, frame: Rarities) -> None:
        """What a frame drops comes before what it writes."""
        for (serial,) in frame.dropped_jobs:
            self._forget(serial)
            self.partials.pop(serial, None)
            self.failures.pop(serial, None)
            self.dropped[serial] = None
        for (serial,) in frame.dropped_results:
            if serial in self.inserted:
                self.inserted[serial][_RESULT] = self.inserted[serial][_RESULT_UNTIL] = None
            elif serial in self.updated:
                row = self.updated[serial]
                row[_UPDATE_RESULT] = row[_UPDATE_RESULT_UNTIL] = None
            else:
                self.dropped_results[serial] = None
        for (serial,) in frame.replaced:
            self._forget(serial)
            self.replaced[serial] = None

    def _forget(self, serial: int) -> None:
        self.inserted.pop(serial, None)
        self.payloads.pop(serial, None)
        self.updated.pop(serial, None)
        self.tagged.pop(serial, None)

    def _take_failures(self, frame: Rarities) -> None:
        for (serial,) in frame.mended:
            self.failures.pop(serial, None)
            # A job that is new in this window has none in the database.
            if serial not in self.inserted or serial in self.replaced or serial in self.dropped:
                self.mended[serial] = None
        for row in frame.failures:
            self.failures[row[0]] = row
        for row in frame.failure_groups:
            self.failure_groups.setdefault(row[0], row)

    def _take_rarities(self, frame: Rarities) -> None:
        for row in frame.payloads:
            self.payloads[row[0]] = row
        self._take_failures(frame)
        for row in frame.tagged:
            self.tagged.setdefault(row[1], []).append(row)
        for row in frame.partials:
            self.partials.setdefault(row[0], []).append(row)
        self.terms += frame.terms
        if frame.events_dropped_to:
            self._drop_events(frame.events_dropped_to)
        if frame.samples or frame.dropped_samples:
            self._take_samples(frame)
        for row in frame.audit:
            self.audit[row[0]] = row
        for (seq,) in frame.audit_dropped_to:
            self.audit = {key: row for key, row in self.audit.items() if key > seq}
            self.audit_dropped_to = max(self.audit_dropped_to, seq)
        self.dropped_terms += frame.dropped_terms
        self.dropped_groups += frame.dropped_groups
        for table, settings in self.settings.items():
            for name, record in getattr(frame, table):
                settings[name] = record
            for (name,) in getattr(frame, f"removed_{table}"):
                settings[name] = None

    def _take_samples(self, frame: Rarities) -> None:
        for row in frame.samples:
            self.samples[row[0], row[1], row[2]] = row
        for step_ms, before in frame.dropped_samples:
            for key in [key for key in self.samples if key[1] == step_ms and key[2] < before]:
                del self.samples[key]
            self.dropped_samples[step_ms] = max(before, self.dropped_samples.get(step_ms, before))

    def _drop_events(self, seq: int) -> None:
        gone = max(0, seq - self.events_after)
        self.events = self.events[gone:]
        self.events_after += gone
        self.events_dropped_to = max(self.events_dropped_to, seq)
