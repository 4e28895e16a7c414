"""Translates frames of the previous version, so that a journal it left behind can be applied.

There each collection had fields of its own, by position. This module is needed as long as files of
schema 7 can be opened.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from manyhands.store.records.frames import Frame
from manyhands.store.records.tables import EVENTS, JOBS, REPLACED, RESULTS, Row, Rows

_Values = list[Any]


class _Rarities(Struct, frozen=True, array_like=True):
    """What few frames had besides jobs and events, in the order of schema 7."""

    dropped_jobs: list[_Values]
    dropped_results: list[_Values]
    events_dropped_to: int
    terms: list[_Values]
    replaced: list[_Values]
    payloads: list[_Values]
    tagged: list[_Values]
    partials: list[_Values]
    queues: list[_Values]
    removed_queues: list[_Values]
    limits: list[_Values]
    removed_limits: list[_Values]
    schedules: list[_Values]
    removed_schedules: list[_Values]
    cursors: list[_Values]
    removed_cursors: list[_Values]
    failures: list[_Values]
    failure_groups: list[_Values]
    mended: list[_Values]
    bulks: list[_Values]
    removed_bulks: list[_Values]
    audit: list[_Values]
    audit_dropped_to: list[_Values]
    samples: list[_Values]
    dropped_samples: list[_Values]
    dropped_terms: list[_Values]
    dropped_groups: list[_Values]

    def rows(self) -> Rows:
        """The same as rows, in the order in which they were applied."""
        found: Rows = {
            JOBS: _removed(self.dropped_jobs),
            RESULTS: _removed(self.dropped_results),
            EVENTS: [((self.events_dropped_to,), None)],
            REPLACED: _removed(self.replaced),
            "terms": _kept(self.terms) + _removed(self.dropped_terms),
            "payloads": _kept(self.payloads),
            "tags": _kept(self.tagged, key_count=2),
            "partials": [
                row
                for serial, number, oldest, *record in self.partials
                for row in (((serial, number, oldest), None), ((serial, number), tuple(record)))
            ],
            "failures": _removed(self.mended) + _kept(self.failures),
            "failure_groups": _kept(self.failure_groups) + _removed(self.dropped_groups),
            "history": _kept(self.samples, key_count=3) + _removed(self.dropped_samples),
            "audit": _kept(self.audit) + _removed(self.audit_dropped_to),
            "queues": _kept(self.queues) + _removed(self.removed_queues),
            "limits": _kept(self.limits) + _removed(self.removed_limits),
            "schedules": _kept(self.schedules) + _removed(self.removed_schedules),
            "cursors": _kept(self.cursors) + _removed(self.removed_cursors),
            "bulks": _kept(self.bulks) + _removed(self.removed_bulks),
        }
        return {name: rows for name, rows in found.items() if rows}


class _Frame(Struct, frozen=True, array_like=True):
    number: int
    counters: str
    inserted: list[_Values]
    updated: list[_Values]
    events_after: int
    events: list[Raw]
    rarities: _Rarities | None


_decode = msgspec.msgpack.Decoder(_Frame).decode
_encode = msgspec.msgpack.Encoder().encode


def translated(packed: memoryview) -> memoryview:
    """A frame of the previous version, packed as this version does it."""
    frame = _decode(packed)
    return memoryview(
        _encode(
            Frame(
                number=frame.number,
                counters=frame.counters,
                inserted=frame.inserted,
                updated=frame.updated,
                events_after=frame.events_after,
                events=frame.events,
                rows={} if frame.rarities is None else frame.rarities.rows(),
            )
        )
    )


def _kept(values: Iterable[_Values], key_count: int = 1) -> list[Row]:
    return [(tuple(row[:key_count]), tuple(row[key_count:])) for row in values]


def _removed(keys: Iterable[_Values]) -> list[Row]:
    return [(tuple(key), None) for key in keys]
