"""What keeps a real PostgreSQL from removing dead rows is measured, and reported in time."""

from types import SimpleNamespace

import httpx
import pytest

from manyhands.config.database import read_address
from manyhands.observe.database import database_notes
from manyhands.store.postgres import vacuum
from manyhands.store.postgres.reader import ReaderPool
from manyhands.store.postgres.vacuum import VacuumWatch
from manyhands.store.records.packer import TermsBook
from tests.captured_logs import capture_logs
from tests.e2e.serving import Api, serving, wait_until

METRICS = (
    "manyhands_append_seconds_count",
    "manyhands_appends_in_doubt_total",
    "manyhands_records_rewritten_total",
    "manyhands_lost_records_total",
    "manyhands_apply_lag_seconds",
    "manyhands_pg_reconnects_total",
    "manyhands_pg_oldest_transaction_seconds",
)


@pytest.fixture
def watch(postgresql):
    pool = ReaderPool(read_address(postgresql.url(postgresql.new_schema())), TermsBook())
    one = VacuumWatch(pool, "public", look_seconds=3600)
    yield one
    one.end()
    pool.close()


def test_an_open_transaction_is_warned_about_once_when_it_gets_old(watch, postgresql, monkeypatch):
    """S56."""
    monkeypatch.setattr(vacuum, "LONG_SECONDS", 0.0)  # instead of ten minutes
    with capture_logs() as logs, postgresql.connect() as other:
        watch.look()
        assert logs == []
        with other.transaction():
            other.execute("SELECT 1")
            watch.look()
            watch.look()

            assert watch.found.oldest_transaction_seconds > 0
            (entry,) = logs
            assert entry["log_level"] == "warning"
            assert "a transaction in the database has been open for long" in entry["event"]
        watch.look()

    assert watch.found.oldest_transaction_seconds == 0
    assert len(logs) == 1


def test_an_old_transaction_needs_attention():
    """S56: it is on the overview, and in what the command line shows."""
    store = SimpleNamespace(hindrance=lambda: vacuum.Hindrance(oldest_transaction_seconds=700.0))

    (note,) = database_notes(store)

    assert "a transaction in the database has been open for 11m40s" in note.detail()
    store.hindrance = vacuum.Hindrance
    assert not list(database_notes(store))


def test_dead_rows_are_counted_by_table(watch, postgresql):
    """S56."""
    with postgresql.connect() as other:
        other.execute("CREATE TABLE IF NOT EXISTS public.worn(i int) WITH (autovacuum_enabled=off)")
        other.execute("INSERT INTO public.worn SELECT generate_series(1, 50)")
        other.execute("DELETE FROM public.worn")

    def counted() -> bool:
        watch.look()
        return watch.found.dead_rows.get("worn") == 50

    wait_until(counted)


def test_the_metrics_of_the_store_are_all_there(tmp_path, postgresql):
    """S65."""
    with serving(tmp_path, "--store", postgresql.url(postgresql.new_schema())) as served:
        api = Api(served)
        api.results("submit", queue="q", payload=1)
        text = httpx.get(f"{served.url}/metrics").text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        api.close()

    assert values.keys() >= set(METRICS)
    assert float(values["manyhands_append_seconds_count"]) >= 1
    assert float(values['manyhands_append_seconds_bucket{le="+Inf"}']) >= 1
    assert float(values["manyhands_lost_records_total"]) == 0
