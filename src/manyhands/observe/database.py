"""Metrics of a store in PostgreSQL: its journal, what applies it, and what hinders the database."""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from manyhands.observe.attention import Note

if TYPE_CHECKING:
    from manyhands.store.postgres.store import PostgresStore


def database_notes(store: "PostgresStore") -> Iterator[Note]:
    """What needs attention."""
    found = store.hindrance()
    if found.is_long:
        yield Note(
            level="warn",
            what="old transaction",
            sentence="a transaction in the database has been open for {span}; until it ends, every"
            " job costs more",
            span_ms=int(found.oldest_transaction_seconds * 1000),
        )


def database_metrics(store: "PostgresStore") -> Iterator[Metric]:
    """All of them."""
    counts, bounds = store.appends()
    appends = HistogramMetricFamily(
        "manyhands_append_seconds", "From sending a record of the journal to its commit."
    )
    names = [*(repr(bound) for bound in bounds), "+Inf"]
    buckets = list(zip(names, map(float, accumulate(counts.appends)), strict=True))
    appends.add_metric([], buckets, counts.append_seconds)
    yield appends
    for name, words, count in (
        (
            "manyhands_appends_in_doubt",
            "Appends during which the connection broke, so that they were sent again.",
            counts.in_doubt,
        ),
        (
            "manyhands_records_rewritten",
            "Acknowledged records that the database had lost and got again.",
            counts.rewritten,
        ),
        (
            "manyhands_lost_records",
            "Acknowledged records that the database has lost for good.",
            counts.lost,
        ),
        (
            "manyhands_pg_reconnects",
            "Times that the journal's connection was made again.",
            counts.reconnects,
        ),
    ):
        yield CounterMetricFamily(name, words, count)
    yield GaugeMetricFamily(
        "manyhands_apply_lag_seconds",
        "Age of the oldest durable record that is not in the tables yet.",
        store.apply_lag_seconds(),
    )
    found = store.hindrance()
    yield GaugeMetricFamily(
        "manyhands_pg_oldest_transaction_seconds",
        "Age of the oldest open transaction in the database.",
        found.oldest_transaction_seconds,
    )
    dead = GaugeMetricFamily(
        "manyhands_pg_dead_rows", "Rows that wait to be vacuumed away.", labels=["table"]
    )
    for table, count in sorted(found.dead_rows.items()):
        dead.add_metric([table], count)
    yield dead
